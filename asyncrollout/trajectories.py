"""What rollouts leave behind: turns, trajectories, groups, what a filter said of them, and how each one ended."""

import copy
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrollout import notebook
from asyncrollout.errors import RolloutError
from asyncrollout.types import FinishReason, Generation, Observation, Outcome, Usage

Blame = Literal["env", "policy", "parse", "limit", "score"]


class StopReason(StrEnum):
    """Every way in which a rollout ends."""

    TERMINATED = "terminated"
    TRUNCATED = "truncated"
    TURNS = "turns"
    TOKENS = "tokens"
    INVALID = "invalid"
    SECONDS = "seconds"
    ENV_ERROR = "env_error"
    POLICY_ERROR = "policy_error"
    SCORE_ERROR = "score_error"

    @property
    def blame(self) -> Blame | None:
        """Whose doing it was that the episode did not come to its own end."""
        return _BLAME.get(self)


_BLAME: dict[StopReason, Blame] = {
    StopReason.TURNS: "limit",
    StopReason.TOKENS: "limit",
    StopReason.SECONDS: "limit",
    StopReason.INVALID: "parse",
    StopReason.ENV_ERROR: "env",
    StopReason.POLICY_ERROR: "policy",
    StopReason.SCORE_ERROR: "score",
}
_NOT_BY_ITSELF = frozenset({StopReason.TRUNCATED, StopReason.TURNS, StopReason.TOKENS, StopReason.SECONDS})

_UNRECORDED = frozenset({"expert", "system_prompt"})

Count = Annotated[int, msgspec.Meta(ge=1)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a rollout ends at the latest; None is no limit.

    `tokens` counts those that were sampled, and the last reply may not go beyond. `invalid` is how many invalid replies
    in a row end it: they step nothing, and would go on for ever. These are outcomes like others. An episode that takes
    longer than `seconds` has failed: its outcome would depend on the machine. They count the work of
    policy and env, and not the time in which we hold the rollout back: for new weights, or in a queue.
    """

    turns: Count | None = None
    tokens: Count | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    invalid: Count | None = 10

    def __post_init__(self) -> None:
        for name in ("turns", "tokens", "invalid"):
            value: Any = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Limits: {name}={value!r} is not a number from 1")
            if isinstance(value, np.integer):  # which is another value on record
                msgspec.structs.force_setattr(self, name, int(value))
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"Limits: seconds={self.seconds!r} is not a number above 0")
        if self.seconds is not None:
            msgspec.structs.force_setattr(self, "seconds", float(self.seconds))


class Remembered(msgspec.Struct, frozen=True):
    """What an agent with a memory records of an observation: with it, the state that it was played from."""

    observation: Any
    state: Any


class Turn(msgspec.Struct, frozen=True):
    """What was seen, what was said, and what came of it. `action` is what was played, None if that was the reply.

    `prompt_ids` are the tokens of the prompt beyond the end of the turn before; if the prompt did not go on from there
    (`joined` is false), all of them. `first_message` is where the turn's window on the trajectory's messages begins,
    `message` the place of its reply among them; -1 if that is unknown.
    `env_seconds` is how long the step took; the env was at work for `env_work_seconds` of them, if that is known.
    `version` is of the weights that replied; those of a `frozen` part of the policy do not learn.
    """

    observation: Any
    reply: str = ""
    action: Any = None
    reward: float = 0.0
    valid: bool = True
    info: dict[str, Any] = {}
    prompt_ids: NDArray[np.int32] | None = None
    token_ids: NDArray[np.int32] | None = None
    logprobs: NDArray[np.float32] | None = None
    joined: bool = False
    first_message: int = 0
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = []
    finish_reason: FinishReason = "stop"
    usage: Usage = Usage()
    version: int = 0
    policy_seconds: float = 0.0
    env_seconds: float = 0.0
    env_work_seconds: float | None = None
    message: int = -1
    frozen: bool = False

    @property
    def sampled_tokens(self) -> int:
        return self.usage.completion if self.token_ids is None else len(self.token_ids)

    @property
    def anchor(self) -> Any:
        """A key of the env's state in which the turn was played, for GiGPO."""
        seen = self.seen
        if isinstance(seen, Observation):
            return seen.key
        return seen.tolist() if isinstance(seen, np.ndarray) else seen

    @property
    def seen(self) -> Any:
        """The env's observation, without the agent's memory."""
        return self.observation.observation if isinstance(self.observation, Remembered) else self.observation

    @property
    def state(self) -> Any:
        """The state of the agent's memory before the turn; None if it had none yet, or has no memory."""
        return self.observation.state if isinstance(self.observation, Remembered) else None


class Move(msgspec.Struct, frozen=True):
    """What an agent does in a turn: the action for the env, and where it came from.

    `observation` is what goes on record if it is not simply what the env showed; the rest is as in `Turn`.
    """

    action: Any
    generation: Generation
    observation: Any = None
    prompt_ids: NDArray[np.int32] | None = None
    joined: bool = False
    first_message: int = 0


class Video(msgspec.Struct, frozen=True):
    """The video of a rollout: its file's name, and the first and last frame of each turn.

    Frame 0 is the state after the reset; an invalid reply ends where it begins. One that is `partial` lacks frames, or
    all, and tells nothing of turns if its env was lost.
    """

    file: str
    fps: float
    frames: list[list[int]] = []
    partial: bool = False


class Trajectory(msgspec.Struct, frozen=True):
    """One rollout. `messages` is its conversation, if it had one; `final` is the last observation that was seen."""

    uid: str
    env: str
    seed: int
    turns: list[Turn]
    reward: float
    stop_reason: StopReason
    error: RolloutError | None = None
    member: int = 0
    task: Any = None
    messages: list[dict[str, Any]] = []
    final: Any = None
    metrics: dict[str, float] = {}
    seconds: float = 0.0
    video: Video | None = None

    def __repr__(self) -> str:
        return notebook.trajectory_line(self)

    def _repr_html_(self) -> str:
        return notebook.trajectory_html(self)

    @property
    def valid(self) -> bool:
        """Whether it has an outcome, good or bad."""
        return self.error is None

    @property
    def success(self) -> bool | None:
        """As the env says; None if it does not."""
        told = self.turns[-1].info.get("success") if self.turns else None
        return None if told is None else bool(told)

    @property
    def truncated(self) -> bool:
        """Whether it was cut off before its end."""
        return self.stop_reason in _NOT_BY_ITSELF

    @property
    def version(self) -> int | None:
        """The oldest weights that had a part in it and learn; None if none had."""
        return min((turn.version for turn in self.turns if not turn.frozen), default=None)

    @property
    def sampled_tokens(self) -> int:
        return sum(turn.sampled_tokens for turn in self.turns)


class Verdict(msgspec.Struct, frozen=True):
    """A filter's decision, and why."""

    keep: bool
    reason: str = ""

    def __post_init__(self) -> None:
        """What numpy compared is a bool of numpy's, which no record can hold."""
        given: tuple[Any, Any] = self.keep, self.reason
        if not isinstance(given[0], bool | np.bool_):
            raise TypeError(f"Verdict: keep={self.keep!r:.100} is neither True nor False")
        if not isinstance(given[1], str):
            raise TypeError(f"Verdict: reason={self.reason!r:.100} is not a text")
        msgspec.structs.force_setattr(self, "keep", bool(self.keep))
        msgspec.structs.force_setattr(self, "reason", str.__str__(self.reason))  # of an enum, its value


class Group(msgspec.Struct, frozen=True):
    """A task played several times from the same seed. `verdict` is the filter's; `tag` says which of several envs."""

    id: str
    trajectories: list[Trajectory]
    tag: str = ""
    verdict: Verdict | None = None

    def __repr__(self) -> str:
        return notebook.group_line(self)

    def _repr_html_(self) -> str:
        return notebook.group_html(self)

    @property
    def rewards(self) -> NDArray[np.float64]:
        return np.array([trajectory.reward for trajectory in self.trajectories], dtype=np.float64)

    @property
    def valid(self) -> list[Trajectory]:
        """The members that have an outcome."""
        return [trajectory for trajectory in self.trajectories if trajectory.valid]

    @property
    def version(self) -> int | None:
        """The oldest weights that had a part in it and learn; None if none had."""
        versions = [trajectory.version for trajectory in self.trajectories if trajectory.version is not None]
        return min(versions, default=None)


DRAWN = "g"
"""What ids of groups that were drawn begin with; their number follows."""


EVALUATED = "eval"
"""What names of evaluations begin with; their number follows, and ids of their groups after a dash."""


def without_evaluation(uid: str) -> str:
    """A uid without the name of its evaluation: the same in every evaluation of the same tasks."""
    name, _, rest = uid.partition("-")
    return rest if name.startswith(EVALUATED) and name.removeprefix(EVALUATED).isdecimal() else uid


def member_uid(group: str, member: int) -> str:
    """The uid of one member of a group."""
    return f"{group}.{member}"


def group_of(uid: str) -> str:
    """The id of the group of a member."""
    return uid.rpartition(".")[0]


def finished(outcome: Outcome, turns: Sequence[Turn], limits: Limits, sampled_tokens: int) -> StopReason | None:
    """Whether an episode ends here, and why; `sampled_tokens` is the sum over its turns."""
    if outcome.terminated:
        return StopReason.TERMINATED
    if outcome.truncated:
        return StopReason.TRUNCATED
    if limits.turns is not None and len(turns) >= limits.turns:
        return StopReason.TURNS
    if limits.tokens is not None and sampled_tokens >= limits.tokens:
        return StopReason.TOKENS
    if limits.invalid is not None and len(turns) >= limits.invalid:
        return None if any(turn.valid for turn in turns[-limits.invalid :]) else StopReason.INVALID
    return None


def as_turn(
    seen: Outcome,
    move: Move,
    came: Outcome,
    *,
    policy_seconds: float,
    env_seconds: float,
    env_work_seconds: float | None = None,
    message: int = -1,
) -> Turn:
    """The record of a turn."""
    generation = move.generation
    info = {key: value for key, value in came.info.items() if key not in _UNRECORDED}
    return Turn(
        observation=seen.observation if move.observation is None else move.observation,
        reply=generation.text,
        action=_own_action(move.action, generation.text),
        reward=came.reward,
        valid=bool(info.get("action_is_valid", True)),
        info=info,
        prompt_ids=move.prompt_ids,
        token_ids=_typed(generation.token_ids, np.int32),
        logprobs=_typed(generation.logprobs, np.float32),
        joined=move.joined,
        first_message=move.first_message,
        reasoning=generation.reasoning,
        tool_calls=generation.tool_calls,
        finish_reason=generation.finish_reason,
        usage=generation.usage,
        version=int(generation.version),
        policy_seconds=policy_seconds,
        env_seconds=env_seconds,
        env_work_seconds=env_work_seconds,
        message=message,
        frozen=generation.frozen,
    )


def _own_action(action: Any, reply: str) -> Any:
    """What was played, if it was not just the reply; a copy, since an agent may change its arrays in place."""
    if type(action) is str:
        return None if action == reply else action
    return copy.deepcopy(action) if isinstance(action, np.ndarray | list | dict) else action


def _typed(values: Sequence[float] | None, kind: type[Any]) -> NDArray[Any] | None:
    return None if values is None else np.array(values, dtype=kind)
