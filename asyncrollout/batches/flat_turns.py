"""The turns of a batch, one after the other, and the columns that every form of its arrays has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.batches.samples import has_ids
from asyncrollout.errors import UsageError
from asyncrollout.trajectories import Group, Trajectory, Turn

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FlatTurns:
    """The turns of all trajectories; `trajectory` and `turn` are the index of each turn's owner, and its own within it.

    `group`, `tags`, `valid` and `reward` have an entry per trajectory, `turn_reward` per turn. In failed trajectories,
    rewards that are not finite are 0.
    """

    trajectories: list[Trajectory]
    turns: list[Turn]
    trajectory: Ints
    turn: Ints
    group: Ints
    tags: list[str]
    valid: NDArray[np.bool_]
    reward: Floats
    turn_reward: Floats

    def columns(self, owners: Ints) -> dict[str, Any]:
        """The columns about a row's trajectory, which mean the same in every form."""
        return {
            "trajectory": owners,
            "group_ids": self.group[owners],
            "uids": [self.trajectories[owner].uid for owner in owners.tolist()],
            "valid": self.valid[owners],
            "rewards": self.reward[owners],
        }

    @property
    def has_ids(self) -> NDArray[np.bool_]:
        """Which turns have token ids."""
        return np.array([has_ids(turn) for turn in self.turns])

    def name(self, row: int) -> str:
        """The turn as error messages name it."""
        return f"trajectory {self.trajectories[self.trajectory[row]].uid!r}, turn {self.turn[row]}"


def flatten(groups: Sequence[Group]) -> FlatTurns:
    """All turns of the groups; a `UsageError` names a trajectory with an outcome whose reward is not finite."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    if not any(trajectory.turns for trajectory in trajectories):
        raise UsageError(_nothing(trajectories))
    sizes = [len(trajectory.turns) for trajectory in trajectories]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    trajectory = np.repeat(np.arange(len(trajectories), dtype=np.int32), sizes)
    turn = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
    group = np.repeat(np.arange(len(groups), dtype=np.int32), [len(group.trajectories) for group in groups])
    tags = [group.tag for group in groups for _ in group.trajectories]
    valid = np.array([trajectory.valid for trajectory in trajectories], dtype=np.bool_)
    reward = np.array([trajectory.reward for trajectory in trajectories], dtype=np.float64)
    turn_reward = np.array([turn.reward for turn in turns], dtype=np.float64)
    for owner in np.flatnonzero(valid & ~np.isfinite(reward)):
        raise UsageError(f"trajectory {trajectories[owner].uid!r} has reward {reward[owner]}: it must be finite")
    for row in np.flatnonzero(valid[trajectory] & ~np.isfinite(turn_reward)):
        name = f"trajectory {trajectories[trajectory[row]].uid!r}, turn {turn[row]}"
        raise UsageError(f"{name} has reward {turn_reward[row]}: it must be finite")
    reward[~np.isfinite(reward)] = 0.0
    turn_reward[~np.isfinite(turn_reward)] = 0.0
    return FlatTurns(trajectories, turns, trajectory, turn, group, tags, valid, reward, turn_reward)


def _nothing(trajectories: list[Trajectory]) -> str:
    if not trajectories:
        return "the batch is empty: there is nothing to make arrays of"
    why = next((f"; {each.uid!r} ended with {each.error}" for each in trajectories if each.error is not None), "")
    return f"none of the batch's {len(trajectories)} trajectories has a turn: there is nothing to make arrays of{why}"
