"""One error tree. Each error takes one message, pickles, and carries where it happened."""

from typing import Any, Self


class RolloutError(Exception):
    """The root: a failure of a rollout, as data that a trajectory can carry."""

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
    """An error of the same class and place with another message; for a user's class, the nearest one here."""
    kind: type[RolloutError] = next(one for one in type(error).__mro__ if one.__module__ == __name__)
    place = {name: getattr(error, name) for name in RolloutError.__annotations__}
    return kind.at(message, notes="\n".join(getattr(error, "__notes__", ())), **place)


class EnvError(RolloutError):
    """An environment failed: it raised, or returned an invalid value."""

    remote_type: str | None = None
    remote_traceback: str | None = None


class EnvBuildError(EnvError):
    """An environment could not be created."""


class EnvCrashed(EnvError):
    """An environment's worker process died under it."""


class EnvTimeout(EnvError):
    """A call to an environment took longer than its limit."""


class EnvResourceError(EnvError):
    """An environment used more memory than allowed."""


class EnvDiverged(EnvError):
    """An environment, replayed from its seed and actions, behaved differently."""


class ProviderError(RolloutError):
    """A policy gave no reply: its server or model failed, or the response is malformed."""


class ContextError(ProviderError):
    """A prompt, with the reply to come, is longer than the model's context."""


class LimitError(RolloutError):
    """A rollout exceeded its time limit."""


class ScoreError(RolloutError):
    """The scoring hook failed, or did not return a number."""


class StalledError(RolloutError):
    """No progress for too long; the message names what is being waited for."""


class ExhaustedError(RolloutError):
    """Too few groups were kept within the allowed number of samples; the message counts what was dropped, and why."""


class JournalError(RolloutError):
    """A run's directory cannot be written or read."""


class PoolError(RolloutError):
    """The pool itself cannot continue."""


class UsageError(RolloutError, ValueError):
    """The caller made a mistake; never recorded as a rollout's failure."""


class UnknownEnvError(UsageError):
    """No environment has this name."""


class ClosedError(UsageError):
    """The pool or the handle is closed."""


class MissingExtraError(UsageError, ImportError):
    """An optional package is missing; the message names the pip command."""


class EnvCheckError(RolloutError, AssertionError):
    """An environment violates the contract; the message lists every violation."""
