"""Groups that fail in a row: how many are more than bad luck."""

import math

from asyncrollout.errors import RolloutError, like
from asyncrollout.rollouts.sampling.filtering import error_of
from asyncrollout.trajectories import Group

_FEWEST_FAILURES = 8


class FailureStreak:
    """Counts groups in a row of which no member is valid; too many of them are raised as an error."""

    def __init__(self, group_size: int, *, had_valid: bool) -> None:
        self._group_size = group_size
        self._had_valid = had_valid
        self._length = 0
        self.last_error: RolloutError | None = None

    def note(self, group: Group, needed: int) -> None:
        """A group was judged, for a batch of `needed` groups."""
        self._length = 0 if group.completed else self._length + 1
        self._had_valid |= bool(group.completed)
        self.last_error = error_of(group) or self.last_error
        if self._length >= self._most(needed):
            raise self._raised(f"all rollouts of {self._length} groups in a row failed")

    def check_end(self) -> None:
        """Raise if the tasks have ended, and none of them could be played."""
        if self._length and not self._had_valid:
            raise self._raised(f"all {self._length} groups failed")

    def _most(self, needed: int) -> int:
        """Fewer if nothing has worked yet, since then it is hardly bad luck."""
        if self._had_valid:
            return max(_FEWEST_FAILURES, needed)
        return max(math.ceil(_FEWEST_FAILURES / self._group_size), 2)

    def _raised(self, what: str) -> RolloutError:
        error = self.last_error
        assert error is not None, "a group without a valid member has an error"
        return like(error, f"{what}; the last one: {type(error).__name__}: {error}")
