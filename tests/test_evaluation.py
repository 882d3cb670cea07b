"""Evaluations from the command line: who plays what where, what is recorded, what fails, and how it is reported."""

import json
import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pytest

from asyncrollout import Outcome, find_env
from asyncrollout.cli.app import main
from asyncrollout.dropin.rlinf.config import VIDEO_DIRECTORY, Eval, VideoCfg, parse_evaluation, read_evaluation
from asyncrollout.dropin.rlinf.plan import make_plan
from asyncrollout.dropin.rlinf.player import EvaluationPlayer
from asyncrollout.dropin.rlinf.results import EvaluatedEpisode, summarize
from asyncrollout.dropin.rlinf.run import run_plan
from asyncrollout.trajectories import Move
from asyncrollout.types import Generation
from asyncrollout.video.episode_writer import EpisodeWriter
from asyncrollout.video.ffmpeg import find_ffmpeg
from asyncrollout.video.files import claim, new_part, new_take
from tests.envs.evaluation import STEP
from tests.llm_faults import Reply
from tests.llm_server import llm_server
from tests.playing import PATIENCE
from tests.test_cli_runs import call_program, launched
from tests.video_files import decode, is_whole, names

ENVS = "tests.envs.evaluation"
PAINTER = (f"env.eval.env_type={ENVS}:Painter", "env.eval.max_episode_steps=3", "--allow-import")
ACTING = ("--policy", f"{ENVS}:act")
VIDEOS = Path("logs/behavior_eval/video/eval")


@pytest.fixture
def evaluate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in a new directory, and gives its code, what it shows, and what it complains of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, text: str = "env.eval.seed: 0") -> tuple[int, str, str]:
        Path("eval.yaml").write_text(text)
        code = main(["eval", "eval.yaml", *arguments])
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return run


def painted(path: Path) -> list[tuple[int, int, int]]:
    """GPU, seed and step of each frame."""
    return [tuple(((frame[16, 16].astype(int) - 10) / STEP).round().astype(int).tolist()) for frame in decode(path)]


def records(out: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    *episodes, ended = map(json.loads, out.splitlines())
    return sorted(episodes, key=lambda one: (one["env"], one["episode"])), ended


def test_each_env_is_recorded_where_it_was_put_and_nowhere_else(evaluate: Any) -> None:
    code, _, _ = evaluate(
        *PAINTER, *ACTING, "env.eval.total_num_envs=3", "env.eval.episodes=2", "cluster.component_placement.env=4-5"
    )
    assert code == 0
    expected = {
        "behavior_video_rank0_gpu4_env0.mp4": (4, 0),
        "behavior_video_rank0_gpu4_env1.mp4": (4, 1),
        "behavior_video_rank1_gpu5_env0.mp4": (5, 2),
        "behavior_video_rank0_gpu4_env0_episode1.mp4": (4, 3),
        "behavior_video_rank0_gpu4_env1_episode1.mp4": (4, 4),
        "behavior_video_rank1_gpu5_env0_episode1.mp4": (5, 5),
    }
    assert names(VIDEOS) == sorted(expected)
    for name, (gpu, seed) in expected.items():
        assert painted(VIDEOS / name) == [(gpu, seed, step) for step in range(4)]


def test_what_is_reported_to_programs(evaluate: Any) -> None:
    code, out, _ = evaluate(*PAINTER, *ACTING, "env.eval.total_num_envs=2", "--json")
    episodes, ended = records(out)
    assert code == 0
    assert episodes[1] | {"seconds": 0} == {
        "event": "episode",
        "env": "rank0_gpu0_env1",
        "rank": 0,
        "gpu": 0,
        "env_idx": 1,
        "episode": 0,
        "seed": 1,
        "task": f"{ENVS}:Painter",
        "success": False,
        "reward": 0.5 + 1.5 + 2.5,
        "steps": 3,
        "stop_reason": "turns",
        "seconds": 0,
        "error": "",
        "video": "behavior_video_rank0_gpu0_env1.mp4",
    }
    assert (ended["state"], ended["episodes"], ended["failed"]) == ("done", 2, 0)
    assert ended["success"]["mean"] == 0.5
    assert ended["success"]["low"] < 0.5 < ended["success"]["high"]
    assert ended["reward"] == {"mean": 4.5, "low": None, "high": None}
    assert ended["tasks"].keys() == {f"{ENVS}:Painter"}
    assert ended["videos"] == 2


def test_what_is_reported_to_people(evaluate: Any) -> None:
    code, out, _ = evaluate("env.eval.total_num_envs=2", "env.eval.tasks=[bring_cup, set_table]")
    assert code == 0
    assert "household: 2 envs in 1 process (GPU 0), split test, videos in logs/behavior_eval/video/eval" in out
    assert "2 of 2: " in out
    rows = [line.split() for line in out.splitlines()]
    assert ["rank0_gpu0_env0", "bring_cup", "0", "yes", "1.000"] in [row[:5] for row in rows]
    assert ["rank0_gpu0_env1", "set_table", "1", "yes", "1.000"] in [row[:5] for row in rows]
    assert ["all", "2", "100%"] in [row[:3] for row in rows]
    assert "confidence intervals" in out
    assert "Videos: 2, logs/behavior_eval/video/eval/behavior_video_ENV.mp4" in out


def test_envs_with_splits_play_test(evaluate: Any) -> None:
    """As many episodes as there are rows play each row of the split once."""

    def played(*more: str) -> tuple[str | None, list[str]]:
        code, out, err = evaluate(
            "env.eval.env_type=metamathqa", "env.eval.video_cfg.save_video=false", *more, "--json"
        )
        assert code == 0, err
        return records(out)[1]["split"], [one["env"] for one in records(out)[0]]

    config = parse_evaluation("env.eval: {env_type: metamathqa, total_num_envs: 4, episodes: 2}")
    plan = make_plan(config, find_env("metamathqa"))
    assert (plan.split, plan.kwargs) == ("test", {"split": "test"})
    assert sorted(seed for env in plan.envs for seed in env.seeds) == [*range(8)]
    assert played()[0] == "test"
    assert played("env.eval.split=val")[0] == "val"
    assert played("env.eval.env_kwargs.split=train")[0] == "train"
    code, out, _ = evaluate(*PAINTER, *ACTING, "--json")
    assert (code, records(out)[1]["split"]) == (0, None)


def test_episodes_do_not_depend_on_where_they_are_played(evaluate: Any) -> None:
    def outcome(**more: str) -> list[tuple[Any, ...]]:
        placed = [f"cluster.component_placement.env={more['env']}"]
        _, out, _ = evaluate(*placed, "env.eval.total_num_envs=3", "env.eval.video_cfg.save_video=false", "--json")
        return sorted((one["seed"], one["task"], one["reward"], one["steps"]) for one in records(out)[0])

    assert outcome(env="0") == outcome(env="0-2")


def test_an_env_that_needs_its_own_process_has_one(evaluate: Any) -> None:
    code, out, err = evaluate(
        f"env.eval.env_type={ENVS}:Loner", *PAINTER[1:], *ACTING, "env.eval.total_num_envs=3", "--json",
        "cluster.component_placement.env=6",
    )  # fmt: skip
    assert code == 0, err
    episodes, _ = records(out)
    assert [one["env"] for one in episodes] == [f"rank0_gpu6_env{at}" for at in range(3)]
    assert [painted(VIDEOS / one["video"])[-1] for one in episodes] == [(6, seed, 3) for seed in range(3)]


def test_failures_are_reported_and_the_others_continue(evaluate: Any) -> None:
    kwargs = "env.eval.env_kwargs={crash_at: 1, fails_at: 2}"
    placed = "cluster.component_placement.env=0-3"
    code, out, err = evaluate(*PAINTER, *ACTING, kwargs, placed, "env.eval.total_num_envs=4")
    assert code == 0
    rows = {row[0]: row for row in (line.split() for line in out.splitlines()) if row[:1] and row[0].startswith("rank")}
    assert [rows[f"rank{at}_gpu{at}_env0"][3] for at in range(4)] == ["yes", "-", "-", "no"]
    assert "EnvCrashed" in " ".join(rows["rank1_gpu1_env0"])
    assert "this one cannot" in out
    assert "2 of 4 episodes failed and are not counted" in err
    videos = [painted(VIDEOS / f"behavior_video_rank{at}_gpu{at}_env0.mp4") for at in (0, 3)]
    assert videos == [[(at, at, step) for step in range(4)] for at in (0, 3)]


def test_if_all_fail_so_does_the_command(evaluate: Any) -> None:
    code, _, err = evaluate(*PAINTER, *ACTING, "env.eval.env_kwargs.fails_at=0")
    assert code == 1
    assert "all 1 episodes failed; the first one: EnvError" in err


@pytest.mark.parametrize("policy", ["act", "act_later"])
def test_functions_of_the_observation_play_raw_envs(evaluate: Any, policy: str) -> None:
    code, out, _ = evaluate(*PAINTER, "--policy", f"{ENVS}:{policy}", "env.eval.video_cfg.save_video=false", "--json")
    assert code == 0
    assert records(out)[0][0]["reward"] == 4.5


def test_policies_play_raw_envs(evaluate: Any) -> None:
    code, out, _ = evaluate(*PAINTER, "--policy", f"{ENVS}:Adding", "env.eval.video_cfg.save_video=false", "--json")
    assert code == 0
    assert records(out)[0][0]["reward"] == 1 + 2 + 3


def test_tasks_may_be_anything(evaluate: Any) -> None:
    tasks = "env.eval.tasks=[{target: 6, nums: [1, 2, 3]}]"
    more = ("env.eval.env_type=countdown", "env.eval.total_num_envs=2", "env.eval.video_cfg.save_video=false")
    code, out, _ = evaluate(tasks, *more, "--json")
    assert code == 0
    assert [(one["success"], one["task"]) for one in records(out)[0]] == [
        (True, "{'target': 6, 'nums': [1, 2, 3]}")
    ] * 2


def test_policies_with_options_play_text_envs(evaluate: Any) -> None:
    text = f"policy: {{kind: python, path: '{ENVS}:Waiting', kwargs: {{word: forward}}}}"
    code, out, _ = evaluate("--allow-import", "env.eval.max_episode_steps=3", "--json", text=text)
    assert code == 0
    assert [(one["steps"], one["stop_reason"], one["success"]) for one in records(out)[0]] == [(3, "truncated", False)]


def test_text_envs_without_a_limit_of_that_name_are_limited_from_outside(evaluate: Any) -> None:
    more = ("env.eval.env_type=sokoban", "env.eval.max_episode_steps=2", "env.eval.video_cfg.save_video=false")
    _, out, _ = evaluate(*more, "--json", "--allow-import", "--policy", f"{ENVS}:Waiting")
    assert records(out)[0][0]["stop_reason"] == "invalid"
    _, out, _ = evaluate(*more, "--json")
    assert records(out)[0][0]["steps"] == 2
    few = ("env.eval.max_episode_steps=3", "env.eval.env_kwargs.max_actions_per_traj=1")
    _, out, _ = evaluate(*more, *few, "--json")
    assert records(out)[0][0]["steps"] == 1


def test_functions_play_text_envs_within_their_limit(evaluate: Any) -> None:
    more = ("env.eval.env_type=frozen_lake", "env.eval.max_episode_steps=4", "env.eval.env_kwargs.is_slippery=false")
    _, out, _ = evaluate(
        *more, "env.eval.video_cfg.save_video=false", "--json", "--policy", f"{ENVS}:wait", "--allow-import"
    )
    episode = records(out)[0][0]
    assert (episode["error"], episode["steps"], episode["stop_reason"]) == ("", 4, "turns")


def test_the_expert_can_be_asked_for(evaluate: Any) -> None:
    code, out, _ = evaluate(
        "--policy",
        "solver",
        "env.eval.video_cfg.save_video=false",
        "--json",
        text="policy: {kind: scripted, replies: [x]}",
    )
    assert code == 0
    assert records(out)[0][0]["success"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env.eval.total_num_env=4"], "did you mean 'env.eval.total_num_envs'?"),
        (["env.eval.env_type=behaviour"], "did you mean 'behavior'?"),
        (["env.eval.env_type=behavior"], "policy: behavior has no expert: configure a policy"),
        (["env.eval.env_type=behavior", *ACTING, "--allow-import"], "pip install omnigibson"),
        (["cluster.component_placement.env=3-1"], "found '3-1': a range is ascending: write 1-3"),
        (["cluster.component_placement.rollout=x"], "rollout: found 'x'"),
        (["env.eval.env_type=sokoban", "env.eval.resolution=low"], "sokoban has no such option"),
        (["env.eval.resolution=medium"], "env.eval.resolution"),
        (["env.eval.video_cfg.fps=5000"], "env.eval.video_cfg.fps: found 5000"),
        (["env.eval.tasks=[sing]"], "task='sing' is no activity"),
        (["env.eval.env_kwargs.colour=red"], "takes no keyword 'colour'"),
        (["env.eval.env_kwargs.text=false"], "the evaluation sets it"),
        (["env.eval.split=dev"], "env.eval.split: household has no split 'dev'; available: train, val, test"),
        (["env.eval.env_type=game_2048", "env.eval.split=x"], "game_2048 has no split 'x'"),
        ([*PAINTER, "env.eval.split=test"], "Painter has no splits: remove the key"),
        (["env.eval.split=val", "env.eval.env_kwargs.split=train"], "split='train': env.eval.split is 'val': give one"),
        (
            ["env.eval.max_episode_steps=5", "env.eval.env_kwargs.max_episode_steps=4"],
            "env_kwargs.max_episode_steps=4: env.eval.max_episode_steps is 5: give one",
        ),
        (["--base-url", "http://localhost:1"], "--base-url and --model go together"),
        (["--base-url", "localhost", "--model", "m"], "policy.base_url: found another value"),
        (["env.eval.env_type=nowhere_at_all:Env", *ACTING, "--allow-import"], "no env is called 'nowhere_at_all:Env'"),
        (["--policy", f"{ENVS}:act"], "allow it with --allow-import"),
        (["--policy", "act", "--allow-import"], "neither 'solver', the env's expert, nor an import path, module:name"),
        (["--policy", f"{ENVS}:NEITHER", "--allow-import"], "policy: 7 is not a policy, an agent or a function"),
        (["--policy", f"{ENVS}:nothing", "--allow-import"], "cannot be imported"),
        (
            [f"policy={{kind: python, path: '{ENVS}:act', kwargs: {{word: forward}}}}", "--allow-import"],
            f"policy.kwargs: {ENVS}:act cannot be called with these (word): missing a required argument: 'observation'",
        ),
        ([f"env.eval.env_type={ENVS}:Painter"], "allow it with --allow-import"),
    ],
)
def test_mistakes_are_reported(evaluate: Any, arguments: list[str], message: str) -> None:
    code, _, err = evaluate(*arguments)
    assert message in err
    assert code == 2
    assert not list(VIDEOS.glob("*.mp4"))


def test_a_missing_file_is_reported(evaluate: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "nowhere.yaml"]) == 2
    assert "nowhere.yaml: no such file" in capfd.readouterr().err


def test_where_no_video_can_be_written(evaluate: Any) -> None:
    Path("logs").write_text("a file in the way")
    code, _, err = evaluate("env.eval.max_episode_steps=1")
    assert code == 1
    assert "cannot record videos in" in err


def test_an_env_without_pictures_has_no_video_and_that_is_reported(evaluate: Any) -> None:
    code, out, err = evaluate("env.eval.env_type=countdown", "env.eval.total_num_envs=2")
    assert code == 0
    assert "Videos: none" in out
    assert err.count("env_not_recorded") == 1
    assert names(VIDEOS) == []
    _, out, _ = evaluate("env.eval.env_type=countdown", "--json")
    assert records(out)[1]["videos_not_made"] == ["behavior_video_rank0_gpu0_env0.mp4"]


def test_two_evaluations_at_once_do_not_overwrite_each_others_videos(evaluate: Any) -> None:
    VIDEOS.mkdir(parents=True)
    held, _ = claim(VIDEOS)
    try:
        code, _, err = evaluate(*PAINTER, *ACTING)
    finally:
        os.close(held)
    assert code == 2
    assert "another process records videos of the same names in" in err
    assert names(VIDEOS) == []


def test_videos_of_an_evaluation_before_are_set_aside(evaluate: Any) -> None:
    evaluate(*PAINTER, *ACTING, "env.eval.total_num_envs=2")
    evaluate(*PAINTER, *ACTING, "env.eval.seed=7")
    assert names(VIDEOS) == ["behavior_video_rank0_gpu0_env0.mp4", "earlier-1"]
    assert names(VIDEOS / "earlier-1") == [f"behavior_video_rank0_gpu0_env{at}.mp4" for at in range(2)]
    assert painted(VIDEOS / "behavior_video_rank0_gpu0_env0.mp4")[0] == (0, 7, 0)


def test_what_a_killed_evaluation_left_behind_is_made_whole_and_set_aside(evaluate: Any) -> None:
    VIDEOS.mkdir(parents=True)
    for at in range(2):
        part = new_part(VIDEOS, f"behavior_video_rank0_gpu0_env{at}", new_take())
        reel = EpisodeWriter(part, fps=5, ffmpeg=find_ffmpeg(), max_bytes=None)
        reel.write(np.full((32, 32, 3), 10, dtype=np.uint8))
        reel.end()
        reel.wait()
    evaluate(*PAINTER, *ACTING, "env.eval.seed=7")
    assert names(VIDEOS) == ["behavior_video_rank0_gpu0_env0.mp4", "earlier-1"]
    assert names(VIDEOS / "earlier-1") == [f"behavior_video_rank0_gpu0_env{at}.mp4" for at in range(2)]
    assert painted(VIDEOS / "behavior_video_rank0_gpu0_env0.mp4")[0] == (0, 7, 0)


def test_a_policy_of_ones_own_sees_its_gpus_and_the_envs_see_theirs(
    evaluate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7,8,9")
    placed = ("cluster.component_placement={env: 1-2, rollout: 3}", "env.eval.total_num_envs=2")
    code, out, _ = evaluate(*PAINTER, *placed, "--policy", f"{ENVS}:Seeing", "--json")
    assert code == 0
    episodes, _ = records(out)
    assert [one["reward"] for one in episodes] == [8 * 3] * 2
    assert [painted(VIDEOS / one["video"])[0][0] for one in episodes] == [6, 7]


def test_names_frames_and_pace_are_as_configured(evaluate: Any) -> None:
    video = "env.eval.video_cfg={video_base_dir: videos, prefix: kitchen, fps: 4, info_on_video: true}"
    evaluate(video, "env.eval.max_episode_steps=1", "env.eval.resolution=low")
    (file,) = Path("videos").iterdir()
    assert file.name == "kitchen_rank0_gpu0_env0.mp4"
    assert decode(file).shape == (2, 256 + 16, 384, 3)


async def test_a_slow_env_holds_no_other_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first env's policy waits for all the others to have finished."""
    monkeypatch.chdir(tmp_path)
    config = parse_evaluation("env.eval: {total_num_envs: 3, max_episode_steps: 2, video_cfg: {save_video: false}}")
    plan = make_plan(config, find_env("household"))
    others_done = anyio.Event()
    ended: list[str] = []

    class Player:
        def __init__(self, session: str) -> None:
            self.messages: list[dict[str, Any]] = []
            self._session = session

        async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:
            if self._session.startswith("rank0_gpu0_env0"):
                await others_done.wait()
            return Move("<answer>wait</answer>", Generation("<answer>wait</answer>"))

    class Agent:
        def open(self, session: str, seed: int) -> Player:
            return Player(session)

    def on_episode(episode: EvaluatedEpisode) -> None:
        ended.append(episode.env)
        if len(ended) == 2:
            others_done.set()

    episodes = await run_plan(plan, config.env.eval, EvaluationPlayer(Agent(), text=True), on_episode=on_episode)
    assert ended[-1] == "rank0_gpu0_env0"
    assert [episode.env for episode in episodes] == [f"rank0_gpu0_env{at}" for at in range(3)]


async def test_a_server_plays(tmp_path: Path) -> None:
    (tmp_path / "eval.yaml").write_text("env.eval: {total_num_envs: 2, max_episode_steps: 2}")
    async with llm_server(script=lambda *_: Reply("<answer>turn left || forward</answer>")) as server:
        flags = ["--base-url", server.url, "--model", "m", "policy.attempts=2", "--json"]
        done = await anyio.to_thread.run_sync(lambda: call_program(tmp_path, "eval", "eval.yaml", *flags))
    assert done.returncode == 0, done.stderr
    episodes, _ = records(done.stdout)
    assert [(one["steps"], one["stop_reason"]) for one in episodes] == [(2, "truncated")] * 2


def test_ctrl_c_leaves_videos_that_play(tmp_path: Path) -> None:
    """Each env's policy says when it has played six steps, and then no more."""
    (tmp_path / "eval.yaml").write_text("env.eval.total_num_envs: 2")
    with launched(tmp_path, "eval", "eval.yaml", "--policy", f"{ENVS}:Halting", "--allow-import") as process:
        assert process.stdout is not None
        message = 0
        while message < 2:
            message += process.stdout.readline() == "halted\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert "stopped after 0 of 2 episodes" in out
    assert names(tmp_path / VIDEOS) == [f"behavior_video_rank0_gpu0_env{at}.mp4" for at in range(2)]
    assert all(is_whole(video) and len(decode(video)) == 7 for video in (tmp_path / VIDEOS).iterdir())


def test_the_example_is_read() -> None:
    config = read_evaluation(Path(__file__).parent.parent / "examples/configs/behavior_eval.yaml")
    plan = make_plan(config, find_env(config.env.eval.env_type))
    assert [env.name for env in plan.envs] == [
        f"behavior_video_rank{rank}_gpu{rank}_env{env_idx}" for rank in (0, 1) for env_idx in (0, 1)
    ]
    assert plan.environs == ({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"})
    assert plan.kwargs == {"resolution": "low", "max_episode_steps": 200, "split": "test"}


def test_every_key_is_documented() -> None:
    message = (Path(__file__).parent.parent / "docs/migrating/rlinf.md").read_text()
    for kind, path in ((Eval, "env.eval"), (VideoCfg, "env.eval.video_cfg")):
        for name in kind.__struct_fields__:
            assert name == "video_cfg" or f"`{path}.{name}`" in message or f"`{name}`" in message, (
                f"docs/migrating/rlinf.md lacks {path}.{name}"
            )
    assert f"`{VIDEO_DIRECTORY}`" in message


@pytest.mark.parametrize("most", [1, 4])
def test_more_processes_than_envs_are_not_started(most: int) -> None:
    config = parse_evaluation(f"env.eval.total_num_envs: {most}\ncluster.component_placement.env: 0-7")
    assert len(make_plan(config, find_env("household")).environs) == most


def test_figures_leave_out_what_failed() -> None:
    won = EvaluatedEpisode("a", 0, 0, 0, 0, 0, "t", success=True, reward=1.0, steps=10)
    lost = EvaluatedEpisode("b", 0, 0, 1, 0, 1, "t", success=False, reward=0.0, steps=20)
    failed = EvaluatedEpisode("c", 0, 0, 2, 0, 2, "t", error="EnvError: x")
    found = summarize([won, lost, failed])
    assert (found.episodes, found.failed) == (3, 1)
    assert [found.success.mean, found.reward.mean, found.steps.mean] == [0.5, 0.5, 15.0]
    assert summarize([failed]).reward.mean is None
    low, high = summarize([won] * 8).success.low, summarize([won] * 8).success.high
    assert low is not None
    assert 0.5 < low < 1.0 == high
    assert not math.isnan(low)
