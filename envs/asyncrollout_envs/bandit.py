"""Bandit: choose an arm. One of them pays much, but seldom; is it the better one?"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from asyncrollout.errors import UsageError
from asyncrollout.registry import EnvSpec
from asyncrollout.splits import SPLITS
from asyncrollout.text.replies import LONGEST, read_choice, turn_format
from asyncrollout.types import Parsed, TextOptions
from asyncrollout_envs.kwargs import Style, check_number, check_share, check_style, check_whole
from asyncrollout_envs.seeding import Split, check_split, fresh_seed, generator

SPEC = EnvSpec(
    name="bandit",
    factory="asyncrollout_envs.bandit:Bandit",
    text="asyncrollout_envs.bandit:BanditText",
    runs="light",
    summary="choose the arm with the higher mean payoff",
    actions="an arm's name",
    splits=SPLITS,
)

PAIR = ("phoenix", "dragon")
STEADY_NAMES = {
    "train": ("librarian", "gardener", "clerk", "turtle", "lighthouse", "oak", "abbey", "ledger", "anchor", "baker"),
    "val": ("archivist", "shepherd", "tortoise", "harbour", "mill", "cellar", "weaver", "almanac"),
    "test": ("notary", "beekeeper", "elephant", "granary", "bridge", "pension", "potter", "calendar"),
}
RISKY_NAMES = {
    "train": ("gambler", "pirate", "comet", "tightrope", "volcano", "stuntman", "jackal", "lottery"),
    "val": ("prospector", "falcon", "meteor", "roulette", "wildfire"),
    "test": ("adventurer", "panther", "lightning", "jackpot", "avalanche"),
}
_LUCK = 1  # the number of the generator that the arms draw from
_MOST_NUMBERS = 100
_NUMBERED = re.compile(r"(?:\b(?:arm|number|arm number) ?#?|#)([0-9]{1,3})(?![\w-])", re.IGNORECASE)
_LISTED = re.compile(r"((?:^|>)[ \t*]*+)([0-9]{1,3})(?=\s?[:.)]\s?\*{0,3}[A-Za-z])", re.MULTILINE)
"""The number of an arm as the list of arms has it, before the name."""


class Bandit:
    """Actions are an arm's name, or its number from 1 in the order told; the reward is what the arm pays.

    All arms but one pay `low_score`, always. One pays `high_score` with `high_probability`, else `miss_score`. `names`
    puts that one last; with `num_arms` the names are drawn for each episode, from other words in each split. Members of
    a group share names and order, and have each their own luck.

    In the style "ragen" the first observation says all of the task, and success is to choose the arm that pays by
    chance, whatever it pays in the mean.
    """

    plays_by_chance = True

    def __init__(
        self,
        *,
        names: Sequence[str] = PAIR,
        num_arms: int | None = None,
        low_score: float = 0.1,
        high_score: float = 1.0,
        high_probability: float = 0.25,
        miss_score: float = 0.0,
        max_steps: int = 1,
        split: Split = "train",
        style: Style = "plain",
    ) -> None:
        check_split("bandit", split)
        check_style("bandit", style)
        check_whole("bandit", max_steps=max_steps)
        check_number("bandit", low_score=low_score, high_score=high_score, miss_score=miss_score)
        check_share("bandit", high_probability=high_probability)
        self.names = _checked_names(names)
        most = len(STEADY_NAMES[split]) + 1
        if num_arms is not None:
            check_whole("bandit", least=2, num_arms=num_arms)
            if num_arms > most:
                raise UsageError(f"bandit: num_arms={num_arms}: there are words for {most} arms; give names=[...]")
        self.num_arms, self.max_steps, self.split = num_arms, max_steps, split
        self.low_score, self.high_score = float(low_score), float(high_score)
        self.high_probability, self.miss_score = float(high_probability), float(miss_score)
        self.style = style
        self.arms: tuple[str, ...] = ()
        self.risky = ""
        self.steps = 0
        self._luck: np.random.Generator

    @property
    def best_arms(self) -> tuple[str, ...]:
        """Those of the highest mean, or in the style "ragen" the one that pays by chance."""
        mean = self.high_score * self.high_probability + self.miss_score * (1 - self.high_probability)
        if self.style == "ragen" or (mean > self.low_score and not math.isclose(mean, self.low_score)):
            return (self.risky,)
        if math.isclose(mean, self.low_score):
            return self.arms
        return tuple(arm for arm in self.arms if arm != self.risky)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        seed = fresh_seed() if seed is None else seed
        rng = generator(seed, self.split)
        names = self.names
        if self.num_arms is not None:
            steady = rng.choice(STEADY_NAMES[self.split], size=self.num_arms - 1, replace=False)
            names = (*map(str, steady), str(rng.choice(RISKY_NAMES[self.split])))
        self.risky = names[-1]
        self.arms = tuple(names[at] for at in rng.permutation(len(names)))
        self._luck = generator(seed, self.split, _LUCK, (options or {}).get("member", 0))
        self.steps = 0
        return self._task() if self.style == "ragen" else self._told("Choose an arm."), {}

    def step(self, action: str | int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        arm = self.arm_of(action)
        self.steps += 1
        lucky = self._luck.random() < self.high_probability
        reward = self.low_score if arm != self.risky else self.high_score if lucky else self.miss_score
        info = {"action_is_effective": True, "success": arm in self.best_arms, "arm": arm}
        news = f"{arm} paid {reward:g}."
        return news if self.style == "ragen" else self._told(news), reward, self.steps >= self.max_steps, False, info

    def arm_of(self, action: str | int) -> str:
        """The name of the arm that an action chooses."""
        if isinstance(action, str) and action in self.arms:
            return action
        is_number = isinstance(action, int | np.integer) and not isinstance(action, bool)
        if is_number and 1 <= int(action) <= len(self.arms):
            return self.arms[int(action) - 1]
        raise ValueError(
            f"{action!r:.100} is neither an arm, {', '.join(self.arms)}, nor a number from 1 to {len(self.arms)}"
        )

    def _task(self) -> str:
        """All that a player knows: there is no other prompt."""
        arms = " and ".join(self.arms)
        choices = " or ".join(f"<answer> {arm} </answer>" for arm in self.arms)
        return (
            "You are at a bandit, a machine with arms. Earn as much as you can by pulling the right one.\n"
            f"1. There are {len(self.arms)} arms: {arms}.\n"
            "2. Each arm pays by a distribution of its own, which has to do with its name.\n"
            "3. Think about what the names stand for, and how an arm of such a name may pay.\n"
            f"4. Which arm is likely to pay more on average? Choose one of {arms}, and reply with {choices}."
        )

    def _told(self, news: str) -> str:
        arms = ", ".join(f"{number}. {arm}" for number, arm in enumerate(self.arms, start=1))
        return f"{news} Arms: {arms}. Choices left: {self.max_steps - self.steps}."


class BanditText:
    """An arm's name or number; the expert knows which arm pays more in the mean."""

    default_action = 1

    def __init__(self, env: Bandit, options: TextOptions) -> None:
        self._env = env
        self._options = options

    @staticmethod
    def project(reply: str, options: TextOptions) -> Parsed:
        """Every name that the env has of itself, and any number; whether this episode has it, the env knows."""
        named = reply[:-LONGEST] + _LABELLED.sub("", reply[-LONGEST:])
        return _read(named, options, _ALL_NAMES, _MOST_NUMBERS)

    def parse(self, reply: str) -> Parsed:
        arms = self._env.arms
        return _read(reply, self._options, arms, len(arms), self._env.arm_of)

    def describe(self, observation: str) -> str:
        return observation

    def system_prompt(self) -> str:
        first, second = (self._env.arms or self._env.names)[:2]  # before the first reset there are no arms
        if self._env.style == "ragen":
            return turn_format(self._options, first, most=self._env.max_steps)
        return (
            "You are at a machine with several arms. Some arms pay a little every time, one pays a lot, but seldom. "
            f"Arms have names, such as {first} and {second}, and their meaning may tell which is which.\n"
            "Choose the arm that pays more in the mean. Your action is an arm's name or its number.\n\n"
            f"{turn_format(self._options, first, most=self._env.max_steps)}"
        )

    def anchor(self) -> tuple[Any, ...]:
        return (self._env.arms, self._env.steps)

    def tell(self, action: str | int) -> str:
        return action if isinstance(action, str) else self._env.arms[action - 1]

    def solve(self) -> str:
        return f"<think>This one pays more in the mean.</think><answer>{self._env.best_arms[0]}</answer>"


_ALL_NAMES = (*PAIR, *(name for words in (STEADY_NAMES, RISKY_NAMES) for split in words.values() for name in split))
_LABELLED = re.compile(
    rf"\b(?:arm|number|arm number) ?#?[0-9]{{1,3}} ?[:.,(-] ?(?=(?:{'|'.join(_ALL_NAMES)})\b)", re.IGNORECASE
)
"""A number before a name: without the env nobody knows whether they agree, and the name says more."""


def _read(
    reply: str, options: TextOptions, names: Sequence[str], numbers: int, meaning: Callable[[Any], Any] = repr
) -> Parsed:
    """An arm by its name, by its number, by its number with a word before it, as in "arm 2", or by both."""
    choices = _choices(tuple(names), numbers)
    as_words = reply[:-LONGEST] + _NUMBERED.sub(r"arm-\1", _LISTED.sub(r"\1arm-\2", reply[-LONGEST:]))
    return read_choice(as_words, options, choices, meaning)


@lru_cache(maxsize=1_000)
def _choices(names: tuple[str, ...], numbers: int) -> Mapping[str, str | int]:
    """What a reply may call an arm, and the action."""
    counted = range(1, numbers + 1)
    choices: dict[str, str | int] = {str(number): number for number in counted}
    return choices | {f"arm-{number}": number for number in counted} | {name.lower(): name for name in names}


def _checked_names(names: Any) -> tuple[str, ...]:
    is_list = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    plain = tuple(name.strip() for name in names) if is_list else ()
    if len(plain) < 2 or len({name.lower() for name in plain}) != len(plain):
        raise UsageError(f"bandit: names={names!r:.200} are not two or more different names")
    for name in plain:
        if not name or name.isdigit() or _NUMBERED.search(name):
            raise UsageError(f"bandit: names={names!r:.200}: {name!r} is not a name that differs from a number")
    return plain
