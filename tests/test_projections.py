"""Projections without an env: every shipped env has one, and none is taken in."""

from typing import Any

import pytest

from asyncrollout import UsageError, create_projection_function, register_env, registry
from tests.envs.rollout import Walk, WalkText


def test_projections_alone() -> None:
    project = create_projection_function("sokoban")
    assert project(["<action>up</action>", "<action>down</action>"]) == ([1, 2], [True, True])
    assert project(["<answer>left || up</answer>", "jump"]) == ([3, 1], [True, False])
    assert project([]) == ([], [])


def test_projections_of_several_actions() -> None:
    project = create_projection_function("sokoban", multi=True)
    assert project(["<answer>left || up</answer>", "jump"]) == ([[3, 1], [1]], [True, False])


def test_projections_may_be_strict() -> None:
    project = create_projection_function("frozen_lake", strict=True)
    assert project(["<answer>left</answer>", "<think></think><answer>down</answer>"]) == ([1, 2], [False, True])


@pytest.mark.parametrize(
    ("env", "reply", "action"),
    [
        ("sokoban", "<answer>right</answer>", 4),
        ("frozen_lake", "<answer>right</answer>", 3),
        ("bandit", "<answer>2</answer>", 2),
        ("bandit", "I choose the dragon.", "dragon"),
        ("countdown", "<think>1+1</think><answer>(1 + 2) * 3</answer>", "(1 + 2) * 3"),
        ("metamathqa", "<answer>1,000</answer>", "1,000"),
        ("webshop", "<action>search[red shoes]</action>", "search[red shoes]"),
        ("webshop", "<answer>buy now</answer>", "click[buy now]"),
        ("generic", "<action>wave</action>", "wave"),
    ],
)
def test_every_env_has_one(env: str, reply: str, action: Any) -> None:
    assert create_projection_function(env)([reply]) == ([action], [True])


@pytest.mark.parametrize(
    ("env", "action"),
    [
        *((env, 1) for env in ("sokoban", "frozen_lake", "bandit", "household")),
        ("webshop", "click[back to search]"),
        *((env, "") for env in ("countdown", "metamathqa", "reasoning_gym", "video", "generic")),
    ],
)
def test_invalid_reply_becomes_the_documented_default(env: str, action: Any) -> None:
    assert create_projection_function(env)(["<think>nothing comes to mind</think>"]) == ([action], [False])


@pytest.mark.parametrize(
    ("env", "reply"),
    [
        ("sokoban", "jump"),
        ("sokoban", "<think>up</think>"),
        ("frozen_lake", "go upright"),
        ("bandit", "<answer>dragonfly</answer>"),
        ("countdown", "<think>1 + 2</think> I do not know"),
        ("webshop", "I will buy"),
        ("generic", "wave"),
    ],
)
def test_traps(env: str, reply: str) -> None:
    assert create_projection_function(env)([reply])[1] == [False]


def test_unknown_option_of_a_projection() -> None:
    with pytest.raises(UsageError, match=r"stric.*did you mean 'strict'"):
        create_projection_function("sokoban", stric=True)


def test_wrong_option_of_a_projection() -> None:
    with pytest.raises(UsageError, match="max_actions_per_turn"):
        create_projection_function("sokoban", max_actions_per_turn=0)
    with pytest.raises(UsageError, match="format_penalty=nan"):
        create_projection_function("sokoban", format_penalty=float("nan"))


def test_unknown_env_of_a_projection() -> None:
    with pytest.raises(UsageError, match="did you mean 'sokoban'"):
        create_projection_function("sokobam")


def test_env_without_a_projection() -> None:
    with pytest.raises(UsageError, match="'gymnasium:CartPole-v1' has no projection"):
        create_projection_function("gymnasium:CartPole-v1")


def test_env_without_a_projection_is_not_suggested_in_place_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register_env("walk", Walk, text=WalkText)
    with pytest.raises(UsageError, match=r"'walk' has no projection: add a static method [^:]*$"):
        create_projection_function("walk")


def test_one_string_is_no_list_of_replies() -> None:
    for wrong in ("up", [None], ["up", 3]):
        with pytest.raises(UsageError, match="takes a list of texts"):
            create_projection_function("sokoban")(wrong)  # type: ignore[arg-type]
