"""Whether each turn's prompt extends the turn before exactly, token by token."""

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenSequence:
    """The tokens of an episode so far: prompts as the model saw them, and what it sampled."""

    def __init__(self) -> None:
        self._tokens = array("i")

    def extended_by(self, tokens: Sequence[int]) -> list[int]:
        """A prompt: all tokens so far, then these."""
        return [*self._tokens, *tokens]

    def add_turn(self, prompt: Sequence[int], sampled: Sequence[int]) -> tuple[NDArray[np.int32], bool]:
        """The new part of a turn's prompt, and whether it extends the turn before; if not, that is the whole prompt."""
        length = len(self._tokens)
        whole = array("i", prompt)
        joined = 0 < length <= len(whole) and whole[:length] == self._tokens
        self._tokens = whole
        self._tokens.extend(sampled)
        return np.array(whole[length if joined else 0 : len(prompt)], dtype=np.int32), joined


def unsampled(end: Sequence[int], sampled: Sequence[int]) -> Sequence[int]:
    """What is missing of the tokens that end a message."""
    known = next((size for size in range(len(end), 0, -1) if list(sampled[-size:]) == list(end[:size])), 0)
    return end[known:]
