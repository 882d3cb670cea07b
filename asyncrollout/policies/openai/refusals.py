"""What a response without a generation means: whether it passes, how long to wait, and what to do about it."""

import email.utils
import math
import re
import time
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import anyio
import msgspec
import numpy as np

from asyncrollout.policies.openai.bodies import read_start
from asyncrollout.policies.openai.concurrency_limit import FIRST_WAIT
from asyncrollout.policies.openai.endpoint import Endpoint
from asyncrollout.policies.openai.responses import SHOWN, UNREADABLE, shown
from asyncrollout.policies.openai.session import ApiKey, HttpResponse, HttpSession

Failure = Literal["permanent", "refused", "passing"]
"""Our own mistake, too many calls, or a failure that may be over at the next attempt."""

LONGEST_WAIT = 60.0
"""Seconds; a Retry-After above this is cut to it."""

_PASSING = frozenset({408, 409, 425})
_READ = 10_000  # characters of what a server says

_NUMBERS = [
    re.compile(wording, re.IGNORECASE | re.DOTALL)
    for wording in (
        # OpenAI, DeepSeek, older vLLM
        r"context length is (?P<context>\d+) tokens.*?\((?P<prompt>\d+) in the messages, (?P<functions>\d+) in the f",
        r"context length is (?P<context>\d+) tokens.*?\((?P<prompt>\d+) in \w+ (?:messages|prompt)",
        # vLLM
        r"context length is (?P<context>\d+) tokens and your request has (?P<prompt>\d+) input tokens",
        r"context length is (?P<context>\d+) tokens.*?prompt contains (?P<prompt>\d+) input tokens",
        r"prompt \(length (?P<prompt>\d+)\).*?maximum model length of (?P<context>\d+)",
        r"input length \((?P<prompt>\d+)\) exceeds model's maximum context length \((?P<context>\d+)\)",
        # SGLang
        r"context length of (?P<context>\d+) tokens.*?: (?P<prompt>\d+) tokens from the input",
        r"input \((?P<prompt>\d+) tokens\) is longer than the model's context length \((?P<context>\d+)",
        # Anthropic
        r"exceed context limit: (?P<prompt>\d+) \+ \d+ > (?P<context>\d+)",
        r"max_tokens: \d+ > (?P<room>\d+)",
        # OpenAI, of the longest reply
        r"at most (?P<room>\d+) completion tokens",
        # text-generation-inference
        r"must be <= (?P<context>\d+)\. Given: (?P<prompt>\d+) `inputs` tokens",
    )
]
_TOO_LONG = re.compile(
    r"context[ _](?:length|size|window|limit)|exceed_context|cannot be greater than max_model_len"
    r"|longer than the maximum model length"  # vLLM, of prompts with pictures
    r"|input token count.{0,20} exceeds the maximum|input tokens exceed the configured limit"  # Gemini, GPT-5
    r"|(?:prompt|input) is too long|maximum prompt length|exceeded model token limit"  # Anthropic, Bedrock, xAI, Kimi
    r"|`inputs` must have less than",
    re.IGNORECASE,
)
_SIZE = re.compile(r"context length is (\d+) tokens|max_total_tokens=(\d+)", re.IGNORECASE)
_OF_REPLY = re.compile(r"max_(?:new_|completion_|output_)?tokens|completion|output tokens", re.IGNORECASE)
_VAGUE = re.compile(
    r"at least \d+ input tokens|upper bound for \d+ input tokens|cannot be greater than max_model_len", re.IGNORECASE
)
_DIGITS = 18  # of a number that is read; Python refuses to read thousands

_SECONDS = 5.0
_MOST_BYTES = 2**20
_MODELS_SHOWN = 10
_KEPT = 30.0  # seconds in which all calls get the same advice, without asking the server again
_CALL_PATHS = ("/chat/completions", "/completions")


def failure_of(status: int) -> Failure:
    if status == 429:
        return "refused"
    return "passing" if status >= 500 or status in _PASSING else "permanent"


def read_retry_after(value: str | None, *, now: float | None = None) -> float | None:
    """Seconds to wait, from a number or a date; None if it is neither."""
    if not value or len(value) > 100:
        return None
    value = value.strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - (time.time() if now is None else now)
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(seconds, 0.0), LONGEST_WAIT) if math.isfinite(seconds) else None


def backoff(attempt: int, rng: np.random.Generator) -> float:
    """Seconds before attempt number `attempt` (the second is 1): twice as long each time, with jitter."""
    longest = min(FIRST_WAIT * 2 ** (attempt - 1), LONGEST_WAIT)
    return float(longest * spread(rng))


def spread(rng: np.random.Generator) -> float:
    """A random factor for waits, so that several programs do not call at the same moment."""
    return float(0.5 + rng.random() / 2)


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
    """The server's message about a call that it refuses, with its code if that is a word."""
    try:
        decoded = _refusal.decode(content)
    except UNREADABLE:
        return shown(content)
    said = decoded if isinstance(decoded, _Refusal) else decoded[0] if decoded else _Refusal()
    error, code = (said.error.message, said.error.code) if isinstance(said.error, _Error) else (said.error, said.code)
    text = (error or said.message or (said.detail and str(said.detail)) or shown(content))[:_READ]
    return f"{text} ({code[:SHOWN]})" if isinstance(code, str) and code and code not in text else text


@dataclass(frozen=True, slots=True)
class ContextOverflow:
    """A refusal because of too many tokens: the context's size, and what the prompt leaves for a reply, if reported.

    `is_of_reply` if the room for the reply is missing, or may be. `is_vague` marks messages of vLLM that do not count
    the prompt to its end; without `max_tokens`, vLLM gives the reply all that is left.
    """

    context: int | None
    room: int | None
    is_of_reply: bool
    is_vague: bool = False


def read_overflow(said: str) -> ContextOverflow | None:
    """What a refusal says about the length of a call, in the wordings of known servers; None if it says nothing."""
    for wording in _NUMBERS:
        if found := wording.search(said):
            numbers = {name: int(value[:_DIGITS]) for name, value in found.groupdict().items()}
            if "room" in numbers:
                return ContextOverflow(None, numbers["room"], is_of_reply=True)
            room = numbers["context"] - numbers["prompt"] - numbers.get("functions", 0)
            return ContextOverflow(numbers["context"], room, is_of_reply=room > 0)
    if not _TOO_LONG.search(said):
        return None
    size = _SIZE.search(said)
    return ContextOverflow(
        int((size[1] or size[2])[:_DIGITS]) if size else None,
        None,
        is_of_reply=_OF_REPLY.search(said) is not None,
        is_vague=_VAGUE.search(said) is not None,
    )


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_models = msgspec.json.Decoder(_Models)


class Advisor:
    """Asks the server that refused for what would work; once for many calls."""

    def __init__(self, model: str, key: ApiKey) -> None:
        self._model = model
        self._key = key
        self._asking = anyio.Lock()
        self._said: dict[tuple[Endpoint, int], tuple[float, str]] = {}

    async def advise(self, session: HttpSession, endpoint: Endpoint, response: HttpResponse) -> str:
        """What to add to the server's own message, if anything: where the key came from, an address, the models."""
        status = response.status
        if status in (401, 403):
            return f" ({self._key.origin})"
        if 300 <= status < 400:
            target = self._key.hidden(response.headers.get("Location", ""))[:300]
            return f" (it redirects to {target!r}: set base_url to the address that responds itself)"
        is_of_model = status in (400, 422) and b"model" in response.content
        if not session.is_open or not (status == 404 or is_of_model):
            return ""
        async with self._asking:
            at, said = self._said.get((endpoint, status), (-_KEPT, ""))
            if time.monotonic() - at < _KEPT:
                return said
            with anyio.move_on_after(_SECONDS):
                said = await self._look(session.client, endpoint)
            self._said[endpoint, status] = time.monotonic(), said
        return said

    async def _look(self, client: aiohttp.ClientSession, endpoint: Endpoint) -> str:
        known = await self._models(client, endpoint.url)
        if known is None:
            for url in _other_addresses(endpoint.url):
                if await self._models(client, url) is not None:
                    return f" (a server responds at another address: set base_url={_shown(url)!r})"
            return ""
        if not known or self._model in known:
            return ""
        more = f" and {len(known) - _MODELS_SHOWN} more" if len(known) > _MODELS_SHOWN else ""
        names = ", ".join(repr(self._key.hidden(name)[:200]) for name in known[:_MODELS_SHOWN])
        return f" (it has no model {self._model!r}; available: {names}{more})"

    async def _models(self, client: aiohttp.ClientSession, url: str) -> list[str] | None:
        """Those of a server; empty if it does not list them, None if the server is unknown."""
        try:
            async with client.get(f"{url}/models", headers=self._key.headers, allow_redirects=False) as response:
                if response.status in (401, 403):
                    return []
                if response.status != 200:
                    return None
                return [model.id for model in _models.decode(await read_start(response, _MOST_BYTES)).data]
        except (aiohttp.ClientError, OSError, *UNREADABLE):
            return None


def _other_addresses(url: str) -> list[str]:
    """Where the server might be if its address was given without /v1, or with the path of a call."""
    parts = urlsplit(url)
    cut = next((url.removesuffix(path) for path in _CALL_PATHS if url.endswith(path)), None)
    host = f"{parts.scheme}://{parts.netloc}"
    found = [*([cut] if cut else []), f"{cut or url}/v1", f"{host}/v1", f"{host}/api/v1"]
    return [address for address in dict.fromkeys(found) if address != url]


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
