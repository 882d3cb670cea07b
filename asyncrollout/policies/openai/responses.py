"""What servers that speak the OpenAI protocol say, as far as we read it."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from asyncrollout.errors import ProviderError

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]  # token ids are arrays of 32 bits
Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]
TokenIds = list[Count]
Stop = str | int | None | UnsetType

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading bytes that make no sense can raise."""

MOST_VALUES = 2_000_000
MOST_OBJECTS = 400_000
"""JSON values in an answer, and objects among them, roughly: they take up to 40 times the memory of their text."""

_SHOWN = 300
_READ = 10_000
_PIECE = 2**20


class AbortedReplyError(ProviderError):
    """The server stopped a reply before its end, as for new weights or when it shuts down."""


class TokenLogprob(msgspec.Struct, gc=False):
    logprob: float
    id: Count | None = None
    token: str = ""
    bytes: msgspec.Raw = msgspec.Raw(b"null")  # seldom needed; as lists they take most of the time of decoding


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


class _Error(msgspec.Struct):
    message: str
    code: Any = None


class _Refusal(msgspec.Struct):
    error: _Error | str | None = None
    message: str | None = None
    detail: Any = None
    code: Any = None


_refusal = msgspec.json.Decoder(_Refusal | list[_Refusal])  # Gemini sends a list


def refusal(content: bytes) -> str:
    """What a server says about a call that it refuses, with its code if that is a word."""
    try:
        decoded = _refusal.decode(content)
    except UNREADABLE:
        return shown(content)
    said = decoded if isinstance(decoded, _Refusal) else decoded[0] if decoded else _Refusal()
    error, code = (said.error.message, said.error.code) if isinstance(said.error, _Error) else (said.error, said.code)
    text = (error or said.message or (said.detail and str(said.detail)) or shown(content))[:_READ]
    return f"{text} ({code[:_SHOWN]})" if isinstance(code, str) and code and code not in text else text


def check_values(content: bytes) -> None:
    """Refuse what would take too much memory and time to decode; piece by piece, since counting holds the GIL."""
    values = objects = 0
    for start in range(0, len(content), _PIECE):
        end = start + _PIECE
        values += sum(content.count(sign, start, end) for sign in (b",", b"[", b"\n"))
        objects += content.count(b"{", start, end)
        if values > MOST_VALUES or objects > MOST_OBJECTS:
            raise malformed(f"it has more than {MOST_VALUES} values, or {MOST_OBJECTS} objects", content)


def malformed(why: str, content: bytes) -> ProviderError:
    return ProviderError(f"malformed answer: {why}: {shown(content)}")


def clipped(text: str) -> str:
    return text[:_SHOWN] + ("..." if len(text) > _SHOWN else "")


def shown(content: bytes) -> str:
    text = content[: _SHOWN + 1].decode(errors="replace")
    return repr(text[:_SHOWN]) + ("..." if len(content) > _SHOWN else "")
