"""The hook that scores rollouts when they are over: a verifier, a judge, a reward model."""

import inspect
import math
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import anyio
import msgspec

from asyncrollout.errors import RolloutError, ScoreError, UsageError
from asyncrollout.trajectories import Group, StopReason, Trajectory

Scored = float | Mapping[str, float] | None
Score = Callable[[Any], Awaitable[Any] | Any]

_FIRST_WAIT = 0.25


class Scorer:
    """Calls the hook, at most `at_once` times at once; a call that fails is made up to `attempts` times.

    The hook takes a `Trajectory` and returns its reward, or a mapping with "reward" and other metrics. If its parameter
    is annotated as `Group` (or called `group`), it takes a group and returns a list with one of these for each member,
    in order. None leaves the env's reward, which is otherwise kept as the metric "env_reward".
    """

    def __init__(self, hook: Score, *, attempts: int = 3, seconds: float = 120.0, at_once: int = 64) -> None:
        if not callable(hook):
            raise UsageError(f"score={hook!r:.100} is not a function of a trajectory or a group")
        self._hook = hook
        self._attempts = attempts
        self._seconds = seconds
        self._slots = anyio.CapacityLimiter(at_once)
        self.takes_groups = _takes_group(hook)

    async def score(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with its reward, or with the error; one that has failed already is left alone."""
        if not trajectory.valid:
            return trajectory
        try:
            return _with(trajectory, await self._call(trajectory))
        except ScoreError as error:
            return _failed(trajectory, error)

    async def score_group(self, group: Group, *, known: AbstractSet[str] = frozenset()) -> Group:
        """The group with its members' rewards; if the hook fails, all of them have failed.

        Members whose uids are known have their scores from before.
        """
        if known >= {trajectory.uid for trajectory in group.trajectories}:
            return group
        shown = [_unscored(member) if member.uid in known else member for member in group.trajectories]
        try:
            scores = await self._call(msgspec.structs.replace(group, trajectories=shown))
            if hasattr(scores, "tolist"):
                scores = scores.tolist()
            if not isinstance(scores, Sequence) or isinstance(scores, str):
                raise ScoreError(
                    f"score returned {scores!r:.100} for a group, not a list with an entry for each member"
                )
            if len(scores) != len(group.trajectories):
                raise ScoreError(f"score returned {len(scores)} values for a group of {len(group.trajectories)}")
            members = [
                _with(member, scored) if member.valid and member.uid not in known else member
                for member, scored in zip(group.trajectories, scores, strict=True)
            ]
        except ScoreError as error:
            members = [
                _failed(member, error) if member.valid and member.uid not in known else member
                for member in group.trajectories
            ]
        return msgspec.structs.replace(group, trajectories=members)

    async def _call(self, scored: Trajectory | Group) -> Any:
        for attempt in range(1, self._attempts + 1):
            try:
                async with self._slots:
                    with anyio.fail_after(self._seconds):
                        given = self._hook(scored)
                        return await given if inspect.isawaitable(given) else given
            except UsageError:
                raise
            except Exception as error:
                if attempt == self._attempts:
                    shown = f"score raised {type(error).__name__}: {error} ({attempt} times)"
                    raise ScoreError.at(shown, notes="".join(traceback.format_exception(error))) from error
            await anyio.sleep(_FIRST_WAIT * 2 ** (attempt - 1))
        raise AssertionError("unreachable")


def _with(trajectory: Trajectory, scored: Scored) -> Trajectory:
    if scored is None:
        return trajectory
    metrics = dict(scored) if isinstance(scored, Mapping) else {"reward": scored}
    if "reward" not in metrics:
        raise ScoreError(
            f"score returned {scored!r:.100} for {trajectory.uid}, without 'reward': add it "
            f"(the env's is trajectory.reward), or return None to leave the env's"
        )
    try:
        reward = float(metrics.pop("reward"))
        numbers = {name: float(value) for name, value in metrics.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise ScoreError(f"score returned {scored!r:.100} for {trajectory.uid}, not a number") from error
    if not math.isfinite(reward):
        raise ScoreError(f"score returned {reward} for {trajectory.uid}")
    if not all(isinstance(name, str) for name in numbers):
        raise ScoreError(f"score returned metrics for {trajectory.uid} whose names are not texts: {[*numbers]!r:.100}")
    known = {**trajectory.metrics, "env_reward": trajectory.reward, **numbers}
    return msgspec.structs.replace(trajectory, reward=reward, metrics=known)


def _unscored(trajectory: Trajectory) -> Trajectory:
    """As it was before its score, for a hook that compares it with others."""
    metrics = dict(trajectory.metrics)
    reward = metrics.pop("env_reward", trajectory.reward)
    return msgspec.structs.replace(trajectory, reward=reward, metrics=metrics)


def _failed(trajectory: Trajectory, error: RolloutError) -> Trajectory:
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return msgspec.structs.replace(trajectory, stop_reason=StopReason.SCORE_ERROR, error=error)


def _takes_group(hook: Score) -> bool:
    try:
        first = next(iter(inspect.signature(hook).parameters.values()), None)
    except (TypeError, ValueError):
        return False
    if first is None or first.annotation is inspect.Parameter.empty:
        return first is not None and first.name == "group"
    return first.annotation is Group or str(first.annotation).rpartition(".")[2] == "Group"
