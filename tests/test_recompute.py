"""Every figure of every page is what a simple script computes from the raw files, for each kind of run."""

import json
import re
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest

import asyncrollout as ar
from asyncrollout import filters
from asyncrollout.cli.app import main
from asyncrollout.journal.records import RunRecords
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES
from asyncrollout.report.page import write_report
from asyncrollout.telemetry import METRICS
from asyncrollout.telemetry.run_metrics import RunMetrics
from tests.envs.rollout import WALK
from tests.playing import PATIENCE
from tests.recompute import Recomputed, area_between, lines, t_interval
from tests.test_report import data_of, part_of, series_of


class Model:
    """Goes by the sampling seed; after so many replies it stops, and for some rollouts it fails the first time."""

    def __init__(self, stops_after: float = float("inf"), fails: str = "") -> None:
        self.calls = 0
        self.stopped = anyio.Event()
        self._stops_after, self._fails = stops_after, fails
        self._failed: set[str] = set()

    async def generate(self, request: ar.Request) -> ar.Generation:
        self.calls += 1
        if self.calls > self._stops_after:
            self.stopped.set()
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()
        is_due = self._fails and request.turn and request.session.endswith(self._fails)
        if is_due and request.session not in self._failed:
            self._failed.add(request.session)
            raise RuntimeError("no reply this time")
        number = ((request.sampling.seed or 0) + request.turn) % 5
        text = "jump" if number == 4 else f"go {number}"
        return ar.Generation(text, usage=ar.Usage(completion=3 + number))


def rollouts(directory: Path, model: Model, **options: Any) -> ar.Rollouts:
    known: dict[str, Any] = {"group_size": 3, "seed": 5, "keep": filters.reward_varies, "max_in_flight": 12}
    return ar.Rollouts(WALK, policy=model, run_dir=directory, **known | options)


async def take(run: ar.Rollouts, batches: int, *, update: bool = False) -> None:
    """So many batches of three groups, each with new weights before it."""
    stream = run.batches(groups=3)
    for _ in range(batches):
        await anext(stream)
        if update:
            async with run.weight_update(run.version + 1):
                pass


async def until_stopped(run: ar.Rollouts, model: Model, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Work until the model stops, then leave everything in flight."""
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await model.stopped.wait()
            tasks.cancel_scope.cancel()


async def plain(directory: Path) -> None:
    async with rollouts(directory, Model()) as run:
        await take(run, 4, update=True)


async def filled(directory: Path) -> None:
    """Few groups are kept; others fill the batches, also those of a resumed run."""
    options: dict[str, Any] = {
        "keep": lambda group: ar.Verdict(keep=group.id.endswith("0"), reason="" if group.id.endswith("0") else "no 0"),
        "max_num_gen_batches": 2, "on_exhausted": "fill",
    }  # fmt: skip
    async with rollouts(directory, Model(), **options) as run:
        await take(run, 3)
    async with rollouts(directory, Model(), resume=True, **options) as run:
        await take(run, 2)


async def failing(directory: Path) -> None:
    """Policies fail and are asked again, one env breaks after the reply, and one group never has an outcome."""
    tasks = ["ok"] * 4 + ["ok", "breaks", "ok", "nan", "no start"] * 4
    options: dict[str, Any] = {"tasks": tasks, "failures": ar.Failures(retries=2, min_valid=2), "keep": None}
    async with rollouts(directory, Model(fails=".1"), **options) as run:
        await take(run, 2)


async def resumed(directory: Path) -> None:
    for calls in (25, 31):
        model = Model(stops_after=calls)
        async with rollouts(directory, model, resume=directory.exists()) as run:
            await until_stopped(run, model, lambda run=run: take(run, 9))  # type: ignore[misc]
    async with rollouts(directory, Model(), resume=True) as run:
        await take(run, 2)


async def killed(directory: Path) -> None:
    """The last events are lost, but not the records of rollouts that had just finished."""
    model = Model(stops_after=100)
    async with rollouts(directory, model) as run:
        await until_stopped(run, model, lambda: take(run, 9))
    kept = lines(directory / JOURNAL)[:-25]
    (directory / JOURNAL).write_text("".join(json.dumps(event) + "\n" for event in kept) + '{"event":"dispatch')
    with (directory / TRAJECTORIES).open("a") as file:
        file.write('{"uid":')


async def killed_and_resumed(directory: Path) -> None:
    await killed(directory)
    async with rollouts(directory, Model(), resume=True) as run:
        await take(run, 2)


async def given_up(directory: Path) -> None:
    """Each `collect` cancels what it does not deliver, and the next one plays it again."""

    def keep(group: ar.Group) -> ar.Verdict:
        return ar.Verdict(keep=int(group.id[1:]) % 3 == 2, reason="not a third")

    async with rollouts(directory, Model(), order="start", keep=keep, max_in_flight=30) as run:
        for _ in range(3):
            await run.collect(groups=2)
    async with rollouts(directory, Model(), order="start", keep=keep, max_in_flight=30, resume=True) as run:
        await run.collect(groups=2)


async def evaluating(directory: Path) -> None:
    """One evaluation is complete, the other one is interrupted."""
    model = Model(fails=".2")
    async with rollouts(directory, model, failures=ar.Failures(retries=1)) as run:
        await take(run, 2)
        await run.evaluate(5, k=2)
        await take(run, 1)
        model._stops_after = model.calls + 17
        await until_stopped(run, model, lambda: evaluate(run))


async def evaluate(run: ar.Rollouts) -> None:
    await run.evaluate(6, k=2, seed=1)


async def only_evaluating(directory: Path) -> None:
    async with rollouts(directory, Model(fails=".1")) as run:
        await run.evaluate(5, k=3)


async def rewound(directory: Path) -> None:
    """Batches with new weights after each; then from batch 1 on again, with the weights of that time."""
    async with rollouts(directory, Model()) as run:
        await take(run, 4, update=True)
    async with rollouts(directory, Model(), resume=1) as run:
        await take(run, 2)
    async with rollouts(directory, Model(), resume=True) as run:
        await take(run, 3, update=True)


async def scored(directory: Path) -> None:
    async def score(group: ar.Group) -> list[float]:
        await anyio.lowlevel.checkpoint()
        return [one.reward + one.member / 8 for one in group.trajectories]

    async with rollouts(directory, Model(), score=score, keep=None) as run:
        await take(run, 2)


TRAINED = [plain, filled, failing, resumed, killed, killed_and_resumed, given_up, evaluating, rewound, scored]


def near(value: Any) -> Any:
    return None if value is None else pytest.approx(value, rel=1e-9, abs=1e-9)


def check_tiles_and_waste(run: Path) -> None:
    raw, summary = Recomputed(run), data_of(write_report(run).path, "summary")
    tiles = {tile["label"]: tile["value"] for tile in summary["tiles"]}
    assert tiles == {name: near(value) for name, value in raw.tiles().items()}
    _, kept = (part_of(summary, name)["rows"] for name in ("By environment", "Kept and dropped"))
    lost = {row[0]: (row[2], row[3], row[4] or 0) for row in kept if row[1] is None}
    assert lost == raw.lost()
    assert sum(row[3] for row in kept) == tiles["Turns"]
    assert sum(row[4] or 0 for row in kept) == tiles["Tokens"]
    assert sum(row[5] for row in kept) == near(1)
    if raw.batches:
        assert series_of(summary, "Groups kept by batch")["kept"] == [[*point] for point in raw.share_kept()]
    if any(batch["weights"] for batch in raw.batches.values()):
        lags = series_of(summary, "Lag by batch")
        assert lags["oldest rollout"] == [[index, oldest] for index, oldest, _ in raw.lags()]
        assert lags["mean"] == [[index, near(behind)] for index, _, behind in raw.lags()]
    if raw.batches:
        rewards = series_of(summary, "Reward by batch")
        assert [point[:2] for point in rewards["delivered"]] == [
            [one, near(mean)] for one, mean, _ in raw.rewards_by_batch()
        ]
        assert [point[:2] for point in rewards["all groups"]] == [
            [one, near(mean)] for one, _, mean in raw.rewards_by_batch()
        ]
    named = zip(("all played", "delivered"), raw.mean_lengths(), strict=True)
    means = ", ".join(f"{name} {mean:,.3f}" for name, mean in named if mean is not None)
    assert part_of(summary, "Length of a rollout")["note"] == f"Mean: {means}."


def check_table_of_envs(run: Path) -> None:
    raw, summary = Recomputed(run), data_of(write_report(run).path, "summary")
    table = part_of(summary, "By environment")
    (row,) = table["rows"]
    cells = dict(zip((column["label"] for column in table["columns"]), row, strict=True))
    records = [one for group in raw.judged for one in raw.members(group)]
    assert (cells["groups"], cells["rollouts"]) == (len(raw.judged), len(records))
    assert cells["failed"] == sum(one["error"] is not None for one in records)
    assert cells["reward, all"][0] == near(raw.mean_reward(raw.judged))
    given = [group for group in raw.delivered if group in raw.verdicts]
    assert (cells["reward, delivered"] or [None])[0] == near(raw.mean_reward(given))
    assert (cells["pass@1"][0], cells["pass@3"][0]) == (
        near(raw.pass_at(raw.judged, 1)),
        near(raw.pass_at(raw.judged, 3)),
    )
    rewards = [reward for group in raw.judged if (reward := raw.reward(group)) is not None]
    assert cells["reward, all"][1:] == [pytest.approx(end, abs=0.01) for end in t_interval(rewards) or (None, None)]


def check_time(run: Path) -> None:
    raw, summary = Recomputed(run), data_of(write_report(run).path, "summary")
    durations = {row[0]: row for row in part_of(summary, "Durations")["rows"]}
    calls = raw.llm_seconds()
    assert durations["LLM call"][1:3] == [len(calls), near(sum(calls) / len(calls))]
    sampled = {(one["uid"], one["turn"]): one["seconds"] for one in raw.events if one["event"] == "turn"}
    for uid in raw.standing:
        for number, turn in enumerate(raw.records[uid]["turns"]):
            if turn["replayed"]:
                assert turn["policy_seconds"] == near(sampled[uid, number])
    waited = [raw.records[uid]["score_seconds"] for uid in raw.standing if uid.startswith("g")]
    assert ("score" in durations) == any(waited)
    if any(waited):
        assert durations["score"][1:3] == [len(waited), near(sum(waited) / len(waited))]
    areas = part_of(summary, "Rollouts in flight")["series"]
    assert sum(area_between(one["points"]) for one in areas) == pytest.approx(raw.in_flight_seconds(), rel=0.02)
    bars = part_of(summary, "Timeline")["bars"]
    assert len(bars) == sum(len(play["stretches"]) for play in raw.plays_of())
    logged = {event["uid"] for event in raw.events if event["event"] == "finished"}
    ends = [start + sum(part for _, part in parts) for uid, _, start, parts in bars if uid in logged]
    assert max(ends) <= raw.seconds * 1.01 + 0.01
    assert min(bar[2] for bar in bars) >= 0


def check_evaluations(run: Path) -> None:
    raw, summary = Recomputed(run), data_of(write_report(run).path, "summary")
    found = {}
    if any(section["id"] == "evaluations" for section in summary["sections"]):
        table = part_of(summary, "Evaluations")
        labels = [column["label"] for column in table["columns"]]
        for row in table["rows"]:
            cells = dict(zip(labels, row, strict=True))
            means = {name: (cells[name] or [None])[0] for name in ("reward", "pass@1", "pass@k")}
            found[row[0]] = {**cells, **means, "tokens": cells["tokens"] or 0}
    expected = raw.evaluations()
    assert found.keys() == expected.keys()
    for name, figures in expected.items():
        assert {label: found[name][label] for label in figures} == {
            label: near(value) for label, value in figures.items()
        }


def check_metrics(run: Path) -> None:
    raw = Recomputed(run)
    last = lines(run / METRICS)[-1]
    found = {name: last.get(name, 0) for name in raw.metrics()}
    found["errors"] = sum(value for name, value in last.items() if name.startswith("errors/"))
    found["dropped"] = {name[8:]: value for name, value in last.items() if name.startswith("dropped/")}
    assert found == {name: near(value) if isinstance(value, float) else value for name, value in raw.metrics().items()}


def check_comparison(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, other = Recomputed(run), run.parent / "other"
    shutil.copytree(run, other)
    assert main(["compare", str(run), str(other), "--json", "--to", f"{run.parent}/c.html"]) == 0
    one, same, less = map(json.loads, capsys.readouterr().out.splitlines())
    records = [one for group in raw.judged for one in raw.members(group)]
    assert {**same, "run": one["run"]} == one
    assert (one["groups"], one["rollouts"]) == (len(raw.judged), len(records))
    assert one["reward"]["mean"] == near(raw.mean_reward(raw.judged))
    assert one["pass_at"]["3"]["mean"] == near(raw.pass_at(raw.judged, 3))
    assert (less["pairs"], less["reward"]["mean"]) == (sum(bool(raw.valid(group)) for group in raw.judged), near(0.0))
    (cost, _) = part_of(data_of(run.parent / "c.html", "summary"), "Cost of each run")["rows"]
    tiles = raw.tiles()
    assert cost[5:8] == [near(raw.seconds), near(tiles["Turns"] / raw.seconds), near(tiles["Tokens"] / raw.seconds)]


def check_records(run: Path) -> None:
    raw, records = Recomputed(run), RunRecords(run)
    found = {index: [group.id for group in groups] for index, groups in records.batches()}
    assert found == {index: batch["groups"] for index, batch in sorted(raw.batches.items())}
    assert sorted(group.id for group in records.groups()) == sorted(raw.judged)


async def test_an_evaluation_alone_says_what_its_files_do(tmp_path: Path) -> None:
    await only_evaluating(tmp_path / "run")
    raw, summary = Recomputed(tmp_path / "run"), data_of(write_report(tmp_path / "run").path, "summary")
    (figures,) = raw.evaluations().values()
    tiles = {tile["label"]: tile["value"] for tile in summary["tiles"]}
    assert (tiles["Reward"], tiles["Pass rate"], tiles["pass@3"]) == tuple(
        near(figures[name]) for name in ("reward", "pass@1", "pass@k")
    )
    assert (tiles["Tasks"], tiles["Turns"], tiles["Tokens"]) == (5, figures["turns"], figures["tokens"])


@pytest.mark.parametrize("kind", TRAINED, ids=lambda kind: kind.__name__)
async def test_figures_are_what_the_files_say(
    kind: Callable[[Path], Awaitable[None]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    await kind(run)

    def check() -> None:
        check_tiles_and_waste(run)
        check_table_of_envs(run)
        check_time(run)
        check_evaluations(run)
        check_records(run)
        check_comparison(run, capsys)
        turns = [turn for one in Recomputed(run).records.values() for turn in one["turns"]]
        assert any(turn["replayed"] for turn in turns) or kind is not resumed
        assert "cancelled attempts" in Recomputed(run).lost() or kind is not given_up
        if kind is not killed:  # its metrics know what the files have lost
            check_metrics(run)

    await anyio.to_thread.run_sync(check)


def test_every_figure_is_defined_once() -> None:
    """The page of figures has a row for each metric."""
    page = (Path(__file__).parent.parent / "docs" / "figures.md").read_text()
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert {name for name in RunMetrics.__struct_fields__ if named.count(name) != 1} == set()
