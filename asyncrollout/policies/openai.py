"""Any OpenAI-compatible server, or several of them, at full speed."""

import os
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Literal, Self

import aiohttp
import anyio
import msgspec
import numpy as np

from asyncrollout.errors import ClosedError, ContextError, ProviderError, UsageError
from asyncrollout.policies import codec
from asyncrollout.policies.codec import Mode, ServerKind
from asyncrollout.policies.endpoint import Answer, Endpoint
from asyncrollout.policies.limits import Limit
from asyncrollout.policies.probing import is_healthy, kind_of_server
from asyncrollout.policies.retries import backoff, failure_of, read_retry_after
from asyncrollout.policies.weights import PAUSES, RESUMES, Page, PauseMode, post_page
from asyncrollout.tasks import Background
from asyncrollout.types import Generation, Request, Sampling, Timings

_PATHS: dict[Mode, str] = {"chat": "/chat/completions", "completions": "/completions"}
_ANY = Sampling()
_SESSIONS_KEPT = 100_000
_BETWEEN_CHECKS = 0.25  # seconds
_TOO_MANY = 429


class OpenAIPolicy:
    """Chat or completions of `model` on one server or several: least loaded first, the same one for a whole session.

    Failures that pass are retried, up to `attempts` and within `seconds`, queueing included; one attempt may take
    `attempt_seconds` of work. `concurrency` is how many calls a server gets at a time, found out by itself if
    "adaptive", up to `max_concurrency`. The key is the argument or `$OPENAI_API_KEY`, and is never shown.
    """

    def __init__(
        self,
        base_url: str | Sequence[str],
        model: str,
        *,
        api_key: str | None = None,
        mode: Mode = "chat",
        concurrency: Literal["adaptive"] | int = "adaptive",
        max_concurrency: int = 4096,
        sampling: Sampling = _ANY,
        logprobs: bool = True,
        attempts: int = 6,
        attempt_seconds: float = 600.0,
        seconds: float = 1_800.0,
        kind: ServerKind | None = None,
        version: int = 0,
    ) -> None:
        urls = [base_url] if isinstance(base_url, str) else list(base_url)
        for url in urls or [""]:
            if not url.startswith(("http://", "https://")):
                raise UsageError(f"OpenAIPolicy: base_url={url!r} is no address such as http://localhost:8000/v1")
        if mode not in _PATHS:
            raise UsageError(f"OpenAIPolicy: mode={mode!r} is not one of {', '.join(_PATHS)}")
        if concurrency != "adaptive" and (isinstance(concurrency, bool) or concurrency < 1):
            raise UsageError(f"OpenAIPolicy: concurrency={concurrency!r} is neither 'adaptive' nor a number from 1")
        adaptive = concurrency == "adaptive"
        most = max_concurrency if concurrency == "adaptive" else concurrency
        self.endpoints = [Endpoint(url, Limit(most, adaptive=adaptive)) for url in urls]
        self.version = version
        self._model = model
        self._mode: Mode = mode
        self._sampling = sampling
        self._logprobs = logprobs
        self._attempts = attempts
        self._attempt_seconds = attempt_seconds
        self._seconds = seconds
        self._kind = kind
        self._headers = {"Content-Type": "application/json"}
        key = api_key or os.environ.get("OPENAI_API_KEY")
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._homes: OrderedDict[str, Endpoint] = OrderedDict()
        self._jitter = np.random.default_rng()
        self._probing = anyio.Lock()
        self._under_way: set[anyio.CancelScope] = set()
        self._idle = anyio.Event()
        self._running = anyio.Event()
        self._running.set()
        self._client: aiohttp.ClientSession | None = None
        self._healing = Background()

    @property
    def is_open(self) -> bool:
        return self._client is not None

    def __repr__(self) -> str:
        return f"OpenAIPolicy({[endpoint.url for endpoint in self.endpoints]}, model={self._model!r})"

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=30),
        )
        await self._healing.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        client, self._client = self._client, None
        try:
            await self._healing.close()
        finally:
            if client is not None:
                with anyio.move_on_after(5, shield=True):
                    await client.close()

    async def generate(self, request: Request) -> Generation:
        seconds = min(self._seconds, request.seconds or self._seconds)
        try:
            return await self._generate(request, anyio.current_time() + seconds)
        except TimeoutError:
            raise ProviderError(f"no answer within {seconds:g} s, from {self._named()}") from None

    async def _generate(self, request: Request, deadline: float) -> Generation:
        """A cancel scope costs as much as a tenth of a call, so that a call which need not wait has only one."""
        began = time.monotonic()
        body = await self._encode(request)
        failures = refusals = 0
        failed: Endpoint | None = None
        while True:
            endpoint = await self._enter(request.session, deadline, failed)
            try:
                started, version = time.monotonic(), self.version
                answer, trouble = await self._try(endpoint, body, deadline)
                if answer is not None and answer.status == 200:
                    generation = self._accept(request, answer, endpoint, started)
                    if generation.finish_reason == "abort" and not self._running.is_set():
                        continue  # stopped by the server for new weights
                    timings = _timings(began, started, answer, 1 + failures + refusals)
                    return msgspec.structs.replace(generation, version=version, timings=timings)
                wait = None
                if answer is not None:
                    trouble = f"HTTP {answer.status}: {codec.refusal(answer.content)}"
                    wait = self._refuse(answer, endpoint, started, trouble)
            finally:
                endpoint.leave()
            if not trouble:
                continue  # stopped for new weights, and asked again after
            if answer is not None and answer.status == _TOO_MANY:
                refusals += 1  # a matter of waiting, which `seconds` bounds
            else:
                failures += 1
                failed = endpoint
            if failures == self._attempts:
                raise ProviderError(f"{endpoint.url}: {trouble} (after {failures} attempts)")
            if 0 < failures < len(self.endpoints) and endpoint is not self._home(request.session, failed):
                continue  # each may be asked once without a pause
            with anyio.fail_after(deadline - anyio.current_time()):
                await anyio.sleep(backoff(failures + refusals, self._jitter) if wait is None else wait)

    async def _enter(self, session: str, deadline: float, failed: Endpoint | None) -> Endpoint:
        """A place at the session's endpoint, or rather at another one than that which just failed."""
        if self._running.is_set():
            endpoint = self._home(session, failed)
            if endpoint.enter_now():
                return endpoint
        with anyio.fail_after(deadline - anyio.current_time()):
            while True:
                await self._running.wait()
                endpoint = self._home(session, failed)
                await endpoint.enter()
                is_best = endpoint.up or not any(other.up for other in self.endpoints)
                if is_best and self._running.is_set():
                    return endpoint
                endpoint.leave()  # it was lost, or all calls are held back, since we began to wait

    async def _encode(self, request: Request) -> bytes:
        if self._kind is None:
            async with self._probing:
                self._kind = self._kind or await kind_of_server(self._opened(), self.endpoints[0].root, self._headers)
        if request.sampling == _ANY:
            request = msgspec.structs.replace(request, sampling=self._sampling)
        return codec.encode(request, self._model, self._mode, self._kind, logprobs=self._logprobs)

    async def _try(self, endpoint: Endpoint, body: bytes, deadline: float) -> tuple[Answer | None, str]:
        """An answer, or what went wrong; neither, if it was stopped to be asked again."""
        limit = anyio.current_time() + self._attempt_seconds
        with anyio.CancelScope(deadline=min(limit, deadline)) as scope:
            self._under_way.add(scope)
            try:
                return await endpoint.post(self._opened(), _PATHS[self._mode], body, self._headers), ""
            except (aiohttp.ClientError, OSError) as error:
                self._lose(endpoint)
                return None, f"{type(error).__name__}: {error}"
            finally:
                self._under_way.discard(scope)
                if not self._under_way:
                    self._idle.set()
        if anyio.current_time() >= deadline:
            raise TimeoutError
        if anyio.current_time() < limit:
            return None, ""
        self._lose(endpoint)
        return None, f"no answer within {self._attempt_seconds:g} s"

    async def pause(self, mode: PauseMode = "wait") -> None:
        """Hold new calls back, for new weights: calls under way are awaited, stopped to be made again, or left alone.

        A vLLM or SGLang server is told, too, if it has pages for that.
        """
        if self._running.is_set():
            self._running = anyio.Event()
        if mode == "abort":
            for scope in tuple(self._under_way):
                scope.cancel()
        if mode != "continue":
            while self._under_way:
                if self._idle.is_set():
                    self._idle = anyio.Event()
                await self._idle.wait()
        await self._tell(PAUSES, mode)

    async def resume(self, version: int | None = None) -> None:
        """Let calls through again; what they give is of this version of the weights."""
        self.version = self.version if version is None else version
        await self._tell(RESUMES, None)
        self._running.set()

    async def _tell(self, pages: Mapping[ServerKind, Page], mode: PauseMode | None) -> None:
        page = pages.get(self._kind or "openai")
        if page is not None:
            async with anyio.create_task_group() as telling:
                for endpoint in self.endpoints:
                    telling.start_soon(post_page, self._opened(), endpoint, page, mode, self._headers)

    def _accept(self, request: Request, answer: Answer, endpoint: Endpoint, started: float) -> Generation:
        endpoint.limit.succeeded(started, time.monotonic())
        stops = bool(request.sampling.stop or self._sampling.stop)
        return codec.decode(answer.content, logprobs=self._logprobs, stops=stops)

    def _refuse(self, answer: Answer, endpoint: Endpoint, started: float, said: str) -> float | None:
        """What an answer without a generation means: an error at once, or how long to wait."""
        now = time.monotonic()
        match failure_of(answer.status):
            case "permanent":
                kind = ContextError if codec.is_context_full(said) else ProviderError
                raise kind(f"{endpoint.url}: {said}")
            case "refused":
                wait = read_retry_after(answer.headers.get("Retry-After"))
                endpoint.limit.refused(started, now, wait)
                return 0.0 if wait is not None else None  # the endpoint itself keeps to it
            case "passing":
                endpoint.limit.failed(now)
        return None

    def _home(self, session: str, failed: Endpoint | None = None) -> Endpoint:
        """The endpoint of a session, as long as it is up, so that its cache of prefixes is of use."""
        home = self._homes.get(session) if session else None
        if home is None or not home.up or home is failed:
            up = [endpoint for endpoint in self.endpoints if endpoint.up]
            others = [endpoint for endpoint in up if endpoint is not failed]
            home = min(others or up or self.endpoints, key=lambda endpoint: endpoint.load)
        if session:
            self._homes[session] = home
            self._homes.move_to_end(session)
            if len(self._homes) > _SESSIONS_KEPT:
                self._homes.popitem(last=False)
        return home

    def _lose(self, endpoint: Endpoint) -> None:
        """No answer: others are asked until it is healthy again."""
        if endpoint.up:
            endpoint.up = False
            self._healing.start_soon(self._bring_back, self._opened(), endpoint)

    async def _bring_back(self, client: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        while not await is_healthy(client, endpoint, self._headers):  # noqa: ASYNC110 (a server sends no event)
            await anyio.sleep(_BETWEEN_CHECKS)
        endpoint.up = True

    def _opened(self) -> aiohttp.ClientSession:
        if self._client is None:
            raise ClosedError("this OpenAIPolicy is not open: use it within 'async with'")
        return self._client

    def _named(self) -> str:
        return ", ".join(endpoint.url for endpoint in self.endpoints)


def _timings(began: float, started: float, answer: Answer, attempts: int) -> Timings:
    return Timings(
        queue=started - began, first_byte=answer.first_byte - started, total=time.monotonic() - began, attempts=attempts
    )
