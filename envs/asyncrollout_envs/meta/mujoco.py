"""Robots of MuJoCo with tasks: a direction, a place or a speed."""

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
        return self._state(self._robot.reset(seed=seed)[0])

    def advance(self, action: Any) -> tuple[Floats, float, bool, dict[str, Any]]:
        state, _, terminated, _, info = self._robot.step(np.asarray(action))
        return self._state(state), self._reward(info), terminated, {}

    @abstractmethod
    def _reward(self, info: dict[str, Any]) -> float:
        """Of a step, by what the simulator reports of it."""

    def _state(self, state: Floats) -> Floats:
        """What the agent sees, for what Gymnasium's robot shows."""
        return state

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

    def _reward(self, info: dict[str, Any]) -> float:
        angle = float(self._goal[0])
        forward = info["x_velocity"] * np.cos(angle) + info["y_velocity"] * np.sin(angle)
        return float(forward + info["reward_ctrl"] + info["reward_contact"] + 1.0)


class _Simulated(_Robot):
    """A robot whose state is put together from the simulator's arrays."""

    def __init__(self, robot: str, settings: Mapping[str, Any], **tasks: Any) -> None:
        super().__init__(robot, settings, **tasks)
        self._size = len(self._state(np.zeros(0)))

    @property
    def observation_space(self) -> Any:
        import gymnasium.spaces  # noqa: PLC0415 (a fifth of a second, for those who ask)

        return gymnasium.spaces.Box(-np.inf, np.inf, (self._size,), np.float64)

    @property
    def _data(self) -> Any:
        return self._robot.data


class AntGoal(_Simulated):
    """Minus the distance to the task's place (both axes added up), a tenth of the squared torques, and the contacts.

    Places lie within 3 of the start. Nothing ends an episode before its time. States are 113 numbers: positions and
    velocities of torso and joints, and the contact forces on all bodies, cut off at 1.
    """

    name = "AntGoal-v0"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("Ant-v5", {"ctrl_cost_weight": 0.1, "terminate_when_unhealthy": False}, **kwargs)

    def draw_goal(self, chance: np.random.Generator) -> Floats:
        angle, radius = chance.uniform(0.0, 2 * np.pi), 3.0 * np.sqrt(chance.uniform())
        return np.array([radius * np.cos(angle), radius * np.sin(angle)])

    def _reward(self, info: dict[str, Any]) -> float:
        away = np.abs(self._robot.get_body_com("torso")[:2] - self._goal).sum()
        return float(-away + info["reward_ctrl"] + info["reward_contact"])

    def _state(self, state: Floats) -> Floats:  # noqa: ARG002
        data = self._data
        return np.concatenate([data.qpos, data.qvel, np.clip(data.cfrc_ext, -1.0, 1.0).ravel()])


class CheetahDir(_Simulated):
    """Velocity forward (task 1) or backward (task -1), less a twentieth of the squared torques.

    States are 20 numbers: the joints, their velocities, and the place of the torso.
    """

    name = "CheetahDir-v0"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("HalfCheetah-v5", {"ctrl_cost_weight": 0.05}, **kwargs)

    def draw_goal(self, chance: np.random.Generator) -> Floats:
        return np.array([chance.choice([-1.0, 1.0])])

    def _reward(self, info: dict[str, Any]) -> float:
        return float(self._goal[0] * info["x_velocity"] + info["reward_ctrl"])

    def _state(self, state: Floats) -> Floats:  # noqa: ARG002
        data = self._data
        return np.concatenate([data.qpos[1:], data.qvel, self._robot.get_body_com("torso")])


class HumanoidDir(_Simulated):
    """Its way in the task's direction, less a tenth of the squared torques and of impacts, plus 5 while it stands.

    A quarter of its centre of mass' way counts, over a step of the simulator. It falls where its torso is not between
    1 and 2 high. A task is an angle, which an oracle sees as a point of the circle. States are 376 numbers.
    """

    name = "HumanoidDir-v0"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("Humanoid-v5", {}, **kwargs)

    def get_current_task(self) -> Floats:
        return np.array([np.cos(self._goal[0]), np.sin(self._goal[0])])

    def draw_goal(self, chance: np.random.Generator) -> Floats:
        return np.array([chance.uniform(0.0, 2 * np.pi)])

    def advance(self, action: Any) -> tuple[Floats, float, bool, dict[str, Any]]:
        self._before = self._centre()
        return super().advance(action)

    def _reward(self, info: dict[str, Any]) -> float:  # noqa: ARG002
        data = self._data
        way = float((self._centre() - self._before) @ self.get_current_task())
        forward = 0.25 * way / self._robot.model.opt.timestep
        torques = 0.1 * float(np.square(data.ctrl).sum())
        impacts = min(0.5e-6 * float(np.square(data.cfrc_ext).sum()), 10.0)
        return float(forward - torques - impacts + 5.0)

    def _centre(self) -> Floats:
        """The centre of mass, in the plane."""
        mass = self._robot.model.body_mass
        centre: Floats = mass @ self._data.xipos[:, :2] / mass.sum()
        return centre

    def _state(self, state: Floats) -> Floats:  # noqa: ARG002
        data = self._data
        parts = (data.qpos[2:], data.qvel, data.cinert, data.cvel, data.qfrc_actuator, data.cfrc_ext)
        return np.concatenate([part.ravel() for part in parts])


class HalfCheetahVel(_Robot):
    """How far its velocity is from the task's, from 0 to 3, and a twentieth of the squared torques, both negative."""

    name = "HalfCheetahVel-v0"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("HalfCheetah-v5", {"ctrl_cost_weight": 0.05}, **kwargs)

    def draw_goal(self, chance: np.random.Generator) -> Floats:
        return np.array([chance.uniform(0.0, 3.0)])

    def _reward(self, info: dict[str, Any]) -> float:
        return float(info["reward_ctrl"] - abs(info["x_velocity"] - self._goal[0]))


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
