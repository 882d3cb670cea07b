"""Splits: what a seed plays, that no two splits share it, and that evaluations play the test split."""

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncrollout as ar
from asyncrollout.cli.app import main
from asyncrollout.journal.events import AnyEvent, Began, Evaluating, encode
from asyncrollout.journal.records import RunRecords
from asyncrollout.pool.wire.digest import digest
from asyncrollout.registry import env_names, find_env, load_factory
from asyncrollout.rollouts.sampling.env_seeds import EnvSeeds, training_seeds
from asyncrollout.rollouts.sampling.task_source import GroupRequest
from asyncrollout.seeding import evaluation_seed, sampling_seed, training_seed
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


async def test_a_mixture_plays_a_split_for_each_tag() -> None:
    mixture = [{"env": WITH, "tag": "a"}, {"env": WITH, "tag": "b"}, {"env": WITHOUT, "tag": "c"}]
    assert await splits_shown(mixture, tasks=6, split={"a": "val", "b": None}) == {"val", "train", "none"}
    assert await splits_shown(mixture, tasks=6, split={"a": "val"}) == {"val", "test", "none"}
    assert await splits_shown(mixture, tasks=6, split="val") == {"val", "none"}


@pytest.mark.parametrize(
    ("split", "error"),
    [
        ({"alpha": "val"}, "split: no env has the tag 'alpha'"),
        ({"a": "vall"}, "env 'mirror' has no split='vall': did you mean 'val'"),
        ({"b": "val"}, "split='val': env 'plain' has no splits"),
    ],
)
async def test_a_split_that_no_env_has_is_named(split: dict[str, str], error: str) -> None:
    with pytest.raises(ar.UsageError, match=error):
        await shown([{"env": WITH, "tag": "a"}, {"env": WITHOUT, "tag": "b"}], split=split)


async def test_a_split_for_an_env_without_any_is_an_error() -> None:
    with pytest.raises(ar.UsageError, match="split='val': env 'plain' has no splits"):
        await shown(WITHOUT, split="val")


CONFIG = """
name: mix
evaluate: 4
policy: solver
env:
- {env: metamathqa, tag: math, eval: {split: val}}
- {env: countdown, tag: numbers}
"""


def test_each_env_of_a_file_says_what_an_evaluation_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mix.yaml").write_text(CONFIG)
    assert main(["eval", str(tmp_path / "mix.yaml"), "--runs", str(tmp_path)]) == 0
    assert "math val, numbers test" in capsys.readouterr().out
    for uid, split in (("eval0-g0.0", "val"), ("eval0-g1.0", "test")):
        records = RunRecords(tmp_path / "mix")
        assert records.added_kwargs(records.find(uid)) == {"split": split}
        assert main(["replay", str(tmp_path / "mix"), uid]) == 0


@pytest.mark.parametrize(
    ("text", "overrides", "flags", "split"),
    [
        ("env: metamathqa", (), (), "test"),
        ("env: metamathqa", ("env.eval.split=val",), (), "val"),
        ("env: metamathqa\nenv.eval.split: val", (), (), "val"),
        ("env: {env: metamathqa, eval: {split: val}}", (), (), "val"),
        ("env: {env: metamathqa}", (), ("--split", "train"), "train"),
        ("env: [{env: metamathqa, eval: {split: val}}]", (), ("--split", "train"), "train"),
        ("env: metamathqa", (), ("--split", "val"), "val"),
        ("env: metamathqa\nenv_kwargs: {split: val}", ("env.eval.split=null",), (), ""),
    ],
)
def test_one_env_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, overrides: Any, flags: Any, split: str
) -> None:
    (tmp_path / "one.yaml").write_text(f"{text}\npolicy: solver")
    options = ["-n", "2", "--runs", str(tmp_path), "--json", *flags]
    assert main(["eval", str(tmp_path / "one.yaml"), *overrides, *options]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["split"] == split


async def drawn_rows(env: Any, groups: int, **options: Any) -> list[tuple[str, int]]:
    """The tag and the env's seed of each group of training."""
    agent = ar.ChatAgent(ar.ScriptedPolicy(lambda request: "<answer>1</answer>"))
    async with ar.Rollouts(env, agent=agent, group_size=1, limits=ar.Limits(turns=1), **options) as rollouts:
        batch = await rollouts.collect(groups=groups)
    return [(group.tag, group.trajectories[0].seed) for group in batch.groups]


def rows_of(env: Any, seeds: Sequence[int], shown: str) -> list[int]:
    rows = []
    for seed in seeds:
        env.reset(seed=seed)
        rows.append(getattr(env, shown))
    return rows


@pytest.mark.parametrize("workers", [None, 2])
async def test_training_plays_each_row_once_per_pass(workers: int | None) -> None:
    env = MetaMathQA(split="train")
    count = env.get_split_size("train")
    seeds = [seed for _, seed in await drawn_rows("metamathqa", 2 * count, seed=3, workers=workers)]
    assert len({*seeds}) == 2 * count  # the next pass has new seeds
    for one_pass in (seeds[:count], seeds[count:]):
        assert sorted(rows_of(env, one_pass, "row")) == [*range(count)]
    other = [seed for _, seed in await drawn_rows("metamathqa", count, seed=4, workers=workers)]
    assert rows_of(env, other, "row") != rows_of(env, seeds[:count], "row")


async def test_each_env_of_a_mixture_plays_its_own_rows() -> None:
    mixture: list[Any] = [{"env": "metamathqa", "tag": "math", "share": 2}, {"env": "bandit", "tag": "arms"}]
    drawn = await drawn_rows(mixture, 240)
    env = MetaMathQA(split="train")
    math = [seed for tag, seed in drawn if tag == "math"]
    assert len(math) == env.get_split_size("train") == 160
    assert len({*rows_of(env, math, "row")}) == 160


async def test_a_resumed_run_goes_through_the_rows_it_has_left(tmp_path: Path) -> None:
    env = MetaMathQA(split="train")
    count = env.get_split_size("train")
    agent = ar.ChatAgent(ar.ScriptedPolicy(lambda request: "<answer>1</answer>"))
    options: dict[str, Any] = {"group_size": 1, "limits": ar.Limits(turns=1), "run_dir": tmp_path / "run", "max_lag": 0}
    seeds = []
    for resume in (False, True, True, True):
        async with ar.Rollouts("metamathqa", agent=agent, resume=resume, **options) as rollouts:
            batch = await rollouts.collect(groups=count // 4)
            seeds += [group.trajectories[0].seed for group in batch.groups]
    assert sorted(rows_of(env, seeds, "row")) == [*range(count)]


@given(st.integers(0, 2**64), st.text(max_size=5), st.integers(0, 2**28), st.integers(0, 2**28))
def test_training_never_plays_the_seeds_of_evaluations(seed: int, tag: str, trained: int, evaluated: int) -> None:
    assert 0 <= evaluation_seed(seed, evaluated) < 2**30 <= training_seed(seed, tag, trained) < 2**31


def draws_of(seeds: EnvSeeds, tags: Sequence[str], first: int = 0) -> list[GroupRequest]:
    return [
        GroupRequest(index, f"g{index}", seeds.draw(index, tag, None), None, tag)
        for index, tag in enumerate(tags, first)
    ]


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=30), st.data())
def test_no_seed_is_drawn_twice_though_groups_get_other_tags_after_a_resume(tags: list[str], data: Any) -> None:
    """As with `shares="delivered"`: draws that were not recorded may go to another env than before."""
    drawn = draws_of(training_seeds(1), tags)
    recorded = data.draw(st.lists(st.sampled_from(drawn), unique=True))
    left = [draw.index for draw in drawn if draw not in recorded]
    again = training_seeds(1)
    again.remember(recorded)
    new = [(tag, again.draw(index, tag, None)) for index in left if (tag := data.draw(st.sampled_from("ab")))]
    every = [*new, *((draw.tag, draw.seed) for draw in recorded)]
    assert len({*every}) == len(every)


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=30), st.data())
def test_draws_that_were_not_recorded_get_the_same_seeds_again(tags: list[str], data: Any) -> None:
    drawn = draws_of(training_seeds(1), tags)
    recorded = data.draw(st.lists(st.sampled_from(drawn), unique=True))
    again = training_seeds(1)
    again.remember(recorded)
    kept = {draw.index: draw for draw in recorded}
    assert [again.draw(draw.index, draw.tag, kept.get(draw.index)) for draw in drawn] == [one.seed for one in drawn]


async def test_an_interrupted_evaluation_of_an_older_version_continues_as_it_was(tmp_path: Path) -> None:
    """It played the env's own split, with seeds at random; so do its last tasks."""
    run = tmp_path / "run"
    began = {"seed": 0, "group_size": 8, "order": "finish", "agent": "ChatAgent"}
    what = digest([[None] * 2, 1, 5, 0, {}])
    lines: list[AnyEvent] = [Began(given=began), Evaluating(name="eval0", what=what, tasks=2, k=1)]
    run.mkdir()
    (run / "journal.jsonl").write_bytes(b"".join(map(encode, lines)).replace(b',"seeds":"spread"', b""))
    agent = ar.ChatAgent(ar.ScriptedPolicy(lambda request: "go"))
    async with ar.Rollouts(WITH, agent=agent, run_dir=run, resume=True) as rollouts:
        found = await rollouts.evaluate(2, seed=5)
        later = await rollouts.evaluate(2, seed=6)
    base = sampling_seed(5, "evaluation")
    assert [one.uid.partition("-")[0] for one in found.trajectories] == ["eval0"] * 2
    expected = [f"train {sampling_seed(base, 'env', index)}" for index in range(2)]
    assert [str(one.turns[0].seen.text) for one in found.trajectories] == expected
    assert {str(one.turns[0].seen.text).split()[0] for one in later.trajectories} == {"test"}
