"""A point in the plane: walk to a goal that only the reward reveals, or only its being reached, or against a wind."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError
from asyncrollout_envs.kwargs import check_number
from asyncrollout_envs.meta.tasks import Floats, Tasked

_STRIDE = 0.1  # the longest step, in each direction
_STRONGEST = 0.08  # wind, in each direction
_SIDE, _EDGE = 128, 2.0  # pixels of a picture, and how far it reaches from the middle
_GROUND, _GOAL, _PATH, _ROBOT = (244, 241, 234), (158, 206, 154), (150, 150, 160), (204, 60, 56)


class PointRobot(Tasked):
    """States are positions, actions are steps of up to 0.1 each way; the reward is minus the distance to the goal.

    Goals and starts lie in the square from -1 to 1.
    """

    name = "PointRobot-v0"
    render_mode = "rgb_array"
    goal_radius = 0.1  # for the picture

    def __init__(self, **tasks: Any) -> None:
        super().__init__(**{"max_episode_steps": 60, **tasks})
        self._at = np.zeros(2)
        self._path: list[Floats] = []

    def restart(self, seed: int) -> tuple[Floats, dict[str, Any]]:
        self._path = []
        return super().restart(seed)

    @property
    def action_space(self) -> Any:
        import gymnasium.spaces  # noqa: PLC0415 (a fifth of a second, for those who ask)

        return gymnasium.spaces.Box(-_STRIDE, _STRIDE, (2,), np.float32)

    @property
    def observation_space(self) -> Any:
        import gymnasium.spaces  # noqa: PLC0415

        return gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def draw_goal(self, chance: np.random.Generator) -> Floats:
        return chance.uniform(-1.0, 1.0, 2)

    def begin(self, seed: int) -> Floats:
        self._at = np.random.default_rng(seed).uniform(-1.0, 1.0, 2)
        return self._at

    def advance(self, action: Any) -> tuple[Floats, float, bool, dict[str, Any]]:
        self._path.append(self._at)
        self._at = self._at + np.clip(action, -_STRIDE, _STRIDE)
        return self._at, -float(np.hypot(*(self._at - self._target))), False, {}

    @property
    def _target(self) -> Floats:
        """Where to walk to."""
        return self._goal

    def render(self) -> NDArray[np.uint8]:
        """The plane from above: the goal, the way so far, the robot."""
        down, right = np.mgrid[_EDGE : -_EDGE : _SIDE * 1j, -_EDGE : _EDGE : _SIDE * 1j]
        picture = np.full((_SIDE, _SIDE, 3), _GROUND, dtype=np.uint8)
        discs = [
            (self._target, self.goal_radius, _GOAL),
            *((at, 0.025, _PATH) for at in self._path),
            (self._at, 0.07, _ROBOT),
        ]
        for (x, y), radius, colour in discs:
            picture[np.hypot(right - x, down - y) <= radius] = colour
        return picture


class PointRobotSparse(PointRobot):
    """The goal lies on a half circle, and pays 1 within `goal_radius` of it, else nothing; reaching it ends nothing.

    So it is to be looked for in the first episode of a task, and to be remembered in the next ones.
    """

    name = "PointRobotSparse-v0"
    options = ("goal_radius",)

    def __init__(self, *, goal_radius: float = 0.2, **tasks: Any) -> None:
        check_number(self.name, goal_radius=goal_radius)
        if goal_radius <= 0:
            raise UsageError(f"{self.name}: goal_radius={goal_radius!r} is not a number above 0")
        self.goal_radius = float(goal_radius)
        super().__init__(**tasks)

    def draw_goal(self, chance: np.random.Generator) -> Floats:
        angle = chance.uniform(0.0, np.pi)
        return np.array([np.cos(angle), np.sin(angle)])

    def begin(self, seed: int) -> Floats:
        self._at = np.random.default_rng(seed).uniform([-1.5, -0.5], [1.5, 1.5])
        return self._at

    def advance(self, action: Any) -> tuple[Floats, float, bool, dict[str, Any]]:
        state, _, _, _ = super().advance(action)
        reached = self.is_goal_state()
        return state, float(reached), False, {"is_goal_state": reached}

    def is_goal_state(self) -> bool:
        """Whether the robot is near enough to the goal to be paid."""
        return bool(np.hypot(*(self._at - self._target)) <= self.goal_radius)


class Wind(PointRobotSparse):
    """The goal is always (0, 1), the start (0, 0). A task is a wind of up to 0.08 each way, which adds to every step.

    It pays 1 within `goal_radius` of the goal, else nothing; reaching it ends nothing.
    """

    name = "Wind-v0"

    def __init__(self, *, goal_radius: float = 0.03, **tasks: Any) -> None:
        super().__init__(goal_radius=goal_radius, **{"max_episode_steps": 75, **tasks})

    @property
    def winds(self) -> Floats | None:
        """Those of all tasks; None where each seed has its own."""
        return self.goals

    def draw_goal(self, chance: np.random.Generator) -> Floats:
        return chance.uniform(-_STRONGEST, _STRONGEST, 2)

    def begin(self, seed: int) -> Floats:  # noqa: ARG002 (the start is always the same)
        self._at = np.zeros(2)
        return self._at

    def advance(self, action: Any) -> tuple[Floats, float, bool, dict[str, Any]]:
        self._path.append(self._at)
        self._at = self._at + np.clip(action, -_STRIDE, _STRIDE) + self._goal
        reached = self.is_goal_state()
        return self._at, float(reached), False, {"is_goal_state": reached}

    @property
    def _target(self) -> Floats:
        return np.array([0.0, 1.0])
