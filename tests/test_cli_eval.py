"""`asyncrollout eval` for any env and model: its figures, how it is stopped and resumed, and what it refuses."""

import io
import json
import re
import signal
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from asyncrollout import EnvError, Group, Rollouts, SolverPolicy, StopReason
from asyncrollout.cli.app import main
from asyncrollout.cli.terminal.scores import EvaluationProgress, evaluation_summary, read_evaluated
from asyncrollout.journal.events import Began, Dispatched, Evaluated, Evaluating, Finished
from asyncrollout.report.compared_run import decide, read_side
from asyncrollout.report.page import write_report
from asyncrollout.stats import pass_at
from asyncrollout.viewer.run_index import status_of
from tests.llm_faults import Hold, Reply
from tests.llm_server import llm_server
from tests.recorded_runs import BEGAN, events_of, group_of_rewards, played, write_run
from tests.test_cli_runs import call, call_program, launched, lines, write_config
from tests.test_report import data_of, part_of

SOLVER = ("--policy", "solver", "policy.error_rate=0.3")


def records_of(directory: Path) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in lines(directory / "trajectories.jsonl"):
        groups.setdefault(record["group"], []).append(record)
    return groups


async def test_figures_are_those_of_the_recorded_rollouts_and_of_evaluate(tmp_path: Path) -> None:
    flags = ["--env", "frozen_lake", "--env.size", "3", *SOLVER, "-n", "8", "-k", "3", "--seed", "5", "--json"]
    done = await anyio.to_thread.run_sync(lambda: call_program(tmp_path, "eval", *flags))
    assert (done.returncode, done.stderr) == (0, "")
    launch, end = map(json.loads, done.stdout.splitlines())
    assert launch["directory"] == "runs/eval-frozen_lake-1"
    run = tmp_path / launch["directory"]
    groups = records_of(run)
    assert {len(members) for members in groups.values()} == {3}
    assert end["tasks"] == end["wanted_tasks"] == len(groups) == 8
    won = [sum(bool(one["turns"][-1]["info"]["success"]) for one in members) for members in groups.values()]
    for k in (1, 3):
        assert end["pass_at"][str(k)]["mean"] == pytest.approx(np.mean([pass_at(3, wins, k) for wins in won]))
        assert 0 <= end["pass_at"][str(k)]["low"] <= end["pass_at"][str(k)]["high"] <= 1
    everybody = [one for members in groups.values() for one in members]
    assert end["reward"]["mean"] == pytest.approx(np.mean([one["reward"] for one in everybody]))
    assert end["replies"] == sum(len(one["turns"]) for one in everybody)
    assert end["invalid"] == sum(not turn["valid"] for one in everybody for turn in one["turns"])
    assert (run / "report.html").exists()
    more = await anyio.to_thread.run_sync(lambda: call_program(tmp_path, "resume", run, "evaluate=9"))
    assert (more.returncode, "evaluate: found 9, but" in more.stderr) == (2, True), more.stderr
    async with Rollouts("frozen_lake", env_kwargs={"size": 3}, policy=SolverPolicy(0.3), group_size=3) as rollouts:
        heard: list[Group] = []
        evaluation = await rollouts.evaluate(8, k=3, seed=5, on_group=heard.append)
    assert evaluation.pass_at(1) == pytest.approx(end["pass_at"]["1"]["mean"])
    assert evaluation.mean_reward == pytest.approx(end["reward"]["mean"])
    assert {group.id for group in heard} == {group.id for group in evaluation.groups}


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """Of a process that was killed: its last line may be torn."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


async def test_killed_and_stopped_an_evaluation_asks_nothing_twice(tmp_path: Path) -> None:
    """The server holds all calls after the third, until it is released."""
    run, answered, go = tmp_path / "runs" / "parts", 3, anyio.Event()
    answer = Reply("<answer>A</answer>")
    async with llm_server(script=lambda number, _: answer if number < answered else Hold(go, then=answer)) as server:

        def asked() -> int:
            return sum(seen.path.endswith("/chat/completions") for seen in server.requests)

        def replied() -> int:
            calls = (seen for seen in server.requests if seen.path.endswith("/chat/completions"))
            return sum(seen.status == 200 and seen.done and not seen.hung_up for seen in calls)

        flags = ["--env", "bandit", "--base-url", server.url, "--model", "m", "-n", "4", "-k", "2", "--max-turns", "1"]
        with launched(tmp_path, "eval", *flags, "--run-dir", "runs/parts", "--max-in-flight", "2") as process:
            await server.until(lambda: replied() == answered and asked() == answered + 2)
            process.kill()
            await anyio.to_thread.run_sync(process.wait)
        replies = {event["uid"] for event in whole_lines(run / "journal.jsonl") if event["event"] == "turn"}
        finished = {record["uid"] for record in whole_lines(run / "trajectories.jsonl")}  # they are written first
        lost = answered - len(replies | finished)
        with launched(tmp_path, "resume", "runs/parts") as process:
            await server.until(lambda: asked() > answered + 2)
            assert process.stderr is not None
            process.send_signal(signal.SIGINT)
            assert "stopping" in await anyio.to_thread.run_sync(process.stderr.readline)
            process.send_signal(signal.SIGINT)
            out, _ = await anyio.to_thread.run_sync(process.communicate)
        assert process.returncode == 130
        assert "resume    asyncrollout resume runs/parts" in out
        go.set()
        before = asked()
        resumed = await anyio.to_thread.run_sync(lambda: call_program(tmp_path, "resume", "runs/parts", "--json"))
        assert asked() - before == 8 - answered + lost
    assert resumed.returncode == 0, resumed.stderr
    uids = [record["uid"] for record in lines(run / "trajectories.jsonl")]
    assert len(uids) == len({*uids}) == 8
    end = json.loads(resumed.stdout.splitlines()[-1])
    assert (end["tasks"], end["rollouts"], end["failed"]) == (4, 8, 0)
    journal = (run / "journal.jsonl").read_bytes()
    once_more = await anyio.to_thread.run_sync(lambda: call_program(tmp_path, "resume", "runs/parts"))
    assert once_more.returncode == 0, once_more.stderr
    assert "parts: done" in once_more.stdout
    assert "pass@2" in once_more.stdout
    assert (run / "journal.jsonl").read_bytes() == journal


async def test_a_server_without_logprobs_is_evaluated(tmp_path: Path) -> None:
    async with llm_server(script=lambda *_: Reply("<answer>A</answer>")) as server:
        flags = ["--env", "bandit", "--base-url", server.url, "--model", "m", "-n", "3", "--temperature", "0.5"]
        done = await anyio.to_thread.run_sync(lambda: call_program(tmp_path, "eval", *flags, "--max-tokens", "7"))
        bodies = [seen.body for seen in server.requests if seen.path.endswith("/chat/completions")]
    assert done.returncode == 0, done.stderr
    assert "tasks     3 of 3, 3 rollouts" in done.stdout
    assert bodies
    assert all(body["temperature"] == 0.5 and body["max_tokens"] == 7 for body in bodies)
    assert not any(body.get("logprobs") for body in bodies)


async def test_a_conversation_in_completions_says_what_to_set(tmp_path: Path) -> None:
    async with llm_server() as server:
        flags = ["--env", "bandit", "--base-url", server.url, "--model", "m", "-n", "1", "policy.mode=completions"]
        done = await anyio.to_thread.run_sync(lambda: call_program(tmp_path, "eval", *flags))
    assert done.returncode == 2
    assert "agent.history: 0 and agent.system_prompt: ''" in done.stderr


async def test_the_demo_asks_a_server_for_no_logprobs(tmp_path: Path) -> None:
    async with llm_server(script=lambda *_: Reply("<answer>A</answer>")) as server:
        flags = ["bandit", "--base-url", server.url, "--model", "m", "--batches", "1", "--quiet"]
        done = await anyio.to_thread.run_sync(lambda: call_program(tmp_path, "demo", *flags))
        bodies = [seen.body for seen in server.requests if seen.path.endswith("/chat/completions")]
    assert done.returncode == 0, done.stderr
    assert bodies
    assert not any(body.get("logprobs") for body in bodies)


def test_the_file_of_a_run_is_evaluated_without_its_filter(tmp_path: Path) -> None:
    config = write_config(tmp_path, more="keep: reward_varies\n")
    done = call(tmp_path, "eval", config, "env_kwargs.size=3", "-n", "3", "--json")
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert (end["tasks"], end["rollouts"]) == (3, 3)
    assert "size: 3" in (tmp_path / "runs" / "eval-frozen_lake-1" / "config.resolved.yaml").read_text()
    listed = write_config(tmp_path, more="tasks: [a, b, c, d]\n")
    few = call(tmp_path, "eval", listed, "-n", "5")
    assert (few.returncode, "there are 4 tasks" in few.stderr) == (2, True)


async def test_settings_of_the_policy_of_the_command_line(tmp_path: Path) -> None:
    """They apply to it, not to the file's."""
    (tmp_path / "run.yaml").write_text("env: bandit\npolicy: {kind: solver, error_rate: 0.5}")
    async with llm_server(script=lambda *_: Reply("<answer>1</answer>")) as server:
        flags = ["run.yaml", "--base-url", server.url, "--model", "m", "-n", "1", "policy.attempts=3", "--json"]
        done = await anyio.to_thread.run_sync(lambda: call_program(tmp_path, "eval", *flags))
    assert done.returncode == 0, done.stderr
    assert "attempts: 3" in (tmp_path / "runs/eval-bandit-1/config.yaml").read_text()


def test_when_all_fails_there_is_nothing_to_resume(tmp_path: Path) -> None:
    flags = ["--env", "tests.envs.tiny:Refuses", "--allow-import", "--policy", "scripted", "policy.replies=[x]"]
    done = call(Path.cwd(), "eval", *flags, "-n", "2", "--run-dir", tmp_path / "failed")
    assert done.returncode == 1
    assert "all 2 rollouts failed" in done.stderr
    assert "evaluate again once the cause is fixed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "sokobn", *SOLVER], "no env is called 'sokobn': did you mean 'sokoban'?"),
        (["--env", "sokoban"], "no policy: give --base-url http://localhost:8000/v1 --model NAME, or --policy solver"),
        ([], "nothing to evaluate: give --env NAME"),
        (["agent.history=2"], "nothing to evaluate: give --env NAME"),
        (["--env", "sokoban", "--policy", "solvr"], "did you mean 'solver'?"),
        (["--env", "sokoban", "--base-url", "http://h/v1"], "--base-url and --model go together"),
        (["--env", "sokoban", *SOLVER, "-n", "0"], "--tasks 0: must be a whole number from 1"),
        (["--env", "sokoban", *SOLVER, "-k", "0"], "--samples 0: must be a whole number from 1"),
        (["--env", "sokoban", *SOLVER, "groop_size=2"], "did you mean 'group_size'?"),
        (["--env", "my_module:Env", *SOLVER], "allow it with --allow-import"),
        (["--env", "frozen_lake", *SOLVER, "--env.sizee", "3"], "it takes no keyword 'sizee': did you mean 'size'?"),
        (["ranked.yaml", "-n", "3"], "--tasks: ranked.yaml has RLinf's keys: set one of them instead"),
        (["run.yaml", "--env.size", "3"], "only with --env; with a file, write env_kwargs.KEY=VALUE"),
        (["--env", "bandit", "--policy", "module:act"], "an import path works with RLinf's keys only"),
        (["typo.yaml", *SOLVER], "typo.yaml, line 1: unknown key 'envs': did you mean 'env'?"),
        (["--env", "bandit", *SOLVER, "--name", "a", "--run-dir", "b"], "choose one"),
    ],
)
def test_mistakes_are_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "ranked.yaml").write_text("env.eval.total_num_envs: 1")
    (tmp_path / "run.yaml").write_text("env: frozen_lake")
    (tmp_path / "typo.yaml").write_text("envs: frozen_lake\nenv: bandit")
    monkeypatch.chdir(tmp_path)
    assert main(["eval", *arguments]) == 2
    assert message in capsys.readouterr().err


def evaluation_of(directory: Path, *groups: Group, k: int = 2, complete: bool = True, tasks: int = 3) -> Path:
    """A run that did nothing but evaluate."""
    events = [event for event in events_of([*groups]) if isinstance(event, Began | Dispatched | Finished)]
    began = Evaluating(at=BEGAN, name="eval0", what=0, tasks=tasks, k=k)
    ended = [Evaluated(at=BEGAN + 50, name="eval0")] if complete else []
    return write_run(directory, [*groups], [events[0], began, *events[1:], *ended])


def test_report_and_figures_of_an_evaluation_agree(tmp_path: Path) -> None:
    broken = played("eval0-g2", 1, [], error=EnvError("broken"), stop_reason=StopReason.ENV_ERROR)
    groups = [
        group_of_rewards("eval0-g0", [0.0, 1.0], keep=None), group_of_rewards("eval0-g1", [1.0, 1.0], keep=None),
        Group("eval0-g2", [played("eval0-g2", 0, [0.0]), broken], "maze"),
    ]  # fmt: skip
    run = evaluation_of(tmp_path / "run", *groups)
    (scores,) = read_evaluated(run, 3).scores
    assert (scores.tasks, scores.rollouts, scores.failed, scores.errors) == (3, 6, 1, {"EnvError": 1})
    assert scores.pass_at[1].mean == pytest.approx((0.5 + 1 + 0) / 3)
    assert scores.pass_at[2].mean == 1.0  # the broken group has one outcome, and cannot tell
    message = dict(read_evaluated(run, 3).lines())
    assert (message["pass@1"].endswith("]"), message["pass@2"].endswith("] of 2 tasks")) == (True, True)
    written = write_report(run)
    summary = data_of(written.path, "summary")
    tiles = {tile["label"]: tile["value"] for tile in summary["tiles"]}
    assert (tiles["Pass rate"], tiles["pass@2"]) == (scores.pass_at[1].mean, scores.pass_at[2].mean)
    assert (tiles["Reward"], tiles["Tasks"], tiles["Rollouts"]) == (scores.reward.mean, 3, 6)
    assert written.totals.reward == scores.reward
    assert "Complete: all 3 tasks" in summary["state"]
    assert status_of("run", run).state == "complete"


def test_groups_of_which_some_members_play_do_not_count(tmp_path: Path) -> None:
    groups = [group_of_rewards("eval0-g0", [0.0, 1.0], keep=None), group_of_rewards("eval0-g1", [1.0], keep=None)]
    run = evaluation_of(tmp_path / "run", *groups, complete=False)
    assert read_evaluated(run, 3).scores[0].tasks == 1
    assert status_of("run", run).state != "complete"
    assert "1 of 3 tasks finished" in data_of(write_report(run).path, "summary")["state"]


def test_evaluations_are_compared_by_pairs_and_stay_out_of_the_figures_of_training(tmp_path: Path) -> None:
    first = [group_of_rewards(f"eval0-g{at}", [0.0, 1.0], keep=None) for at in range(3)]
    other = [group_of_rewards(f"eval0-g{at}", [1.0, 1.0], keep=None) for at in range(3)]
    sides = [read_side(evaluation_of(tmp_path / name, *groups), name) for name, groups in (("a", first), ("b", other))]
    decide(sides)
    assert [one.what for one in sides[0].played] == [one.what for one in sides[1].played]
    assert [side.group_size for side in sides] == [2, 2]
    trained = [group_of_rewards("g0", [0.0, 4.0]), group_of_rewards("g1", [0.0, 4.0])]
    events = events_of(trained)
    evaluating = Evaluating(at=BEGAN + 30, name="eval0", what=0, tasks=3, k=2)
    ends = [event for event in events_of(first) if isinstance(event, Dispatched | Finished)]
    run = write_run(tmp_path / "both", [*trained, *first], [*events, evaluating, *ends])
    summary = data_of(write_report(run).path, "summary")
    assert {tile["label"]: tile["value"] for tile in summary["tiles"]}["Reward"] == 2.0
    assert {tile["label"]: tile["value"] for tile in summary["tiles"]}["Rollouts"] == 4
    (row,) = part_of(summary, "Evaluations")["rows"]
    assert (row[:4], row[4][0]) == (["eval0", "not complete", 3, 2], 0.5)
    assert [group.id for group in read_side(run, "both").groups] == ["g0", "g1"]


async def test_what_is_shown_fits_any_terminal(tmp_path: Path) -> None:
    group = group_of_rewards("eval0-g0", [-123456789.0, 1e12], keep=None)
    found = read_evaluated(evaluation_of(tmp_path / "run", group), 123_456_789)
    async with Rollouts("bandit", policy=SolverPolicy()) as rollouts:
        progress = EvaluationProgress(rollouts, 123_456_789, 64, "a title that is long " * 20)
        for _ in range(4):
            progress.add(group)
        assert "pass@1" in progress.line()
        for width in range(20, 201):
            assert {cell_len(line) for line in _drawn(progress, width)} == {min(width, 100)}
            text = _drawn(evaluation_summary(found, "run: done", ["files     runs/run"]), width)
            assert all(cell_len(line) <= width for line in text)
            assert any(line.startswith("pass@2") for line in text)


def _drawn(what: Any, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(what)
    return file.getvalue().splitlines()


def test_the_documentation_shows_what_an_evaluation_prints(tmp_path: Path) -> None:
    """But for its numbers, which another version of an env may change."""
    page = (Path(__file__).parent.parent / "docs" / "evaluation.md").read_text()
    command, *shown = page.partition("```console\n$ asyncrollout ")[2].partition("```")[0].splitlines()
    done = call_program(tmp_path, *command.replace("-n 50", "-n 12").split())
    assert (done.returncode, done.stderr) == (0, "")

    def form(line: str) -> str:
        return re.sub(r"\d+", "0", line)

    assert [*map(form, done.stdout.splitlines())] == [*map(form, shown)]
