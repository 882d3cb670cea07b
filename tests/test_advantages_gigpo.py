"""GiGPO, against a slow and obvious version of itself and the examples it is defined by."""

import difflib
import math
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout.advantages import GiGPO, gigpo
from asyncrollout.errors import UsageError

few = st.sampled_from([0.0, 1.0, 2.5])
states = st.sampled_from(["x", "y", "z"])


def close(found: Any, expected: list[float]) -> None:
    assert found.dtype == np.float64
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@dataclass(frozen=True)
class Row:
    group: str
    trajectory: int
    reward: float
    anchor: Any
    valid: bool


def columns(rows: list[Row]) -> dict[str, Any]:
    return {name: [getattr(row, name) for row in rows] for name in ("group", "trajectory", "reward", "anchor", "valid")}


@st.composite
def episodes(draw: st.DrawFn, anchors: st.SearchStrategy[Any] = states) -> list[Row]:
    rows = []
    for group in draw(st.sampled_from(["a", "ab", "ba"])):
        for trajectory in range(draw(st.integers(1, 4))):  # the ids come again in the other group
            steps = draw(st.lists(st.tuples(few, anchors, st.booleans()), min_size=1, max_size=5))
            rows += [Row(group, trajectory, *step) for step in steps]
    return rows


def centred(value: float, listed: list[float], normalize: str) -> float:
    if len(set(listed)) == 1:
        return value - listed[0] if normalize == "mean" else 0.0
    deviation = value - statistics.fmean(listed)
    return deviation if normalize == "mean" else deviation / (statistics.stdev(listed) + 1e-6)


def gigpo_by_hand(
    rows: list[Row], *, gamma: float, normalize: str, stats_over: str, invalid_penalty: float, singleton: str
) -> tuple[list[float], list[float], list[float], list[int]]:
    names = [(row.group, row.trajectory) for row in rows]
    played = {name: [row for row, other in zip(rows, names, strict=True) if other == name] for name in names}
    penalties = [0.0 if row.valid else invalid_penalty for row in rows]
    scores = [sum(row.reward for row in played[name]) - cost for name, cost in zip(names, penalties, strict=True)]
    listed: dict[str, list[float]] = {}
    for index, row in enumerate(rows):
        if stats_over == "steps" or names.index(names[index]) == index:
            listed.setdefault(row.group, []).append(scores[index])
    episode = []
    for row, score in zip(rows, scores, strict=True):
        if len(listed[row.group]) > 1:
            episode.append(centred(score, listed[row.group], normalize))
        else:
            raw = score if normalize == "mean" else score / (1 + 1e-6)
            episode.append(raw if singleton == "raw" else 0.0)

    returns = []
    for index, name in enumerate(names):
        later = [row.reward for row, other in zip(rows[index:], names[index:], strict=True) if other == name]
        returns.append(sum(gamma**delay * reward for delay, reward in enumerate(later)) - penalties[index])
    seen: list[Any] = []
    labels = []
    for row in rows:
        if (row.group, row.anchor) not in seen:
            seen.append((row.group, row.anchor))
        labels.append(seen.index((row.group, row.anchor)))
    step = [
        centred(value, [other for other, same in zip(returns, labels, strict=True) if same == own], normalize)
        for value, own in zip(returns, labels, strict=True)
    ]
    return episode, step, returns, labels


@given(
    episodes(),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from(["mean", "mean_std"]),
    st.sampled_from(["trajectories", "steps"]),
    st.sampled_from([0.0, 0.25]),
    st.sampled_from(["zero", "raw"]),
)
def test_gigpo(
    rows: list[Row], gamma: float, normalize: Any, stats_over: Any, invalid_penalty: float, singleton: Any
) -> None:
    options: dict[str, Any] = {
        "gamma": gamma,
        "normalize": normalize,
        "stats_over": stats_over,
        "invalid_penalty": invalid_penalty,
        "singleton": singleton,
    }
    found = gigpo(**columns(rows), step_weight=0.5, **options)
    episode, step, returns, labels = gigpo_by_hand(rows, **options)
    close(found.episode, episode)
    close(found.step, step)
    close(found.step_return, returns)
    assert found.step_group.tolist() == labels
    close(found.advantage, [whole + 0.5 * part for whole, part in zip(episode, step, strict=True)])


@given(episodes(), st.randoms())
def test_gigpo_of_interleaved_trajectories(rows: list[Row], random: Any) -> None:
    """Rows of different trajectories may be mixed, as long as each keeps its order."""
    names = [(row.group, row.trajectory) for row in rows]
    mixed_names = random.sample(names, len(names))
    places = {name: iter([row for row, other in enumerate(names) if other == name]) for name in names}
    order = [next(places[name]) for name in mixed_names]
    straight, mixed = gigpo(**columns(rows)), gigpo(**columns([rows[row] for row in order]))
    close(mixed.advantage, straight.advantage[order].tolist())
    close(mixed.step_return, straight.step_return[order].tolist())


@given(episodes(st.text("ab", max_size=6)), st.sampled_from([0.0, 0.4, 0.75, 1.0]))
def test_gigpo_by_similarity(rows: list[Row], similarity: float) -> None:
    clusters: list[tuple[str, str]] = []
    labels = []
    for row in rows:
        alike = [
            label
            for label, (group, first) in enumerate(clusters)
            if group == row.group
            and difflib.SequenceMatcher(None, row.anchor, first, autojunk=False).ratio() >= similarity
        ]
        if not alike:
            clusters.append((row.group, row.anchor))
        labels.append(alike[0] if alike else len(clusters) - 1)
    assert gigpo(**columns(rows), similarity=similarity).step_group.tolist() == labels


def failure_and_success(**options: Any) -> GiGPO:
    """One failure of nine steps against a success of one step, worth 10."""
    return gigpo(
        group=["g"] * 10, trajectory=["long"] * 9 + ["short"], reward=[0.0] * 9 + [10.0], anchor=range(10), **options
    )


def test_gigpo_counts_trajectories_or_steps() -> None:
    assert failure_and_success(stats_over="steps").episode.tolist() == [-1.0] * 9 + [9.0]
    assert failure_and_success(stats_over="trajectories").episode.tolist() == [-5.0] * 9 + [5.0]
    assert failure_and_success().advantage.tolist() == [-5.0] * 9 + [5.0]  # each state was seen once


def test_gigpo_of_a_lonely_trajectory() -> None:
    rows: dict[str, Any] = {"group": [1, 1], "trajectory": [1, 1], "reward": [1.0, 2.0], "anchor": [[1, [2]], [1, [3]]]}
    assert gigpo(**rows).advantage.tolist() == [0.0, 0.0]
    assert gigpo(**rows, singleton="raw").advantage.tolist() == [3.0, 3.0]
    assert gigpo(**rows, singleton="raw", normalize="mean_std").advantage.tolist() == [3.0 / (1 + 1e-6)] * 2
    assert gigpo(**rows, singleton="raw", stats_over="steps").advantage.tolist() == [0.0, 0.0]  # its list has two
    assert gigpo(**rows, gamma=0.5).step_return.tolist() == [2.0, 2.0]


def test_gigpo_charges_the_invalid_row_only() -> None:
    found = gigpo(
        group=[0, 0, 0, 0],
        trajectory=["a", "a", "b", "b"],
        reward=[0.0, 1.0, 0.0, 1.0],
        anchor=["s", "t", "s", "t"],
        valid=[True, False, True, True],
        invalid_penalty=0.5,
        gamma=0.5,
    )
    assert found.step_return.tolist() == [0.5, 0.5, 0.5, 1.0]  # the penalty is not discounted into the row before
    assert found.step.tolist() == [0.0, -0.25, 0.0, 0.25]
    assert found.episode.tolist() == [0.0, -0.5, 0.0, 0.0]


def test_gigpo_without_spread_does_not_blow_up_a_penalty() -> None:
    options: dict[str, Any] = {"group": [0] * 3, "trajectory": [0, 0, 1], "reward": [0.0] * 3, "anchor": [0, 1, 2]}
    found = gigpo(**options, valid=[True, False, True], invalid_penalty=0.1, normalize="mean_std")
    assert found.advantage.tolist() == [0.0] * 3


@pytest.mark.parametrize(
    "anchors",
    [
        [[1, [2, 3]], [1, [2, 4]], [1, [2, 3]]],
        [np.array([[1.5, 2]]), np.array([[1.5, 3]]), np.array([[1.5, 2]])],
        np.array([[1, 2], [1, 3], [1, 2]]),
        [{"seen": [1], "at": np.array([2])}, {"seen": [1], "at": np.array([3])}, {"at": np.array([2]), "seen": [1]}],
        [("a", [1]), ("a", [2]), ("a", [1])],
        ["a", "b", "a"],
        [None, 0, None],
    ],
)
def test_gigpo_anchors(anchors: Any) -> None:
    found = gigpo(group=[0] * 3, trajectory=[0] * 3, reward=[0.0, 0.0, 1.0], anchor=anchors, gamma=1.0)
    assert found.step_group.tolist() == [0, 1, 0]


def test_gigpo_anchors_of_different_groups_never_meet() -> None:
    for similarity in (None, 0.5):
        found = gigpo(group=[0, 1], trajectory=[0, 1], reward=[0.0, 1.0], anchor=["s", "s"], similarity=similarity)
        assert found.step_group.tolist() == [0, 1]
        assert found.step.tolist() == [0.0, 0.0]


def test_gigpo_equal_states_with_equal_returns_get_exactly_zero() -> None:
    found = gigpo(group=[0] * 3, trajectory=[0, 1, 2], reward=[0.1] * 3, anchor=["s"] * 3, normalize="mean_std")
    assert found.advantage.tolist() == [0.0] * 3


@pytest.mark.parametrize(("reward", "rounded"), [(-0.6, 0.06), (10.3, 0.95)])
def test_equal_rewards_get_zero_where_single_precision_would_divide_what_it_rounds_off(
    reward: float, rounded: float
) -> None:
    """As verl-agent computes `mean_std_norm`: the mean of equal numbers is not that number, and the std is 0."""
    single = np.full(12, reward, dtype=np.float32)
    mean = np.add.accumulate(single)[-1] / np.float32(12)
    assert abs(single[0] - mean) / 1e-6 == pytest.approx(rounded, abs=0.01)
    found = gigpo(
        group=[0] * 12,
        trajectory=range(12),
        reward=[reward] * 12,
        anchor=["s"] * 12,
        normalize="mean_std",
        stats_over="steps",
        singleton="raw",
    )
    assert found.advantage.tolist() == [0.0] * 12


def test_gigpo_of_nothing() -> None:
    found = gigpo(group=[], trajectory=[], reward=[], anchor=[])
    assert [part.tolist() for part in found] == [[]] * 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalize": "std"}, "normalize='std' is not valid: did you mean 'mean_std'"),
        ({"stats_over": "step"}, "stats_over='step' is not valid: did you mean 'steps'"),
        ({"singleton": "keep"}, "singleton='keep' is not valid; available: zero, raw"),
        ({"invalid_penalty": -0.1}, "invalid_penalty=-0.1 must be a finite number, at least 0"),
        ({"gamma": 1.5}, "gamma=1.5 must be a finite number, from 0 to 1"),
        ({"gamma": "high"}, "gamma='high'"),
        ({"similarity": 2.0}, "similarity=2.0"),
        ({"similarity": 0.5, "anchor": ["s", 5]}, r"anchor\[1\] is a int: similarity needs texts"),
        ({"anchor": ["s"]}, "anchor has 1 entries for 2 rows"),
        ({"anchor": ["s", {"t"}]}, r"anchor\[1\] is a set"),
        ({"trajectory": [0]}, "trajectory has 1 entries for 2 rows"),
        ({"valid": [True]}, "valid has 1 entries for 2 rows"),
        ({"reward": [0.0, math.nan], "valid": [True, False]}, r"reward\[1\] is nan"),
    ],
)
def test_gigpo_misuse(options: dict[str, Any], message: str) -> None:
    rows: dict[str, Any] = {"group": [0, 0], "trajectory": [0, 1], "reward": [0.0, 1.0], "anchor": ["s", "s"]}
    with pytest.raises(UsageError, match=message):
        gigpo(**{**rows, **options})


def test_long_texts_that_differ_in_one_place_are_alike() -> None:
    cells = np.random.default_rng(0).choice([*"#_OX"], (16, 16))
    grid = "\n".join("".join(row) for row in cells)
    moved = grid[:100] + "P" + grid[101:]
    assert len(grid) > 200  # from where on difflib passes over frequent letters, if it is let
    found = gigpo(group=[0, 0], trajectory=[0, 1], reward=[0.0, 1.0], anchor=[grid, moved], similarity=0.95)
    assert found.step_group.tolist() == [0, 0]
