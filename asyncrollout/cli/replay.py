"""`replay`: a recorded episode, played again without a model and compared with the record."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from asyncrollout.cli.terminal.output import DONE, FAILED, Output, OutputParam
from asyncrollout.errors import EnvError, UsageError
from asyncrollout.journal.records import RecordedRollout, RunRecords
from asyncrollout.notebook import counted
from asyncrollout.pool.pool import EnvPool
from asyncrollout.pool.wire.digest import digest
from asyncrollout.redaction import HIDDEN
from asyncrollout.registry import EnvSpec, allowed_env
from asyncrollout.serialization import from_plain, to_plain
from asyncrollout.trajectories import Trajectory, Turn
from asyncrollout.types import Observation, Outcome

_SHOWN = 2_000


async def replay(
    directory: Annotated[Path, Parameter(help="Directory of a run.")],
    uid: Annotated[str, Parameter(help="A finished rollout, such as g0.0, the first of the first group.")],
    *,
    allow_import: Annotated[bool, Parameter(help="Allow importing an env given as module:Class.")] = False,
    output: OutputParam,
) -> int:
    """Replay a recorded episode turn by turn and compare it with the record.

    No model is called: the recorded replies are played.

    Example: asyncrollout replay runs/demo-1 g0.0
    """
    records = RunRecords(directory)
    recorded = records.find(uid)
    trajectory = recorded.trajectory
    spec, kwargs = _env_of(records, recorded, allow_import=allow_import)
    turns = counted(len(trajectory.turns), "turn")
    output.say(f"{uid}: {trajectory.env}, seed {trajectory.seed}, {turns}, {_end(trajectory)}")
    if trajectory.task is not None:
        output.say(f"task: {trajectory.task!r:.500}")
    try:
        difference = await _compare(spec, kwargs, trajectory, output)
    except EnvError as error:
        difference = f"the env failed: {error}"
    same = difference is None
    output.record({"uid": uid, "same": same, "difference": difference, "reward": trajectory.reward})
    output.show("the same as recorded" if same else f"not as recorded: {difference}")
    return DONE if same else FAILED


def _env_of(records: RunRecords, recorded: RecordedRollout, *, allow_import: bool) -> tuple[EnvSpec, dict[str, Any]]:
    envs: Any = records.given.get("envs", {})
    given = envs.get(recorded.tag)
    if given is None:
        raise UsageError(f"the journal has no env with the tag {recorded.tag!r}")
    added = records.added_kwargs(recorded)
    if added is None:
        raise UsageError("the evaluation's env_kwargs could not be written to a file: the env cannot be opened")
    if HIDDEN in str([given["env_kwargs"], added]):
        raise UsageError(
            f"the arguments of env {given['env']!r} hold a secret, which is not recorded: the env cannot be opened"
        )
    spec = allowed_env(given["env"], allow_import=allow_import)
    return spec, {**from_plain(given["env_kwargs"]), **from_plain(added)}


async def _compare(spec: EnvSpec, kwargs: dict[str, Any], trajectory: Trajectory, output: Output) -> str | None:
    """Play it and return the first difference, or None."""
    is_text = spec.text is not None and kwargs.get("text", True)
    async with EnvPool(backend="inline") as pool, pool.open(spec, **kwargs) as env:
        outcome = await env.reset(seed=trajectory.seed, task=trajectory.task, member=trajectory.member)
        for number, turn in enumerate(trajectory.turns):
            _show(number, turn, output)
            if not _is_same(outcome, turn.seen):
                return f"before turn {number} the env shows {_text(outcome.observation)!r:.200}"
            outcome = await env.step(_played(turn, is_text=is_text))
            if outcome.reward != turn.reward:
                return f"the reward of turn {number} was {turn.reward:g}, and is {outcome.reward:g} now"
        ended = trajectory.stop_reason in ("terminated", "truncated")
        if trajectory.valid and ended != outcome.done:
            return f"the episode was {trajectory.stop_reason}, and now it is {'over' if outcome.done else 'not over'}"
        if trajectory.final is not None and trajectory.valid and not _is_same(outcome, trajectory.final):
            return f"at its end the env shows {_text(outcome.observation)!r:.200}"
    output.say(_indented(_text(outcome.observation)))
    return None


def _played(turn: Turn, *, is_text: bool) -> Any:
    """The action; none is recorded where it was the reply itself."""
    return turn.reply if turn.action is None and (is_text or turn.reply) else turn.action


def _is_same(outcome: Outcome, recorded: Any) -> bool:
    """Pictures are not recorded with observations, since they are in the messages."""
    shown = from_plain(to_plain(outcome.observation))  # a record has a subclass of a plain type as its base
    if isinstance(recorded, Observation) and isinstance(shown, Observation):
        return (shown.text, digest(shown.data)) == (recorded.text, digest(recorded.data))
    return digest(shown) == digest(recorded)


def _show(number: int, turn: Turn, output: Output) -> None:
    said = turn.reply or f"{turn.action!r}"
    if turn.reply and turn.action is not None:
        said += f"\n(played: {turn.action!r:.500})"
    output.say(f"\nturn {number}\n{_indented(_text(turn.seen))}")
    output.say(_indented(said, "  > "))
    output.say(f"  reward {turn.reward:g}{'' if turn.valid else ', not valid'}")


def _text(observation: Any) -> str:
    if isinstance(observation, Observation):
        return observation.text
    return observation if isinstance(observation, str) else np.array2string(np.asarray(observation), threshold=20)


def _indented(text: str, before: str = "  ") -> str:
    clipped = text if len(text) <= _SHOWN else text[:_SHOWN] + " ..."
    return "\n".join(before + line for line in clipped.splitlines())


def _end(trajectory: Trajectory) -> str:
    error = "" if trajectory.error is None else f" ({trajectory.error})"
    return f"{trajectory.stop_reason}{error}, reward {trajectory.reward:g}"
