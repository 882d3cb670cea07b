"""Questions of the `reasoning-gym` package: `questions.py` gets them, `scoring.py` scores answers, `env.py` asks."""

from asyncrollout_envs.reasoning.env import SPEC, ReasoningGym, ReasoningGymText

__all__ = ["SPEC", "ReasoningGym", "ReasoningGymText"]
