"""Where the robot's three cameras are, and what they see."""

import math

import numpy as np

from asyncrollout_envs.household.raster import Eye, draw
from asyncrollout_envs.household.rooms import Point, Room
from asyncrollout_envs.household.shapes import scene
from asyncrollout_envs.household.world import State
from asyncrollout_envs.sensors import Camera, Picture

_HEAD: Point = (0.06, 0.0, 1.5)
_HEAD_DOWN, _WRIST_DOWN = math.radians(28), math.radians(42)
_HEAD_WIDE, _WRIST_WIDE = math.tan(math.radians(48)), math.tan(math.radians(42))
_BEHIND, _ABOVE = 0.1, 0.15  # of a wrist's camera from its hand


def look(room: Room, state: State, wrist: int, head: int) -> dict[Camera, Picture]:
    """A picture for each camera, of these many pixels a side."""
    faces = scene(room, state)
    (left_x, left_y, left_z), (right_x, right_y, right_z) = (hand.at for hand in state.hands)
    left = _eye(state, (left_x - _BEHIND, left_y, left_z + _ABOVE), _WRIST_DOWN, _WRIST_WIDE)
    right = _eye(state, (right_x - _BEHIND, right_y, right_z + _ABOVE), _WRIST_DOWN, _WRIST_WIDE)
    front = _eye(state, _HEAD, _HEAD_DOWN, _HEAD_WIDE)
    return {
        "left_wrist": draw(faces, left, wrist),
        "right_wrist": draw(faces, right, wrist),
        "head": draw(faces, front, head),
    }


def _eye(state: State, at: Point, down: float, wide: float) -> Eye:
    level = math.cos(down)
    forward = np.array([math.cos(state.yaw) * level, math.sin(state.yaw) * level, -math.sin(down)])
    return Eye(np.array(state.outside(at)), forward, wide)
