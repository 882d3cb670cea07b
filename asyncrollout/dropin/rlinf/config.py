"""The configuration of an evaluation, in the keys of RLinf's BEHAVIOR evaluation."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from asyncrollout.config import schema
from asyncrollout.config.checking import Checker, Problem
from asyncrollout.config.document import Document, Path, Place, load
from asyncrollout.config.overrides import expanded, override, undotted
from asyncrollout.config.reading import log_notes, problems_text, read_text
from asyncrollout.config.schema import ConfigPart, EnvName, FrameRate, FromOne, FromZero, ImportPath, Positive, Text
from asyncrollout.dropin.hydra_defaults import compose_document, interpolate
from asyncrollout.dropin.rlinf.config_keys import translate
from asyncrollout.dropin.rlinf.placement import PlacedComponent, place_components
from asyncrollout.dropin.rlinf.ranks import PlacementError, RankedWorker
from asyncrollout.dropin.rlinf.strategies import ACCELERATOR
from asyncrollout.errors import UsageError
from asyncrollout.registry import env_names
from asyncrollout.trajectories import Limits
from asyncrollout.validation import did_you_mean

VIDEO_DIRECTORY = "logs/behavior_eval/video/eval"

_LEAST = "write at least a line such as 'env.eval.total_num_envs: 4'"
_PARTS = ("cluster", "policy", "agent", "limits")
_THEIRS = frozenset(
    {
        *(
            "maniskill",
            "maniskill_rlt",
            "libero",
            "robotwin",
            "isaaclab",
            "metaworld",
            "calvin",
            "robocasa",
            "robocasa365",
        ),
        *("realworld", "frankasim", "habitat", "opensora_wm", "wan_wm", "genesis", "embodichain", "roboverse", "d4rl"),
        *("diffusion", "polaris"),
    }
)
_ONE_PROCESS = (RankedWorker(0, (0,)),)

FileName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}\Z", description="up to 80 letters, digits, '_', '-' and '.'")
]


class Python(ConfigPart, frozen=True, tag_field="kind", tag="python"):
    """Your own policy: a function of the observation, a `Policy`, an `Agent`, or what makes one from `kwargs`."""

    path: ImportPath
    kwargs: dict[str, Any] = field(default_factory=dict)


class RLinfModel(ConfigPart, frozen=True, tag_field="kind", tag="rlinf"):
    """The model of an RLinf file (`rollout.model`), which only RLinf loads: give a policy in its place."""

    model_path: str = ""


class VideoCfg(ConfigPart, frozen=True):
    """One video for each env; `fps` defaults to the env's own."""

    save_video: bool = True
    video_base_dir: Text = VIDEO_DIRECTORY
    prefix: FileName = "behavior_video"
    fps: FrameRate | None = None
    info_on_video: bool = False


class Eval(ConfigPart, frozen=True):
    """The envs; each plays `episodes` episodes. `tasks` are dealt out to them in turn.

    Envs that have splits play `split`: "test", unless `env_kwargs` names another one.
    """

    total_num_envs: FromOne = 1
    env_type: EnvName = "household"
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    split: Text | None = None
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
    node_groups: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.num_nodes > 1:
            raise UsageError(f"num_nodes: found {self.num_nodes}, expected 1: an evaluation runs on one machine")
        try:
            placed = self.components
            for component in ("env", "rollout"):
                self.workers(component)
                if component not in placed and (close := get_close_matches(component, placed, cutoff=0.75)):
                    raise PlacementError(f"component_placement: there is no {component!r}, but {close[0]!r}")
        except PlacementError as error:  # the rest of its path is added
            raise PlacementError(str(error).removeprefix("cluster.")) from None

    @property
    def components(self) -> list[str]:
        return [*self._placed]

    @property
    def _placed(self) -> dict[str, PlacedComponent]:
        given = {"num_nodes": self.num_nodes, "node_groups": self.node_groups}
        return place_components({**given, "component_placement": self.component_placement})

    def workers(self, component: str) -> tuple[RankedWorker, ...]:
        """The processes of a component; one on the first GPU by default."""
        placed = self._placed.get(component)
        if placed is None:
            return _ONE_PROCESS
        if {*placed.hardware_types} != {ACCELERATOR}:
            groups = ", ".join(placed.node_groups)
            raise PlacementError(
                f"component_placement: {component}: node_group {groups!r} has no GPUs: an evaluation is placed on GPUs"
            )
        return placed.workers


class EvaluationConfig(ConfigPart, frozen=True, kw_only=True):
    """An evaluation."""

    cluster: Cluster = Cluster()
    env: Envs = Envs()
    policy: schema.Policy | Python | RLinfModel = schema.Solver()
    agent: schema.Chat = schema.Chat()
    limits: Limits = Limits()

    @property
    def imports(self) -> list[str]:
        """The import paths it names."""
        named = [self.policy.path] if isinstance(self.policy, Python) else []
        env_type = self.env.eval.env_type
        return [env_type, *named] if ":" in env_type.removeprefix("gymnasium:") else named


def read_evaluation(path: FilePath, overrides: Sequence[str] = ()) -> EvaluationConfig:
    """The evaluation in a file; `overrides` are values such as `env.eval.total_num_envs=8`.

    Hydra's `defaults` are resolved from the files beside it and in its `hydra.searchpath`.
    """
    return parse_evaluation(read_text(path), overrides, str(path))


def parse_evaluation(text: str, overrides: Sequence[str] = (), where: str = "eval.yaml") -> EvaluationConfig:
    """As `read_evaluation`; `where` is the file's name, for errors and for the files beside it."""
    document = load(text, where)
    if document.value is None:
        if not overrides:
            raise UsageError(f"{where}: empty: {_LEAST}")
        document = Document({}, {})
    if not isinstance(document.value, dict):
        raise UsageError(f"{where}: found no mapping of keys to values: {_LEAST}")
    return _checked(undotted(compose_document(document, FilePath(where)), where), overrides, where)


def as_evaluation(values: dict[str, Any], overrides: Sequence[str] = (), where: str = "config") -> EvaluationConfig:
    """As `read_evaluation`, from the values of a file."""
    if "defaults" in values:
        raise UsageError(f"{where}: 'defaults' are resolved from the files beside a file: give its path instead")
    places: dict[Path, Place] = {
        (key,): Place("a key with dots") for key in values if isinstance(key, str) and "." in key
    }
    return _checked(undotted(Document(values, places), where), overrides, where)


def _checked(document: Document, overrides: Sequence[str], where: str) -> EvaluationConfig:
    for assignment in overrides:
        document = override(document, assignment)
    translated = translate(_resolved(expanded(document.value)))
    problems = _unknown_env(translated.values) or [  # whose keys would all be unknown
        *translated.problems,
        *Checker(EvaluationConfig, document.places, []).problems(translated.values),
    ]
    if problems:
        raise UsageError(problems_text(where, problems, document.places, translated.origins))
    log_notes(translated.notes, "rlinf", where)
    return msgspec.convert(translated.values, EvaluationConfig)


def _resolved(values: dict[Any, Any]) -> dict[Any, Any]:
    """With the references of the parts that are used resolved; those of actors and models need not be."""
    env = values.get("env")
    used: dict[Any, Any] = {key: values[key] for key in _PARTS if key in values}
    if isinstance(env, dict):
        used["env"] = {key: item for key, item in env.items() if key != "train"}
    return {**values, **{key: interpolate(item, values, (key,)) for key, item in used.items()}}


def _unknown_env(values: dict[Any, Any]) -> list[Problem]:
    path, known = ("env", "eval", "env_type"), env_names()
    name: Any = values
    for key in path:
        name = name.get(key) if isinstance(name, dict) else None
    if not isinstance(name, str) or ":" in name or name in known:
        return []
    if name in _THEIRS:
        return [Problem(path, f"RLinf's {name!r} is not available here; of its environments, only 'behavior' is")]
    forms = " (or 'gymnasium:<id>', or 'module:Class')"
    return [Problem(path, f"no env is called {name!r}{did_you_mean(name, known)}{forms}")]
