"""How far ahead groups may be played when they are taken one by one."""


class Pace:
    """Counts the groups that are taken from one weight update to the next: that is the trainer's real batch.

    As many may be played ahead as will be taken before `max_lag` updates from now, if the trainer keeps its pace.
    Before the first update the pace is unknown: as many are played ahead as have been taken.
    """

    def __init__(self) -> None:
        self._version: int | None = None
        self._now = 0
        self._last = 0

    def note(self, version: int, taken: int) -> None:
        """Groups were taken while the policy had this version."""
        if version != self._version:
            self._last, self._now, self._version = self._now, 0, version
        self._now += taken

    def most_ahead(self, version: int, max_lag: int, *, is_awaited: bool) -> int:
        taken, expected = (self._now, self._last) if version == self._version else (0, self._now)
        if max_lag:
            return max(expected - taken, int(is_awaited)) + max_lag * max(expected, taken)
        if not is_awaited:
            return 0
        return expected - taken if taken < expected else max(taken, 1)
