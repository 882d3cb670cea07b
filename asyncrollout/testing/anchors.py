"""Whether an anchor holds the whole state: from equal anchors, the same actions must lead to the same."""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from asyncrollout.testing.cases import Case, MethodCall, own_copy
from asyncrollout.testing.compare import same, shown
from asyncrollout.testing.direct import DirectPoints, settled
from asyncrollout.testing.points import Skipped, point
from asyncrollout.text.spaces import SpaceText

_MOST_PAIRS = 6  # of each kind of episode; each takes a part of one
_WANDERING, _WANDERED = 2, 20  # episodes, and actions of each
_FOLLOWED = 3  # steps after a pair of equal anchors
_DEEPEST, _MOST_HELD = 3, 64  # where generators are looked for; data has more parts


class Visit(NamedTuple):
    """A state of an episode: the action that led to it, what that earned, and the anchor there."""

    action: Any
    reward: float
    terminated: bool
    anchor: Any

    @property
    def result(self) -> tuple[float, bool, Any]:
        return self.reward, self.terminated, self.anchor


class Pair(NamedTuple):
    """Two places of an episode with the same anchor."""

    seed: int
    visits: list[Visit]
    first: int
    second: int


@point(
    "from equal anchors, the same actions lead to the same rewards, ends and anchors",
    "put all that step() reads into anchor(), without rounding, except the steps that are left",
)
async def whole_anchors(case: Case) -> list[str]:
    """Episodes come back to an anchor; there they are continued as they were the other time.

    Experts seldom come back, so their actions are played in a random order, too.
    """
    if not case.has_text:
        raise Skipped("it is opened without a text interface")
    as_recorded = [
        pair
        for episode in case.episodes
        if not any(isinstance(action, MethodCall) for action in episode.actions)
        for pair in await _find_pairs(case, episode.seed, episode.actions)
    ]
    wandering = [
        pair
        for episode in case.episodes[:_WANDERING]
        for pair in await _find_pairs(case, episode.seed, _shuffled_actions(case, episode.seed))
    ]
    if not as_recorded and not wandering:
        raise Skipped("no anchor came twice in an episode")
    seen = [await _continued_otherwise(case, pair) for pair in (*_some(as_recorded), *_some(wandering))]
    return [text for text in seen if text][:1]


def _shuffled_actions(case: Case, seed: int) -> list[Any]:
    """Of all actions that were recorded, some in a random order."""
    played = {repr(action): action for episode in case.episodes for action in episode.actions}
    known = [action for action in played.values() if not isinstance(action, MethodCall)]
    generator = np.random.default_rng(seed)
    return [known[place] for place in generator.integers(len(known), size=_WANDERED)] if known else []


def _some(pairs: list[Pair]) -> list[Pair]:
    return pairs[:: -(-len(pairs) // _MOST_PAIRS)] if pairs else []


async def _find_pairs(case: Case, seed: int, actions: Sequence[Any]) -> list[Pair]:
    async with DirectPoints(case) as direct:
        if not hasattr(direct.text, "anchor"):
            raise Skipped("its text interface has no anchor()")
        if isinstance(direct.text, SpaceText):
            raise Skipped("its anchor is a digest of the observation")
        case.played += 1
        visits = await _visits(direct, seed, actions)
    places: dict[Any, list[int]] = {}
    for place, visit in enumerate(visits[:-1]):  # something must follow
        places.setdefault(visit.anchor, []).append(place)
    return [Pair(seed, visits, *pair) for alike in places.values() for pair in pairwise(alike)]


async def _visits(direct: DirectPoints, seed: int, actions: Sequence[Any]) -> list[Visit]:
    observation, _ = await direct.reset(seed)
    direct.text.describe(observation)
    visits = [Visit(None, 0.0, False, direct.text.anchor())]
    drawn = list(_random_states(direct.env))
    for action in actions:
        for raw in direct.read(action):
            visit, ended = await _step(direct, raw)
            visits.append(visit)
            if getattr(direct.env, "plays_by_chance", False) or list(_random_states(direct.env)) != drawn:
                raise Skipped("its steps draw random numbers, so that equal states may be followed by different ones")
            if ended:
                return visits
    return visits


async def _step(direct: DirectPoints, action: Any) -> tuple[Visit, bool]:
    observation, reward, terminated, truncated, _ = await settled(direct.env.step(own_copy(action)))
    direct.text.describe(observation)
    visit = Visit(action, float(reward), bool(terminated), direct.text.anchor())
    return visit, bool(terminated or truncated)


async def _continued_otherwise(case: Case, pair: Pair) -> str | None:
    """Play what followed the second place from the first one; what differs, if anything."""
    seed, visits, first, second = pair
    case.played += 1
    async with DirectPoints(case) as direct:
        observation, _ = await direct.reset(seed)
        direct.text.describe(observation)
        for visit in visits[1 : first + 1]:
            await _step(direct, visit.action)
        for expected in visits[second + 1 : second + 1 + _FOLLOWED]:
            visit, ended = await _step(direct, expected.action)
            if not same(visit.result, expected.result):
                return (
                    f"seed {seed}: the anchor is the same after {first} and after {second} actions, "
                    f"{shown(visits[first].anchor)}, but {shown(expected.action)} leads to {_result(visit)} from "
                    f"the one and to {_result(expected)} from the other"
                )
            if ended:
                break
    return None


def _result(visit: Visit) -> str:
    end = ", an end" if visit.terminated else ""
    return f"reward {visit.reward:g}{end} and anchor {shown(visit.anchor)}"


def _random_states(value: Any, deep: int = 0) -> Iterator[str]:
    """The states of all generators that an env holds."""
    if isinstance(value, np.random.Generator):
        yield repr(value.bit_generator.state)
    elif isinstance(value, np.random.RandomState):
        yield repr(value.get_state())
    elif isinstance(value, random.Random):
        yield repr(value.getstate())
    elif deep < _DEEPEST:
        held = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        inside = value if isinstance(value, list | tuple) else [*held.values()] if len(held) <= _MOST_HELD else ()
        for part in inside[:_MOST_HELD]:
            yield from _random_states(part, deep + 1)
