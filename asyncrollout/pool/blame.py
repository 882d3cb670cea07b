"""Which deaths of its workers count against an env, and when it fails because of them.

A worker dies with all its envs, and seldom says of which. To fail them all would punish the innocent, to retry them all
would let one env kill workers for ever. So the suspects are retried in ever smaller companies (`quarantine.Retries`)
until one is alone when it happens again.
"""

from collections import Counter

from asyncrollout.pool.hosts import HostLost
from asyncrollout.pool.wire.messages import Op

_OWN_DEATHS = 2
_OUTSIDE_DEATHS = 5
_DOUBTFUL_DEATHS = 25
_FRUITLESS_DEATHS = 500
_UNSORTED = 4  # kills from outside after which all suspects are simply tried again


class Acquittals:
    """How many kills in a whole pool hit an env that was at work alone, and whose call went well later."""

    def __init__(self) -> None:
        self.count = 0


class Blame:
    """The deaths of workers that one env was on, in one episode.

    Proof is a death at which no other env was at work. A crash proves more than a signal that anybody may have sent.
    Such a kill says little while strays are seen: kills of idle workers, or at calls that went well later, which no env
    can have caused. A replay repeats what has gone well before, so deaths there are counted apart from those at the
    call. A completed call clears the env of all but its crashes: `max_restarts` bounds these in one episode.
    """

    def __init__(self, max_restarts: int, acquittals: Acquittals) -> None:
        self._max_restarts = max_restarts
        self._acquittals = acquittals
        self._kills_alone = 0
        self._crashes = 0
        self._suspects = 0
        self._halvings = 0
        self._fruitless = 0
        self._crashes_at: Counter[Op] = Counter()
        self._alone_at: Counter[Op] = Counter()
        self._kills_at: Counter[Op] = Counter()
        self._strays_before: dict[Op, int] = {}  # in the whole pool, before the first kill here

    @property
    def companions(self) -> int:
        """How many suspects, this one included, may be tried at a time; 0 if they need not be separated."""
        if self._suspects < 2 or not self._halvings:
            return 0
        return max(1, self._suspects >> self._halvings)

    @property
    def is_tried_alone(self) -> bool:
        """Whether other envs, suspects or not, must leave its worker; not after one death, since they have to wait."""
        return self.companions == 1 and self._halvings > 1

    def add(self, lost: HostLost, at: Op) -> str:
        """Take note of a death; why the env is to fail of it, or nothing if it is to be restored."""
        self._suspects = lost.suspects
        self._fruitless += 1
        if lost.is_suspect:
            self._add_as_suspect(lost, at)
        if lost.is_sole_suspect:
            crashed_again = not lost.from_outside and self._crashes_at[at] >= _OWN_DEATHS
            if crashed_again or self._alone_at[at] >= self._most_kills(lost, at):
                deaths = max(self._crashes_at[at], self._alone_at[at])
                return f"{deaths} times at the same point"
        if self._crashes > self._max_restarts:
            return f"after {self._max_restarts} restarts in one episode"
        if self._fruitless >= _FRUITLESS_DEATHS:
            return f"for the {self._fruitless}th time in a row without a call of this env completed in between"
        return ""

    def _add_as_suspect(self, lost: HostLost, at: Op) -> None:
        alone = lost.is_sole_suspect
        self._alone_at[at] += alone
        if lost.from_outside:
            self._strays_before.setdefault(at, self._strays(lost))
            self._kills_at[at] += 1
            self._kills_alone += alone
            is_sorted = self._kills_at[at] > _UNSORTED and not self._are_others_killed(lost, at)
            self._halvings += alone or is_sorted
        else:
            self._crashes_at[at] += 1
            self._crashes += alone
            self._halvings += 1

    def _strays(self, lost: HostLost) -> int:
        return lost.idle_kills + self._acquittals.count

    def _are_others_killed(self, lost: HostLost, at: Op, share: float = 0.25) -> bool:
        """Whether workers are killed that no env kills: for each kill here so many elsewhere."""
        strays = self._strays(lost)
        return strays - self._strays_before.get(at, strays) > share * self._kills_at[at]

    def _most_kills(self, lost: HostLost, at: Op) -> int:
        if self._are_others_killed(lost, at, 1):  # somebody kills workers, regardless of what they do
            return _FRUITLESS_DEATHS
        return _DOUBTFUL_DEATHS if at is Op.REPLAY or self._are_others_killed(lost, at) else _OUTSIDE_DEATHS

    def clear(self) -> None:
        """A call was completed."""
        self._acquittals.count += self._kills_alone
        self._kills_alone = 0
        self._suspects = self._halvings = self._fruitless = 0
        self._crashes_at.clear()
        self._alone_at.clear()
        self._kills_at.clear()
        self._strays_before.clear()
