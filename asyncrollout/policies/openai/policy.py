"""Any OpenAI-compatible server, or several of them, at full speed: the loop over a call's attempts."""

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Literal, Self, get_args

import aiohttp
import anyio
import numpy as np

from asyncrollout import validation
from asyncrollout.concurrency import task_group
from asyncrollout.errors import ProviderError, UsageError
from asyncrollout.policies.gate import Gate, check_rises
from asyncrollout.policies.holding import held_back
from asyncrollout.policies.openai.attempt import PATHS, Sender
from asyncrollout.policies.openai.call import SERVERS_OWN, CallOptions, HttpCall
from asyncrollout.policies.openai.codec import Mode, ServerKind
from asyncrollout.policies.openai.concurrency_limit import ConcurrencyLimit
from asyncrollout.policies.openai.endpoint import PAUSES, RESUMES, Endpoint, WeightEndpoint, notify_server
from asyncrollout.policies.openai.first_contact import FirstContact, SilentError
from asyncrollout.policies.openai.health import Health, OnBack
from asyncrollout.policies.openai.refusals import Advisor, backoff
from asyncrollout.policies.openai.routing import QueuedRequest, RequestQueue, Router
from asyncrollout.policies.openai.session import ApiKey, HttpSession, check_descriptors, now
from asyncrollout.policies.versions import note_version
from asyncrollout.types import Generation, PauseMode, Request, Sampling


class OpenAIPolicy:
    """Chat or completions of `model` on one or more servers: a session stays with one, new ones go to the least loaded.

    Transient failures are retried, up to `attempts` calls in all and within `seconds` (or those of the request),
    queueing included; one attempt may take `attempt_seconds`. A server that has never responded is waited for,
    `wait_for_server` seconds in all. `concurrency` is the number of concurrent calls per server; "adaptive" finds
    it by itself, up to `max_concurrency`. `sampling` holds the defaults for requests. The API key is `api_key`, or the
    environment variable `api_key_env`, and is never shown. `on_back(endpoint)` pushes the current weights to a server
    that was lost and is back; after the first weight update it is awaited before that server gets calls.
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
        self._given = {
            "base_url": urls,
            "model": model,
            "mode": mode,
            "concurrency": concurrency,
            "max_concurrency": max_concurrency,
            "sampling": sampling,
            "logprobs": logprobs,
            "attempts": attempts,
            "attempt_seconds": attempt_seconds,
            "seconds": seconds,
            "wait_for_server": wait_for_server,
            "kind": kind,
        }
        self._is_copy = False
        for url in urls or [""]:
            if not url.startswith(("http://", "https://")):
                raise UsageError(f"OpenAIPolicy: base_url={url!r} is not a URL such as http://localhost:8000/v1")
        validation.check_choice("OpenAIPolicy: mode", mode, PATHS)
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
        self._options = CallOptions(model, mode, sampling, logprobs, attempt_seconds)
        self._model, self._sampling = model, sampling  # part of a run's identity
        self._attempts = attempts
        self._seconds = seconds
        self._key = ApiKey(api_key, api_key_env)
        self._session = HttpSession()
        self._contact = FirstContact(self.endpoints, self._key, wait_for_server)
        self._advisor = Advisor(model, self._key)
        self._router = Router(self.endpoints)
        self._queue = RequestQueue(self.endpoints, self._router)
        self._numbers = count()
        self._jitter = np.random.default_rng()
        self._gate = Gate(stops_server=True)
        self._health = Health(self.endpoints, self._gate, self._key.headers, on_back, self._queue.update_all)
        self._sender = Sender(
            self._options,
            self.endpoints,
            self._session,
            self._key,
            contact=self._contact,
            router=self._router,
            gate=self._gate,
            health=self._health,
            jitter=self._jitter,
        )

    asks_server = True
    """Copies in other processes ask the same servers, which have the weights."""

    def __reduce__(self) -> Any:
        """A copy for another process, which is not open: servers are notified by the original alone."""
        return _copy, ({**self._given, "api_key": self._key.value, "version": self.version},)

    @property
    def is_open(self) -> bool:
        return self._session.is_open

    def __repr__(self) -> str:
        return f"OpenAIPolicy({[endpoint.name for endpoint in self.endpoints]}, model={self._options.model!r})"

    async def __aenter__(self) -> Self:
        check_descriptors([endpoint.limit for endpoint in self.endpoints], self._most)
        await self._health.open(self._session.open())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        async with self._session.closing():
            self._gate.stop_all()
            self._queue.close()
            await self._health.close(error)

    async def generate(self, request: Request) -> Generation:
        seconds = self._seconds if request.seconds is None else request.seconds
        call = HttpCall(request, now() + seconds, self._gate.held, self._numbers)
        try:
            return await self._generate(call)
        except TimeoutError:
            last = call.last_error or "; ".join(
                f"{one.name}: {one.last_error}" for one in self.endpoints if one.last_error
            )
            cause = f" (last error: {last})" if last else ""
            said = f"no response within {seconds:g} s from {self._named()}{cause}"
            raise ProviderError(self._key.hidden(said)) from None
        except ProviderError as error:
            said = str(error)
            if call.refused_by is not None:
                said += await self._advisor.advise(self._session, *call.refused_by)
            raise type(error)(self._key.hidden(said)) from error.__cause__

    async def _generate(self, call: HttpCall) -> Generation:
        """Attempts until one succeeds or the failure is final.

        A cancel scope costs about a tenth of a call, so the fast path (a free place, no pause) has only the one of its
        attempt; waits have their own.
        """
        while True:
            self._session.check_open()
            endpoint = await self._enter(call)
            try:
                generation = await self._sender.attempt(call, endpoint, self.version)
                if generation is not None:
                    note_version(generation.version)
                    return generation
            finally:
                self._queue.leave(endpoint)
            if call.retry_now:
                call.retry_now = False
                continue  # stopped for new weights, a stale connection, or refused (it waits in the queue)
            if call.failures >= self._attempts:
                raise ProviderError(
                    f"{endpoint.name}: {call.last_error} (after {call.failures} attempts){call.rejections_text()}"
                )
            others = endpoint is not self._router.find(call.request.session, call.failed, call.rejections)
            if 0 < call.failures < len(self.endpoints) and others:
                continue  # each server may be tried once without a pause
            with held_back():
                if not self._contact.has_response():
                    await self._within(call, self._contact.wait, self._session.client, call.last_error)
                await self._within(call, anyio.sleep_until, now() + backoff(call.failures, self._jitter))

    async def _within(self, call: HttpCall, wait: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Wait until the deadline at most; start again if the deadline was extended meanwhile."""
        while True:
            try:
                with self._session.until(call.deadline):
                    return await wait(*arguments)
            except TimeoutError:
                if now() >= call.deadline:  # else it was extended while calls were held back
                    raise

    async def _enter(self, call: HttpCall) -> Endpoint:
        """Take a place at the session's server, or at another one if that has just failed."""
        if self._gate.is_open:
            endpoint = self._router.find(call.request.session, call.failed, call.rejections)
            if endpoint is not None and self._queue.enter_now(endpoint):
                return endpoint
        while True:
            try:
                if not self._gate.is_open:
                    with self._session.until(math.inf), held_back():
                        await self._gate.wait()
                with self._session.until(call.deadline):
                    if (place := await self._wait_for_place(call)) is not None:
                        return place
            except TimeoutError:
                if now() >= call.deadline:  # else it was extended while calls were held back
                    raise

    async def _wait_for_place(self, call: HttpCall) -> Endpoint | None:
        session, allowed = call.request.session, [one for one in self.endpoints if one not in call.rejections]
        found = self._router.find(session, call.failed, call.rejections)
        if found is None:
            await self._health.wait_until_usable(allowed)
            return None
        place = await self._queue.enter(QueuedRequest(call.number, session, call.failed, call.rejections), found)
        is_best = place.up or (place.has_weights and not any(other.up for other in allowed))
        if is_best and self._gate.is_open and place.wait_before(time.monotonic()) <= 0:
            return place
        self._queue.leave(place)  # lost, refusing or held back since we began to wait
        return None

    async def pause(self, mode: PauseMode = "wait") -> None:
        """Hold new calls back for new weights; calls in flight are awaited, aborted and made again, or left alone.

        vLLM and SGLang servers are paused, too, if they have endpoints for that. If this fails, nothing is held back.
        """
        await self._gate.shut(mode)
        is_paused = False
        try:
            if not self._gate.is_open:  # else resumed meanwhile
                await self._notify_servers(PAUSES, mode)
                await self._health.begin_update()
            is_paused = True
        finally:
            if not is_paused:
                self._health.cancel_update()
                self._gate.open()

    async def resume(self, version: int | None = None) -> None:
        """Let calls through again; their replies are of this version of the weights."""
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
            await self._notify_servers(RESUMES, None)
        finally:
            self._gate.open()

    async def start_at(self, version: int) -> None:
        """Set the version of weights that the trainer loads by itself, as when a run is resumed."""
        self.version = version
        await self._health.start()

    def held_seconds(self) -> float:
        """How long calls were held back in total."""
        return self._gate.held.seconds()

    def last_held(self) -> float:
        """Until when calls were held back, on the monotonic clock: now while they are."""
        return self._gate.held.last()

    async def _notify_servers(self, targets: Mapping[ServerKind, WeightEndpoint], mode: PauseMode | None) -> None:
        if self._is_copy:
            return
        async with task_group() as notifying:
            for endpoint in self.endpoints:
                notifying.start_soon(self._notify_server, endpoint, targets, mode)

    async def _notify_server(
        self, endpoint: Endpoint, targets: Mapping[ServerKind, WeightEndpoint], mode: PauseMode | None
    ) -> None:
        if endpoint.kind is None and endpoint.up:
            with suppress(aiohttp.ClientError, OSError, SilentError):
                await self._contact.probe(self._session.client, endpoint)
        target = None if endpoint.kind is None else targets.get(endpoint.kind)
        if target is not None:
            await notify_server(self._session.client, endpoint, target, mode, self._key.headers)

    def _named(self) -> str:
        return ", ".join(endpoint.name for endpoint in self.endpoints)


def _copy(given: dict[str, Any]) -> OpenAIPolicy:
    policy = OpenAIPolicy(**given)
    policy._is_copy = True  # noqa: SLF001 (this is its way to be made)
    return policy
