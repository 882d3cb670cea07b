"""One env of a manager in coroutines, with the calls of Gym's old interface and those of the manager's pipes."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio

from asyncrollout.dropin.metarl.wrapper import Transition, as_transition, episode_seeds
from asyncrollout.errors import UsageError
from asyncrollout.pool.handle import EnvHandle
from asyncrollout.validation import check_choice

_COMMANDS = ("reset", "step", "get_attr", "seed")


class AsyncEnv:
    """Calls of several tasks are made one after the other, in the order in which they came."""

    def __init__(self, handle: EnvHandle, seed: int | None) -> None:
        self.handle = handle
        self.name = handle.name
        self._seeds = episode_seeds(seed)
        self._turn = anyio.Lock()

    def seed(self, seed: int | None) -> None:
        self._seeds = episode_seeds(seed)

    async def reset(self, task: Any = None, *, seed: int | None = None) -> Any:
        async with self._turn:
            outcome = await self.handle.reset(seed=next(self._seeds) if seed is None else seed, task=task)
        return outcome.observation

    async def step(self, action: Any) -> Transition:
        async with self._turn:
            outcome = await self.handle.step(action)
        return as_transition(outcome.observation, outcome.reward, outcome.terminated, outcome.truncated, outcome.info)

    async def get_attr(self, name: str) -> Any:
        async with self._turn:
            return await self.handle.call("get_attr", name, keep=False)

    async def is_method(self, path: str) -> bool:
        async with self._turn:
            return bool(await self.handle.call("is_method", path, keep=False))

    async def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """A method of the env, which may change it."""
        async with self._turn:
            return await self.handle.call("call_method", method, args)

    async def close(self) -> None:
        async with self._turn:
            await self.handle.close()

    async def described(self) -> dict[str, Any]:
        async with self._turn:
            description: dict[str, Any] = await self.handle.call("described", keep=False)
        return description

    def obeying(self, command: tuple[str, Any]) -> Callable[[], Awaitable[tuple[str, Any]]]:
        """What a command asks for, as something to run; an invalid one raises at once."""
        if not isinstance(command, tuple) or len(command) != 2:
            raise UsageError(f"{self.name}: a command is a tuple of its name and its data, and not {command!r:.100}")
        name, data = command
        check_choice(f"{self.name}: command", name, _COMMANDS)
        match name, data:
            case "reset", dict() | None:
                given = data or {}
                if unknown := sorted(given.keys() - {"task", "seed"}):
                    raise UsageError(f"{self.name}: a reset takes 'task' and 'seed', and not {unknown[0]!r}")
                return partial(_answered, "obs", partial(self.reset, **given))
            case "step", _:
                is_named = isinstance(data, dict) and data.keys() == {"action"}
                return partial(_answered, "transition", partial(self.step, data["action"] if is_named else data))
            case "get_attr", {"attr": str(attribute)}:
                path = ".".join([attribute, *(data.get("subattrs") or ())])
                return partial(_answered, "attr", partial(self.get_attr, path))
            case "seed", {"seed": seed}:
                return partial(_answered, "done", partial(self._seed_in_turn, seed))
        raise UsageError(f"{self.name}: {data!r:.100} is not what {name!r} takes")

    async def _seed_in_turn(self, seed: int) -> None:
        async with self._turn:
            self.seed(seed)


async def _answered(kind: str, call: Callable[[], Awaitable[Any]]) -> tuple[str, Any]:
    return kind, await call()
