"""Small environments that do one thing each, well or badly."""

import ctypes
import dataclasses
import os
import random
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np

from asyncrollout import Observation, Parsed, TextOptions

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class Counter:
    """Counts up by seeded amounts; ends at `limit`. The observation is text, the state is deterministic."""

    def __init__(self, limit: int = 1000, length: int = 20) -> None:
        self.limit = limit
        self.length = length
        self.bonus = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.generator = np.random.default_rng(seed)
        self.total = 0 if options is None else int(options["task"])
        return self._show(), {"seed": seed}

    def step(self, action: Any) -> Step:
        gained = int(self.generator.integers(1, 10)) * int(action)
        self.total += gained
        return self._show(), gained + self.bonus, self.total >= self.limit, False, {"gained": gained}

    def set_bonus(self, bonus: float) -> float:
        self.bonus = bonus
        return bonus

    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    def render(self) -> np.ndarray[Any, Any]:
        return np.full((4, 4, 3), self.total % 256, dtype=np.uint8)

    def pid(self) -> int:
        return os.getpid()

    def _show(self) -> str:
        return f"total {self.total}".ljust(self.length, ".")


class SnapshotCounter(Counter):
    """A counter that can be put into a state at once; its replay would diverge after `fork_at`."""

    def snapshot(self) -> bytes:
        return repr((self.total, self.generator.bit_generator.state)).encode()

    def restore(self, state: bytes) -> None:
        import ast

        self.generator = np.random.default_rng(0)
        self.total, self.generator.bit_generator.state = ast.literal_eval(state.decode())


class CounterText:
    """Replies are `add 3` or `add 1 || add 2`."""

    def __init__(self, env: Counter, options: TextOptions) -> None:
        self.env = env
        self.options = options

    def parse(self, reply: str) -> Parsed:
        words = [part.split() for part in reply.split(self.options.separator)]
        if all(len(pair) == 2 and pair[0] == "add" and pair[1].isdigit() for pair in words):
            return Parsed([int(number) for _, number in words])
        return Parsed([], valid=False, reason=f"not an addition: {reply[:20]!r}")

    def describe(self, observation: str) -> str | Observation:
        return Observation(text=f"You are at {observation}", images=(self.env.render(),), data=observation)

    def system_prompt(self) -> str:
        return "Add numbers."

    def anchor(self) -> tuple[str, int]:
        return ("total", self.env.total)

    def solve(self) -> str:
        return "add 9"


class BigArray:
    """Observations of a megabyte, made in place: who does not copy them sees them change."""

    def __init__(self, size: int = 1 << 20, kind: str = "array") -> None:
        self.frame = np.zeros(size, dtype=np.uint8)
        self.kind = kind

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.frame[:] = (seed or 0) % 256
        return self._show(), {}

    def step(self, action: Any) -> Step:
        self.frame += 1
        return self._show(), float(self.frame[0]), False, False, {}

    def _show(self) -> Any:
        if self.kind == "dict":
            return {"head": self.frame, "wrist": (self.frame[: 1 << 17], "left"), "state": np.float32(1.5)}
        return self.frame


class Crasher(Counter):
    """Dies at its `at`-th step, in its own way; with a `once` file, only the first time."""

    def __init__(self, at: int = 3, how: str = "exit", once: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.at = at
        self.how = how
        self.once = once

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.steps = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        self.steps += 1
        if self.steps == self.at and self._first_time():
            self._fail()
        return super().step(action)

    def _first_time(self) -> bool:
        if self.once is None:
            return True
        try:
            os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _fail(self) -> None:
        match self.how:
            case "exit":
                os._exit(3)
            case "segfault":
                ctypes.string_at(0)
            case "kill":
                os.kill(os.getpid(), 9)
            case "raise":
                raise ValueError("the env's own mistake")
            case "sys.exit":
                sys.exit("bye")
            case "odd":
                raise OddError("first", "second")
            case "huge":
                raise ValueError("x" * 5_000_000)
            case "hang":
                threading.Event().wait()
            case "spin":
                while True:
                    pass
            case "memory":
                self.hoard = [bytearray(os.urandom(1 << 20)) for _ in range(4096)]


class OddError(Exception):
    """Cannot be made again from its arguments, and holds what cannot be pickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise RuntimeError("not even a text")


class Noisy(Counter):
    """Writes to fds 1 and 2, from itself and from a child, and reads fd 0."""

    def step(self, action: Any) -> Step:
        print("noise on stdout")
        os.write(1, b"raw noise\n")
        os.write(2, b"raw noise\n")
        if self.total < 30:
            subprocess.run(["sh", "-c", "cat; echo child noise; echo child noise >&2"], check=True)
        return super().step(action)


class Parent(Counter):
    """Starts a child process that would sleep for long."""

    def start_child(self) -> int:
        self.child = subprocess.Popen(["sleep", "1000"])
        return self.child.pid


class Nondeterministic(Counter):
    """Depends on global random state, as no env may."""

    def step(self, action: Any) -> Step:
        text, reward, terminated, truncated, info = super().step(action)
        return f"{text} {random.random()}", reward, terminated, truncated, info


class Slow(Counter):
    """Computes for `seconds` in each step."""

    def __init__(self, seconds: float = 0.002, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds = seconds

    def step(self, action: Any) -> Step:
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        return super().step(action)


class Waiting(Counter):
    """Waits for `seconds` in each step without computing; an `io` env."""

    def __init__(self, seconds: float = 0.002, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds = seconds

    def step(self, action: Any) -> Step:
        time.sleep(self.seconds)
        return super().step(action)


class AsyncCounter:
    """A counter whose methods are coroutines; an `io` env that runs on the event loop."""

    def __init__(self, **kwargs: Any) -> None:
        self.inner = Counter(**kwargs)

    async def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        await anyio.lowlevel.checkpoint()
        return self.inner.reset(seed=seed, options=options)

    async def step(self, action: Any) -> Step:
        if action == "hang":
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()
        return self.inner.step(action)


class Refuses:
    """Cannot be made."""

    def __init__(self, **kwargs: Any) -> None:
        raise RuntimeError("no licence for this simulator")


class Echo:
    """Repeats its input: the task at a reset, the action at a step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return (options or {}).get("task"), {"seed": seed}

    def step(self, action: Any) -> Step:
        return action, 0.0, False, False, {"said": action}

    def environ(self, name: str) -> str | None:
        return os.environ.get(name)


@dataclasses.dataclass(frozen=True)
class Point:
    """A value that only pickle can carry."""

    x: int
    label: str


class Bag:
    """An object of a plain class, equal to nothing but itself, with a set inside."""

    def __init__(self, items: set[str]) -> None:
        self.items = items


class BagEnv(Counter):
    """Observations are objects whose set has another order in every process."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return Bag({super().reset(seed=seed)[0], "left", "right", "up", "down"}), {}

    def step(self, action: Any) -> Step:
        text, *rest = super().step(action)
        return Bag({text, "left", "right", "up", "down"}), *rest  # type: ignore[return-value]


class Growing:
    """Arrays that get larger with each step: one in the observation, one in the info."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seed, self.steps = seed or 0, 0
        return self._show(), {}

    def step(self, action: Any) -> Step:
        self.steps += 1
        return self._show(), 0.0, False, False, {"twice": np.repeat(self._show(), 2)}

    def _show(self) -> Any:
        return np.arange(self.seed, self.seed + (1 << 13 + self.steps), dtype=np.int32)


class NoRoom(BigArray):
    """Its worker may write no file larger than 64 KiB, as if the file system were full."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, most))


class Gated(Counter):
    """Waits at a gate, a named pipe, in its step with action `wait`, or where it is made."""

    def __init__(self, pipe: str, at: str = "step", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipe = pipe
        if at == "build":
            self._wait()

    def step(self, action: Any) -> Step:
        if action == "wait":
            self._wait()
            action = 0
        return super().step(action)

    def _wait(self) -> None:
        with Path(self.pipe).open("wb", buffering=0) as gate:  # blocks until someone reads
            gate.write(b"begun")
            gate.write(bytes(1 << 20))  # more than a pipe holds: blocks until it is read to the end


class Diary:
    """Shows every action so far."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.pages: list[Any] = []
        return list(self.pages), {}

    def step(self, action: Any) -> Step:
        self.pages.append(action)
        return list(self.pages), 0.0, False, False, {}


class Sticky(Counter):
    """Once a step has failed, nothing works any more."""

    stuck = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        if self.stuck:
            raise RuntimeError("stuck")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        self.stuck = True
        result = super().step(action)
        self.stuck = False
        return result


class UnsolvedText:
    """No more than a text interface must have."""

    def __init__(self, env: Counter, options: TextOptions) -> None:
        self._inner = CounterText(env, options)

    def parse(self, reply: str) -> Parsed:
        return self._inner.parse(reply)

    def describe(self, observation: str) -> str:
        return f"At {observation}"

    def system_prompt(self) -> str:
        return "Add numbers."


class CarefulText(CounterText):
    """As CounterText, but it reads nothing that is not a small number."""

    def parse(self, reply: str) -> Parsed:
        words = [part.split() for part in reply.split(self.options.separator)]
        if all(len(pair) == 2 and pair[0] == "add" and pair[1].isdecimal() and len(pair[1]) < 4 for pair in words):
            return Parsed([int(number) for _, number in words])
        return Parsed([], valid=False, reason=f"not an addition: {reply[:20]!r}")


class Misshapen(Counter):
    """Returns what no env may return, as `how` says."""

    def __init__(self, how: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.how = how

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, info = super().reset(seed=seed, options=options)
        match self.how:
            case "reset gives one":
                return observation
            case "reset gives three":
                return observation, info, 1
            case "reset info is a list":
                return observation, [info]
            case "reset gives what cannot be sent":
                return threading.Lock(), info
        return observation, info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        match self.how:
            case "step gives four":
                return observation, reward, terminated, info
            case "step info is a list":
                return observation, reward, terminated, truncated, [info]
            case "reward is text":
                return observation, "much", terminated, truncated, info
            case "reward is None":
                return observation, None, terminated, truncated, info
            case "step gives what cannot be sent":
                return threading.Lock(), reward, terminated, truncated, info
            case "step info cannot be sent":
                return observation, reward, terminated, truncated, {"lock": threading.Lock()}
        return observation, reward, terminated, truncated, info


class Awry(SnapshotCounter):
    """Breaks one point of the contract, as `how` says; else it keeps all of them."""

    def __init__(self, how: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.how = how
        self.closed = 0
        if how == "is outside its space":
            import gymnasium

            self.observation_space = gymnasium.spaces.Text(max_length=3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.how == "seeds numpy":
            np.random.seed(seed)  # noqa: NPY002 (that is the mistake)
        generator = getattr(self, "generator", None)
        text, info = super().reset(seed=seed, options=options)
        if self.how == "keeps its generator" and generator is not None:
            self.generator = generator
        return text, info

    def step(self, action: Any) -> Step:
        text, reward, terminated, truncated, info = super().step(action)
        match self.how:
            case "gives infinite rewards":
                reward = float("inf")
            case "draws from random":
                random.random()
            case "depends on hash":
                text = f"{text} {hash('text')}"
        return text, reward, terminated, truncated, info

    def restore(self, state: bytes) -> None:
        super().restore(state)
        if self.how == "forgets its generator":
            self.generator = np.random.default_rng(0)

    def render(self) -> Any:
        picture = super().render()
        return None if self.how == "renders nothing" else picture

    def close(self) -> None:
        self.closed += 1
        if self.how == "closes once" and self.closed > 1:
            raise RuntimeError("closed already")


class AwryText(CarefulText):
    """The same for the text interface."""

    env: Awry

    def parse(self, reply: str) -> Parsed:
        match self.env.how:
            case "raises on odd digits":
                return CounterText.parse(self, reply)
            case "gives no reason":
                return Parsed(super().parse(reply).actions, super().parse(reply).valid)
            case "steps in parse":
                self.env.total += 1
        return super().parse(reply)

    def describe(self, observation: Any) -> Any:
        return None if self.env.how == "describes nothing" else super().describe(observation)

    def system_prompt(self) -> Any:
        return None if self.env.how == "has no prompt" else super().system_prompt()

    def anchor(self) -> Any:
        match self.env.how:
            case "has a list for anchor":
                return [self.env.total]
            case "has an object for anchor":
                return object()
        return super().anchor()

    def solve(self) -> str:
        return "subtract 9" if self.env.how == "solves badly" else super().solve()


class Dice:
    """Starts as its seed says, and rolls as the member of a group does."""

    plays_by_chance = True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self.rolls = np.random.default_rng((seed or 0, options["member"]))
        return int(np.random.default_rng(seed).integers(100)), {"options": sorted(options)}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        rolled = int(self.rolls.integers(1, 7))
        return rolled, float(rolled), False, False, {}


class Optioned:
    """Shows the options that it was reset with."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return options, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return None, 0.0, False, False, {}
