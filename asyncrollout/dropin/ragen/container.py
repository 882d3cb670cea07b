"""Environments in lock step: lists of observations, rewards, ends and infos, one entry for each environment."""

from collections.abc import Mapping, Sequence, Sized
from typing import Any, NamedTuple

from asyncrollout import validation
from asyncrollout.dropin.blocking import Forwarded, OpenedBlocking, blocking
from asyncrollout.dropin.ragen.env_batch import EnvBatch
from asyncrollout.dropin.ragen.seeds import first_free
from asyncrollout.dropin.ragen.settings import EnvPlan, registered_type
from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.pool.batch_calls import Result

Stepped = tuple[list[Any], list[float], list[bool], list[dict[str, Any]]]


class EnvState(NamedTuple):
    """What an environment shows, the actions that it offers, and the names of its actions."""

    shown: Any = ""
    available: Sequence[Any] = ()
    names: Mapping[Any, str] = {}


class EnvironmentContainer(EnvBatch):
    """`plans` are environments in the order of their groups. An async context manager.

    Members of a group start alike, and groups differ. Resets without seeds take the next ones from the base seed on,
    except those that are `reserved`; with `is_validation` they take the same ones every time.
    """

    def __init__(
        self,
        plans: Sequence[EnvPlan],
        *,
        group_n: int,
        seed: int,
        workers: int | None = None,
        parallel: bool = True,
        is_validation: bool = False,
        reserved: range = range(0),
        **timeouts: float,
    ) -> None:
        super().__init__(plans, "StepEnv", workers=workers, parallel=parallel, falls_back=False, **timeouts)
        self.num_processes = len(plans)
        self.group_n = group_n
        self.tags = [plan.tag for plan in plans]
        self._next_seed = seed
        self._is_validation = is_validation
        self._reserved = reserved
        self._last = [EnvState()] * len(plans)
        self._done = [True] * len(plans)
        self._was_reset = False

    async def reset_all(self, seeds: Sequence[int] | None = None) -> tuple[list[Any], list[dict[str, Any]]]:
        """Observations and infos of new episodes."""
        if seeds is None:
            first = self._take_seeds(self.num_processes // self.group_n)
            seeds = [first + index // self.group_n for index in range(self.num_processes)]
        self._check_length("seeds", seeds)
        members = [index % self.group_n for index in range(self.num_processes)]
        results = await self.reset([*map(int, seeds)], members)
        infos = [self._note(index, result)[3] for index, result in enumerate(results)]
        self._was_reset = True
        return [state.shown for state in self._last], infos

    async def step_all(self, actions: Sequence[Any]) -> Stepped:
        """Observations, rewards, dones, infos; of an env that failed `("", 0.0, True, {"error": ...})`.

        None steps nothing, and an env whose episode is over stays as it is.
        """
        self._check_length("actions", actions)
        if not self._was_reset:
            raise UsageError("no environment was reset: call reset() first")
        chosen = {index: action for index, action in enumerate(actions) if action is not None and not self._done[index]}
        results = dict(zip(chosen, await self.step(chosen), strict=True))
        rows = [
            self._note(index, results[index])
            if index in results
            else (self._last[index].shown, 0.0, self._done[index], {})
            for index in range(self.num_processes)
        ]
        observations, rewards, dones, infos = (list(column) for column in zip(*rows, strict=True))
        return observations, rewards, dones, infos

    async def render_all(self, mode: str = "text") -> list[Any]:
        validation.check_choice("mode", mode, ("text", "rgb_array"))
        if mode == "text":
            return [state.shown for state in self._last]
        return await self.render(range(self.num_processes))

    def available_actions(self) -> list[list[Any]]:
        return [list(state.available) for state in self._last]

    def action_names(self) -> list[dict[Any, str]]:
        """Actions and their names by each environment's `config.action_lookup`; empty where there is none."""
        return [dict(state.names) for state in self._last]

    def _take_seeds(self, count: int) -> int:
        """The first of as many seeds in a row."""
        first = first_free(self._next_seed, count, self._reserved)
        if not self._is_validation:
            self._next_seed = first + count
        return first

    def _note(self, index: int, result: Result) -> tuple[Any, float, bool, dict[str, Any]]:
        """What an env did, or the defaults of one that failed."""
        if isinstance(result, RolloutError):
            self._last[index], self._done[index] = EnvState(), True
            return "", 0.0, True, {"error": str(result)}
        shown, info = result.observation, result.info
        self._last[index], self._done[index] = EnvState(shown, info["available"], info["names"]), result.done
        return shown, result.reward, result.done, info["env_info"]

    def _check_length(self, what: str, given: Sequence[Any]) -> None:
        if isinstance(given, str | Mapping) or not isinstance(given, Sized):
            raise UsageError(f"{what}={given!r:.100} is not a list: one for each of {self.num_processes} environments")
        if len(given) != self.num_processes:
            raise UsageError(f"{len(given)} {what} for {self.num_processes} environments: one for each is needed")


class SynchronousContainer(OpenedBlocking[EnvironmentContainer]):
    """An `EnvironmentContainer` for synchronous callers. Its `num_processes` environments share fewer processes."""

    num_processes = Forwarded[int]()
    group_n = Forwarded[int]()
    tags = Forwarded[list[str]]()
    reset = blocking(EnvironmentContainer.reset_all)
    step = blocking(EnvironmentContainer.step_all)
    render = blocking(EnvironmentContainer.render_all)
    get_available_actions = blocking(EnvironmentContainer.available_actions)
    get_action_names = blocking(EnvironmentContainer.action_names)


class MultiProcessEnvironmentContainer(SynchronousContainer):
    """`env_num` groups of `group_n` environments of one type, spread over worker processes (one per CPU, at most)."""

    def __init__(
        self,
        env_type: str,
        env_num: int,
        group_n: int = 1,
        seed: int = 0,
        env_kwargs: dict[str, Any] | None = None,
        *,
        workers: int | None = None,
        parallel: bool = True,
    ) -> None:
        validation.check_int("env_num", env_num, 1)
        validation.check_int("group_n", group_n, 1)
        validation.check_int("seed", seed, 0)
        self.env_type = registered_type(env_type, "env_type")
        self.env_num = env_num
        plans = [
            EnvPlan(self.env_type, self.env_type, group, dict(env_kwargs or {}))
            for group in range(env_num)
            for _ in range(group_n)
        ]
        super().__init__(EnvironmentContainer(plans, group_n=group_n, seed=seed, workers=workers, parallel=parallel))
