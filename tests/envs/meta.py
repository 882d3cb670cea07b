"""Envs and agents for the tests of the meta-RL interfaces; the envs live in worker processes."""

import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from tests.playing import PATIENCE

ORIGIN = "imported"
"""What a process that imports this module sees; a forked one would see what a test makes of it."""


class OldEnv:
    """Gym's old interface: a state of two numbers, where the sum of the task and the actions so far is the second."""

    n_tasks = 4
    _max_episode_steps = 5
    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space: Any = Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self) -> None:
        self.origin = ORIGIN
        self.tag = self.total = 0.0
        self.task = 0
        self.steps = 0
        self.resets = 0

    @property
    def unwrapped(self) -> "OldEnv":
        return self

    def seed(self, seed: int) -> None:
        self.tag = float(seed % 1000)

    def reset_task(self, task: int | None) -> None:
        self.task = 3 if task is None else task

    def get_current_task(self) -> np.ndarray[Any, Any]:
        return np.array([float(self.task)])

    def is_goal_state(self) -> bool:
        return self.total > 4

    def reset(self) -> np.ndarray[Any, Any]:
        self.total, self.steps = float(self.task), 0
        self.resets += 1
        return np.array([self.tag, self.total])

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        self.total += float(np.ravel(action)[0])
        self.steps += 1
        ended = self.steps >= self._max_episode_steps
        return np.array([self.tag, self.total]), self.total, ended, {"TimeLimit.truncated": True} if ended else {}


class Choosing(OldEnv):
    """Three actions to choose from."""

    action_space = Discrete(3)


class TaskedByReset(OldEnv):
    """Takes its task in its reset, which draws one without it."""

    reset_task = None  # type: ignore[assignment]

    def reset(self, task: int | None = None) -> np.ndarray[Any, Any]:
        self.task = 100 + self.resets if task is None else task
        return super().reset()


class Seeded(OldEnv):
    """Its first state tells the seed of its reset."""

    seed = None  # type: ignore[assignment]

    def reset(self, seed: int | None = None) -> np.ndarray[Any, Any]:
        self.tag = -1.0 if seed is None else float(seed)
        return super().reset()


class SeededByName(Seeded):
    def reset(self, **kwargs: Any) -> np.ndarray[Any, Any]:  # type: ignore[override]
        return super().reset(kwargs["seed"])


class Around:
    """A wrapper as Gym had them: its reset takes what the env inside takes."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **kwargs: Any) -> Any:
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        return self.env.step(action)


class Global(OldEnv):
    """Draws from everybody's generators, at its reset and at its steps."""

    def reset(self) -> np.ndarray[Any, Any]:
        super().reset()
        self.tag = float(np.random.uniform())  # noqa: NPY002
        return np.array([self.tag, self.total])

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        state, _, ended, info = super().step(action)
        return state, float(np.random.uniform()), ended, info  # noqa: NPY002


class Unequal(OldEnv):
    """The first of them stands still at its first step until somebody lets it go on; all tell when an episode ends."""

    def __init__(self, path: str, *, stands_still: bool) -> None:
        super().__init__()
        self._path = path
        self._stands_still = stands_still

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        if self._stands_still and self.steps == 0:
            call(self._path, b"waits")
        reported = super().step(action)
        if reported[2]:
            call(self._path, b"ended")
        return reported


class Meeting(OldEnv):
    """Nobody's step goes on before all of them are at it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        call(self._path, b"here")
        return super().step(action)


def call(path: str, word: bytes) -> None:
    """Tell the test something, and wait for its answer."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(PATIENCE)
        line.connect(path)
        line.sendall(word)
        assert line.recv(1)


class Exchange:
    """The test's end: whoever calls is heard, and waits until `answered`."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "exchange")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE)
        self._socket.bind(self.path)
        self._socket.listen()

    def heard(self) -> tuple[bytes, socket.socket]:
        line, _ = self._socket.accept()
        return line.recv(5), line

    @staticmethod
    def answer(line: socket.socket) -> None:
        with line:
            line.sendall(b"!")

    def close(self) -> None:
        self._socket.close()


@contextmanager
def in_thread(work: Any, *args: Any) -> Iterator[list[Any]]:
    """Run it beside the body; what it returned or raised is in the list in the end."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work(*args))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield results
    finally:
        thread.join(PATIENCE)


class Chance:
    """An agent without a memory: a small network, and noise from the generator that it is given."""

    def __init__(self, inputs: int, outputs: int, *, noise: float = 0.3) -> None:
        chance = np.random.default_rng(0)
        self._first = chance.normal(size=(inputs, 16), scale=0.3).astype(np.float32)
        self._second = chance.normal(size=(16, outputs), scale=0.3).astype(np.float32)
        self._noise = noise

    def act(self, obs: Any, deterministic: bool, rng: np.random.Generator) -> tuple[Any, None, None, None]:
        assert not deterministic
        assert obs.dtype == np.float32
        actions = np.tanh(np.tanh(obs @ self._first) @ self._second)
        return actions + self._noise * rng.normal(size=actions.shape), None, None, None


class Recall:
    """An agent with a memory: it holds what an episode began with, and must be given that back."""

    def __init__(self, outputs: int = 1) -> None:
        self._outputs = outputs

    def get_initial_info(self) -> tuple[Any, Any, Any]:
        nothing = np.zeros((1, 1, 1), np.float32)
        return np.full((1, self._outputs), -1.0, np.float32), np.zeros((1, 1), np.float32), (nothing, nothing)

    def act(
        self, prev_internal_state: Any, prev_action: Any, reward: Any, obs: Any, deterministic: bool
    ) -> tuple[tuple[Any, None, None, None], Any]:
        assert not deterministic
        count = len(obs)
        (tags, turns), paid = prev_internal_state, np.ravel(reward)
        assert tags.shape == turns.shape == (1, count, 1)
        for at, (tag, turn) in enumerate(zip(tags.ravel(), turns.ravel(), strict=True)):
            if turn == 0:
                assert (prev_action[at] == -1.0).all()
                assert paid[at] == 0.0
            else:
                assert tag == obs[at, 0], "this is another episode's memory"
                assert (prev_action[at] == turn / 10).all()
                assert paid[at] == np.float32(obs[at, 1])
        actions = np.repeat((turns[0] + 1) / 10, self._outputs, axis=1)
        return (actions, None, None, None), (obs[None, :, :1].copy(), turns + 1)


class Counting(Recall):
    """Remembers for how many envs at a time it was asked: acting changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def act(self, *args: Any, **kwargs: Any) -> Any:
        self.sizes.append(len(kwargs["obs"]))
        return super().act(*args, **kwargs)


class Whereabouts:
    """Leaves a file for each process that it acts in; its actions are its factor, times that of its class."""

    scale = 1.0

    def __init__(self, directory: Path, **attributes: Any) -> None:
        self.directory = directory
        self.factor = 1.0
        vars(self).update(attributes)

    def act(self, obs: Any, deterministic: bool) -> Any:
        (self.directory / str(os.getpid())).touch()
        return np.full((len(obs), 1), self.factor * self.scale)


class Homebound(Whereabouts):
    """Cannot be loaded anywhere else."""

    def __reduce__(self) -> Any:
        return _arrive, (os.getpid(), self.directory)


def _arrive(home: int, directory: Path) -> Homebound:
    if os.getpid() != home:
        raise LookupError("lost on the way")
    return Homebound(directory)


class Homesick(Whereabouts):
    """Stands still in other processes."""

    def act(self, obs: Any, deterministic: bool) -> Any:
        if os.getpid() != self.home:  # type: ignore[attr-defined]
            threading.Event().wait(PATIENCE)
        return super().act(obs, deterministic)


class Normalising:
    """Changes the observation that it is given."""

    def act(self, obs: Any, deterministic: bool) -> Any:
        obs -= 100.0
        return np.tanh(obs[:, 1:])


class Careless:
    """Draws from everybody's generators."""

    def act(self, obs: Any, deterministic: bool) -> Any:
        return np.full((len(obs), 1), np.random.uniform() + random.random())  # noqa: NPY002


class Thrifty(OldEnv):
    """Gives the same array at every step, and uses that of its action, too."""

    def __init__(self) -> None:
        super().__init__()
        self._state = np.zeros(2, np.float32)

    def reset(self) -> np.ndarray[Any, Any]:
        self._state[:] = super().reset()
        return self._state

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        action *= 0.5
        reported, reward, ended, info = super().step(action)
        self._state[:] = reported
        return self._state, reward, ended, info


class Hiding(OldEnv):
    """Its state tells what its generator gave first."""

    def seed(self, seed: int) -> None:
        self.tag = float(np.random.RandomState(seed).uniform() + random.Random(seed).random())


class DiesOnce(OldEnv):
    """Its process ends at the fourth step, the first time that anybody takes it."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self._mark = mark

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        if self.steps == 3 and not self._mark.exists():
            self._mark.touch()
            os._exit(1)
        return super().step(action)


class Awry(OldEnv):
    """Fails at its third step."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        state, reward, ended, info = super().step(action)
        if self.steps == 3 and self._how == "raises":
            raise LookupError("no way on")
        return state, float("nan") if self.steps == 3 else reward, ended, info
