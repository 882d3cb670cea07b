"""Any env as a text env: what is shown of an observation, which replies are actions, and what a model is shown."""

import enum
import json
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import EnvSpec, Observation, Parsed, TextOptions, UsageError
from asyncrollout.pool.wire.digest import outcome_digest
from asyncrollout.pool.wire.messages import OpenRequest
from asyncrollout.pool.worker.env_runner import EnvRunner, run_now
from asyncrollout.registry import make_gymnasium
from asyncrollout.testing import check_env
from asyncrollout.testing.text import HOSTILE, hostile_forms
from asyncrollout.text.replies import LONGEST
from asyncrollout.text.spaces import SpaceText

IDS = [
    "Acrobot-v1",
    "Blackjack-v1",
    "CartPole-v1",
    "CliffWalking-v1",
    "FrozenLake-v1",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "Taxi-v4",
]

ACTION_SPACES: list[spaces.Space[Any]] = [
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.Discrete(2**40),
    spaces.Discrete(200, dtype=np.uint8),
    spaces.Box(-1, 1, (3,)),
    spaces.Box(-np.inf, np.inf, (2, 2)),
    spaces.Box(0.1, 0.7, (1,), np.float32),
    spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float64),
    spaces.Box(-4, 4, (), np.float32),
    spaces.Box(0, 100, (2,), np.float16),
    spaces.Box(0, 255, (4,), np.uint8),
    spaces.Box(0, 2**64 - 1, (1,), np.uint64),
    spaces.MultiDiscrete([3, 5]),
    spaces.MultiDiscrete(np.array([[3, 5], [2, 2]]), start=np.array([[-1, 0], [7, 1]])),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 3)),
    spaces.Text(8),
    spaces.Text(3, min_length=3, charset="xyz|"),
    spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,)))),
    spaces.Dict({"move": spaces.Discrete(3), "force": spaces.Box(-1, 1, (1,)), "say": spaces.Text(5, min_length=0)}),
    spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))), "b": spaces.MultiBinary(2)}),
]


class Spaced:
    """Only the spaces matter."""

    def __init__(self, action_space: Any = None, observation_space: Any = None) -> None:
        self.action_space = action_space
        self.observation_space = observation_space


class Plain:
    """Go on until you are told to stop.

    No spaces: observations are described by their type, an action is a text.
    """

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return {"seed": seed, "said": []}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return {"said": [action]}, 1.0, action == "stop", False, {}


class Moves(enum.IntEnum):
    left = 0
    right = 1
    pick_up = 2


class Named(Spaced):
    """An env that has names for its actions, in the given place."""

    def __init__(self, where: str, names: Any, action_space: Any) -> None:
        super().__init__(action_space)
        setattr(self, where, names)


def text_of(action_space: Any = None, observation_space: Any = None, **options: Any) -> SpaceText:
    return SpaceText(Spaced(action_space, observation_space), TextOptions(**options))


def action_of(space: Any, reply: str, **options: Any) -> Any:
    parsed = text_of(space, **options).parse(reply)
    assert parsed.valid, parsed.reason
    (action,) = parsed.actions
    return action


def refused(space: Any, reply: str, **options: Any) -> str:
    parsed = text_of(space, **options).parse(reply)
    assert not parsed.valid
    assert parsed.actions == ()
    return parsed.reason


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return (
        type(one) is type(other)
        and np.array_equal(one, other)
        and getattr(one, "dtype", 0) == getattr(other, "dtype", 0)
    )


def plain(action: Any) -> Any:
    """As parse() gives it: numbers of a Discrete space as int."""
    if isinstance(action, dict):
        return {key: plain(value) for key, value in action.items()}
    if isinstance(action, tuple):
        return tuple(map(plain, action))
    return int(action) if isinstance(action, np.integer) else action


# --- actions


@pytest.mark.parametrize("space", ACTION_SPACES, ids=str)
def test_what_tell_writes_is_read_as_the_same_action(space: Any) -> None:
    text = text_of(space)
    space.seed(0)
    for _ in range(50):
        action = space.sample()
        parsed = text.parse(f"<think>so</think><answer>{text.write_action(action)}</answer>")
        assert parsed.valid, parsed.reason
        assert same(parsed.actions[0], plain(action))


@pytest.mark.parametrize("space", ACTION_SPACES, ids=str)
def test_default_action_is_inside(space: Any) -> None:
    assert space.contains(text_of(space).default_action)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("space", ACTION_SPACES, ids=str)
def test_hostile_replies_are_read_or_refused(space: Any, strict: bool) -> None:
    text = text_of(space, strict=strict)
    good = f"<think>so</think><answer>{text.write_action(text.default_action)}</answer>"
    for reply in [*HOSTILE, *hostile_forms(good), *(f"<answer>{reply}</answer>" for reply in HOSTILE)]:
        check(text.parse(reply), space)


def check(parsed: Parsed, space: Any) -> None:
    if parsed.valid:
        assert parsed.actions
        assert all(space.contains(action) for action in parsed.actions)
    else:
        assert not parsed.actions
        assert parsed.reason
        assert len(parsed.reason) < 2_000


PIECES = st.sampled_from(
    [
        *'0123456789.,-+e[](){}":|| \n',
        "<answer>",
        "</answer>",
        "<think>",
        "</think>",
        "move",
        "nan",
        "inf",
        "1e999",
        "٣",
        "²",
    ]
)


@given(
    space=st.sampled_from(ACTION_SPACES),
    reply=st.one_of(st.text(), st.lists(PIECES).map("".join)),
    tagged=st.booleans(),
    strict=st.booleans(),
)
def test_no_reply_raises_and_valid_ones_are_inside(space: Any, reply: str, tagged: bool, strict: bool) -> None:
    shown = f"<think></think><answer>{reply}</answer>" if tagged else reply
    check(text_of(space, strict=strict).parse(shown), space)


@given(numbers=st.lists(st.floats(width=32) | st.integers(-(10**30), 10**30), min_size=1, max_size=4))
def test_numbers_are_taken_exactly_or_refused(numbers: list[float]) -> None:
    space = spaces.Box(-2, 2, (len(numbers),), np.float32)
    parsed = text_of(space).parse(f"<answer>{numbers}</answer>")
    expected = all(-2 <= number <= 2 for number in numbers)
    assert parsed.valid == expected
    if expected:
        assert np.array_equal(parsed.actions[0], np.array(numbers, np.float32))


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("2", 2),
        ("<answer>2</answer>", 2),
        ("<answer> [2] </answer>", 2),
        ("<answer>Action: 2.</answer>", 2),
        ("I think that 3 is bad.\nMy action: 2", 2),
        ("<think>0 or 1 or 3</think> So the best one is **2**.", 2),
        ("[2]", 2),
        ("<answer>+2</answer>", 2),
        ("<answer>002</answer>", 2),
    ],
)
def test_discrete(reply: str, action: int) -> None:
    taken = action_of(spaces.Discrete(4), reply)
    assert taken == action
    assert type(taken) is int


@pytest.mark.parametrize(
    "reply",
    [
        *(
            "4",
            "-1",
            "- 1",
            "<answer>- 1</answer>",
            "<answer>1 or 2</answer>",
            "<answer>3- 1</answer>",
            "2.5",
            "x2",
            "2x",
        ),
        *("2-3", "٢", "9" * 5_000, "<answer>two</answer>", "1e0", "<answer>1,1</answer>", "<answer>1%</answer>"),
        *("In 3 steps I win", "I take 2.", "My action: 2\nIt wins.", "The best is 1 or 2", "It takes 2 || 3 steps"),
    ],
)
def test_not_discrete(reply: str) -> None:
    assert refused(spaces.Discrete(4), reply).endswith("an action is a whole number from 0 to 3")


def test_discrete_counts_from_its_start() -> None:
    space = spaces.Discrete(3, start=-1)
    assert action_of(space, "<answer>-1</answer>") == -1
    assert "from -1 to 1" in refused(space, "2")


@pytest.mark.parametrize("text", ["- 1", "-  1", "-\n1", "0- 1", "-(1)", "-[1]", "- `1`"])
def test_sign_that_stands_apart_is_not_left_out(text: str) -> None:
    refused(spaces.Discrete(3, start=-1), f"<answer>{text}</answer>")
    refused(spaces.Box(-1, 1, (1,)), f"<answer>{text}</answer>")


@pytest.mark.parametrize("dash", "\N{MINUS SIGN}\N{EN DASH}\N{NON-BREAKING HYPHEN}\N{FULLWIDTH HYPHEN-MINUS}")
def test_any_dash_is_a_minus(dash: str) -> None:
    assert action_of(spaces.Discrete(3, start=-1), f"<answer>{dash}1</answer>") == -1
    assert action_of(spaces.Text(9, charset=f"a{dash}"), f"<answer>a{dash}a</answer>") == f"a{dash}a"


def test_strict_wants_the_number_alone() -> None:
    assert action_of(spaces.Discrete(4), "<think>x</think><answer>2</answer>", strict=True) == 2
    assert "not an action" in refused(spaces.Discrete(4), "<think>x</think><answer>go 2</answer>", strict=True)
    assert "does not begin with <think>" in refused(spaces.Discrete(4), "2", strict=True)


def test_several_actions_in_one_reply() -> None:
    parsed = text_of(spaces.Box(-1, 1, (2,))).parse("<answer>[0, 1] || 0.5 -0.5 || (1, 1)</answer>")
    assert [action.tolist() for action in parsed.actions] == [[0, 1], [0.5, -0.5], [1, 1]]
    assert len(text_of(spaces.Discrete(4), max_actions_per_turn=2).parse("1 || 2 || 3").actions) == 2


@pytest.mark.parametrize(
    "reply",
    [
        "<answer>[0.5, -1]</answer>",
        "<answer>0.5, -1</answer>",
        "<answer>.5 -1.0e0</answer>",
        "<answer>[0.5, \N{MINUS SIGN}1]</answer>",
        "<answer>**[0.5, -1]**</answer>",
        "<answer>action = [0.5, -1]</answer>",
        "<answer>At 3 m from the wall, I choose [0.5, -1].</answer>",
        "At 3 m from the wall, I choose: [0.5, -1].",
    ],
)
def test_box(reply: str) -> None:
    action = action_of(spaces.Box(-1, 1, (2,)), reply)
    assert action.tolist() == [0.5, -1]
    assert action.dtype == np.float32


@pytest.mark.parametrize(
    "reply", ["[0.5, -1.01]", "[0.5]", "[0, 0, 0]", "[nan, 0]", "[0, inf]", "[1e999, 0]", "0.5 or 1"]
)
def test_not_box(reply: str) -> None:
    reason = refused(spaces.Box(-1, 1, (2,)), f"<answer>{reply}</answer>")
    assert reason.endswith("an action is a list of 2 numbers: each from -1.0 to 1.0")


def test_one_number_needs_no_brackets() -> None:
    space = spaces.Box(-2, 2, (1,))
    assert action_of(space, "<answer>I apply a torque of -1.5 now.</answer>").tolist() == [-1.5]
    assert action_of(space, "<answer>With 3 ideas, I take [-1.5]</answer>").tolist() == [-1.5]
    assert action_of(space, "With 3 ideas, the torque is -1.5.").tolist() == [-1.5]
    assert "a number from -2.0 to 2.0" in refused(space, "<answer>2.5</answer>")
    for prose in ("I apply a torque of -1.5 now.", "With 3 ideas, I take [-1.5]", "In 1.5 s I win"):
        refused(space, prose)


@pytest.mark.parametrize(
    "text", ["0.75N", "0.5m", "force 0.9Nm", "-0.5m", "0.5-0.6", "1.5e", "1.2.3", "0." + "1" * 40, "1,1", "1%"]
)
def test_part_of_a_number_is_not_read(text: str) -> None:
    for reply in (text, f"The action is {text}", f"<answer>{text}</answer>", f"<answer>I take {text} now</answer>"):
        refused(spaces.Box(-9, 9, (1,)), reply)


@pytest.mark.parametrize("form", ["{}", "The action is {}", "The action is **{}**.", "<answer>I take {} now</answer>"])
def test_point_is_not_left_out(form: str) -> None:
    for text in (".5", "-.5", "0.5", "5e-1", "5."):
        assert action_of(spaces.Box(-9, 9, (1,)), form.format(text)).tolist() == [float(text)]


def test_number_is_not_cut_where_the_search_begins() -> None:
    for length in range(8_180, 8_200):
        refused(spaces.Discrete(4), "<answer>so 12345678" + " " + "x" * length + "</answer>")


@given(
    number=st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.decimals(-9, 9, places=3),
    suffix=st.text(st.characters(categories=["L"]), min_size=1, max_size=3),
    form=st.sampled_from(["{}", "It is {}", "<answer>{}</answer>", "<answer>so {} it is</answer>"]),
)
def test_number_with_letters_is_never_another_one(number: Any, suffix: str, form: str) -> None:
    reply = form.format(f"{number}{suffix}")
    parsed = text_of(spaces.Box(-np.inf, np.inf, (1,), np.float64)).parse(reply)
    assert not parsed.valid or parsed.actions[0] == float(number)
    parsed = text_of(spaces.Discrete(2**40, start=-(2**39))).parse(reply)
    assert not parsed.valid or parsed.actions[0] == number


def test_bounds_are_reported_so_that_they_are_inside() -> None:
    space = spaces.Box(0.1, 0.7, (1,), np.float32)
    assert "a number from 0.1 to 0.7" in text_of(space).system_prompt()
    for bound in ("0.1", "0.7"):
        action_of(space, f"<answer>{bound}</answer>")


def test_integers_do_not_wrap_around() -> None:
    space = spaces.Box(0, 255, (1,), np.uint8)
    assert action_of(space, "255").tolist() == [255]
    for reply in ("256", "-1", str(2**64), "0.5"):
        refused(space, reply)
    assert action_of(space, "7.0").tolist() == [7]
    assert action_of(spaces.Box(0, 2**64 - 1, (1,), np.uint64), str(2**64 - 1)).tolist() == [2**64 - 1]


def test_text_is_the_answer_itself() -> None:
    space = spaces.Text(20, charset="abcdefgh |")
    assert action_of(space, "<answer>a bad || cab</answer>") == "a bad || cab"
    assert "a text of 1 to 20 characters" in refused(space, "<answer>zebra</answer>")


def test_without_an_action_space_the_answer_is_the_action() -> None:
    assert action_of(None, "<think>hm</think><answer>go || north</answer>") == "go || north"
    assert "the answer is empty" in refused(None, "<answer> </answer>")


def test_parts_are_read_as_json() -> None:
    space = spaces.Dict({"move": spaces.Discrete(3), "at": spaces.Box(0, 9, (2, 2))})
    said = {"at": [[1, 2], [3, 4]], "move": 2.0}
    action = action_of(space, f"<answer>```json\n{json.dumps(said)}\n```</answer>")
    assert action["move"] == 2
    assert action["at"].tolist() == said["at"]
    prose = f"I would go on with {json.dumps(said)} for now."
    assert action_of(space, prose)["move"] == 2
    assert action_of(space, "so " * LONGEST + prose)["move"] == 2
    for wrong in (
        {"move": 1},
        {**said, "x": 1},
        {**said, "move": "1"},
        {**said, "at": [1, 2, 3, "4"]},
        said | {"at": 1},
    ):
        assert "written as JSON" in refused(space, f"<answer>{json.dumps(wrong)}</answer>")


class Unspeakable(spaces.Discrete):
    """A space of an author's own, with a fault of his own."""

    def contains(self, x: Any) -> bool:
        raise RuntimeError("the author's own mistake")


def test_space_that_raises_refuses() -> None:
    refused(Unspeakable(3), "1")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (64, 64, 3), np.uint8),
        spaces.Box(0, 1, (0,)),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]),
        spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (33,))]),
        spaces.MultiDiscrete([2] * 33),
        lambda agent: spaces.Discrete(2),
    ],
    ids=lambda space: type(space).__name__,
)
def test_action_space_that_no_model_can_write_is_refused_at_once(space: Any) -> None:
    with pytest.raises(
        UsageError, match=r"Spaced: its action space .* cannot be written as text.*EnvSpec\(text=\.\.\.\)"
    ):
        text_of(space)


# --- names of actions


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("get_action_meanings", lambda: ["LEFT", "RIGHT", "PICK_UP"]),
        ("get_action_meanings", lambda: {0: "left", 1: "right", 2: "pick_up"}),
        ("action_names", ("left", "right", "pick_up")),
        ("actions", Moves),
        ("actions", list(Moves)),
    ],
)
def test_names_that_an_env_offers_are_actions(where: str, names: Any) -> None:
    text = SpaceText(Named(where, names, spaces.Discrete(3)), TextOptions())
    assert text.parse("<answer>Pick_Up || 1 || left</answer>").actions == (2, 1, 0)
    assert text.parse("So I go right.").actions == (1,)
    assert text.parse("So I take: 1.").actions == (1,)
    assert not text.parse("So I take 1 step.").valid
    assert not text.parse("<answer>left or right</answer>").valid
    assert [text.write_action(number) for number in range(3)] == ["left", "right", "pick_up"]
    assert "An action is one of: left (or 0), right (or 1), pick_up (or 2)." in text.system_prompt()
    assert "<answer> left </answer>" in text.system_prompt()


@pytest.mark.parametrize(
    "names",
    [
        ["left", "right"],
        ["a", "a", "b"],
        ["1", "2", "3"],
        [1, 2, 3],
        {1: "a", 2: "b", 3: "c"},
        lambda: 1 / 0,
        None,
        [[]] * 3,
    ],
)
def test_names_that_do_not_fit_are_left_out(names: Any) -> None:
    where = "get_action_meanings" if callable(names) else "action_names"
    text = SpaceText(Named(where, names, spaces.Discrete(3)), TextOptions())
    assert "An action is a whole number from 0 to 2." in text.system_prompt()
    assert text.parse("1").actions == (1,)


def test_names_follow_the_start() -> None:
    text = SpaceText(Named("action_names", ["back", "on"], spaces.Discrete(2, start=5)), TextOptions())
    assert text.parse("on").actions == (6,)


class TwoActions(gym.ActionWrapper[Any, Any, Any]):
    """Gives an env another action space than its author did."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.action_space = spaces.Discrete(2)

    def action(self, action: Any) -> Any:
        return action


def test_wrapped_action_space_is_not_told_by_the_authors_words() -> None:
    text = SpaceText(TwoActions(gym.make("Taxi-v4")), TextOptions())
    assert "Pickup passenger" not in text.system_prompt()
    assert "An action is a whole number from 0 to 1." in text.system_prompt()
    assert "An observation is a whole number from 0 to 499." in text.system_prompt()


# --- observations


def described(value: Any, space: Any = None) -> str:
    shown = text_of(None, space).describe(value)
    assert isinstance(shown, str)
    return shown


@pytest.mark.parametrize(
    ("value", "space", "words"),
    [
        (np.int64(5), spaces.Discrete(16), "5 (of 0 to 15)"),
        (3, spaces.Discrete(3, start=1), "3 (of 1 to 3)"),
        (np.array([0.123456, -1234567.0, -0.0, 1.0]), spaces.Box(-9e9, 9e9, (4,)), "[0.123456, -1234567, 0, 1]"),
        (np.array([[1, 20], [300000, 4]]), spaces.Box(0, 10**6, (2, 2), np.int64), "[[1, 20],\n[300000, 4]]"),
        (np.array([1, 0], np.int8), spaces.MultiBinary(2), "[1, 0]"),
        (np.array([True, False]), None, "[1, 0]"),
        (np.array([], np.float32), None, "[]"),
        (np.array(2.5), None, "2.5"),
        ("a room", spaces.Text(20), "a room"),
        ((14, 10, 0), spaces.Tuple([spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2)]),
         "0: 14 (of 0 to 31)\n1: 10 (of 0 to 10)\n2: 0 (of 0 to 1)"),
        ({"at": np.array([[1], [2]]), "in": {"room": 3}},
         spaces.Dict({"at": spaces.MultiBinary((2, 1)), "in": spaces.Dict({"room": spaces.Discrete(4)})}),
         "at:\n[[1],\n[2]]\nin: room: 3 (of 0 to 3)"),
        ((np.array([1.0]), np.array([2.0])), spaces.Sequence(spaces.Box(0, 9, (1,))), "0: [1]\n1: [2]"),
        (spaces.GraphInstance(np.array([1]), None, None), spaces.Graph(spaces.Discrete(2), None),
         "nodes: [1]\nedges: None\nedge_links: None"),
        ([1, 2.5, np.float32(3)], None, "[1, 2.5, 3]"),
        ([], None, "nothing"),
        (["a", ("b", None)], None, "0: a\n1:\n0: b\n1: None"),
        (0.5, None, "0.5"),
        (None, None, "None"),
        (b"ab", None, "b'ab'"),
        ({"b", "a"}, None, "{'a', 'b'}"),
        (np.array([None, "a"]), None, "array([None, 'a'], dtype=object)"),
    ],
)  # fmt: skip
def test_values_in_words(value: Any, space: Any, words: str) -> None:
    assert described(value, space) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([100040, 100000], "[100040, 100000]"),
        (np.array([100040.0, 100000.0], np.float32), "[100040, 100000]"),
        ([2**63, -1, 0.5], f"[{2**63}, -1, 0.5]"),
        (np.array([2**64 - 1, 0], np.uint64), f"[{2**64 - 1}, 0]"),
        (np.float32(16777216.0), "16777216"),
        (float(2**53), str(2**53)),
        (-1e300, "-1e+300"),
        (np.array([0.1, 1 / 3, 100.04, 1e-7], np.float32), "[0.1, 0.3333333, 100.04, 1e-07]"),
        (np.array([np.nan, np.inf, -np.inf]), "[nan, inf, -inf]"),
        ({"speed": np.float64(-0.0)}, "speed: 0"),
        (np.full(300, 12345678),
         "an array of shape (300,) and type int64: least 12345678, mean 12345678, greatest 12345678"),
    ],
)  # fmt: skip
def test_whole_numbers_are_exact_and_others_have_seven_digits(value: Any, words: str) -> None:
    assert described(value) == words


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(finite, finite | st.just(0.0), st.floats(-3e-6, 3e-6))
def test_numbers_that_differ_by_more_than_a_millionth_read_differently(one: float, other: float, by: float) -> None:
    near = float(np.float32(one * (1 + by)) if abs(one) < 1e38 else one)
    for pair in ((one, other), (one, near)):
        first, second = (described(np.array([number], np.float32)) for number in pair)
        if abs(pair[0] - pair[1]) > 1e-6 * max(map(abs, pair)):
            assert first != second
        if pair[0] == pair[1]:
            assert first == second


@given(st.integers(-(2**70), 2**70), st.integers(-(2**70), 2**70))
def test_whole_numbers_read_alike_only_if_they_are_equal(one: int, other: int) -> None:
    assert (described([one, 0.5]) == described([other, 0.5])) == (one == other)
    assert described([one]) == f"[{one}]"


def test_odd_object_is_reported_without_its_address() -> None:
    assert described(object()) == "<object object>"


def test_large_arrays_are_summed_up() -> None:
    array = np.arange(1_000_000, dtype=np.float32).reshape(1000, 1000)
    assert (
        described(array) == "an array of shape (1000, 1000) and type float32: least 0, mean 499999.5, greatest 999999"
    )


@pytest.mark.parametrize(
    "value", ["x" * 1_000_000, ["word"] * 100_000, dict.fromkeys(range(1000), "x" * 1000), b"x" * 1_000_000]
)
def test_texts_are_bounded(value: Any) -> None:
    assert len(described(value)) < LONGEST + 100


def test_pictures_are_shown() -> None:
    picture = np.zeros((96, 64, 3), np.uint8)
    seen = {"camera": picture, "speed": np.array([1.5], np.float32)}
    shown = text_of(None, None).describe(seen)
    assert isinstance(shown, Observation)
    assert shown.text == "camera: a picture, 64 wide and 96 high\nspeed: [1.5]"
    assert shown.images[0] is picture
    assert shown.data is seen


@pytest.mark.parametrize(
    ("shape", "kind", "is_picture"),
    [
        ((32, 40, 3), np.uint8, True),
        ((31, 40, 3), np.uint8, False),
        ((40, 31, 3), np.uint8, False),
        ((40, 40), np.uint8, False),
        ((40, 40, 4), np.uint8, False),
        ((3, 40, 40), np.uint8, False),
        ((40, 40, 3), np.float32, False),
    ],
)
def test_pictures_are_rgb_bytes_from_32_pixels_on(shape: tuple[int, ...], kind: Any, is_picture: bool) -> None:
    values = (np.arange(np.prod(shape)) % 5).reshape(shape).astype(kind)
    shown = text_of(None, None).describe(values)
    assert isinstance(shown, Observation) is is_picture
    if not is_picture:
        assert shown == f"an array of shape {shape} and type {np.dtype(kind)}: least 0, mean 2, greatest 4"


def test_small_grids_of_bytes_are_no_pictures() -> None:
    assert described(np.ones((2, 2, 3), np.uint8)) == "[[[1, 1, 1],\n[1, 1, 1]],\n[[1, 1, 1],\n[1, 1, 1]]]"


# --- anchors

STATES: list[Any] = [
    0,
    1,
    "0",
    b"0",
    None,
    0.5,
    [],
    [0],
    [[0]],
    ["ab", "c"],
    ["a", "bc"],
    {},
    {"a": 1},
    {"a": 2},
    {"b": 1},
    {"a": {"b": 1}},
    np.zeros(2),
    np.zeros(2, np.float32),
    np.zeros((1, 2)),
    np.array([0, 1.0]),
    {"x", "y"},
    "\ud800",
]
"""All different; a child process tells their anchors again."""


def anchors() -> list[str]:
    text = text_of()
    keys = []
    for state in STATES:
        text.describe(state)
        keys.append(str(text.anchor()))
    return keys


def test_anchors_differ_as_states_do_and_are_the_same_in_every_process() -> None:
    keys = anchors()
    assert len(set(keys)) == len(STATES)
    for seed in ("1", "2"):
        code = "from tests.test_spaces import anchors; print(*anchors())"
        run = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        assert run.stdout.split() == keys


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (5, np.int64(5)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.arange(6).reshape(2, 3).T, np.ascontiguousarray(np.arange(6).reshape(2, 3).T)),
        (np.array([np.nan]), np.array([np.nan])),
        (object(), object()),
    ],
)
def test_anchors_are_of_the_content(one: Any, other: Any) -> None:
    text = text_of()
    text.describe(one)
    key = text.anchor()
    text.describe(other)
    assert text.anchor() == key
    assert hash(key) is not None


@pytest.mark.parametrize("shape", [(1024, 1024), (400, 600, 3), (2**20,)])
def test_anchor_of_a_large_array_is_that_of_a_sample(shape: tuple[int, ...]) -> None:
    text = text_of()
    array = np.zeros(shape, np.uint8)
    text.describe(array)
    before = text.anchor()
    for place in range(shape[-1] if len(shape) > 1 else 0):  # a column, or a channel
        changed = array.copy()
        changed[..., place] = 1
        text.describe(changed)
        assert text.anchor() != before
    text.describe(np.asfortranarray(array))
    assert text.anchor() == before
    for other in (array.astype(np.int8), array.reshape(2, -1)):
        text.describe(other)
        assert text.anchor() != before


def test_anchor_of_a_large_array_does_not_read_all_of_it() -> None:
    text = text_of()
    array = np.zeros((1000, 1000), np.float32)
    missed = 0
    text.describe(array)
    before = text.anchor()
    for place in range(100):
        array[0, place] = 1
        text.describe(array)
        missed += text.anchor() == before
        array[0, place] = 0
    assert 90 < missed < 100


# --- real envs


@pytest.mark.parametrize("gym_id", IDS)
def test_gymnasium_envs_are_explained(gym_id: str) -> None:
    text = SpaceText(gym.make(gym_id), TextOptions(max_actions_per_turn=1))
    prompt = text.system_prompt()
    assert prompt.startswith(f"You are playing {gym_id}.")
    assert "Action Space\n" in prompt
    assert "Version History" not in prompt
    assert "gymnasium.make" not in prompt
    assert len(prompt) < 6_000
    example = prompt[prompt.rindex("<think>") :]
    assert text.parse(example).valid


@pytest.mark.parametrize("gym_id", IDS)
def test_gymnasium_envs_are_played_by_text(gym_id: str) -> None:
    env = hosted(gym_id)
    raw = gym.make(gym_id)
    raw.action_space.seed(3)
    tell = SpaceText(raw, TextOptions()).write_action
    shown = run_now(env.reset(3, None))
    expected, _ = raw.reset(seed=3)
    assert "system_prompt" in shown[4]
    for _ in range(30):
        assert np.array_equal(shown[0].data, expected)
        assert shown[0].text
        action = raw.action_space.sample()
        shown = run_now(env.step(f"<think>hm</think><answer>{tell(action)}</answer>"))
        expected, reward, terminated, truncated, _ = raw.step(action)
        assert shown[1:4] == (float(reward), bool(terminated), bool(truncated))
        assert shown[4]["action_is_valid"]
        if terminated or truncated:
            break


def test_gymnasium_envs_report_no_success_and_an_invalid_reply_is_none() -> None:
    env = hosted("CartPole-v1")
    assert "success" not in run_now(env.reset(3, None))[4]
    assert "success" not in run_now(env.step("<answer>1</answer>"))[4]
    assert run_now(env.step("<answer>fly</answer>"))[4]["success"] is False
    assert "success" not in run_now(env.step("<answer>0</answer>"))[4]


def hosted(gym_id: str) -> EnvRunner:
    spec = EnvSpec(
        name=gym_id, factory=make_gymnasium, kwargs={"id": gym_id}, text="asyncrollout.text.spaces:SpaceText"
    )
    return EnvRunner(OpenRequest(spec, text=True, expert=False, options=TextOptions()))


@pytest.mark.asyncio(loop_factories=["uvloop"])  # the loop is a matter of the pool
@pytest.mark.parametrize("gym_id", ["CartPole-v1", "Pendulum-v1"])
async def test_gymnasium_envs_keep_the_contract_as_text(gym_id: str) -> None:
    replies = ["<answer>1</answer>", "I do not know.", "<think>so</think><answer>0 || 1</answer>"] * 3
    report = await check_env(f"gymnasium:{gym_id}", text=True, actions=replies)
    assert "anchor() is hashable, and equal in equal states" in report.checked


def test_invalid_reply_leaves_the_env_where_it_was() -> None:
    env = hosted("CartPole-v1")
    begun = run_now(env.reset(1, None))
    after = run_now(env.step("I do not know."))
    assert outcome_digest(begun[:1]) == outcome_digest(after[:1])
    assert "an action is a whole number from 0 to 1" in after[4]["invalid_reason"]


def test_env_without_spaces_is_played_by_text() -> None:
    spec = EnvSpec(name="plain", factory=Plain, text="asyncrollout.text.spaces:SpaceText")
    env = EnvRunner(OpenRequest(spec, text=True, expert=False, options=TextOptions()))
    shown = run_now(env.reset(1, None))
    assert shown[0].text == "seed: 1\nsaid: nothing"
    prompt = shown[4]["system_prompt"]
    assert prompt.startswith("You are playing Plain.\n\nGo on until you are told to stop.")
    assert "An action is a text." in prompt
    assert "up to" not in prompt
    over = run_now(env.step("<think>enough</think><answer>stop</answer>"))
    assert over[0].text == "said: 0: stop"
    assert over[2]


def test_long_documentation_is_cut_at_a_line() -> None:
    class Wordy(Plain):
        __doc__ = "First.\n\n" + "\n".join(f"line {number}" for number in range(1_000))

    prompt = SpaceText(Wordy(), TextOptions()).system_prompt()
    assert len(prompt) < 2_500
    assert prompt.split("\n...\n")[0].splitlines()[-1].startswith("line 1")


def test_gymnasium_is_not_imported_for_it() -> None:
    code = "import sys, asyncrollout.text.spaces; print('gymnasium' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
