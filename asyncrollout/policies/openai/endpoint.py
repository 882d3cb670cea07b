"""One server: its load and its state, the POST of a call, and how it is notified of new weights."""

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import anyio
from aiohttp.hdrs import CONTENT_ENCODING

from asyncrollout.logs import get_logger
from asyncrollout.policies.openai.bodies import read_raw, read_start, unpack
from asyncrollout.policies.openai.codec import ServerKind
from asyncrollout.policies.openai.concurrency_limit import FIRST_WAIT, ConcurrencyLimit
from asyncrollout.policies.openai.session import HttpResponse
from asyncrollout.types import PauseMode

log = get_logger(__name__)

_LONGEST_TROUBLE = 30.0  # seconds
_MOST_TROUBLES = 10
_NOTIFY_SECONDS = 30.0


class Endpoint:
    """A server and the calls in flight there. `kind` is None until it has been detected."""

    def __init__(self, base_url: str, limit: ConcurrencyLimit, kind: ServerKind | None) -> None:
        parts = urlsplit(base_url)
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
        self.url = base_url.rstrip("/")
        self.root = self.url.removesuffix("/v1")
        self.address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        self.limit = limit
        self.kind = kind
        self.context: int | None = None  # in tokens; known once the server has reported it
        self.probing = anyio.Lock()
        self.has_responded = False  # with anything but 5xx, ever
        self.silence = (-math.inf, "")  # when its kind was last asked for in vain, and why
        self.up = True
        self.has_weights = True  # or may have: false once it may have been restarted with other weights
        self.losses = 0  # in a row
        self.sessions = 0
        self.in_flight = 0
        self.waiting = 0  # calls in its queue
        self.failures = 0  # in a row
        self.backoff_until = 0.0
        self.last_error = ""  # until the next success
        self.suspended: str | None = None  # why it gets no calls, if it rejects what others accept
        self.suspensions = 0  # in a row

    @property
    def load(self) -> int:
        return self.in_flight + self.waiting

    def wait_before(self, now: float) -> float:
        """Seconds until the server accepts calls again."""
        return max(self.limit.not_before - now, 0.0)

    def is_suspended(self, now: float) -> bool:
        return self.suspended is not None and self.wait_before(now) > 0

    def reluctance(self, now: float) -> tuple[float, bool, bool, float, int]:
        """Reasons against sending it another call, the most important first; the router takes the least."""
        wait = self.wait_before(now)
        is_full = wait > 0 or self.waiting > 0 or not self.limit.has_room(self.in_flight, now)
        return wait, now < self.backoff_until, is_full, self.load / self.limit.slots, self.sessions

    def note_failure(self, now: float) -> None:
        """Prefer other servers for some time, which grows with each failure in a row."""
        if now >= self.backoff_until:
            self.backoff_until = now + min(FIRST_WAIT * 2.0**self.failures, _LONGEST_TROUBLE)
            self.failures = min(self.failures + 1, _MOST_TROUBLES)

    def note_success(self) -> None:
        self.losses = self.failures = 0
        self.backoff_until = 0.0
        self.last_error = ""

    async def post(
        self, client: aiohttp.ClientSession, path: str, body: bytes, headers: Mapping[str, str]
    ) -> HttpResponse:
        """Make a call; cancelling it closes the connection. Redirects are not followed."""
        url = f"{self.url}{path}"
        async with client.post(url, data=body, headers=headers, allow_redirects=False) as response:
            first_byte = time.monotonic()
            status, received = response.status, response.headers
            if status != 200:
                return HttpResponse(status, received, await read_start(response), first_byte)
            content = await read_raw(response)
        if (encoding := received.get(CONTENT_ENCODING)) is not None:
            content = await unpack(content, encoding)
        return HttpResponse(status, received, content, first_byte)


class WeightEndpoint(NamedTuple):
    """A server's own HTTP endpoint for weight updates; `modes` maps ours to its names."""

    path: str
    modes: Mapping[str, str] = {}
    in_query: bool = False


PAUSES: Mapping[ServerKind, WeightEndpoint] = {
    "vllm": WeightEndpoint("/pause", {"wait": "wait", "abort": "abort", "continue": "keep"}, in_query=True),
    "sglang": WeightEndpoint("/pause_generation", {"wait": "in_place", "abort": "abort", "continue": "in_place"}),
}
RESUMES: Mapping[ServerKind, WeightEndpoint] = {
    "vllm": WeightEndpoint("/resume"),
    "sglang": WeightEndpoint("/continue_generation"),
}


async def notify_server(
    client: aiohttp.ClientSession,
    endpoint: Endpoint,
    target: WeightEndpoint,
    mode: PauseMode | None,
    headers: Mapping[str, str],
) -> None:
    """Pause or resume the server itself; a failure is logged (vLLM has these endpoints in development mode only)."""
    options: dict[str, Any] = {} if mode is None else {"mode": target.modes[mode]}
    params, body = (options, None) if target.in_query else (None, options)
    try:
        with anyio.fail_after(_NOTIFY_SECONDS):
            url = f"{endpoint.root}{target.path}"
            async with client.post(url, headers=headers, params=params, json=body, allow_redirects=False) as response:
                if response.status == 200:
                    return
                said = f"HTTP {response.status}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        said = f"{type(error).__name__}: {error}"
    log.warning("server_not_told_of_weights", endpoint=endpoint.name, page=target.path, said=said)
