"""What servers say of a prompt, with the reply to come, that is longer than the model's context."""

import re
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class ContextOverflow:
    """A refusal because of too many tokens: the context's, and what the prompt leaves of them for a reply, if said.

    `is_of_reply` if it is, or may be, the room for the reply that is missing. `is_vague` are words of vLLM, which
    counts no further than it must; without `max_tokens` it gives the reply all that is left.
    """

    context: int | None
    room: int | None
    is_of_reply: bool
    is_vague: bool = False


def read_overflow(said: str) -> ContextOverflow | None:
    """What a refusal says about the length of a call, in the words of the servers we know; None if it says nothing."""
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
