"""The HTTP session of a policy: its key, how it is opened and closed, and the waits that end with it."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import aiohttp
import anyio

from asyncrollout.concurrency import run_to_end
from asyncrollout.errors import ClosedError, UsageError
from asyncrollout.machine import FDS_SPARE, count_descriptors
from asyncrollout.policies.openai.bodies import ENCODINGS, read_start
from asyncrollout.policies.openai.concurrency_limit import ConcurrencyLimit

_CLOSE_SECONDS = 5.0
_GET_SECONDS = 5.0


class HttpResponse(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes
    first_byte: float


class ApiKey:
    """The headers with the API key; no representation shows it."""

    __slots__ = ("_forms", "_key", "closing", "headers", "origin")

    def __init__(self, key: str | None, variable: str) -> None:
        """The argument, or else the value of an environment variable."""
        self._key = (os.environ.get(variable, "") if key is None else key).strip()
        if not self._key.isprintable():
            raise UsageError("OpenAIPolicy: the API key contains characters that are not printable")
        self.headers = {"Content-Type": "application/json", "Accept-Encoding": ENCODINGS}
        if self._key:
            self.headers["Authorization"] = f"Bearer {self._key}"
        if not self._key:
            self.origin = f"no key was sent: set ${variable}, or pass api_key="
        else:
            self.origin = f"the key comes from ${variable}" if key is None else "the key comes from api_key="
        self.closing = {**self.headers, "Connection": "close"}  # llama.cpp closes after a stream without saying so
        escaped = self._key.replace("\\", "\\\\")
        forms = {
            self._key,
            json.dumps(self._key)[1:-1],
            escaped.replace('"', '\\"'),
            escaped.replace("'", "\\'"),
            escaped,
        }
        self._forms = sorted(forms - {""}, key=len, reverse=True)  # as it is, in JSON, and in Python's quotes

    @property
    def value(self) -> str:
        """For a copy of the policy in a process of ours, where the variable may not be set."""
        return self._key

    def hidden(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, "<key>")
        return text

    def hidden_in(self, content: bytes) -> bytes:
        """A response body, before any part of it is shown: a cut could leave half a key."""
        for form in self._forms:
            content = content.replace(form.encode(), b"<key>")
        return content


class HttpSession:
    """An aiohttp session from `open` to `closing`; waits `until` a deadline end with `ClosedError` when it closes."""

    def __init__(self) -> None:
        self._client: aiohttp.ClientSession | None = None
        self._was_open = False
        self._waits: set[anyio.CancelScope] = set()

    @property
    def is_open(self) -> bool:
        return self._client is not None

    @property
    def client(self) -> aiohttp.ClientSession:
        if self._client is None:
            raise self._closed()
        return self._client

    def check_open(self) -> None:
        if self._client is None:
            raise self._closed()

    def open(self) -> aiohttp.ClientSession:
        if self._was_open:
            raise UsageError("this OpenAIPolicy was opened before: create a new one")
        self._was_open = True
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=30),
            auto_decompress=False,
        )
        return self._client

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[None]:
        """End all waits and allow no further calls; connections are closed after the block."""
        client, self._client = self._client, None
        for scope in tuple(self._waits):
            scope.cancel()
        try:
            yield
        finally:
            if client is not None:
                await run_to_end(_close, client)

    @contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """Wait until the deadline at most (`TimeoutError`), or until the session is closed (`ClosedError`)."""
        with anyio.fail_after(deadline - now()) as scope:
            self._waits.add(scope)
            try:
                yield
            finally:
                self._waits.discard(scope)
        if scope.cancelled_caught:
            raise self._closed()

    def _closed(self) -> ClosedError:
        if self._was_open:
            return ClosedError("this OpenAIPolicy was closed")
        return ClosedError("this OpenAIPolicy is not open: use it within 'async with'")


def now() -> float:
    """The time of cancel scopes; `anyio.current_time` looks up the loop's kind each time, a tenth of a call's cost."""
    return asyncio.get_running_loop().time()


def check_descriptors(limits: Sequence[ConcurrencyLimit], most: int) -> None:
    """Raise if `most` calls per server exceed the file descriptors: before the start, not in the middle of a run.

    An adaptive limit is bounded instead.
    """
    used, allowed, _ = count_descriptors()
    spare = allowed - used - FDS_SPARE
    needed = most * len(limits)
    if needed <= spare:
        return
    if not all(limit.bound(int(spare) // len(limits)) for limit in limits):
        raise UsageError(
            f"OpenAIPolicy: {needed} concurrent calls need as many file descriptors, {used} are open, and only "
            f"{allowed} are allowed: raise the limit with `ulimit -n {needed + used + FDS_SPARE}`, or lower "
            "concurrency"
        )


async def get(client: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> HttpResponse:
    """GET a URL, reading the body of a refusal only; raises what aiohttp or the system raises."""
    with anyio.fail_after(_GET_SECONDS):
        async with client.get(url, headers=headers, allow_redirects=False) as response:
            first_byte = time.monotonic()
            content = b"" if response.status == 200 else await read_start(response)
            return HttpResponse(response.status, response.headers, content, first_byte)


async def _close(client: aiohttp.ClientSession) -> None:
    with anyio.move_on_after(_CLOSE_SECONDS):
        await client.close()
