"""An env of the meta-RL code where it is played: in a worker process, or beside the learner."""

from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

from asyncrollout.dropin.metarl.chance import PlayedEnv, SeededEnv
from asyncrollout.dropin.metarl.gym_compat import GymCompatEnv
from asyncrollout.dropin.metarl.worker_rollout import AgentRef, WorkerRollout, load_agent
from asyncrollout.dropin.metarl.wrapper import VariBadWrapper
from asyncrollout.errors import UsageError

_TOLD = ("observation_space", "action_space", "n_tasks", "horizon_bamdp", "_max_episode_steps")


class MetaEnv:
    """Anything that the meta-RL code calls an env, with Gymnasium's reset and step."""

    def __init__(self, env: Any) -> None:
        self._own = env
        self.played = _as_played(env)
        self._alone: WorkerRollout | None = None

    @property
    def action_space(self) -> Any:
        """None where the agent is here, too: no actions come from elsewhere."""
        return self._own.action_space if self._alone is None else None

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._alone = None
        task = (options or {}).get("task")
        if not isinstance(task, AgentRef):
            return self.played.reset(seed=seed, options=options)
        if task.only_loaded:
            load_agent(task.path)
            return None, {}
        self._alone = WorkerRollout(self.played, task, seed or 0)
        return self._alone.start, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """An action; or, in a rollout that is played here, for how many seconds to continue."""
        return self.played.step(action) if self._alone is None else self._alone.play(action)

    def render(self) -> Any:
        return self._own.render()

    def close(self) -> None:
        self.played.close()

    def get_attr(self, path: str) -> Any:
        """An attribute of the env or of what it wraps, also of another attribute: "unwrapped.goals"."""
        first, *others = path.split(".")
        owner = self._own if hasattr(self._own, first) else getattr(self._own, "unwrapped", self._own)
        for name in (first, *others):
            if not hasattr(owner, name):
                raise UsageError(f"{type(self._own).__name__} has no attribute {path!r}")
            owner = getattr(owner, name)
        return owner

    def is_method(self, path: str) -> bool:
        return callable(self.get_attr(path))

    def call_method(self, path: str, args: tuple[Any, ...]) -> Any:
        """What a method of the env, or of what it wraps, returns."""
        return self.get_attr(path)(*args)

    def described(self) -> dict[str, Any]:
        """The attributes that a manager reads once for all its envs; None for what this one lacks."""
        return {name: getattr(self._own, name, None) for name in _TOLD}


def _as_played(env: Any) -> PlayedEnv:
    """With Gymnasium's calls; anybody's env may draw from the global generators."""
    inner = env.bamdp if isinstance(env, VariBadWrapper) else GymCompatEnv(env)
    is_compat = isinstance(inner, GymCompatEnv) or isinstance(inner.env, GymCompatEnv)
    return SeededEnv(inner) if is_compat else inner


def pickled(make: Callable[[], Any]) -> bytes:
    """A function that makes an env, also a lambda or one of the main script."""
    try:
        content: bytes = cloudpickle.dumps(make)
    except Exception as error:
        raise UsageError(
            f"{make!r:.100} cannot be sent to a worker process: {error}. Make everything that it needs inside it"
        ) from error
    return content


def serve(make: bytes) -> MetaEnv:
    """Make the env of a pickled function."""
    return MetaEnv(cloudpickle.loads(make)())
