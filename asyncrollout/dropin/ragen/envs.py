"""RAGEN's environments in RAGEN's shape, on top of ours, and the two tables in which anybody registers their own."""

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from asyncrollout.dropin.ragen.env_configs import our_kwargs
from asyncrollout.errors import UsageError
from asyncrollout.pool.worker.env_factory import make_env
from asyncrollout.pool.worker.env_runner import reset_options
from asyncrollout.registry import find_env, load_factory
from asyncrollout.types import Placement, TextOptions

CELLS = {
    "sokoban": {
        "#": "wall",
        "_": "floor",
        "O": "target",
        "√": "box on a target",
        "X": "box",
        "P": "player",
        "S": "player on a target",
    },
    "frozen_lake": {
        "P": "player",
        "_": "ice",
        "O": "hole",
        "G": "goal",
        "X": "player in a hole",
        "√": "player on the goal",
    },
}
"""What the symbols of a grid mean, in the order of the codes of its cells."""


@dataclass(init=False, eq=False, repr=False)
class EnvConfig:
    """The settings of one environment, as attributes; the environment fills in the names of its actions and symbols.

    Those that all environments of the type have are there before, as RAGEN's own `ContextManager` reads them.
    """

    action_lookup: dict[int, str] | None = None
    grid_lookup: dict[int, str] | None = None
    grid_vocab: dict[str, str] | None = None
    render_mode: str = "text"

    def __init__(self, of: "type[RagenEnv] | None" = None, /, **given: Any) -> None:
        self.given = given
        if of is not None:
            names = _action_names(of.env_type)
            self.action_lookup = dict(enumerate(names, start=of.first_action)) if names else None
            self.grid_vocab = CELLS.get(of.env_type)
            self.grid_lookup = dict(enumerate(self.grid_vocab)) if self.grid_vocab else None
        self.__dict__.update(given)


@cache
def _action_names(env_type: str) -> tuple[str, ...]:
    """Those that an env type always has."""
    names = getattr(load_factory(find_env(env_type).text_interface), "names", ())
    return names if isinstance(names, tuple) else ()


class RagenEnv:
    """One of our envs with RAGEN's methods: texts for observations, `done` for its end, a table of action names."""

    env_type: ClassVar[str]
    first_action: ClassVar[int] = 1
    runs: ClassVar[Placement | None] = None  # where, if not as the env itself says

    @classmethod
    def make_config(cls, **given: Any) -> EnvConfig:
        return EnvConfig(cls, **given)

    def __init__(self, config: EnvConfig | None = None) -> None:
        self.config = self.make_config() if config is None else config
        spec = find_env(self.env_type)
        kwargs, _ = our_kwargs(self.env_type, self.config.given)
        options = {key: kwargs.pop(key) for key in TextOptions.__struct_fields__ if key in kwargs}
        self._env = make_env(spec.with_kwargs(**kwargs))
        self._text = load_factory(spec.text_interface)(self._env, TextOptions(**options))
        self._seen: Any = None
        self._tell_symbols()
        self._tell_actions()

    def reset(self, seed: int | None = None, mode: str | None = None, member: int = 0) -> str:  # noqa: ARG002
        self._seen, _ = self._env.reset(seed=seed, options=reset_options(self._env, None, member))
        self._tell_actions()
        return self.describe()

    def step(self, action: Any) -> tuple[str, float, bool, dict[str, Any]]:
        reward, done, info = self.play_undescribed(action)
        return self.describe(), reward, done, info

    def play_undescribed(self, action: Any) -> tuple[float, bool, dict[str, Any]]:
        """A step whose state is described only if somebody asks."""
        self._seen, reward, terminated, truncated, info = self._env.step(action)
        return float(reward), terminated or truncated, {"action_is_valid": True, **info}

    def render(self, mode: str | None = None) -> Any:
        """The state as text, or as an RGB picture if the mode, or `config.render_mode`, is "rgb_array"."""
        if (mode or self.config.render_mode) != "rgb_array":
            return self.describe()
        picture = self._env.render() if hasattr(self._env, "render") else ""
        if isinstance(picture, str):
            raise UsageError(f"env {self.env_type!r} draws no pictures: use render_mode 'text'")
        return picture

    def describe(self) -> str:
        shown = self._text.describe(self._seen)
        return shown if isinstance(shown, str) else str(shown.text)

    def get_all_actions(self) -> list[str]:
        """What can be done now, in words; nothing where that is open."""
        if self.config.action_lookup:
            return list(self.config.action_lookup.values())
        offered = getattr(self._env, "available_actions", None)
        return list(offered()) if callable(offered) else []

    def instruction(self) -> str:
        """The rules, as a model reads them."""
        return str(self._text.system_prompt())

    def close(self) -> None:
        if hasattr(self._env, "close"):
            self._env.close()

    def _tell_actions(self) -> None:
        """Names that the env always has, or those of this episode."""
        names = getattr(self._text, "names", None) or getattr(self._env, "arms", None)
        if names:
            self.config.action_lookup = dict(enumerate(names, start=self.first_action))

    def _tell_symbols(self) -> None:
        """What a grid consists of, and what that means."""
        if (view := getattr(self._env, "view", None)) is not None:
            self.config.grid_lookup = dict(enumerate(view.symbols))
            self.config.grid_vocab = dict(zip(view.symbols, view.meanings, strict=True))


def is_shipped(env_class: Any) -> bool:
    """Whether a registered class is one of ours, or derived from one."""
    return isinstance(env_class, type) and issubclass(env_class, RagenEnv)


class SokobanEnv(RagenEnv):
    env_type = "sokoban"


class FrozenLakeEnv(RagenEnv):
    env_type = "frozen_lake"


class BanditEnv(RagenEnv):
    env_type = "bandit"


class CountdownEnv(RagenEnv):
    env_type = "countdown"


class MetaMathQAEnv(RagenEnv):
    env_type = "metamathqa"


class WebShopEnv(RagenEnv):
    env_type = "webshop"


class SudokuEnv(RagenEnv):
    env_type = "sudoku"


class Game2048Env(RagenEnv):
    env_type = "game_2048"
    first_action = 0


class RubiksCube2x2Env(RagenEnv):
    env_type = "rubikscube"


_SHIPPED = (
    *(SokobanEnv, FrozenLakeEnv, BanditEnv, CountdownEnv, MetaMathQAEnv, WebShopEnv),
    *(SudokuEnv, Game2048Env, RubiksCube2x2Env),
)

REGISTERED_ENVS: dict[str, Any] = {env.env_type: env for env in _SHIPPED}
"""Env types and their classes, made as `cls(config)`.

One of your own needs `reset(seed=...)`, `step(action)` and `render()`; it is given `mode=` and `member=` if its `reset`
takes them. It runs in workers, or with `runs = "light"` on the loop.
"""

REGISTERED_ENV_CONFIGS: dict[str, Any] = {name: env.make_config for name, env in REGISTERED_ENVS.items()}
"""Env types and what makes their configs of keyword arguments."""
