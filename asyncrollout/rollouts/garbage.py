"""Python's garbage collector while rollouts play: each of its looks at all trajectories finds next to nothing."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


class _SharedThreshold:
    """The collector's first threshold, which several `Rollouts` may raise at a time: the highest counts."""

    def __init__(self) -> None:
        self._wanted: dict[object, int] = {}
        self._before = self._set = gc.get_threshold()

    def raise_to(self, least: int) -> object:
        """Raise it until what this returns is given to `lower`."""
        if gc.get_threshold() != self._set:  # by somebody else since, who shall have it
            self._wanted.clear()
        if not self._wanted:
            self._before = gc.get_threshold()
        wish = object()
        self._wanted[wish] = least
        self._apply()
        return wish

    def lower(self, wish: object) -> None:
        if self._wanted.pop(wish, None) is not None and gc.get_threshold() == self._set:
            self._apply()

    def _apply(self) -> None:
        first, *others = self._before
        if first:  # 0 means that nothing is collected
            first = max(first, *self._wanted.values(), 0)
        gc.set_threshold(first, *others)
        self._set = gc.get_threshold()


_THRESHOLD = _SharedThreshold()


@contextmanager
def raised_threshold(least: int | None) -> Iterator[None]:
    """The collector looks after so many new objects at the earliest; None leaves it as it is."""
    if least is None:
        yield
        return
    wish = _THRESHOLD.raise_to(least)
    try:
        yield
    finally:
        _THRESHOLD.lower(wish)
