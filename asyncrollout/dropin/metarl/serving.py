"""An env of the meta-RL code where it is played: in a worker process, or beside the learner."""

from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

from asyncrollout.dropin.metarl.gym_compat import GymCompatEnv
from asyncrollout.dropin.metarl.worker_rollout import AgentRef, WorkerRollout
from asyncrollout.dropin.metarl.wrapper import VariBadWrapper
from asyncrollout.errors import UsageError

_TOLD = ("observation_space", "action_space", "n_tasks", "horizon_bamdp", "_max_episode_steps")


class MetaEnv:
    """Anything that the meta-RL code calls an env, with Gymnasium's reset and step."""

    def __init__(self, env: Any) -> None:
        self._own = env
        self._env = env.bamdp if isinstance(env, VariBadWrapper) else GymCompatEnv(env)
        self._alone: WorkerRollout | None = None

    @property
    def action_space(self) -> Any:
        """None where the agent is here, too: no actions come from elsewhere."""
        return self._own.action_space if self._alone is None else None

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._alone = None
        task = (options or {}).get("task")
        if not isinstance(task, AgentRef):
            return self._env.reset(seed=seed, options=options)
        self._alone = WorkerRollout(self._env, task, seed or 0)
        return self._alone.start, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """An action; or, in a rollout that is played here, for how many seconds to continue."""
        return self._env.step(action) if self._alone is None else self._alone.play(action)

    def render(self) -> Any:
        return self._own.render()

    def close(self) -> None:
        self._env.close()

    def get_attr(self, path: str) -> Any:
        """An attribute of the env or of what it wraps, also of another attribute: "unwrapped.goals"."""
        first, *others = path.split(".")
        owner = self._own if hasattr(self._own, first) else getattr(self._own, "unwrapped", self._own)
        for name in (first, *others):
            if not hasattr(owner, name):
                raise UsageError(f"{type(self._own).__name__} has no attribute {path!r}")
            owner = getattr(owner, name)
        return owner

    def described(self) -> dict[str, Any]:
        """What a manager tells of all its envs; None for what this one has not."""
        return {name: getattr(self._own, name, None) for name in _TOLD}


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
