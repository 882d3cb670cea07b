"""Names the user's call that blocks the event loop, and with it every rollout.

A thread asks the loop for a sign of life four times a second. If there is none for a second, it looks at the stack of
the loop's thread: the function that our code called last is the one to name. The calls themselves cost nothing.
"""

import asyncio
import sys
import sysconfig
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, FrameType

from asyncrollout.logs import get_logger

log = get_logger(__name__)

_TICK = 0.25  # seconds
_TICKS = 4  # without a sign of life, at the same call
_JOIN_SECONDS = 1.0
_LONG_TICKS = 120  # after so many, it is reported even though it has not ended
_STDLIB = (sysconfig.get_path("stdlib"), "<frozen")
_INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))

_IN_THREAD = "await what waits, and run what computes in a thread: await anyio.to_thread.run_sync(...)"
_IN_SCORE = "have `score` compute what it needs, as an `async def` or in a thread"
_ROLES = {
    "asyncrollout.rollouts.episode.scoring": ("score", f"make it an `async def`: {_IN_THREAD}"),
    "asyncrollout.rollouts.sampling.filtering": ("filter", _IN_SCORE),
    "asyncrollout.filters": ("filter", _IN_SCORE),
    "asyncrollout.rollouts.sampling.task_source": (
        "tasks",
        "make the source of tasks async, and let `finished` only take notes",
    ),
    "asyncrollout.rollouts.episode.episode": ("agent", _IN_THREAD),
    "asyncrollout.protocols": ("policy", f"{_IN_THREAD}; for a model in this process, use BatchedPolicy"),
    "asyncrollout.agents": ("policy", f"{_IN_THREAD}; for a model in this process, use BatchedPolicy"),
    "asyncrollout.policies": ("policy", f"{_IN_THREAD}; for a model in this process, use BatchedPolicy"),
    "asyncrollout.pool.worker.env_runner": ("env", 'run it in a worker: EnvSpec(runs="cpu") and a pool with workers'),
    "asyncrollout.pool.worker.text": ("env", 'run it in a worker: EnvSpec(runs="cpu") and a pool with workers'),
    "asyncrollout.pool.worker.env_factory": ("env", 'run it in a worker: EnvSpec(runs="cpu") and a pool with workers'),
}
"""By the module of ours that makes the call, or a package around it: what it calls, and what to do if that blocks."""


@dataclass
class _BlockingCall:
    """A call that the loop is at; `frame` is its identity, not a reference, which would keep its variables alive."""

    frame: int
    code: CodeType
    line: int
    role: str
    hint: str
    since: float
    ticks: int = 0


class LoopMonitor(threading.Thread):
    """Watches the event loop of the thread that makes it, until `release` was called as often as `watch_loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="asyncrollout loop watch", daemon=True)
        self.users = 0
        self.call: _BlockingCall | None = None
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._ended = threading.Event()
        self._is_alive = True  # the loop, since the last tick
        self._asked_at = time.monotonic()
        self._told: set[CodeType] = set()

    def release(self) -> None:
        self.users -= 1
        if not self.users:
            _watches.pop(self._loop, None)
            self._ended.set()
            self.join(_JOIN_SECONDS)  # it wakes at once

    def run(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(_TICK) and not self._loop.is_closed():
            now = time.monotonic()
            is_late, last = now - last > 2 * _TICK, now
            if self._is_alive:
                self._ask(now)
            elif not is_late:
                self._look()
            elif self.call is not None and self.call.ticks < _TICKS:
                self.call = None  # the whole process stood still, which need not be the call's fault
        if _watches.get(self._loop) is self:  # the loop was closed, its pools were not
            del _watches[self._loop]

    def _ask(self, now: float) -> None:
        self.call, self._is_alive, self._asked_at = None, False, now
        with suppress(RuntimeError):  # the loop was closed just now
            self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        """In the loop's own thread."""
        call, self.call, self._is_alive = self.call, None, True
        if call is not None and call.ticks >= _TICKS:
            self._tell(call)

    def _look(self) -> None:
        frames = sys._current_frames()  # noqa: SLF001 (documented, its name notwithstanding)
        found = _called(frames.get(self._loop_thread), self._asked_at)
        del frames
        call = self.call
        if found is None or call is None or (call.frame, call.code) != (found.frame, found.code):
            self.call = call = found
        if call is not None:
            call.ticks += 1
            if call.ticks == _LONG_TICKS:
                self._tell(call)

    def _tell(self, call: _BlockingCall) -> None:
        if call.code in self._told:
            return
        self._told.add(call.code)
        log.warning(
            "loop_blocked",
            call=f"{call.code.co_qualname} ({call.code.co_filename}:{call.line})",
            role=call.role,
            seconds=round(time.monotonic() - call.since, 1),
            hint=f"all rollouts waited for it; {call.hint}",
        )


_watches: dict[asyncio.AbstractEventLoop, LoopMonitor] = {}


def watch_loop() -> LoopMonitor:
    """The watch of the running loop, to be released; all pools of a loop share one."""
    loop = asyncio.get_running_loop()
    watch = _watches.get(loop)
    if watch is None:
        watch = _watches[loop] = LoopMonitor(loop)
        watch.start()
    watch.users += 1
    return watch


def _called(frame: FrameType | None, since: float) -> _BlockingCall | None:
    """The function of the user's that code of ours called last, if it is one of those that may be slow."""
    callee: FrameType | None = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("asyncrollout."):
            role = _role(module)
            if role is None or callee is None or _is_library(callee.f_code.co_filename):
                return None
            return _BlockingCall(id(callee), callee.f_code, callee.f_lineno, *role, since)
        callee, frame = frame, frame.f_back
    return None


def _role(module: str) -> tuple[str, str] | None:
    while module and module not in _ROLES:
        module = module.rpartition(".")[0]
    return _ROLES.get(module)


def _is_library(file: str) -> bool:
    """Of Python itself: what our own code calls."""
    return file.startswith(_STDLIB) and not file.startswith(_INSTALLED)
