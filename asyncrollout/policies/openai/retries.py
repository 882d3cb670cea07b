"""What to do about a failed call: which failures pass, how long to wait, when to give up."""

import email.utils
import math
import time
from typing import Literal

import numpy as np

Failure = Literal["permanent", "refused", "passing"]
"""A mistake of ours, too many calls, or trouble that may be over at the next attempt."""

LONGEST_WAIT = 60.0
"""Seconds; a server that asks for more is not believed."""

FIRST_WAIT = 0.25
"""Seconds, before the second attempt."""

_PASSING = frozenset({408, 409, 425})


def failure_of(status: int) -> Failure:
    if status == 429:
        return "refused"
    return "passing" if status >= 500 or status in _PASSING else "permanent"


def read_retry_after(value: str | None, *, now: float | None = None) -> float | None:
    """Seconds to wait, from a number or a date; None where there is nothing sensible."""
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
    """Seconds before attempt number `attempt` (the second is 1): twice as long each time, and spread at random."""
    longest = min(FIRST_WAIT * 2 ** (attempt - 1), LONGEST_WAIT)
    return float(longest * spread(rng))


def spread(rng: np.random.Generator) -> float:
    """A factor for waits, so that several programs do not call at the same moment."""
    return float(0.5 + rng.random() / 2)
