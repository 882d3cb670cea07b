"""The frozen data that crosses the code: observations, requests and replies, and the statistics of a pool."""

import functools
import hashlib
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, get_args, get_type_hints

import msgspec
import numpy as np

Placement = Literal["cpu", "light", "io"]
"""Where an env runs: a worker process, the event loop's thread, or wherever it may wait without blocking others."""

Recovery = Literal["replay", "snapshot", "none"]
"""How a pool recovers the envs of a dead worker."""


STEP_REWARDS = "step_rewards"
"""In `info`: the rewards of single actions, if a turn played several; the turn's reward is their exact sum."""


def check_bounds(struct: msgspec.Struct) -> None:
    """Raise ValueError for a number outside the bounds of its annotation: msgspec checks them only when it decodes."""
    for name, least, above, most, bounds in _bounds(type(struct)):
        value = getattr(struct, name)
        if value is not None and not (least <= value <= most and value > above):
            raise ValueError(f"{type(struct).__name__}: {name}={value!r} must be {_in_words(bounds)}")


@functools.cache
def _bounds(kind: type) -> tuple[tuple[str, float, float, float, msgspec.Meta], ...]:
    """For each bounded field the least value, what it must be above, the greatest value, and the annotation."""
    hints = get_type_hints(kind, include_extras=True)
    parts = ((name, part) for name, hint in hints.items() for part in (hint, *get_args(hint)))
    marks = ((name, mark) for name, part in parts for mark in getattr(part, "__metadata__", ()))
    return tuple(
        (name, _or(mark.ge, -math.inf), _or(mark.gt, -math.inf), _or(mark.le, math.inf), mark)
        for name, mark in marks
        if isinstance(mark, msgspec.Meta)
    )


def _or(bound: float | None, unbounded: float) -> float:
    return unbounded if bound is None else bound


def _in_words(bounds: msgspec.Meta) -> str:
    low = f"at least {bounds.ge}" if bounds.ge is not None else f"above {bounds.gt}"
    return low if bounds.le is None else f"{low} and at most {bounds.le}"


class Observation(msgspec.Struct, frozen=True, gc=False):
    """What a text env shows: a text, pictures, the raw observation, and a key of the state for GiGPO."""

    text: str
    images: tuple[Any, ...] = ()
    data: Any = None
    anchor: Hashable = None

    @property
    def key(self) -> Hashable:
        """A key of the state: the env's anchor, or else the text, with a digest of any pictures."""
        if self.anchor is not None or not self.images:
            return self.text if self.anchor is None else self.anchor
        digest = hashlib.sha1(usedforsecurity=False)
        for image in self.images:
            digest.update(_content(image))
        return self.text, digest.hexdigest()


def _content(image: Any) -> bytes:
    """The bytes of a picture (an array, a PIL image or a text), after its shape and type."""
    if isinstance(image, str):
        return repr(("text", len(image))).encode() + image.encode("utf-8", "surrogatepass")
    array = np.asarray(image)
    return repr((array.shape, array.dtype.str)).encode() + array.tobytes()


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The result of a reset or a step; a reset's reward is 0."""

    observation: Any
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = {}

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


_UNSET: Any = None


class Parsed(msgspec.Struct, frozen=True, gc=False):
    """A parsed reply: raw actions in order, or the reason why there are none.

    By default it is valid if there are actions and no reason.
    """

    actions: Sequence[Any]
    valid: bool = _UNSET
    reason: str = ""

    def __post_init__(self) -> None:
        if self.valid is _UNSET:
            msgspec.structs.force_setattr(self, "valid", len(self.actions) > 0 and not self.reason)


class TextOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How replies are asked for, read and charged; `pool.open` takes these fields beside the env's own arguments.

    With `think=False` the prompt asks for an answer without thoughts. `instruction` replaces the env's own rules.
    """

    strict: bool = False
    format_penalty: float = 0.1
    max_actions_per_turn: Annotated[int, msgspec.Meta(ge=1)] = 5
    max_actions_per_traj: Annotated[int, msgspec.Meta(ge=1)] | None = None
    separator: Annotated[str, msgspec.Meta(min_length=1)] = "||"
    action_history: Annotated[int, msgspec.Meta(ge=0)] = 0  # how many past actions a description ends with
    think: bool = True
    instruction: str | None = None

    def __post_init__(self) -> None:
        if self.strict and not self.think:
            raise ValueError("strict=True wants replies with <think>, and think=False without: drop one")
        if not math.isfinite(self.format_penalty):
            raise ValueError(f"format_penalty={self.format_penalty} must be finite")


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values, by linear interpolation between neighbours, as numpy's default."""
    place = (len(ordered) - 1) * share
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def exact_sum(values: Iterable[float]) -> float:
    """Rounded once, so order and grouping do not matter; infinite or NaN without a finite sum."""
    numbers = [*values]
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # beyond what a float holds, or infinities of both signs
        return sum(numbers)


def total_reward(earned: Iterable[tuple[float, Mapping[str, Any]]]) -> float:
    """Of rewards, each with its `info`: the exact sum over all single steps, however they were grouped into turns."""
    return exact_sum(part for reward, info in earned for part in _parts(reward, info))


def _parts(reward: float, info: Mapping[str, Any]) -> Sequence[float]:
    """The single rewards, if they are there and add up; an env may have something else of that name."""
    parts = info.get(STEP_REWARDS)
    if type(parts) is list and {*map(type, parts)} == {float} and exact_sum(parts) == reward:
        return parts
    return (reward,)


class Durations(msgspec.Struct, frozen=True):
    """Seconds of recent calls. Percentiles are interpolated linearly between neighbours."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Self:
        ordered = sorted(seconds)
        if not ordered:
            return cls()
        mean = sum(ordered) / len(ordered)
        return cls(len(ordered), mean, percentile(ordered, 0.5), percentile(ordered, 0.95), ordered[-1])


class WorkerStats(msgspec.Struct, frozen=True):
    """One worker process, or rank -1 for the event loop's own thread. `node` is where it runs, in a cluster."""

    rank: int
    pid: int | None
    envs: int
    queued: int
    calls: int
    restarts: int
    seconds: Durations
    node: str | None = None


class PoolStats(msgspec.Struct, frozen=True):
    """A pool at one moment.

    `restarts` counts replaced workers, `restored` envs recovered after a death, `moved` envs that changed worker.
    `quarantined` names envs that kept killing workers, and run alone on a worker.
    """

    workers: tuple[WorkerStats, ...]
    envs: int
    queued: int
    calls: int
    restarts: int
    restored: int
    moved: int
    seconds: Durations
    quarantined: tuple[str, ...] = ()


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to sample; None leaves it to the server. `extra` is added to the request body as it is."""

    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    extra: dict[str, Any] = {}

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.temperature == math.inf:
            raise ValueError(f"Sampling: temperature={self.temperature!r} must be finite")
        if type(self.stop) not in (tuple, list):
            raise ValueError(f"Sampling: stop={self.stop!r} must be a tuple of texts")


class Request(msgspec.Struct, frozen=True):
    """Input of a policy: messages (text, and pictures as arrays or data URLs), or the token ids of a prompt.

    `session` names the episode and `turn` its turn. `data` is the raw observation, for policies that read no text.
    `expert` is an expert's reply, which only `SolverPolicy` reads and no server ever sees. `seconds` is how long the
    whole call may take, without the time in which it is held back for new weights; None leaves it to the policy.
    `tokens_left` is what the rollout's limit leaves for the reply; `sampling.max_tokens` is at most that.
    """

    messages: list[dict[str, Any]] = []
    prompt_ids: list[int] | None = None
    sampling: Sampling = Sampling()
    session: str = ""
    turn: int = 0
    seconds: float | None = None
    data: Any = None
    expert: str | None = None
    tokens_left: int | None = None


PauseMode = Literal["wait", "abort", "continue"]
"""What happens to calls in flight when weights change: awaited, aborted and made again, or left alone."""

FinishReason = Literal["stop", "length", "abort", "tool_calls"]


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens, as the server counted them."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0


class Timings(msgspec.Struct, frozen=True, gc=False):
    """Seconds in the queue, until the first byte, and in total; and the number of attempts."""

    queue: float = 0.0
    first_byte: float = 0.0
    total: float = 0.0
    attempts: int = 1


class Generation(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A policy's reply. Token ids and logprobs have the same length, or are None.

    `stopped_early` is whether a reply ended, or may have, at a stop string or token of the request, so that the model's
    own end of a message was not sampled. A numeric policy returns an `action` and no text, and the `state` of its
    memory after it, if it has one. `version` is that of the weights when the call started; those of a `frozen` part do
    not learn.
    """

    text: str = ""
    finish_reason: FinishReason = "stop"
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_ids: list[int] | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = []
    action: Any = None
    state: Any = None
    usage: Usage = Usage()
    version: int = 0
    timings: Timings = Timings()
    stopped_early: bool = False
    frozen: bool = False

    @property
    def sampled_tokens(self) -> int:
        """As its ids say, or else as the server counted."""
        return self.usage.completion if self.token_ids is None else len(self.token_ids)
