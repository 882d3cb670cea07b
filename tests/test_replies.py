"""Reading replies: which part of a reply counts, how it is split, and that nothing raises or is mistaken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import Parsed, TextOptions
from asyncrollout.text.replies import LONGEST, find_answer, read_choice, read_reply, turn_format
from asyncrollout.text.stated import find_stated

MOVES = {"up": 1, "down": 2, "left": 3, "right": 4, "1": 1, "2": 2, "3": 3, "4": 4}
LENIENT, STRICT = TextOptions(), TextOptions(strict=True)


def read(reply: str, options: TextOptions = LENIENT) -> Parsed:
    return read_choice(reply, options, MOVES)


@pytest.mark.parametrize(
    ("reply", "actions"),
    [
        ("<action>up</action>", [1]),
        ("<answer>Up</answer>", [1]),
        ("<answer>\nup\n</answer>", [1]),
        ("<answer>[Up]</answer>", [1]),
        ("<answer>**Up.**</answer>", [1]),
        ("<answer>3</answer>", [3]),
        ("<ANSWER>Up</Answer>", [1]),
        ("< answer >Up</ answer>", [1]),
        ("<answer>I go up</answer>", [1]),
        ("<answer>Up || Left||right</answer>", [1, 3, 4]),
        ("<answer>Up ||</answer>", [1]),
        ("<answer>up || go left</answer>", [1, 3]),
        ("<answer>up</answer> no, <answer>down</answer>", [2]),
        ("<answer>up</answer> no, <action>down</action>", [2]),
        ("<answer><answer>up</answer></answer>", [1]),
        ("<think>down</think><answer>up</answer>", [1]),
        ("down</think><answer>up</answer>", [1]),
        ("<think><answer>down</answer></think><answer>up</answer>", [1]),
        ("<answer>up</answer><think>or <answer>down</answer></think>", [1]),
        ("<think>not closed <answer>up</answer>", [1]),
        ("<think>not closed, not <answer>down</answer> but <answer>up</answer>\n", [1]),
        ("<answer>up</answer> or <think>not closed <answer>down</answer>", [1]),
        ("<answer>left</answer> no: <ANSWER>up</ANSWER>", [1]),
        ("<think>a</think><answer>up", [1]),
        ("<answer>up</answer> and <answer>", [1]),
        ("I will go up.", [1]),
        ("UP", [1]),
        ("up, up and up", [1]),
        ("up || left", [1, 3]),
        ("<think>left</think> I go up", [1]),
        ("I go up <think>left</think>", [1]),
        ("2", [2]),
    ],
)
def test_what_counts(reply: str, actions: list[int]) -> None:
    assert read(reply) == Parsed(tuple(actions))


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "empty"),
        (" \n ", "empty"),
        ("jump", "no action"),
        ("go upright", "no action"),
        ("up-right", "no action"),
        ("upside", "no action"),
        ("up or down", "no action"),
        ("<answer>up or down</answer>", "not an action: 'up or down'"),
        ("<answer>jump</answer>", "not an action: 'jump'"),
        ("<answer>up || jump</answer>", "not an action: 'jump'"),
        ("<answer>5</answer>", "not an action: '5'"),
        ("I have 2 boxes", "no action"),
        ("<answer> </answer>", "the answer is empty"),
        ("<answer>||</answer>", "the answer is empty"),
        ("<answer>jump</answer> up", "not an action: 'jump'"),
        ("<think>up</think>", "nothing outside <think>"),
        ("<think>up", "nothing outside <think>"),
        ("<think>not closed, and <answer>up</answer> is wrong", "nothing outside <think>"),
        ("<think>cut off in <answer>up", "nothing outside <think>"),
        ("<THINK>up</THINK>", "nothing outside <think>"),
        ("<think >up</ think>", "nothing outside <think>"),
        ("<thinking>up</thinking>", "nothing outside <think>"),
        ("<think><answer>up</answer></think>", "nothing outside <think>"),
        ("<answer>" + "up " * LONGEST + "</answer>", "longer than"),
        ("up" + " and so on" * LONGEST, "no action"),
    ],
)
def test_what_does_not_count(reply: str, reason: str) -> None:
    parsed = read(reply)
    assert (parsed.actions, parsed.valid) == ((), False)
    assert reason in parsed.reason


def test_strict_takes_the_whole_form() -> None:
    assert read("<think>a</think><answer>Up || 2</answer>", STRICT) == Parsed((1, 2))
    assert read(" <think>a\n</think>\n\n<answer> up </answer>\n", STRICT) == Parsed((1,))


@pytest.mark.parametrize(
    "reply",
    [
        "up",
        "<answer>up</answer>",
        "<think>a</think><action>up</action>",
        "<think>a</think> so <answer>up</answer>",
        "<think>a</think><answer>up</answer> done",
        "<think>a</think><answer>up</answer><answer>up</answer>",
        "<think>a<answer>up</answer>",
        "<think>a</think><answer>I go up</answer>",
        "<think>a</think><answer></answer>",
        "<answer>up</answer><think>a</think><answer>up</answer>",
    ],
)
def test_strict_takes_nothing_else(reply: str) -> None:
    parsed = read(reply, STRICT)
    assert not parsed.valid
    assert parsed.reason


def test_only_the_first_actions_of_a_turn_are_read() -> None:
    two = TextOptions(max_actions_per_turn=2)
    assert read("<answer>up || left || jump</answer>", two) == Parsed((1, 3))


def test_separator_is_an_option() -> None:
    assert read("<answer>up; left</answer>", TextOptions(separator=";")) == Parsed((1, 3))


def test_one_action_is_not_split() -> None:
    assert read_reply("<answer>||v|| = 3</answer>", LENIENT, str, several=False) == Parsed(("||v|| = 3",))


@pytest.mark.parametrize(
    ("prose", "stated"),
    [
        ("5", "5"),
        ("The answer is 5.", "5"),
        ("First 3.\nAnswer: 5\n", "5"),
        ("**Answer:** `5`", "5"),
        ("The answer is .5.", ".5"),
        ("Is it 3 or 5", "Is it 3 or 5"),
        ("...", None),
        ("", None),
    ],
)
def test_what_prose_states(prose: str, stated: str | None) -> None:
    assert find_stated(prose) == stated


def test_prompt_tells_the_form_that_is_read() -> None:
    reported = turn_format(TextOptions(max_actions_per_turn=3, separator=";"), "Up")
    assert "up to 3 actions" in reported
    assert read(reported.rsplit("such as ", 1)[1], TextOptions(separator=";")) == Parsed((1, 1))
    for alone in (
        turn_format(TextOptions(max_actions_per_turn=1), "Up"),
        turn_format(TextOptions(max_actions_per_traj=1), "Up"),
        turn_format(LENIENT, "Up", most=1),
    ):
        assert "actions in one reply" not in alone


TAGS = ["<think>", "</think>", "<answer>", "</answer>", "<action>", "</action>"]
PIECES = [*TAGS, "up", "left ", "jump", "||", " ", "\n"]
replies = st.one_of(st.text(), st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3))).map("".join))


@given(reply=replies, strict=st.booleans())
def test_no_reply_raises(reply: str, strict: bool) -> None:
    parsed = read(reply, TextOptions(strict=strict))
    assert parsed.valid == bool(parsed.actions)
    assert parsed.valid != bool(parsed.reason)
    assert len(parsed.actions) <= 5


@given(reply=replies)
def test_whatever_strict_takes_lenient_takes_too(reply: str) -> None:
    for text in (reply, f"<think>{reply}</think><answer>up</answer>"):
        strict = read(text, STRICT)
        if strict.valid:
            assert read(text) == strict


@given(thought=replies, said=st.text())
def test_thoughts_are_never_read(thought: str, said: str) -> None:
    thought, said = thought.replace("think>", ""), said.replace("<", "")
    answer = find_answer(f"<think>{thought}</think>{said}")
    assert answer.text == said.strip()
