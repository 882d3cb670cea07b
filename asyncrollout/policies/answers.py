"""What servers that speak the OpenAI protocol say, as far as we read it."""

from typing import Annotated, Any

import msgspec

from asyncrollout.errors import ProviderError

Count = Annotated[int, msgspec.Meta(ge=0)]
TokenIds = list[Count]

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading bytes that make no sense can raise."""

_SHOWN = 300


class Token(msgspec.Struct):
    logprob: float
    id: Count | None = None
    token: str = ""
    bytes: list[Annotated[int, msgspec.Meta(ge=0, le=255)]] | None = None


class Logprobs(msgspec.Struct):
    content: list[Token] | None = None
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

    @property
    def ids(self) -> list[int] | None:
        return self.token_ids if self.token_ids is not None else self.response_token_ids


class Cached(msgspec.Struct):
    cached_tokens: Count | None = 0


class Used(msgspec.Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count | None = 0
    prompt_tokens_details: Cached | None = None


class Reply(msgspec.Struct):
    choices: list[Choice]
    usage: Used | None = None
    prompt_token_ids: TokenIds | None = None


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error | str | None = None
    message: str | None = None
    detail: Any = None


_refusal = msgspec.json.Decoder(_Refusal)


def refusal(content: bytes) -> str:
    """What a server says about a call that it refuses."""
    try:
        said = _refusal.decode(content)
    except UNREADABLE:
        return shown(content)
    error = said.error.message if isinstance(said.error, _Error) else said.error
    return (error or said.message or (said.detail and str(said.detail)) or shown(content))[:_SHOWN]


def malformed(why: str, content: bytes) -> ProviderError:
    return ProviderError(f"malformed answer: {why}: {shown(content)}")


def shown(content: bytes) -> str:
    text = content[: _SHOWN + 1].decode(errors="replace")
    return repr(text[:_SHOWN]) + ("..." if len(content) > _SHOWN else "")
