"""Environments for other processes and machines: an HTTP server with a pool behind it."""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp
import anyio
import msgspec
from aiohttp import web

from asyncrollout import validation
from asyncrollout.concurrency import Background, run_to_end
from asyncrollout.errors import PoolError, UsageError
from asyncrollout.logs import get_logger
from asyncrollout.pool.pool import EnvPool
from asyncrollout.redaction import hide, known_secrets
from asyncrollout.registry import env_names
from asyncrollout.service.access import AccessToken, foreign_host, host_of, is_this_machine, why_refused
from asyncrollout.service.allowed_envs import Admission
from asyncrollout.service.batches import EnvService
from asyncrollout.service.bodies import RefusedError, answer
from asyncrollout.service.channel import ServerChannel
from asyncrollout.service.connection_limits import KEEP_SECONDS, Connections, http_logger
from asyncrollout.service.in_flight import InFlightCounter
from asyncrollout.service.messages import CLIENT_HEADER, MOST_PARTS, PATH, without_folders
from asyncrollout.service.routes import Routes
from asyncrollout.service.sessions import Sessions

log = get_logger(__name__)

_LOOK_EVERY = 5.0  # seconds, at most, between two checks for idle envs
_AWAY_SECONDS = 60.0  # for which the envs of a pool that lost its connection are kept
_LEAVE_SECONDS = 1.0
_MESSAGES_OF_A_LOG = 16  # the longest replay log, in messages of the largest size
_SPARE_CONNECTIONS = 64  # besides those of all requests and remote pools
_HEALTH = "/health"


class Caps(msgspec.Struct, frozen=True):
    """The limits of a server: open envs, requests at a time, bytes of a body, seconds that an env may be unused."""

    envs: int = 256
    requests: int = 256
    body_bytes: int = 64 << 20
    idle_seconds: float = 3600.0


class EnvServer:
    """Serves envs of an open pool; at its end, calls in flight have `grace` seconds, then envs are closed.

    Without `tokens`, it listens to this machine only, and answers only requests whose `Host` is this machine, `host` or
    one of `allow_hosts`. `port=0` chooses a free port; `url` has it.
    """

    def __init__(
        self,
        pool: EnvPool,
        host: str = "127.0.0.1",
        port: int = 8200,
        *,
        tokens: Sequence[AccessToken] = (),
        allow_hosts: Iterable[str] = (),
        admission: Admission | None = None,
        caps: Caps = Caps(),  # noqa: B008 (frozen)
        grace: float = 10.0,
    ) -> None:
        if not tokens and not is_this_machine(host):
            raise UsageError(
                f"host={host!r} can be reached from other machines: give a token (--token, --token-file or "
                "$ASYNCROLLOUT_TOKEN), or listen on 127.0.0.1"
            )
        validation.check_seconds("grace", grace)
        for name, value in msgspec.structs.asdict(caps).items():
            validation.check_seconds(name, value) if name == "idle_seconds" else validation.check_int(name, value, 1)
        self._host, self._port = host, port
        self._tokens = tokens
        self._allowed_hosts = {host_of(one) for one in (host, *allow_hosts)}
        self._admission = admission or Admission()
        self._caps = caps
        self._grace = grace
        self._pool = pool
        self._service = EnvService(max_workers=caps.envs, pool=pool)  # the pool has its own limit
        longest_log = _MESSAGES_OF_A_LOG * caps.body_bytes
        self._sessions = Sessions(
            pool,
            self._admission,
            lambda: self._check_room(0),
            longest_log,
            at_once=caps.requests,
            most_waiting=4 * caps.envs + MOST_PARTS,
        )
        self._connections = Connections(2 * caps.requests + _SPARE_CONNECTIONS)
        self._channels: dict[ServerChannel, web.Request] = {}
        self._background = Background()
        self._parts = AsyncExitStack()
        self._making = 0
        self._requests = InFlightCounter()
        self._served = 0
        self._finishing: anyio.CancelScope | None = None
        self._hurried = False
        self._stopping = False
        self._began = 0.0

    @property
    def url(self) -> str:
        shown = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{shown}:{self._port}"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as parts:
            await parts.enter_async_context(self._service)
            await parts.enter_async_context(self._sessions)
            await parts.enter_async_context(self._background)
            self._background.start_soon(self._expire)
            runner = await self._listen()
            parts.push_async_callback(run_to_end, self._stop, runner)
            self._parts = parts.pop_all()
        self._began = time.monotonic()
        log.info("serving", url=self.url, workers=len(self._pool.stats().workers))
        return self

    async def _listen(self) -> web.AppRunner:
        app = web.Application(client_max_size=self._caps.body_bytes, middlewares=[self._guarded])
        routes = Routes(
            self._service,
            self._admission,
            self._reserve,
            self._shown,
            largest_body=self._caps.body_bytes,
            most_ids=4 * self._caps.envs + MOST_PARTS,
        )
        app.add_routes([web.get(_HEALTH, self._health), web.get("/stats", self._stats), web.get(PATH, self._channel)])
        app.add_routes(routes.table())
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=http_logger(),
            handle_signals=False,
            shutdown_timeout=_LEAVE_SECONDS,
            keepalive_timeout=KEEP_SECONDS,
        )
        await runner.setup()
        try:
            self._port = await self._connections.listen(runner, self._host, self._port)
        except UsageError:
            await runner.cleanup()
            raise
        return runner

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._parts.__aexit__(kind, error, trace)

    async def _stop(self, runner: web.AppRunner) -> None:
        """Accept nothing new, let calls in flight finish, and send their answers. Each part is bounded."""
        self._stopping = True
        log.info("stopping", calls=self._sessions.under_way.count, requests=self._requests.count)
        for channel in self._channels:
            channel.stop()
        with anyio.move_on_after(0 if self._hurried else self._grace) as self._finishing:
            await self._sessions.under_way.end()
            await self._requests.end()
        with anyio.move_on_after(_LEAVE_SECONDS):
            async with anyio.create_task_group() as tasks:
                for channel in self._channels:
                    tasks.start_soon(channel.close, aiohttp.WSCloseCode.GOING_AWAY, "the server is stopping")
        self._connections.stop()
        await runner.cleanup()

    def hurry(self) -> None:
        """Stop waiting for calls in flight."""
        self._hurried = True
        if self._finishing is not None:
            self._finishing.cancel()

    async def _expire(self) -> None:
        while True:
            await anyio.sleep(min(_LOOK_EVERY, self._caps.idle_seconds))
            await self.close_idle(time.monotonic())
            await self.close_expired()
            if closed := self._connections.close_silent(time.monotonic()):
                log.info("silent_connections_closed", count=closed)

    async def close_idle(self, now: float) -> None:
        """Close the envs that, at this time of the monotonic clock, have not been used for too long."""
        since = now - self._caps.idle_seconds
        closed = len(await self._service.close_idle(since))
        closed += await self._sessions.close_idle(since, now - min(_AWAY_SECONDS, self._caps.idle_seconds))
        if closed:
            log.info("idle_envs_closed", count=closed, open=self._open)

    async def close_expired(self) -> None:
        """Close the connections of remote pools whose token has expired since they connected."""
        with anyio.move_on_after(_LEAVE_SECONDS):
            async with anyio.create_task_group() as tasks:
                for channel, request in self._channels.items():
                    reason = self._refused(request)
                    if reason is not None:
                        log.info("pool_refused", error=reason)
                        tasks.start_soon(channel.close, aiohttp.WSCloseCode.POLICY_VIOLATION, reason)

    @property
    def _open(self) -> int:
        return len(self._service.environments) + self._sessions.count + self._making

    def _check_room(self, more: int) -> None:
        if self._open + more > self._caps.envs:
            raise PoolError(
                f"this server allows {self._caps.envs} open environments, and has {self._open}: close some, or "
                "start it with a larger --max-envs"
            )

    @contextmanager
    def _reserve(self, count: int) -> Iterator[None]:
        try:
            self._check_room(count)
        except PoolError as error:
            raise RefusedError(429, str(error)) from error
        self._making += count
        try:
            yield
        finally:
            self._making -= count

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Check access and limits; every error becomes a status and a message."""
        with self._connections.at_work(request):
            return await self._answered(request, handler)

    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            self._check_access(request)
            if self._stopping:
                raise RefusedError(503, "the server is stopping", **{"Retry-After": "5"})
            if request.path == PATH:  # long-lived, and counted separately
                return await handler(request)
            if self._requests.count >= self._caps.requests:
                text = f"{self._requests.count} requests are in flight, the most that this server accepts at a time"
                raise RefusedError(503, text, **{"Retry-After": "1"})
            self._served += 1
            with self._requests:
                return await handler(request)
        except RefusedError as refused:
            return self._refusal(request, refused.status, self._shown(str(refused)), refused.headers)
        except web.HTTPException as known:  # no such route or method
            return self._refusal(request, known.status, f"{request.method} {request.path[:200]}: {known.reason}")
        except UsageError as error:
            return self._refusal(request, 400, self._shown(str(error)))
        except Exception:
            log.exception("request_failed", path=self._hidden(request.path[:200]))
            return self._refusal(request, 500, "the server has a bug: its log has the traceback")

    def _refusal(self, request: web.Request, status: int, text: str, headers: Any = None) -> web.Response:
        shown, path = self._hidden(text), self._hidden(request.path[:200])
        log.info("request_refused", method=request.method, path=path, status=status, error=shown)
        return answer(request, {"error": shown}, status=status, headers=headers)

    def _shown(self, text: str) -> str:
        """An error's text without secrets, and without folders of this machine."""
        return without_folders(self._hidden(text))

    def _hidden(self, text: str) -> str:
        return hide(text, [*(token.secret.decode() for token in self._tokens), *known_secrets()])

    def _check_access(self, request: web.Request) -> None:
        from_page = request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
        if "Origin" in request.headers or from_page:  # a page open in a browser here: our own clients never send it
            raise RefusedError(403, "web pages may not use this server")
        foreign = foreign_host(request.headers.getall("Host", []), self._allowed_hosts)
        if foreign is not None and not self._tokens:  # any site can point its name at this machine
            raise RefusedError(403, f"this is not the server of {foreign!r:.100}: allow it with --allow-host")
        reason = self._refused(request) if request.path != _HEALTH else None
        if reason is not None:
            raise RefusedError(401, reason, **{"WWW-Authenticate": "Bearer"})

    def _refused(self, request: web.Request) -> str | None:
        return why_refused(self._tokens, request.headers.get("Authorization")) if self._tokens else None

    async def _health(self, request: web.Request) -> web.Response:
        """Whether the server runs; for those with access, also what it offers."""
        status: dict[str, Any] = {"status": "ok", "message": "Environment server is running"}
        if self._refused(request) is None:
            status |= {"registered_envs": env_names(), "active_environments": self._open}
        return answer(request, status)

    async def _stats(self, request: web.Request) -> web.Response:
        status = {
            "seconds": time.monotonic() - self._began,
            "environments": self._open,
            "requests": {"under_way": self._requests.count, "served": self._served},
            "pools": len(self._sessions.clients),
            "calls": {"under_way": self._sessions.under_way.count, "begun": self._sessions.calls},
            "caps": self._caps,
            "workers": self._pool.stats(),
        }
        return answer(request, status)

    async def _channel(self, request: web.Request) -> web.StreamResponse:
        is_back = self._sessions.is_connected(request.headers.get(CLIENT_HEADER, ""))  # beside its old connection
        if len(self._channels) >= self._caps.requests and not is_back:
            raise RefusedError(
                503, f"{len(self._channels)} remote pools are connected, the most that this server accepts"
            )
        channel = ServerChannel(self._sessions, self._caps.body_bytes)
        self._channels[channel] = request
        try:
            return await channel.run(request)
        finally:
            del self._channels[channel]
