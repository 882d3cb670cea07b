"""A policy whose replies are written down, and which does not ask again for those that were."""

from typing import Any
from zlib import crc32

import msgspec
import structlog

from asyncrollout.errors import EnvDiverged, UsageError
from asyncrollout.journal.events import Replied, decode_reply, encode_reply
from asyncrollout.journal.reader import Past
from asyncrollout.journal.writer import Writer
from asyncrollout.policies.holding import held_back
from asyncrollout.pool.digest import digest
from asyncrollout.protocols import Policy
from asyncrollout.types import Generation, Request

log = structlog.get_logger(__name__)


class Journalled:
    """Replies of `inner`, each in the journal before it is played; recorded replies are given as they are.

    They are replies to what the env showed then. If it shows something else now, the episode cannot be played on; of an
    agent that asks once in a turn, one can tell.
    """

    def __init__(self, inner: Policy, writer: Writer, past: Past, *, asks_once: bool) -> None:
        self.inner = inner
        self._writer = writer
        self._replies = past.replies
        self._asks_once = asks_once

    def __getattr__(self, name: str) -> Any:
        """Whatever else an agent may want of its policy."""
        return getattr(self.inner, name)

    async def generate(self, request: Request) -> Generation:
        asked = _digest(request)
        recorded = self._recorded(request, asked)
        if recorded is not None:
            return recorded
        with held_back():
            await self._writer.room()
        generation = await self.inner.generate(request)
        try:
            reply = encode_reply(generation)
        except UsageError as error:  # it will be asked for again
            log.warning("reply_not_recorded", uid=request.session, turn=request.turn, error=str(error))
            return generation
        self._writer.put(Replied(uid=request.session, turn=request.turn, asked=asked, reply=reply))
        return generation

    def _recorded(self, request: Request, asked: int) -> Generation | None:
        replies = self._replies.get(request.session, [])
        for place, reply in enumerate(replies):
            if (reply.turn, reply.asked) == (request.turn, asked):
                return decode_reply(replies.pop(place).content)
        if replies and self._asks_once:
            raise EnvDiverged(
                f"turn {request.turn} of {request.session} is not as it was when its reply was recorded: from the "
                "same seed and actions, the env shows something else"
            )
        return None


def _digest(request: Request) -> int:
    """Of what is new in a request."""
    if not request.messages:
        return digest(request.data)
    try:
        return crc32(msgspec.json.encode(request.messages[-1]))
    except (TypeError, ValueError):  # pictures as arrays, half a character
        return digest(request.messages[-1])
