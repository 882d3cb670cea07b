"""Environments that misbehave on command: an action, or a keyword of the factory, names the fault."""

import ctypes
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np

from tests.envs.tiny import Counter, OddError, Step

Fault = Sequence[Any]
"""The name of a function below, and its arguments."""


def misbehave(fault: Fault | None) -> None:
    if fault is not None:
        name, *args = fault
        _FAULTS[name](*args)


class Faulty(Counter):
    """A counter; an action that is a list is a fault, which is committed before counting by one."""

    def __init__(
        self,
        build: Fault | None = None,
        reset: Fault | None = None,
        render: Fault | None = None,
        close: Fault | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._at_reset, self._at_render, self._at_close = reset, render, close
        misbehave(build)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        misbehave(self._at_reset)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        if isinstance(action, list):
            misbehave(action)
            action = 1
        return super().step(action)

    def render(self) -> np.ndarray[Any, Any]:
        misbehave(self._at_render)
        return super().render()

    def commit(self, *fault: Any) -> str:
        misbehave(fault)
        return "committed"

    def close(self) -> None:
        misbehave(self._at_close)


class FaultyPicture(Faulty):
    """The same with observations large enough to travel through mapped files."""

    def step(self, action: Any) -> Step:
        text, *rest = super().step(action)
        return (text, np.full(1 << 17, self.total % 251, dtype=np.uint8)), *rest  # type: ignore[return-value]


class AsyncFaulty:
    """An `io` env on the event loop; actions that are texts are faults."""

    def __init__(self, close: str = "") -> None:
        self.inner = Counter()
        self._at_close = close

    async def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        await anyio.lowlevel.checkpoint()
        return self.inner.reset(seed=seed, options=options)

    async def step(self, action: Any) -> Step:
        await anyio.lowlevel.checkpoint()
        match action:
            case "hang":
                await anyio.sleep_forever()
            case "timeout":
                raise TimeoutError("the env's own server was slow")
            case "raise":
                raise ValueError("the env's own mistake")
        return self.inner.step(1 if isinstance(action, str) else action)

    async def close(self) -> None:
        if self._at_close == "hang":
            await anyio.sleep_forever()


class DicedReset(Counter):
    """Its reset depends on global random state, as none may."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        text, info = super().reset(seed=seed, options=options)
        return f"{text} {random.random()}", info


class RaisesOnReplay(Counter):
    """Its second life goes wrong: the steps raise if a file that the first life makes is there."""

    def __init__(self, trace: str) -> None:
        super().__init__()
        self.second = Path(trace).exists()
        Path(trace).touch()

    def step(self, action: Any) -> Step:
        if self.second:
            raise ValueError("not the first to come here")
        return super().step(action)


class CrampedPictures(Counter):
    """Pictures too large for the room that the worker has for files."""

    def __init__(self, room: int = 1 << 16) -> None:
        super().__init__()
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

    def step(self, action: Any) -> Step:
        _, *rest = super().step(action)
        return np.full(1 << 18, self.total % 251, dtype=np.uint8), *rest  # type: ignore[return-value]


class BadTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for this")


class ExitingTextError(Exception):
    def __str__(self) -> str:
        return str(sys.exit("no text for this either"))


class LoadsBadly:
    """Pickles well; to load it is a mistake."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_badly, (self.how,)


def _load_badly(how: str) -> None:
    if how == "exit":
        sys.exit("bye from a pickle")
    raise ValueError("this was not meant to be loaded")


class Returning(Counter):
    """Returns what the action names in place of an observation."""

    def step(self, action: Any) -> Step:
        text, *rest = super().step(1)
        odd: Any = text
        match action:
            case "lock":
                odd = threading.Lock()
            case "raise" | "exit":
                odd = LoadsBadly(action)
            case "short":
                return (text,)  # type: ignore[return-value]
            case "reward":
                rest[0] = "much"
        return odd, *rest


def _once(trace: str, *fault: Any) -> None:
    """A fault of the first time only, whichever process comes first."""
    try:
        os.close(os.open(trace, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    misbehave(fault)


def _past_first(trace: str, *fault: Any) -> None:
    """A fault of every time but the first."""
    try:
        os.close(os.open(trace, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        misbehave(fault)


def _nth(number: int, trace: str, *fault: Any) -> None:
    """A fault of one time among many, counted over all processes."""
    for count in range(1, number + 1):
        try:
            os.close(os.open(f"{trace}.{count}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        if count == number:
            misbehave(fault)
        return


def _raise(kind: str) -> None:
    match kind:
        case "plain":
            raise ValueError("the env's own mistake")
        case "odd":
            raise OddError("first", "second")
        case "bad text":
            raise BadTextError
        case "exiting text":
            raise ExitingTextError
        case "sys.exit":
            sys.exit("bye")
        case "interrupt":
            raise KeyboardInterrupt
        case "huge":
            raise ValueError("x" * 5_000_000)
        case "surrogate":
            raise ValueError("lone \ud800 surrogate")
        case "memory":
            raise MemoryError("no room for the simulator")
        case "recursion":
            _raise_deep()
        case "group":
            raise ExceptionGroup("two at once", [ValueError("one"), KeyError("two")])
        case "stop":
            raise StopIteration("not even this")
        case _:
            raise AssertionError(kind)


def _raise_deep() -> None:
    _raise_deep()


def _block(*_: Any) -> None:
    threading.Event().wait()


def _spin(*_: Any) -> None:
    while True:
        pass


def _burn(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _use_cpu(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def _hoard(megabytes: int, then: Fault | None = None) -> None:
    hoards.append(np.ones(megabytes << 20, dtype=np.uint8))
    misbehave(then)


hoards: list[Any] = []


def _wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.002)


def _signal_self(number: int) -> None:
    os.kill(os.getpid(), number)


def _tell_then(path: str, *fault: Any) -> None:
    """Say where it is, then go on to the fault."""
    Path(path).write_text(str(os.getpid()))
    misbehave(fault)


def _close_descriptors(first: int) -> None:
    os.closerange(first, 1024)


def _fork_child(path: str) -> None:
    """A child without exec, as `multiprocessing` makes them: it has all of the worker's descriptors."""
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    Path(path).write_text(str(pid))


def _start_sleep(path: str) -> None:
    Path(path).write_text(str(subprocess.Popen(["sleep", "1000"]).pid))


def _start_threads(count: int) -> None:
    for _ in range(count):
        threading.Thread(target=_block).start()


def _handle_signals() -> None:
    """Interrupts each system call of the worker a thousand times a second."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)


def _talk(lines: int) -> None:
    for number in range(lines):
        print(f"said {number}")
        os.write(1, b"raw out\n")
        os.write(2, b"raw err\n")
        sys.stderr.write("said in anger\n")


def _let_child_talk() -> None:
    subprocess.run(["sh", "-c", "cat; echo child out; echo child err >&2"], check=True)
    sys.stdin.read()


_FAULTS: dict[str, Callable[..., Any]] = {
    "block": _block,
    "burn": _burn,
    "chdir": os.chdir,
    "child talks": _let_child_talk,
    "close fds": _close_descriptors,
    "exit": os._exit,
    "fork": _fork_child,
    "handlers": _handle_signals,
    "hoard": _hoard,
    "nth": _nth,
    "once": _once,
    "past first": _past_first,
    "raise": _raise,
    "segfault": lambda: ctypes.string_at(0),
    "signal": _signal_self,
    "sleep child": _start_sleep,
    "spin": _spin,
    "talk": _talk,
    "tell": _tell_then,
    "threads": _start_threads,
    "use cpu": _use_cpu,
    "wait": _wait_for,
}
