"""Splits: what a seed plays, that no two splits share it, and that evaluations play the test split."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncrollout as ar
from asyncrollout.cli.app import main
from asyncrollout.registry import env_names, find_env, load_factory
from asyncrollout.splits import PARTS, SPLITS, Split, row_of, split_seed
from asyncrollout_envs.countdown import Countdown
from asyncrollout_envs.metamathqa import MetaMathQA
from asyncrollout_envs.webshop import WebShop

NAMES: tuple[Split, ...] = ("train", "val", "test")


@given(st.integers(1, 500), st.integers(0, 2**40))
def test_as_many_seeds_as_rows_play_each_row_once(count: int, first: int) -> None:
    assert sorted(row_of(seed, count) for seed in range(first, first + count)) == [*range(count)]


def test_rows_come_in_another_order_than_in_the_file() -> None:
    assert [row_of(seed, 100) for seed in range(100)] != [*range(100)]


@given(st.lists(st.integers(0, 10**9), unique=True, max_size=50))
def test_seeds_of_splits_are_their_own(seeds: list[int]) -> None:
    made = {split_seed(seed, split) for seed in seeds for split in NAMES}
    assert len(made) == len(seeds) * len(SPLITS)
    assert all(PARTS[split_seed(seed, split) % len(PARTS)] == split for seed in seeds for split in NAMES)


@pytest.mark.parametrize("split", SPLITS)
def test_envs_with_rows_play_all_of_them(split: Any, tmp_path: Path) -> None:
    path = tmp_path / "puzzles.json"
    path.write_text(json.dumps([{"target": number, "nums": [number, 1, 1]} for number in range(1, 201)]))
    envs: list[Any] = [
        MetaMathQA(split=split),
        Countdown(split=split, data_path=path),
        WebShop(split=split),
    ]
    for env, shown in zip(envs, ("row", "puzzle", "_goal_index"), strict=True):
        rows = env.get_split_size(split)
        played = set()
        for seed in range(min(rows, 600)):
            env.reset(seed=seed)
            played.add(getattr(env, shown))
        assert len(played) == min(rows, 600)


def test_every_shipped_env_that_takes_a_split_says_so() -> None:
    takes = {}
    for name in env_names():
        spec = find_env(name)
        if isinstance(spec.factory, str) and spec.factory.startswith("asyncrollout_envs"):
            factory: Any = load_factory(spec.factory)
            takes[name] = "split" in inspect.signature(factory).parameters, spec.splits == SPLITS
    assert len(takes) > 10
    assert {name for name, (has, says) in takes.items() if has != says} == set()


class Mirror:
    """Shows which split it plays."""

    def __init__(self, split: str = "train") -> None:
        self.split = split

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return f"{self.split} {seed}", {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", 1.0, True, False, {}


class MirrorText:
    def __init__(self, env: Mirror, options: ar.TextOptions) -> None:
        pass

    def parse(self, reply: str) -> ar.Parsed:
        return ar.Parsed((reply,))

    def describe(self, observation: str) -> str:
        return observation

    def system_prompt(self) -> str:
        return ""


class Plain(Mirror):
    def __init__(self) -> None:
        super().__init__("none")


WITH = ar.EnvSpec("mirror", Mirror, text=MirrorText, runs="light", splits=SPLITS)
WITHOUT = ar.EnvSpec("plain", Plain, text=MirrorText, runs="light")


async def shown(env: Any, tasks: int = 2, **options: Any) -> list[str]:
    agent = ar.ChatAgent(ar.ScriptedPolicy(lambda request: "go"))
    own = {} if isinstance(env, list) else {"env_kwargs": options.pop("own", {})}
    async with ar.EnvPool(backend="inline") as pool, ar.Rollouts(env, agent=agent, pool=pool, **own) as rollouts:
        found = await rollouts.evaluate(tasks, **options)
    return [str(one.turns[0].seen.text) for one in found.trajectories]


async def splits_shown(env: Any, **options: Any) -> set[str]:
    return {text.split()[0] for text in await shown(env, **options)}


async def test_evaluations_play_the_test_split() -> None:
    assert await splits_shown(WITH) == {"test"}
    assert await splits_shown(WITH, own={"split": "train"}) == {"test"}


async def test_split_of_an_evaluation_is_chosen() -> None:
    assert await splits_shown(WITH, split="val") == {"val"}
    assert await splits_shown(WITH, env_kwargs={"split": "train"}) == {"train"}
    assert await splits_shown(WITH, split=None, own={"split": "val"}) == {"val"}
    with pytest.raises(ar.UsageError, match=r"env 'mirror' has no split='tests': did you mean 'test'"):
        await shown(WITH, split="tests")


async def test_env_without_splits_is_left_alone() -> None:
    assert await splits_shown(WITHOUT) == {"none"}
    assert await splits_shown([{"env": WITH, "tag": "a"}, {"env": WITHOUT, "tag": "b"}], tasks=4) == {"test", "none"}


async def test_seeds_of_an_evaluation_follow_one_another_in_each_env() -> None:
    texts = await shown([{"env": WITH, "tag": "a"}, {"env": WITHOUT, "tag": "b"}], tasks=20)
    for split in ("test", "none"):
        seeds = sorted(int(text.split()[1]) for text in texts if text.startswith(split))
        assert seeds == [*range(seeds[0], seeds[0] + 10)]


async def test_an_evaluation_plays_as_many_rows_as_it_has_tasks() -> None:
    assert len({*await shown("metamathqa", tasks=20)}) == 20


def test_the_table_of_an_evaluation_says_the_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["eval", "--env", "metamathqa", "--policy", "solver", "-n", "3", "--runs", str(tmp_path)]
    for more, split in (([], "test"), (["--split", "val"], "val"), (["--env.split", "train"], "train")):
        assert main([*base, "--name", split, *more]) == 0
        assert [line.split() for line in capsys.readouterr().out.splitlines() if "split " in line] == [["split", split]]


def test_a_rollout_of_an_evaluation_is_replayed_in_its_split(tmp_path: Path) -> None:
    run = ["eval", "--env", "countdown", "--policy", "solver", "-n", "2", "--runs", str(tmp_path), "--name", "e"]
    assert main(run) == 0
    assert main(["replay", str(tmp_path / "e"), "eval0-g0.0"]) == 0
