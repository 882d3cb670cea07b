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
"""How many standard errors above 0 a surplus is no chance.

About 200 pairs of an env and a strategy are compared, of 120 episodes each: chance alone exceeds four standard errors
in 1 % of suites, and three in every fourth. `MOST` bounds what may hide below.
"""

MOST = 0.1
"""The largest surplus of many episodes that is likely (two standard errors), as a share of the expert's."""

HEAD_START = ("household",)
"""Where a random player never comes to the first reward: the expert leaves all players one action before it."""

EXCEPTIONS = {
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
        episodes = await play(
            name,
            kwargs,
            player,
            range(effort.episodes),
            knows=knows,
            actions=effort.actions,
            head_start=name in HEAD_START,
        )
        return [episode.reward for episode in episodes]

    return anyio.run(played)


def surplus(form: str, player: Player, over: Player, effort: Effort) -> list[float]:
    """How much more a player earns than another, seed by seed."""
    both = zip(rewards(form, player, effort), rewards(form, over, effort), strict=True)
    return [mine - theirs for mine, theirs in both]


def compared(strategy: str) -> tuple[Player, Player]:
    """The player of a strategy, and the one that it must not surpass."""
    return (DEGENERATE[strategy], honest) if strategy in DEGENERATE else (STALLING[strategy], expert)


def sure_surplus(more: list[float]) -> float:
    return stats.average(more) - ERRORS * (stats.standard_error(more) or 0.0)


@pytest.mark.parametrize("strategy", [*DEGENERATE, *STALLING])
@pytest.mark.parametrize("form", FORMS)
def test_no_strategy_without_skill_pays(form: str, strategy: str) -> None:
    more = surplus(form, *compared(strategy), QUICK)
    assert sure_surplus(more) <= 1e-9 or (FORMS[form][0], strategy) in EXCEPTIONS


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [*DEGENERATE, *STALLING])
@pytest.mark.parametrize("form", FORMS)
def test_no_strategy_without_skill_pays_in_many_episodes(form: str, strategy: str) -> None:
    if (FORMS[form][0], strategy) in EXCEPTIONS:
        return
    more = surplus(form, *compared(strategy), MANY)
    assert sure_surplus(more) <= 1e-9
    likely = stats.average(more) - 2.0 * (stats.standard_error(more) or 0.0)
    assert likely <= MOST * stats.average(surplus(form, expert, honest, MANY))


@pytest.mark.parametrize("form", FORMS)
def test_the_expert_earns_more_than_a_random_player(form: str) -> None:
    effort = Effort(1000, 3) if form.startswith("bandit") else MANY._replace(episodes=8)
    means = [stats.average(rewards(form, player, effort)) for player in (expert, honest)]
    assert means[0] > means[1]


@pytest.mark.parametrize("form", [form for form, (env, _) in FORMS.items() if env in HEAD_START])
def test_a_head_start_leaves_the_random_player_something_to_earn(form: str) -> None:
    """Else no strategy could be compared with it."""
    assert stats.average(rewards(form, honest, MANY._replace(episodes=20))) > 0


@pytest.mark.parametrize(("env", "strategy"), EXCEPTIONS)
def test_every_exception_is_documented(env: str, strategy: str) -> None:
    page = (ROOT / "docs" / "envs" / "index.md").read_text()
    assert f"| `{env}` | {strategy} | {EXCEPTIONS[env, strategy]} |" in page
