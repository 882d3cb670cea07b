"""What `bench_pool.py` compares the pool with, in the fastest form that does the same work; how steps are counted."""

import asyncio
import multiprocessing
import selectors
import string
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Self

import anyio
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Text
from gymnasium.vector import AsyncVectorEnv

from benchmarks.pool_envs import Frames, Paced, Trivial

ACTION = "right"

Measure = Callable[[float], Awaitable[float]]
"""Steps per second, measured for so many seconds."""


class Tally:
    """Counts steps until the time is up; steps that end later are not counted."""

    def __init__(self, seconds: float) -> None:
        self.running = True
        self.steps = 0
        self.rate = 0.0
        self._start = time.perf_counter()
        asyncio.get_running_loop().call_later(seconds, self._stop)

    def _stop(self) -> None:
        self.running = False
        self.rate = self.steps / (time.perf_counter() - self._start)


async def together(seconds: float, players: Iterable[Callable[[Tally], Awaitable[None]]]) -> float:
    tally = Tally(seconds)
    async with anyio.create_task_group() as tasks:
        for player in players:
            tasks.start_soon(player, tally)
    return tally.rate


def blocking(rate: Callable[[float], float]) -> Measure:
    """A rival that knows no event loop: it has the thread to itself while it is measured."""

    async def measure(seconds: float) -> float:
        return rate(seconds)

    return measure


class GymTrivial(Trivial, gymnasium.Env):
    """Text actions: they were measured to be faster than Discrete ones, which travel as NumPy scalars."""

    observation_space = Text(200, charset=string.printable)
    action_space = Text(10)


class GymFrames(Frames, gymnasium.Env):
    observation_space = Box(0, 255, (1024, 1024), np.uint8)
    action_space = Discrete(2)


@contextmanager
def text_vector(envs: int, *, shared_memory: bool = True) -> Iterator[AsyncVectorEnv]:
    """Shared memory is its default; for text it is slower than pipes, and the texts never change (Gymnasium 1.4)."""
    yield from _vector(GymTrivial, envs, shared_memory=shared_memory)


@contextmanager
def frame_vector(envs: int, *, shared_memory: bool) -> Iterator[AsyncVectorEnv]:
    """Copies what it returns, as is its default: like ours, the frames belong to who receives them."""
    yield from _vector(GymFrames, envs, shared_memory=shared_memory)


def _vector(make: Callable[[], gymnasium.Env], envs: int, *, shared_memory: bool) -> Iterator[AsyncVectorEnv]:
    vector = AsyncVectorEnv([make] * envs, shared_memory=shared_memory)
    try:
        vector.reset(seed=0)
        yield vector
    finally:
        vector.close()


def vector_rate(vector: AsyncVectorEnv, actions: Any, seconds: float) -> float:
    rounds, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        vector.step(actions)
        rounds += 1
    return rounds * vector.num_envs / (time.perf_counter() - start)


@contextmanager
def executor(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Its processes are started here, before there is an event loop to fork."""
    with ProcessPoolExecutor(workers) as pool:
        for future in [pool.submit(time.sleep, 0.1) for _ in range(workers)]:
            future.result()
        yield pool


def stateless(envs: int, call: Callable[[Trivial, str], Awaitable[Any]]) -> Measure:
    """Pools whose workers remember nothing: each step takes the env there and brings it back."""

    async def play(tally: Tally) -> None:
        env = Trivial()
        env.reset()
        while tally.running:
            env, _ = await call(env, ACTION)
            tally.steps += 1

    return lambda seconds: together(seconds, [play] * envs)


def serial_rate(envs: Sequence[Any], seconds: float, *, copy: bool = False) -> float:
    """One env after the other in this process; with `copy`, observations belong to who receives them, as ours do."""
    for env in envs:
        env.reset(seed=0)
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for env in envs:
            observation = env.step(ACTION)[0]
            if copy:
                observation.copy()
        steps += len(envs)
    return steps / (time.perf_counter() - start)


class Processes:
    """Plain processes with a pipe each; a process plays one step of each of its envs for a message.

    `groups` are the envs of each process. Only the steps of those that end their episodes are counted.
    """

    def __init__(self, groups: Sequence[Sequence[Paced]]) -> None:
        self._counted = [sum(env.ends for env in group) for group in groups]
        self._pipes: list[Connection] = []
        self._processes: list[multiprocessing.Process] = []
        for group in groups:
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(target=_serve, args=(theirs, group), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join()
            pipe.close()

    def lockstep_rate(self, seconds: float) -> float:
        """All are asked, all are awaited, and again."""
        rounds, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            for pipe in self._pipes:
                pipe.send(ACTION)
            for pipe in self._pipes:
                pipe.recv()
            rounds += 1
        return rounds * sum(self._counted) / (time.perf_counter() - start)

    def own_pace_rate(self, seconds: float) -> float:
        """Each is asked again as soon as it has answered."""
        steps, start = 0, time.perf_counter()
        with selectors.DefaultSelector() as answers:
            for pipe, counted in zip(self._pipes, self._counted, strict=True):
                answers.register(pipe, selectors.EVENT_READ, counted)
                pipe.send(ACTION)
            while time.perf_counter() - start < seconds:
                for key, _ in answers.select(timeout=seconds):
                    key.fileobj.recv()
                    key.fileobj.send(ACTION)
                    steps += key.data
            rate = steps / (time.perf_counter() - start)
            for pipe in self._pipes:
                pipe.recv()
        return rate


def _serve(pipe: Connection, envs: Sequence[Paced]) -> None:
    for env in envs:
        env.reset()
    while (action := pipe.recv()) is not None:
        outcomes = [env.step(action) for env in envs]
        for env, (_, _, terminated, _, _) in zip(envs, outcomes, strict=True):
            if terminated:
                env.reset()
        pipe.send(outcomes)
