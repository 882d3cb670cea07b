"""A call on its way: what was asked, what has been tried, and what went wrong."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from asyncrollout.policies.holding import HeldTime
from asyncrollout.policies.openai import codec
from asyncrollout.policies.openai.codec import Mode, ServerKind
from asyncrollout.policies.openai.endpoint import Endpoint
from asyncrollout.policies.openai.refusals import ContextOverflow
from asyncrollout.policies.openai.session import HttpResponse
from asyncrollout.types import Request, Sampling

SERVERS_OWN = Sampling()
_MOST_SHORTENINGS = 2
_OWN_CAPS = frozenset({"max_tokens", "max_completion_tokens"})


@dataclass(frozen=True)
class CallOptions:
    """What all calls of a policy have in common; `sampling` is the default of a request's."""

    model: str
    mode: Mode
    sampling: Sampling
    logprobs: bool
    attempt_seconds: float


class HttpCall:
    """A request on its way: what has been tried, and what went wrong."""

    __slots__ = ("_bodies", "_deadline", "_held", "_is_open_ended", "_numbers", "_room", "_shortenings", "began",
                 "created", "failed", "failures", "had_stale_connection", "last_error", "max_tokens", "number",
                 "refusals", "refused_by", "rejections", "request", "retry_now")  # fmt: skip

    def __init__(self, request: Request, deadline: float, held: HeldTime, numbers: Iterator[int]) -> None:
        self.request = request
        self.number = next(numbers)  # the lower, the older
        self._numbers = numbers
        self.created = time.monotonic()
        self._deadline = deadline - held.seconds()
        self._held = held
        self.began = 0.0  # the current attempt, on the clock of what its rollout is charged for
        self.failures = self.refusals = 0
        self.failed: Endpoint | None = None
        self.rejections: dict[Endpoint, str] = {}  # by servers that another one may prove wrong
        self.last_error = ""
        self.refused_by: tuple[Endpoint, HttpResponse] | None = None  # for good
        self.retry_now = self.had_stale_connection = False
        self.max_tokens: int | None = None  # tokens, as last asked for
        self._bodies: dict[ServerKind, bytes] = {}
        self._room: int | None = None
        self._is_open_ended = False
        self._shortenings = 0

    @property
    def deadline(self) -> float:
        """Extended by the time in which calls were held back for new weights."""
        return self._deadline + self._held.seconds()

    @property
    def tries(self) -> int:
        return 1 + self.failures + self.refusals

    def body(self, kind: ServerKind, options: CallOptions, *, context: int | None = None) -> bytes:
        """The JSON body; `context` is that of the server's model, if known."""
        if kind not in self._bodies:
            request, default = self.request, options.sampling
            sampling = request.sampling if default == SERVERS_OWN else codec.merge(request.sampling, default)
            sampling = self._bounded(sampling, default, kind, context)
            if sampling is not request.sampling:
                request = msgspec.structs.replace(request, sampling=sampling)
            self._bodies[kind] = codec.encode(request, options.model, options.mode, kind, logprobs=options.logprobs)
        return self._bodies[kind]

    def _bounded(self, sampling: Sampling, default: Sampling, kind: ServerKind, context: int | None) -> Sampling:
        """Cap `max_tokens` by the least of what the request, the rollout's limit, the policy and the context allow."""
        request = self.request
        is_unbounded = request.tokens_left is self._room is context is None
        if is_unbounded and not sampling.extra and not self._is_open_ended:  # most often
            self.max_tokens = sampling.max_tokens
            return sampling
        own = {name for name in _OWN_CAPS if type(sampling.extra.get(name)) is int} if sampling.extra else ()
        caps = [sampling.max_tokens, request.tokens_left, self._room, *(sampling.extra[name] for name in own)]
        if request.tokens_left is not None and request.tokens_left == request.sampling.max_tokens:
            caps.append(default.max_tokens)  # it comes from the limit, so the policy's own cap holds, too
        if context is not None and request.prompt_ids is not None and len(request.prompt_ids) < context:
            caps.append(context - len(request.prompt_ids))
        most = min((cap for cap in caps if cap is not None), default=None)
        is_open_ended = kind == "vllm" and context is not None and most is not None and most >= context
        if self._is_open_ended or is_open_ended:
            most, own = None, {"max_tokens", *own}
        self.max_tokens = most
        if own:
            extra = {**sampling.extra, **dict.fromkeys(own, most)}
            return msgspec.structs.replace(sampling, max_tokens=None, extra=extra)
        return sampling if most == sampling.max_tokens else msgspec.structs.replace(sampling, max_tokens=most)

    def shorten(self, overflow: ContextOverflow) -> bool:
        """Whether the call is made again, for a shorter reply that fits the context which the refusal names."""
        if self._shortenings >= _MOST_SHORTENINGS:
            return False
        if overflow.room is not None:
            if overflow.room < 1 or (self.max_tokens is not None and overflow.room >= self.max_tokens):
                return False
            self._room = overflow.room
        elif overflow.is_vague and self.max_tokens is not None:
            self._is_open_ended = True
        else:
            return False
        self._shortenings += 1
        self._bodies.clear()
        self.retry_now = True
        return True

    def note_failure(self, endpoint: Endpoint, error: str) -> None:
        self.failures += 1
        self._bodies.clear()  # the next attempt may go to another server, or to this one with another context
        self.failed = endpoint
        self.last_error = error

    def note_refusal(self, error: str) -> None:
        """Too many calls: not a failed attempt, but a wait that the deadline bounds."""
        self.refusals += 1
        self._bodies.clear()
        self.last_error = error
        self.retry_now = True

    def let_others_try(self) -> None:
        """Go behind all others in the queue: a call that is refused each time must not be the only one that tries."""
        self.number = next(self._numbers)

    def note_rejection(self, endpoint: Endpoint, error: str) -> None:
        """This server will not take the call; another one may."""
        self.rejections[endpoint] = error
        self._bodies.clear()
        self.last_error = error
        self.retry_now = True

    def rejections_text(self) -> str:
        """What other servers rejected, to be added to an error."""
        return "".join(f"; {endpoint.name}: {said}" for endpoint, said in self.rejections.items())
