"""When a group is wanted: as many as will be needed, given how many are kept. Then it waits for a free place."""

from typing import NamedTuple


class AdmissionLoad(NamedTuple):
    """What there is, in groups."""

    undecided: int
    """Playing, or finished and not judged yet."""
    buffered: int
    """Kept, and not delivered yet."""
    judged: int
    """Judged since the last batch was complete."""


class AdmissionRules(NamedTuple):
    """What bounds it, also in groups."""

    needed: int
    """The size of a batch."""
    batches: int
    """How many batches may be in progress."""
    most_draws: int | None = None
    """How many may be drawn for one batch."""
    in_rounds: bool = False
    """Whether a filter judges a whole batch at a time."""
    most_ahead: int | None = None
    """How many may be played or kept at a time, for any size of batch."""


def is_wanted(load: AdmissionLoad, rules: AdmissionRules, keep_rate: float) -> bool:
    """Whether another group is wanted."""
    if rules.most_draws is not None and load.judged + load.undecided >= rules.most_draws * max(rules.batches, 1):
        return False
    if rules.in_rounds and load.undecided % rules.needed:
        return True  # a round that has begun must be complete to be judged
    enough = rules.needed * rules.batches
    if rules.most_ahead is not None:
        enough = min(enough, rules.most_ahead)
    return keep_rate * load.undecided + load.buffered < enough
