"""One server: how many calls it gets at a time, whether it is up, and a call to it."""

import math
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp
import anyio
from aiohttp.hdrs import CONTENT_ENCODING

from asyncrollout.policies.bodies import read_raw, read_start, unpack
from asyncrollout.policies.codec import ServerKind
from asyncrollout.policies.holding import held_back
from asyncrollout.policies.limits import Limit


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes
    first_byte: float


class Endpoint:
    """A call is made between `enter` and `leave`. `kind` is None until the server has told it."""

    def __init__(self, base_url: str, limit: Limit, kind: ServerKind | None) -> None:
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
        self._waiting: deque[anyio.Event] = deque()

    @property
    def load(self) -> int:
        return self.in_flight + len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether as many calls are under way as there may be, or nearly so."""
        return 2 * self.in_flight >= self.limit.now

    def wait_before(self, now: float) -> float:
        """Seconds until the server wants calls again."""
        return max(self.limit.not_before - now, 0.0)

    def enter_now(self) -> bool:
        """Take a place, if there is one and the server wants calls."""
        is_free = self.in_flight < self.limit.now and not self._waiting
        if not is_free or self.limit.not_before > time.monotonic():
            return False
        self.in_flight += 1
        return True

    async def enter(self) -> None:
        """Wait for a place, and until the server wants calls again."""
        if self.in_flight >= self.limit.now or self._waiting:
            with held_back():
                await self._wait_for_turn()
        else:
            self.in_flight += 1
        waited = False
        try:
            while (wait := self.wait_before(time.monotonic())) > 0:  # noqa: ASYNC110 (it may be put off meanwhile)
                await anyio.sleep(wait)
            waited = True
        finally:
            if not waited:
                self.leave()

    async def _wait_for_turn(self) -> None:
        turn = anyio.Event()
        self._waiting.append(turn)
        came = False
        try:
            await turn.wait()
            came = True
        finally:
            if turn.is_set() and not came:
                self.leave()  # whoever woke us had counted us in
            elif not came:
                self._waiting.remove(turn)

    def leave(self) -> None:
        self.in_flight -= 1
        while self._waiting and self.in_flight < self.limit.now:
            self.in_flight += 1
            self._waiting.popleft().set()

    async def post(self, client: aiohttp.ClientSession, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """A call; cancelled, it hangs up. It goes to this server, and to no other that it names."""
        url = f"{self.url}{path}"
        async with client.post(url, data=body, headers=headers, allow_redirects=False) as response:
            first_byte = time.monotonic()
            status, told = response.status, response.headers
            if status != 200:
                return Answer(status, told, await read_start(response), first_byte)
            content = await read_raw(response)
        if (encoding := told.get(CONTENT_ENCODING)) is not None:
            content = await unpack(content, encoding)
        return Answer(status, told, content, first_byte)
