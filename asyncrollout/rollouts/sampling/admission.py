"""When a group may start: as many as will be needed, given how many are kept, and no more than may be in flight."""

from typing import NamedTuple


class AdmissionLoad(NamedTuple):
    """What there is, in groups."""

    playing: int
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
    most_playing: int
    most_draws: int | None = None
    """How many may be drawn for one batch."""
    in_rounds: bool = False
    """Whether a filter judges a whole batch at a time."""
    most_ahead: int | None = None
    """How many may be played or kept at a time, for any size of batch."""


def may_start(load: AdmissionLoad, rules: AdmissionRules, keep_rate: float) -> bool:
    if load.playing >= rules.most_playing:
        return False
    if rules.most_draws is not None and load.judged + load.undecided >= rules.most_draws * max(rules.batches, 1):
        return False
    if rules.in_rounds and load.undecided % rules.needed:
        return True  # a round that has begun must be complete to be judged
    enough = rules.needed * rules.batches
    if rules.most_ahead is not None:
        enough = min(enough, rules.most_ahead)
    return keep_rate * load.undecided + load.buffered < enough
