"""A household: `rooms.py` is what there is, `world.py` how it moves, `skills.py` and `expert.py` who acts, `cameras.py`
what is seen of it; then its env and its text.
"""

from asyncrollout.registry import EnvSpec
from asyncrollout.splits import SPLITS
from asyncrollout_envs.household.env import Household
from asyncrollout_envs.household.text import HouseholdText

__all__ = ["SPEC", "Household", "HouseholdText"]

SPEC = EnvSpec(
    name="household",
    factory="asyncrollout_envs.household:Household",
    text="asyncrollout_envs.household:HouseholdText",
    runs="cpu",
    summary="a two-armed robot fetches, tidies up and puts away",
    actions="go to cup, grasp cup, ...",
    splits=SPLITS,
)
