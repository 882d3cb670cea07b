"""Families of tasks for meta-RL: what differs between tasks is not shown, and is found out by acting."""

from typing import Any

from asyncrollout.bamdp import Bamdp
from asyncrollout.registry import EnvSpec, load_factory
from asyncrollout.types import Placement

MUJOCO = {"mujoco": "pip install 'asyncrollout[mujoco]'"}


def _spec(name: str, family: str, runs: Placement, **card: Any) -> EnvSpec:
    return EnvSpec(name=name, factory="asyncrollout_envs.meta:make", kwargs={"family": family}, runs=runs, **card)


POINT_ROBOT = _spec(
    "PointRobot-v0",
    "point_robot:PointRobot",
    "light",
    summary="walk to a goal that only the reward reveals",
    actions="a step in the plane",
)
POINT_ROBOT_SPARSE = _spec(
    "PointRobotSparse-v0",
    "point_robot:PointRobotSparse",
    "light",
    summary="find a goal that pays only near it",
    actions="a step in the plane",
)
WIND = _spec(
    "Wind-v0",
    "point_robot:Wind",
    "light",
    summary="reach a fixed goal against a wind that only drifting reveals",
    actions="a step in the plane",
)
ANT_DIR = _spec(
    "AntDir-v0",
    "mujoco:AntDir",
    "cpu",
    summary="run in a direction that only the reward reveals",
    actions="8 torques",
    requires=MUJOCO,
)
ANT_GOAL = _spec(
    "AntGoal-v0",
    "mujoco:AntGoal",
    "cpu",
    summary="run to a place that only the reward reveals",
    actions="8 torques",
    requires=MUJOCO,
)
CHEETAH_DIR = _spec(
    "CheetahDir-v0",
    "mujoco:CheetahDir",
    "cpu",
    summary="run forward or backward, which only the reward reveals",
    actions="6 torques",
    requires=MUJOCO,
)
HALF_CHEETAH_VEL = _spec(
    "HalfCheetahVel-v0",
    "mujoco:HalfCheetahVel",
    "cpu",
    summary="run at a speed that only the reward reveals",
    actions="6 torques",
    requires=MUJOCO,
)
HUMANOID_DIR = _spec(
    "HumanoidDir-v0",
    "mujoco:HumanoidDir",
    "cpu",
    summary="walk in a direction that only the reward reveals",
    actions="17 torques",
    requires=MUJOCO,
)


def make(family: str, *, episodes_per_task: int = 1, oracle: bool = False, **kwargs: Any) -> Bamdp:
    """One of the classes here, as several episodes of a task in one."""
    return Bamdp(load_factory(f"asyncrollout_envs.meta.{family}")(**kwargs), episodes_per_task, oracle=oracle)
