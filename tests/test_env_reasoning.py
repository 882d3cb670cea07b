"""Questions of the reasoning-gym package: made from numbers, scored by the package, and safe from what is answered."""

import gc
import math
import os
import random
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import MissingExtraError, Parsed, TextOptions, UsageError
from asyncrollout.text.replies import LONGEST
from asyncrollout_envs.reasoning import ReasoningGym, ReasoningGymText
from asyncrollout_envs.reasoning.env import known_answer
from asyncrollout_envs.reasoning.questions import open_questions
from asyncrollout_envs.reasoning.scoring import LONGEST_ANSWER, check_arithmetic, safe_score

KINDS = [
    "advanced_geometry",
    "binary_matrix",  # its scorer calls eval
    "chain_sum",
    "coin_flip",
    "countdown",  # its scorer asks sympy
    "family_relationships",
    "graph_color",  # has an answer in its metadata only
    "gsm_symbolic",  # makes all its entries at once
    "list_functions",  # draws from `random`, and makes all its entries at once
    "n_queens",
    "pool_matrix",  # seeds `numpy.random`
    "propositional_logic",
    "rubiks_cube",
    "simple_integration",
    "spell_backward",
    "tower_of_hanoi",
]
EVALUATING = ["binary_matrix", "n_queens", "spiral_matrix", "string_insertion"]
SYMPY = ["countdown", "puzzle24", "simple_integration"]


def started(dataset: str = "chain_sum", seed: int = 3, **kwargs: Any) -> ReasoningGym:
    env = ReasoningGym(dataset=dataset, **kwargs)
    env.reset(seed=seed)
    return env


def text_of(env: ReasoningGym, **options: Any) -> ReasoningGymText:
    return ReasoningGymText(env, TextOptions(**options))


def project(reply: str, **options: Any) -> Parsed:
    return ReasoningGymText.project(reply, TextOptions(**options))


# --- questions


@pytest.mark.parametrize("dataset", KINDS)
def test_known_answer_is_right(dataset: str) -> None:
    env = ReasoningGym(dataset=dataset)
    for seed in range(10):
        question, info = env.reset(seed=seed)
        assert question == env.question
        assert question
        assert info == {"dataset": dataset, "number": env.number}
        text = text_of(env, strict=True)
        (answer,) = text.parse(text.solve()).actions
        _, reward, terminated, truncated, info = env.step(answer)
        assert (reward, terminated, truncated) == (1.0, True, False)
        assert info == {"action_is_effective": True, "success": True, "score": 1.0}


def entries() -> list[str]:
    """What every kind asks for some seeds."""
    envs = [ReasoningGym(dataset=dataset) for dataset in KINDS]
    return [repr((env.reset(seed=seed)[0], known_answer(env.entry))) for seed in (13, 2) for env in envs]


def test_questions_are_the_same_again_and_in_every_process() -> None:
    first = entries()
    assert len(set(first)) == len(first)
    random.random()
    assert entries() == first
    code = "from tests.test_env_reasoning import entries; print(ascii(entries()))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip().splitlines()[-1] == ascii(first)


def global_states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist()  # noqa: NPY002


@pytest.mark.parametrize("dataset", ["list_functions", "pool_matrix"])
def test_global_generators_are_left_alone(dataset: str) -> None:
    env = ReasoningGym(dataset=dataset)
    before = global_states()
    for seed in range(20):
        env.reset(seed=seed)
    assert global_states() == before


def test_splits_have_numbers_of_their_own() -> None:
    for place, split in enumerate(("train", "val", "test")):
        env = ReasoningGym(split=split)  # type: ignore[arg-type]
        for seed in range(50):
            env.reset(seed=seed)
            assert env.number % 3 == place
            assert env.number < 2**32


def test_task_is_the_number_of_a_question() -> None:
    env = started(seed=4)
    question, number = env.question, env.number
    env.reset(seed=9)
    assert env.question != question
    for task in (number, np.int64(number)):
        assert env.reset(seed=9, options={"task": task})[0] == question


@pytest.mark.parametrize("task", [-1, 2**32, True, 1.5, "3", {}])
def test_wrong_task_is_told(task: Any) -> None:
    with pytest.raises(
        UsageError, match=r"reasoning_gym: task=.* is not the number of a question, from 0 to 4294967295"
    ):
        ReasoningGym().reset(options={"task": task})


def test_configuration_is_the_datasets_own() -> None:
    env = started(min_terms=6, max_terms=6)
    assert sum(env.question.count(sign) for sign in (" + ", " - ")) == 5
    assert sum(started().question.count(sign) for sign in (" + ", " - ")) <= 5


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"dataset": "chain_sums"}, r"no dataset is called 'chain_sums': did you mean 'chain_sum'"),
        ({"dataset": "composite"}, "dataset 'composite' is not offered: open its parts"),
        ({"dataset": "codeio"}, "dataset 'codeio' is not offered: .* reads the clock"),
        ({"dataset": None}, "dataset=None is not the name of a dataset"),
        ({"dataset": []}, r"dataset=\[\] is not the name of a dataset"),
        ({"min_term": 3}, "dataset 'chain_sum' takes no 'min_term': did you mean 'min_terms'"),
        ({"seed": 3}, "'seed' is not for you to give"),
        ({"size": 3}, "'size' is not for you to give"),
        ({"min_terms": -1}, r"dataset 'chain_sum' cannot be made with min_terms=-1: min_terms must be positive"),
        ({"min_terms": "x"}, r"dataset 'chain_sum' cannot be made with min_terms='x'"),
        ({"split": "dev"}, "split='dev' is not one of train, val, test"),
        ({"max_attempts": 0}, "max_attempts=0 is not a whole number from 1"),
    ],
)
def test_wrong_keywords_are_told(kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=f"reasoning_gym: {told}"):
        ReasoningGym(**kwargs)


def test_questions_are_kept_for_the_next_env_but_not_for_ever() -> None:
    def opened(terms: int) -> Any:
        return open_questions("chain_sum", {"min_terms": 2, "max_terms": terms})

    often, seldom = opened(2), weakref.ref(opened(3))
    assert opened(3) is seldom()
    for terms in range(4, 40):
        opened(terms)
        assert opened(2) is often
    gc.collect()
    assert seldom() is None


def test_dataset_that_depends_on_hashes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(UsageError, match=r"'ransom_note' depend on the hashes of texts.*PYTHONHASHSEED=0"):
        ReasoningGym(dataset="ransom_note")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert started("ransom_note").question


def test_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'asyncrollout\[reasoning-gym\]'"):
        ReasoningGym(dataset="lcm", min_numbers=2)


def test_package_is_loaded_when_an_env_is_made() -> None:
    code = "import sys, asyncrollout_envs.reasoning; print('reasoning_gym' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


# --- attempts and rewards


def test_one_attempt_is_the_last() -> None:
    env = started()
    told, reward, terminated, truncated, info = env.step("no idea")
    assert (told, reward, terminated, truncated) == ("Incorrect.", 0.0, True, False)
    assert not info["success"]


@pytest.mark.parametrize(("wrong", "expected"), [(0, 1.0), (1, 0.5), (2, 0.25)])
def test_right_answer_is_halved_for_each_wrong_one(wrong: int, expected: float) -> None:
    env = started(max_attempts=3)
    for _ in range(wrong):
        told, reward, terminated, truncated, _ = env.step("no idea")
        assert (told, reward, terminated, truncated) == ("Incorrect. Please think again.", 0.0, False, False)
    told, reward, terminated, _, info = env.step(known_answer(env.entry))
    assert (told, reward, terminated, info["success"]) == ("Correct!", expected, True, True)
    env.reset(seed=8)
    assert env.step(known_answer(env.entry))[1] == 1.0


def test_partly_right_answer_earns_only_at_the_end() -> None:
    env = started("spell_backward", max_attempts=2)
    half = known_answer(env.entry)[:-1]
    _, reward, terminated, _, info = env.step(half)
    assert 0 < info["score"] < 1
    assert (reward, terminated) == (0.0, False)
    _, reward, terminated, _, info = env.step(half)
    assert (reward, terminated, info["success"]) == (info["score"] / 2, True, False)


def test_action_is_a_text() -> None:
    with pytest.raises(TypeError, match="reasoning_gym: an action is an answer as text, not 5"):
        started().step(5)  # type: ignore[arg-type]


# --- the text interface


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("<think>2+2</think><answer> 4 </answer>", "4"),
        ("<answer>a || b\nc</answer>", "a || b\nc"),
        ("<answer>1</answer> or <answer>2</answer>", "2"),
        ("<think>3</think>So it is\n\n 4 \n", "4"),
        ("4", "4"),
    ],
)
def test_replies(reply: str, answer: str) -> None:
    assert project(reply) == Parsed((answer,))


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "the reply is empty"),
        ("<think>4</think>", "nothing outside <think>"),
        ("<answer> </answer>", "the answer is empty"),
        (f"<answer>{'x' * (LONGEST_ANSWER + 1)}</answer>", f"longer than {LONGEST_ANSWER} characters"),
        ("x" * (LONGEST + 1), f"longer than {LONGEST_ANSWER} characters"),
    ],
)
def test_replies_without_an_answer(reply: str, reason: str) -> None:
    parsed = project(reply)
    assert not parsed.valid
    assert reason in parsed.reason


def test_strict_wants_the_form() -> None:
    assert project("<think>x</think><answer>4</answer>", strict=True) == Parsed(("4",))
    assert not project("4", strict=True).valid


def test_question_is_told_at_every_turn() -> None:
    env = started(max_attempts=2)
    text = text_of(env)
    assert text.describe(env.question) == env.question
    assert text.describe(env.step("no idea")[0]) == f"Incorrect. Please think again.\n{env.question}"


def test_anchor_is_the_state() -> None:
    env = started(max_attempts=3)
    text = text_of(env)
    begun = text.anchor()
    env.step("no idea")
    assert text.anchor() != begun
    env.reset(seed=3)
    assert text.anchor() == begun
    env.reset(seed=4)
    assert text.anchor() != begun


def test_prompt_tells_the_attempts() -> None:
    assert "one attempt" in text_of(started()).system_prompt()
    assert "3 attempts" in text_of(started(max_attempts=3)).system_prompt()
    assert "||" not in text_of(started()).system_prompt()


def test_expert_without_an_answer_still_replies() -> None:
    text = text_of(started("rush_hour"), strict=True)
    assert text.parse(text.solve()).valid


# --- hostile answers


@pytest.mark.parametrize("dataset", [*EVALUATING, *SYMPY])
def test_answers_are_not_run(dataset: str, tmp_path: Path) -> None:
    env = started(dataset, max_attempts=100)
    marker = tmp_path / "was-run"
    call = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    for answer in (
        call,
        f"[{call}]",
        f"1 + {call}",
        f"x!\n{call}",
        f"[c for c in [{call}]]",
        f"1 #\r+{call}",
        f"(lambda: {call})()",
    ):
        assert env.step(answer)[1] < 0.1
    assert not marker.exists()


@pytest.mark.parametrize(
    "dataset", [*EVALUATING, *SYMPY, "coin_flip", "propositional_logic", "rubiks_cube", "rush_hour"]
)
def test_answers_that_would_take_for_ever_are_wrong(dataset: str) -> None:
    env = started(dataset, max_attempts=100)
    for answer in (
        "9**9**9**9",
        "(((9**99)**99)**99)**99",
        "1e99999999",
        "1e-9_9_9_9_9_9_9_9",
        "1e9,9,9,9,9,9,9,9",
        "99999999!",
        "factorial(99999999)",
        "exp(exp(exp(99)))",
        "(x + 1)**99999",
        "sin(" * 50 + "x" + ")" * 50,
        "'a' * 9999999999",
        "U99999999",
        "A+99999999",
        "¬" * 5_000 + "P",
        "P∧" * 3_000 + "P",
        "x" * 1_000_000,
    ):
        assert not env.step(answer)[4]["success"]


@pytest.mark.parametrize("dataset", [*KINDS, "complex_arithmetic", "game_of_life_halting", "polynomial_equations"])
def test_no_number_is_worth_nothing(dataset: str) -> None:
    env = started(dataset, max_attempts=1000)
    words = [
        "nan",
        "inf",
        "-inf",
        "Infinity",
        "NaN+NaNj",
        "nani",
        "1 + nan",
        "inf-infi",
        "1e999",
        "1e+9_9_9",
        "9" * 400,
    ]
    for answer in (*words, "n an", *(f"[{word}]" for word in words)):
        info = env.step(answer)[4]
        assert not info["success"]
        assert info["score"] == 0 or answer == "n an"


def test_words_are_not_taken_for_numbers() -> None:
    """The right answer may be "nan", and a part of a word is no number."""
    score = safe_score("spell_backward", started("spell_backward")._questions._dataset)
    for word in ("nan", "Infinity", "nankeen", "1e999", "7" * 400):
        assert score(word, {"answer": word, "metadata": {}}) == 1.0
    assert score("nanke", {"answer": "nankeen", "metadata": {}}) > 0


@pytest.mark.parametrize("dataset", ["coin_flip", "game_of_life_halting", "complex_arithmetic"])
def test_only_right_answers_are_right(dataset: str) -> None:
    env = ReasoningGym(dataset=dataset, max_attempts=10)
    for seed in range(10):
        env.reset(seed=seed)
        right = known_answer(env.entry)
        for wrong in ({"True": "False", "False": "True"}.get(right, right[:2]), "0", "0.", "zzz"):
            assert not env.step(wrong)[4]["success"]
        assert env.step(right)[4]["success"]


def test_lists_still_earn_their_part() -> None:
    env = started("spiral_matrix")
    numbers = [int(number) for number in known_answer(env.entry).split()]
    assert env.step(str(numbers))[1] == 0.1


@pytest.mark.parametrize("form", ["{0}", "({0}) * 1", "{0} + 7 - 7", "{0} + 12"])
def test_integrals_are_right_in_any_form(form: str) -> None:
    env = started("simple_integration")
    assert env.step(form.format(known_answer(env.entry)))[1] == 1.0


@pytest.mark.parametrize("form", ["{0} + {1}/1000", "{0} + {1}**9", "Integral({2}, {1})", "{0} + log({1})", "0"])
def test_wrong_integrals_are_wrong(form: str) -> None:
    env = started("simple_integration")
    metadata = env.entry["metadata"]
    assert env.step(form.format(known_answer(env.entry), metadata["variable"], metadata["integrand"]))[1] == 0.0


@pytest.mark.parametrize("text", ["1 + 2", "-(3.5 * 2) / x", "x**2 * sin(2*x)", " (x + 1)**(1/2) ", "pi * E", "x**-3"])
def test_plain_arithmetic(text: str) -> None:
    check_arithmetic(text)


@given(st.text() | st.lists(st.sampled_from([*"0123456789+-*/()., xyE!^[]'_", "**", "sin(", "1e", "__"])).map("".join))
def test_no_text_upsets_the_check_of_arithmetic(text: str) -> None:
    try:
        check_arithmetic(text)
    except ValueError:
        return
    assert not set(text) & set("!^[]'\"_,:={}@&|~<>;#\\")


class Odd:
    """A dataset whose scorer gives what it is told to."""

    def score_answer(self, answer: str, entry: Any) -> Any:
        return {"nan": math.nan, "high": 7, "low": -1, "none": None, "half": 0.5}[answer]


@pytest.mark.parametrize(
    ("answer", "score"), [("nan", 0), ("high", 1), ("low", 0), ("none", 0), ("half", 0.5), ("raises", 0)]
)
def test_any_scorer_gives_a_score(answer: str, score: float) -> None:
    assert safe_score("odd", Odd())(answer, {}) == score
