"""Many envs in worker processes, for a learner that is synchronous."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

from asyncrollout.concurrency import task_group
from asyncrollout.dropin import portal
from asyncrollout.dropin.metarl.async_env import AsyncEnv
from asyncrollout.dropin.metarl.pipes import EnvWorker, PipeEnd
from asyncrollout.dropin.metarl.serving import pickled
from asyncrollout.dropin.metarl.ways import WayMemory
from asyncrollout.dropin.metarl.wrapper import Transition
from asyncrollout.errors import UsageError
from asyncrollout.machine import usable_cpus
from asyncrollout.pool.handle import EnvHandle
from asyncrollout.pool.pool import EnvPool
from asyncrollout.registry import EnvSpec
from asyncrollout.types import Recovery
from asyncrollout.validation import check_choice, check_int

POOL_OPTIONS = ("processes", "recover", "step_timeout", "reset_timeout")
"""What can be set for a manager's processes."""

_START_METHODS = ("spawn", "fork", "forkserver")
_PROCESSES, _MOST_PROCESSES = 16, 64  # one for each env up to so many, more where there are more CPUs
_RESET_SECONDS = 120.0


class ParallelEnvManager:
    """One env from each function; several share a process if there are more than 16, or more than `processes`.

    Processes are always spawned, whatever `start_method` says. A dead one is replaced, and its envs are brought back
    to where they were (`recover="none"` raises `EnvCrashed` instead). Closed by `close()`, as garbage, or at exit.
    A step has `step_timeout` seconds, a reset `reset_timeout`: 120 unless given, or `step_timeout` if that is more.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        start_method: Literal["spawn", "fork", "forkserver"] | None = None,
        *,
        seeds: Sequence[int] | None = None,
        name: str = "env",
        processes: int | None = None,
        recover: Recovery = "replay",
        step_timeout: float = 60.0,
        reset_timeout: float | None = None,
    ) -> None:
        if start_method is not None:
            check_choice("start_method", start_method, _START_METHODS)
        if not isinstance(env_fns, Sequence) or not env_fns:
            raise UsageError(f"env_fns must be a list of at least one function that makes an env, not {env_fns!r:.100}")
        for number, make in enumerate(env_fns):
            if not callable(make):
                raise UsageError(f"env_fns[{number}] must be a function that makes an env, not {make!r:.100}")
        check_int("processes", 1 if processes is None else processes, 1)
        self.num_envs = len(env_fns)
        self.env_fns = list(env_fns)
        self.step_timeout = step_timeout
        self.reset_timeout = max(_RESET_SECONDS, step_timeout) if reset_timeout is None else reset_timeout
        self.ways = WayMemory()
        self._local_envs: dict[int, Any] = {}  # by the function that made it
        specs = [env_spec(f"{name}[{rank}]", make) for rank, make in enumerate(env_fns)]
        workers = _processes(self.num_envs, processes)
        ranks = list(range(workers)) if workers == self.num_envs else [None] * self.num_envs
        pool = EnvPool(workers, recover=recover, step_timeout=step_timeout, reset_timeout=self.reset_timeout)
        self._opened = portal.Opened(opened_members(pool, specs, ranks, self._checked(seeds, "seeds")))
        self.envs = self._opened.value
        self.remotes = tuple(PipeEnd(env, self._opened) for env in self.envs)
        self.workers = tuple(EnvWorker(number, env.handle, pool, self._opened) for number, env in enumerate(self.envs))
        found = self._opened.run(self.envs[0].described)
        self.observation_space = found["observation_space"]
        self.action_space = found["action_space"]
        self.n_tasks: int | None = found["n_tasks"]
        self.horizon_bamdp: int | None = found["horizon_bamdp"]
        self._max_episode_steps: int | None = found["_max_episode_steps"]
        self.closed = False

    @property
    def unwrapped(self) -> "UnwrappedEnv":
        """The innermost env of worker 0: its attributes and methods."""
        return UnwrappedEnv(self)

    def reset(self, env_idx: int = 0, task: Any = None, *, seed: int | None = None) -> Any:
        """Begin an episode of one env, with its `task` if it has tasks: the observation."""
        return self._opened.run(self._env(env_idx).reset, task, seed=seed)

    def step(self, env_idx: int, action: Any) -> Transition:
        return self._opened.run(self._env(env_idx).step, action)

    def reset_all(self, tasks: Sequence[Any] | None = None) -> list[Any]:
        """Begin an episode of every env at once, each with its own task."""
        each = zip(self.envs, self._checked(tasks, "tasks"), strict=True)
        return self._opened.run(_all, [partial(env.reset, task) for env, task in each])

    def step_all(self, actions: Sequence[Any]) -> tuple[list[Any], list[float], list[bool], list[dict[str, Any]]]:
        """A step of every env at once: the observations, the rewards, the ends and the infos, each as a list."""
        each = zip(self.envs, self._checked(actions, "actions"), strict=True)
        transitions = self._opened.run(_all, [partial(env.step, action) for env, action in each])
        observations, rewards, dones, infos = map(list, zip(*transitions, strict=True))
        return observations, rewards, dones, infos

    def get_attr(self, attr_name: str, env_idx: int = 0, subattrs: Sequence[str] | None = None) -> Any:
        """An attribute of one env, or an attribute of that: `get_attr("unwrapped", 2, ["goals"])`."""
        return self._opened.run(self._env(env_idx).get_attr, ".".join([attr_name, *(subattrs or ())]))

    def call(self, method: str, *args: Any, env_idx: int = 0) -> Any:
        """What a method of one env returns: `call("unwrapped.is_goal_state", env_idx=2)`."""
        return self._opened.run(self._env(env_idx).call, method, args)

    def has_method(self, path: str, env_idx: int = 0) -> bool:
        """Whether an attribute of one env is a method; one that is missing is an error."""
        return self._opened.run(self._env(env_idx).is_method, path)

    def local_env(self, rank: int) -> Any:
        """An env like that one in a worker, in this process; one from each function, made when first wanted."""
        make = self.env_fns[rank]
        if id(make) not in self._local_envs:
            self._local_envs[id(make)] = make()
        return self._local_envs[id(make)]

    def seed(self, seeds: Sequence[int]) -> None:
        """What the episodes of each env are drawn from, from its next reset on."""
        for env, seed in zip(self.envs, self._checked(seeds, "seeds"), strict=True):
            env.seed(seed)

    def close(self) -> None:
        """Close all envs and end all processes; a second time does nothing."""
        self.closed = True
        self._opened.close()
        while self._local_envs:
            _, env = self._local_envs.popitem()
            if callable(getattr(env, "close", None)):
                env.close()

    def _env(self, env_idx: int) -> AsyncEnv:
        if env_idx not in range(self.num_envs):
            raise UsageError(f"env_idx={env_idx!r}: there are {self.num_envs} envs, from 0 on")
        return self.envs[env_idx]

    def _checked(self, values: Sequence[Any] | None, what: str) -> Sequence[Any]:
        if values is None:
            return [None] * self.num_envs
        if len(values) != self.num_envs:
            raise UsageError(f"{len(values)} {what} for {self.num_envs} envs")
        return values


class UnwrappedEnv:
    """The innermost env of worker 0, from here: attributes are fetched, methods are called there.

    `is_goal_state` differs between envs: it takes the number of the env.
    """

    def __init__(self, manager: ParallelEnvManager) -> None:
        self._manager = manager

    def is_goal_state(self, env_idx: int = 0) -> bool:
        return bool(self._manager.call("unwrapped.is_goal_state", env_idx=env_idx))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._manager.has_method(f"unwrapped.{name}"):
            return partial(self._manager.call, f"unwrapped.{name}")
        return self._manager.get_attr("unwrapped", subattrs=[name])


@asynccontextmanager
async def opened_members(
    pool: EnvPool, specs: Sequence[EnvSpec], ranks: Sequence[int | None], seeds: Sequence[int | None]
) -> AsyncIterator[list[AsyncEnv]]:
    """A pool with these envs, made at the same time; each stays on the worker of its rank, if it has one."""
    async with pool:
        handles = await _all([partial(_opened, pool, spec, rank) for spec, rank in zip(specs, ranks, strict=True)])
        yield [AsyncEnv(handle, seed) for handle, seed in zip(handles, seeds, strict=True)]


def env_spec(name: str, make: Callable[[], Any]) -> EnvSpec:
    """An env in a worker process, from a function that makes it there."""
    return EnvSpec(name=name, factory="asyncrollout.dropin.metarl.serving:serve", kwargs={"make": pickled(make)})


async def _opened(pool: EnvPool, spec: EnvSpec, rank: int | None) -> EnvHandle:
    return await pool.open(spec, worker=rank)


async def _all(calls: Iterable[Callable[[], Coroutine[Any, Any, Any]]]) -> list[Any]:
    """Their results, in order; the first failure is raised."""
    results: dict[int, Any] = {}

    async def run(place: int, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        results[place] = await call()

    async with task_group() as tasks:
        for place, call in enumerate(calls):
            tasks.start_soon(run, place, call)
    return [results[place] for place in sorted(results)]


def _processes(envs: int, wanted: int | None) -> int:
    return min(envs, max(_PROCESSES, min(usable_cpus(), _MOST_PROCESSES)) if wanted is None else wanted)
