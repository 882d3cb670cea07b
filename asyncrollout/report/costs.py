"""What a run cost: all attempts at rollouts, whether anything came of them or not."""

from collections.abc import Iterable

import msgspec

from asyncrollout.journal.attempts import RolloutAttempt
from asyncrollout.journal.recorded_run import EvaluationRecord, RecordedRun


class AttemptCosts(msgspec.Struct, frozen=True):
    """The number of some attempts, and the turns and sampled tokens of all of them together."""

    attempts: int
    turns: int
    tokens: int

    @classmethod
    def of(cls, attempts: Iterable[RolloutAttempt]) -> "AttemptCosts":
        count = turns = tokens = 0
        for attempt in attempts:
            count, turns, tokens = count + 1, turns + attempt.turns, tokens + attempt.tokens
        return cls(count, turns, tokens)

    def spent(self, *, in_tokens: bool) -> int:
        """In tokens, or in turns if no tokens were counted."""
        return self.tokens if in_tokens else self.turns


def costs_of(history: RecordedRun, evaluation: EvaluationRecord | None) -> AttemptCosts:
    """Of training, or of an evaluation: everything that was sampled."""
    return AttemptCosts.of(history.attempts_of(evaluation))


def costs_of_rollouts(history: RecordedRun, uids: Iterable[str]) -> AttemptCosts:
    """Of the attempts whose records count."""
    return AttemptCosts.of(history.finished[uid] for uid in uids)
