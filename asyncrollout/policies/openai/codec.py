"""The OpenAI protocol: requests to JSON bodies, responses to generations. A malformed response is a `ProviderError`."""

import re
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET

from asyncrollout.errors import UsageError
from asyncrollout.images import data_url, is_picture
from asyncrollout.policies.openai.bodies import LARGE
from asyncrollout.policies.openai.responses import (
    UNREADABLE,
    AbortedReplyError,
    Byte,
    ChatResponse,
    Choice,
    Logprobs,
    Message,
    ReportedUsage,
    TokenLogprob,
    check_values,
    is_stream,
    join,
    malformed,
)
from asyncrollout.types import FinishReason, Generation, Request, Sampling, Usage

Mode = Literal["chat", "completions"]
ServerKind = Literal["openai", "vllm", "sglang", "llamacpp"]

_TOKEN_IDS: dict[ServerKind, dict[str, Any]] = {
    "openai": {},
    "llamacpp": {},
    "vllm": {"return_token_ids": True},
    "sglang": {"return_token_ids": True, "return_prompt_token_ids": True},
}
"""Fields that make a server return token ids; strict servers refuse unknown fields."""

STREAMED: dict[ServerKind, dict[str, Any]] = {
    "llamacpp": {"stream": True, "stream_options": {"include_usage": True}},
}
"""Servers that finish a call after the client has closed the connection, unless it streams."""

_FINISHED: dict[str | None, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "abort",
}
_SENT_AS_IS = tuple(name for name in Sampling.__struct_fields__ if name not in ("stop", "extra"))
_ONLY_TEXT = frozenset({"text", "input_text"})

_response = msgspec.json.Decoder(ChatResponse)
_SPECIAL = re.compile(r"<[^<>\s]{1,40}>|\[[A-Z_/]{2,20}\]")
_UNCLEAR = re.compile(
    r"\ufffd"  # a token that ends within a character
    r"|token_id:\d|<0x[0-9A-F]{2}>"  # numbers instead of texts
    r"|[\u0120\u010a\u2581]"  # spaces and line ends as vocabularies write them
)

_bytes = msgspec.json.Decoder(list[Byte] | None)


def merge(sampling: Sampling, default: Sampling) -> Sampling:
    """The sampling of a request, with defaults for what it leaves open."""
    given = {name: value for name in Sampling.__struct_fields__ if (value := getattr(sampling, name)) not in (None, ())}
    return msgspec.structs.replace(default, **{**given, "extra": {**default.extra, **sampling.extra}})


def encode(request: Request, model: str, mode: Mode, kind: ServerKind, *, logprobs: bool) -> bytes:
    """The JSON body of a call."""
    sampling = request.sampling
    body: dict[str, Any] = {"model": model, **_prompt(request, mode)}
    for name in _SENT_AS_IS:
        if (value := getattr(sampling, name)) is not None:
            body[name] = value
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    body |= _TOKEN_IDS[kind]
    if logprobs:
        body["logprobs"] = True if mode == "chat" else 1
    try:
        return msgspec.json.encode({**body, **STREAMED.get(kind, {}), **sampling.extra})
    except (TypeError, ValueError, RecursionError) as error:  # such as surrogates, which JSON cannot hold
        raise UsageError(f"this request cannot be sent: {error}") from error


class StopSequences(msgspec.Struct, frozen=True):
    """The texts and tokens that end a reply beside the model's own end of a message."""

    texts: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()


NO_STOPS = StopSequences()


def stops_of(*samplings: Sampling) -> StopSequences:
    """Those of all given samplings, from their fields and from `extra`."""
    texts: list[Any] = []
    ids: list[Any] = []
    for sampling in samplings:
        if sampling.stop or sampling.extra:
            texts += [*sampling.stop, *_listed(sampling.extra.get("stop"))]
            ids += _listed(sampling.extra.get("stop_token_ids"))
    return StopSequences(tuple(texts), tuple(ids)) if texts or ids else NO_STOPS


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def decode(
    content: bytes, *, logprobs: bool, stops: StopSequences = NO_STOPS, kind: ServerKind | None = None
) -> Generation:
    """The one choice of a response, whole or streamed; token ids and logprobs are complete, or None."""
    if len(content) > LARGE:
        check_values(content)
    try:
        response = join(content) if is_stream(content) else _response.decode(content)
    except UNREADABLE as error:
        raise malformed(str(error), content) from error
    if len(response.choices) != 1:
        raise malformed(f"it has {len(response.choices)} choices", content)
    (choice,) = response.choices
    message = choice.message or Message(content=choice.text)
    if choice.finish_reason == "abort":
        raise AbortedReplyError("the server aborted the reply")
    if choice.finish_reason not in _FINISHED:
        raise malformed(f"its finish reason is {choice.finish_reason!r}", content)
    if choice.message is None and choice.text is None:
        raise malformed("it has neither a message nor a text", content)
    usage = response.usage or ReportedUsage()
    token_ids, numbers = choice.ids, None
    if logprobs:
        token_ids, numbers = _tokens(choice, message, usage, content, stops)
    if token_ids is None and kind == "llamacpp" and _is_empty_reply(choice, message, usage, stops):
        token_ids, numbers = [], [] if logprobs else None
    details = usage.prompt_tokens_details
    return Generation(
        text=message.content or "",
        finish_reason=_FINISHED[choice.finish_reason],
        token_ids=token_ids,
        logprobs=numbers,
        prompt_ids=response.prompt_token_ids or choice.prompt_token_ids,
        reasoning=message.reasoning_content or message.reasoning,
        tool_calls=message.tool_calls or [],
        usage=Usage(usage.prompt_tokens, usage.completion_tokens or 0, (details and details.cached_tokens) or 0),
        stopped_early=_has_stopped_early(choice, stops),
    )


def _has_stopped_early(choice: Choice, stops: StopSequences) -> bool:
    """Whether it ended before the model's own end of a message; True if the server does not say, and it may have."""
    if choice.finish_reason == "length":
        return False
    at = choice.stopped_at
    return bool(stops.texts or stops.ids) if at is UNSET else isinstance(at, str) or at in stops.ids


def _is_empty_reply(choice: Choice, message: Message, usage: ReportedUsage, stops: StopSequences) -> bool:
    """Whether llama.cpp's model ended its message at once: the end token is not reported."""
    is_silent = not (message.content or message.reasoning_content or message.reasoning or message.tool_calls)
    was_short = choice.finish_reason == "stop" and (usage.completion_tokens or 0) <= 1
    return is_silent and was_short and choice.logprobs is None and not stops.texts


def _tokens(
    choice: Choice, message: Message, usage: ReportedUsage, content: bytes, stops: StopSequences
) -> tuple[list[int] | None, list[float] | None]:
    given = choice.logprobs or Logprobs()
    reported = given.content
    if reported is None and given.token_logprobs is not None:
        if None in given.token_logprobs:
            raise malformed("a logprob is missing", content)
        names = given.tokens or [""] * len(given.token_logprobs)
        reported = [
            TokenLogprob(number or 0.0, token=name) for number, name in zip(given.token_logprobs, names, strict=False)
        ]
    if not reported:
        if message.content:
            raise malformed(
                "logprobs were requested, but it has none: set logprobs=False (policy.logprobs: false)",
                content,
            )
        return ([], []) if choice.ids == [] else (None, None)
    numbers = [token.logprob for token in reported]
    if not all(number <= 1e-6 for number in numbers):
        raise malformed("a logprob is above 0", content)
    ids = choice.ids
    if ids is None:
        ids = [token.id for token in reported if token.id is not None]
        if len(ids) != len(numbers):
            ids = None
        elif not _are_all(len(ids), choice, usage, stops=bool(stops.texts)):
            return None, None  # others are missing, so nothing can be compared either
    elif len(ids) != len(numbers):
        raise malformed(f"it has {len(ids)} token ids and {len(numbers)} logprobs", content)
    if not _fit(reported, choice, message, stops, content):
        raise malformed("its logprobs are those of another text", content)
    return ids, numbers


def _fit(reported: list[TokenLogprob], choice: Choice, message: Message, stops: StopSequences, content: bytes) -> bool:
    """Whether these are the tokens of the text; servers that parse tool calls or filter show only parts of it."""
    if message.tool_calls or choice.finish_reason == "content_filter":
        return True
    try:
        if message.content:
            return spell(reported, message.content)
    except msgspec.ValidationError as error:
        raise malformed(str(error), content) from error
    if message.reasoning_content or message.reasoning:
        return True
    at = choice.stopped_at
    return spell_nothing(reported, (*stops.texts, at) if isinstance(at, str) else stops.texts)


def _are_all(known: int, choice: Choice, usage: ReportedUsage, *, stops: bool) -> bool:
    """Whether llama.cpp has reported every token: it leaves out those that end within a character (half an emoji).

    In a streamed chat it also leaves out those without text: the one that ends it, and those in which a stop string
    may have begun, which may be anywhere. Ids with a gap would be joined to the wrong tokens in training, so that a
    reply with unknown ones has none at all.
    """
    unseen = (usage.completion_tokens or known) - known
    ended = choice.message is not None and choice.finish_reason == "stop" and not stops
    return unseen == 0 or (unseen == 1 and ended)


def _prompt(request: Request, mode: Mode) -> dict[str, Any]:
    if mode == "completions":
        if any(_has_picture(message) for message in request.messages):
            raise UsageError("mode='completions' cannot send pictures: use mode='chat', without encode=")
        ids: Any = request.prompt_ids
        return {"prompt": _only_text(request) if ids is None else ids.tolist() if isinstance(ids, np.ndarray) else ids}
    if request.prompt_ids is not None:
        raise UsageError("Request(prompt_ids=[...]) needs OpenAIPolicy(mode='completions'): a chat takes messages")
    if not request.messages or type(request.messages) not in (list, tuple):
        raise UsageError("a chat takes Request(messages=[{'role': 'user', 'content': ...}, ...])")
    return {"messages": [_plain_message(message) for message in request.messages]}


def _plain_message(message: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise UsageError(f"a message must be {{'role': ..., 'content': ...}}, not {message!r:.100}")
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_plain_part(part) for part in content]}


def _has_picture(message: Any) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return False
    return not all(
        isinstance(part, str) or (isinstance(part, dict) and part.get("type") in _ONLY_TEXT) for part in content
    )


def _plain_part(part: Any) -> Any:
    """Pictures as data URLs; one may stand alone, or as `{"type": "image", "image": picture}`."""
    picture = part.get("image") if isinstance(part, dict) and part.get("type") == "image" else part
    if is_picture(picture):
        return {"type": "image_url", "image_url": {"url": data_url(picture)}}
    return {"type": "text", "text": part} if isinstance(part, str) else part


def _only_text(request: Request) -> str:
    texts = [message.get("content") for message in request.messages]
    if len(texts) == 1 and isinstance(texts[0], str):
        return texts[0]
    raise UsageError(
        "mode='completions' takes Request(prompt_ids=[...]), or one message with a text: for an agent, set "
        "history=0 and system_prompt='' (agent.history: 0 and agent.system_prompt: '')"
    )


def spell(tokens: list[TokenLogprob], text: str) -> bool:
    """Whether tokens spell a text, ignoring spaces and special tokens; True where that cannot be judged.

    Training on logprobs of another text would be wrong in silence, so they are compared with the reply. But servers
    write the texts of tokens in many ways (byte fallback, vocabulary markers, replacement characters): only a clear
    contradiction counts.
    """
    spelt = "".join([token.token for token in tokens])
    if text in spelt:  # nearly always
        return True
    if _UNCLEAR.search(spelt):
        return True
    raw = b"".join(bytes(_bytes.decode(token.bytes) or ()) or token.token.encode(errors="replace") for token in tokens)
    if not raw or _squeezed(text.encode(errors="replace")) in _squeezed(raw):
        return True
    return "".join(_SPECIAL.sub("", text).split()) in "".join(_SPECIAL.sub("", spelt).split())


def spell_nothing(tokens: list[TokenLogprob], stops: tuple[str, ...]) -> bool:
    """Whether tokens may belong to an empty text: they are blank, a stop comes first, or they are hidden.

    What begins with a special token (`<think>`, `<tool_call>`) may be hidden by the server's parsers.
    """
    spelt = "".join([token.token for token in tokens])
    shown = spelt.strip()
    first = next((name for token in tokens if (name := token.token.strip())), "")
    if not shown or _SPECIAL.fullmatch(first) or _UNCLEAR.search(spelt):
        return True
    return any(spelt.startswith(stop) or shown.startswith(stop.strip() or spelt) for stop in stops)


def _squeezed(text: bytes) -> bytes:
    return b"".join(text.split())
