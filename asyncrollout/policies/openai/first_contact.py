"""A server that has never answered: what kind it is, how long it is waited for, and why it does not answer."""

import errno
import math
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp
import anyio
import msgspec

from asyncrollout.concurrency import task_group
from asyncrollout.errors import ProviderError
from asyncrollout.logs import get_logger
from asyncrollout.policies.openai.codec import ServerKind
from asyncrollout.policies.openai.endpoint import Endpoint
from asyncrollout.policies.openai.refusals import refusal
from asyncrollout.policies.openai.responses import clipped
from asyncrollout.policies.openai.session import ApiKey, HttpResponse, get

log = get_logger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 2.0  # seconds between two looks at servers that do not answer yet
_SHARED = 5.0  # seconds in which a failure is that of all calls
_NOTHING_THERE = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH)
_SIGNS: dict[ServerKind, str] = {"vllm": "/version", "sglang": "/get_server_info", "llamacpp": "/props"}
_NO_SUCH_PAGE = frozenset({404, 405, 501})


class SilentError(Exception):
    """A server that has never answered did not answer now either."""


class FirstContact:
    """Until one of the servers has answered anything below 500: `seconds` in all, then calls fail with the cause.

    A server that is still starting refuses connections, or answers 503. Whoever fails first looks at the servers again
    and again, for all calls. Once time was up, calls fail as soon as their own attempt has.
    """

    def __init__(self, endpoints: Sequence[Endpoint], key: ApiKey, seconds: float) -> None:
        self._endpoints = endpoints
        self._key = key
        self._seconds = seconds
        self._began = math.inf
        self._looking = anyio.Lock()
        self._failed_at = -math.inf
        self._failure = ""
        self._has_logged = self._is_over = False
        self._noted: set[Endpoint] = set()

    def is_made(self) -> bool:
        return any(endpoint.has_answered for endpoint in self._endpoints)

    def note(self, endpoint: Endpoint, trouble: str) -> None:
        """One of several servers failed: log why, once, if it has never answered; the others go on without it."""
        if len(self._endpoints) > 1 and not endpoint.has_answered and endpoint not in self._noted:
            self._noted.add(endpoint)
            log.warning("server_never_answered", endpoint=endpoint.name, cause=self._key.hidden(trouble))

    async def wait(self, client: aiohttp.ClientSession, trouble: str) -> None:
        """Wait for the first answer of any server; `ProviderError` if none comes in time."""
        self.begin()
        if not self._has_logged:
            self._has_logged = True
            log.warning(
                "waiting_for_server",
                endpoint=", ".join(endpoint.name for endpoint in self._endpoints),
                cause=self._key.hidden(trouble),
                seconds=self._seconds,
                hint="if it still loads, wait longer: OpenAIPolicy(wait_for_server=600), or policy.wait_for_server",
            )
        async with self._looking:
            pause = _FIRST_PAUSE
            while not self.is_made():
                if time.monotonic() - self._failed_at < _SHARED:
                    raise ProviderError(self._failure)
                causes = await self._look_at_all(client)
                left = self._began + self._seconds - time.monotonic()
                if left <= 0 and not self.is_made():
                    self._fail(causes)
                elif not self.is_made():
                    await anyio.sleep(min(pause, left))
                    pause = min(2 * pause, _LONGEST_PAUSE)
            if not self._is_over:
                self._is_over = True
                log.info("server_answered", after=round(time.monotonic() - self._began, 1))

    async def probe(self, client: aiohttp.ClientSession, endpoint: Endpoint) -> HttpResponse | None:
        """Find out the server's kind, once for all calls; its response, if it refuses to be asked."""
        asked = time.monotonic()
        async with endpoint.probing:
            if endpoint.kind is not None:
                return None
            silent_at, cause = endpoint.silence
            if silent_at > asked:  # another call found out meanwhile, and this may have taken it seconds
                raise SilentError(cause)
            self.begin()
            try:
                found = await kind_of_server(client, endpoint.root, self._key)
            except (aiohttp.ClientError, OSError) as error:
                endpoint.silence = time.monotonic(), cause_of(error, endpoint)
                raise
            if isinstance(found, HttpResponse):
                endpoint.has_answered |= found.status < 500
                return found
            endpoint.kind, endpoint.has_answered = found, True
        return None

    def first_post(self, endpoint: Endpoint) -> Callable[..., Awaitable[HttpResponse]]:
        """A server's first call: it may take long, but not from a server that answers nothing at all."""
        self.begin()

        async def post(client: aiohttp.ClientSession, *arguments: Any) -> HttpResponse:
            async with task_group() as tasks:
                tasks.start_soon(self._doubt, client, endpoint)
                answer = await endpoint.post(client, *arguments)
                tasks.cancel_scope.cancel()
            endpoint.has_answered |= answer.status < 500
            return answer

        return post

    async def _doubt(self, client: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        asked = time.monotonic()
        await anyio.sleep(max(self._began + self._seconds - asked, 0.0))
        async with self._looking:
            if not endpoint.has_answered and self._failed_at < asked:
                cause = await self._look_at(client, endpoint)
                if cause and not self.is_made():
                    self._fail({endpoint: cause})
        if not endpoint.has_answered:
            raise SilentError("neither the call nor the pages /health and /models are answered")

    def begin(self) -> None:
        """A server is asked for the first time: from now on it is waited for."""
        self._began = min(self._began, time.monotonic())

    def _fail(self, causes: dict[Endpoint, str]) -> None:
        told = "; ".join(f"{endpoint.name}: it does not answer: {cause}" for endpoint, cause in causes.items())
        self._failure = (
            f"{told} (waited {self._seconds:g} s for a first answer; if the server is still loading, wait longer with "
            "OpenAIPolicy(wait_for_server=600), or policy.wait_for_server)"
        )
        self._failed_at = time.monotonic()

    async def _look_at_all(self, client: aiohttp.ClientSession) -> dict[Endpoint, str]:
        causes: dict[Endpoint, str] = {}

        async def look(endpoint: Endpoint) -> None:
            causes[endpoint] = await self._look_at(client, endpoint)
            if endpoint.has_answered:
                looking.cancel_scope.cancel()  # one is enough

        async with anyio.create_task_group() as looking:
            for endpoint in self._endpoints:
                looking.start_soon(look, endpoint)
        return causes

    async def _look_at(self, client: aiohttp.ClientSession, endpoint: Endpoint) -> str:
        """Why it does not answer; nothing if it does."""
        cause = ""
        for url in (f"{endpoint.root}/health", f"{endpoint.url}/models"):  # not every server has the first
            try:
                answer = await get(client, url, self._key.headers)
            except (aiohttp.ClientError, OSError) as error:
                return cause_of(error, endpoint)
            if answer.status < 500:
                endpoint.has_answered = True
                return ""
            cause = f"HTTP {answer.status}: {clipped(refusal(self._key.hidden_in(answer.content)))}"
        return cause


def cause_of(error: Exception, endpoint: Endpoint) -> str:
    """Why there is no answer, in words that say what to look at."""
    host, port = endpoint.address
    match error:
        case SilentError():
            return str(error)
        case aiohttp.ClientConnectorDNSError():
            return f"the name {host!r} cannot be resolved ({error.os_error.strerror or error.os_error})"
        case aiohttp.ClientConnectorCertificateError():
            return f"its TLS certificate is not accepted ({error.certificate_error})"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return f"the TLS handshake failed ({getattr(error, 'os_error', error)}): try http:// instead"
        case aiohttp.ClientConnectorError() if _is_of(error.os_error, _NOTHING_THERE[0]):
            return f"connection refused: nothing listens at {host}:{port}"
        case aiohttp.ClientConnectorError() if _is_of(error.os_error, *_NOTHING_THERE[1:]):
            return f"{host}:{port} cannot be reached ({error.os_error.strerror or error.os_error})"
        case aiohttp.ServerDisconnectedError():
            return "it closed the connection without an answer"
        case TimeoutError():
            return f"{host}:{port} is silent: is it the right host, and does a firewall let it through?"
    return f"{type(error).__name__}: {error}"


def _is_of(error: OSError, *numbers: int) -> bool:
    """Also if it stands for the failures of several addresses of a name."""
    return error.errno in numbers or any(f"[Errno {number}]" in str(error) for number in numbers)


async def kind_of_server(client: aiohttp.ClientSession, root: str, key: ApiKey) -> ServerKind | HttpResponse:
    """By the pages that only this kind has; strict OpenAI, if there is none of them.

    A refusal says nothing of the kind: it is what the call itself is answered with.
    """
    for kind, page in _SIGNS.items():
        answer = await get(client, f"{root}{page}", key.headers)
        if answer.status == 200:
            return kind
        if answer.status not in _NO_SUCH_PAGE:
            told = refusal(key.hidden_in(answer.content))
            said = f"GET {page} (give OpenAIPolicy(kind=...), or policy.server, if it tells no kind): {told}"
            return answer._replace(content=msgspec.json.encode({"message": said}))
    return "openai"


async def is_healthy(client: aiohttp.ClientSession, endpoint: Endpoint, headers: Mapping[str, str]) -> bool:
    """Not every server has a page for its health; whatever answers a question about it at all is up, but for 5xx."""
    try:
        return (await get(client, f"{endpoint.root}/health", headers)).status < 500
    except (aiohttp.ClientError, OSError):
        return False
