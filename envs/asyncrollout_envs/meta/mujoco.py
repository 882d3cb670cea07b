"""Robots of MuJoCo with tasks: an ant and a direction, a half cheetah and a speed."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from asyncrollout.errors import MissingExtraError
from asyncrollout_envs.meta.tasks import Floats, Tasked


class _Robot(Tasked):
    """A robot of Gymnasium's, which is simulated there; its reward is computed for the task."""

    options = ("render_mode",)

    def __init__(
        self, robot: str, settings: Mapping[str, Any], *, render_mode: str | None = None, **tasks: Any
    ) -> None:
        self._robot = _make(self.name, robot, render_mode=render_mode, **settings)
        self.render_mode = render_mode
        super().__init__(**{"max_episode_steps": 200, **tasks})

    @property
    def action_space(self) -> Any:
        return self._robot.action_space

    @property
    def observation_space(self) -> Any:
        return self._robot.observation_space

    def begin(self, seed: int) -> Floats:
        state: Floats = self._robot.reset(seed=seed)[0]
        return state

    def advance(self, action: Any) -> tuple[Floats, float, bool, dict[str, Any]]:
        state, _, terminated, _, told = self._robot.step(np.asarray(action))
        return state, self._reward(told), terminated, {}

    @abstractmethod
    def _reward(self, told: dict[str, Any]) -> float:
        """Of a step, by what the simulator tells of it."""

    def render(self) -> Any:
        return self._robot.render()

    def close(self) -> None:
        self._robot.close()


class AntDir(_Robot):
    """Velocity in the task's direction, less half the squared torques and the contacts, plus 1 while it stands.

    It falls, and the episode is over, where its torso is not between 0.2 and 1.0 high. A task is an angle; without a
    number of tasks it is forward or backward. States are 27 numbers: the joints and the torso without its place.
    """

    name = "AntDir-v0"

    def __init__(self, **kwargs: Any) -> None:
        self._either_way = all(kwargs.get(key) is None for key in ("n_tasks", "num_train_tasks"))
        super().__init__("Ant-v5", {"include_cfrc_ext_in_observation": False}, **kwargs)

    def draw_goal(self, chance: np.random.Generator) -> Floats:
        return np.array([chance.choice([0.0, np.pi]) if self._either_way else chance.uniform(0.0, 2 * np.pi)])

    def _reward(self, told: dict[str, Any]) -> float:
        angle = float(self._goal[0])
        forward = told["x_velocity"] * np.cos(angle) + told["y_velocity"] * np.sin(angle)
        return float(forward + told["reward_ctrl"] + told["reward_contact"] + 1.0)


class HalfCheetahVel(_Robot):
    """How far its velocity is from the task's, from 0 to 3, and a twentieth of the squared torques, both negative."""

    name = "HalfCheetahVel-v0"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("HalfCheetah-v5", {"ctrl_cost_weight": 0.05}, **kwargs)

    def draw_goal(self, chance: np.random.Generator) -> Floats:
        return np.array([chance.uniform(0.0, 3.0)])

    def _reward(self, told: dict[str, Any]) -> float:
        return float(told["reward_ctrl"] - abs(told["x_velocity"] - self._goal[0]))


def _make(name: str, robot: str, **options: Any) -> Any:
    try:
        import mujoco  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(f"{name} needs MuJoCo: pip install 'asyncrollout[mujoco]'") from error
    import gymnasium  # noqa: PLC0415

    warn = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(
        lambda _: None
    )  # of old words in Gymnasium's own files; else a log is left where we run
    try:
        return gymnasium.make(robot, disable_env_checker=True, **options).unwrapped
    finally:
        mujoco.set_mju_user_warning(warn)
