"""Batches as arrays: every token, step and text where a trainer looks for it, and nothing lost on the way."""

import itertools
import math
import re
import subprocess
import sys
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrollout import EnvError, Observation, UsageError, advantages
from asyncrollout.advantages import dr_grpo
from asyncrollout.batches.batch import Batch
from asyncrollout.rewards import normalize
from asyncrollout.trajectories import Group, Remembered, StopReason, Trajectory, Turn

SYSTEM = {"role": "system", "content": "rules"}
_count = itertools.count()


def said(prompt: list[int], tokens: list[int], *, joined: bool = True, seen: Any = "s", **fields: Any) -> Turn:
    """A turn of a language model."""
    logprobs = np.array([-token / 10 for token in tokens], dtype=np.float32)
    ids = np.array(prompt, dtype=np.int32), np.array(tokens, dtype=np.int32)
    return Turn(seen, prompt_ids=ids[0], token_ids=ids[1], joined=joined, **{"logprobs": logprobs, **fields})


def played(*turns: Turn, reward: float | None = None, uid: str = "", **fields: Any) -> Trajectory:
    total = sum(turn.reward for turn in turns) if reward is None else reward
    given = {"stop_reason": StopReason.TERMINATED, **fields}
    return Trajectory(uid or f"u{next(_count)}", "maze", 7, list(turns), total, **given)


def failed(*turns: Turn, **fields: Any) -> Trajectory:
    return played(*turns, error=EnvError("it broke"), stop_reason=StopReason.ENV_ERROR, **fields)


def batch(*groups: list[Trajectory]) -> Batch:
    return Batch(0, [Group(f"g{number}", members) for number, members in enumerate(groups)])


def talk(*texts: str) -> list[dict[str, Any]]:
    """Messages by turns of user and assistant."""
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


# Tokens


ids = st.lists(st.integers(0, 9), max_size=4)
turns = st.builds(said, ids, ids, joined=st.booleans(), reward=st.integers(-3, 3).map(float), version=st.integers(0, 5))
trajectories = st.builds(
    lambda turns, fails: (failed if fails else played)(*turns), st.lists(turns, max_size=4), st.booleans()
)
batches = st.lists(st.lists(trajectories, max_size=3), max_size=3).map(lambda groups: batch(*groups))


def samples(trajectory: Trajectory) -> list[list[Any]]:
    """A trajectory split where a prompt did not go on, without parts that have no token."""
    found: list[list[Any]] = []
    for turn in trajectory.turns:
        if turn.joined and found:
            found[-1].append(turn)
        else:
            found.append([turn])
    return [part for part in found if any(len(turn.prompt_ids) + len(turn.token_ids) for turn in part)]


def flat(part: list[Any], of_prompt: Any, of_sampled: Any) -> list[Any]:
    """A value for each token of a sample, the long way."""
    return [
        value
        for turn in part
        for value in [
            *[of_prompt(turn, place) for place in range(len(turn.prompt_ids))],
            *[of_sampled(turn, place) for place in range(len(turn.token_ids))],
        ]
    ]


@given(batches, st.sampled_from(["left", "right"]), st.integers(0, 3))
@settings(max_examples=300)
def test_rows_hold_every_token_with_all_that_belongs_to_it(made: Batch, pad: Any, extra: int) -> None:
    rows = [(owner, part) for owner in made.trajectories for part in samples(owner)]
    if not rows:
        with pytest.raises(UsageError, match="nothing to make arrays of"):
            made.to_arrays()
        return
    longest = max(len(flat(part, lambda *_: 0, lambda *_: 0)) for _, part in rows)
    arrays = made.to_arrays("dr_grpo", pad=pad, pad_id=77, length=longest + extra)
    order = {id(trajectory): place for place, trajectory in enumerate(made.trajectories)}
    everyone = made.trajectories
    groups = [place for place, group in enumerate(made.groups) for _ in group.trajectories]
    worth = advantages.dr_grpo([each.reward for each in everyone], groups, valid=[each.valid for each in everyone])
    assert arrays["input_ids"].shape == (len(rows), longest + extra)
    assert arrays["uids"] == [owner.uid for owner, _ in rows]
    assert arrays["sample"].tolist() == [place for each in everyone for place in range(len(samples(each)))]
    assert arrays["rewards"].tolist() == [owner.reward for owner, _ in rows]
    assert arrays["valid"].tolist() == [owner.valid for owner, _ in rows]
    assert arrays["trajectory"].tolist() == [order[id(owner)] for owner, _ in rows]
    assert arrays["group_ids"].tolist() == [groups[order[id(owner)]] for owner, _ in rows]
    for row, (owner, part) in enumerate(rows):
        expected = {
            "input_ids": flat(part, lambda turn, at: turn.prompt_ids[at], lambda turn, at: turn.token_ids[at]),
            "response_mask": flat(part, lambda *_: 0, lambda *_: 1),
            "old_logprobs": flat(part, lambda *_: 0.0, lambda turn, at: turn.logprobs[at]),
            "versions": flat(part, lambda *_: -1, lambda turn, _: turn.version),
            "advantages": flat(part, lambda *_: 0.0, lambda *_: worth[order[id(owner)]]),  # noqa: B023
        }
        size = len(expected["input_ids"])
        expected["attention_mask"] = [1] * size
        expected["position_ids"] = list(range(size))
        filler = {"input_ids": 77, "versions": -1}
        for name, values in expected.items():
            padding = [filler.get(name, 0)] * (longest + extra - size)
            assert arrays[name][row].tolist() == (padding + values if pad == "left" else values + padding), name


@given(batches)
@settings(max_examples=300)
def test_no_reward_is_lost_and_none_is_on_a_prompt_if_there_is_a_reply(made: Batch) -> None:
    rows = [(owner, part) for owner in made.trajectories for part in samples(owner)]
    if not rows:
        return
    arrays = made.to_arrays(None)
    for place, owner in enumerate(made.trajectories):
        own = arrays["trajectory"] == place
        if own.any():
            assert arrays["turn_rewards"][own].sum() == sum(turn.reward for turn in owner.turns)
        if arrays["response_mask"][own].any():
            assert not (arrays["turn_rewards"][own] * (1 - arrays["response_mask"][own])).any()


def test_dtypes_are_those_of_the_documentation() -> None:
    arrays = batch([played(said([1], [2]))]).to_arrays()
    assert {name: str(array.dtype) for name, array in arrays.items() if name != "uids"} == {
        "input_ids": "int32",
        "attention_mask": "int32",
        "position_ids": "int32",
        "response_mask": "int32",
        "versions": "int32",
        "old_logprobs": "float32",
        "advantages": "float64",
        "rewards": "float64",
        "turn_rewards": "float64",
        "sample": "int32",
        "trajectory": "int32",
        "group_ids": "int32",
        "valid": "bool",
    }


def test_prompt_that_did_not_continue_begins_a_row_of_its_own() -> None:
    turns = [said([1], [2]), said([3], [4]), said([5, 6], [7], joined=False), said([8], [9])]
    arrays = batch([played(*turns, uid="a", reward=1.0)], [played(said([1], [1], joined=False))]).to_arrays(None)
    assert arrays["input_ids"].tolist() == [[1, 2, 3, 4, 0], [5, 6, 7, 8, 9], [1, 1, 0, 0, 0]]
    assert arrays["uids"][:2] == ["a", "a"]
    assert arrays["sample"].tolist() == [0, 1, 0]
    assert arrays["rewards"].tolist() == [1.0, 1.0, 0.0]
    assert arrays["group_ids"].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([said([1], [2, 3], reward=1.0)], [0, 0, 1]),
        ([said([1], [2], reward=1.0), said([3], [], reward=2.0)], [0, 3, 0]),
        ([said([1], [], reward=1.0), said([], [], reward=2.0), said([3], [4, 5], reward=4.0)], [0, 0, 0, 7]),
        ([said([1], [2]), said([3], [], joined=False, reward=2.0)], [0, 2, 0]),
        ([said([1], [2]), said([3], [4]), said([5], [], reward=2.0), said([], [6])], [0, 0, 0, 2, 0, 0]),
        ([said([1, 2], [], reward=2.0), said([], [], reward=1.0)], [0, 3]),
    ],
)
def test_reward_of_a_turn_without_a_reply_goes_to_a_neighbour(turns: list[Turn], expected: list[float]) -> None:
    arrays = batch([played(*turns)]).to_arrays(None)
    assert arrays["turn_rewards"][arrays["attention_mask"] == 1].tolist() == expected


def test_sample_longer_than_the_length_is_reported_not_cut() -> None:
    made = batch([played(said([1], [2])), played(said([1, 2], [3, 4]), uid="long")])
    assert made.to_arrays(length=4)["input_ids"].shape == (2, 4)
    with pytest.raises(UsageError, match=r"trajectory 'long' has a sample of 4 tokens, more than length=3"):
        made.to_arrays(length=3)


def test_unknown_logprobs_are_no_column_rather_than_wrong() -> None:
    bare = said([1], [2], logprobs=None)
    assert "old_logprobs" not in batch([played(bare, bare)]).to_arrays()
    silent = said([1], [], logprobs=None)
    assert batch([played(said([1], [2]), silent)]).to_arrays()["old_logprobs"].shape == (1, 3)
    with pytest.raises(UsageError, match=r"turn 0 has 2 sampled tokens, but 1 logprobs"):
        batch([played(said([1], [2, 3], logprobs=np.zeros(1, np.float32)))]).to_arrays()


def test_reply_without_logprobs_among_others_is_masked() -> None:
    bare = said([3], [4], logprobs=None, reward=5.0)
    arrays = batch([played(said([1], [2]), bare, said([5], [6]))]).to_arrays()
    assert arrays["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6]]
    assert arrays["response_mask"].tolist() == [[0, 1, 0, 0, 0, 1]]
    assert arrays["old_logprobs"][0].tolist() == pytest.approx([0, -0.2, 0, 0, 0, -0.6])
    assert arrays["turn_rewards"].tolist() == [[0, 5, 0, 0, 0, 0]]


def test_turn_without_token_ids_has_no_tokens_of_its_own() -> None:
    """A later prompt that holds them goes on from the turn before; one that does not begins a sample."""
    unknown = Turn("s", "what?", reward=2.0, logprobs=np.zeros(3, np.float32))
    arrays = batch([played(said([1], [2]), unknown, said([3, 4, 5], [6]), unknown, said([7], [8], joined=False))])
    made = arrays.to_arrays(pad_id=-1)
    assert made["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6], [7, 8, -1, -1, -1, -1]]
    assert made["response_mask"].tolist() == [[0, 1, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0]]
    assert made["turn_rewards"].tolist() == [[0, 2, 0, 0, 0, 2], [0] * 6]
    assert made["old_logprobs"].shape == (2, 6)
    first = batch([played(unknown, said([1], [2], joined=False))]).to_arrays()
    assert first["input_ids"].tolist() == [[1, 2]]
    assert first["sample"].tolist() == [0]


def test_one_reply_without_token_ids_costs_its_own_row_only() -> None:
    lost = played(Turn("s", "\U0001f600"), messages=talk("a", "\U0001f600"), uid="lost", reward=4.0)
    made = batch([played(said([1], [2]), reward=0.0), lost, played(said([3], [4]), reward=2.0)])
    for form in ("auto", "tokens"):
        arrays = made.to_arrays("dr_grpo", form=form)
        assert arrays["input_ids"].tolist() == [[1, 2], [3, 4]]
        assert arrays["advantages"].tolist() == [[0, -2], [0, 0]]  # its reward counts for the others
        assert arrays["trajectory"].tolist() == [0, 2]


# Advantages


NAMES = ["grpo", "dr_grpo", "rloo", "reinforce_pp", "max_rl", "pass_at_k"]


def scored(*rewards: float) -> list[Trajectory]:
    return [played(said([1], [2], reward=reward)) for reward in rewards]


@pytest.mark.parametrize("name", NAMES)
def test_advantage_is_the_named_one_without_failed_members(name: str) -> None:
    made = batch([*scored(0.0, 1.0, 3.0), failed(said([1], [2], reward=99.0))], [failed(), *scored(2.0, 5.0)])
    seen = made.to_arrays(name)["advantages"][:, 1]
    expected = getattr(advantages, name)([0.0, 1.0, 3.0, 2.0, 5.0], [0, 0, 0, 1, 1])
    assert seen.tolist() == [*expected[:3], 0.0, *expected[3:]]
    assert expected.any()


def test_options_reach_the_function() -> None:
    made = batch(scored(4.0))
    assert made.to_arrays("rloo")["advantages"].tolist() == [[0.0, 0.0]]
    assert made.to_arrays("rloo", singleton="raw")["advantages"].tolist() == [[0.0, 4.0]]


def test_own_function_sees_the_members_that_count() -> None:
    def doubled(scores: Any, groups: Any, by: float = 2.0) -> Any:
        assert (scores.tolist(), groups.tolist()) == ([1.0, 3.0], [0, 1])
        return scores * by

    made = batch([*scored(1.0), failed(said([1], [2], reward=5.0))], scored(3.0))
    assert made.to_arrays(doubled)["advantages"][:, 1].tolist() == [2.0, 0.0, 6.0]
    assert made.to_arrays(doubled, by=10)["advantages"][:, 1].tolist() == [10.0, 0.0, 30.0]


@pytest.mark.parametrize("wrong", [lambda scores, groups: 1.0, lambda scores, groups: scores * np.nan])
def test_own_function_that_gives_something_else_is_reported(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"advantage=<lambda> must return 2 finite numbers"):
        batch(scored(1.0, 2.0)).to_arrays(wrong)


def test_no_advantage_is_no_column() -> None:
    assert "advantages" not in batch(scored(1.0)).to_arrays(None)


def test_batch_of_failures_has_no_advantage() -> None:
    made = batch([failed(said([1], [2], reward=1.0)), failed()])
    for name in [*NAMES, "gigpo"]:
        assert made.to_arrays(name)["advantages"].tolist() == [[0.0, 0.0]]


def test_gigpo_gives_each_turn_its_own() -> None:
    def walk(*steps: tuple[str, float]) -> Trajectory:
        return played(*[said([1], [2, 3], seen=Observation(seen), reward=reward) for seen, reward in steps])

    made = batch([walk(("a", 0.0), ("b", 1.0)), failed(said([1], [2])), walk(("a", 0.0), ("c", 0.0))])
    arrays = made.to_arrays("gigpo", gamma=0.5)
    expected = advantages.gigpo(
        group=[0] * 4, trajectory=[0, 0, 2, 2], reward=[0, 1, 0, 0], anchor=["a", "b", "a", "c"], gamma=0.5
    ).advantage
    assert len(set(expected)) > 2
    assert arrays["advantages"].tolist() == [
        [0.0, expected[0], expected[0], 0.0, expected[1], expected[1]],
        [0.0] * 6,
        [0.0, expected[2], expected[2], 0.0, expected[3], expected[3]],
    ]


def test_gigpo_knows_invalid_actions() -> None:
    made = batch([played(said([1], [2], valid=False)), played(said([1], [2]))])
    assert made.to_arrays("gigpo", invalid_penalty=1.0)["advantages"][:, 1].tolist() == [-1.0, 1.0]


def test_gigpo_counts_a_score_that_was_given_at_the_end() -> None:
    def judged(score: float) -> Trajectory:
        return played(said([1], [2], reward=0.25), said([3], [4]), reward=score)

    made = batch([judged(1.25), judged(0.25)])
    seen = made.to_arrays("gigpo", gamma=0.5, step_weight=0.0)
    assert seen["advantages"][:, 3].tolist() == [0.5, -0.5]
    assert seen["turn_rewards"][:, 1].tolist() == [0.25, 0.25]
    assert not seen["turn_rewards"][:, 3].any()


def test_rewards_are_normalized_before_advantages() -> None:
    members = [played(said([1], [2], reward=reward), reward=reward) for reward in (1.0, 3.0)]
    others = [played(said([1], [2], reward=reward), reward=reward) for reward in (10.0, 10.0)]
    made = batch(members, [*others, failed(said([1], [2]), reward=99.0)])
    own = {"grouping": "batch", "method": "mean_std"}
    arrays = made.to_arrays("dr_grpo", reward_normalization=own)
    scores = normalize([1.0, 3.0, 10.0, 10.0], grouping="batch", method="mean_std")
    assert arrays["scores"].tolist() == [*scores.tolist(), 0.0]
    assert arrays["rewards"].tolist() == [1.0, 3.0, 10.0, 10.0, 99.0]
    expected = dr_grpo(scores, [0, 0, 1, 1])
    assert np.allclose(arrays["advantages"].max(axis=1) + arrays["advantages"].min(axis=1), [*expected, 0.0])
    assert "scores" not in made.to_arrays()
    episode = made.to_arrays("gigpo", step_weight=0.0, reward_normalization=own)["advantages"]
    assert np.allclose(episode.sum(axis=1), [*expected, 0.0])
    by_steps = [made.to_arrays("gigpo", reward_normalization=each)["advantages"] for each in (None, own)]
    raw = made.to_arrays("gigpo", step_weight=0.0)["advantages"]
    assert np.allclose(by_steps[0] - raw, by_steps[1] - episode)  # the steps' part is that of the raw rewards


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("mean_std", r"reward_normalization='mean_std' must be a mapping"),
        ({"methode": "mean"}, r"no option 'methode': did you mean 'method'"),
        ({"method": "men"}, r"method='men' is not valid: did you mean 'mean'"),
    ],
)
def test_normalization_that_makes_no_sense(given: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        batch([played(said([1], [2]))]).to_arrays(reward_normalization=given)


def test_gigpo_gives_constant_groups_nothing_however_steps_are_grouped() -> None:
    whole = [said([1], [2], reward=math.fsum([-0.1] * size), info={"step_rewards": [-0.1] * size}) for size in (3, 7)]
    single = [said([1], [2], reward=-0.1)] * 10
    assert reduce(add, [turn.reward for turn in whole]) != -1.0 or reduce(add, [-0.1] * 10) != -1.0
    for normalize_by in ("mean", "mean_std"):
        made = batch([played(*whole, reward=-1.0), played(*single, reward=-1.0)])
        assert not made.to_arrays("gigpo", step_weight=0.0, normalize=normalize_by)["advantages"].any()


def test_gigpo_sees_no_score_in_what_is_rounding() -> None:
    turns = [said([1], [2], reward=0.1)] * 10
    summed = reduce(add, [turn.reward for turn in turns])  # from Python 3.12 on, sum() is exact
    assert summed != 1.0
    made = batch([played(*turns, reward=1.0), played(*turns, reward=summed)])
    assert not made.to_arrays("gigpo", step_weight=0.0)["advantages"].any()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"advantage": "gppo"}, r"advantage='gppo' is neither a function nor an available name: did you mean 'grpo'"),
        ({"advantage": "Stats"}, r"advantage='Stats' is neither"),
        ({"advantage": 3}, r"advantage=3 is neither"),
        ({"gama": 0.9}, r"advantage='grpo' has no option 'gama'"),
        ({"advantage": "gigpo", "gama": 0.9}, r"advantage='gigpo' has no option 'gama': did you mean 'gamma'"),
        ({"lenght": 9}, r"has no option 'lenght': did you mean 'length'"),
        ({"valid": [True]}, r"has no option 'valid'"),
        ({"advantage": None, "gamma": 0.9}, r"advantage=None has no option 'gamma'"),
        ({"form": "token"}, r"form='token' is not a form: did you mean 'tokens'"),
        ({"pad": "both"}, r"pad='both' is neither"),
        ({"pad_id": 2**31}, r"pad_id=2147483648 is not a 32-bit number"),
        ({"length": 0}, r"length=0 must be at least 1"),
    ],
)
def test_wrong_arguments_are_reported(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        batch(scored(1.0)).to_arrays(**arguments)


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_reward_that_is_no_number_is_reported_unless_it_failed(reward: float) -> None:
    with pytest.raises(UsageError, match=rf"trajectory 'a' has reward {reward}"):
        batch([played(said([1], [2]), reward=reward, uid="a")]).to_arrays()
    with pytest.raises(UsageError, match=rf"trajectory 'a', turn 1 has reward {reward}"):
        batch([played(said([1], [2]), said([1], [2], reward=reward), reward=0.0, uid="a")]).to_arrays()
    arrays = batch([failed(said([1], [2], reward=reward), reward=reward), *scored(1.0)]).to_arrays()
    assert arrays["rewards"].tolist() == [0.0, 1.0]
    assert np.isfinite(arrays["turn_rewards"]).all()


# Steps


def step(seen: Any, action: Any = 0, **fields: Any) -> Turn:
    return Turn(seen, action=action, **fields)


def test_steps_follow_each_other() -> None:
    def seen(*numbers: float) -> Any:
        return np.array(numbers, dtype=np.float32)

    walks = [
        played(step(seen(1, 2), 3, reward=0.5, version=4), step(seen(3, 4), 1), final=seen(5, 6)),
        failed(),
        played(step(seen(7, 8), 2, reward=1.0), final=seen(9, 9), stop_reason=StopReason.TRUNCATED),
    ]
    arrays = batch(walks[:2], walks[2:]).to_arrays("dr_grpo", singleton="raw")
    assert arrays["observations"].dtype == np.float32
    assert {name: array if isinstance(array, list) else array.tolist() for name, array in arrays.items()} == {
        "observations": [[1, 2], [3, 4], [7, 8]],
        "actions": [3, 1, 2],
        "rewards": [0.5, 0.5, 1.0],
        "turn_rewards": [0.5, 0.0, 1.0],
        "dones": [False, True, True],
        "terminated": [False, True, False],
        "advantages": [0.5, 0.5, 1.0],
        "versions": [4, 0, 0],
        "turn": [0, 1, 0],
        "trajectory": [0, 0, 2],
        "group_ids": [0, 0, 1],
        "uids": [walks[0].uid, walks[0].uid, walks[2].uid],
        "valid": [True, True, True],
        "final_observations": [[5, 6], [0, 0], [9, 9]],
    }


def test_dicts_of_observations_are_dicts_of_arrays() -> None:
    def seen(x: int) -> dict[str, Any]:
        return {"place": np.array([x, x]), "inner": {"speed": x / 2}}

    arrays = batch(
        [played(step(seen(1), {"push": 1.5}), step(seen(2), {"push": 2.5}), final=seen(3)), failed()]
    ).to_arrays()
    assert arrays["observations"]["place"].tolist() == [[1, 1], [2, 2]]
    assert arrays["observations"]["inner"]["speed"].tolist() == [0.5, 1.0]
    assert arrays["actions"]["push"].tolist() == [1.5, 2.5]
    assert arrays["final_observations"]["inner"]["speed"].tolist() == [1.5, 0.0]


def test_raw_observation_of_a_text_env_is_what_a_numeric_agent_saw() -> None:
    seen = Observation("a picture", data=np.arange(2))
    assert batch([played(step(seen), final=seen)]).to_arrays()["observations"].tolist() == [[0, 1]]


def test_states_of_an_agent_with_a_memory_are_a_column_of_their_own() -> None:
    def seen(x: int, state: Any) -> Remembered:
        return Remembered(np.array([x]), state)

    walk = played(step(seen(1, None)), step(seen(2, np.array([0.5, 1.5]))), final=np.array([3]))
    arrays = batch([walk, failed(step(seen(4, None)))]).to_arrays()
    assert arrays["observations"].tolist() == [[1], [2], [4]]
    assert arrays["states"].tolist() == [[0.0, 0.0], [0.5, 1.5], [0.0, 0.0]]
    assert arrays["final_observations"].tolist() == [[3], [0]]
    assert "states" not in batch([played(step(seen(1, None)), final=np.array([3]))]).to_arrays()
    with pytest.raises(UsageError, match="mixes agents"):
        batch([walk, played(step(np.array([1])), final=np.array([3]))]).to_arrays()


def test_logprobs_of_steps() -> None:
    def acted(*logprobs: float) -> Turn:
        return step(1.0, logprobs=np.array(logprobs, dtype=np.float32))

    arrays = batch([played(acted(-0.5), acted(-1.5), final=1.0)]).to_arrays()
    assert (arrays["old_logprobs"].tolist(), arrays["old_logprobs"].dtype) == ([-0.5, -1.5], np.float32)
    with pytest.raises(UsageError, match=r"trajectory 'a', turn 1 has 2 logprobs: a step has exactly one"):
        batch([played(acted(-0.5), acted(-1.5, 0.0), final=1.0, uid="a")]).to_arrays()
    with pytest.raises(UsageError, match=r"turn 1 has 0 logprobs: a step has exactly one"):
        batch([played(acted(-0.5), step(1.0), final=1.0)]).to_arrays()


def test_gigpo_of_steps_groups_by_observation() -> None:
    walks = [played(step(np.array([x, 0]), reward=reward), final=np.zeros(2)) for x, reward in [(0, 1.0), (0, 0.0)]]
    assert batch(walks).to_arrays("gigpo")["advantages"].tolist() == [1.0, -1.0]


@pytest.mark.parametrize(
    ("turns", "final", "reason"),
    [
        (
            [step(np.zeros(2)), step(np.zeros(3))],
            np.zeros(2),
            r"'a', turn 1: its observation has shape \(3,\), the first",
        ),
        ([step({"x": 1}), step({"y": 1})], {"x": 1}, r"'a', turn 1: its observation does not have the keys \['x'\]"),
        ([step({"x": 1}), step(1)], {"x": 1}, r"turn 1: its observation does not have the keys"),
        ([step({"x": [1]}), step({"x": [1, 2]})], {"x": [1]}, r"turn 1: its observation\['x'\] has shape"),
        ([step("left"), step("right")], "end", r"turn 0: its observation is a str, not numbers"),
        ([step([1, [2]])], 1, r"turn 0: its observation is a list, not numbers"),
        ([step(1), step(1, None)], 1, r"turn 1: its action is a NoneType, not numbers"),
        ([step(1)], None, r"trajectory 'a': its final observation is a NoneType"),
        ([step(1)], np.zeros(2), r"trajectory 'a': its final observation has shape \(2,\), the first one \(\)"),
    ],
)
def test_steps_that_are_not_alike_are_reported(turns: list[Turn], final: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        batch([played(*turns, final=final, uid="a")]).to_arrays()


# Texts


def test_conversation_is_one_row() -> None:
    first = played(
        Turn("s", reward=0.5, version=3), Turn("s", reward=0.5, version=2), messages=[SYSTEM, *talk(*"abcd")]
    )
    second = played(Turn("s"), messages=talk(*"efg"))  # what was seen last had no reply
    arrays = batch([first, second, failed()]).to_arrays("dr_grpo")
    assert arrays["messages"] == [[SYSTEM, *talk(*"abcd")], talk("e", "f")]
    assert {name: array if isinstance(array, list) else array.tolist() for name, array in arrays.items()} == {
        "messages": arrays["messages"],
        "replies": [[2, 4], [1]],
        "rewards": [1.0, 0.0],
        "turn_rewards": [1.0, 0.0],
        "advantages": [0.5, -0.5],
        "versions": [2, 0],
        "sample": [0, 0],
        "trajectory": [0, 1],
        "group_ids": [0, 0],
        "uids": [first.uid, second.uid],
        "valid": [True, True],
    }


@pytest.mark.parametrize("system", [[], [SYSTEM]])
def test_windows_on_a_conversation_are_rows(system: list[dict[str, Any]]) -> None:
    messages = [*system, *talk(*"abcdef")]
    starts = [0, len(system), len(system) + 2]
    turns = [Turn("s", first_message=start, reward=number) for number, start in enumerate(starts)]
    arrays = batch([played(*turns, messages=messages)]).to_arrays(None)
    talked = talk(*"abcdef")
    assert arrays["messages"] == [[*system, *talked[:2]], [*system, *talked[:4]], [*system, *talked[2:6]]]
    assert arrays["rewards"].tolist() == [3.0, 3.0, 3.0]
    assert arrays["turn_rewards"].tolist() == [0.0, 1.0, 2.0]
    assert arrays["sample"].tolist() == [0, 1, 2]
    assert "advantage" not in arrays
    whole = batch([played(*[Turn("s", first_message=len(system))] * 3, messages=messages)]).to_arrays()
    assert whole["messages"] == [messages]


def test_gigpo_of_texts_has_a_row_for_each_turn() -> None:
    def walk(reward: float) -> Trajectory:
        return played(Turn("a"), Turn("b", reward=reward), messages=[SYSTEM, *talk(*"abcd")])

    arrays = batch([walk(1.0), walk(0.0)]).to_arrays("gigpo", gamma=0.5)
    assert [len(row) for row in arrays["messages"]] == [3, 5, 3, 5]
    assert arrays["advantages"].tolist() == [0.75, 1.0, -0.75, -1.0]


def test_tools_speak_between_replies() -> None:
    messages = [
        *talk("a", "call"),
        {"role": "tool", "content": "42"},
        {"role": "tool", "content": "43"},
        *talk("", "b")[1:],
    ]
    arrays = batch([played(Turn("s"), Turn("s", first_message=2), messages=messages)]).to_arrays()
    assert arrays["messages"] == [messages[:2], messages[2:]]


def test_agent_that_keeps_no_messages_has_those_of_its_turns() -> None:
    walk = played(Turn(Observation("a"), "b"), Turn("c", "d"))
    assert batch([walk]).to_arrays()["messages"] == [talk(*"abcd")]
    with pytest.raises(UsageError, match=r"trajectory 'a' has no messages, and saw a ndarray: try form='steps'"):
        batch([played(step(np.zeros(2)), final=np.zeros(2), uid="a")]).to_arrays(form="texts")


def test_reply_that_led_to_no_turn_is_left_out() -> None:
    broken = failed(Turn("s"), messages=talk("a", "b", "c", "the env failed after this"))
    assert batch([broken]).to_arrays()["messages"] == [talk("a", "b")]


def test_examples_of_a_prompt_are_no_replies() -> None:
    messages = [SYSTEM, *talk("example", "answer", "a", "b", "c", "d")]
    turns = [Turn("s", message=4), Turn("s", message=6)]
    arrays = batch([played(*turns, messages=messages)]).to_arrays()
    assert (arrays["messages"], arrays["replies"]) == ([messages], [[4, 6]])
    assert batch([played(turns[0], messages=messages)]).to_arrays()["messages"] == [messages[:5]]
    windows = batch([played(turns[0], Turn("s", message=6, first_message=5), messages=messages)]).to_arrays()
    assert windows["messages"] == [messages[:5], [SYSTEM, *messages[5:]]]
    assert windows["replies"] == [[4], [2]]
    old = played(Turn("s"), Turn("s"), messages=messages, uid="a")
    with pytest.raises(UsageError, match=r"'a' has 2 turns and 3 messages of an assistant, .* which of them"):
        batch([old]).to_arrays()
    with pytest.raises(UsageError, match=r"'a' has a turn whose reply is not among its messages"):
        batch([played(Turn("s", message=9), messages=messages, uid="a")]).to_arrays()


def test_turns_without_replies_in_the_messages_are_reported() -> None:
    with pytest.raises(UsageError, match=r"trajectory 'a' has 2 turns, but 1 replies in its messages"):
        batch([played(Turn("s"), Turn("s"), messages=talk("a", "b"), uid="a")]).to_arrays()


# Forms


def test_batch_that_mixes_forms_says_who_differs() -> None:
    spoken = [played(said([1], [2]), messages=talk("a", "b"), uid=f"t{number}") for number in range(5)]
    made = batch([*spoken, failed(), played(Turn("s", action=1), final="s", uid="odd")])
    with pytest.raises(UsageError, match=r"'tokens' for 't0', 't1', 't2' and 2 more, 'steps' for 'odd'; .* form="):
        made.to_arrays()
    assert len(made.to_arrays(form="texts")["messages"]) == 6
    with pytest.raises(UsageError, match=r"trajectory 'odd', turn 0 has no token ids, nor does any other turn"):
        batch(made.trajectories[-1:]).to_arrays(form="tokens")
    with pytest.raises(UsageError, match=r"trajectory 't0', turn 0: its observation is a str"):
        made.to_arrays(form="steps")


def test_token_ids_without_those_of_the_prompt_are_texts() -> None:
    turn = Turn("s", token_ids=np.array([1], dtype=np.int32))
    assert "messages" in batch([played(turn, messages=talk("a", "b"))]).to_arrays()


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (batch(), r"the batch is empty"),
        (batch([]), r"the batch is empty"),
        (batch([failed(), failed(uid="b")]), r"none of the batch's 2 trajectories has a turn.* ended with it broke"),
        (batch([played(said([], []))]), r"no turn of the batch has any tokens"),
    ],
)
def test_nothing_to_make_arrays_of(made: Batch, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        made.to_arrays()


def test_trajectories_are_those_of_all_groups() -> None:
    first, second, third = scored(0.0, 1.0, 2.0)
    assert batch([first, second], [], [third]).trajectories == [first, second, third]


def test_columns_mean_the_same_in_every_form() -> None:
    def walk(*rewards: float) -> Trajectory:
        turns = [
            Turn(Observation("s", data=np.zeros(2)), "r", action=1, reward=reward, prompt_ids=one, token_ids=one)
            for reward in rewards
        ]
        return played(*turns, final=np.zeros(2), messages=talk(*"ab" * len(rewards)))

    one = np.array([1], np.int32)
    made = batch([walk(1.0, 2.0), walk(4.0)])
    forms = {form: made.to_arrays("dr_grpo", form=form) for form in ("tokens", "steps", "texts")}
    for form, arrays in forms.items():
        owners = arrays["trajectory"]
        assert arrays["rewards"].tolist() == [[3.0, 4.0][owner] for owner in owners], form
        earned = [arrays["turn_rewards"][owners == owner].sum() for owner in (0, 1)]
        assert earned == [3.0, 4.0], form
        rows = arrays["advantages"].reshape(len(owners), -1)
        assert [rows[owners == owner].min() + rows[owners == owner].max() for owner in (0, 1)] == (
            [-0.5, 0.5] if form == "tokens" else [-1.0, 1.0]  # 0 on tokens of prompts
        )
    assert not {"reward", "turn_reward", "advantage", "trajectory_rewards"} & {
        key for one in forms.values() for key in one
    }


# Documentation


DOCS = (Path(__file__).parent.parent / "docs" / "batches.md").read_text()


def test_example_of_the_documentation_runs(tmp_path: Path) -> None:
    example = DOCS.split("```python\n")[1].split("```")[0]
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, check=True, capture_output=True, text=True)
    shown = done.stdout.replace("\n", "").replace("  ", " ")
    assert shown.startswith("[[1 2 3 7 8 4 9] [1 2 3 7 0 0 0]][[0 0 0 1 1 0 1] [0 0 0 1 0 0 0]]")


@pytest.mark.parametrize(
    ("title", "made"),
    [
        ("Tokens", batch(scored(1.0))),
        ("Steps", batch([played(step(Remembered(1, 1), logprobs=np.zeros(1, np.float32)), final=1)])),
        ("Texts", batch([played(Turn("s"), messages=talk("a", "b"))])),
    ],
)
def test_documentation_lists_every_column(title: str, made: Batch) -> None:
    common = DOCS.split("In every form")[1].split("###")[0]
    own = DOCS.split(f"### {title}")[1].split("###")[0]
    listed = re.findall(r"^\| `(\w+)` \|", common + own, flags=re.MULTILINE)
    made_of_all = made.to_arrays(reward_normalization={"grouping": "state", "method": "mean"})
    assert sorted(listed) == sorted(made_of_all)
