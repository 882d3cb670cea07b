"""Countdown: `arithmetic.py` reads expressions, `puzzles.py` makes and solves puzzles, `env.py` plays them."""

from asyncrollout_envs.countdown.env import SPEC, Countdown, CountdownText

__all__ = ["SPEC", "Countdown", "CountdownText"]
