"""Limits on a server's connections: how many at a time, and how long without a request."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from asyncrollout.errors import UsageError
from asyncrollout.logs import get_logger

log = get_logger(__name__)

KEEP_SECONDS = 300.0  # between two requests of a connection
FIRST_SECONDS = 20.0  # for the headers of its first one


class Connections:
    """Accepts connections for a runner that is set up. If there are too many, the longest idle one is closed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: dict[web.RequestHandler, float] = {}  # since when; the oldest comes first
        self._asked: set[web.RequestHandler] = set()
        self._server: web.Server | None = None
        self._listening: asyncio.Server | None = None

    async def listen(self, runner: web.AppRunner, host: str, port: int) -> int:
        """Start accepting connections; returns the port."""
        self._server = runner.server
        try:
            self._listening = await asyncio.get_running_loop().create_server(self._accept, host, port, backlog=1024)
        except (OSError, OverflowError) as error:
            raise UsageError(f"cannot listen on {host}:{port}: {error}") from error
        return int(self._listening.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Accept no more connections."""
        if self._listening is not None:
            self._listening.close()

    @property
    def count(self) -> int:
        return 0 if self._server is None else len(self._server.connections)

    @contextmanager
    def at_work(self, request: web.Request) -> Iterator[None]:
        """While a request is in flight, its connection is not idle."""
        connection = request.protocol
        self._idle.pop(connection, None)
        self._asked.add(connection)
        try:
            yield
        finally:
            self._idle[connection] = time.monotonic()

    def close_silent(self, now: float) -> int:
        """Close connections that, at this time of the monotonic clock, have sent no request for too long; how many."""
        self._forget_lost()
        silent = [one for one, since in self._idle.items() if now - since > self._patience(one)]
        for connection in silent:
            self._close(connection)
        return len(silent)

    def _patience(self, connection: web.RequestHandler) -> float:
        return KEEP_SECONDS if connection in self._asked else FIRST_SECONDS

    def _accept(self) -> asyncio.Protocol:
        assert self._server is not None
        if self.count >= self._most:
            self._forget_lost()
            idle = sorted(self._idle, key=self._asked.__contains__)  # those that never asked for anything first
            if not idle:
                return _Refusing()
            self._close(idle[0])
        connection = self._server()
        self._idle[connection] = time.monotonic()
        return connection

    def _close(self, connection: web.RequestHandler) -> None:
        self._idle.pop(connection, None)
        self._asked.discard(connection)
        connection.force_close()

    def _forget_lost(self) -> None:
        assert self._server is not None
        live, now = {*self._server.connections}, time.monotonic()
        is_new = 1.0  # seconds, in which one that was accepted may not be among the server's own yet
        self._idle = {one: since for one, since in self._idle.items() if one in live or now - since < is_new}
        self._asked &= live


class _Malformed(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            log.info("request_malformed", error=type(error).__name__)
        else:
            log.warning("connection_failed", error=f"{type(error).__name__}: {error}")


def http_logger() -> logging.Logger:
    """For aiohttp, whose own logger prints a traceback with the bytes, such as a token, of malformed requests."""
    logger = logging.Logger("asyncrollout.service.http", logging.WARNING)  # noqa: LOG001 (not part of the logger tree)
    logger.addHandler(_Malformed())
    return logger


class _Refusing(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
