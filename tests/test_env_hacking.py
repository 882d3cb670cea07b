"""Reward is for the task: what needs no skill earns no more than an honest random player, and detours never pay.

`docs/envs/index.md` has the exceptions, with the same reasons.
"""

from functools import cache
from typing import NamedTuple

import anyio
import pytest

from asyncrollout import stats
from tests.docs_page import ROOT
from tests.env_players import ACTIONS, DEGENERATE, STALLING, Player, expert, honest, play
from tests.shipped import FORMS

ERRORS = 4.0
"""A surplus of so many standard errors is not chance, even among the hundreds that are tried."""

EXCEPTIONS = {
    ("game_2048", "says everything twice"): "the reward counts merges, as the game's own score does",
    ("reasoning_gym", "answers everything"): "the package pays the share of a reply that is the answer",
}
"""By env and strategy: why it may earn more."""


class Effort(NamedTuple):
    episodes: int
    actions: int


QUICK, MANY = Effort(8, 30), Effort(120, ACTIONS)


@cache
def rewards(form: str, player: Player, effort: Effort) -> list[float]:
    async def played() -> list[float]:
        name, kwargs = FORMS[form]
        knows = player is expert or player in STALLING.values()
        episodes = await play(name, kwargs, player, range(effort.episodes), knows=knows, actions=effort.actions)
        return [episode.reward for episode in episodes]

    return anyio.run(played)


def surplus(form: str, player: Player, over: Player, effort: Effort) -> float:
    """How much more a player surely earns than another from the same seeds."""
    both = zip(rewards(form, player, effort), rewards(form, over, effort), strict=True)
    more = [mine - theirs for mine, theirs in both]
    return stats.average(more) - ERRORS * (stats.standard_error(more) or 0.0)


def check(form: str, strategy: str, effort: Effort) -> None:
    player, over = (DEGENERATE[strategy], honest) if strategy in DEGENERATE else (STALLING[strategy], expert)
    assert surplus(form, player, over, effort) <= 1e-9 or (FORMS[form][0], strategy) in EXCEPTIONS


@pytest.mark.parametrize("strategy", [*DEGENERATE, *STALLING])
@pytest.mark.parametrize("form", FORMS)
def test_no_strategy_without_skill_pays(form: str, strategy: str) -> None:
    check(form, strategy, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [*DEGENERATE, *STALLING])
@pytest.mark.parametrize("form", FORMS)
def test_no_strategy_without_skill_pays_in_many_episodes(form: str, strategy: str) -> None:
    check(form, strategy, MANY)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "game_2048"])
def test_the_expert_earns_more_than_a_random_player(form: str) -> None:
    effort = Effort(1000, 3) if form.startswith("bandit") else MANY._replace(episodes=8)
    means = [stats.average(rewards(form, player, effort)) for player in (expert, honest)]
    assert means[0] > means[1]


@pytest.mark.parametrize(("env", "strategy"), EXCEPTIONS)
def test_every_exception_is_documented(env: str, strategy: str) -> None:
    page = (ROOT / "docs" / "envs" / "index.md").read_text()
    assert f"| `{env}` | {strategy} | {EXCEPTIONS[env, strategy]} |" in page
