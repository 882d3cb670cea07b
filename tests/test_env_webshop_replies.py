"""What replies are read as."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import TextOptions
from asyncrollout_envs.webshop import WebShopText

LENIENT = TextOptions()
STRICT = TextOptions(strict=True)


@pytest.mark.parametrize(
    ("reply", "actions"),
    [
        ("<think>hm</think><answer>search[red shoes]</answer>", ["search[red shoes]"]),
        ("<action>\n  Click[Buy Now]\n</action>", ["click[buy now]"]),
        ("<answer>search [ red\n shoes ]</answer>", ["search[red shoes]"]),
        ("<answer>click[size [xl] (wide)]</answer>", ["click[size [xl] (wide)]"]),
        ("<answer>search[a] || click[b0] || buy now</answer>", ["search[a]", "click[b0]", "click[buy now]"]),
        ("<answer>buy</answer>", ["click[buy now]"]),
        ("<answer>Buy  Now</answer>", ["click[buy now]"]),
        ("<answer>back</answer>", ["click[back to search]"]),
        ("<answer>back to search</answer>", ["click[back to search]"]),
        ("<answer>next</answer>", ["click[next >]"]),
        ("<answer>next ></answer>", ["click[next >]"]),
        ("<answer>prev</answer>", ["click[< prev]"]),
        ("<answer>< prev</answer>", ["click[< prev]"]),
        ("<answer>My action: search[red shoes]</answer>", ["search[red shoes]"]),
        ("search[red shoes]", ["search[red shoes]"]),
        ("I will click[red]. Yes, Click[ Red ].", ["click[red]"]),
        ("search[red shoes] || click[b0]", ["search[red shoes]", "click[b0]"]),
        ("<think>click[a]</think> I will search[b] now", ["search[b]"]),
    ],
)
def test_replies_are_read(reply: str, actions: list[str]) -> None:
    parsed = WebShopText.project(reply, LENIENT)
    assert (list(parsed.actions), parsed.valid) == (actions, True)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I will buy",
        "I will buy now.",
        "go back",
        "<think>click[a]</think>",
        "<answer>red shoes</answer>",
        "<answer>search[]</answer>",
        "<answer>click[ ]</answer>",
        "<answer>research[red shoes]</answer>",
        "<answer>search[a] then click[b]</answer>",
        "<answer>I want to buy</answer>",
        "<answer>search[a] || nonsense</answer>",
        "research[red shoes]",
        "click[buy",
        "First search[a], no: I will click[red].",
        "I would search[red shoes] and then click[buy now]",
        "search[shoes] is done. Not ready to click[buy now] yet.",
        "I could search[red shoes] || click[b0] at last",
        "I click[red], not click[size [xl]]",
        "<answer>click[red], not click[size [xl]]</answer>",
    ],
)
def test_replies_that_mean_nothing_are_invalid(reply: str) -> None:
    parsed = WebShopText.project(reply, LENIENT)
    assert (list(parsed.actions), parsed.valid) == ([], False)
    assert parsed.reason


def test_strict_replies_are_actions_and_nothing_else() -> None:
    good = "<think>a</think><answer>click[red]</answer>"
    assert list(WebShopText.project(good, STRICT).actions) == ["click[red]"]
    for bad in ("click[red]", "<answer>click[red]</answer>", good.replace("click", "I click")):
        assert not WebShopText.project(bad, STRICT).valid


@given(st.text(alphabet=st.sampled_from("searchlick[]<>|/ \nabuyw\ud800"), max_size=80))
def test_reading_never_fails(reply: str) -> None:
    for tagged in (reply, f"<answer>{reply}</answer>"):
        for options in (LENIENT, STRICT):
            parsed = WebShopText.project(tagged, options)
            assert parsed.valid == bool(parsed.actions) != bool(parsed.reason)
            assert all(WebShopText.project(f"<answer>{one}</answer>", LENIENT).valid for one in parsed.actions)
