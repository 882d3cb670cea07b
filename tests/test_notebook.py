"""Batches, groups and trajectories in a line, and as tables in a notebook."""

import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from asyncrollout import (
    Batch,
    EnvError,
    Group,
    Observation,
    Rollouts,
    ScriptedPolicy,
    StopReason,
    Trajectory,
    Turn,
    Verdict,
)

EVIL = "<script>alert('x')</script>&\"<img src=x onerror=y>"


def trajectory(uid: str = "g0.0", turns: int = 2, **changes: Any) -> Trajectory:
    turn = Turn(Observation(text="You see a wall.", images=(np.zeros((4, 4, 3)),)), "<answer>Up</answer>", reward=0.5)
    given: dict[str, Any] = {"uid": uid, "env": "maze", "seed": 7, "turns": [turn] * turns, "reward": 1.0}
    return Trajectory(**{**given, "stop_reason": StopReason.TERMINATED, **changes})


FAILED = trajectory("g0.1", turns=0, reward=0.0, stop_reason=StopReason.ENV_ERROR, error=EnvError("the door\nis gone"))


class Reader(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(shown: Any) -> Reader:
    reader = Reader()
    reader.feed(shown._repr_html_())
    reader.close()
    return reader


def test_each_is_one_short_line() -> None:
    group = Group("g0", [trajectory(), FAILED], verdict=Verdict(False, "constant_reward"))
    assert repr(trajectory()) == "<Trajectory g0.0: maze, seed 7, 2 turns, reward 1, terminated>"
    assert repr(FAILED) == "<Trajectory g0.1: maze, seed 7, 0 turns, reward 0, EnvError: the door>"
    assert repr(group) == "<Group g0: maze, 2 rollouts, mean reward 1, 1 failed, dropped: constant_reward>"
    assert repr(Batch(3, [group])) == "<Batch 3: 1 group, 2 rollouts, mean reward 1, 1 failed>"
    assert repr(Batch(0, [])) == "<Batch 0: 0 groups, 0 rollouts>"
    assert repr(Group("g1", [])) == "<Group g1: 0 rollouts>"


def test_lines_stay_short_whatever_was_played() -> None:
    long = trajectory(turns=1000, error=EnvError("x" * 10_000))
    group = Group("g0", [long] * 100, verdict=Verdict(False, "y" * 10_000))
    for shown in (long, group, Batch(0, [group] * 100)):
        assert len(repr(shown)) < 300
        assert "\n" not in repr(shown)


def test_tables_have_a_row_for_each_part() -> None:
    group = Group("g0", [trajectory(), trajectory("g0.1", reward=0.0), FAILED])
    reader = read(Batch(3, [group, Group("g1", [])]))
    assert reader.tags.count("tr") == 3
    assert reader.text[0] == "Batch 3: 2 groups, 3 rollouts, mean reward 0.5, 1 failed"
    assert reader.text[8:15] == ["g0", "maze", "3", "0.5", "0 to 1", "2", "1"]
    assert read(group).tags.count("tr") == 4
    reader = read(trajectory())
    assert reader.text[5:9] == ["1", "You see a wall. [1 image]", "<answer>Up</answer>", "0.5"]


def test_long_tables_and_texts_are_cut() -> None:
    reader = read(trajectory(turns=50, error=None))
    assert reader.tags.count("tr") == 21
    assert reader.text[-1] == "... and 30 more"
    many = Batch(0, [Group(f"g{n}", [trajectory(f"g{n}.0")]) for n in range(500)])
    assert len(many._repr_html_()) < 20_000
    turn = Turn("x" * 100_000, "y" * 100_000)
    assert len(Trajectory("u", "e", 0, [turn], 0.0, StopReason.TURNS)._repr_html_()) < 2_000


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("seen", [EVIL, Observation(text=EVIL), {"a": EVIL}, Odd(), np.zeros(100_000), None])
def test_everything_is_escaped(seen: Any) -> None:
    turn = Turn(seen, EVIL)
    one = Trajectory(EVIL, EVIL, 0, [turn, Turn(seen, "", action=[EVIL])], 0.0, StopReason.TURNS, EnvError(EVIL))
    group = Group(EVIL, [one], EVIL, Verdict(False, EVIL))
    for shown in (one, group, Batch(0, [group])):
        assert set(read(shown).tags) <= {"p", "table", "thead", "tbody", "tr", "th", "td"}
        assert not re.search(r"<(script|img)", shown._repr_html_())


async def test_what_was_really_played_is_shown() -> None:
    async with Rollouts("bandit", policy=ScriptedPolicy(["<answer>1</answer>"]), group_size=2) as rollouts:
        batch = await rollouts.collect(groups=2)
    assert re.fullmatch(r"<Batch 0: 2 groups, 4 rollouts, mean reward [-\d.e]+>", repr(batch))
    for shown in (batch, batch.groups[0], batch.trajectories[0]):
        assert read(shown).tags.count("table") == 1
