"""A policy whose replies are written down, and which does not ask again for those that were."""

from zlib import crc32

import msgspec

from asyncrollout.errors import EnvDiverged
from asyncrollout.journal.events import Replied, decode_reply, encode_reply
from asyncrollout.journal.reader import Past
from asyncrollout.journal.writer import Writer
from asyncrollout.pool.digest import digest
from asyncrollout.protocols import Policy
from asyncrollout.types import Generation, Request


class Journalled:
    """Replies of `inner`, each in the journal before it is played; recorded replies are given as they are.

    They are replies to what the env showed then. If it shows something else now, the episode cannot be played on.
    """

    def __init__(self, inner: Policy, writer: Writer, past: Past) -> None:
        self.inner = inner
        self._writer = writer
        self._replies = past.replies

    async def generate(self, request: Request) -> Generation:
        asked = _digest(request)
        recorded = self._replies.get(request.session)
        if recorded:
            reply = recorded.popleft()
            if (reply.turn, reply.asked) != (request.turn, asked):
                raise EnvDiverged(
                    f"turn {request.turn} of {request.session} is not as it was when its reply was recorded: from the "
                    "same seed and actions, the env shows something else"
                )
            return decode_reply(reply.content)
        await self._writer.room()
        generation = await self.inner.generate(request)
        if generation.finish_reason != "abort":  # else it is asked for again
            reply_line = encode_reply(generation)
            self._writer.put(Replied(uid=request.session, turn=request.turn, asked=asked, reply=reply_line))
        return generation


def _digest(request: Request) -> int:
    """Of what is new in a request."""
    if not request.messages:
        return digest(request.data)
    try:
        return crc32(msgspec.json.encode(request.messages[-1]))
    except (TypeError, ValueError):  # pictures as arrays, half a character
        return digest(request.messages[-1])
