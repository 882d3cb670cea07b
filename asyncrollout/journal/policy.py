"""A policy whose replies are recorded, and which does not ask again for those that were."""

import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import msgspec

from asyncrollout.errors import EnvDiverged, UsageError
from asyncrollout.journal.events import Replied, decode_reply, encode_reply
from asyncrollout.journal.history import RecordedReply
from asyncrollout.logs import get_logger
from asyncrollout.policies.holding import held_back
from asyncrollout.policies.replays import note_replayed, note_sampled
from asyncrollout.policies.versions import NotedVersions, note_version
from asyncrollout.pool.wire.digest import digest
from asyncrollout.protocols import Policy
from asyncrollout.types import Generation, Request

log = get_logger(__name__)


class ReplyWriter(Protocol):
    """What records replies: the writer of a run, or a shard's way to it."""

    @property
    def is_full(self) -> bool:
        """Whether too much is queued, or cannot be written."""

    async def room(self) -> None:
        """Wait while too much is queued."""

    def put(self, event: Replied, /) -> None: ...


class JournaledPolicy:
    """Replies of `inner`, each in the journal before it is played; recorded replies are given as they are.

    They are replies to what was asked then: if something else is asked now, the episode cannot be continued. Of an
    agent that asks once in a turn, that is an error; any other gets a new answer. `place` is which one of the agent's
    policies it is: two of them may be asked the same.
    """

    def __init__(
        self,
        inner: Policy,
        writer: ReplyWriter,
        replies: Mapping[str, list[RecordedReply]],
        *,
        place: int = 0,
        asks_once: bool,
        only_appends: bool = False,
    ) -> None:
        self.inner = inner
        self._writer = writer
        self._replies = replies
        self._place = place
        self._asks_once = asks_once
        self._only_appends = only_appends

    def __getattr__(self, name: str) -> Any:
        """Everything else that an agent may want of its policy."""
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    async def generate(self, request: Request) -> Generation:
        asked = _digests(request, only_appends=self._only_appends)
        recorded = self._recorded(request, asked)
        if recorded is not None:
            generation, oldest = decode_reply(recorded.content), recorded.oldest_version
            note_version(_own_version(generation) if oldest is None else oldest)
            note_replayed(recorded.seconds)
            return generation
        note_sampled()
        began = time.monotonic()
        if self._writer.is_full:
            with held_back():
                await self._writer.room()
        with NotedVersions() as versions:
            generation = await self.inner.generate(request)
        try:
            reply = encode_reply(generation)
        except UsageError as error:  # it will be asked for again
            log.warning("reply_not_recorded", uid=request.session, turn=request.turn, error=str(error))
            return generation
        self._writer.put(
            Replied(
                uid=request.session,
                turn=request.turn,
                asked=asked.last,
                reply=reply,
                request=asked.all,
                policy=self._place or msgspec.UNSET,
                oldest_version=_unless_own(min(versions, default=None), generation),
                seconds=round(time.monotonic() - began, 6),
            )
        )
        return generation

    def _recorded(self, request: Request, asked: "_Digests") -> RecordedReply | None:
        replies = self._replies.get(request.session, [])
        for place, reply in enumerate(replies):
            is_same = reply.asked == asked.last and reply.request in (None, asked.all)
            if reply.turn == request.turn and is_same and reply.policy == self._place:
                del replies[place]
                return reply
        own = [reply for reply in replies if reply.policy == self._place]
        if own and self._asks_once:
            is_seen = any((reply.turn, reply.asked) == (request.turn, asked.last) for reply in own)
            other = (
                "the env shows the same, but the agent asks with other messages before it, or another sampling"
                if is_seen
                else "from the same seed and actions, the env shows something else"
            )
            raise EnvDiverged(
                f"turn {request.turn} of {request.session} is not as it was when its reply was recorded: {other}"
            )
        return None


def _own_version(generation: Generation) -> int | None:
    return None if generation.frozen else generation.version


def _unless_own(oldest: int | None, generation: Generation) -> int | msgspec.UnsetType:
    return msgspec.UNSET if oldest is None or oldest == _own_version(generation) else int(oldest)


class _Digests(NamedTuple):
    """Of the last message of a request, or its data; and of all that a reply to it depends on."""

    last: int
    all: int


# The messages of the last request, and their digest: a conversation grows, and what was there is not read again.
# In a rollout's own context, so that it ends with the rollout.
_before: ContextVar[tuple[list[Any], int]] = ContextVar("messages_before", default=([], 0))


def _digests(request: Request, *, only_appends: bool = False) -> _Digests:
    messages = request.messages
    if messages:
        chain, last = _chained(messages, only_appends=only_appends)
        _before.set((messages, chain))
    else:
        chain = last = digest(request.data)
    return _Digests(last, crc32(_encoded([request.prompt_ids, request.sampling])[0], chain))


def _chained(messages: list[Any], *, only_appends: bool) -> tuple[int, int]:
    """Of all messages, one after the other, and of the last one alone.

    An agent that only appends to its conversation need not have all of it compared: both ends suffice.
    """
    known, chain = _before.get()
    is_longer = 0 < len(known) < len(messages)
    ends = (0, len(known) - 1) if only_appends else range(len(known))
    if not is_longer or not all(known[place] is messages[place] for place in ends):
        known, chain = [], 0
    last = 0
    for message in messages[len(known) :]:
        content, last = _encoded(message)
        chain = crc32(content, chain)
    return chain, last


def _encoded(value: Any) -> tuple[bytes, int]:
    """As bytes, and their digest."""
    try:
        content = msgspec.json.encode(value)
    except (TypeError, ValueError):  # pictures as arrays, half a character, numbers of numpy
        last = digest(value)
        return last.to_bytes(4), last
    return content, crc32(content)
