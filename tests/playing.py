"""Specs, episodes and faults that the pool's tests share."""

import copy
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import anyio.to_thread
import numpy as np

from asyncrollout import EnvHandle, EnvPool, EnvSpec, Outcome, find_env
from asyncrollout.registry import load_factory

ENVS = "tests.envs.tiny"
COUNTER = EnvSpec(name="counter", factory=f"{ENVS}:Counter")
TEXT = EnvSpec(name="text", factory=f"{ENVS}:Counter", text=f"{ENVS}:CounterText")
SNAPSHOT = EnvSpec(name="snapshot", factory=f"{ENVS}:SnapshotCounter")
ECHO = EnvSpec(name="echo", factory=f"{ENVS}:Echo")
MISSHAPEN = EnvSpec(name="misshapen", factory=f"{ENVS}:Misshapen")
ACTIONS = [1, 2, 3, 4, 5, 6]
REPLIES = ["add 1", "jump", "add 2 || add 3", "", "add 4"]
PATIENCE = 60.0  # seconds, a guard against hanging; nothing is timed

EPISODES: list[tuple[EnvSpec, list[Any]]] = [
    (COUNTER, ACTIONS),
    (COUNTER.with_kwargs(limit=12), ACTIONS),
    (SNAPSHOT, ACTIONS),
    (ECHO, ["a", (1, [2.5, None]), {"x": np.arange(3)}, {1, 2}]),
    (EnvSpec(name="big", factory=f"{ENVS}:BigArray"), [0, 0, 0]),
    (EnvSpec(name="bigs", factory=f"{ENVS}:BigArray", kwargs={"kind": "dict"}), [0, 0, 0]),
    (EnvSpec(name="growing", factory=f"{ENVS}:Growing"), [0, 0, 0, 0]),
    (find_env("gymnasium:CartPole-v1"), [0, 1, 0, 1]),
]
"""Envs of every kind, and the actions to play."""

BACKENDS: dict[str, dict[str, Any]] = {"inline": {"backend": "inline"}, "process": {"workers": 1}}


async def play(env: EnvHandle, seed: int | None, actions: Iterable[Any], task: Any = None) -> list[Outcome]:
    outcomes = [await env.reset(seed=seed, task=task)]
    for action in actions:
        if outcomes[-1].done:
            break
        outcomes.append(await env.step(action))
    return outcomes


def expected(spec: EnvSpec, seed: int, actions: Iterable[Any], task: Any = None) -> list[Outcome]:
    """The same episode on the plain object, without any of our code."""
    env = load_factory(spec.factory)(**spec.kwargs)
    outcomes = [Outcome(*_reset(copy.deepcopy(env.reset(seed=seed, options=None if task is None else {"task": task}))))]
    for action in actions:
        if outcomes[-1].done:
            break
        observation, reward, terminated, truncated, info = copy.deepcopy(env.step(action))
        outcomes.append(Outcome(observation, float(reward), bool(terminated), bool(truncated), info))
    return outcomes


def _reset(result: tuple[Any, dict[str, Any]]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    return result[0], 0.0, False, False, result[1]


def pid_of(pool: EnvPool, env: EnvHandle) -> int:
    (pid,) = (worker.pid for worker in pool.stats().workers if worker.rank == env.worker)
    assert pid is not None
    return pid


def kill_worker_of(pool: EnvPool, env: EnvHandle) -> None:
    os.kill(pid_of(pool, env), signal.SIGKILL)


class Gate:
    """The outer side of a `Gated` env's pipe."""

    def __init__(self, directory: Path) -> None:
        self.pipe = str(directory / "gate")
        os.mkfifo(self.pipe)
        self._file: BinaryIO | None = None

    async def begun(self) -> None:
        """Wait until the env stands at the gate."""
        self._file = await anyio.to_thread.run_sync(Path(self.pipe).open, "rb")
        assert await anyio.to_thread.run_sync(self._file.read, 5) == b"begun"

    async def open(self) -> None:
        assert self._file is not None
        with self._file:
            await anyio.to_thread.run_sync(self._file.read)
