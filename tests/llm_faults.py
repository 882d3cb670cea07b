"""What can go wrong between a client and a server of language models, one small value for each way."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio

Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """These bytes instead of a completion; without a body, the error object of the server's kind."""

    status: int = 200
    message: str = "scripted fault"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"


@dataclass(frozen=True)
class Reply:
    """A completion that says this instead of the usual."""

    text: str | None = None
    finish_reason: str | None = None
    tool_calls: tuple[tuple[str, str], ...] = ()  # name and JSON arguments of each
    reasoning: str | None = None


@dataclass(frozen=True)
class Edit:
    """The usual completion after `change` has spoilt it in place; a stream is cut from the spoilt one."""

    change: Callable[[Json], object]


@dataclass(frozen=True)
class Ending:
    """A stream whose last event is this instead of [DONE], or that just ends."""

    event: Json | None = None


@dataclass(frozen=True)
class Cut:
    """The connection is lost after this part of the answer; with nothing sent, before its headers too."""

    sent: float = 0.0
    reset: bool = True  # a TCP reset, not an orderly close


@dataclass(frozen=True)
class Hold:
    """Nothing more after this part of the answer until the event is set, or for ever; then `then`."""

    until: anyio.Event | None = None
    sent: float = 0.0
    then: "Fault | None" = None  # plays only if nothing was sent before


@dataclass(frozen=True)
class Trickle:
    """The answer in pieces of `size` bytes, `delay` seconds apart."""

    size: int = 1
    delay: float = 0.0


Fault = Answer | Reply | Edit | Ending | Cut | Hold | Trickle
Script = list[Fault | None] | Callable[[int, Json], Fault | None]


def _shorten_logprobs(response: Json) -> None:
    for choice in response["choices"]:
        for values in (choice["logprobs"] or {}).values():
            values.pop()


def _shorten_ids(response: Json) -> None:
    for choice in response["choices"]:
        for name in choice.keys() & {"token_ids", "response_token_ids"}:
            choice[name].pop()


RESET, DROPPED, TRUNCATED, HANG = Cut(), Cut(reset=False), Cut(0.5, reset=False), Hold()
BAD_JSON = Answer(body=b'{"id": "chatcmpl-1", "choices": [{"index": 0, ')
WRONG_TYPE = Answer(body=b"<html><body>Welcome to nginx!</body></html>", content_type="text/html")
EMPTY_CHOICES = Edit(lambda response: response["choices"].clear())
NO_LOGPROBS = Edit(lambda response: [choice.update(logprobs=None) for choice in response["choices"]])
SHORT_LOGPROBS = Edit(_shorten_logprobs)
SHORT_TOKEN_IDS = Edit(_shorten_ids)
ABORTED, NO_DONE = Reply(finish_reason="abort"), Ending()


def huge(megabytes: int) -> Answer:
    return Answer(body=b" " * (megabytes << 20) + b"{}")
