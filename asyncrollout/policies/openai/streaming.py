"""Answers that come as a stream of events, put together."""

from typing import Any

import msgspec
from msgspec import UNSET

from asyncrollout.policies.openai.responses import (
    ChatResponse,
    Choice,
    Logprobs,
    Message,
    ReportedUsage,
    Stop,
    TokenIds,
    malformed,
)

_MOST_LINES = 500_000  # two for each token


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


class _ContentPart(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None
    delta: _Delta | None = None
    text: str | None = None
    logprobs: Logprobs | None = None
    token_ids: TokenIds | None = None
    stop_reason: Stop = UNSET
    matched_stop: Stop = UNSET


class _Chunk(msgspec.Struct):
    choices: list[_ContentPart] = []
    usage: ReportedUsage | None = None
    prompt_token_ids: TokenIds | None = None


_chunk = msgspec.json.Decoder(_Chunk)


def is_stream(content: bytes) -> bool:
    return content.lstrip()[:6].startswith((b"data:", b"event:", b":"))


def join(stream: bytes) -> ChatResponse:
    """The answer that the events of a stream add up to."""
    if stream.count(b"\n") > _MOST_LINES:
        raise malformed(f"its stream has more than {_MOST_LINES} lines", stream)
    events = [line[5:].strip() for line in stream.splitlines() if line.startswith(b"data:")]
    if not events or events.pop() != b"[DONE]":
        raise malformed("the stream broke off", stream)
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
    last = next((part for part in reversed(parts) if part.finish_reason), _ContentPart())
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
    """As in an answer that is not streamed: the first part of a call has its name, the others add to its arguments."""
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
