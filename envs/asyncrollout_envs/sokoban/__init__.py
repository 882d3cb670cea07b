"""Sokoban: `boards.py` is the game, `rooms.py` makes rooms, `solver.py` solves them; then its env and its text."""

from asyncrollout.registry import EnvSpec
from asyncrollout.splits import SPLITS
from asyncrollout_envs.sokoban.env import Sokoban
from asyncrollout_envs.sokoban.text import SokobanText

__all__ = ["SPEC", "Sokoban", "SokobanText"]

SPEC = EnvSpec(
    name="sokoban",
    factory="asyncrollout_envs.sokoban:Sokoban",
    text="asyncrollout_envs.sokoban:SokobanText",
    runs="cpu",
    summary="push all boxes onto targets",
    actions="Up, Down, Left, Right",
    splits=SPLITS,
)
