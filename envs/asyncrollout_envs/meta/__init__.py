"""Families of tasks for meta-RL: what differs between tasks is not shown, and is found out by acting."""

from typing import Any

from asyncrollout.bamdp import Bamdp
from asyncrollout.registry import EnvSpec, load_factory
from asyncrollout.types import Placement


def _spec(name: str, family: str, runs: Placement) -> EnvSpec:
    return EnvSpec(name=name, factory="asyncrollout_envs.meta:make", kwargs={"family": family}, runs=runs)


POINT_ROBOT = _spec("PointRobot-v0", "point_robot:PointRobot", "light")
POINT_ROBOT_SPARSE = _spec("PointRobotSparse-v0", "point_robot:PointRobotSparse", "light")
ANT_DIR = _spec("AntDir-v0", "mujoco:AntDir", "cpu")
HALF_CHEETAH_VEL = _spec("HalfCheetahVel-v0", "mujoco:HalfCheetahVel", "cpu")


def make(family: str, *, episodes_per_task: int = 1, oracle: bool = False, **kwargs: Any) -> Bamdp:
    """One of the classes here, as several episodes of a task in one."""
    return Bamdp(load_factory(f"asyncrollout_envs.meta.{family}")(**kwargs), episodes_per_task, oracle=oracle)
