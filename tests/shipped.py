"""The shipped text envs in the forms that every one of them is tested in."""

from collections.abc import Mapping
from typing import Any

FORMS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "sokoban": ("sokoban", {}),
    "sokoban-two-boxes": ("sokoban", {"dim_room": (8, 8), "num_boxes": 2}),
    "frozen_lake": ("frozen_lake", {"is_slippery": False}),
    "frozen_lake-slippery": ("frozen_lake", {"size": 5, "success_rate": 0.8}),
    "bandit": ("bandit", {}),
    "bandit-many": ("bandit", {"num_arms": 6, "max_steps": 3}),
    "countdown": ("countdown", {}),
    "game_2048": ("game_2048", {"goal": 128}),
    "household": ("household", {}),
    "household-fridge": ("household", {"activity": "store_food", "max_episode_steps": 150}),
    "metamathqa": ("metamathqa", {}),
    "rubikscube": ("rubikscube", {}),
    "sudoku": ("sudoku", {}),
    "webshop": ("webshop", {}),
    "reasoning_gym": ("reasoning_gym", {}),
    "video": ("video", {}),
}
"""By a name for the test's report: the env's name and keyword arguments."""

BY_CHANCE = ("frozen_lake-slippery",)
"""Even the best player loses there sometimes."""

SHARING = ("bandit", "bandit-many", "game_2048", "reasoning_gym")
"""Those whose splits may begin alike: the same two arms, words drawn anew, two tiles, short questions of a package."""

ELSEWHERE = (
    *("AntDir-v0", "AntGoal-v0", "CheetahDir-v0", "HalfCheetahVel-v0", "HumanoidDir-v0"),
    *("PointRobot-v0", "PointRobotSparse-v0", "Wind-v0", "behavior"),
)
"""Those with tests of their own: robots that are no text, and one whose simulator is not here."""
