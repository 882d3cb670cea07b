"""The OpenAI protocol: requests to bodies, and answers to generations. What makes no sense is a `ProviderError`."""

import re
from typing import Any, Literal

import msgspec
import numpy as np

from asyncrollout.errors import ProviderError, UsageError
from asyncrollout.pictures import data_url
from asyncrollout.types import FinishReason, Generation, Request, Usage

Mode = Literal["chat", "completions"]
ServerKind = Literal["openai", "vllm", "sglang", "llamacpp"]

_TOKEN_IDS: dict[ServerKind, dict[str, Any]] = {
    "openai": {},
    "llamacpp": {},
    "vllm": {"return_token_ids": True},
    "sglang": {"return_token_ids": True, "return_prompt_token_ids": True},
}
"""What makes a server give token ids; strict ones refuse fields that they do not know."""

_STREAMED: dict[ServerKind, dict[str, Any]] = {
    "llamacpp": {"stream": True, "stream_options": {"include_usage": True}},
}
"""A server that goes on with a call that was hung up on, unless it streams."""

_FINISHED: dict[str | None, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "abort": "abort",
    "content_filter": "abort",
}
_CONTEXT = re.compile(r"context[ _](length|size|window)|exceed_context", re.IGNORECASE)
_SHOWN = 300


class _Token(msgspec.Struct):
    logprob: float
    id: int | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None
    token_logprobs: list[float | None] | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    message: _Message | None = None
    delta: _Message | None = None
    text: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None  # as SGLang calls them in a chat
    prompt_token_ids: list[int] | None = None

    @property
    def ids(self) -> list[int] | None:
        return self.token_ids if self.token_ids is not None else self.response_token_ids


class _Cached(msgspec.Struct):
    cached_tokens: int | None = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Cached | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error | str | None = None
    message: str | None = None
    detail: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None


_reply = msgspec.json.Decoder(_Reply)
_chunk = msgspec.json.Decoder(_Chunk)
_refusal = msgspec.json.Decoder(_Refusal)


def encode(request: Request, model: str, mode: Mode, kind: ServerKind, *, logprobs: bool) -> bytes:
    """The body of a call."""
    sampling = request.sampling
    body: dict[str, Any] = {"model": model}
    if mode == "chat":
        body["messages"] = [_plain_message(message) for message in request.messages]
    else:
        body["prompt"] = request.prompt_ids if request.prompt_ids is not None else _only_text(request)
    for key in ("temperature", "top_p", "max_tokens", "seed"):
        if (value := getattr(sampling, key)) is not None:
            body[key] = value
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if logprobs:
        body |= {"logprobs": True if mode == "chat" else 1, **_TOKEN_IDS[kind]}
    return msgspec.json.encode({**body, **_STREAMED.get(kind, {}), **sampling.extra})


def decode(content: bytes, *, logprobs: bool, stops: bool = False) -> Generation:
    """The one choice of an answer, whole or streamed; token ids and logprobs are all there, or none.

    `stops` is whether the request had texts to stop at.
    """
    try:
        reply = _join(content) if content.startswith(b"data:") else _reply.decode(content)
    except msgspec.DecodeError as error:
        raise malformed(str(error), content) from error
    if len(reply.choices) != 1:
        raise malformed(f"it has {len(reply.choices)} choices", content)
    (choice,) = reply.choices
    message = choice.message or _Message(content=choice.text)
    if choice.finish_reason not in _FINISHED:
        raise malformed(f"its finish reason is {choice.finish_reason!r}", content)
    if choice.message is None and choice.text is None:
        raise malformed("it has neither a message nor a text", content)
    usage = reply.usage or _Usage()
    token_ids, numbers = _tokens(choice, usage, content, stops=stops) if logprobs else (choice.ids, None)
    details = usage.prompt_tokens_details
    return Generation(
        text=message.content or "",
        finish_reason=_FINISHED[choice.finish_reason],
        token_ids=token_ids,
        logprobs=numbers,
        prompt_ids=reply.prompt_token_ids or choice.prompt_token_ids,
        reasoning=message.reasoning_content or message.reasoning,
        tool_calls=message.tool_calls or [],
        usage=Usage(usage.prompt_tokens, usage.completion_tokens or 0, (details and details.cached_tokens) or 0),
    )


def is_context_full(said: str) -> bool:
    """Whether a refusal means that the conversation has become too long, in the words of the servers we know."""
    return _CONTEXT.search(said) is not None


def refusal(content: bytes) -> str:
    """What a server says about a call that it refuses."""
    try:
        said = _refusal.decode(content)
    except msgspec.DecodeError:
        return shown(content)
    error = said.error.message if isinstance(said.error, _Error) else said.error
    return (error or said.message or (said.detail and str(said.detail)) or shown(content))[:_SHOWN]


def malformed(why: str, content: bytes) -> ProviderError:
    return ProviderError(f"malformed answer: {why}: {shown(content)}")


def shown(content: bytes) -> str:
    text = content[: _SHOWN + 1].decode(errors="replace")
    return repr(text[:_SHOWN]) + ("..." if len(content) > _SHOWN else "")


def _join(stream: bytes) -> _Reply:
    """The answer that the events of a stream add up to."""
    *events, last = [line[5:].strip() for line in stream.splitlines() if line.startswith(b"data:")]
    if last != b"[DONE]":
        raise malformed("the stream broke off", stream)
    chunks = [_chunk.decode(event) for event in events]
    parts = [choice for chunk in chunks for choice in chunk.choices]
    deltas = [part.delta or _Message(content=part.text) for part in parts]
    tokens = [token for part in parts if part.logprobs for token in part.logprobs.content or ()]
    ids = [token for part in parts for token in part.token_ids or ()]
    text = "".join(delta.content or "" for delta in deltas)
    message = _Message(
        content=text,
        reasoning_content="".join(delta.reasoning_content or delta.reasoning or "" for delta in deltas) or None,
        tool_calls=_join_calls([call for delta in deltas for call in delta.tool_calls or ()]),
    )
    whole = _Choice(
        finish_reason=next((part.finish_reason for part in reversed(parts) if part.finish_reason), None),
        message=message if any(part.delta for part in parts) else None,
        text=text,
        logprobs=_Logprobs(content=tokens) if tokens else None,
        token_ids=ids or None,
    )
    usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None)
    prompt_ids = next((chunk.prompt_token_ids for chunk in chunks if chunk.prompt_token_ids), None)
    return _Reply([whole], usage, prompt_ids)


def _join_calls(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first part of a call has its name, the others go on with its arguments."""
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        at, function = part.get("index", 0), part.get("function") or {}
        if at not in calls:
            calls[at] = {**part, "function": dict(function)}
        else:
            known = calls[at]["function"]
            known["arguments"] = f"{known.get('arguments') or ''}{function.get('arguments') or ''}"
    return list(calls.values())


def _tokens(
    choice: _Choice, usage: _Usage, content: bytes, *, stops: bool
) -> tuple[list[int] | None, list[float] | None]:
    given = choice.logprobs or _Logprobs()
    if given.content is not None:
        numbers = [token.logprob for token in given.content]
        ids = [token.id for token in given.content if token.id is not None]
    elif given.token_logprobs is not None and None not in given.token_logprobs:
        numbers, ids = [number for number in given.token_logprobs if number is not None], []
    elif choice.finish_reason == "abort" or not (choice.text or (choice.message and choice.message.content)):
        return choice.ids or [], []
    else:
        raise malformed("logprobs were asked for, and it has none", content)
    token_ids = choice.ids if choice.ids is not None else ids if len(ids) == len(numbers) else None
    if token_ids is not None and len(token_ids) != len(numbers):
        raise malformed(f"it has {len(token_ids)} token ids and {len(numbers)} logprobs", content)
    if not all(number <= 1e-6 for number in numbers):
        raise malformed("a logprob is above 0", content)
    if ids and choice.ids is None and not _are_all(len(ids), choice, usage, stops=stops):
        return None, None
    return token_ids, numbers


def _are_all(known: int, choice: _Choice, usage: _Usage, *, stops: bool) -> bool:
    """Whether llama.cpp has told every token: it leaves those out that end within a character (half an emoji).

    Of a streamed chat it also leaves out those that add no text: the one that ends it, and the beginning of a text to
    stop at, which may be anywhere.
    """
    unseen = (usage.completion_tokens or known) - known
    ended = choice.message is not None and choice.finish_reason == "stop" and not stops
    return unseen == 0 or (unseen == 1 and ended)


def _plain_message(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_plain_part(part) for part in content]}


def _plain_part(part: Any) -> Any:
    """Pictures as data URLs; an array may stand alone, or as `{"type": "image", "image": array}`."""
    picture = part.get("image") if isinstance(part, dict) and part.get("type") == "image" else part
    if isinstance(picture, np.ndarray):
        return {"type": "image_url", "image_url": {"url": data_url(picture)}}
    return {"type": "text", "text": part} if isinstance(part, str) else part


def _only_text(request: Request) -> str:
    texts = [message.get("content") for message in request.messages]
    if len(texts) == 1 and isinstance(texts[0], str):
        return texts[0]
    raise UsageError("mode='completions' takes Request(prompt_ids=[...]), or one message with a text")
