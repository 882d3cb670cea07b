"""A call on its way: what was asked, what has been tried, and the key that goes with it."""

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.policies import codec
from asyncrollout.policies.codec import Mode, ServerKind
from asyncrollout.policies.endpoint import Endpoint
from asyncrollout.policies.holding import Held
from asyncrollout.types import Request, Sampling

SERVERS_OWN = Sampling()


class Call:
    """A request on its way: what has been tried, and what went wrong."""

    __slots__ = ("_bodies", "_deadline", "_held", "failed", "failures", "had_stale_connection", "is_again", "refusals",
                 "request", "trouble")  # fmt: skip

    def __init__(self, request: Request, deadline: float, held: Held) -> None:
        self.request = request
        self._deadline = deadline - held.seconds()
        self._held = held
        self.failures = self.refusals = 0
        self.failed: Endpoint | None = None
        self.trouble = ""
        self.is_again = self.had_stale_connection = False
        self._bodies: dict[ServerKind, bytes] = {}

    @property
    def deadline(self) -> float:
        """Put off by the time in which calls were held back for new weights."""
        return self._deadline + self._held.seconds()

    @property
    def tries(self) -> int:
        return 1 + self.failures + self.refusals

    def body(self, kind: ServerKind, model: str, mode: Mode, default: Sampling, *, logprobs: bool) -> bytes:
        if kind not in self._bodies:
            request = self.request
            if default != SERVERS_OWN:
                request = msgspec.structs.replace(request, sampling=codec.merge(request.sampling, default))
            self._bodies[kind] = codec.encode(request, model, mode, kind, logprobs=logprobs)
        return self._bodies[kind]

    def fails(self, endpoint: Endpoint, trouble: str) -> None:
        self.failures += 1
        self.failed = endpoint
        self.trouble = trouble

    def is_refused(self, trouble: str) -> None:
        """A matter of waiting, which the deadline bounds."""
        self.refusals += 1
        self.trouble = trouble


class Key:
    """The headers with the key; it has no representation that shows it."""

    __slots__ = ("_key", "closing", "headers")

    def __init__(self, key: str | None) -> None:
        self._key = (key or "").strip()
        if not self._key.isprintable():
            raise UsageError("OpenAIPolicy: the API key has characters that no key can have")
        self.headers = {"Content-Type": "application/json"}
        if self._key:
            self.headers["Authorization"] = f"Bearer {self._key}"
        self.closing = {**self.headers, "Connection": "close"}  # llama.cpp closes after a stream without saying so

    def hidden(self, text: str) -> str:
        return text.replace(self._key, "<key>") if self._key else text
