"""What every shipped text env keeps to: the contract, on every backend; its expert wins; no reply upsets it."""

import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrollout import (
    EnvPool,
    Observation,
    Outcome,
    Parsed,
    TextOptions,
    UsageError,
    create_projection_function,
    env_names,
    find_env,
)
from asyncrollout.registry import load_factory
from asyncrollout.testing import check_env
from asyncrollout.testing.text import HOSTILE, hostile_forms
from tests.shipped import BY_CHANCE, ELSEWHERE, FORMS, SHARING

NAMES = sorted({name for name, _ in FORMS.values()})
FIRST_FORMS = {name: form for form, (name, _) in reversed(FORMS.items())}
TASKS = 200
FEWER_TASKS = 50


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> tuple[str, Mapping[str, Any]]:
    return FORMS[request.param]


def test_every_shipped_env_is_tested_here() -> None:
    shipped = [name for name in env_names() if str(find_env(name).factory).startswith("asyncrollout_envs")]
    assert shipped == sorted([*NAMES, *ELSEWHERE])


def thinned(form: str) -> Any:
    """A form of an env; its second form runs in `make test-all`."""
    return form if form in FIRST_FORMS.values() else pytest.param(form, marks=pytest.mark.extended)


@pytest.mark.parametrize("form", [thinned(form) for form in FORMS])
async def test_contract(form: str) -> None:
    name, kwargs = FORMS[form]
    report = await check_env(name, **kwargs)
    assert "parse() never raises" in report.checked


async def play_expert(pool: EnvPool, name: str, seed: int, **kwargs: Any) -> list[Outcome]:
    async with pool.open(name, expert=True, **kwargs) as env:
        outcomes = [await env.reset(seed=seed)]
        while not outcomes[-1].done:
            outcomes.append(await env.step(outcomes[-1].info["expert"]))
        return outcomes


@pytest.mark.parametrize("tasks", [FEWER_TASKS, pytest.param(TASKS, marks=pytest.mark.extended)])
@pytest.mark.parametrize("form", [form for form in FORMS if form not in BY_CHANCE])
async def test_expert_wins(form: str, tasks: int) -> None:
    name, kwargs = FORMS[form]
    async with EnvPool(backend="inline") as pool, pool.open(name, expert=True, **kwargs) as env:
        won = 0
        for seed in range(tasks):
            outcome = await env.reset(seed=seed)
            while not outcome.done:
                outcome = await env.step(outcome.info["expert"])
            won += outcome.info["success"]
    assert won >= 0.99 * tasks


async def test_outcomes_tell_all(form: tuple[str, Mapping[str, Any]]) -> None:
    name, kwargs = form
    async with EnvPool(backend="inline") as pool:
        first, *steps = await play_expert(pool, name, 3, **kwargs)
        assert isinstance(first.observation, Observation)
        assert first.observation.text.strip()
        assert "<answer>" in first.info["system_prompt"]
        for step in steps:
            assert {"action_is_valid", "action_is_effective", "success"} <= step.info.keys()
            assert all(type(step.info[key]) is bool for key in ("action_is_valid", "action_is_effective", "success"))
            assert math.isfinite(step.reward)
            assert step.observation.anchor is not None


async def test_invalid_reply_costs_the_penalty_and_nothing_else(form: tuple[str, Mapping[str, Any]]) -> None:
    name, kwargs = form
    async with EnvPool(backend="inline") as pool, pool.open(name, format_penalty=-0.5, **kwargs) as env:
        first = await env.reset(seed=3)
        then = await env.step("<think>all of it</think>")
        assert then.reward == -0.5
        assert then.observation.text == first.observation.text
        assert then.observation.anchor == first.observation.anchor
        assert not then.done
        assert [then.info[key] for key in ("action_is_valid", "action_is_effective", "success")] == [False] * 3


@pytest.mark.parametrize("form", [form for form in FORMS if form not in SHARING])
async def test_splits_share_no_episode(form: str) -> None:
    name, kwargs = FORMS[form]
    async with EnvPool(backend="inline") as pool:
        starts: dict[str, set[str]] = {}
        for split in ("train", "val", "test"):
            async with pool.open(name, split=split, **kwargs) as env:
                starts[split] = {(await env.reset(seed=seed)).observation.text for seed in range(TASKS)}
    assert not starts["train"] & starts["val"]
    assert not starts["train"] & starts["test"]
    assert not starts["val"] & starts["test"]


async def test_different_seeds_differ(form: tuple[str, Mapping[str, Any]]) -> None:
    name, kwargs = form
    async with EnvPool(backend="inline") as pool, pool.open(name, **kwargs) as env:
        assert len({(await env.reset(seed=seed)).observation.text for seed in range(20)}) > 1


async def test_history_of_actions_is_reported_and_bounded(form: tuple[str, Mapping[str, Any]]) -> None:
    name, kwargs = form
    async with EnvPool(backend="inline") as pool:
        outcomes = await play_expert(pool, name, 3, action_history=2, max_actions_per_turn=1, **kwargs)
        plain = await play_expert(pool, name, 3, max_actions_per_turn=1, **kwargs)
    assert "Your last actions" not in outcomes[0].observation.text
    for at, (reported, without) in enumerate(zip(outcomes[1:], plain[1:], strict=True), start=1):
        before, _, history = reported.observation.text.rpartition("\nYour last actions: ")
        assert before == without.observation.text
        assert history
        if name in ("sokoban", "frozen_lake"):
            assert len(history.split(", ")) == min(at, 2)


async def test_unknown_keyword_is_named(form: tuple[str, Mapping[str, Any]]) -> None:
    name, kwargs = form
    async with EnvPool(backend="inline") as pool:
        with pytest.raises(UsageError, match="no_such_key"):
            await pool.open(name, no_such_key=1, **kwargs)
        with pytest.raises(UsageError, match=r"split='dev'.*train, val, test"):
            await pool.open(name, split="dev", **kwargs)


def test_hash_seed_changes_nothing() -> None:
    command = [sys.executable, "-m", "tests.scripts.transcripts"]
    scripts = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    first, second = [script.communicate()[0] for script in scripts]
    assert [script.returncode for script in scripts] == [0, 0]
    assert first.count("\n") == len(FORMS)
    assert first == second


WORDS = ["up", "right", "1", "2", "9" * 30, "phoenix", "search[", "click[buy now]", "\\frac{", *"()+*/-.=,$%]", "||"]
PIECES = ["<think>", "</think>", "<answer>", "</answer>", "<action>", "</action>", "\n", " ", *WORDS]
replies = st.one_of(st.text(), st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4))).map("".join))


@cache
def parts(name: str) -> tuple[Callable[..., Any], Any]:
    """An env's factory and its text interface; hundreds of examples ask for the same few."""
    spec = find_env(name)
    return load_factory(spec.factory), load_factory(spec.text_interface)


projection = cache(create_projection_function)


@pytest.mark.parametrize("name", NAMES)
@given(reply=replies, strict=st.booleans())
@settings(max_examples=200)
def test_no_reply_upsets_a_projection(name: str, reply: str, strict: bool) -> None:
    (action,), (valid,) = projection(name, strict=strict)([reply])
    if not valid:
        assert action == parts(name)[1].default_action


@pytest.mark.parametrize("name", NAMES)
def test_no_hostile_answer_upsets_an_env(name: str) -> None:
    make, interface = parts(name)
    env = make()
    try:
        text = interface(env, TextOptions())
        env.reset(seed=1)
        for hostile in (*HOSTILE, *hostile_forms(text.solve())):
            for reply in (hostile, f"<answer>{hostile}</answer>"):
                for action in text.parse(reply).actions[:1]:
                    env.reset(seed=1)
                    assert math.isfinite(env.step(action)[1])
    finally:
        if hasattr(env, "close"):
            env.close()


@pytest.mark.parametrize("name", NAMES)
@given(reply=replies)
@settings(max_examples=100)
def test_no_valid_reply_upsets_an_env(name: str, reply: str) -> None:
    make, interface = parts(name)
    env = make()
    try:
        text = interface(env, TextOptions())
        env.reset(seed=1)
        for answer in (reply, f"<answer>{reply}</answer>"):
            parsed: Parsed = text.parse(answer)
            for action in parsed.actions[:1]:
                env.reset(seed=1)
                observation, reward, *_ = env.step(action)
                text.describe(observation)
                assert math.isfinite(reward)
    finally:
        if hasattr(env, "close"):
            env.close()
