"""The options of VAGEN's environments, with its names and defaults.

With `explain_invalid`, which VAGEN does not have, an observation begins with why the last reply was invalid.
"""

import math
import os
import random
import re
from collections.abc import Collection, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

from asyncrollout.dropin.vagen import games
from asyncrollout.dropin.vagen.replies import CURRENT, LEGACY, find_format
from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.images import IMAGE_MARK
from asyncrollout.registry import find_env, load_factory
from asyncrollout.validation import check_int, did_you_mean

_RENDER_MODES = ("text", "vision")
_CANDIDATES = 20_000
_VARIABLE = re.compile(r"\$(?:\{(?:env:)?(\w+)\}|(\w+))")


def make_config(kind: Any, env_name: str, given: dict[str, Any]) -> Any:
    """A config from the keys of a file; an unknown one is an error with the nearest there is."""
    known = [one.name for one in fields(kind) if one.init]
    for key in given:
        if key not in known:
            raise UsageError(f"{env_name}: there is no option {key!r}{did_you_mean(str(key), known)}")
    try:
        return kind(**given)
    except RolloutError:
        raise
    except Exception as error:  # whatever a user's class raises
        raise UsageError(f"{env_name}: its options are not valid: {type(error).__name__}: {error}") from error


def fill_missing(config: Any) -> None:
    """Set the defaults of options that are None: data sets of several environments write None for each other's."""
    for one in fields(config):
        if getattr(config, one.name) is None and one.default is not MISSING:
            setattr(config, one.name, one.default)


@dataclass
class BaseEnvConfig:
    """What the configs of VAGEN's first version share; derive from it for environments of your own."""

    format_reward: float = 0.5
    image_placeholder: str = IMAGE_MARK
    special_token_list: list[str] | None = field(
        default_factory=lambda: ["<think>", "</think>", "<answer>", "</answer>"]
    )
    action_sep: str = ","

    identifying: ClassVar[tuple[str, ...]] = ()

    def config_id(self) -> str:
        """The name that metrics are logged under."""
        named = ",".join(
            f"{one.name}={getattr(self, one.name)}" for one in fields(self) if one.name in self.identifying
        )
        return f"{type(self).__name__}({named})"

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key, default)

    def generate_seeds(self, size: int, seed: int = 0, n_candidate: int = _CANDIDATES) -> list[int]:
        """Seeds for a data set; the same ones each time."""
        return random.Random(seed).sample(range(n_candidate + size), size)  # noqa: S311 (VAGEN's own seeds)


@dataclass
class _GridEnvConfig(BaseEnvConfig):
    render_mode: str = "vision"
    min_actions_to_succeed: int = 5
    max_actions_per_step: int = 3
    prompt_format: str = "grounding_worldmodeling"
    use_state_reward: bool = False
    grounding_reward_weight: float = 0.5
    worldmodeling_reward_weight: float = 0.5
    env_name: str = ""
    explain_invalid: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        fill_missing(self)
        name = type(self).env_name
        if self.env_name != name:
            raise UsageError(f"{name}: env_name={self.env_name!r:.100} is another environment")
        check_shown(name, self)
        find_format(self.prompt_format, LEGACY, name)
        if self.use_state_reward:
            raise UsageError(
                f"{name}: use_state_reward=True is not available: it needs VAGEN's LLM judge, which scores how states "
                "are described; set it to False"
            )


@dataclass
class SokobanEnvConfig(_GridEnvConfig):
    """`sokoban` of VAGEN's first version."""

    env_name: str = "sokoban"
    dim_room: Sequence[int] = (6, 6)
    max_steps: int = 100
    num_boxes: int = 1

    identifying = (
        "dim_room",
        "max_steps",
        "num_boxes",
        "render_mode",
        "min_actions_to_succeed",
        "max_actions_per_step",
    )

    def generate_seeds(self, size: int, seed: int = 0, n_candidate: int = _CANDIDATES) -> list[int]:
        """The first seeds from `seed` on whose rooms can be solved within `min_actions_to_succeed` actions."""
        return games.solvable_seeds(self, size, range(seed, seed + n_candidate))


@dataclass
class FrozenLakeEnvConfig(_GridEnvConfig):
    """`frozenlake` of VAGEN's first version."""

    env_name: str = "frozenlake"
    desc: Sequence[str] | None = None
    is_slippery: bool = False
    size: int = 4
    p: float = 0.8

    identifying = (
        *("is_slippery", "size", "p", "render_mode", "max_actions_per_step"),
        *("min_actions_to_succeed", "format_reward"),
    )


@dataclass
class _CurrentConfig:
    render_mode: str = "text"
    max_actions_per_step: int = 3
    action_sep: str = ","
    image_placeholder: str = IMAGE_MARK
    use_example_in_sys_prompt: bool = True
    success_reward: float = 1.0
    explain_invalid: bool = field(default=False, kw_only=True)

    env_name: ClassVar[str] = ""
    formats: ClassVar[tuple[str, ...]] = tuple(CURRENT)
    prompt_format: str = "free_think"

    def __post_init__(self) -> None:
        fill_missing(self)
        check_shown(self.env_name, self)
        find_format(self.prompt_format, {name: CURRENT[name] for name in self.formats}, self.env_name)


@dataclass
class SokobanConfig(_CurrentConfig):
    """`Sokoban` of VAGEN as it is."""

    dim_room: Sequence[int] = (6, 6)
    max_steps: int = 100
    num_boxes: int = 1
    min_solution_steps: Sequence[int] | None = None
    reset_seed_max_tries: int = 10_000
    min_solution_bfs_max_depth: int = 200
    prompt_format: str = "wm"
    format_reward: float = 0.1

    env_name: ClassVar[str] = "Sokoban"

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = self.min_solution_steps
        if steps is not None and not _is_range(steps):
            raise UsageError(
                f"Sokoban: min_solution_steps={steps!r:.100} must be two numbers, the smaller first, such as [1, 5]"
            )
        for key in ("reset_seed_max_tries", "min_solution_bfs_max_depth"):
            check_int(f"Sokoban: {key}", getattr(self, key), 1)


@dataclass
class FrozenLakeConfig(_CurrentConfig):
    """`FrozenLake` of VAGEN as it is."""

    size: int = 4
    desc: Sequence[str] | None = None
    is_slippery: bool = False
    slip_prob: float = 0.0
    p: float = 0.8
    max_actions_per_step: int = 5
    format_reward: float = 0.02

    env_name: ClassVar[str] = "FrozenLake"
    formats: ClassVar[tuple[str, ...]] = ("free_think", "wm")

    def __post_init__(self) -> None:
        super().__post_init__()
        slips = self.slip_prob
        if isinstance(slips, bool) or not isinstance(slips, int | float) or not 0 <= slips <= 1:
            raise UsageError(f"FrozenLake: slip_prob={slips!r:.100} is not a number from 0 to 1")
        if self.is_slippery and slips:
            raise UsageError("FrozenLake: is_slippery and slip_prob slip in different ways: set one of them")


@dataclass
class VideoEnvConfig(BaseEnvConfig):
    """`video` of Video-MTR. Variables in `video_data_config_path`, such as `$SCRIPT_DIR`, are expanded.

    `data_dir` is accepted as there, where nothing reads it.
    """

    dataset_name: str = "generated"
    data_dir: str = ""
    render_mode: str = "vision"
    video_data_config_path: str | None = None
    seed: int = 42
    prompt_format: str = "free_think_v2"
    format_reward: float = 0.1
    explain_invalid: bool = False

    def __post_init__(self) -> None:
        fill_missing(self)
        if self.render_mode != "vision":
            raise UsageError(f"video: render_mode={self.render_mode!r:.100} is not available: it must be 'vision'")
        _check_placeholder("video", self.image_placeholder)
        if self.video_data_config_path is not None:
            self.video_data_config_path = expanded_path(self.video_data_config_path)

    def config_id(self) -> str:
        return f"VideoEnvConfig(dataset={self.dataset_name},seed={self.seed})"

    def generate_seeds(self, size: int, split: str = "train", seed: int = 0) -> list[int]:  # type: ignore[override]
        """The places of up to `size` questions of a split, shuffled: seed n plays question n."""
        env = load_factory(find_env("video").factory)(**self.options())
        size = min(size, env.get_split_size(split))
        return random.Random(seed).sample(range(size), size)  # noqa: S311

    def options(self) -> dict[str, Any]:
        """The keyword arguments of the env."""
        names = ("dataset_name", "video_data_config_path", "seed", "prompt_format", "format_reward")
        return {name: getattr(self, name) for name in names}


def expanded_path(path: str, names: Collection[str] | None = None) -> str:
    """A path with its variables, written as `$NAME`, `${NAME}` or `${env:NAME}`; with `names`, of these alone."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if names is not None and name not in names:
            raise UsageError(f"video: video_data_config_path={path!r}: the variable {name} is not for clients")
        if name not in os.environ:
            raise UsageError(
                f"video: video_data_config_path={path!r}: the environment variable {name} is not set: set it to the "
                "directory of the script, as Video-MTR's scripts do"
            )
        return os.environ[name]

    return _VARIABLE.sub(value, path)


def check_shown(env: str, config: Any) -> None:
    if config.render_mode not in _RENDER_MODES:
        raise UsageError(f"{env}: render_mode={config.render_mode!r:.100} is not one of {', '.join(_RENDER_MODES)}")
    _check_placeholder(env, config.image_placeholder)
    if not isinstance(config.action_sep, str) or not config.action_sep:
        raise UsageError(f"{env}: action_sep={config.action_sep!r:.100} is not a text to separate actions by")
    most = config.max_actions_per_step
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise UsageError(f"{env}: max_actions_per_step={most!r:.100} is not a whole number from 1")
    for key in ("format_reward", "success_reward"):
        value = getattr(config, key, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UsageError(f"{env}: {key}={value!r:.100} is not a number")
    if not isinstance(config.explain_invalid, bool):
        raise UsageError(f"{env}: explain_invalid={config.explain_invalid!r:.100} is neither true nor false")
    special = getattr(config, "special_token_list", None)
    if special is not None and (isinstance(special, str) or not all(isinstance(token, str) for token in special)):
        raise UsageError(f"{env}: special_token_list={special!r:.100} is not a list of texts")


def _is_range(steps: Any) -> bool:
    """Two whole numbers from 0, the smaller first."""
    if not isinstance(steps, list | tuple) or len(steps) != 2:
        return False
    are_counts = all(isinstance(one, int) and not isinstance(one, bool) for one in steps)
    return are_counts and 0 <= steps[0] <= steps[1]


def _check_placeholder(env: str, placeholder: Any) -> None:
    if placeholder != IMAGE_MARK:
        raise UsageError(f"{env}: image_placeholder={placeholder!r:.100} is not available: it must be {IMAGE_MARK!r}")
