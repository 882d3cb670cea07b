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
from asyncrollout.policies.openai.concurrency import ConcurrencyLimit
from asyncrollout.policies.openai.endpoint import PAUSES, RESUMES, Endpoint, WeightEndpoint, post_page
from asyncrollout.policies.openai.first_contact import FirstContact, SilentError
from asyncrollout.policies.openai.health import Health, OnBack
from asyncrollout.policies.openai.refusals import Advisor, backoff
from asyncrollout.policies.openai.routing import QueuedRequest, RequestQueue, Router
from asyncrollout.policies.openai.session import ApiKey, HttpSession, check_descriptors, now
from asyncrollout.types import Generation, PauseMode, Request, Sampling


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
            last = call.trouble or "; ".join(f"{one.name}: {one.trouble}" for one in self.endpoints if one.trouble)
            trouble = f" (the last trouble: {last})" if last else ""
            said = f"no answer within {seconds:g} s, from {self._named()}{trouble}"
            raise ProviderError(self._key.hidden(said)) from None
        except ProviderError as error:
            said = str(error)
            if call.refused_by is not None:
                said += await self._advisor.advise(self._session, *call.refused_by)
            raise type(error)(self._key.hidden(said)) from error.__cause__

    async def _generate(self, call: HttpCall) -> Generation:
        """A cancel scope costs as much as a tenth of a call, so that a call which need not wait has only one."""
        while True:
            self._session.check_open()
            endpoint = await self._enter(call)
            try:
                generation = await self._sender.attempt(call, endpoint, self.version)
                if generation is not None:
                    return generation
            finally:
                self._queue.leave(endpoint)
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
                    await self._within(call, self._contact.wait, self._session.client, call.trouble)
                await self._within(call, anyio.sleep_until, now() + backoff(call.failures, self._jitter))

    async def _within(self, call: HttpCall, wait: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """A wait before the deadline, which is begun again if the deadline was put off meanwhile."""
        while True:
            try:
                with self._session.until(call.deadline):
                    return await wait(*arguments)
            except TimeoutError:
                if now() >= call.deadline:  # else it was held back meanwhile
                    raise

    async def _enter(self, call: HttpCall) -> Endpoint:
        """A place at the session's endpoint, or rather at another one than that which just failed."""
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
                if now() >= call.deadline:  # else it was held back meanwhile
                    raise

    async def _wait_for_place(self, call: HttpCall) -> Endpoint | None:
        session, allowed = call.request.session, [one for one in self.endpoints if one not in call.rejections]
        found = self._router.find(session, call.failed, call.rejections)
        if found is None:
            await self._health.usable(allowed)
            return None
        place = await self._queue.enter(QueuedRequest(call.number, session, call.failed, call.rejections), found)
        is_best = place.up or (place.has_weights and not any(other.up for other in allowed))
        if is_best and self._gate.is_open and place.wait_before(time.monotonic()) <= 0:
            return place
        self._queue.leave(place)  # lost, refusing or held back since we began to wait
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
                await self._contact.probe(self._session.client, endpoint)
        page = None if endpoint.kind is None else pages.get(endpoint.kind)
        if page is not None:
            await post_page(self._session.client, endpoint, page, mode, self._key.headers)

    def _named(self) -> str:
        return ", ".join(endpoint.name for endpoint in self.endpoints)
