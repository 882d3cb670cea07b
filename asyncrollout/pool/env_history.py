"""What was done with an env: enough to bring another env to the same state."""

from collections.abc import Sequence
from typing import Any

import msgspec

from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.replay_log import Life, RecordedCall, ReplayedEpisode, ReplayLog

_MOST_REMEMBERED = 500  # resets, steps and calls of earlier episodes
_ADVICE = (
    "call it with keep=True to have it repeated in each new env, or with keep=False if nothing of it outlives its "
    "episode"
)


class EnvHistory:
    """The log of an env's life and of its present episode.

    Earlier episodes are remembered, whole, if calls were made in them that may have changed the env for good.
    `forgotten` says, if that is not possible, what of this life cannot be repeated in a new env.
    """

    def __init__(self, *, replayable: bool = True) -> None:
        self.seed: int | None = None
        self.task: Any = None
        self.member = 0
        self.running = False
        self.episode = -1  # counts those that were begun
        self.forgotten = ""
        self.life: Life = []
        self.last_digest: int | None = None  # of the last outcome, where one was taken
        self._replayable = replayable
        self._turns_before = 0  # those that a snapshot stands for
        self._state: bytes | None = None
        self._state_outcome: tuple[Any, ...] | None = None
        self._before: tuple[list[Any], list[int | None]] | None = None  # what it stands for, if known
        self._done: list[Any] = []
        self._digests: list[int | None] = []
        self._calls: list[RecordedCall] = []  # those of `_done`
        self._kept_after_failure: list[RecordedCall] = []
        self.failed = False  # what failed is not in the log, but the env has seen it

    @property
    def turn(self) -> int:
        """The steps so far."""
        return self._turns_before + len(self._done) - len(self._calls)

    @property
    def length(self) -> int:
        """How much there is to replay."""
        return len(self._done)

    @property
    def was_called(self) -> bool:
        """Whether more than resets and steps was done with the env; such an env is not moved of our own accord."""
        return bool(self.life or self._calls or self._kept_after_failure or self.forgotten)

    @property
    def unkept(self) -> str:
        """A method that was called in the present episode without a word about `keep`."""
        return next((called.method for called in self._calls if called.keep is None), "") if self.running else ""

    @property
    def lived(self) -> Life | None:
        """What the env has lived through if its episode ends now; None if only a new env can be sure of that."""
        if self.failed or self._kept_after_failure or self.forgotten or self.unkept:
            return None
        return [*self.life, *self._lasting()]

    def _lasting(self) -> list[RecordedCall]:
        return [called for called in self._calls if called.keep is not False]

    def end(self, next_seed: int | None, final: int | None = None) -> None:
        """The episode is over, and the next one is about to be tried; `final` as for `replay_log`."""
        if self._calls or self._kept_after_failure:
            self._remember([*self._legacy(final), *self._kept_after_failure])
        self.seed, self.running, self.failed = next_seed, False, False
        self._turns_before, self._state, self._state_outcome, self._before = 0, None, None, None
        self._done, self._digests, self._calls, self._kept_after_failure = [], [], [], []
        self.episode += 1

    def _legacy(self, final: int | None) -> Life:
        """What of the present episode may outlive it."""
        if not self.unkept:
            return [*self._lasting()]
        if not self._replayable:
            self.forget(self.unkept, "was made in an episode that cannot be replayed")
            return []
        return [self._played(final)]

    def _remember(self, entries: Life) -> None:
        if entries and not self.forgotten:
            self.life = [*self.life, *entries]
            if not any(isinstance(one, ReplayedEpisode) for one in entries):  # calls that are kept may be many
                return
            episodes = [one for one in self.life if isinstance(one, ReplayedEpisode)]
            if sum(1 + len(one.done) for one in episodes) > _MOST_REMEMBERED:
                self.forget(_unkept(episodes[0]), f"lies more than {_MOST_REMEMBERED} resets, steps and calls back")

    def forget(self, method: str, why: str) -> None:
        """A new env can never be what this one is."""
        self.forgotten = self.forgotten or f"its call of {method}() {why}, and a new env would lack it: {_ADVICE}"
        self.life = []

    def begin(self, seed: int, task: Any, member: int, digest: int | None) -> None:
        self.seed, self.task, self.member, self.running = seed, task, member, True
        self._done, self._digests, self._calls = [], [digest], []
        self.last_digest = digest

    def add_step(self, action: Any, digest: int | None) -> None:
        self._done.append(action)
        self._digests.append(digest)
        self.last_digest = digest

    def add_call(self, called: RecordedCall) -> None:
        """Note a call that was made. One that raised stays in its episode: whether to keep it is unknown."""
        if called.raised and called.keep:
            called = msgspec.structs.replace(called, keep=None)
        if not self.failed:
            self._done.append(called)
            self._digests.append(None)
            self._calls.append(called)
        elif called.keep:
            self._kept_after_failure.append(called)
        elif called.keep is None:
            self.forget(called.method, "came after a failure, which is not repeated")

    def note_failure(self) -> None:
        """A step or reset failed in the env, which is still there."""
        self.failed = True

    def rebase(self, state: bytes, outcome: tuple[Any, ...]) -> None:
        """From here on, a snapshot stands for all that was done, unless calls may have changed more than it holds."""
        if self._lasting():
            return
        self._turns_before = self.turn
        if self._state is None:
            self._before = [], []
        if self._before is not None:
            self._before[0].extend(self._done)
            self._before[1].extend(self._digests)
        self._state, self._state_outcome = state, codec.detach(outcome)
        self._done, self._digests, self._calls = [], [], []

    def actions_log(self, final: int) -> ReplayLog | None:
        """The way to the present episode without any snapshot, if it is known."""
        now = self._played(final)
        if now.state is None:
            return ReplayLog(self.life, now)
        if self._before is None:
            return None
        done, digests = [*self._before[0], *now.done], [*self._before[1], *now.digests]
        return ReplayLog(
            self.life, ReplayedEpisode(now.seed, now.task, now.member, None, done, digests, episode=now.episode)
        )

    def replay_log(self, final: int | None = None) -> ReplayLog | None:
        """The way back, if there is anything to go back to; `final` is the last digest where none were taken."""
        if self.running:
            return ReplayLog(self.life, self._played(final, self._kept_after_failure))
        return self.life_alone([*self._calls, *self._kept_after_failure])

    def snapshot_log(self, state: bytes, outcome: tuple[Any, ...], final: int) -> ReplayLog:
        """The way back by the env's own snapshot, and the outcome that goes with it."""
        assert self.seed is not None
        assert not self.unkept  # else it would be lost
        now = ReplayedEpisode(
            self.seed, self.task, self.member, state, turns=self.turn, last=outcome, episode=self.episode
        )
        kept = self._lasting()  # part of the life from here on, and not of the actions
        long_way = None if kept else self.actions_log(final)
        if long_way is not None and long_way.present is not None:
            now = msgspec.structs.replace(now, before=(long_way.present.done, long_way.present.digests))
        return ReplayLog([*self.life, *kept], now)

    def _played(self, final: int | None, after: Sequence[RecordedCall] = ()) -> ReplayedEpisode:
        assert self.seed is not None
        digests = list(self._digests)
        offset = len(digests) - len(self._done)
        steps = [place for place, entry in enumerate(self._done, offset) if type(entry) is not RecordedCall]
        at = steps[-1] if steps else offset - 1
        if final is not None and at >= 0 and digests[at] is None:
            digests[at] = final
        return ReplayedEpisode(
            self.seed,
            self.task,
            self.member,
            self._state,
            [*self._done, *after],
            digests + [None] * len(after),
            self._turns_before,
            self._state_outcome,
            self.episode,
        )

    def life_alone(self, more: list[RecordedCall] | None = None) -> ReplayLog | None:
        life: Life = [*self.life, *(more or ())]
        return ReplayLog(life) if life else None

    def adopt(self, replay_log: ReplayLog) -> None:
        """Continue from where another env's history ends."""
        self.life, self.forgotten, self.failed = list(replay_log.life), "", False
        self._done, self._digests, self._calls, self._kept_after_failure = [], [], [], []
        now = replay_log.present
        self.running = now is not None
        if now is None:
            return
        self.seed, self.task, self.member = now.seed, now.task, now.member
        self._state, self._state_outcome, self._turns_before = now.state, now.last, now.turns
        self._before = None if now.before is None else (list(now.before[0]), list(now.before[1]))
        self._done, self._digests = list(now.done), list(now.digests)
        self._calls = [entry for entry in now.done if isinstance(entry, RecordedCall)]
        self.last_digest = None


def _unkept(played: ReplayedEpisode) -> str:
    calls = (entry for entry in played.done if isinstance(entry, RecordedCall) and entry.keep is None)
    return next((called.method for called in calls), "call")
