"""Responses of the OpenAI protocol, whole or streamed, as far as they are read."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from asyncrollout.errors import ProviderError

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]  # token ids are arrays of 32 bits
Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]
TokenIds = list[Count]
Stop = str | int | None | UnsetType

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding malformed bytes can raise."""

MOST_VALUES = 2_000_000
MOST_OBJECTS = 400_000
"""JSON values in a response, and objects among them, roughly: they take up to 40 times the memory of their text."""

SHOWN = 300
_PIECE = 2**20
_MOST_LINES = 500_000  # of a stream: two for each token


class AbortedReplyError(ProviderError):
    """The server stopped a reply before its end, as for new weights or when it shuts down."""


class TokenLogprob(msgspec.Struct, gc=False):
    logprob: float
    id: Count | None = None
    token: str = ""
    bytes: msgspec.Raw = msgspec.Raw(b"null")  # rarely needed, and as lists most of the decoding time


class Logprobs(msgspec.Struct):
    content: list[TokenLogprob] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None


class Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class Choice(msgspec.Struct):
    finish_reason: str | None = None
    message: Message | None = None
    text: str | None = None
    logprobs: Logprobs | None = None
    token_ids: TokenIds | None = None
    response_token_ids: TokenIds | None = None  # as SGLang calls them in a chat
    prompt_token_ids: TokenIds | None = None
    stop_reason: Stop = UNSET
    matched_stop: Stop = UNSET  # as SGLang calls it

    @property
    def ids(self) -> list[int] | None:
        return self.token_ids if self.token_ids is not None else self.response_token_ids

    @property
    def stopped_at(self) -> Stop:
        """The text or the token that ended the reply; None if it was vLLM's own end of a message."""
        return self.matched_stop if self.stop_reason is UNSET else self.stop_reason


class CachedTokens(msgspec.Struct):
    cached_tokens: Count | None = 0


class ReportedUsage(msgspec.Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count | None = 0
    prompt_tokens_details: CachedTokens | None = None


class ChatResponse(msgspec.Struct):
    choices: list[Choice]
    usage: ReportedUsage | None = None
    prompt_token_ids: TokenIds | None = None


def check_values(content: bytes) -> None:
    """Refuse what would take too much memory and time to decode; counted in pieces, since counting holds the GIL."""
    values = objects = 0
    for start in range(0, len(content), _PIECE):
        end = start + _PIECE
        values += sum(content.count(sign, start, end) for sign in (b",", b"[", b"\n"))
        objects += content.count(b"{", start, end)
        if values > MOST_VALUES or objects > MOST_OBJECTS:
            raise malformed(f"it has more than {MOST_VALUES} values, or {MOST_OBJECTS} objects", content)


def malformed(why: str, content: bytes) -> ProviderError:
    return ProviderError(f"malformed response: {why}: {shown(content)}")


def clipped(text: str) -> str:
    return text[:SHOWN] + ("..." if len(text) > SHOWN else "")


def shown(content: bytes) -> str:
    text = content[: SHOWN + 1].decode(errors="replace")
    return repr(text[:SHOWN]) + ("..." if len(content) > SHOWN else "")


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int = 0
    id: str | None = None
    type: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _ChoicePart(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None
    delta: _Delta | None = None
    text: str | None = None
    logprobs: Logprobs | None = None
    token_ids: TokenIds | None = None
    stop_reason: Stop = UNSET
    matched_stop: Stop = UNSET


class _Chunk(msgspec.Struct):
    choices: list[_ChoicePart] = []
    usage: ReportedUsage | None = None
    prompt_token_ids: TokenIds | None = None


_chunk = msgspec.json.Decoder(_Chunk)


def is_stream(content: bytes) -> bool:
    return content.lstrip()[:6].startswith((b"data:", b"event:", b":"))


def join(stream: bytes) -> ChatResponse:
    """Assemble the response from the events of a stream."""
    if stream.count(b"\n") > _MOST_LINES:
        raise malformed(f"its stream has more than {_MOST_LINES} lines", stream)
    events = [line[5:].strip() for line in stream.splitlines() if line.startswith(b"data:")]
    if not events or events.pop() != b"[DONE]":
        raise malformed("the stream was cut off", stream)
    chunks = [_chunk.decode(event) for event in events]
    parts = [part for chunk in chunks for part in chunk.choices]
    if any(part.index for part in parts):
        raise malformed("it has several choices", stream)
    deltas = [part.delta or _Delta(content=part.text) for part in parts]
    text = "".join(delta.content or "" for delta in deltas)
    message = Message(
        content=text,
        reasoning_content="".join(delta.reasoning_content or delta.reasoning or "" for delta in deltas) or None,
        tool_calls=_join_calls([call for delta in deltas for call in delta.tool_calls or ()]),
    )
    last = next((part for part in reversed(parts) if part.finish_reason), _ChoicePart())
    whole = Choice(
        finish_reason=last.finish_reason,
        message=message if any(part.delta for part in parts) else None,
        text=text,
        logprobs=_join_logprobs([part.logprobs for part in parts if part.logprobs]),
        token_ids=[token for part in parts for token in part.token_ids or ()] or None,
        stop_reason=last.stop_reason,
        matched_stop=last.matched_stop,
    )
    usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None)
    prompt_ids = next((chunk.prompt_token_ids for chunk in chunks if chunk.prompt_token_ids), None)
    return ChatResponse([whole], usage, prompt_ids)


def _join_logprobs(parts: list[Logprobs]) -> Logprobs | None:
    content = [token for part in parts for token in part.content or ()]
    numbers = [number for part in parts for number in part.token_logprobs or ()]
    tokens = [token for part in parts for token in part.tokens or ()]
    return Logprobs(content or None, tokens or None, numbers or None) if content or numbers else None


def _join_calls(parts: list[_ToolCall]) -> list[dict[str, Any]]:
    """As in a response that is not streamed: the first part of a call has its name, the others add to its arguments."""
    calls: dict[int, _ToolCall] = {}
    for part in parts:
        function = part.function or _Function()
        known = calls.setdefault(part.index, _ToolCall(part.index, part.id, part.type, _Function(function.name, "")))
        assert known.function is not None
        known.function.arguments = f"{known.function.arguments}{function.arguments or ''}"
    return [
        {"id": call.id, "type": call.type or "function", "function": msgspec.to_builtins(call.function)}
        for call in calls.values()
    ]
