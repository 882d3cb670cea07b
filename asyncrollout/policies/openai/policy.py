"""Any OpenAI-compatible server, or several of them, at full speed."""

import asyncio
import math
import resource
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self, get_args

import aiohttp
import anyio
import msgspec
import numpy as np

from asyncrollout import validation
from asyncrollout.concurrency import run_to_end, task_group
from asyncrollout.errors import ClosedError, ContextError, ProviderError, UsageError
from asyncrollout.logs import get_logger
from asyncrollout.policies.gate import Gate, check_rises, is_stopped, refund
from asyncrollout.policies.holding import charged, held_back
from asyncrollout.policies.openai import codec
from asyncrollout.policies.openai.advice import Advisor
from asyncrollout.policies.openai.bodies import LARGE, in_thread
from asyncrollout.policies.openai.call import SERVERS_OWN, ApiKey, HttpCall
from asyncrollout.policies.openai.codec import STREAMED, Mode, ServerKind
from asyncrollout.policies.openai.concurrency import ConcurrencyLimit, work_of
from asyncrollout.policies.openai.context import read_overflow
from asyncrollout.policies.openai.endpoint import Endpoint, HttpResponse
from asyncrollout.policies.openai.first_contact import FirstContact, SilentError, cause_of
from asyncrollout.policies.openai.health import Health, OnBack
from asyncrollout.policies.openai.probing import kind_of_server
from asyncrollout.policies.openai.queue import QueuedRequest, RequestQueue
from asyncrollout.policies.openai.responses import AbortedReplyError, clipped, refusal
from asyncrollout.policies.openai.retries import backoff, failure_of, read_retry_after, spread
from asyncrollout.policies.openai.routing import Router
from asyncrollout.policies.openai.weights import PAUSES, RESUMES, WeightEndpoint, post_page
from asyncrollout.types import Generation, PauseMode, Request, Sampling, Timings

log = get_logger(__name__)

_PATHS: dict[Mode, str] = {"chat": "/chat/completions", "completions": "/completions"}
_REJECTED = frozenset({401, 403, 404})  # by one server perhaps, and not by another
_FDS_SPARE = 64
_CLOSE_SECONDS = 5.0


class OpenAIPolicy:
    """Chat or completions of `model` on one server or several: least loaded first, the same one for a whole session.

    Failures that pass are retried, up to `attempts` calls in all and within `seconds` (or those of the request),
    queueing included; one attempt may take `attempt_seconds` of work. Until a server has answered for the first time,
    it is waited for `wait_for_server` seconds. `concurrency` is how many calls each server gets at a time, found out
    by itself if "adaptive", up to `max_concurrency`. `sampling` holds where a request says nothing. The key is the
    argument or the environment variable `api_key_env`, and is never shown. `on_back(endpoint)` pushes the present
    weights to a server that was lost and answers again; once weights were updated, it is awaited before that server
    gets calls.
    """

    def __init__(
        self,
        base_url: str | Sequence[str],
        model: str,
        *,
        api_key: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        mode: Mode = "chat",
        concurrency: Literal["adaptive"] | int = "adaptive",
        max_concurrency: int = 4096,
        sampling: Sampling = SERVERS_OWN,
        logprobs: bool = True,
        attempts: int = 8,
        attempt_seconds: float = 600.0,
        seconds: float = 1_800.0,
        wait_for_server: float = 10.0,
        kind: ServerKind | None = None,
        version: int = 0,
        on_back: OnBack | None = None,
    ) -> None:
        if on_back is not None and not callable(on_back):
            raise UsageError(f"OpenAIPolicy: on_back={on_back!r:.100} is not an async function of an endpoint")
        urls = [base_url] if isinstance(base_url, str) else list(base_url)
        for url in urls or [""]:
            if not url.startswith(("http://", "https://")):
                raise UsageError(f"OpenAIPolicy: base_url={url!r} is not an address such as http://localhost:8000/v1")
        validation.check_choice("OpenAIPolicy: mode", mode, _PATHS)
        if kind is not None:
            validation.check_choice("OpenAIPolicy: kind", kind, get_args(ServerKind))
        adaptive = concurrency == "adaptive"
        numbers = {"attempts": attempts, "max_concurrency": max_concurrency}
        for name, number in {**numbers, **({} if adaptive else {"concurrency": concurrency})}.items():
            validation.check_int(f"OpenAIPolicy: {name}", number, 1)
        validation.check_seconds("OpenAIPolicy: attempt_seconds", attempt_seconds)
        validation.check_seconds("OpenAIPolicy: seconds", seconds)
        validation.check_seconds("OpenAIPolicy: wait_for_server", wait_for_server)
        most = max_concurrency if concurrency == "adaptive" else concurrency
        self.endpoints = [Endpoint(url, ConcurrencyLimit(most, adaptive=adaptive), kind) for url in urls]
        self.version = version
        self.updates = 0
        self._most = most
        self._model = model
        self._mode: Mode = mode
        self._sampling = sampling
        self._logprobs = logprobs
        self._attempts = attempts
        self._attempt_seconds = attempt_seconds
        self._seconds = seconds
        self._key = ApiKey(api_key, api_key_env)
        self._contact = FirstContact(self.endpoints, self._key, wait_for_server)
        self._advisor = Advisor(model, self._key)
        self._router = Router(self.endpoints)
        self._line = RequestQueue(self.endpoints, self._router)
        self._numbers = count()
        self._jitter = np.random.default_rng()
        self._gate = Gate(stops_server=True)
        self._health = Health(self.endpoints, self._gate, self._key.headers, on_back, self._line.update_all)
        self._waits: set[anyio.CancelScope] = set()
        self._client: aiohttp.ClientSession | None = None
        self._was_open = False
        self._has_warned = False

    @property
    def is_open(self) -> bool:
        return self._client is not None

    def __repr__(self) -> str:
        return f"OpenAIPolicy({[endpoint.name for endpoint in self.endpoints]}, model={self._model!r})"

    async def __aenter__(self) -> Self:
        if self._was_open:
            raise UsageError("this OpenAIPolicy was opened before: make another one")
        self._check_descriptors()
        self._was_open = True
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=30),
            auto_decompress=False,
        )
        await self._health.open(self._client)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        client, self._client = self._client, None
        self._gate.stop_all()
        self._line.close()
        for scope in tuple(self._waits):
            scope.cancel()
        try:
            await self._health.close(error)
        finally:
            if client is not None:
                await run_to_end(_close, client)

    async def generate(self, request: Request) -> Generation:
        seconds = self._seconds if request.seconds is None else request.seconds
        call = HttpCall(request, _now() + seconds, self._gate.held, next(self._numbers))
        try:
            return await self._generate(call)
        except TimeoutError:
            last = call.trouble or "; ".join(f"{one.name}: {one.trouble}" for one in self.endpoints if one.trouble)
            trouble = f" (the last trouble: {last})" if last else ""
            said = f"no answer within {seconds:g} s, from {self._named()}{trouble}"
            raise ProviderError(self._key.hidden(said)) from None
        except ProviderError as error:
            said = str(error)
            if call.refused_by is not None:
                said += await self._advisor.advise(self._client, *call.refused_by)
            raise type(error)(self._key.hidden(said)) from error.__cause__

    async def _generate(self, call: HttpCall) -> Generation:
        """A cancel scope costs as much as a tenth of a call, so that a call which need not wait has only one."""
        began = time.monotonic()
        while True:
            self._opened()
            endpoint = await self._enter(call)
            try:
                started, version = time.monotonic(), self.version
                call.began = charged()
                answer = await self._try(endpoint, call)
                if answer is None:
                    pass  # the call knows why
                elif answer.status != 200:
                    self._refuse(call, answer, endpoint, started)
                elif (generation := await self._accept(call, answer, endpoint, started)) is not None:
                    timings = _timings(began, started, answer, call.tries)
                    return msgspec.structs.replace(generation, version=version, timings=timings)
            finally:
                self._line.leave(endpoint)
            if call.is_again:
                call.is_again = False
                continue  # stopped for new weights, met a connection that was gone, or waits with all others
            if call.failures >= self._attempts:
                raise ProviderError(
                    f"{endpoint.name}: {call.trouble} (after {call.failures} attempts){call.rejected()}"
                )
            others = endpoint is not self._router.find(call.request.session, call.failed, call.rejections)
            if 0 < call.failures < len(self.endpoints) and others:
                continue  # each may be asked once without a pause
            with held_back():
                if not self._contact.is_made():
                    await self._within(call, self._contact.wait, self._opened(), call.trouble)
                await self._rest(call, backoff(call.failures, self._jitter))

    async def _rest(self, call: HttpCall, seconds: float) -> None:
        await self._within(call, anyio.sleep_until, _now() + seconds)

    async def _within(self, call: HttpCall, wait: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """A wait before the deadline, which is begun again if the deadline was put off meanwhile."""
        while True:
            try:
                with self._bounded(call.deadline):
                    return await wait(*arguments)
            except TimeoutError:
                if _now() >= call.deadline:  # else it was held back meanwhile
                    raise

    async def _enter(self, call: HttpCall) -> Endpoint:
        """A place at the session's endpoint, or rather at another one than that which just failed."""
        if self._gate.is_open:
            endpoint = self._router.find(call.request.session, call.failed, call.rejections)
            if endpoint is not None and self._line.enter_now(endpoint):
                return endpoint
        while True:
            try:
                if not self._gate.is_open:
                    with self._bounded(math.inf), held_back():
                        await self._gate.wait()
                with self._bounded(call.deadline):
                    if (place := await self._wait_for_place(call)) is not None:
                        return place
            except TimeoutError:
                if _now() >= call.deadline:  # else it was held back meanwhile
                    raise

    async def _wait_for_place(self, call: HttpCall) -> Endpoint | None:
        session, allowed = call.request.session, [one for one in self.endpoints if one not in call.rejections]
        found = self._router.find(session, call.failed, call.rejections)
        if found is None:
            await self._health.usable(allowed)
            return None
        place = await self._line.enter(QueuedRequest(call.number, session, call.failed, call.rejections), found)
        is_best = place.up or (place.has_weights and not any(other.up for other in allowed))
        if is_best and self._gate.is_open and place.wait_before(time.monotonic()) <= 0:
            return place
        self._line.leave(place)  # it was lost or has refused others, or all calls are held back, since we began to wait
        return None

    async def _try(self, endpoint: Endpoint, call: HttpCall) -> HttpResponse | None:
        """An answer; else the call knows what went wrong."""
        limit, deadline = _now() + self._attempt_seconds, call.deadline
        try:
            async with asyncio.timeout_at(min(limit, deadline)) as timer:
                with self._gate.passing(timer):
                    return await self._ask(endpoint, call)
        except TimeoutError:  # both are put off alike where it stands still: no clock can tell which it was
            if is_stopped(timer):
                call.is_again = True
                refund(call.began)
                return None
            if deadline <= limit:
                raise
            call.fails(endpoint, f"no answer within {self._attempt_seconds:g} s")
            self._health.lose(endpoint)
        return None

    async def _ask(self, endpoint: Endpoint, call: HttpCall) -> HttpResponse | None:
        try:
            refused = await self._probe(endpoint) if endpoint.kind is None else None
            kind = endpoint.kind
            if kind is not None:
                body = call.body(
                    kind, self._model, self._mode, self._sampling, logprobs=self._logprobs, context=endpoint.context
                )
                headers = self._key.closing if kind in STREAMED else self._key.headers
                post = endpoint.post if endpoint.has_answered else self._contact.first_post(endpoint)
                return await post(self._opened(), _PATHS[self._mode], body, headers)
            assert refused is not None
            if refused.status < 500:
                return refused
            call.fails(endpoint, f"HTTP {refused.status}: {clipped(refusal(refused.content))}")
            if (wait := read_retry_after(refused.headers.get("Retry-After"))) is not None:
                endpoint.limit.pause(time.monotonic() + wait)
        except aiohttp.ServerDisconnectedError as error:
            if not call.had_stale_connection:  # most likely one that was kept, and closed on the other side
                call.had_stale_connection = call.is_again = True
                return None
            call.fails(endpoint, f"{type(error).__name__}: {error}")
        except (aiohttp.ClientError, OSError, SilentError) as error:
            call.fails(endpoint, f"it does not answer: {cause_of(error, endpoint)}")
        self._contact.note(endpoint, call.trouble)
        self._health.lose(endpoint)
        return None

    async def _probe(self, endpoint: Endpoint) -> HttpResponse | None:
        """Find out the server's kind; an answer if it refuses to be asked."""
        asked = time.monotonic()
        async with endpoint.probing:
            if endpoint.kind is not None:
                return None
            silent_at, cause = endpoint.silence
            if silent_at > asked:  # another call found out meanwhile, and this may have taken it seconds
                raise SilentError(cause)
            self._contact.begin()
            try:
                found = await kind_of_server(self._opened(), endpoint.root, self._key)
            except (aiohttp.ClientError, OSError) as error:
                endpoint.silence = time.monotonic(), cause_of(error, endpoint)
                raise
            if isinstance(found, HttpResponse):
                endpoint.has_answered |= found.status < 500
                return found
            endpoint.kind, endpoint.has_answered = found, True
        return None

    async def pause(self, mode: PauseMode = "wait") -> None:
        """Hold new calls back, for new weights: calls under way are awaited, stopped to be made again, or left alone.

        A vLLM or SGLang server is told, too, if it has pages for that. If this fails, nothing is held back.
        """
        await self._gate.shut(mode)
        told = False
        try:
            if not self._gate.is_open:  # else resumed meanwhile
                await self._tell(PAUSES, mode)
                await self._health.begin_update()
            told = True
        finally:
            if not told:
                self._health.cancel_update()
                self._gate.open()

    async def resume(self, version: int | None = None) -> None:
        """Let calls through again; what they give is of this version of the weights."""
        if version is not None:
            check_rises(version, self.version)
        try:
            if version is not None:
                if self._gate.is_open:
                    await self._health.begin_update()
                self.version = version
                self.updates += 1
                await self._health.end_update()
            else:
                self._health.cancel_update()
            await self._tell(RESUMES, None)
        finally:
            self._gate.open()

    async def start_at(self, version: int) -> None:
        """Weights that the trainer loads by itself, as when a run is resumed: servers have them from now on."""
        self.version = version
        await self._health.start()

    def held_seconds(self) -> float:
        """How long calls were held back, all in all."""
        return self._gate.held.seconds()

    def last_held(self) -> float:
        """Until when calls were held back, on the monotonic clock: now while they are."""
        return self._gate.held.last()

    async def _tell(self, pages: Mapping[ServerKind, WeightEndpoint], mode: PauseMode | None) -> None:
        async with task_group() as telling:
            for endpoint in self.endpoints:
                telling.start_soon(self._tell_one, endpoint, pages, mode)

    async def _tell_one(
        self, endpoint: Endpoint, pages: Mapping[ServerKind, WeightEndpoint], mode: PauseMode | None
    ) -> None:
        if endpoint.kind is None and endpoint.up:
            with suppress(aiohttp.ClientError, OSError, SilentError):
                await self._probe(endpoint)
        page = None if endpoint.kind is None else pages.get(endpoint.kind)
        if page is not None:
            await post_page(self._opened(), endpoint, page, mode, self._key.headers)

    async def _accept(
        self, call: HttpCall, answer: HttpResponse, endpoint: Endpoint, started: float
    ) -> Generation | None:
        """What was generated; else the call knows what went wrong."""
        request = call.request
        try:
            if len(answer.content) < LARGE:
                generation = self._decode(request, answer, endpoint)
            else:
                with self._bounded(call.deadline):
                    generation = await in_thread(self._decode, request, answer, endpoint)
        except AbortedReplyError as error:
            if self._gate.is_open:
                endpoint.limit.failed(time.monotonic())
                call.fails(endpoint, str(error))
            else:  # stopped by the server for new weights
                call.is_again = True
                refund(call.began)
            return None
        self._health.is_well(endpoint)
        for wrong, said in call.rejections.items():
            self._health.take_out(wrong, said)
        if request.session:
            self._router.succeeded(request.session, endpoint)
        if endpoint.kind == "vllm" and not self._has_warned:
            self._warn_of_logprobs(endpoint, request.sampling)
        work = work_of(generation.usage.prompt, generation.usage.completion)
        endpoint.limit.succeeded(started, time.monotonic(), work=work, in_flight=endpoint.in_flight)
        return generation

    def _decode(self, request: Request, answer: HttpResponse, endpoint: Endpoint) -> Generation:
        stops = codec.stops_of(request.sampling, self._sampling)
        try:
            return codec.decode(answer.content, logprobs=self._logprobs, stops=stops, kind=endpoint.kind)
        except ProviderError:  # it shows a part of the answer: again, with the key hidden before anything is cut off
            codec.decode(self._key.hidden_in(answer.content), logprobs=self._logprobs, stops=stops, kind=endpoint.kind)
            raise

    def _refuse(self, call: HttpCall, answer: HttpResponse, endpoint: Endpoint, started: float) -> None:
        """What an answer without a generation means: an error at once, or another try."""
        now = time.monotonic()
        told = refusal(self._key.hidden_in(answer.content))
        said = f"HTTP {answer.status}: {clipped(told)}"
        endpoint.trouble = said
        wait = read_retry_after(answer.headers.get("Retry-After"))
        overflow = None if answer.status in (401, 403, 429) else read_overflow(told)
        match failure_of(answer.status):
            case "passing" if answer.status != 500 or overflow is None:  # llama.cpp has said so with a 500
                endpoint.limit.failed(now)
                if wait is not None:
                    endpoint.limit.pause(now + wait)
                endpoint.is_in_trouble(now)
                call.fails(endpoint, said)
            case "permanent" if answer.status in _REJECTED and overflow is None:
                endpoint.is_in_trouble(now)
                call.is_rejected(endpoint, said)
                others = [one for one in self.endpoints if one not in call.rejections]
                if all(one.is_out(now) for one in others):  # which may be for minutes
                    call.refused_by = endpoint, answer
                    out = {one: f"{one.out} (taken out)" for one in others}
                    raise ProviderError("; ".join(f"{one.name}: {why}" for one, why in (call.rejections | out).items()))
            case "permanent" | "passing":
                if overflow is None:
                    call.refused_by = endpoint, answer
                    raise ProviderError(f"{endpoint.name}: {said}")
                endpoint.context = overflow.context or endpoint.context
                if call.fits(overflow):
                    return
                if overflow.is_of_reply and call.most is not None:
                    raise ProviderError(f"{endpoint.name}: max_tokens={call.most} does not fit: {said}")
                raise ContextError(f"{endpoint.name}: {said}")
            case "refused":
                if endpoint.limit.refused(started, now, wait, jitter=spread(self._jitter)):
                    call.number = next(self._numbers)  # another one tries next, lest one call block the whole line
                self._router.refused(call.request.session, endpoint)
                call.is_refused(said)

    def _warn_of_logprobs(self, endpoint: Endpoint, sampling: Sampling) -> None:
        temperature = self._sampling.temperature if sampling.temperature is None else sampling.temperature
        if self._logprobs and temperature not in (None, 0, 1):
            self._has_warned = True
            log.warning(
                "logprobs_before_temperature",
                endpoint=endpoint.name,
                temperature=temperature,
                hint="vLLM gives logprobs of what was sampled from if started with --logprobs-mode processed_logprobs",
            )

    @contextmanager
    def _bounded(self, deadline: float) -> Iterator[None]:
        """A wait until the deadline at most, which ends when the policy is closed."""
        with anyio.fail_after(deadline - _now()) as scope:
            self._waits.add(scope)
            try:
                yield
            finally:
                self._waits.discard(scope)
        if scope.cancelled_caught:
            raise self._closed()

    def _opened(self) -> aiohttp.ClientSession:
        if self._client is None:
            raise self._closed()
        return self._client

    def _closed(self) -> ClosedError:
        if self._was_open:
            return ClosedError("this OpenAIPolicy was closed")
        return ClosedError("this OpenAIPolicy is not open: use it within 'async with'")

    def _named(self) -> str:
        return ", ".join(endpoint.name for endpoint in self.endpoints)

    def _check_descriptors(self) -> None:
        """Too few file descriptors are told before the start, not in the middle of a run."""
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = len(list(Path("/dev/fd").iterdir()))
        spare = allowed - used - _FDS_SPARE
        needed = self._most * len(self.endpoints)
        if allowed == resource.RLIM_INFINITY or needed <= spare:
            return
        if not all(endpoint.limit.bound(spare // len(self.endpoints)) for endpoint in self.endpoints):
            raise UsageError(
                f"OpenAIPolicy: {needed} calls at a time need as many file descriptors, {used} are open, and only "
                f"{allowed} are allowed: raise the limit with `ulimit -n {needed + used + _FDS_SPARE}`, or lower "
                "concurrency"
            )


def _now() -> float:
    """On the clock of cancel scopes; `anyio.current_time` finds out each time what loop it is, which costs as much as
    a tenth of a call."""
    return asyncio.get_running_loop().time()


def _timings(began: float, started: float, answer: HttpResponse, attempts: int) -> Timings:
    return Timings(
        queue=started - began, first_byte=answer.first_byte - started, total=time.monotonic() - began, attempts=attempts
    )


async def _close(client: aiohttp.ClientSession) -> None:
    with anyio.move_on_after(_CLOSE_SECONDS):
        await client.close()
