"""One attempt of a call at one server: post it, and judge what comes back."""

import asyncio
import time
from collections.abc import Sequence

import aiohttp
import msgspec
import numpy as np

from asyncrollout.errors import ContextError, ProviderError
from asyncrollout.logs import get_logger
from asyncrollout.policies.gate import Gate, is_stopped, refund
from asyncrollout.policies.holding import charged
from asyncrollout.policies.openai import codec
from asyncrollout.policies.openai.bodies import LARGE, in_thread
from asyncrollout.policies.openai.call import CallOptions, HttpCall
from asyncrollout.policies.openai.codec import STREAMED, Mode
from asyncrollout.policies.openai.concurrency_limit import work_of
from asyncrollout.policies.openai.endpoint import Endpoint
from asyncrollout.policies.openai.first_contact import FirstContact, SilentError, cause_of
from asyncrollout.policies.openai.health import Health
from asyncrollout.policies.openai.refusals import failure_of, read_overflow, read_retry_after, refusal, spread
from asyncrollout.policies.openai.responses import AbortedReplyError, clipped
from asyncrollout.policies.openai.routing import Router
from asyncrollout.policies.openai.session import ApiKey, HttpResponse, HttpSession, now
from asyncrollout.types import Generation, Request, Sampling, Timings

log = get_logger(__name__)

PATHS: dict[Mode, str] = {"chat": "/chat/completions", "completions": "/completions"}
_REJECTED = frozenset({401, 403, 404})  # by one server perhaps, and not by another


class Sender:
    """Makes attempts, and reports to limit, router and health what each says about its server."""

    def __init__(
        self,
        options: CallOptions,
        endpoints: Sequence[Endpoint],
        session: HttpSession,
        key: ApiKey,
        *,
        contact: FirstContact,
        router: Router,
        gate: Gate,
        health: Health,
        jitter: np.random.Generator,
    ) -> None:
        self._options = options
        self._endpoints = endpoints
        self._session = session
        self._key = key
        self._contact = contact
        self._router = router
        self._gate = gate
        self._health = health
        self._jitter = jitter
        self._has_warned = False

    async def attempt(self, call: HttpCall, endpoint: Endpoint, version: int) -> Generation | None:
        """What was generated; None if the call has noted what went wrong, and `ProviderError` if that is final."""
        started = time.monotonic()
        call.began = charged()
        response = await self._try(endpoint, call)
        if response is None:
            return None
        if response.status != 200:
            self._refuse(call, response, endpoint, started)
            return None
        generation = await self._accept(call, response, endpoint, started)
        if generation is None:
            return None
        timings = Timings(
            queue=started - call.created,
            first_byte=response.first_byte - started,
            total=time.monotonic() - call.created,
            attempts=call.tries,
        )
        return msgspec.structs.replace(generation, version=version, timings=timings)

    async def _try(self, endpoint: Endpoint, call: HttpCall) -> HttpResponse | None:
        limit, deadline = now() + self._options.attempt_seconds, call.deadline
        try:
            async with asyncio.timeout_at(min(limit, deadline)) as timer:
                with self._gate.passing(timer):
                    return await self._post(endpoint, call)
        except TimeoutError:  # while held back, both are extended alike: no clock shows which one expired
            if is_stopped(timer):
                call.retry_now = True
                refund(call.began)
                return None
            if deadline <= limit:
                raise
            call.note_failure(endpoint, f"no response within {self._options.attempt_seconds:g} s")
            self._health.lose(endpoint)
        return None

    async def _post(self, endpoint: Endpoint, call: HttpCall) -> HttpResponse | None:
        client = self._session.client
        try:
            refused = await self._contact.probe(client, endpoint) if endpoint.kind is None else None
            kind = endpoint.kind
            if kind is not None:
                body = call.body(kind, self._options, context=endpoint.context)
                headers = self._key.closing if kind in STREAMED else self._key.headers
                post = endpoint.post if endpoint.has_responded else self._contact.first_post(endpoint)
                return await post(client, PATHS[self._options.mode], body, headers)
            assert refused is not None
            if refused.status < 500:
                return refused
            call.note_failure(endpoint, f"HTTP {refused.status}: {clipped(refusal(refused.content))}")
            if (wait := read_retry_after(refused.headers.get("Retry-After"))) is not None:
                endpoint.limit.pause(time.monotonic() + wait)
        except aiohttp.ServerDisconnectedError as error:
            if not call.had_stale_connection:  # most likely a kept-alive one that the server closed
                call.had_stale_connection = call.retry_now = True
                return None
            call.note_failure(endpoint, f"{type(error).__name__}: {error}")
        except (aiohttp.ClientError, OSError, SilentError) as error:
            call.note_failure(endpoint, f"no response: {cause_of(error, endpoint)}")
        self._contact.note(endpoint, call.last_error)
        self._health.lose(endpoint)
        return None

    async def _accept(
        self, call: HttpCall, response: HttpResponse, endpoint: Endpoint, started: float
    ) -> Generation | None:
        request = call.request
        try:
            if len(response.content) < LARGE:
                generation = self._decode(request, response, endpoint)
            else:
                with self._session.until(call.deadline):
                    generation = await in_thread(self._decode, request, response, endpoint)
        except AbortedReplyError as error:
            if self._gate.is_open:
                endpoint.limit.failed(time.monotonic())
                call.note_failure(endpoint, str(error))
            else:  # stopped by the server for new weights
                call.retry_now = True
                refund(call.began)
            return None
        self._health.note_success(endpoint)
        for wrong, said in call.rejections.items():
            self._health.suspend(wrong, said)
        if request.session:
            self._router.note_success(request.session, endpoint)
        if endpoint.kind == "vllm" and not self._has_warned:
            self._warn_of_logprobs(endpoint, request.sampling)
        work = work_of(generation.usage.prompt, generation.usage.completion)
        endpoint.limit.succeeded(started, time.monotonic(), work=work, in_flight=endpoint.in_flight)
        return generation

    def _decode(self, request: Request, response: HttpResponse, endpoint: Endpoint) -> Generation:
        logprobs, stops = self._options.logprobs, codec.stops_of(request.sampling, self._options.sampling)
        try:
            return codec.decode(response.content, logprobs=logprobs, stops=stops, kind=endpoint.kind)
        except ProviderError:  # it shows a part of the body: again, with the key hidden before anything is cut off
            hidden = self._key.hidden_in(response.content)
            codec.decode(hidden, logprobs=logprobs, stops=stops, kind=endpoint.kind)
            raise

    def _refuse(self, call: HttpCall, response: HttpResponse, endpoint: Endpoint, started: float) -> None:
        """What a response without a generation means: an error at once, or another attempt."""
        at = time.monotonic()
        message = refusal(self._key.hidden_in(response.content))
        said = f"HTTP {response.status}: {clipped(message)}"
        endpoint.last_error = said
        wait = read_retry_after(response.headers.get("Retry-After"))
        overflow = None if response.status in (401, 403, 429) else read_overflow(message)
        match failure_of(response.status):
            case "passing" if response.status != 500 or overflow is None:  # llama.cpp has said so with a 500
                endpoint.limit.failed(at)
                if wait is not None:
                    endpoint.limit.pause(at + wait)
                endpoint.note_failure(at)
                call.note_failure(endpoint, said)
            case "permanent" if response.status in _REJECTED and overflow is None:
                endpoint.note_failure(at)
                call.note_rejection(endpoint, said)
                others = [one for one in self._endpoints if one not in call.rejections]
                if all(one.is_suspended(at) for one in others):  # possibly for minutes
                    call.refused_by = endpoint, response
                    out = {one: f"{one.suspended} (suspended)" for one in others}
                    raise ProviderError("; ".join(f"{one.name}: {why}" for one, why in (call.rejections | out).items()))
            case "permanent" | "passing":
                if overflow is None:
                    call.refused_by = endpoint, response
                    raise ProviderError(f"{endpoint.name}: {said}")
                endpoint.context = overflow.context or endpoint.context
                if call.shorten(overflow):
                    return
                if overflow.is_of_reply and call.max_tokens is not None:
                    raise ProviderError(f"{endpoint.name}: max_tokens={call.max_tokens} does not fit: {said}")
                raise ContextError(f"{endpoint.name}: {said}")
            case "refused":
                if endpoint.limit.refused(started, at, wait, jitter=spread(self._jitter)):
                    call.let_others_try()
                self._router.note_refusal(call.request.session, endpoint)
                call.note_refusal(said)

    def _warn_of_logprobs(self, endpoint: Endpoint, sampling: Sampling) -> None:
        default = self._options.sampling
        temperature = default.temperature if sampling.temperature is None else sampling.temperature
        if self._options.logprobs and temperature not in (None, 0, 1):
            self._has_warned = True
            log.warning(
                "logprobs_before_temperature",
                endpoint=endpoint.name,
                temperature=temperature,
                hint="vLLM gives logprobs of what was sampled from if started with --logprobs-mode processed_logprobs",
            )
