"""One error tree. Each error takes one message, pickles, and carries where it happened."""

from typing import Any, Self


class RolloutError(Exception):
    """The root: whatever goes wrong in a rollout, as data that a trajectory can carry."""

    env: str | None = None
    seed: int | None = None
    turn: int | None = None
    worker: int | None = None

    @classmethod
    def at(cls, message: str, *, notes: str = "", **where: Any) -> Self:
        """The error with its place; `notes` (a traceback, a log's tail) is shown below the message."""
        error = cls(message)
        error.__dict__.update(where)
        if notes:
            error.add_note(notes)
        return error


def like(error: RolloutError, message: str) -> RolloutError:
    """An error of the same kind and place, but with its own message; of a user's kind, the nearest one here."""
    kind: type[RolloutError] = next(one for one in type(error).__mro__ if one.__module__ == __name__)
    place = {name: getattr(error, name) for name in ("env", "seed", "turn", "worker")}
    return kind.at(message, notes="\n".join(getattr(error, "__notes__", ())), **place)


class EnvError(RolloutError):
    """An environment failed: it raised, or returned what no environment may return."""

    remote_type: str | None = None
    remote_traceback: str | None = None


class EnvBuildError(EnvError):
    """An environment could not be made."""


class EnvCrashed(EnvError):
    """An environment's worker process died under it."""


class EnvTimeout(EnvError):
    """A call took longer than its limit."""


class EnvResourceError(EnvError):
    """An environment used more memory than allowed."""


class EnvDiverged(EnvError):
    """An environment, played again from its seed and actions, did not do the same."""


class ProviderError(RolloutError):
    """A policy gave no answer: its server or model failed, or what came back makes no sense."""


class ContextError(ProviderError):
    """A prompt, with the reply to come, is longer than the model's context."""


class LimitError(RolloutError):
    """A rollout took more time than it may."""


class ScoreError(RolloutError):
    """The hook that scores rollouts failed, or gave no number."""


class StalledError(RolloutError):
    """Nothing moved for too long; the message names what is being waited for."""


class ExhaustedError(RolloutError):
    """Too few groups were kept within the allowed number of draws; the message counts what was dropped, and why."""


class JournalError(RolloutError):
    """A run's directory cannot be written to or read."""


class PoolError(RolloutError):
    """The pool itself cannot go on."""


class UsageError(RolloutError, ValueError):
    """The caller asked for something that cannot be; never recorded as a rollout's failure."""


class UnknownEnvError(UsageError):
    """No environment has this name."""


class ClosedError(UsageError):
    """The pool or the handle is closed."""


class MissingExtraError(UsageError, ImportError):
    """An optional package is missing; the message names the pip command."""


class EnvCheckError(RolloutError, AssertionError):
    """An environment breaks the contract; the message lists every point."""
