"""The frozen data that crosses the code: what an environment says, and what a pool knows of itself."""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Annotated, Any, Literal, Self

import msgspec

Placement = Literal["cpu", "light", "io"]
"""Where an env runs: a worker process, the event loop's thread, or wherever it may wait without blocking others."""

Recovery = Literal["replay", "snapshot", "none"]
"""What a pool does for the envs of a dead worker."""


class Observation(msgspec.Struct, frozen=True):
    """What a text env shows: a description, pictures, the raw observation, and a key of the state for GiGPO."""

    text: str
    images: tuple[Any, ...] = ()
    data: Any = None
    anchor: Hashable = None


class Outcome(msgspec.Struct, frozen=True):
    """The result of a reset or a step; a reset's reward is 0."""

    observation: Any
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = {}

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class Parsed(msgspec.Struct, frozen=True):
    """What a text interface read in a reply: raw actions in order, or the reason why there are none."""

    actions: Sequence[Any]
    valid: bool = True
    reason: str = ""


class TextOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How replies are read and charged; `pool.open` takes these fields beside the env's own keyword arguments."""

    strict: bool = False
    format_penalty: float = 0.1
    max_actions_per_turn: Annotated[int, msgspec.Meta(ge=1)] = 5
    max_actions_per_traj: Annotated[int, msgspec.Meta(ge=1)] | None = None
    separator: Annotated[str, msgspec.Meta(min_length=1)] = "||"
    action_history: Annotated[int, msgspec.Meta(ge=0)] = 0  # how many past actions a description ends with

    def __post_init__(self) -> None:
        if not math.isfinite(self.format_penalty):
            raise ValueError(f"format_penalty={self.format_penalty} is no amount")


class Durations(msgspec.Struct, frozen=True):
    """Seconds of recent calls, by percentile."""

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
        last = len(ordered) - 1
        mean = sum(ordered) / len(ordered)
        return cls(len(ordered), mean, ordered[last // 2], ordered[int(last * 0.95)], ordered[-1])


class WorkerStats(msgspec.Struct, frozen=True):
    """One worker process, or rank -1 for the event loop's own thread."""

    rank: int
    pid: int | None
    envs: int
    queued: int
    calls: int
    restarts: int
    seconds: Durations


class PoolStats(msgspec.Struct, frozen=True):
    """A pool at one moment.

    `restarts` counts replaced workers, `restored` envs brought back after a death, `moved` envs that changed worker.
    """

    workers: tuple[WorkerStats, ...]
    envs: int
    queued: int
    calls: int
    restarts: int
    restored: int
    moved: int
    seconds: Durations


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to sample; None leaves it to the server. `extra` goes into the body of the request as it is."""

    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    extra: dict[str, Any] = {}

    def __post_init__(self) -> None:
        """What is made in Python is checked, too; there an annotation checks nothing."""
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise ValueError(f"Sampling: temperature={self.temperature!r} is not a number from 0")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"Sampling: top_p={self.top_p!r} is not above 0 and at most 1")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"Sampling: max_tokens={self.max_tokens!r} is not a number from 1")
        if type(self.stop) not in (tuple, list):
            raise ValueError(f"Sampling: stop={self.stop!r} is not a tuple of texts")


class Request(msgspec.Struct, frozen=True):
    """What a policy is asked: messages (text, and pictures as arrays or data URLs), or the ids of a prompt's tokens.

    `session` names the episode and `turn` its turn. `data` is the raw observation, for policies that read no text.
    `expert` is an expert's reply, which only `SolverPolicy` reads and no server ever sees. `seconds` is how long the
    whole call may take. `tokens_left` is what the rollout's limit leaves for the reply; `sampling.max_tokens` is at
    most that.
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
"""What becomes of replies under way when weights change: awaited, stopped and asked for again, or left alone."""

FinishReason = Literal["stop", "length", "abort", "tool_calls"]


class Usage(msgspec.Struct, frozen=True):
    """Tokens, as the server counted them."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Seconds: until the call was let through, until the first byte came, all in all; and how often it was tried."""

    queue: float = 0.0
    first_byte: float = 0.0
    total: float = 0.0
    attempts: int = 1


class Generation(msgspec.Struct, frozen=True):
    """A policy's reply. Token ids and logprobs are as long as each other, or None where there are none.

    `stopped_early` is whether a reply ended, or may have, at a text or token that the request gave to stop at, so that
    the model's own end of a message was not sampled. A numeric policy gives an `action` instead of a text, and the
    `state` of its memory after it, if it has one.
    """

    text: str
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
