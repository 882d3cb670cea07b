"""The journal of a run in progress: what was recorded, and what happens now."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from anyio import to_thread

from asyncrollout.batches.batch_json import encode_record
from asyncrollout.errors import EnvError, UsageError
from asyncrollout.journal.events import (
    Began,
    Cancelled,
    Delivered,
    Dispatched,
    Drawn,
    Dropped,
    Evaluated,
    Evaluating,
    Failed,
    Judged,
    ShardPlace,
    TakenBack,
    Updated,
    end_of,
)
from asyncrollout.journal.files import cut_torn_end, whole_lines
from asyncrollout.journal.group_numbers import GroupNumbers
from asyncrollout.journal.history import RecordedReply, RunHistory, read_past
from asyncrollout.journal.settings import changes, read_given
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES, Lock, Writer
from asyncrollout.pool.wire.digest import digest
from asyncrollout.redaction import hide, hide_in_error, known_secrets, named_secrets, without_secrets
from asyncrollout.serialization import to_plain
from asyncrollout.trajectories import EVALUATED, Group, StopReason, Trajectory, Verdict, group_of

_SHOWN = 500
_SHOWN_SETTING = 200
_FEW_TASKS = 200  # whose digest is taken at once


class EvaluationSettings(msgspec.Struct, frozen=True):
    """What an evaluation adds to the envs' own arguments, the split that each tag plays, and how much it plays."""

    env_kwargs: dict[str, Any]
    splits: dict[str, str]
    tasks: int
    k: int


class VoidVerdict(NamedTuple):
    """A verdict that no longer counts, with the mean reward of its group, if a member had an outcome."""

    verdict: Verdict
    reward: float | None


class NullJournal:
    """What a run reports to its journal, and asks of it; this one is of a run without a directory, and keeps nothing.

    A rollout that is dispatched fails and is played again, or is finished. A group is drawn, judged, and then delivered
    in a batch, dropped, or given up to be drawn again.
    """

    def __init__(self, past: RunHistory | None = None) -> None:
        self.past = RunHistory() if past is None else past

    def recall(self, uid: str) -> Trajectory | None:  # noqa: ARG002
        """A rollout that was finished before."""
        return None

    def retries_used(self, group: str) -> int:  # noqa: ARG002
        """By an earlier process."""
        return 0

    def was_interrupted(self, uid: str) -> bool:  # noqa: ARG002
        """Whether it was in flight when the run was interrupted."""
        return False

    def drawn(self, group: str, index: int, seed: int, tag: str, task: Any) -> None: ...

    def dispatched(self, uid: str) -> None: ...

    def failed(self, trajectory: Trajectory) -> None: ...

    async def finished(self, tag: str, trajectory: Trajectory) -> Trajectory:
        """The trajectory, which is on its way to the disk; one that cannot be written has failed."""
        return self.ended(tag, trajectory)

    # What shards report has happened elsewhere: replies are read there, and lines are encoded there.

    @property
    def is_full(self) -> bool:
        """Whether too much is queued, or cannot be written."""
        return False

    async def room(self) -> None:
        """Wait while too much is queued."""

    def recorded_replies(self, uid: str) -> list[RecordedReply]:  # noqa: ARG002
        """Those of a rollout that an earlier process has begun, and this one has not."""
        return []

    def replied(self, line: bytes) -> None:
        """A reply, encoded as its event."""

    def ended(
        self,
        tag: str,  # noqa: ARG002
        trajectory: Trajectory,
        record: bytes = b"",  # noqa: ARG002
        place: ShardPlace | None = None,  # noqa: ARG002
    ) -> Trajectory:
        """As `finished`, without a wait for room; `record` is its line in the file of trajectories, if known."""
        return trajectory

    def judged(self, group: Group, more: int) -> None:
        """A group has its verdict, and so have `more` that were judged with it, which follow."""

    def given_up(self, groups: Iterable[str], *, with_all_recorded: bool) -> list[VoidVerdict]:  # noqa: ARG002
        """They will be replayed; with `with_all_recorded`, so will all recorded groups that were not drawn since.

        Returns the verdicts on them that were recorded by an earlier process.
        """
        return []

    def dropped(self, groups: list[str]) -> None:
        """They led to no batch, and are not looked at again."""

    def delivered(self, batch: int, groups: list[Group], dropped: list[str], stats: Mapping[str, float]) -> None:
        """A batch is about to be handed over; `dropped` are the groups that were dropped on the way to it."""

    def taken_back(self, batch: int) -> None:
        """It did not reach its taker, and is delivered later."""

    def updated(self, weights: int) -> None: ...

    def is_interrupted(self, what: Any) -> bool:  # noqa: ARG002
        """Whether an evaluation of this began in an earlier process, and did not end."""
        return False

    async def begin_evaluation(self, what: Any, settings: EvaluationSettings) -> str:  # noqa: ARG002
        """A name that no other evaluation has; but one that was interrupted, and is the same, continues."""
        self.past.evaluations += 1
        return f"{EVALUATED}{self.past.evaluations - 1}"

    def end_evaluation(self, name: str) -> None: ...

    async def flush(self) -> None:
        """Wait until what was reported so far is on the disk."""


class RunJournal(NullJournal):
    """The journal of a run with a directory, resumed or new."""

    def __init__(self, directory: Path, past: RunHistory, writer: Writer, secrets: Sequence[str] = ()) -> None:
        super().__init__(past)
        self.directory = directory
        self.writer = writer
        self._dispatched: set[str] = set()
        self._drawn = GroupNumbers(past.drawn)
        self._unclaimed = past.unfinished_groups()  # recorded, and not drawn by this process yet
        self._secrets = [*known_secrets(), *secrets]

    def recall(self, uid: str) -> Trajectory | None:
        return self.past.finished.get(uid)

    def retries_used(self, group: str) -> int:
        return self.past.retries.pop(group, 0)

    def was_interrupted(self, uid: str) -> bool:
        return uid not in self._dispatched and bool(self.past.replies.get(uid))

    def drawn(self, group: str, index: int, seed: int, tag: str, task: Any) -> None:
        self._unclaimed.discard(group)
        if index not in self._drawn:
            try:
                plain = to_plain(task)
            except UsageError as error:
                raise UsageError(f"task {index} cannot be recorded: {error}") from error
            self._drawn.add(index)
            self.writer.put(Drawn(group=group, index=index, seed=seed, tag=tag, task=plain))

    def dispatched(self, uid: str) -> None:
        if uid in self._dispatched:  # once more, and from its beginning
            self.past.replies.pop(uid, None)
        self._dispatched.add(uid)
        self.writer.put(Dispatched(uid=uid))

    def failed(self, trajectory: Trajectory) -> None:
        self.past.replies.pop(trajectory.uid, None)
        self.writer.put(
            Failed(
                uid=trajectory.uid,
                error=self._shown_error(trajectory),
                stop_reason=trajectory.stop_reason,
                turns=len(trajectory.turns),
                tokens=trajectory.sampled_tokens,
                invalid=trajectory.invalid_replies,
            )
        )

    async def finished(self, tag: str, trajectory: Trajectory) -> Trajectory:
        await self.writer.room()
        return self.ended(tag, trajectory)

    @property
    def is_full(self) -> bool:
        return self.writer.is_full

    async def room(self) -> None:
        await self.writer.room()

    def recorded_replies(self, uid: str) -> list[RecordedReply]:
        return [] if uid in self._dispatched else [*self.past.replies.get(uid, ())]

    def replied(self, line: bytes) -> None:
        self.writer.put_line(line)

    def ended(
        self, tag: str, trajectory: Trajectory, record: bytes = b"", place: ShardPlace | None = None
    ) -> Trajectory:
        if trajectory.error is not None:
            trajectory = msgspec.structs.replace(trajectory, error=hide_in_error(trajectory.error, self._secrets))
        if not record:
            trajectory, record = self._encoded(tag, trajectory)
        self._dispatched.discard(trajectory.uid)
        self.past.replies.pop(trajectory.uid, None)
        error_shown = None if trajectory.error is None else self._shown_error(trajectory)
        self.writer.put(end_of(trajectory, error_shown, place=place), record)
        return trajectory

    def _encoded(self, tag: str, trajectory: Trajectory) -> tuple[Trajectory, bytes]:
        group = group_of(trajectory.uid)
        try:
            line = encode_record(group, tag, trajectory)
        except UsageError as error:
            trajectory = unwritable(trajectory, error)
            line = encode_record(group, tag, trajectory)
        return trajectory, line + b"\n"

    def judged(self, group: Group, more: int) -> None:
        assert group.verdict is not None
        self.writer.put(Judged(group=group.id, keep=group.verdict.keep, reason=group.verdict.reason, more=more))

    def given_up(self, groups: Iterable[str], *, with_all_recorded: bool) -> list[VoidVerdict]:
        given_up = {*groups}
        if with_all_recorded:
            given_up |= self._unclaimed
            self._unclaimed.clear()
        self._dispatched = {uid for uid in self._dispatched if group_of(uid) not in given_up}
        means = self.past.reward_means
        void = [VoidVerdict(self.past.verdicts[one], means.get(one)) for one in given_up if one in self.past.verdicts]
        for group in given_up:
            self.past.forget(group)
            self.writer.put(Cancelled(group=group))
        return void

    def dropped(self, groups: list[str]) -> None:
        if groups:
            self.writer.put(Dropped(groups=groups))

    def delivered(self, batch: int, groups: list[Group], dropped: list[str], stats: Mapping[str, float]) -> None:
        ids = [group.id for group in groups]
        self.writer.put(Delivered(batch=batch, groups=ids, dropped=dropped, stats=dict(stats)))
        for group in (*ids, *dropped):
            self.past.forget(group)

    def taken_back(self, batch: int) -> None:
        self.writer.put(TakenBack(batch=batch))

    def updated(self, weights: int) -> None:
        self.writer.put(Updated(weights=weights))

    def is_interrupted(self, what: Any) -> bool:
        asked = digest(what)
        return any(begun.what == asked for begun in self.past.evaluating.values())

    async def begin_evaluation(self, what: Any, settings: EvaluationSettings) -> str:
        asked = digest(what) if settings.tasks <= _FEW_TASKS else await to_thread.run_sync(digest, what)
        for name, begun in self.past.evaluating.items():
            if begun.what == asked:
                del self.past.evaluating[name]
                return name
        name = await super().begin_evaluation(what, settings)
        self.writer.put(
            Evaluating(
                name=name,
                what=asked,
                env_kwargs=_recordable(settings.env_kwargs),
                splits=settings.splits,
                tasks=settings.tasks,
                k=settings.k,
            )
        )
        return name

    def end_evaluation(self, name: str) -> None:
        self.writer.put(Evaluated(name=name))
        for group in {group_of(uid) for uid in self.past.finished if uid.startswith(f"{name}-")}:
            self.past.forget(group)

    async def flush(self) -> None:
        await self.writer.flush()

    def _shown_error(self, trajectory: Trajectory) -> str:
        return hide(f"{type(trajectory.error).__name__}: {trajectory.error}", self._secrets)[:_SHOWN]


@asynccontextmanager
async def open_journal(
    directory: Path, given: dict[str, Any], *, resume: bool | int, accept: Collection[str] = ()
) -> AsyncIterator[RunJournal]:
    """The journal of a new run, or of one that is resumed; `given` must be what it was then, but for `accept`.

    A resumed run's files mean what they meant until something happens. Secrets in `given` are not written.
    """
    secrets, given = named_secrets(given), redacted(given)
    if resume is not False and not (directory / JOURNAL).exists():
        raise UsageError(f"{directory} holds no run: it has no {JOURNAL}")
    lock = Lock(directory)
    try:
        if resume is False:
            past = _begin(directory)
        else:
            past = await to_thread.run_sync(_read, directory, given, resume, accept)
        async with Writer(directory) as writer:
            began = Began(
                given=given,
                batch=None if isinstance(resume, bool) else resume,
                seeds="spread" if past.has_spread_seeds else "consecutive",
            )
            if not past.attempts:
                writer.put(began)  # the first line, even if trajectories are left
            for drawn in past.undrawn:
                writer.hold(drawn)
            for finished in past.unlogged:
                writer.hold(finished)
            if past.attempts:
                writer.hold(began)
            await writer.flush()
            past.undrawn.clear()
            past.unlogged.clear()
            yield RunJournal(directory, past, writer, secrets)
    finally:
        lock.release()


def _begin(directory: Path) -> RunHistory:
    """Of a process that was killed before it wrote a line, nothing is left that anybody wants."""
    for name in (JOURNAL, TRAJECTORIES):
        if any(whole_lines(directory / name)):
            raise UsageError(f"{directory} holds a run already: resume it, or choose another directory")
        cut_torn_end(directory / name)
    return RunHistory()


def _read(directory: Path, given: dict[str, Any], resume: bool | int, accept: Collection[str]) -> RunHistory:
    past = read_past(directory, None if isinstance(resume, bool) else resume)
    if _check_settings(directory, past.given, given, accept):
        past.forget_unfinished()
    for name in (JOURNAL, TRAJECTORIES):
        cut_torn_end(directory / name)
    past.let_go()
    return past


def check_resumable(directory: Path, given: dict[str, Any], accept: Collection[str] = ()) -> None:
    """Raise what `open_journal` would, if a run is in use or was given something else; nothing is changed."""
    Lock(directory).release()
    _check_settings(directory, read_given(directory), redacted(given), accept)


def redacted(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a run was given, without secrets. Tags and names of envs stay: every record has them."""
    secrets = sorted([*known_secrets(), *named_secrets(given)], key=len, reverse=True)
    return {
        name: {tag: _redacted_env(env, secrets) for tag, env in value.items()}
        if name == "envs"
        else _redacted_setting(name, value, secrets)
        for name, value in given.items()
    }


def _redacted_env(env: Mapping[str, Any], secrets: Sequence[str]) -> dict[str, Any]:
    return {**env, "env_kwargs": without_secrets(env["env_kwargs"], secrets)}


def _redacted_setting(name: str, value: Any, secrets: Sequence[str] | None = None) -> Any:
    (shown,) = without_secrets({name: value}, secrets).values()
    return shown


def _check_settings(directory: Path, then: dict[str, Any], now: dict[str, Any], accept: Collection[str]) -> list[str]:
    """What is another now, and accepted; none if the run was killed before it had begun."""
    changed = changes(then, now)
    if {*changed} - {name for name in accept if may_change(name)}:
        raise UsageError(f"{directory} cannot be resumed with other settings: {_show_changes(then, now, changed)}")
    return changed


def may_change(name: str) -> bool:
    """Whether a setting of a run may change if that is accepted: its agent, or its policy."""
    return name.partition(".")[0] in ("agent", "policy")


def _show_changes(then: Mapping[str, Any], now: Mapping[str, Any], changed: list[str]) -> str:
    shown = [f"{name}={_shown(name, now)} (was {_shown(name, then)})" for name in changed]
    if not all(map(may_change, changed)):
        return ", ".join(shown)
    flags = " ".join(f"--accept-changes {name}" for name in changed)
    return (
        f"{', '.join(shown)}; to accept that, and play unfinished groups from the start: accept_changes={changed}, "
        f"or asyncrollout resume {flags}"
    )


def _shown(name: str, settings: Mapping[str, Any]) -> str:
    return f"{_redacted_setting(name, settings[name])!r:.{_SHOWN_SETTING}}"


def _recordable(env_kwargs: dict[str, Any]) -> Any:
    """Without secrets; None if it cannot be written, which does not prevent it from being played."""
    try:
        return without_secrets(to_plain(env_kwargs))
    except UsageError:
        return None


def unwritable(trajectory: Trajectory, error: UsageError) -> Trajectory:
    """A rollout that has failed because its trajectory cannot be recorded."""
    failed = EnvError.at(f"{error}", env=trajectory.env, seed=trajectory.seed, turn=len(trajectory.turns))
    return msgspec.structs.replace(
        trajectory,
        turns=[],
        messages=[],
        final=None,
        task=None,
        reward=0.0,
        stop_reason=StopReason.ENV_ERROR,
        error=failed,
    )
