"""A household robot with two arms: the structure of BEHAVIOR's observations and actions in a small world of our own."""

import string
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError
from asyncrollout.validation import did_you_mean
from asyncrollout_envs.household.rooms import ACTIVITIES, Room, make_room
from asyncrollout_envs.household.skills import SKILLS, command
from asyncrollout_envs.household.world import LENGTH, State, advance, first_state, satisfied
from asyncrollout_envs.kwargs import check_bool, check_one_of, check_whole
from asyncrollout_envs.seeding import Split, check_split, fresh_seed
from asyncrollout_envs.sensors import CAMERAS, ROBOT, SIZES, Camera, Picture, Size, tile

PROPRIO = 14
"""How many numbers the robot's state has: see `proprio`."""


class Household:
    """Observations are BEHAVIOR's: the robot's cameras by their names (with `images`), its own state, the instruction.

    An action is R1Pro's 23 numbers (`world.PARTS`), or the number of a skill (`skills.SKILLS`, from 1), which is a step
    of a controller. A task is the name of an activity; without one, `activity` or else the seed says what is asked for.
    The reward of a step is the share of the activity that it has done.
    """

    metadata: Mapping[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}
    render_mode = "rgb_array"

    def __init__(
        self,
        *,
        activity: str | None = None,
        max_episode_steps: int = 200,
        resolution: Size = "low",
        images: bool = False,
        split: Split = "train",
    ) -> None:
        if activity is not None:
            _check_activity("activity", activity)
        check_whole("household", max_episode_steps=max_episode_steps)
        check_one_of("household", "resolution", resolution, tuple(SIZES))
        check_bool("household", images=images)
        check_split("household", split)
        self.activity, self.max_episode_steps, self.split = activity, max_episode_steps, split
        self.resolution, self.images = resolution, images
        self.steps = 0
        self.room: Room
        self.state: State

    @property
    def action_space(self) -> Any:
        import gymnasium.spaces  # noqa: PLC0415 (a fifth of a second, for those who ask)

        return gymnasium.spaces.Box(-1.0, 1.0, (LENGTH,), np.float32)

    @property
    def observation_space(self) -> Any:
        from gymnasium import spaces  # noqa: PLC0415

        wrist, head = SIZES[self.resolution]
        sides: dict[Camera, int] = {"left_wrist": wrist, "right_wrist": wrist, "head": head} if self.images else {}
        robot: dict[str, Any] = {
            f"{ROBOT}:{CAMERAS[camera]}": spaces.Dict({"rgb": spaces.Box(0, 255, (side, side, 3), np.uint8)})
            for camera, side in sides.items()
        }
        robot["proprio"] = spaces.Box(-np.inf, np.inf, (PROPRIO,), np.float32)
        return spaces.Dict({ROBOT: spaces.Dict(robot), "instruction": spaces.Text(200, charset=string.printable)})

    @property
    def instruction(self) -> str:
        return self.room.activity.instruction

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        task = (options or {}).get("task")
        if task is not None:
            _check_activity("task", task)
        self.room = make_room(fresh_seed() if seed is None else seed, self.split, task or self.activity)
        self.state, self.steps = first_state(self.room), 0
        return self._observation(), {"activity": self.room.activity.name}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        numbers, reason = self._numbers(action)
        before, done = self.state, satisfied(self.room, self.state)
        self.state = advance(self.room, before, numbers)
        self.steps += 1
        now = satisfied(self.room, self.state)
        success = all(now)
        info: dict[str, Any] = {
            "success": success,
            "goals_done": sum(now),
            "goals": len(now),
            "activity": self.room.activity.name,
            "action_is_effective": self.state != before,
        }
        if reason:
            info["reason"] = reason
        truncated = self.steps >= self.max_episode_steps and not success
        return self._observation(), (sum(now) - sum(done)) / len(now), success, truncated, info

    def _numbers(self, action: Any) -> tuple[tuple[float, ...], str]:
        """An action for the robot, and why a skill does nothing."""
        if isinstance(action, int | np.integer) and not isinstance(action, bool):
            if not 1 <= action <= len(SKILLS):
                raise ValueError(f"skill {action} is not one of 1 to {len(SKILLS)}")
            given = command(self.room, self.state, SKILLS[int(action) - 1])
            return given.action, given.reason
        numbers = np.asarray(action, dtype=np.float64)
        if numbers.shape != (LENGTH,) or not np.isfinite(numbers).all():
            shown = f"numbers of shape {numbers.shape}"
            raise ValueError(f"an action is {LENGTH} finite numbers, or the number of a skill, not {shown}")
        return tuple(np.clip(numbers, -1.0, 1.0).tolist()), ""

    def proprio(self) -> NDArray[np.float32]:
        """Base (x, y, cos and sin of its yaw), then for each hand: its place, whether it is open, whether it holds."""
        state = self.state
        hands = [number for hand in state.hands for number in (*hand.at, hand.is_open, hand.holds is not None)]
        base = (state.x, state.y, np.cos(state.yaw), np.sin(state.yaw))
        return np.array([*base, *hands], dtype=np.float32)

    def _observation(self) -> dict[str, Any]:
        robot: dict[str, Any] = {"proprio": self.proprio()}
        if self.images:
            robot |= {f"{ROBOT}:{CAMERAS[camera]}": {"rgb": picture} for camera, picture in self.sense().items()}
        return {ROBOT: robot, "instruction": self.instruction}

    def sense(self) -> dict[Camera, Picture]:
        """What each camera sees."""
        from asyncrollout_envs.household.cameras import look  # noqa: PLC0415 (only those who look pay for it)

        return look(self.room, self.state, *SIZES[self.resolution])

    def render(self) -> Picture:
        """The left wrist's picture above the right one's, and beside them the head's."""
        return tile(self.sense(), self.resolution)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode((self.room, self.state, self.steps))

    def restore(self, state: bytes) -> None:
        self.room, self.state, self.steps = msgspec.msgpack.decode(state, type=tuple[Room, State, int])


def _check_activity(key: str, name: Any) -> None:
    if not isinstance(name, str) or name not in ACTIVITIES:
        raise UsageError(f"household: {key}={name!r:.200} is no activity{did_you_mean(str(name), ACTIVITIES)}")
