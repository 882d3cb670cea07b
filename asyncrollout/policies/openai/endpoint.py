"""One server: how many calls it gets at a time, whether it is up, a call to it, and how it is notified of weights."""

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
from asyncrollout.policies.openai.concurrency import FIRST_WAIT, ConcurrencyLimit
from asyncrollout.policies.openai.session import HttpResponse
from asyncrollout.types import PauseMode

log = get_logger(__name__)

_LONGEST_TROUBLE = 30.0  # seconds
_MOST_TROUBLES = 10
_NOTIFY_SECONDS = 30.0


class Endpoint:
    """A server, and the calls in flight there. `kind` is None until the server has told it."""

    def __init__(self, base_url: str, limit: ConcurrencyLimit, kind: ServerKind | None) -> None:
        parts = urlsplit(base_url)
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
        self.url = base_url.rstrip("/")
        self.root = self.url.removesuffix("/v1")
        self.address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        self.limit = limit
        self.kind = kind
        self.context: int | None = None  # tokens; known once the server has said it
        self.probing = anyio.Lock()
        self.has_answered = False  # anything but 5xx, ever
        self.silence = (-math.inf, "")  # when it was last asked for its kind without an answer, and why there was none
        self.up = True
        self.has_weights = True  # or might have: false once it may have been restarted with others
        self.losses = 0  # in a row
        self.sessions = 0
        self.in_flight = 0
        self.waiting = 0  # calls in its line
        self.troubles = 0  # in a row
        self.troubled_until = 0.0
        self.trouble = ""  # the last one, until it is well
        self.out: str | None = None  # why it gets no calls, if it refuses what others answer
        self.outs = 0  # in a row

    @property
    def load(self) -> int:
        return self.in_flight + self.waiting

    def wait_before(self, now: float) -> float:
        """Seconds until the server wants calls again."""
        return max(self.limit.not_before - now, 0.0)

    def is_out(self, now: float) -> bool:
        return self.out is not None and self.wait_before(now) > 0

    def reluctance(self, now: float) -> tuple[float, bool, bool, float, int]:
        """What speaks against another call to it, the most important first."""
        wait = self.wait_before(now)
        is_full = wait > 0 or self.waiting > 0 or not self.limit.has_room(self.in_flight, now)
        return wait, now < self.troubled_until, is_full, self.load / self.limit.places, self.sessions

    def is_in_trouble(self, now: float) -> None:
        """It failed: others are preferred for a while, and for longer if that happens again."""
        if now >= self.troubled_until:
            self.troubled_until = now + min(FIRST_WAIT * 2.0**self.troubles, _LONGEST_TROUBLE)
            self.troubles = min(self.troubles + 1, _MOST_TROUBLES)

    def is_well(self) -> None:
        self.losses = self.troubles = 0
        self.troubled_until = 0.0
        self.trouble = ""

    async def post(
        self, client: aiohttp.ClientSession, path: str, body: bytes, headers: Mapping[str, str]
    ) -> HttpResponse:
        """A call; cancelled, it hangs up. It goes to this server, and to no other that it names."""
        url = f"{self.url}{path}"
        async with client.post(url, data=body, headers=headers, allow_redirects=False) as response:
            first_byte = time.monotonic()
            status, told = response.status, response.headers
            if status != 200:
                return HttpResponse(status, told, await read_start(response), first_byte)
            content = await read_raw(response)
        if (encoding := told.get(CONTENT_ENCODING)) is not None:
            content = await unpack(content, encoding)
        return HttpResponse(status, told, content, first_byte)


class WeightEndpoint(NamedTuple):
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


async def post_page(
    client: aiohttp.ClientSession,
    endpoint: Endpoint,
    page: WeightEndpoint,
    mode: PauseMode | None,
    headers: Mapping[str, str],
) -> None:
    """Tell the server; one that does not take it (vLLM has the page in its development mode only) is logged."""
    wish: dict[str, Any] = {} if mode is None else {"mode": page.modes[mode]}
    params, body = (wish, None) if page.in_query else (None, wish)
    try:
        with anyio.fail_after(_NOTIFY_SECONDS):
            url = f"{endpoint.root}{page.path}"
            async with client.post(url, headers=headers, params=params, json=body, allow_redirects=False) as response:
                if response.status == 200:
                    return
                said = f"HTTP {response.status}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        said = f"{type(error).__name__}: {error}"
    log.warning("server_not_told_of_weights", endpoint=endpoint.name, page=page.path, said=said)
