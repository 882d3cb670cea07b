"""Results of rollouts: turns, trajectories, groups, verdicts of filters, and how each rollout ended."""

import copy
import warnings
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrollout import notebook
from asyncrollout.errors import RolloutError
from asyncrollout.types import FinishReason, Generation, Observation, Outcome, Usage, check_bounds

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
        """What kept the episode from ending by itself."""
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
_CUT_OFF = frozenset({StopReason.TRUNCATED, *(reason for reason, blame in _BLAME.items() if blame == "limit")})

_UNRECORDED = frozenset({"expert", "system_prompt"})

Count = Annotated[int, msgspec.Meta(ge=1)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a rollout ends at the latest; None means no limit.

    `tokens` counts sampled tokens, and caps the last reply. `invalid` is how many invalid replies in a row end the
    rollout: they do not step the env, and could continue forever. These are outcomes like others. A rollout that takes
    longer than `seconds` has failed, because its outcome would depend on the machine. Only the work of policy and env
    counts, not the time in which the rollout is held back for new weights or waits in a queue.
    """

    turns: Count | None = None
    tokens: Count | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    invalid: Count | None = 10

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in self.__struct_fields__:  # numpy's numbers would be other values on record
            if isinstance(value := getattr(self, name), np.integer):
                msgspec.structs.force_setattr(self, name, int(value))
        if self.seconds is not None:
            msgspec.structs.force_setattr(self, "seconds", float(self.seconds))


class Remembered(msgspec.Struct, frozen=True, gc=False):
    """An observation as an agent with a memory records it: with the state of the memory before the turn."""

    observation: Any
    state: Any


class Turn(msgspec.Struct, frozen=True, gc=False):
    """An observation, the reply to it, and the result. `action` is what was played, None if that was the reply.

    Turns that are `joined` make one token sequence: the prompt continues, token by token, where the turn before ended,
    and `prompt_ids` has only what is new. This is checked, never assumed: chat templates drop old reasoning, and text
    may be tokenized differently the second time. Otherwise `prompt_ids` is the whole prompt, and the turn starts a
    sequence of its own.
    `first_message` is where the turn's window on the trajectory's messages begins, `message` the index of its reply
    among them; -1 if that is unknown.
    `env_seconds` is how long the step took; the env was at work for `env_work_seconds` of them, if that is known.
    `replayed` is whether the reply is from the record of an earlier process; `policy_seconds` is how long it took then,
    0 if that is unknown.
    `version` is that of the weights that sampled the reply; those of a `frozen` part of the policy do not learn.
    `oldest_version` is set if another reply within the turn came from older weights, or this one from a frozen part: it
    is the oldest of those that learn.
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
    oldest_version: int | None = None
    replayed: bool = False

    @property
    def learning_version(self) -> int | None:
        """The oldest version of the weights that the turn depends on, without frozen parts; None if all are frozen."""
        if self.oldest_version is not None:
            return self.oldest_version
        return None if self.frozen else self.version

    @property
    def learning_versions(self) -> tuple[int, ...]:
        """That version and, if it is newer and not frozen, the one that sampled the reply."""
        oldest = self.learning_version
        if oldest is None:
            return ()
        return (oldest,) if self.frozen or self.version <= oldest else (oldest, self.version)

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


class Move(msgspec.Struct, frozen=True, gc=False):
    """What an agent does in a turn: the action for the env, and the generation that it came from.

    `observation` is recorded instead of what the env showed, if given; the rest is as in `Turn`.
    """

    action: Any
    generation: Generation
    observation: Any = None
    prompt_ids: NDArray[np.int32] | None = None
    joined: bool = False
    first_message: int = 0


class Video(msgspec.Struct, frozen=True, gc=False):
    """The video of a rollout: its file name, and the first and last frame of each turn.

    Frame 0 is the state after the reset; an invalid reply ends where it begins. A `partial` video lacks frames, perhaps
    all, and has no frames of turns if its env was lost.
    """

    file: str
    fps: float
    frames: list[list[int]] = []
    partial: bool = False


class Trajectory(msgspec.Struct, frozen=True):
    """One rollout. `messages` is its conversation, if it had one; `final` is the last observation.

    `seconds` is how long it took to play, and replies from the record as long as they took before; `score_seconds` how
    long it then waited for its score, and for the other members if they are scored together.
    """

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
    score_seconds: float = 0.0

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
        """As the env reports it; None if it does not."""
        reported = self.turns[-1].info.get("success") if self.turns else None
        return None if reported is None else bool(reported)

    @property
    def truncated(self) -> bool:
        """Whether it was cut off before its end."""
        return self.stop_reason in _CUT_OFF

    @property
    def version(self) -> int | None:
        """The oldest version of the weights that replied, without frozen parts; None if there were none."""
        oldest: int | None = None
        for turn in self.turns:
            version = turn.learning_version
            if version is not None and (oldest is None or version < oldest):
                oldest = version
        return oldest

    @property
    def sampled_tokens(self) -> int:
        return sum(turn.sampled_tokens for turn in self.turns)

    @property
    def invalid_replies(self) -> int:
        return sum(not turn.valid for turn in self.turns)


class Verdict(msgspec.Struct, frozen=True):
    """A filter's decision, and the reason."""

    keep: bool
    reason: str = ""

    def __post_init__(self) -> None:
        """Turn numpy's bools into Python's, which files can hold."""
        given: tuple[Any, Any] = self.keep, self.reason
        if not isinstance(given[0], bool | np.bool_):
            raise TypeError(f"Verdict: keep={self.keep!r:.100} must be True or False")
        if not isinstance(given[1], str):
            raise TypeError(f"Verdict: reason={self.reason!r:.100} must be a text")
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
    def completed(self) -> list[Trajectory]:
        """The members that have an outcome, good or bad."""
        return [trajectory for trajectory in self.trajectories if trajectory.valid]

    @property
    def valid(self) -> list[Trajectory]:
        """Deprecated: use `completed`."""
        warnings.warn("Group.valid is deprecated: use Group.completed", DeprecationWarning, stacklevel=2)
        return self.completed

    @property
    def version(self) -> int | None:
        """The oldest version of the weights that replied, without frozen parts; None if there were none."""
        versions = [trajectory.version for trajectory in self.trajectories if trajectory.version is not None]
        return min(versions, default=None)


DRAWN = "g"
"""Prefix of the ids of sampled groups; their number follows."""


EVALUATED = "eval"
"""Prefix of the names of evaluations; their number follows, and ids of their groups after a dash."""


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
    """Why an episode ends here, or None; `sampled_tokens` is the sum over its turns."""
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
    oldest_version: int | None = None,
    replayed: bool = False,
) -> Turn:
    """The record of a turn; `oldest_version` is that of all replies within it, without frozen parts."""
    generation = move.generation
    info = {key: value for key, value in came.info.items() if key not in _UNRECORDED}
    is_its_own = oldest_version == generation.version and not generation.frozen
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
        oldest_version=None if is_its_own else oldest_version,
        policy_seconds=policy_seconds,
        env_seconds=env_seconds,
        env_work_seconds=env_work_seconds,
        message=message,
        frozen=generation.frozen,
        replayed=replayed,
    )


def _own_action(action: Any, reply: str) -> Any:
    """The action, None if it is just the reply; copied, since an agent may change its arrays in place."""
    if type(action) is str:
        return None if action == reply else action
    return copy.deepcopy(action) if isinstance(action, np.ndarray | list | dict) else action


def _typed(values: Sequence[float] | None, kind: type[Any]) -> NDArray[Any] | None:
    return None if values is None else np.array(values, dtype=kind)
