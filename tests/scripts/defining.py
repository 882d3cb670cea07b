"""A user's program without a main guard, whose env, actions and observations are all defined in the main script.

However it is started, it ends by printing `all is well` and what its workers know of it, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import enum
import functools
import json
import os
import pickle
import signal
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import dill
import msgspec

import asyncrollout as ar
from asyncrollout.pool.wire.digest import digest

parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, required=True)
options, _ = parser.parse_known_args(None if "--size" in sys.argv else ["--size", "3"])  # a kernel has arguments, too
made = 0  # by all envs of a process


class Way(enum.Enum):
    UP = 1
    DOWN = 2


@dataclass
class Walk:
    way: Way
    steps: int = 1


class Seen(NamedTuple):
    total: int
    last: Way | None


class Setting(msgspec.Struct):
    walk: Walk


class OwnError(Exception):
    """One of the script's own."""


@functools.lru_cache
def scale(size: int) -> int:
    return size * 10


def distance(walk: Walk) -> int:
    return walk.steps * scale(options.size)


class Walking:
    class Trace:
        """Comes back in `info`."""

    def __init__(self, start: Walk | None = None) -> None:
        global made
        made += 1
        self.start = start

    @functools.cached_property
    def home(self) -> int:
        return 0 if self.start is None else distance(self.start)

    def reset(self, *, seed: int = 0, options: Any = None) -> tuple[Seen, dict[str, Any]]:
        task = (options or {}).get("task")
        assert task is None or (type(task) is Walk and task.way is Way.DOWN)
        self.total = seed + self.home
        return self._seen(None), {"made": made, "argv": sys.argv, "file": globals().get("__file__")}

    def step(self, action: Any) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        if action == "raise":
            raise OwnError("as asked for")
        assert type(action) is Walk
        assert action.way in (Way.UP, Way.DOWN)
        self.total += distance(action) if action.way is Way.UP else -distance(action)
        seen = self._seen(action.way)
        return seen, 1.0, False, False, {"trace": Walking.Trace(), "digest": digest([seen, action, Way.UP])}

    def _seen(self, way: Way | None) -> Seen:
        converted = msgspec.convert({"walk": {"way": 1, "steps": 2}}, Setting)  # its annotations are texts
        assert type(converted.walk) is Walk
        assert dill.loads(dill.dumps([self.total])) == [self.total]
        return Seen(self.total, way)

    def snapshot(self) -> bytes:
        return pickle.dumps((self.total, Walk(Way.UP)))

    def restore(self, state: bytes) -> None:
        self.total, walk = pickle.loads(state)
        assert type(walk) is Walk


class Words:
    """A text interface."""

    def __init__(self, env: Any, options: Any) -> None:
        self.env = env

    def parse(self, reply: str) -> ar.Parsed:
        return ar.Parsed([Walk(Way[reply])])

    def describe(self, observation: Any) -> str:
        assert type(observation) is Seen
        return f"at {observation.total}"

    def system_prompt(self) -> str:
        return "Go up or down."

    def anchor(self) -> int:
        return 0


async def play(pool: ar.EnvPool, kind: Any = Walking, **kwargs: Any) -> list[Seen]:
    """An episode with the death of its worker in it."""
    async with pool.open(kind, **kwargs) as env:
        seen = [(await env.reset(seed=3, task=Walk(Way.DOWN))).observation]
        for number, way in enumerate((Way.UP, Way.UP, Way.DOWN)):
            if number == 2:
                kill_all(pool)
            walk = Walk(way, number)
            outcome = await env.step(walk)
            assert type(outcome.observation) is Seen
            assert outcome.observation.last is way
            assert type(outcome.info["trace"]) is Walking.Trace
            assert outcome.info["digest"] == digest([outcome.observation, walk, Way.UP])
            seen.append(outcome.observation)
        return seen


def kill_all(pool: ar.EnvPool) -> None:
    for worker in pool.stats().workers:
        if worker.pid is not None and worker.pid != os.getpid():
            os.kill(worker.pid, signal.SIGKILL)


async def play_words(pool: ar.EnvPool) -> str:
    async with pool.open(ar.EnvSpec("words", Walking, text=Words)) as env:
        await env.reset(seed=1)
        return str((await env.step("UP")).observation.text)


async def play_local(pool: ar.EnvPool) -> None:
    """Classes of a function's body, and a function that keeps a variable."""

    class Place:
        pass

    class Local(Walking):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert action is None or type(action) is Place
            return Place(), bonus, False, False, {}

    for bonus in (1.0, 2.0):
        async with pool.open(lambda bonus=bonus: Local(Walk(Way.UP, int(bonus)))) as env:
            first = await env.reset(seed=0)
            assert first.observation.total == 30 * bonus, first
            assert type((await env.step(None)).observation) is Place
            assert type((await env.step(Place())).observation) is Place


async def play_renewed(pool: ar.EnvPool) -> None:
    """A function that is defined anew, as in a notebook, is used by what is opened from then on."""
    old = globals()["distance"]
    globals()["distance"] = lambda walk: 1000
    try:
        async with pool.open(Walking, start=Walk(Way.UP)) as env:
            assert (await env.reset(seed=0)).observation.total == 1000
    finally:
        globals()["distance"] = old


async def main() -> None:
    async with ar.EnvPool(backend="inline") as pool:
        wanted = [await play(pool, start=Walk(Way.UP)), await play_words(pool)]
        await play_local(pool)
    async with ar.EnvPool(workers=1) as pool:
        assert [await play(pool, start=Walk(Way.UP)), await play_words(pool)] == wanted
        assert await play(pool, "__main__:Walking", start=Walk(Way.UP)) == wanted[0]
        await play_local(pool)
        await play_renewed(pool)
        async with pool.open(Walking) as env, pool.open(Walking) as other:
            reported = (await env.reset(seed=0)).info
            assert (await other.reset(seed=0)).info["made"] == reported["made"]  # globals are shared, as in any module
            try:
                await env.step("raise")
            except ar.EnvError as error:
                assert error.remote_type == "OwnError"  # noqa: PT017
    async with ar.EnvPool(workers=2, recover="snapshot") as pool:
        assert await play(pool, start=Walk(Way.UP)) == wanted[0]
    print("all is well", json.dumps(reported))


# The start, without a guard
asyncio.run(main())
