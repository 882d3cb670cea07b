"""The env seeds of groups whose task has none: those of an env follow one another, whatever is played beside it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Protocol

from asyncrollout.journal.group_numbers import GroupNumbers
from asyncrollout.seeding import evaluation_seed, sampling_seed, training_seed


class RecordedSeed(Protocol):
    """A draw of an earlier process."""

    @property
    def index(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def tag(self) -> str: ...


class EnvSeeds(Protocol):
    def remember(self, recorded: Iterable[RecordedSeed]) -> None:
        """Leave out the seeds of draws that are drawn again as they were."""

    def draw(self, index: int, tag: str, recorded: RecordedSeed | None) -> int:
        """The seed of the next draw; that of the `recorded` one in its place, if it was drawn here."""


class ConsecutiveSeeds:
    """Numbers the groups of each tag from 0 on; `seed_of(tag, number)` is the seed.

    After a resume, a number that was recorded is never drawn again, even if groups get other tags now.
    """

    def __init__(self, seed_of: Callable[[str, int], int]) -> None:
        self._seed_of = seed_of
        self._next: Counter[str] = Counter()
        self._recorded: defaultdict[str, GroupNumbers] = defaultdict(GroupNumbers)

    def remember(self, recorded: Iterable[RecordedSeed]) -> None:
        for draw in recorded:
            if self._is_own(draw):
                self._recorded[draw.tag].add(self._number(draw))

    def draw(self, index: int, tag: str, recorded: RecordedSeed | None) -> int:  # noqa: ARG002
        if recorded is not None and recorded.tag == tag and self._is_own(recorded):
            return recorded.seed
        while self._next[tag] in self._recorded[tag]:
            self._next[tag] += 1
        self._next[tag] += 1
        return self._seed_of(tag, self._next[tag] - 1)

    def _number(self, draw: RecordedSeed) -> int:
        return draw.seed - self._seed_of(draw.tag, 0)

    def _is_own(self, draw: RecordedSeed) -> bool:
        """Whether the seed was drawn here, and not given with a task: no more groups were drawn before it."""
        return 0 <= self._number(draw) <= draw.index


class SpreadSeeds:
    """As older versions had them: each seed follows from the number of its group, so that rows come by chance."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def remember(self, recorded: Iterable[RecordedSeed]) -> None:
        """Seeds do not depend on what was drawn."""

    def draw(self, index: int, tag: str, recorded: RecordedSeed | None) -> int:  # noqa: ARG002
        return sampling_seed(self._seed, "env", index)


def training_seeds(seed: int, *, are_spread: bool = False) -> EnvSeeds:
    """`are_spread` for a run that an older version began."""
    return SpreadSeeds(seed) if are_spread else ConsecutiveSeeds(lambda tag, number: training_seed(seed, tag, number))


def evaluation_seeds(seed: int, *, are_spread: bool = False) -> EnvSeeds:
    if are_spread:
        return SpreadSeeds(sampling_seed(seed, "evaluation"))
    return ConsecutiveSeeds(lambda _, number: evaluation_seed(seed, number))
