"""The envs of a manager as pipes and processes, for code that was written for these."""

from collections import deque
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any

from asyncrollout.dropin import portal
from asyncrollout.dropin.metarl.async_env import AsyncEnv
from asyncrollout.errors import ClosedError, UsageError
from asyncrollout.pool.handle import EnvHandle
from asyncrollout.pool.pool import EnvPool

_MOST_SENT = 1024


class PipeEnd:
    """One env of a manager like the end of a pipe: `send` does not wait, each `recv` waits for the next answer."""

    def __init__(self, env: AsyncEnv, opened: portal.Opened[Any]) -> None:
        self._env = env
        self._opened = opened  # as long as somebody has a remote, there is somebody at the other end
        self._sent: deque[Future[tuple[str, Any]]] = deque()
        self.closed = False

    def send(self, command: tuple[str, Any]) -> None:
        """("reset", {"task": 3}), ("step", action), ("get_attr", {"attr": name}) or ("seed", {"seed": 7}).

        ("close", None) closes the env after what was sent before, and has no answer.
        """
        if self.closed:
            raise ClosedError(f"{self._env.name}: its pipe was closed: make another manager")
        if len(self._sent) >= _MOST_SENT:
            raise UsageError(f"{self._env.name}: {_MOST_SENT} commands were sent without a recv()")
        if command == ("close", None):
            self.close()
        else:
            self._sent.append(self._opened.start(self._env.obeying(command)))

    def recv(self) -> tuple[str, Any]:
        """("obs", observation), ("transition", (obs, reward, done, info)), ("attr", value) or ("done", None)."""
        if not self._sent:
            if self.closed:
                raise EOFError(f"{self._env.name}: its pipe was closed, and nothing is left to receive")
            raise UsageError(f"{self._env.name}: recv() without a send() before it, which would wait for ever")
        try:
            return portal.awaited(self._sent[0])
        finally:
            if self._sent[0].done():  # else the wait was interrupted, and can be resumed
                self._sent.popleft()

    def poll(self, timeout: float = 0.0) -> bool:
        """Whether an answer is there to receive, or comes within so many seconds."""
        return bool(self._sent) and not wait_for([self._sent[0]], timeout).not_done

    def close(self) -> None:
        """Close the env of this pipe; what was sent before is still answered. A second time does nothing."""
        if not self.closed:
            self.closed = True
            self._opened.start(self._env.close)


class EnvWorker:
    """The process in which an env lives; several envs may share one, and a dead one is replaced."""

    def __init__(self, worker_id: int, handle: EnvHandle, pool: EnvPool, opened: portal.Opened[Any]) -> None:
        self.worker_id = worker_id
        self.name = handle.name
        self._handle = handle
        self._pool = pool
        self._opened = opened

    @property
    def pid(self) -> int | None:
        """None when there is no process: it died and is being replaced, or the manager was closed."""
        try:
            return self._opened.run(self._find_pid)
        except ClosedError:
            return None

    def is_alive(self) -> bool:
        return self.pid is not None

    async def _find_pid(self) -> int | None:
        rank = self._handle.worker
        return next((one.pid for one in self._pool.stats().workers if one.rank == rank), None)
