"""A server that has never responded: what kind it is, how long it is waited for, and why it is silent."""

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
_NOT_THERE = frozenset({404, 405, 501})


class SilentError(Exception):
    """A server that has never responded is still silent."""


class FirstContact:
    """Waits until one of the servers has responded with anything below 500: `seconds` in all, then calls fail.

    A server that is still loading refuses connections or returns 503, exactly like one with a wrong address. Retries
    per call would hide a typo for minutes, or give up on a server that needs ten minutes to load. So before the first
    response there is one budget for all calls: the first call that fails checks the servers again and again for all,
    and when time is up, every call fails with the cause, after one attempt.
    """

    def __init__(self, endpoints: Sequence[Endpoint], key: ApiKey, seconds: float) -> None:
        self._endpoints = endpoints
        self._key = key
        self._seconds = seconds
        self._began = math.inf
        self._checking = anyio.Lock()
        self._failed_at = -math.inf
        self._failure = ""
        self._has_logged = self._is_over = False
        self._noted: set[Endpoint] = set()

    def has_response(self) -> bool:
        return any(endpoint.has_responded for endpoint in self._endpoints)

    def note(self, endpoint: Endpoint, trouble: str) -> None:
        """Log once why one of several servers has never responded; the others are used without it."""
        if len(self._endpoints) > 1 and not endpoint.has_responded and endpoint not in self._noted:
            self._noted.add(endpoint)
            log.warning("server_never_answered", endpoint=endpoint.name, cause=self._key.hidden(trouble))

    async def wait(self, client: aiohttp.ClientSession, trouble: str) -> None:
        """Wait for the first response of any server; `ProviderError` if none comes in time."""
        self.begin()
        if not self._has_logged:
            self._has_logged = True
            log.warning(
                "waiting_for_server",
                endpoint=", ".join(endpoint.name for endpoint in self._endpoints),
                cause=self._key.hidden(trouble),
                seconds=self._seconds,
                hint="still loading? wait longer: OpenAIPolicy(wait_for_server=600), or policy.wait_for_server",
            )
        async with self._checking:
            pause = _FIRST_PAUSE
            while not self.has_response():
                if time.monotonic() - self._failed_at < _SHARED:
                    raise ProviderError(self._failure)
                causes = await self._check_all(client)
                left = self._began + self._seconds - time.monotonic()
                if left <= 0 and not self.has_response():
                    self._fail(causes)
                elif not self.has_response():
                    await anyio.sleep(min(pause, left))
                    pause = min(2 * pause, _LONGEST_PAUSE)
            if not self._is_over:
                self._is_over = True
                log.info("server_answered", after=round(time.monotonic() - self._began, 1))

    async def probe(self, client: aiohttp.ClientSession, endpoint: Endpoint) -> HttpResponse | None:
        """Detect the server's kind, once for all calls; returns its response if it refuses."""
        asked = time.monotonic()
        async with endpoint.probing:
            if endpoint.kind is not None:
                return None
            silent_at, cause = endpoint.silence
            if silent_at > asked:  # another call waited for it in vain meanwhile, perhaps for seconds
                raise SilentError(cause)
            self.begin()
            try:
                found = await kind_of_server(client, endpoint.root, self._key)
            except (aiohttp.ClientError, OSError) as error:
                endpoint.silence = time.monotonic(), cause_of(error, endpoint)
                raise
            if isinstance(found, HttpResponse):
                endpoint.has_responded |= found.status < 500
                return found
            endpoint.kind, endpoint.has_responded = found, True
        return None

    def first_post(self, endpoint: Endpoint) -> Callable[..., Awaitable[HttpResponse]]:
        """A server's first call: a reply may take long, but total silence is checked when `seconds` are over."""
        self.begin()

        async def post(client: aiohttp.ClientSession, *arguments: Any) -> HttpResponse:
            async with task_group() as tasks:
                tasks.start_soon(self._doubt, client, endpoint)
                response = await endpoint.post(client, *arguments)
                tasks.cancel_scope.cancel()
            endpoint.has_responded |= response.status < 500
            return response

        return post

    async def _doubt(self, client: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        asked = time.monotonic()
        await anyio.sleep(max(self._began + self._seconds - asked, 0.0))
        async with self._checking:
            if not endpoint.has_responded and self._failed_at < asked:
                cause = await self._check(client, endpoint)
                if cause and not self.has_response():
                    self._fail({endpoint: cause})
        if not endpoint.has_responded:
            raise SilentError("neither the call nor /health and /models get a response")

    def begin(self) -> None:
        """Start the clock at the first call to any server."""
        self._began = min(self._began, time.monotonic())

    def _fail(self, causes: dict[Endpoint, str]) -> None:
        silent = "; ".join(f"{endpoint.name}: no response: {cause}" for endpoint, cause in causes.items())
        self._failure = (
            f"{silent} (waited {self._seconds:g} s for a first response; if the server is still loading, wait "
            "longer with OpenAIPolicy(wait_for_server=600), or policy.wait_for_server)"
        )
        self._failed_at = time.monotonic()

    async def _check_all(self, client: aiohttp.ClientSession) -> dict[Endpoint, str]:
        causes: dict[Endpoint, str] = {}

        async def check(endpoint: Endpoint) -> None:
            causes[endpoint] = await self._check(client, endpoint)
            if endpoint.has_responded:
                checking.cancel_scope.cancel()  # one is enough

        async with anyio.create_task_group() as checking:
            for endpoint in self._endpoints:
                checking.start_soon(check, endpoint)
        return causes

    async def _check(self, client: aiohttp.ClientSession, endpoint: Endpoint) -> str:
        """Why it does not respond; empty if it does."""
        cause = ""
        for url in (f"{endpoint.root}/health", f"{endpoint.url}/models"):  # not every server has the first
            try:
                response = await get(client, url, self._key.headers)
            except (aiohttp.ClientError, OSError) as error:
                return cause_of(error, endpoint)
            if response.status < 500:
                endpoint.has_responded = True
                return ""
            cause = f"HTTP {response.status}: {clipped(refusal(self._key.hidden_in(response.content)))}"
        return cause


def cause_of(error: Exception, endpoint: Endpoint) -> str:
    """Why nothing responds, in words that say what to check."""
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
            return "it closed the connection without a response"
        case TimeoutError():
            return f"{host}:{port} is silent: is it the right host, and does a firewall let it through?"
    return f"{type(error).__name__}: {error}"


def _is_of(error: OSError, *numbers: int) -> bool:
    """Also if the error combines those of several addresses of a name."""
    return error.errno in numbers or any(f"[Errno {number}]" in str(error) for number in numbers)


async def kind_of_server(client: aiohttp.ClientSession, root: str, key: ApiKey) -> ServerKind | HttpResponse:
    """Detected by the endpoints that only this kind has; plain OpenAI if there are none of them.

    A refusal (401, 503) says nothing about the kind: it becomes the response to the call.
    """
    for kind, path in _SIGNS.items():
        response = await get(client, f"{root}{path}", key.headers)
        if response.status == 200:
            return kind
        if response.status not in _NOT_THERE:
            message = refusal(key.hidden_in(response.content))
            said = (
                f"GET {path} (if this hides the server's kind, set OpenAIPolicy(kind=...), or policy.server): {message}"
            )
            return response._replace(content=msgspec.json.encode({"message": said}))
    return "openai"


async def is_healthy(client: aiohttp.ClientSession, endpoint: Endpoint, headers: Mapping[str, str]) -> bool:
    """Not every server has /health: any response below 500 shows that it is up."""
    try:
        return (await get(client, f"{endpoint.root}/health", headers)).status < 500
    except (aiohttp.ClientError, OSError):
        return False
