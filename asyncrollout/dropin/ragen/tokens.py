"""Conversations as rows of token ids, by any tokenizer with `apply_chat_template`, `encode` and `pad_token_id`."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError

Message = dict[str, Any]
Ints = NDArray[np.int64]
Truncation = Literal["error", "left", "right", "middle"]


class TokenizedConversation(msgspec.Struct, frozen=True):
    """Token ids, whether a model said each of them, whether it is trained on it, and where each of its replies ends."""

    ids: list[int]
    spoken: list[bool]
    learned: list[bool]
    ends: list[int]


Learned = Literal["replies", "last", "all"]
"""What is trained on: a model's replies, the last of them, or everything but the system's message."""


def encode_prompt(
    tokenizer: Any, messages: Sequence[Message], prefill: str = "", options: Mapping[str, Any] | None = None
) -> list[int]:
    """Up to where the model continues; `prefill` is how its reply begins, `options` are the chat template's."""
    return encode(tokenizer, _template(tokenizer, messages, is_prompt=True, **(options or {})) + prefill)


def count_tokens(tokenizer: Any, messages: Sequence[Message], prefill: str = "") -> int:
    """Of a prompt, or of a conversation that ends with a reply."""
    is_prompt = messages[-1]["role"] != "assistant"
    text = _template(tokenizer, messages, is_prompt=is_prompt) + prefill * is_prompt
    return len(encode(tokenizer, text))


def encode_conversation(
    tokenizer: Any, messages: Sequence[Message], learned: Learned = "replies"
) -> TokenizedConversation:
    """Each reply is encoded on its own, so that no token belongs to both a prompt and a reply."""
    ids: list[int] = []
    spoken: list[bool] = []
    starts: list[int] = []
    ends: list[int] = []
    done = ""
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = _template(tokenizer, messages[:place], is_prompt=True)
        through = _template(tokenizer, messages[: place + 1], is_prompt=False)
        if not prompt.startswith(done) or not through.startswith(prompt):
            raise UsageError(
                "the tokenizer's chat template changes what came before (some drop old thoughts): a conversation of "
                "several turns cannot be one row of tokens with it"
            )
        asked, said = encode(tokenizer, prompt[len(done) :]), encode(tokenizer, through[len(prompt) :])
        starts.append(len(ids) + len(asked))
        ids += asked + said
        spoken += [False] * len(asked) + [True] * len(said)
        ends.append(len(ids) - 1)
        done = through
    if learned == "all":
        first = len(encode(tokenizer, _template(tokenizer, messages[:1], is_prompt=False)))
    else:
        first = starts[-1] if learned == "last" and starts else 0
    trained = [place >= first and (said or learned == "all") for place, said in enumerate(spoken)]
    return TokenizedConversation(ids, spoken, trained, ends)


def pad(rows: Sequence[Sequence[int]], *, side: Literal["left", "right"], fill: int, width: int | None = None) -> Ints:
    """Rows of one width: the longest row's, or the given one."""
    width = max(map(len, rows), default=0) if width is None else width
    padded = np.full((len(rows), width), fill, dtype=np.int64)
    for place, row in enumerate(rows):
        if row:
            padded[place, slice(-len(row), None) if side == "left" else slice(len(row))] = row
    return padded


def encode_prompts(
    tokenizer: Any,
    prompts: Sequence[Sequence[Message]],
    *,
    width: int | None,
    truncation: Truncation = "error",
    prefill: str = "",
    options: Mapping[str, Any] | None = None,
) -> list[list[int]]:
    """Prompts of at most `width` tokens; longer ones are cut as `data.truncation` says, or refused."""
    rows = [encode_prompt(tokenizer, messages, prefill, options) for messages in prompts]
    if width is None:
        return rows
    longest = max(map(len, rows), default=0)
    if longest > width and truncation == "error":
        raise UsageError(
            f"a prompt has {longest} tokens, more than data.max_prompt_length={width}: raise it, or set "
            "data.truncation to left, right or middle"
        )
    return [_cut(row, width, truncation) for row in rows]


def prompt_arrays(
    tokenizer: Any, prompts: Sequence[Sequence[Message]], *, width: int | None, prefill: str = ""
) -> dict[str, Ints]:
    """verl's three arrays of prompts, padded on the left to one width: the given one, or the longest prompt's."""
    return row_arrays(tokenizer, encode_prompts(tokenizer, prompts, width=width, prefill=prefill), width)


def conversation_arrays(tokenizer: Any, found: Sequence[TokenizedConversation]) -> dict[str, Ints]:
    """RAGEN's arrays of conversations, padded on the left; `responses` and `loss_mask` begin at the second token."""
    arrays = row_arrays(tokenizer, [one.ids for one in found], None)
    learned = pad([[*map(int, one.learned)] for one in found], side="left", fill=0)
    return {**arrays, "responses": arrays["input_ids"][:, 1:], "loss_mask": learned[:, 1:]}


def row_arrays(tokenizer: Any, rows: Sequence[list[int]], width: int | None) -> dict[str, Ints]:
    """Token ids, mask and positions, padded on the left to a width, or to the longest row's."""
    shown = pad([[1] * len(row) for row in rows], side="left", fill=0, width=width)
    return {
        "input_ids": pad(rows, side="left", fill=getattr(tokenizer, "pad_token_id", None) or 0, width=width),
        "attention_mask": shown,
        "position_ids": (np.cumsum(shown, axis=1) - 1).clip(0),
    }


def _cut(row: list[int], width: int, truncation: Truncation) -> list[int]:
    """A row without the tokens at its left, at its right or in its middle that are too many."""
    if len(row) <= width:
        return row
    front = {"left": 0, "right": width}.get(truncation, width // 2)
    return row[:front] + row[len(row) - (width - front) :]


def _template(tokenizer: Any, messages: Sequence[Message], *, is_prompt: bool, **options: Any) -> str:
    given = {"add_generation_prompt": is_prompt, "tokenize": False, **options}
    return str(tokenizer.apply_chat_template(list(messages), **given))


def encode(tokenizer: Any, text: str) -> list[int]:
    """Without special tokens around it, where the tokenizer can add some."""
    parameters = inspect.signature(tokenizer.encode).parameters
    takes_option = "add_special_tokens" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    tokens = tokenizer.encode(text, add_special_tokens=False) if takes_option else tokenizer.encode(text)
    return [int(token) for token in tokens]
