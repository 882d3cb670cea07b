"""The lines of a journal: one event each, as JSON."""

import math
import time
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from asyncrollout.errors import UsageError
from asyncrollout.serialization import KIND, from_plain, to_plain
from asyncrollout.successes import reported
from asyncrollout.trajectories import StopReason, Trajectory
from asyncrollout.types import Generation

FORMAT = "asyncrollout.run"
VERSION = 1


class ShardPlace(NamedTuple):
    """A shard, and the node that it runs on."""

    shard: str
    node: str


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Something that happened; `at` is in seconds since 1970. `history` has the table of what each one means."""

    at: float = msgspec.field(default_factory=time.time)


class Began(Event, frozen=True, tag="began"):
    """The first line, and one for each resume after which something happened.

    `given` stays the same, but for accepted changes of agent and policy. `batch` is where the run was to resume:
    from there on, nothing has been delivered. `seeds` says how envs get theirs, from the run's first line to its end:
    "spread" at random, as older versions did, or "consecutive".
    """

    format: str = FORMAT
    version: int = VERSION
    given: dict[str, Any] = {}
    batch: int | None = None
    seeds: Literal["spread", "consecutive"] = "spread"


class Drawn(Event, frozen=True, tag="drawn"):
    """A group to be played."""

    group: str
    index: int
    seed: int
    tag: str
    task: Any = None


class Dispatched(Event, frozen=True, tag="dispatched"):
    uid: str


class Replied(Event, frozen=True, tag="turn"):
    """A policy's reply, before it is played. `asked` is a digest of the last message that it replies to.

    `request` is one of all that it replies to: messages, tokens of the prompt, data, sampling. Journals of older
    versions have none. `policy` is which one of an agent's policies has replied, if it is not the first.
    `oldest_version` is that of the weights that the reply depends on, if it is not the reply's own. `seconds` is how
    long the policy took.
    """

    uid: str
    turn: int
    asked: int
    reply: msgspec.Raw
    request: int | None = None
    policy: int | msgspec.UnsetType = msgspec.UNSET
    oldest_version: int | msgspec.UnsetType = msgspec.UNSET
    seconds: float | msgspec.UnsetType = msgspec.UNSET


class Failed(Event, frozen=True, tag="failed"):
    """A rollout failed, and will be retried from its beginning. Journals of older versions do not say what it cost."""

    uid: str
    error: str
    stop_reason: StopReason | None = None
    turns: int = 0
    tokens: int = 0
    invalid: int = 0


class Finished(Event, frozen=True, tag="finished"):
    """A rollout ended; its trajectory is in the file of trajectories by then.

    `success` is what its env reported, unset if it did not. `invalid` counts invalid replies; older journals have
    neither.
    `shard` and `node` are where it played, if shards did.
    """

    uid: str
    reward: float | None
    """None if it is not finite: JSON has no such numbers."""
    stop_reason: StopReason
    turns: int
    tokens: int
    seconds: float
    error: str | None = None
    invalid: int | msgspec.UnsetType = msgspec.UNSET
    success: bool | msgspec.UnsetType = msgspec.UNSET
    shard: str | msgspec.UnsetType = msgspec.UNSET
    node: str | msgspec.UnsetType = msgspec.UNSET


class Cancelled(Event, frozen=True, tag="cancelled"):
    """A group was cancelled, and will be drawn again: nothing of it counts any more."""

    group: str


class Judged(Event, frozen=True, tag="judged"):
    """A verdict, and how many `more` follow of groups judged together with it: it is void without those."""

    group: str
    keep: bool
    reason: str
    more: int = 0


class Delivered(Event, frozen=True, tag="delivered"):
    """A batch, the groups dropped on the way to it, and its `Batch.stats`."""

    batch: int
    groups: list[str]
    dropped: list[str] = []
    stats: dict[str, int | float | None] = {}
    """None is a number that is not finite: JSON has no such numbers."""


class TakenBack(Event, frozen=True, tag="taken_back"):
    """A batch that was recorded as delivered never reached its taker: its groups are delivered later."""

    batch: int


class Dropped(Event, frozen=True, tag="dropped"):
    """Groups were dropped without a batch: too few were kept."""

    groups: list[str]


class Updated(Event, frozen=True, tag="weights"):
    """The policy has new weights, with this version."""

    weights: int


class Evaluating(Event, frozen=True, tag="evaluating"):
    """An evaluation starts; the ids of its groups begin with its name. `what` is a digest of its arguments.

    `env_kwargs` are those added to the env's own; None if they could not be recorded. `splits` has what each tag's env
    plays, if it has splits. Each of its `tasks` is played `k` times; journals of older versions do not say so.
    """

    name: str
    what: int
    env_kwargs: Any = {}
    splits: dict[str, str] = {}
    tasks: int | None = None
    k: int | None = None


class Evaluated(Event, frozen=True, tag="evaluated"):
    name: str


AnyEvent = (
    Began
    | Drawn
    | Dispatched
    | Replied
    | Failed
    | Finished
    | Cancelled
    | Judged
    | Delivered
    | TakenBack
    | Dropped
    | Updated
    | Evaluating
    | Evaluated
)
_decoder = msgspec.json.Decoder(AnyEvent)
_generations = msgspec.json.Decoder(Generation)
_TOKEN_IDS = b'"token_ids":['
_AS_PLAIN = f'{{"{KIND}"'.encode()


class _ReplyCost(msgspec.Struct):
    """What a recorded reply without token ids says of its length."""

    usage: Any = None


_costs = msgspec.json.Decoder(_ReplyCost)


class VerdictRound:
    """Verdicts of groups that were judged together: none counts before all of them are on record."""

    def __init__(self) -> None:
        self._pending: dict[str, Judged] = {}

    def add(self, event: Judged) -> list[Judged]:
        """The verdicts that count now."""
        self._pending[event.group] = event
        if event.more:
            return []
        complete = [*self._pending.values()]
        self._pending.clear()
        return complete

    def discard(self, group: str) -> None:
        self._pending.pop(group, None)

    def clear(self) -> None:
        self._pending.clear()


def encode(event: AnyEvent) -> bytes:
    """A line, with its end."""
    return msgspec.json.encode(event) + b"\n"


def decode(line: bytes) -> AnyEvent:
    """The event of a line; a `UsageError` if it is not an event, or of a newer format."""
    try:
        event: AnyEvent = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"this is not a line of a journal: {error}") from error
    if isinstance(event, Began) and (event.format != FORMAT or event.version > VERSION):
        raise UsageError(
            f"a journal of format {event.format!r}, version {event.version}: this asyncrollout reads {FORMAT!r} up to "
            f"version {VERSION}"
        )
    return event


def encode_reply(generation: Generation) -> msgspec.Raw:
    """The reply, exactly; what JSON does not have (arrays, infinite logprobs) as in files of trajectories."""
    is_plain = generation.action is None and generation.state is None and not generation.tool_calls
    if is_plain and (generation.logprobs is None or math.isfinite(sum(generation.logprobs))):
        try:
            return msgspec.Raw(msgspec.json.encode(generation))
        except (TypeError, UnicodeEncodeError):  # numbers of numpy, half a character
            pass
    lists = {name: _as_list(getattr(generation, name)) for name in ("token_ids", "logprobs", "prompt_ids")}
    return msgspec.Raw(msgspec.json.encode(to_plain(msgspec.structs.replace(generation, **lists))))


def _as_list(numbers: Any) -> list[Any] | None:
    """As the type says: a model in this process may have given an array or numpy numbers."""
    return None if numbers is None else np.asarray(numbers).tolist()


def sampled_tokens(reply: msgspec.Raw) -> int:
    """How many tokens of a recorded reply were sampled, as `Generation.sampled_tokens`; 0 if it does not say.

    Ids are counted without being decoded: a run has millions. No text contains their key, since its quotes are escaped.
    """
    content = bytes(reply)
    start = content.find(_TOKEN_IDS)
    if start >= 0:
        start += len(_TOKEN_IDS)
        end = content.find(b"]", start)
        return content.count(b",", start, end) + 1 if end > start else 0
    try:
        cost = _costs.decode(reply)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0  # it is refused where it is replayed
    count = cost.usage.get("completion") if isinstance(cost.usage, dict) else None
    return count if type(count) is int and count > 0 else 0


def end_of(
    trajectory: Trajectory, error: str | None, at: float | None = None, place: ShardPlace | None = None
) -> Finished:
    """The event of a rollout that ended, with its error as it is to be shown; it ends now, unless `at` says when."""
    success = reported(trajectory)
    return Finished(
        uid=trajectory.uid,
        reward=trajectory.reward,
        stop_reason=trajectory.stop_reason,
        turns=len(trajectory.turns),
        tokens=trajectory.sampled_tokens,
        seconds=trajectory.seconds,
        error=error,
        invalid=trajectory.invalid_replies,
        success=msgspec.UNSET if success is None else success,
        shard=msgspec.UNSET if place is None else place.shard,
        node=msgspec.UNSET if place is None else place.node,
        at=time.time() if at is None else at,
    )


def decode_reply(reply: msgspec.Raw) -> Generation:
    raw = bytes(reply)
    try:
        generation = from_plain(msgspec.json.decode(raw)) if raw.startswith(_AS_PLAIN) else _generations.decode(raw)
    except msgspec.DecodeError as error:
        raise UsageError(f"this is not a reply of a journal: {error}") from error
    assert isinstance(generation, Generation)
    return generation
