"""Where figures go: each kind of sink read back, sinks that are slow or broken, and the text for Prometheus."""

import json
import logging
import os
import sqlite3
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from asyncrollout import MissingExtraError, Rollouts, ScriptedPolicy, UsageError
from asyncrollout.telemetry import RunMetrics, TensorBoard, Tracker, exporter, flat, prometheus_text
from asyncrollout.telemetry.exporter import MetricsExporter
from asyncrollout.telemetry.sinks import open_sinks
from asyncrollout.types import Durations
from tests.envs.rollout import WALK
from tests.playing import PATIENCE

SECRET = "canary-0123456789"
FIGURES = RunMetrics(
    batches=3,
    wanted_batches=9,
    tokens=12_345_678,
    dropped={"constant_reward": 2, 'a "b"\\c\nd/e': 1},
    errors={"env": 4},
    env_seconds=Durations(7, 0.5, 0.4, 0.9, 1.0),
    reward_mean=0.25,
    reward_trend="down",
)


class Kept:
    """A sink that keeps what it gets, and stops at its gate, if that is closed."""

    def __init__(self) -> None:
        self.got: list[Mapping[str, float]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.stands = threading.Event()
        self.closed = 0

    def write(self, figures: Mapping[str, float]) -> None:
        self.stands.set()
        assert self.gate.wait(PATIENCE)
        self.got.append(figures)

    def close(self) -> None:
        self.closed += 1


class Broken:
    def write(self, figures: Mapping[str, float]) -> None:
        raise OSError("no route to host")

    close = write  # which is called without an argument


def counting() -> Callable[[], RunMetrics]:
    """Figures of which each is one batch further."""
    read = iter(range(1_000))
    return lambda: RunMetrics(batches=next(read))


def batches(sink: Kept) -> list[float]:
    return [figures["batches"] for figures in sink.got]


async def wait_for(event: threading.Event) -> None:
    assert await anyio.to_thread.run_sync(event.wait, PATIENCE)


async def test_a_sink_gets_figures_when_told_and_at_the_end() -> None:
    sink = Kept()
    async with MetricsExporter([sink], counting()) as metrics:
        metrics.write()
        await wait_for(sink.stands)
    assert batches(sink) == [0, 1]
    assert sink.closed == 1
    assert sink.got[0]["at"] > 1e9


async def test_a_sink_gets_figures_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "_EVERY", 0.001)
    sink = Kept()
    async with MetricsExporter([sink], counting()):
        await wait_for(sink.stands)
    assert sink.got


async def test_a_slow_sink_gets_the_figures_of_every_batch_and_delays_nobody() -> None:
    slow, quick = Kept(), Kept()
    slow.gate.clear()
    async with MetricsExporter([slow, quick], counting()) as metrics:
        metrics.write()
        await wait_for(slow.stands)
        for _ in range(100):
            quick.stands.clear()
            metrics.write()
            await wait_for(quick.stands)
        slow.gate.set()
    assert batches(slow) == batches(quick) == [*range(102)]


async def test_a_slow_sink_gets_only_the_newest_of_what_is_between_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "_EVERY", 0.0)
    slow, read = Kept(), threading.Event()
    slow.gate.clear()
    numbers = iter(range(1, 1_000_000))

    def figures() -> RunMetrics:
        if not slow.stands.is_set():  # its thread may be slow to start
            return RunMetrics(batches=0)
        number = next(numbers)
        if number >= 100:
            read.set()
        return RunMetrics(batches=number)

    async with MetricsExporter([slow], figures) as metrics:
        await wait_for(slow.stands)
        await wait_for(read)
        metrics.write()
        slow.gate.set()
    assert batches(slow)[0] == 0
    assert batches(slow)[1] >= 100  # and none between
    assert len(slow.got) <= 4


async def test_what_waits_for_a_sink_is_bounded_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "_MOST_WAITING", 3)
    slow = Kept()
    slow.gate.clear()
    with capture_logs() as logs:
        async with MetricsExporter([slow], counting()) as metrics:
            metrics.write()
            await wait_for(slow.stands)
            for _ in range(10):
                metrics.write()
            slow.gate.set()
    assert batches(slow)[0] == 0
    assert batches(slow)[-3:] == [9, 10, 11]
    assert [log["event"] for log in logs] == ["sink_behind"]


async def test_a_slow_sink_has_time_at_the_end_as_long_as_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "_CLOSING_SECONDS", 0.0)
    slow = Kept()
    late = exporter._SinkThread(slow)
    late.offer({"batches": 0.0}, passing=False)
    await wait_for(slow.stands)
    assert exporter._patience(late, late.moved) <= 0
    monkeypatch.setattr(exporter, "_CLOSING_SECONDS", PATIENCE)
    assert exporter._patience(late, late.moved) > 0
    late.moved += exporter._LAST_SECONDS  # it has just written, but has had all the time there is
    assert exporter._patience(late, late.moved - 2 * exporter._LAST_SECONDS) < 0
    late.close()
    assert late.has_ended(PATIENCE)


async def test_a_broken_sink_is_reported_once_and_others_get_theirs() -> None:
    sink = Kept()
    with capture_logs() as logs:
        async with MetricsExporter([Broken(), sink], counting()) as metrics:
            for _ in range(5):
                sink.stands.clear()
                metrics.write()
                await wait_for(sink.stands)
    reported = [(log["event"], log["sink"], log["error"]) for log in logs]
    assert reported == [("sink_failed", "Broken", "OSError: no route to host")]
    assert batches(sink) == [0, 1, 2, 3, 4, 5]


async def test_a_sink_that_never_returns_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "_CLOSING_SECONDS", 0.01)
    sink = Kept()
    sink.gate.clear()
    with capture_logs() as logs:
        async with MetricsExporter([sink], counting()) as metrics:
            metrics.write()
            await wait_for(sink.stands)
    assert [log["event"] for log in logs] == ["sink_left"]
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "sink Kept")
    sink.gate.set()


async def test_a_run_that_is_cancelled_or_fails_closes_its_sinks() -> None:
    cancelled, failed = Kept(), Kept()
    with anyio.CancelScope() as scope:
        async with MetricsExporter([cancelled], counting()):
            scope.cancel()
            await anyio.sleep_forever()
    with pytest.raises(KeyError, match="mine"):
        async with MetricsExporter([failed], counting()):
            raise KeyError("mine")
    assert [(len(sink.got), sink.closed) for sink in (cancelled, failed)] == [(1, 1), (1, 1)]


async def test_rollouts_write_with_each_batch() -> None:
    sink = Kept()
    async with Rollouts(WALK, policy=ScriptedPolicy(["go 1"]), group_size=2, metrics=[sink]) as rollouts:
        for _ in range(3):
            sink.stands.clear()
            await rollouts.collect(2)
            await wait_for(sink.stands)
    assert batches(sink) == [1, 2, 3, 3]
    assert sink.got[-1]["rollouts"] >= 12
    assert sink.closed == 1


def test_what_is_no_sink_is_refused() -> None:
    with pytest.raises(UsageError, match=r"metrics: 'wandb' is not a sink: it has no write\(figures\)"):
        Rollouts(WALK, policy=ScriptedPolicy(["go 1"]), metrics=["wandb"])  # type: ignore[list-item]


def test_tensorboard_has_every_figure_at_its_batch(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="pip install 'asyncrollout[tensorboard]'"
    )
    sink = TensorBoard(tmp_path)
    for step in (2, 3):
        sink.write({"at": 1e9 + step, **flat(msgspec.structs.replace(FIGURES, batches=step))})
    sink.close()
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    read = accumulator.EventAccumulator(str(tmp_path), size_guidance={"tensors": 0}).Reload()
    assert {*read.Tags()["tensors"]} == {*flat(FIGURES)}
    rewards = read.Tensors("reward_mean")
    assert [(event.step, event.wall_time, event.tensor_proto.float_val[0]) for event in rewards] == [
        (2, 1e9 + 2, 0.25),
        (3, 1e9 + 3, 0.25),
    ]


def test_a_tracker_of_ones_own_stays_open() -> None:
    logged: list[dict[str, float]] = []

    class Run:
        def log(self, figures: dict[str, float]) -> None:
            logged.append(figures)

        def finish(self) -> None:
            raise AssertionError

    sink = Tracker(Run())
    sink.write(flat(FIGURES))
    sink.close()
    assert logged == [flat(FIGURES)]


def test_tracker_that_is_finished_leaves_stdout_to_others() -> None:
    seen: list[object] = []

    class Run:
        def finish(self) -> None:
            seen.append(sys.stdout)  # other threads print meanwhile

    Tracker(Run(), owned=True).close()
    assert seen == [sys.stdout]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_what_is_not_installed_is_reported_with_its_command(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, f"{name}.summary", None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'asyncrollout\[{name}\]'"):
        open_sinks([name], tmp_path, "id", {})


CONFIG = """
env: frozen_lake
group_size: 2
groups: 2
batches: {batches}
metrics: [{name}]
"""


def run(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "asyncrollout", *arguments, "--json"],
        cwd=directory,
        env={**os.environ, "WANDB_API_KEY": SECRET, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def play(directory: Path, name: str, **environment: str) -> Path:
    """A run of two batches, which is resumed for two more; stdout has our own records and nothing else."""
    pytest.importorskip(name, reason=f"pip install 'asyncrollout[{name}]'")
    (directory / "run.yaml").write_text(CONFIG.format(name=name, batches=2))
    played = directory / "runs" / "mine"
    for arguments in (["run", "run.yaml", "name=mine"], ["resume", "runs/mine"]):
        done = run(directory, *arguments, **environment)
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["launched", "ended"]
        resolved = played / "config.resolved.yaml"
        resolved.write_text(resolved.read_text().replace("batches: 2", "batches: 4"))
    for path in played.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    return played


def test_wandb_has_the_figures_of_a_run_and_of_its_resumption(tmp_path: Path) -> None:
    played = play(tmp_path, "wandb", WANDB_MODE="offline")
    files = sorted(played.glob("wandb/offline-run-*/*.wandb"))
    assert {path.stem for path in files} == {f"run-{(played / 'tracked_as').read_text()}"}
    last: list[float] = []
    for path in files:
        items = [record.history.item for record in wandb_records(path) if record.HasField("history")]
        rows = [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in row} for row in items]
        assert len(rows) >= 2
        last.append(rows[-1]["batches"])
    assert last == [2, 4]


def wandb_records(path: Path) -> list[Any]:
    """What an offline file of W&B holds: records in the log format of LevelDB, after a header of its own."""
    record = pytest.importorskip("wandb.proto.wandb_internal_pb2").Record
    content, place, parts, found = path.read_bytes(), 7, b"", []
    while place + 7 <= len(content):
        if (left := 2**15 - place % 2**15) < 7:  # the end of a block, too short for a record
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # the whole of a record, or the last part of one
            found.append(record.FromString(parts))
            parts = b""
    return found


def test_trackio_has_the_figures_of_a_run_and_of_its_resumption(tmp_path: Path) -> None:
    played = play(tmp_path, "trackio", TRACKIO_DIR=str(tmp_path / "trackio"))
    with sqlite3.connect(tmp_path / "trackio" / "asyncrollout.db") as database:
        rows = database.execute("SELECT run_name, metrics FROM metrics ORDER BY id").fetchall()
    database.close()
    assert {name for name, _ in rows} == {(played / "tracked_as").read_text()}
    read = [json.loads(metrics)["batches"] for _, metrics in rows]
    assert read == sorted(read)
    assert {2, 4} <= {*read}


def test_a_tracker_that_cannot_be_opened_is_reported_before_anything_is_played(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="pip install 'asyncrollout[wandb]'")
    (tmp_path / "run.yaml").write_text(CONFIG.format(name="wandb", batches=2))
    done = run(tmp_path, "run", "run.yaml", "name=mine", WANDB_MODE="nonsense")
    assert done.returncode == 2
    assert "metrics: wandb cannot be opened" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs" / "mine" / "journal.jsonl").exists()


def test_prometheus_gets_types_labels_and_escapes() -> None:
    lines = prometheus_text({'my "run"': flat(FIGURES), "other": {"tokens": 1, "eta": 0.5}}).splitlines()
    assert lines[lines.index("# TYPE asyncrollout_tokens_total counter") :][1:3] == [
        r'asyncrollout_tokens_total{run="my \"run\""} 12345678',
        'asyncrollout_tokens_total{run="other"} 1',
    ]
    assert r'asyncrollout_dropped_total{run="my \"run\"",reason="a \"b\"\\c\nd/e"} 1' in lines
    assert r'asyncrollout_env_seconds{run="my \"run\"",of="p95"} 0.9' in lines
    assert 'asyncrollout_eta{run="other"} 0.5' in lines
    assert lines.count("# TYPE asyncrollout_dropped_total counter") == 1


def test_prometheus_knows_every_figure() -> None:
    known = RunMetrics(
        eta=1.0, success_rate=0.5, keep_rate=0.5, wanted_batches=1, wanted_groups=1,
        dropped={"x": 1}, errors={"env": 1}, reward_mean=1.0, reward_recent=1.0, reward_change=1.0, reward_trend="up",
    )  # fmt: skip
    named = {line.split()[2] for line in prometheus_text({"r": flat(known)}).splitlines() if line.startswith("# TYPE")}
    figures = {name.removeprefix("asyncrollout_").removesuffix("_total") for name in named}
    assert figures == {*RunMetrics.__struct_fields__} - {"reward_history"}


@given(st.text(), st.text(), st.floats())
def test_prometheus_reads_back_what_was_meant(run: str, reason: str, reward: float) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="pip install prometheus-client")
    text = prometheus_text({run: {"reward_mean": reward, f"dropped/{reason}": 3}})
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    rewards, dropped = families["asyncrollout_reward_mean"], families["asyncrollout_dropped"]
    assert (rewards.type, dropped.type) == ("gauge", "counter")
    assert rewards.samples[0].labels == {"run": run}
    assert rewards.samples[0].value == pytest.approx(reward, rel=0, abs=0, nan_ok=True)
    assert dropped.samples[0].labels == {"run": run, "reason": reason}
    assert dropped.samples[0].value == 3
