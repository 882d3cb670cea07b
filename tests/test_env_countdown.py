"""Countdown: its puzzles, its scores, its solver and what it reads in replies."""

import itertools
import json
import operator
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrollout import EnvPool, Parsed, TextOptions, UsageError
from asyncrollout_envs.countdown.arithmetic import evaluate
from asyncrollout_envs.countdown.env import Countdown, CountdownText, score
from asyncrollout_envs.countdown.puzzles import Puzzle, solve_puzzle

TASK = {"target": 24, "nums": [3, 5, 9]}


def started(task: Any = TASK, **kwargs: Any) -> Countdown:
    env = Countdown(**kwargs)
    env.reset(seed=0, options={"task": task})
    return env


def project(reply: str, **options: Any) -> Parsed:
    return CountdownText.project(reply, TextOptions(**options))


@pytest.mark.parametrize(
    ("expression", "reward", "told"),
    [
        ("3 * 5 + 9", 1.0, "gives 24, the target"),
        ("9 + (5 * 3) = 24", 1.0, "gives 24, the target"),
        ("3 + 5 + 9", 0.1, "gives 17, not the target"),
        ("3 / 5 / 9", 0.1, "gives 1/15, not the target"),
        ("3 / (9 - 9)", 0.0, "uses [3, 9, 9]"),
        ("3 * 5 + 9 + 0", 0.0, "uses [3, 5, 9, 0]"),
        ("24", 0.0, "uses [24]"),
        ("3 * 8", 0.0, "uses [3, 8]"),
        ("3 * 5 +", 0.0, "unreadable"),
        ("", 0.0, "unreadable"),
    ],
)
def test_scores(expression: str, reward: float, told: str) -> None:
    obs, gained, terminated, truncated, info = started().step(expression)
    assert (gained, terminated, truncated) == (reward, True, False)
    assert info == {"action_is_effective": True, "success": reward == 1.0}
    assert obs.startswith("Target: 24, nums: [3, 5, 9]\n")
    assert told in obs


def test_division_by_zero_with_the_right_numbers_scores_a_tenth() -> None:
    obs, reward, *_ = started({"target": 7, "nums": [4, 2, 2]}).step("4 / (2 - 2)")
    assert reward == 0.1
    assert "divides by zero" in obs


def test_fractions_on_the_way_are_exact() -> None:
    task = {"target": 24, "nums": [8, 3, 8, 3]}
    assert started(task).step("8 / (3 - 8 / 3)")[1] == 1.0
    assert started({"target": 1, "nums": [49, 1, 49]}).step("1 / 49 * 49")[1] == 1.0


def test_observation_is_the_puzzle() -> None:
    assert Countdown().reset(options={"task": TASK}) == ("Target: 24, nums: [3, 5, 9]", {})


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"split": "test"},
        {"num_numbers": 2, "max_number": 10, "max_target": 10},
        {"num_numbers": 6, "max_number": 100, "max_target": 999, "split": "val"},
        {"num_numbers": [5, 6], "max_number": 13, "max_target": 24},
        {"num_numbers": 3, "max_number": 1000, "max_target": 10},
    ],
)
def test_made_puzzles_are_solvable_and_within_their_limits(kwargs: dict[str, Any]) -> None:
    env = Countdown(**kwargs)
    for seed in range(200):
        env.reset(seed=seed)
        puzzle = env.puzzle
        made = evaluate(puzzle.solution)
        assert made.uses(puzzle.nums)
        assert made.value == puzzle.target
        assert 1 <= puzzle.target <= kwargs.get("max_target", 100)
        assert all(1 <= number <= kwargs.get("max_number", 99) for number in puzzle.nums)
        assert puzzle.target not in puzzle.nums


def test_made_puzzles_vary() -> None:
    env = Countdown()
    seen = [env.reset(seed=seed)[0] for seed in range(300)]
    assert len(set(seen)) > 290
    assert seen == [Countdown().reset(seed=seed)[0] for seed in range(300)]
    counts = {len(started_at(seed).nums) for seed in range(20)}
    assert counts == {3, 4}


def started_at(seed: int, **kwargs: Any) -> Puzzle:
    env = Countdown(**kwargs)
    env.reset(seed=seed)
    return env.puzzle


def test_made_splits_share_no_puzzle() -> None:
    few = {"num_numbers": 2, "max_number": 12, "max_target": 12}
    identities = [
        {started_at(seed, split=split, **few).identity for seed in range(200)} for split in ("train", "val", "test")
    ]
    assert all(len(found) >= 5 for found in identities)
    for one, other in itertools.combinations(identities, 2):
        assert not one & other


OPERATORS: list[Callable[[Fraction, Fraction], Fraction]] = [operator.add, operator.sub, operator.mul]


def reachable(nums: tuple[int, ...]) -> set[Fraction]:
    """All values, by trying everything."""
    if len(nums) == 1:
        return {Fraction(nums[0])}
    values = set()
    for places in range(1, 2 ** len(nums) - 1):
        left = tuple(number for place, number in enumerate(nums) if places >> place & 1)
        right = tuple(number for place, number in enumerate(nums) if not places >> place & 1)
        for a, b in itertools.product(reachable(left), reachable(right)):
            values |= {operate(a, b) for operate in OPERATORS} | ({a / b} if b else set())
    return values


@settings(max_examples=30)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=3), st.integers(-5, 60))
def test_solver_finds_what_trying_everything_finds(nums: list[int], target: int) -> None:
    found = solve_puzzle(target, tuple(nums))
    values = reachable(tuple(nums))
    assert (found is not None) == (target in values or -target in values)
    if found is not None:
        assert score(evaluate(found), Puzzle(target, tuple(nums))) == 1.0


@pytest.mark.parametrize("nums", [(8, 3, 8, 3), (2, 9, 13, 40), (0, 5, 7, 50)])
def test_solver_on_four_numbers_agrees_with_trying_everything(nums: tuple[int, ...]) -> None:
    values = reachable(nums)
    for target in range(100):
        found = solve_puzzle(target, nums)
        assert (found is not None) == (target in values)
        assert found is None or score(evaluate(found), Puzzle(target, nums)) == 1.0


@pytest.mark.parametrize(
    ("target", "nums"), [(952, (25, 50, 75, 100, 3, 6)), (24, (3, 3, 7, 7)), (24, (1, 5, 5, 5)), (0, (0, 1, 2, 4))]
)
def test_solver_knows_the_famous_ones(target: int, nums: tuple[int, ...]) -> None:
    found = solve_puzzle(target, nums)
    assert found is not None
    assert score(evaluate(found), Puzzle(target, nums)) == 1.0


@pytest.mark.parametrize(
    ("task", "reward"),
    [
        (TASK, 1.0),
        ({"target": 24, "numbers": [3, 5, 9]}, 1.0),
        ({"target": -8, "nums": [3, 5]}, 1.0),
        ({"target": 5, "nums": [5]}, 1.0),
        ({"target": 1000, "nums": [1, 1, 1]}, 0.1),
        ({"target": 999_999_999_937, "nums": [2, 3, 5, 7, 11, 13]}, 0.1),
        ({"target": 28, "nums": [1, 2, 3, 4, 5, 6, 7]}, 1.0),
        ({"target": 29, "nums": [1, 2, 3, 4, 5, 6, 7]}, 0.1),
    ],
)
def test_expert_solves_or_at_least_uses_the_numbers(task: dict[str, Any], reward: float) -> None:
    env = started(task)
    parsed = CountdownText(env, TextOptions(strict=True)).parse(CountdownText(env, TextOptions()).solve())
    assert parsed.valid
    assert env.step(parsed.actions[0])[1] == reward


@pytest.mark.parametrize(
    ("reply", "expression"),
    [
        ("<think>3 + 5</think><answer>(3 * 5) + 9</answer>", "(3 * 5) + 9"),
        ("<answer>\n(3 \u00d7 5) + 9 = 24\n</answer>", "(3 * 5) + 9"),
        ("<action>9 + 3 * 5</action>", "9 + 3 * 5"),
        ("<answer>1 + 2</answer> no: <answer>3 * 5 + 9</answer>", "3 * 5 + 9"),
        ("(3 * 5) + 9", "(3 * 5) + 9"),
        ("<think>1 + 2 is 3</think>I would say: (3 * 5) + 9 = 24.", "(3 * 5) + 9"),
        ("3 * 5 is 15, so the expression is 3 * 5 + 9", "3 * 5 + 9"),
        ("3 * 5 + 9 <think>or 1 + 2?</think>", "3 * 5 + 9"),
        ("First 3 * 5 = 15.\n\n**(3 * 5) + 9 = 24**\n", "(3 * 5) + 9"),
        (r"Thus the answer is $3 \times 5 + 9$.", "3 * 5 + 9"),
        ("<answer>24</answer>", "24"),
    ],
)
def test_expression_in_a_reply(reply: str, expression: str) -> None:
    assert project(reply) == Parsed((expression,))


@pytest.mark.parametrize(
    "reply",
    [
        "<think>3 * 5 + 9</think>",
        "<think>3 * 5 + 9",
        "<think>3 * 5 + 9</think> I do not know",
        "<think>x</think><answer>the sum of 3 and 5</answer>",
        "<answer>sqrt(9) + 3</answer>",
        "<answer>3 * 5 || 9</answer>",
        "<answer>2.5 * 4</answer>",
        "<answer>" + "(" * 5_000 + "</answer>",
        "24",
        "The answer is 24.",
        "On 2024-01-05 I tried",
        "pages 3-5",
        "It's 1/2 done",
        "3 * 5 is 15",
        "3 * 5 + 9\nis what I say",
        "I take 3 * 5 + 9",
        "3 + 5 or 3 * 5 + 9",
        "",
        "...",
    ],
)
def test_reply_without_an_expression(reply: str) -> None:
    parsed = project(reply)
    assert (parsed.valid, tuple(parsed.actions)) == (False, ())
    assert parsed.reason


def test_strict_wants_the_whole_form() -> None:
    assert project("<think>x</think><answer>3 * 5 + 9</answer>", strict=True).valid
    assert not project("<answer>3 * 5 + 9</answer>", strict=True).valid
    assert not project("3 * 5 + 9", strict=True).valid


def test_default_action_scores_nothing() -> None:
    assert started().step(CountdownText.default_action)[1] == 0.0


def test_text_interface_tells_the_rules_and_the_state() -> None:
    env = started()
    text = CountdownText(env, TextOptions())
    prompt = text.system_prompt()
    assert "exactly once" in prompt
    assert prompt.endswith("<think> your reasoning </think><answer> (5 * 3) + 9 </answer>")
    assert text.anchor() == (24, (3, 5, 9), False)
    obs, *_ = env.step("3 + 5 + 9")
    assert text.describe(obs) == obs
    assert text.anchor() == (24, (3, 5, 9), True)
    assert text.tell("3 + 5") == "3 + 5"


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"num_numbers": 1}, "num_numbers=1"),
        ({"num_numbers": 7}, "num_numbers=7"),
        ({"num_numbers": (4, 3)}, r"num_numbers=\(4, 3\)"),
        ({"num_numbers": (3, 4, 5)}, "num_numbers"),
        ({"num_numbers": "three"}, "num_numbers='three'"),
        ({"num_numbers": 3.0}, "num_numbers=3.0"),
        ({"num_numbers": True}, "num_numbers=True"),
        ({"max_number": 0}, "max_number=0"),
        ({"max_number": "99"}, "max_number='99'"),
        ({"max_target": 10**9}, "max_target=1000000000"),
        ({"split": "dev"}, "split='dev'"),
        ({"data_path": "/nowhere/rows.json"}, "/nowhere/rows.json"),
    ],
)
def test_wrong_options_are_named(kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=f"^countdown: .*{told}"):
        Countdown(**kwargs)


@pytest.mark.parametrize(
    ("kwargs", "plain"),
    [
        ({"num_numbers": np.int64(3)}, {"num_numbers": 3}),
        ({"num_numbers": (np.int32(3), 4)}, {"num_numbers": (3, 4)}),
        ({"max_number": np.int8(99), "max_target": np.uint8(100)}, {"max_number": 99, "max_target": 100}),
    ],
)
def test_options_may_be_numbers_of_numpy(kwargs: dict[str, Any], plain: dict[str, Any]) -> None:
    for seed in range(20):
        assert Countdown(**kwargs).reset(seed=seed) == Countdown(**plain).reset(seed=seed)


@pytest.mark.parametrize(
    "nums", [[np.int64(3), 5, np.int32(9)], (np.int64(3), 5, 9), np.array([3, 5, 9]), np.array([3, 5, 9], np.uint8)]
)
def test_task_may_have_numbers_of_numpy(nums: Any) -> None:
    env = started({"target": np.int64(24), "nums": nums})
    assert env.puzzle == Puzzle(24, (3, 5, 9))
    assert all(type(number) is int for number in (env.puzzle.target, *env.puzzle.nums))
    assert env.step("3 * 5 + 9")[1] == 1.0


def test_limits_that_do_not_fit_are_told_at_reset() -> None:
    with pytest.raises(UsageError, match="max_target=10000 is hardly ever reached with num_numbers=2"):
        Countdown(num_numbers=2, max_number=10, max_target=10_000, split="val").reset(seed=0)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (3, "must be a dict"),
        ("24", "must be a dict"),
        ({"nums": [1, 2]}, "target"),
        ({"target": 3}, "'nums' is missing"),
        ({"target": 3, "nums": "1 2"}, "nums"),
        ({"target": 3, "nums": []}, "'nums' must be"),
        ({"target": 3, "nums": [1, -2]}, "'nums' must be"),
        ({"target": 3, "nums": [1, 10**12]}, "'nums' must be"),
        ({"target": 10**12, "nums": [1]}, "'target' must"),
        ({"target": 3.5, "nums": [1, 2]}, "target"),
        ({"target": np.float64(3.5), "nums": [1, 2]}, "target"),
        ({"target": 3, "nums": np.array([1.5, 2])}, "nums"),
    ],
)
def test_wrong_task_is_told(task: Any, told: str) -> None:
    with pytest.raises(UsageError, match=f"^countdown: task=.*{told}"):
        started(task)


def test_wrong_action_is_told() -> None:
    with pytest.raises(TypeError, match="countdown: an action is an expression as text, not 24"):
        started().step(24)  # type: ignore[arg-type]


ROWS = [{"target": 20 + number, "nums": [number, 20]} for number in range(1, 21)]


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
def test_puzzles_from_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"puzzles{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_text(json.dumps(ROWS) if suffix == ".json" else "\n".join(map(json.dumps, ROWS)))
    env = Countdown(data_path=path, split="val")
    assert env.reset(options={"task": 1})[0] == "Target: 39, nums: [19, 20]"
    assert {env.reset(seed=seed)[0] for seed in range(20)} == {
        "Target: 29, nums: [9, 20]",
        "Target: 39, nums: [19, 20]",
    }
    assert env.reset(options={"task": TASK})[0] == "Target: 24, nums: [3, 5, 9]"
    with pytest.raises(UsageError, match=r"countdown: task=2 .* 0 to 1"):
        env.reset(options={"task": 2})


def test_file_with_a_wrong_row_is_told(tmp_path: Path) -> None:
    path = tmp_path / "puzzles.jsonl"
    path.write_text('{"target": 3, "numbers": [1, 2]}\n{"target": 3, "nums": [1, -2]}\n')
    with pytest.raises(UsageError, match=r"countdown: .*puzzles\.jsonl, line 2: field 'nums' must be"):
        Countdown(data_path=path)


async def test_experts_play_through_the_pool() -> None:
    async with EnvPool(backend="inline") as pool, pool.open("countdown", expert=True, split="test") as env:
        for seed in range(20):
            begun = await env.reset(seed=seed)
            outcome = await env.step(begun.info["expert"])
            assert (outcome.reward, outcome.terminated, outcome.info["success"]) == (1.0, True, True)


def hostile_expressions(marker: Path) -> list[str]:
    return [
        "9**9**9",
        "9^9^9",
        "*".join(["9" * 12] * 1_000),
        f"__import__('os').system('touch {marker}')",
        f"open('{marker}', 'w')",
        f"(3 * 5) + 9 if open('{marker}', 'w') else 0",
        "(" * 100_000,
        "(" * 100_000 + "24" + ")" * 100_000,
        "-" * 100_000 + "24",
    ]


def test_hostile_expression_is_unreadable_and_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for expression in hostile_expressions(marker):
        obs, reward, terminated, _, info = started().step(expression)
        assert (reward, terminated, info["success"]) == (0.0, True, False), expression[:100]
        assert "unreadable" in obs
    assert not marker.exists()


async def test_hostile_reply_is_invalid_and_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    async with EnvPool(backend="inline") as pool, pool.open("countdown") as env:
        for expression in hostile_expressions(marker):
            await env.reset(task=TASK)
            outcome = await env.step(f"<think>so</think><answer>{expression}</answer>")
            assert not outcome.info["action_is_valid"], expression[:100]
            assert outcome.info["actions"] == []
            assert not outcome.reward > 0
    assert not marker.exists()
