"""What RAGEN's trainer needs to tell whether a model's thoughts still depend on its prompts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.dropin.ragen.data import objects
from asyncrollout.dropin.ragen.tokens import encode


def collapse_columns(
    tokenizer: Any, episodes: Sequence[Sequence[tuple[str, str]]], *, first: bool, every: bool
) -> dict[str, NDArray[Any]]:
    """Token ids of prompts and thoughts: of first turns, and of every turn that has thoughts."""
    if not (first or every):
        return {}
    turns = [[(encode(tokenizer, prompt), encode(tokenizer, thought)) for prompt, thought in one] for one in episodes]
    columns: dict[str, NDArray[Any]] = {}
    if first:
        columns["first_turn_prompt_ids"] = objects([one[0][0] if one else [] for one in turns])
        columns["first_turn_reasoning_ids"] = objects([one[0][1] if one else [] for one in turns])
    if every:
        thoughtful = [[turn for turn in one if turn[1]] for one in turns]
        columns["all_turns_prompt_ids"] = objects([[prompt for prompt, _ in one] for one in thoughtful])
        columns["all_turns_reasoning_ids"] = objects([[thought for _, thought in one] for one in thoughtful])
        columns["turn_counts"] = np.array([len(one) for one in thoughtful], dtype=np.int64)
        columns["turn_counts_total"] = np.array([len(one) for one in turns], dtype=np.int64)
    return columns
