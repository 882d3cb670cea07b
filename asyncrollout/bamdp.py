"""Several episodes of one task as a single one, for agents that learn what the task is while they play (meta-RL)."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError
from asyncrollout.validation import check_int

Floats = NDArray[np.float32]


class TaskEnv(Protocol):
    """A Gymnasium env with tasks: `options["task"]` of its reset says which; `horizon` is the length of an episode."""

    @property
    def horizon(self) -> int: ...

    @property
    def n_tasks(self) -> int | None: ...

    @property
    def action_space(self) -> Any: ...

    @property
    def observation_space(self) -> Any: ...

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the first episode of a task."""

    def restart(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """Begin another episode of the same task."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]: ...

    def get_current_task(self) -> NDArray[Any]:
        """The task in numbers, as an oracle sees it."""


class Bamdp:
    """`episodes_per_task` episodes of a task as one: a Bayes-adaptive MDP, whose end is the end of the last episode.

    An observation is the env's own, then the task (with `oracle`), then 1.0 where an episode has just ended (if there
    are several). `info["done_mdp"]` marks such an end, too, and `info["start_state"]` is what the next episode begins
    with. Actions of a Box are given between -1 and 1, whatever the env's own bounds are.
    """

    def __init__(self, env: TaskEnv, episodes_per_task: int = 1, *, oracle: bool = False) -> None:
        import gymnasium.spaces  # noqa: PLC0415 (a fifth of a second, paid only by those who use it)

        check_int("episodes_per_task", episodes_per_task, 1)
        if not isinstance(oracle, bool):
            raise UsageError(f"oracle={oracle!r} is neither True nor False")
        self.env = env
        self.episodes_per_task = episodes_per_task
        self.oracle = oracle
        self.episode_count = 0
        self.step_count = 0
        self.done_mdp = True
        self._chance = np.random.default_rng(0)
        space, own = env.observation_space, env.action_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise UsageError(f"observations of several episodes are vectors, and not of {space!r:.200}")
        self._task_size = len(np.ravel(env.get_current_task())) if oracle else 0
        low = np.concatenate([space.low, [-np.inf] * self._task_size, [0] * self._tells_ends])
        high = np.concatenate([space.high, [np.inf] * self._task_size, [1] * self._tells_ends])
        self.observation_space = gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32))
        self.action_space = own
        self._low: NDArray[Any] | None = None
        if isinstance(own, gymnasium.spaces.Box):
            if not (np.isfinite(own.low).all() and np.isfinite(own.high).all()):
                raise UsageError(f"actions between -1 and 1 need an action space with bounds, and not {own!r:.200}")
            self._low, self._span = own.low, (own.high - own.low) / 2
            self.action_space = gymnasium.spaces.Box(-1.0, 1.0, own.shape, np.float32)

    @property
    def n_tasks(self) -> int | None:
        return self.env.n_tasks

    @property
    def unwrapped(self) -> Any:
        """The env inside."""
        return getattr(self.env, "unwrapped", self.env)

    @property
    def horizon_bamdp(self) -> int:
        return self.episodes_per_task * self.env.horizon

    @property
    def _tells_ends(self) -> bool:
        return self.episodes_per_task > 1

    def get_current_task(self) -> NDArray[Any]:
        return self.env.get_current_task()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        self._chance = np.random.default_rng(seed)
        state, info = self.env.reset(seed=self._drawn() if seed is None else seed, options=options)
        self.episode_count = self.step_count = 0
        self.done_mdp = False
        return self._shown(state, ended=False), info

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        if self.done_mdp:
            raise UsageError("the episodes of its task are over, or it was never reset: call reset() first")
        if self._low is not None:
            action = self._low + (np.clip(self._checked(action), -1.0, 1.0) + 1.0) * self._span
        state, reward, terminated, truncated, info = self.env.step(action)
        self.step_count += 1
        self.done_mdp = ended = terminated or truncated
        info = {**info, "done_mdp": ended}
        shown = self._shown(state, ended=ended)
        if not ended:
            return shown, reward, False, False, info
        self.episode_count += 1
        if self.episode_count == self.episodes_per_task:
            return shown, reward, terminated, truncated, info
        start, _ = self.env.restart(self._drawn())
        info["start_state"] = self._shown(start, ended=False)
        self.done_mdp = False
        return shown, reward, False, False, info

    @property
    def render_mode(self) -> str | None:
        mode: str | None = getattr(self.env, "render_mode", None)
        return mode

    def render(self) -> Any:
        """The env's own picture, if it makes any."""
        render = getattr(self.env, "render", None)
        if not callable(render):
            raise UsageError(f"{type(self.env).__name__} has no render()")
        return render()

    def close(self) -> None:
        close = getattr(self.env, "close", None)
        if callable(close):
            close()

    def _checked(self, action: Any) -> NDArray[np.float64]:
        given = np.asarray(action, dtype=np.float64)
        if given.shape != self.action_space.shape or not np.isfinite(given).all():
            raise UsageError(f"action={action!r:.100} is not in {self.action_space}")
        return given

    def _drawn(self) -> int:
        return int(self._chance.integers(2**31))

    def _shown(self, state: Any, *, ended: bool) -> Floats:
        shown = np.empty(self.observation_space.shape, np.float32)
        own = len(shown) - self._task_size - self._tells_ends
        shown[:own] = state
        if self._task_size:
            shown[own : own + self._task_size] = np.ravel(self.env.get_current_task())
        if self._tells_ends:
            shown[-1] = ended
        return shown
