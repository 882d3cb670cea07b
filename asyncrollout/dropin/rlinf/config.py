"""The configuration of an evaluation, in the keys of RLinf's BEHAVIOR evaluation."""

from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from asyncrollout.config import schema
from asyncrollout.config.checking import Checker, Problem
from asyncrollout.config.document import Document
from asyncrollout.config.overrides import expanded, override
from asyncrollout.config.reading import load_mapping, problems_text, read_text
from asyncrollout.config.schema import ConfigPart, EnvName, FrameRate, FromOne, FromZero, ImportPath, Positive, Text
from asyncrollout.dropin.rlinf.ranks import RankedWorker, parse_placement
from asyncrollout.errors import UsageError
from asyncrollout.registry import env_names
from asyncrollout.trajectories import Limits
from asyncrollout.validation import did_you_mean

VIDEO_DIRECTORY = "logs/behavior_eval/video/eval"

_LEAST = "write at least a line such as 'env.eval.total_num_envs: 4'"
_ONE_PROCESS = (RankedWorker(0, (0,)),)

FileName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}\Z", description="up to 80 letters, digits, '_', '-' and '.'")
]


class Python(ConfigPart, frozen=True, tag_field="kind", tag="python"):
    """Your own policy: a function of the observation, a `Policy`, an `Agent`, or what makes one from `kwargs`."""

    path: ImportPath
    kwargs: dict[str, Any] = field(default_factory=dict)


class VideoCfg(ConfigPart, frozen=True):
    """One video for each env; `fps` defaults to the env's own."""

    save_video: bool = True
    video_base_dir: Text = VIDEO_DIRECTORY
    prefix: FileName = "behavior_video"
    fps: FrameRate | None = None
    info_on_video: bool = False


class Eval(ConfigPart, frozen=True):
    """The envs; each plays `episodes` episodes. `tasks` are dealt out to them in turn."""

    total_num_envs: FromOne = 1
    env_type: EnvName = "household"
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    episodes: FromOne = 1
    max_episode_steps: FromOne | None = None
    resolution: Literal["low", "high"] | None = None
    tasks: list[Any] = field(default_factory=list)
    seed: FromZero = 0
    step_timeout: Positive = 60.0
    reset_timeout: Positive = 600.0
    video_cfg: VideoCfg = VideoCfg()


class Envs(ConfigPart, frozen=True):
    eval: Eval = Eval()


class Cluster(ConfigPart, frozen=True):
    """Which GPUs the processes of the envs (`env`) and of the policy (`rollout`) see."""

    component_placement: dict[str, Any] = field(default_factory=dict)
    num_nodes: FromOne = 1

    def __post_init__(self) -> None:
        if self.num_nodes > 1:
            raise UsageError(f"num_nodes: found {self.num_nodes}, expected 1: an evaluation runs on one machine")
        try:
            self.workers("env")
        except UsageError as error:
            raise UsageError(f"component_placement: {error}") from None

    @property
    def components(self) -> dict[str, tuple[RankedWorker, ...]]:
        return parse_placement(self.component_placement)

    def workers(self, component: str) -> tuple[RankedWorker, ...]:
        """The processes of a component; one on the first GPU by default."""
        return self.components.get(component, _ONE_PROCESS)


class EvaluationConfig(ConfigPart, frozen=True, kw_only=True):
    """An evaluation."""

    cluster: Cluster = Cluster()
    env: Envs = Envs()
    policy: schema.Policy | Python = schema.Solver()
    agent: schema.Chat = schema.Chat()
    limits: Limits = Limits()

    @property
    def imports(self) -> list[str]:
        """The import paths it names."""
        named = [self.policy.path] if isinstance(self.policy, Python) else []
        env_type = self.env.eval.env_type
        return [env_type, *named] if ":" in env_type.removeprefix("gymnasium:") else named


def read_evaluation(path: FilePath, overrides: Sequence[str] = ()) -> EvaluationConfig:
    """The evaluation in a file; `overrides` are values such as `env.eval.total_num_envs=8`."""
    return parse_evaluation(read_text(path), overrides, str(path))


def parse_evaluation(text: str, overrides: Sequence[str] = (), where: str = "eval.yaml") -> EvaluationConfig:
    """As `read_evaluation`; `where` is the file's name, for errors."""
    return _checked(load_mapping(text, overrides, where, least=_LEAST), where)


def as_evaluation(values: dict[str, Any], overrides: Sequence[str] = (), where: str = "config") -> EvaluationConfig:
    """As `read_evaluation`, from the values of a file."""
    document = Document(values, {})
    for assignment in overrides:
        document = override(document, assignment)
    return _checked(document, where)


def _checked(document: Document, where: str) -> EvaluationConfig:
    values = expanded(document.value)
    problems = Checker(EvaluationConfig, document.places, []).problems(values)
    if not problems:
        config = msgspec.convert(values, EvaluationConfig)
        problems = _unknown_env(config.env.eval.env_type)
    if problems:
        raise UsageError(problems_text(where, problems, document.places, {}))
    return config


def _unknown_env(name: str) -> list[Problem]:
    known = env_names()
    if ":" in name or name in known:
        return []
    forms = " (or 'gymnasium:<id>', or 'module:Class')"
    return [Problem(("env", "eval", "env_type"), f"no env is called {name!r}{did_you_mean(name, known)}{forms}")]
