"""Runs from the command line: started, watched, stopped, killed, resumed and replayed."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import psutil
import pytest

from asyncrollout import Rollouts, SolverPolicy
from asyncrollout.cli.app import main
from asyncrollout.cli.run_directory import claimed
from asyncrollout.cli.terminal.signals import stoppable
from tests.llm_faults import Hold
from tests.llm_server import llm_server
from tests.playing import PATIENCE
from tests.video_files import is_whole

CONFIG = """
env: {env}
policy: {{kind: solver, error_rate: 0.3, latency: 0.01}}
group_size: 2
groups: 2
batches: 3
seed: 5
order: start
advantage: grpo
reward_normalization: {{grouping: batch, method: mean_std}}
"""
SECRET = "canary-0123456789"
ACTIVATED = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
"""With the environment on the path, so that commands that are shown begin with `asyncrollout` alone."""


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "asyncrollout", *map(str, arguments)]


def call(directory: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which spares the start of an interpreter."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patched,
        contextlib.chdir(directory),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        for name, value in {**ACTIVATED, **environment}.items():
            patched.setenv(name, value)
        code = main([*map(str, arguments)])
    return subprocess.CompletedProcess(command(*arguments), code, out.getvalue(), err.getvalue())


def call_program(directory: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a program of its own: from async tests, and where streams, imports or `sys.argv` matter."""
    return subprocess.run(
        command(*arguments), cwd=directory, env={**ACTIVATED, **environment}, capture_output=True, text=True,
        check=False, timeout=PATIENCE,
    )  # fmt: skip


@contextlib.contextmanager
def launched(directory: Path, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A process to signal, kill or read from while it runs."""
    with subprocess.Popen(
        command(*arguments), cwd=directory, env=ACTIVATED, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def write_config(directory: Path, env: str = "frozen_lake", more: str = "") -> Path:
    path = directory / "lake.yaml"
    path.write_text(CONFIG.format(env=env) + more)
    return path


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a finished run, to read or to copy."""
    place = tmp_path_factory.mktemp("recorded")
    assert call(place, "run", write_config(place), "name=mine", "--quiet").returncode == 0
    return place


@pytest.fixture
def mine(recorded: Path, tmp_path: Path) -> Path:
    """A finished run to change; its configuration is in `tmp_path`, too."""
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    return tmp_path / "runs" / "mine"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def delivered(directory: Path) -> list[tuple[int, list[str]]]:
    """In order; a batch that was taken back, as Ctrl-C may have it, is delivered later."""
    batches: dict[int, list[str]] = {}
    for event in lines(directory / "journal.jsonl"):
        if event["event"] == "delivered":
            assert event["batch"] not in batches
            batches[event["batch"]] = event["groups"]
        elif event["event"] == "taken_back":
            del batches[event["batch"]]
    return [*batches.items()]


def contents(directory: Path) -> dict[str, Any]:
    groups = {group for _, groups in delivered(directory) for group in groups}
    records = [record for record in lines(directory / "trajectories.jsonl") if record["group"] in groups]
    return {record["uid"]: (record["reward"], [turn["reply"] for turn in record["turns"]]) for record in records}


def test_run_leaves_a_directory_that_tells_all(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    done = call_program(tmp_path, "run", config, "env_kwargs.size=3", "--json", OPENAI_API_KEY=SECRET)
    assert (done.returncode, done.stderr) == (0, "")
    launch, end = map(json.loads, done.stdout.splitlines())
    assert (launch["event"], end["event"], end["state"]) == ("launched", "ended", "done")
    assert (end["batches"], end["delivered"]) == (3, 6)
    run = tmp_path / launch["directory"]
    assert run == tmp_path / "runs" / "lake-1"
    assert (run / "config.yaml").read_text() == config.read_text()
    assert "size: 3" in (run / "config.resolved.yaml").read_text()
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["command"][:2] == ["asyncrollout", "run"]
    assert len(delivered(run)) == 3
    assert lines(run / "metrics.jsonl")[-1]["batches"] == 3
    assert [event["event"] for event in lines(run / "logs" / "attempt_1" / "events.jsonl")] == ["run", "run_ended"]
    samples = lines(run / "samples.jsonl")
    assert {sample["uid"] for sample in samples} == set(contents(run))
    assert sum(sample["score"] for sample in samples) == pytest.approx(0, abs=1e-6)
    assert samples[0]["messages"][-1]["role"] == "assistant"
    assert {"batch", "reward", "advantage"} <= samples[0].keys()
    for path in run.rglob("*"):
        assert path.is_dir() or SECRET not in path.read_text(), path
    page = (
        (Path(__file__).parent.parent / "docs" / "runs.md")
        .read_text()
        .partition("## The directory")[2]
        .partition("## ")[0]
    )
    documented = {name.partition("/")[0] for name in re.findall(r"`([\w./]+)`", page)}
    assert {path.name for path in run.iterdir()} <= documented


def test_name_in_use_is_refused_and_a_free_one_is_found(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    assert call(tmp_path, "run", config, "name=mine", "--quiet").returncode == 0
    before = (tmp_path / "runs" / "mine" / "journal.jsonl").read_bytes()
    again = call(tmp_path, "run", config, "name=mine")
    assert again.returncode == 2
    assert "runs/mine exists: a run that finished at 20" in again.stderr
    assert "`asyncrollout report runs/mine`; for a new run, choose another name (name=...)" in again.stderr
    assert (tmp_path / "runs" / "mine" / "journal.jsonl").read_bytes() == before
    complete = call(tmp_path, "resume", "runs/mine")
    assert (complete.returncode, complete.stdout) == (0, "runs/mine is complete: it has all 3 batches\n")
    for name in ("../up", "a/b", "x" * 101, ".hidden", "nul\\0"):
        refused = call(tmp_path, "run", config, f'name="{name}"')
        assert (refused.returncode, "name: " in refused.stderr) == (2, True), name


def test_stopped_twice_and_killed_a_run_comes_to_the_same_end(tmp_path: Path) -> None:
    config = write_config(tmp_path, env="sokoban")  # on worker processes
    slowly = "policy.latency=0.1"  # so that there is something left to play when it is killed
    assert call(tmp_path, "run", config, "name=whole", slowly, "--quiet").returncode == 0
    with launched(tmp_path, "run", config, "name=parts", slowly, "--json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        journal = tmp_path / "runs" / "parts" / "journal.jsonl"
        _wait_for(process, journal, b'"turn"')
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert json.loads(out)["state"] == "stopped"
        assert err == ""
    with launched(tmp_path, "resume", "runs/parts") as process:
        _wait_for(process, journal, b'"began"', times=2)
        workers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        assert psutil.wait_procs(workers, timeout=PATIENCE)[1] == []
    resumed = call(tmp_path, "resume", "runs/parts", "--json")
    assert resumed.returncode == 0, resumed.stderr
    summed_up = json.loads(resumed.stdout.splitlines()[-1])
    assert summed_up["state"] == "done"
    of_all = json.loads(call(tmp_path, "compare", "runs/parts", "--json").stdout.splitlines()[0])
    assert summed_up["reward_mean"] == of_all["reward"]["mean"]  # of all attempts
    assert summed_up["success_rate"] == of_all["pass_at"]["1"]["mean"]
    assert summed_up["rollouts"] == len({record["uid"] for record in lines(journal.parent / "trajectories.jsonl")})
    assert delivered(tmp_path / "runs" / "parts") == delivered(tmp_path / "runs" / "whole")
    assert contents(tmp_path / "runs" / "parts") == contents(tmp_path / "runs" / "whole")
    finished = [event["uid"] for event in lines(journal) if event["event"] == "finished"]
    assert len(finished) == len({*finished})
    assert len(list((tmp_path / "runs" / "parts" / "logs").iterdir())) == 3


def _wait_for(process: subprocess.Popen[str], path: Path, what: bytes, times: int = 1) -> None:
    while not (path.exists() and path.read_bytes().count(what) >= times):
        assert process.poll() is None, process.communicate()


@pytest.mark.parametrize("env", ["frozen_lake", "sokoban"])  # on the event loop, and on worker processes
def test_stopped_run_has_whole_videos(tmp_path: Path, env: str) -> None:
    config = write_config(tmp_path, env=env, more="record: {overlay: true, max_encoders: 8}\n")
    with launched(tmp_path, "run", config, "name=recorded", "policy.latency=[0.05, 0.1]") as process:
        _wait_for(process, tmp_path / "runs" / "recorded" / "journal.jsonl", b'"turn"', times=6)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    videos = [*(tmp_path / "runs" / "recorded" / "videos").iterdir()]
    assert videos
    assert {path.suffix for path in videos} == {".mp4"}
    assert all(map(is_whole, videos))


def test_second_ctrl_c_stops_at_once_and_says_how_to_continue(tmp_path: Path) -> None:
    config = write_config(tmp_path, more="max_in_flight: 8\n")
    with launched(tmp_path, "run", config, "name=slow", "policy.latency=[1000, 1000]") as process:
        _wait_for(process, tmp_path / "runs" / "slow" / "journal.jsonl", b'"dispatched"')
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "stopping once replies in flight have arrived" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "resume    asyncrollout resume runs/slow" in out


def test_replay_compares_with_what_was_recorded(mine: Path, tmp_path: Path) -> None:
    done = call(tmp_path, "replay", "runs/mine", "g0.1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("g0.1: frozen_lake, seed ")
    assert done.stdout.endswith("the same as recorded\n")
    path = mine / "trajectories.jsonl"
    short = next(record["uid"] for record in lines(path) if len(record["turns"]) == 1)
    assert ", 1 turn, " in call(tmp_path, "replay", "runs/mine", short).stdout
    changed = [{**record, "seed": record["seed"] + 1} for record in lines(path)]
    path.write_text("".join(json.dumps(record) + "\n" for record in changed))
    other = call(tmp_path, "replay", "runs/mine", "g0.1", "--json")
    assert other.returncode == 1
    assert json.loads(other.stdout)["difference"].startswith("before turn 0 the env shows")
    unknown = call(tmp_path, "replay", "runs/mine", "g77.0")
    assert unknown.returncode == 2
    assert "has no finished rollout 'g77.0'" in unknown.stderr
    nowhere = call(tmp_path, "replay", "runs/other", "g0.0")
    assert (nowhere.returncode, "holds no run: it has no journal.jsonl" in nowhere.stderr) == (2, True)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda record: record["turns"][0].update(reward=7.0), "the reward of turn 0 was 7, and is"),
        (lambda record: record["final"].update(text="elsewhere"), "at its end the env shows"),
        (lambda record: record.update(stop_reason="turns"), "the episode was turns, and now it is over"),
        (lambda record: record.update(stop_reason="truncated", turns=record["turns"][:-1]), "now it is not over"),
    ],
)
def test_replay_notices_every_difference(
    mine: Path, tmp_path: Path, change: Callable[[Any], None], difference: str
) -> None:
    path = mine / "trajectories.jsonl"
    records = lines(path)
    record = next(one for one in records if one["stop_reason"] == "terminated")
    change(record)
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    done = call(tmp_path, "replay", "runs/mine", record["uid"], "--json")
    assert done.returncode == 1
    assert difference in json.loads(done.stdout)["difference"]


async def test_replies_under_way_at_ctrl_c_are_recorded(tmp_path: Path) -> None:
    go = anyio.Event()
    config = write_config(tmp_path, more="max_in_flight: 4\n")
    async with llm_server(script=lambda *_: Hold(go)) as server:
        policy = f"policy={{kind: openai, base_url: '{server.url}', model: m, server: openai}}"
        with launched(tmp_path, "run", config, "name=mine", policy) as process:
            assert process.stderr is not None
            await server.until(lambda: bool(server.requests))
            process.send_signal(signal.SIGINT)
            reported = await anyio.to_thread.run_sync(process.stderr.readline)
            assert "stopping once replies in flight have arrived" in reported
            go.set()
            await anyio.to_thread.run_sync(process.communicate)
    assert process.returncode == 130
    assert [event for event in lines(tmp_path / "runs" / "mine" / "journal.jsonl") if event["event"] == "turn"]


async def test_second_signal_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrollout.cli.terminal.signals._DRAIN_SECONDS", 10**6)

    class Hanging:
        drained = anyio.Event()

        async def drain(self, seconds: float) -> None:
            self.drained.set()
            await anyio.sleep(seconds)

        def say(self, text: str) -> None: ...

    hanging: Any = Hanging()
    with anyio.fail_after(PATIENCE):
        async with stoppable() as stop:
            with stop.scope() as scope:
                stop.drain(hanging, hanging)
                os.kill(os.getpid(), signal.SIGINT)
                await hanging.drained.wait()
                os.kill(os.getpid(), signal.SIGTERM)
                await anyio.sleep_forever()
            assert scope.cancelled_caught
            os.kill(os.getpid(), signal.SIGINT)  # at the end, nothing is left to stop
            await anyio.lowlevel.checkpoint()


def test_directory_of_another_process_is_left_alone(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    assert call(tmp_path, "run", config, "name=mine", "env_kwargs.sise=3").returncode == 2
    before = {path: path.read_bytes() for path in (tmp_path / "runs" / "mine").glob("*.yaml")}
    with claimed(tmp_path / "runs" / "mine"):
        for arguments in (["run", config, "name=mine", "seed=9"], ["resume", "runs/mine"]):
            done = call(tmp_path, *arguments, "--json")
            assert (done.returncode, done.stdout) == (2, "")
            assert "runs/mine is in use by another process" in done.stderr
    assert {path: path.read_bytes() for path in before} == before


def test_samples_are_mended_and_metrics_are_not_worth_a_failure(mine: Path, tmp_path: Path) -> None:
    whole = (mine / "samples.jsonl").read_bytes()
    (mine / "samples.jsonl").unlink()
    assert call(tmp_path, "resume", "runs/mine").returncode == 0
    assert (mine / "samples.jsonl").read_bytes() == whole
    (mine / "metrics.jsonl").unlink()
    (mine / "metrics.jsonl").mkdir()
    more = call(tmp_path, "resume", "runs/mine", "batches=4")
    assert (more.returncode, "sink_failed" in more.stderr, "metrics.jsonl" in more.stderr) == (0, True, True)
    assert len(delivered(mine)) == 4
    (mine / "samples.part").mkdir()
    failed = call(tmp_path, "resume", "runs/mine", "batches=5", "--json")
    assert (failed.returncode, "Traceback" in failed.stderr) == (1, False)
    assert [json.loads(line)["event"] for line in failed.stdout.splitlines()] == ["launched", "ended"]
    assert "samples.jsonl: Is a directory" in failed.stderr


def test_closed_streams_do_no_harm(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    closing = f"{sys.executable} -m asyncrollout run {config} name=mine >&- 2>&- <&-"
    done = subprocess.run(["sh", "-c", closing], cwd=tmp_path, check=False, timeout=PATIENCE)
    assert done.returncode == 0
    assert len(delivered(tmp_path / "runs" / "mine")) == 3


def test_what_became_of_ragen_keys_is_logged(tmp_path: Path) -> None:
    config = Path(__file__).parent.parent / "examples" / "configs" / "ragen_style.yaml"
    assert call(tmp_path, "run", config, "name=mine", "--quiet").returncode == 0
    events = lines(tmp_path / "runs" / "mine" / "logs" / "attempt_1" / "events.jsonl")
    assert "foreign_keys" in [event["event"] for event in events]


def test_value_of_a_secret_variable_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, more=f"agent: {{system_prompt: 'my key is {SECRET}'}}\n")
    done = call(tmp_path, "run", config, "name=mine", HF_TOKEN=SECRET)
    assert done.returncode == 2
    assert "the configuration holds the value of $HF_TOKEN" in done.stderr
    assert SECRET not in done.stderr + done.stdout
    assert not list(tmp_path.glob("runs/mine/*.yaml"))


def test_demo_plays_without_anything_else(tmp_path: Path) -> None:
    done = call_program(tmp_path, "demo", "--batches", "1")
    assert done.returncode == 0, done.stderr
    four = "sokoban, frozen_lake, countdown, webshop"
    assert done.stdout.splitlines()[:2] == [
        f"A scripted expert with a small error rate plays {four}: 1 batch of 8 groups, 4 rollouts per group.",
        "Running runs/demo-1",
    ]
    assert "demo-1: done" in done.stdout
    assert "asyncrollout replay runs/demo-1 g" in done.stdout
    assert "warning" not in done.stderr
    videos = [*(tmp_path / "runs" / "demo-1" / "videos").iterdir()]
    assert f"videos    {len(videos)}, in runs/demo-1/videos" in done.stdout
    assert videos
    assert all(map(is_whole, videos))
    one = call(tmp_path, "demo", "bandit", "--batches", "1", "--json")
    assert json.loads(one.stdout.splitlines()[0])["directory"] == "runs/demo-2"
    envs = {record["env"] for record in lines(tmp_path / "runs" / "demo-2" / "trajectories.jsonl")}
    assert envs == {"bandit"}


@pytest.mark.parametrize(
    ("arguments", "trouble"),
    [
        (["run", "none.yaml"], "none.yaml does not exist"),
        (["run", "."], ". is not a file"),
        (["run", "lake.yaml", "group_sise=3"], "group_size"),
        (["run", "lake.yaml", "group_size=none"], "group_size"),
        (["run", "lake.yaml", "score=os:getcwd"], "allow it with --allow-import"),
        (["run", "lake.yaml", "env=os:System"], "allow it with --allow-import"),
        (["run", "lake.yaml", "score=os:nothing", "--allow-import"], "score: 'os:nothing' cannot be imported"),
        (["resume", "."], "is not a run of the command line"),
        (["resume", "nowhere"], "nowhere is not a run directory"),
        (["demo", "--model", "x"], "--base-url and --model go together"),
        (["demo", "--batches", "0"], "--batches 0: must be at least 1"),
        (["demo", "no_such_env"], "no_such_env"),
    ],
)
def test_bad_input_is_one_clear_message(tmp_path: Path, arguments: list[str], trouble: str) -> None:
    write_config(tmp_path)
    done = call(tmp_path, *arguments)
    assert done.returncode == 2
    assert trouble in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("runs/*/journal.jsonl"))


def test_run_that_fails_says_why_and_keeps_what_was_played(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    server = "policy={kind: openai, base_url: 'http://127.0.0.1:9/v1', model: m, attempts: 1, server: openai}"
    done = call(tmp_path, "run", config, "name=bad", server, "failures.retries=0", "--json")
    assert done.returncode == 1
    assert "all rollouts of 4 groups in a row failed" in done.stderr
    assert "to resume: asyncrollout resume runs/bad" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["state"] == "failed"
    assert len(lines(tmp_path / "runs" / "bad" / "trajectories.jsonl")) >= 8


def test_run_that_could_not_begin_leaves_its_name_free(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    done = call(tmp_path, "run", config, "name=mine", "env_kwargs.sise=3")
    assert done.returncode == 2
    assert "did you mean 'size'" in done.stderr
    assert call(tmp_path, "run", config, "name=mine", "env_kwargs.size=3", "--quiet").returncode == 0
    (tmp_path / "runs" / "other").mkdir()
    assert call(tmp_path, "run", config, "name=other").returncode == 2


def test_read_only_directory_is_one_clear_message(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    (tmp_path / "file").write_text("")
    done = call(tmp_path, "run", config, "--runs", "file/runs")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "cannot write to file/runs/lake-1: Not a directory" in done.stderr


def test_journal_of_a_newer_format_or_with_a_foreign_line_is_reported_and_left_alone(
    mine: Path, tmp_path: Path
) -> None:
    journal = mine / "journal.jsonl"
    whole = journal.read_bytes()
    for change, trouble in (
        (whole.replace(b'"version":1', b'"version":7', 1), "version 7: this asyncrollout reads"),
        (b"hello\n" + whole, "journal.jsonl, line 1: this is not a line of a journal"),
    ):
        journal.write_bytes(change)
        done = call(tmp_path, "resume", "runs/mine")
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)
        assert trouble in done.stderr
        assert journal.read_bytes() == change


def test_half_a_character_costs_neither_samples_nor_report(tmp_path: Path) -> None:
    config = write_config(tmp_path, "tests.envs.rollout:HalfWalk", "agent: {seeded: false}\n")
    scripted = 'policy={"kind": "scripted", "replies": ["on"]}'
    repository = str(Path(__file__).parent.parent)
    done = call(tmp_path, "run", config, "name=mine", scripted, "--allow-import", PYTHONPATH=repository)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    run = tmp_path / "runs" / "mine"
    assert (run / "report.html").exists()
    shown = [message["content"] for sample in lines(run / "samples.jsonl") for message in sample["messages"]]
    assert any(text.startswith("\ufffd ") for text in shown)
    again = call(tmp_path, "replay", "runs/mine", "g0.0", "--allow-import", PYTHONPATH=repository)
    assert (again.returncode, again.stdout.endswith("the same as recorded\n")) == (0, True)


def test_advantages_of_samples_are_of_normalized_rewards(tmp_path: Path) -> None:
    config = write_config(tmp_path, "bandit")
    assert call(tmp_path, "run", config, "name=mine", "advantage=dr_grpo", "policy.error_rate=0.5").returncode == 0
    samples = lines(tmp_path / "runs" / "mine" / "samples.jsonl")
    assert any(sample["reward"] != sample["score"] for sample in samples)
    assert any(sample["advantage"] for sample in samples)
    for sample in samples:
        group = sample["uid"].rpartition(".")[0]
        peers = [one["score"] for one in samples if one["uid"].rpartition(".")[0] == group]
        assert sample["advantage"] == pytest.approx(sample["score"] - sum(peers) / len(peers))


async def test_replay_of_an_evaluation_opens_the_env_as_it_was(tmp_path: Path) -> None:
    async with Rollouts(
        "frozen_lake", env_kwargs={"size": 4}, policy=SolverPolicy(), group_size=2, run_dir=tmp_path / "run"
    ) as rollouts:
        evaluation = await rollouts.evaluate(1, env_kwargs={"size": 6})
        odd = await rollouts.evaluate(1, env_kwargs={"size": Whole(6)})
    (played,) = evaluation.trajectories
    for uid in (played.uid, odd.trajectories[0].uid):
        done = await anyio.to_thread.run_sync(call_program, tmp_path, "replay", "run", uid)
        assert (done.returncode, done.stdout.endswith("the same as recorded\n")) == (0, True)


class Whole(int):
    """A number of a class of its own, as a record's arguments may have."""


def test_resume_with_another_agent_is_refused_and_leaves_all_as_it_was_unless_it_is_accepted(
    mine: Path,
    tmp_path: Path,
) -> None:
    before = [(mine / name).read_bytes() for name in ("config.resolved.yaml", "journal.jsonl")]
    other = ("resume", "runs/mine", "batches=4", "agent.history=1", "--quiet")
    refused = call(tmp_path, *other)
    assert refused.returncode == 2
    assert "cannot be resumed with other settings: agent.history=1 (was None); to accept that" in refused.stderr
    assert "--accept-changes agent.history" in refused.stderr
    assert [(mine / name).read_bytes() for name in ("config.resolved.yaml", "journal.jsonl")] == before
    (mine / "config.resolved.yaml.part").mkdir()
    unwritten = call(tmp_path, "resume", "runs/mine", "batches=4", "--quiet")
    assert (unwritten.returncode, "Traceback" in unwritten.stderr) == (1, False)
    assert "cannot write to runs/mine: Is a directory" in unwritten.stderr
    (mine / "config.resolved.yaml.part").rmdir()
    accepted = call(tmp_path, *other, "--accept-changes", "agent.history")
    assert accepted.returncode == 0, accepted.stderr
    assert len(delivered(mine)) == 4
    assert call(tmp_path, "resume", "runs/mine", "batches=5", "--quiet").returncode == 0
    assert len(delivered(mine)) == 5
