"""Run directories as they are on disk, without anything being played."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from asyncrollout import Group, Trajectory, Turn, Usage, Verdict
from asyncrollout.batches.batch_json import encode_record
from asyncrollout.journal.events import AnyEvent, Began, Delivered, Dispatched, Drawn, Finished, Judged, encode
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES
from asyncrollout.trajectories import StopReason, member_uid

BEGAN = 1_700_000_000.0


def played(group: str, member: int, rewards: Iterable[float] = (1.0,), **fields: Any) -> Trajectory:
    """A rollout with a turn for each reward: half a second of the policy and a quarter of the env, after as much."""
    turns = [
        Turn(f"state {number}", f"reply {number}", reward=reward, usage=Usage(completion=10), policy_seconds=0.5,
             env_seconds=0.25)
        for number, reward in enumerate(rewards)
    ]  # fmt: skip
    known: dict[str, Any] = {
        "uid": member_uid(group, member), "env": "maze", "seed": 7, "turns": turns, "member": member,
        "reward": sum(turn.reward for turn in turns), "stop_reason": StopReason.TERMINATED,
        "seconds": 0.75 * len(turns) + 0.25,
    }  # fmt: skip
    return Trajectory(**{**known, **fields})


def group_of_rewards(name: str, rewards: Iterable[float], tag: str = "maze", keep: bool | None = True) -> Group:
    members = [played(name, member, [reward]) for member, reward in enumerate(rewards)]
    verdict = None if keep is None else Verdict(keep=keep, reason="" if keep else "constant_reward")
    return Group(name, members, tag, verdict)


def events_of(groups: list[Group]) -> list[AnyEvent]:
    """Each group begins a second after the one before; those that are kept make one batch."""
    events: list[AnyEvent] = [Began(at=BEGAN, given={"seed": 0, "group_size": 2})]
    for place, group in enumerate(groups):
        at = BEGAN + place
        events.append(Drawn(at=at, group=group.id, index=place, seed=place, tag=group.tag))
        for one in group.trajectories:
            events.append(Dispatched(at=at, uid=one.uid))
            events.append(Finished(
                at=at + one.seconds, uid=one.uid, reward=one.reward, stop_reason=one.stop_reason, turns=len(one.turns),
                tokens=one.sampled_tokens, seconds=one.seconds,
            ))  # fmt: skip
        if group.verdict is not None:
            events.append(Judged(at=at + 2, group=group.id, keep=group.verdict.keep, reason=group.verdict.reason))
    kept, dropped = (
        [group.id for group in groups if group.verdict and group.verdict.keep is keep] for keep in (True, False)
    )
    return [*events, Delivered(at=BEGAN + len(groups) + 2, batch=0, groups=kept, dropped=dropped)]


def write_run(directory: Path, groups: list[Group], events: list[AnyEvent] | None = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / JOURNAL).write_bytes(b"".join(map(encode, events_of(groups) if events is None else events)))
    records = (encode_record(group.id, group.tag, one) + b"\n" for group in groups for one in group.trajectories)
    (directory / TRAJECTORIES).write_bytes(b"".join(records))
    return directory
