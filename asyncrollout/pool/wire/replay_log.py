"""What brings a new env to the state of another, as data: the calls and episodes of its life, then its episode.

Most envs cannot be copied, but almost all are functions of seed and actions. So the pool logs these, and a lost env is
rebuilt by replaying them. The digest of each outcome is compared on the way: an env that depends on anything else fails
with `EnvDiverged` instead of continuing, unnoticed, from another state.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Annotated, Any

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.digest import outcome_digest

_FORMAT = 3
_DIGEST_BYTES = 8


class RecordedCall(msgspec.Struct, frozen=True):
    """A call of any other method than `step`, as a log keeps it; one that `raised` must raise again."""

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    keep: bool | None = None
    raised: bool = False


class ReplayedEpisode(msgspec.Struct, frozen=True):
    """An episode: a reset, or the env's own snapshot (`state`), and what was done since.

    `digests` has one entry for the reset, if there is one (`state` is None), and one for each of `done`; an outcome
    whose entry is None is not checked. `last` is the outcome that goes with `state`.
    """

    seed: int
    task: Any = None
    member: int = 0
    state: bytes | None = None
    done: list[Any] = []
    digests: list[int | None] = []
    turns: int = 0  # played before `state` was taken
    last: tuple[Any, ...] | None = None
    episode: int = 0
    before: tuple[list[Any], list[int | None]] | None = None  # what led to `state`, if known; never sent


Life = list[RecordedCall | ReplayedEpisode]
"""What was done with an env before its present episode, and may have changed it for good."""


class ReplayLog(msgspec.Struct, frozen=True):
    """A life, then the present episode, if any. `in_place`: the env already has this life, so it is not repeated."""

    life: Life
    present: ReplayedEpisode | None = None
    trusted: bool = True  # made by this pool, not read from a file
    in_place: bool = False

    @property
    def episodes(self) -> list[ReplayedEpisode]:
        """The present one, if there is one, comes last."""
        return [one for one in (*self.life, self.present) if isinstance(one, ReplayedEpisode)]

    @property
    def holds_states(self) -> bool:
        """Whether snapshots of an env's own are part of it."""
        return any(one.state is not None for one in self.episodes)


def life_key(life: Life) -> bytes:
    """Equal for equal lives."""
    if not life:
        return b""
    entries = [[*_write_call(one)] if isinstance(one, RecordedCall) else _write_played(one)[:6] for one in life]
    return blake2b(codec.encode(entries), digest_size=16).digest()


def write_log(replay_log: ReplayLog) -> list[Any]:
    """As plain lists, for files and networks."""
    life = [
        [1, _write_call(one)] if isinstance(one, RecordedCall) else [0, _write_played(one)] for one in replay_log.life
    ]
    return [life, None if replay_log.present is None else _write_played(replay_log.present), replay_log.in_place]


def _write_call(called: RecordedCall) -> list[Any]:
    return [called.method, called.args, called.kwargs, called.keep, called.raised]


def _write_played(played: ReplayedEpisode) -> list[Any]:
    done = [[1, _write_call(entry)] if isinstance(entry, RecordedCall) else [0, entry] for entry in played.done]
    start = [played.seed, played.task, played.member, played.state]
    return [*start, played.turns, done, played.digests, None if played.last is None else list(played.last)]


def read_log(record: Any, read_call: Callable[[Any], RecordedCall]) -> ReplayLog:
    """What `write_log` wrote; ValueError or TypeError if it is anything else."""
    life, present, in_place = record
    entries: Life = [read_call(one) if is_call else _read_played(one, read_call) for is_call, one in life]
    now = None if present is None else _read_played(present, read_call)
    return ReplayLog(entries, now, trusted=False, in_place=bool(in_place))


def read_call(record: Any) -> RecordedCall:
    fields = dict(zip(RecordedCall.__struct_fields__, record, strict=False))  # format 1 has only three of them
    called: RecordedCall = _checked(fields, RecordedCall)
    return called


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _PlayedRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What `_write_played` wrote."""

    seed: _Count
    task: Any
    member: _Count
    state: bytes | None
    turns: _Count
    done: list[tuple[int, Any]]
    digests: list[int | None]
    last: tuple[Any, float, bool, bool, dict[Any, Any]] | None


def _read_played(record: Any, read_call: Callable[[Any], RecordedCall]) -> ReplayedEpisode:
    read: _PlayedRecord = _checked(record, _PlayedRecord)
    if len(read.digests) != len(read.done) + (read.state is None) or (read.state is not None and read.last is None):
        raise ValueError("its parts do not fit together")
    done = [read_call(entry) if is_call else entry for is_call, entry in read.done]
    return ReplayedEpisode(read.seed, read.task, read.member, read.state, done, read.digests, read.turns, read.last)


def _checked(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def dump_log(env: str, replay_log: ReplayLog) -> bytes:
    """A snapshot that can be kept in a file: no pickles, so that loading it runs nobody's code."""
    try:
        body = codec.encode_exact([env, *write_log(replay_log)])
        return codec.encode_exact([_FORMAT, _checksum(body), body])
    except codec.INEXACT as error:
        raise UsageError(f"env {env!r}: its task, actions or observations have no safe file form: {error}") from error


def load_log(env: str, snapshot: bytes) -> ReplayLog:
    try:
        version, name, *record = _unwrapped(codec.Unpacker(trusted=False).decode(snapshot))
        if version in (1, 2, _FORMAT) and name == env:
            return _read_format_1(record) if version == 1 else read_log(record, read_call)
    except Exception as error:  # numpy raises many kinds of errors for invalid dtypes
        raise UsageError(f"env {env!r}: this is not a snapshot of ours: {error}") from error
    raise UsageError(f"env {env!r}: this snapshot is of env {name!r}, format {version}")


def _unwrapped(file: list[Any]) -> list[Any]:
    """Format, env and record. Of what an env's own state holds, only the checksum can say that it was changed."""
    if file[0] != _FORMAT:  # formats 1 and 2 have no checksum
        return file
    _, checksum, body = file
    if checksum != _checksum(body):
        raise ValueError("it was changed since it was written")
    return [_FORMAT, *codec.Unpacker(trusted=False).decode(body)]


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=_DIGEST_BYTES).digest()


def _read_format_1(record: list[Any]) -> ReplayLog:
    """Format 1 has set-up calls instead of a life. Its digests differ from today's, but it holds the last outcome."""
    setup, (seed, task, member), state, turns, done, digests, outcome = record
    digests = [None] * len(digests)
    steps = [place for place, (is_call, _) in enumerate(done, 1) if not is_call]
    if state is None:
        digests[steps[-1] if steps else 0] = outcome_digest(outcome)
    present = _read_played([seed, task, member, state, turns, done, digests, outcome], read_call)
    return ReplayLog([read_call(one) for one in setup], present, trusted=False)
