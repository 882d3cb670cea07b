"""The answer that a text states: the same dressings are taken off in every env, and nothing else is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import Parsed, TextOptions
from asyncrollout.text.replies import read_choice
from asyncrollout.text.stated import find_led, find_stated, undress
from asyncrollout_envs.bandit import Bandit, BanditText
from asyncrollout_envs.countdown import Countdown, CountdownText
from asyncrollout_envs.frozen_lake import FrozenLakeText
from asyncrollout_envs.metamathqa import MetaMathQAText
from asyncrollout_envs.reasoning import ReasoningGym, ReasoningGymText
from asyncrollout_envs.rubikscube import RubiksCubeText
from asyncrollout_envs.sokoban import SokobanText
from asyncrollout_envs.sudoku import SudokuText
from asyncrollout_envs.video.questions import Question, read_answer
from asyncrollout_envs.webshop import WebShopText

LENIENT = TextOptions()
DRESSINGS = [
    "{}",
    "{}.",
    "**{}**",
    "**{}**.",
    "*{}*",
    "`{}`",
    '"{}"',
    "\u201c{}.\u201d",
    "${}$",
    r"\({}\)",
    r"\[ {} \]",
    r"\boxed{{{}}}",
    r"$\boxed{{{}}}$.",
    r"\text{{{}}}",
    "The answer is {}",
    "The answer is {}.",
    "The answer is: {}.",
    "the final answer is **{}**.",
    "Answer: {}",
    "**Answer:** {}",
    "**Answer: {}**",
    "The answer is {}. I have checked it.",
    "First I thought of 7.\nThe answer is {}.",
    r"So the answer is $\boxed{{{}}}$.",
]

LAYERS = [
    "{}.",
    "**{}**",
    "`{}`",
    '"{}"',
    "\u2018{}\u2019",
    "${}$",
    r"\({}\)",
    r"\[ {} \]",
    r"\boxed{{{}}}",
    r"\text{{{}}}",
    " {},\n",
]


def parse_bandit(reply: str) -> Parsed:
    env = Bandit()
    env.reset(seed=0)
    assert env.arms[1] == "dragon"
    return BanditText(env, LENIENT).parse(reply)


READERS: dict[str, tuple[Any, str, Any]] = {
    "countdown": (CountdownText.project, "(5 * 3) + 9", "(5 * 3) + 9"),
    "bandit by name": (BanditText.project, "dragon", "dragon"),
    "bandit by number": (BanditText.project, "2", 2),
    "metamathqa": (MetaMathQAText.project, "42", "42"),
    "sokoban": (SokobanText.project, "Left", 3),
    "sokoban by number": (SokobanText.project, "3", 3),
    "frozen_lake": (FrozenLakeText.project, "Down", 2),
    "sudoku": (SudokuText.project, "place 5 at row 2 col 3", "place 5 at row 2 col 3"),
    "rubikscube": (RubiksCubeText.project, "U'", 2),
    "webshop": (WebShopText.project, "click[buy now]", "click[buy now]"),
    "webshop's button": (WebShopText.project, "buy now", "click[buy now]"),
}


@pytest.mark.parametrize("dressing", DRESSINGS)
@pytest.mark.parametrize("name", READERS)
def test_every_env_takes_off_the_same(name: str, dressing: str) -> None:
    project, answer, action = READERS[name]
    reply = f"<answer>{dressing.format(answer)}</answer>"
    assert project(reply, LENIENT) == Parsed((action,)), reply


@pytest.mark.parametrize("dressing", [one for one in DRESSINGS if "answer" in one.lower()])
@pytest.mark.parametrize("name", READERS)
def test_prose_may_call_it_the_answer(name: str, dressing: str) -> None:
    project, answer, action = READERS[name]
    assert project(f"<think>7</think>{dressing.format(answer)}", LENIENT) == Parsed((action,))


@pytest.mark.parametrize("dressing", DRESSINGS)
def test_questions_of_reasoning_gym(dressing: str) -> None:
    env = ReasoningGym()
    env.reset(seed=3)
    (action,) = ReasoningGymText.project(f"<answer>{dressing.format(env.entry['answer'])}</answer>", LENIENT).actions
    assert env.step(action)[1] == 1.0


@pytest.mark.parametrize("dressing", DRESSINGS)
@pytest.mark.parametrize(
    ("kind", "answer", "read"),
    [("multiple choice", "B", "B"), ("numerical", "-12.5", "-12.5"), ("moment", "2-4, 10-12", "2-4, 10-12")],
)
def test_questions_about_a_video(kind: Any, answer: str, read: str, dressing: str) -> None:
    options = (("A", "a cat"), ("B", "a dog")) if kind == "multiple choice" else ()
    question = Question("v", ("v.mp4",), "What?", kind, options)
    assert read_answer(question, dressing.format(answer), 20.0) == read


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("arm 2: dragon", "dragon"),
        ("2: dragon", "dragon"),
        ("2. dragon", "dragon"),
        ("**2. Dragon**", "dragon"),
        ("arm 2 (dragon)", "dragon"),
        ("dragon, arm 2", "dragon"),
        ("I choose arm 2, the dragon.", "dragon"),
    ],
)
def test_number_and_name_of_one_arm_are_one_choice(reply: str, action: str) -> None:
    (found,) = parse_bandit(f"<answer>{reply}</answer>").actions
    assert found in (action, 2)


@pytest.mark.parametrize("reply", ["arm 1: dragon", "1. dragon", "arm 2: phoenix", "arm 2 or arm 1", "dragon or arm 1"])
def test_number_and_name_of_two_arms_are_none(reply: str) -> None:
    assert not parse_bandit(f"<answer>{reply}</answer>").valid


def test_projection_of_a_number_with_a_name_is_the_name() -> None:
    assert BanditText.project("<answer>arm 2: phoenix</answer>", LENIENT) == Parsed(("phoenix",))


def test_choices_of_one_meaning_are_one() -> None:
    choices = {"north": "N", "up": 1}
    assert not read_choice("north, that is up", LENIENT, choices).valid
    assert read_choice("north, that is up", LENIENT, choices, lambda action: action in ("N", 1)).valid


@pytest.mark.parametrize(
    "reply",
    [
        "jump.",
        "**jump**",
        "The answer is jump.",
        "The answer is not known",
        r"\boxed{jump}",
        "The answer is left or right",
        "<think>The answer is left.</think>",
        r"<think>\boxed{left}",
        "I have 3 boxes.",
        "The number of boxes is 3.",
        "The answers are many",
    ],
)
def test_dressing_makes_no_action_of_what_is_none(reply: str) -> None:
    assert not SokobanText.project(reply, LENIENT).valid


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("24 = (5 * 3) + 9", 24),
        ("24 = (5 * 3) + 9.", 24),
        ("(5 * 3) + 9 = 24.", 24),
        ("**24 = (5 * 3) + 9**", 24),
        (r"\boxed{(5 \times 3) + 9 = 24}", 24),
        ("The answer is 24 = (5 * 3) + 9.", 24),
    ],
)
def test_result_before_or_after_an_expression_is_left_out(reply: str, value: int) -> None:
    env = Countdown()
    env.reset(options={"task": {"target": value, "nums": [3, 5, 9]}})
    (action,) = CountdownText(env, LENIENT).parse(f"<answer>{reply}</answer>").actions
    assert env.step(action)[1] == 1.0


def test_strict_takes_off_nothing() -> None:
    strict = TextOptions(strict=True)
    for project, answer in ((CountdownText.project, "5 + 3."), (WebShopText.project, "**click[buy now]**")):
        assert project(f"<answer>{answer}</answer>", LENIENT).valid
        assert not project(f"<think>a</think><answer>{answer}</answer>", strict).valid


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("The ratio is 3:4", "3:4"),
        ("At 10:05", "At 10:05"),
        ("Time: 10:05.", "10:05"),
        (r"\boxed{5} is what I get.", "5"),
        (r"The answer is 3, or \boxed{5}.", "5"),
        (r"\boxed{5}. No, the answer is 6.", "6"),
        (r"The answer is \frac{1}{2}.", r"\frac{1}{2}"),
        ("The answer is .5.", ".5"),
        ("The answer is 3.5", "3.5"),
        ("The answer is", None),
    ],
)
def test_what_is_stated(text: str, stated: str | None) -> None:
    assert find_stated(text) == stated


@pytest.mark.parametrize("text", ["f'", "'s", '5"', "(5)", "[1, 2]", "$5", "5$ and 6$", "U'", r"\text{a} and \text{b}"])
def test_what_belongs_to_an_answer_stays(text: str) -> None:
    assert undress(text) == text


@given(st.text(st.sampled_from("*`$\"'\\boxed{}answer is: .\n5") | st.characters(), max_size=300))
def test_nothing_is_added_and_nothing_raises(text: str) -> None:
    assert undress(text) in text
    assert (find_led(text) or "") in text
    assert (find_stated(text) or "") in text
    assert undress(undress(text)) == undress(text)


@given(st.lists(st.sampled_from(LAYERS), max_size=40))
def test_any_number_of_layers_is_taken_off(layers: list[str]) -> None:
    text = "12"
    for layer in layers:
        text = layer.format(text)
    assert undress(text) == "12"


@pytest.mark.parametrize(
    "part", ["answer is ", "answer*", "\\boxed{", "\\text{", "$", "*", "{", ": ", " is", "answer:\n"]
)
def test_what_is_read_grows_with_a_text_and_not_with_its_square(part: str) -> None:
    """Of half a million characters, whatever takes more than linear time would not end."""
    text = part * (500_000 // len(part))
    assert (find_stated(text) or "") in text
    assert undress(text) in text
