"""Rollouts that are recorded: every episode in its own file, and no episode other than without a camera."""

import dataclasses
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import psutil
import pytest
import structlog

import asyncrollout as ar
from asyncrollout import Limits, Request, Trajectory
from asyncrollout.journal.records import RunRecords
from asyncrollout.video import VideoRecorder
from asyncrollout.video.budget import OVER_BUDGET
from asyncrollout.video.episode_writer import EpisodeWriter
from asyncrollout.video.ffmpeg import find_ffmpeg
from asyncrollout.video.files import count_frames, is_written, new_part, new_take
from tests.envs.video import ON_WORKER, PAINTER, TURNS
from tests.playing import BACKENDS, PATIENCE
from tests.test_guards import running
from tests.test_journal_trouble import break_off
from tests.video_files import decode, full_disk, is_whole, names, painted, until

ENDS = [[0, 2], [2, 2], [2, 3], [3, 6]]
FRAMES = [*range(7)]
PARTS = "*.part"


def replies(request: Request) -> str:
    return TURNS[request.turn]


async def play(directory: Path | None, policy: Any = replies, groups: int = 2, **options: Any) -> list[Trajectory]:
    """Groups of two, four turns each, recorded if there is a directory."""
    record = options.pop("record", None) or (False if directory is None else VideoRecorder(directory))
    env_kwargs = options.pop("env_kwargs", {})
    env = options.pop("env", PAINTER)
    options = {"group_size": 2, "limits": Limits(turns=4), **options}
    with anyio.fail_after(PATIENCE):
        async with ar.Rollouts(
            env, env_kwargs=env_kwargs, policy=ar.ScriptedPolicy(policy), record=record, **options
        ) as rollouts:
            batch = await rollouts.collect(groups=groups)
    return [member for group in batch.groups for member in group.trajectories]


def without_times(trajectories: list[Trajectory]) -> list[Any]:
    """All but what time it took, and whether it was recorded."""
    return [
        msgspec.structs.replace(
            one,
            seconds=0.0,
            video=None,
            error=None,
            turns=[
                msgspec.structs.replace(
                    turn, policy_seconds=0.0, env_seconds=0.0, env_work_seconds=None, replayed=False
                )
                for turn in one.turns
            ],
        )
        for one in trajectories
    ]


def painter(one: Trajectory) -> int:
    return one.seed % 4 * 4 + one.member


@pytest.mark.parametrize("way", ["loop", "process"])
async def test_every_frame_is_in_the_file_of_its_env_and_in_no_other(tmp_path: Path, way: str) -> None:
    env = PAINTER if way == "loop" else ON_WORKER
    plain = await play(None, env=env, groups=3)
    recorded = await play(tmp_path, env=env, groups=3)
    assert names(tmp_path) == sorted(f"{one.uid}.mp4" for one in recorded)
    for one in recorded:
        path = tmp_path / f"{one.uid}.mp4"
        assert is_whole(path)
        assert painted(path) == [(painter(one), actions) for actions in FRAMES]
        assert one.video == ar.Video(path.name, 5.0, ENDS)
    assert without_times(recorded) == without_times(plain)
    assert [one.video for one in plain] == [None] * 6


async def test_worker_that_dies_costs_no_frame(tmp_path: Path) -> None:
    once = str(tmp_path / "once")
    (tmp_path / "once").touch()
    kwargs = {"kind": "dies", "once": once}
    plain = await play(None, env=ON_WORKER, env_kwargs=kwargs, workers=1)
    (tmp_path / "once").unlink()
    recorded = await play(tmp_path / "videos", env=ON_WORKER, env_kwargs=kwargs, workers=1)
    assert (tmp_path / "once").exists()  # it did die
    assert without_times(recorded) == without_times(plain)
    assert names(tmp_path / "videos") == sorted(f"{one.uid}.mp4" for one in recorded)
    for one in recorded:
        assert one.video == ar.Video(f"{one.uid}.mp4", 5.0, ENDS)
        assert painted(tmp_path / "videos" / f"{one.uid}.mp4") == [(painter(one), actions) for actions in FRAMES]


def encoders() -> list[psutil.Process]:
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "ffmpeg" in one.name():
                found.append(one)
    return found


def has_ended(process: psutil.Process) -> bool:
    """With all its threads: until then its pipe takes frames."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("way", ["loop", "process"])
async def test_killed_encoders_leave_partial_videos_and_the_same_rollouts(tmp_path: Path, way: str) -> None:
    waiting: list[str] = []
    all_are_dead = anyio.Event()

    def kill_all() -> None:
        until(lambda: sum(count_frames(part) >= 2 for part in tmp_path.glob(PARTS)) == 4)
        killed = encoders()
        for one in killed:
            one.kill()
        until(lambda: all(map(has_ended, killed)))

    async def kill_then_reply(request: Request) -> str:
        if request.turn == 2:
            waiting.append(request.session)
            if len(waiting) == 4:
                await anyio.to_thread.run_sync(kill_all)
                all_are_dead.set()
            await all_are_dead.wait()
        return replies(request)

    env = PAINTER if way == "loop" else ON_WORKER
    plain = await play(None, env=env)
    recorded = await play(tmp_path, kill_then_reply, env=env)
    assert without_times(recorded) == without_times(plain)
    assert [one.video and one.video.partial for one in recorded] == [True] * 4
    for name in names(tmp_path):
        assert is_whole(tmp_path / name)
        assert len(painted(tmp_path / name)) in (2, 3)
    assert len(names(tmp_path)) == 4


async def test_encoder_that_dies_after_the_last_frame_is_reported(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        async with ar.EnvPool(backend="inline") as pool, VideoRecorder(tmp_path) as recorder:
            async with pool.open(PAINTER, record=recorder.record("a")) as env:
                await env.reset(seed=0)
                for _ in range(3):
                    await env.step(1)
                await anyio.to_thread.run_sync(
                    until, lambda: any(count_frames(part) >= 3 for part in tmp_path.glob(PARTS))
                )
                (encoder,) = encoders()
                encoder.suspend()
                for _ in range(3):
                    await env.step(1)
            encoder.kill()
    assert [entry["event"] for entry in logs if "reason" in entry] == ["video_not_whole"]
    assert len(painted(tmp_path / "a.mp4")) in (3, 4)


async def test_camera_that_sees_nothing_hurts_nobody(tmp_path: Path) -> None:
    plain = await play(None)
    for kind in ("none", "number", "odd", "text", "blind"):
        with structlog.testing.capture_logs() as logs:
            recorded = await play(tmp_path / kind, env_kwargs={"kind": kind})
        assert without_times(recorded) == without_times(plain)
        assert [entry["event"] for entry in logs if "reason" in entry] == [
            {"text": "env_not_recorded", "blind": "video_not_whole"}.get(kind, "episode_not_recorded")
        ]
        assert [one.video and one.video.partial for one in recorded] == [True if kind == "blind" else None] * 4
        assert len(names(tmp_path / kind)) == (4 if kind == "blind" else 0)
    one = recorded[0]
    assert one.video is not None
    assert one.video.frames == [[0, 1], [1, 1], [1, 1], [1, 1]]


async def test_full_disk_leaves_videos_that_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ffmpeg = str(full_disk(tmp_path))
    monkeypatch.setattr("asyncrollout.video.recorder.find_ffmpeg", lambda: ffmpeg)
    with structlog.testing.capture_logs() as logs:
        recorded = await play(tmp_path / "videos")
    assert without_times(recorded) == without_times(await play(None))
    assert [entry["event"] for entry in logs if "reason" in entry] == ["video_not_whole"]
    assert names(tmp_path / "videos") == sorted(f"{one.uid}.mp4" for one in recorded)
    for one in recorded:
        assert one.video is not None
        frames = painted(tmp_path / "videos" / one.video.file)
        assert frames == [(painter(one), actions) for actions in range(one.video.frames[-1][1] + 1)]


async def test_sizes_that_change_are_one_video(tmp_path: Path) -> None:
    recorded = await play(tmp_path, env_kwargs={"kind": "grows", "size": (33, 41)}, groups=1)
    frames = decode(tmp_path / "g0.0.mp4")
    assert frames.shape == (7, 34, 42, 3)
    assert painted(tmp_path / "g0.0.mp4") == [(painter(recorded[0]), actions) for actions in FRAMES]


async def test_cancelled_rollouts_have_whole_videos(tmp_path: Path) -> None:
    everyone_played = anyio.Event()
    waiting: set[str] = set()

    async def reply_twice(request: Request) -> str:
        if request.turn == 2:
            waiting.add(request.session)
            if len(waiting) == 4:
                everyone_played.set()
            await anyio.sleep_forever()
        return "go 2"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(play, tmp_path, reply_twice)
        with anyio.fail_after(PATIENCE):
            await everyone_played.wait()
        tasks.cancel_scope.cancel()
    assert names(tmp_path) == sorted(f"{uid}.mp4" for uid in waiting)
    for name in names(tmp_path):
        assert is_whole(tmp_path / name)
        assert [actions for _, actions in painted(tmp_path / name)] == [0, 1, 2, 3, 4]


async def test_failing_rollouts_have_videos_of_their_last_attempt(tmp_path: Path) -> None:
    kwargs = {"kind": "breaks", "once": str(tmp_path / "no" / "file")}
    (tmp_path / "no").mkdir()
    recorded = await play(tmp_path / "videos", env_kwargs=kwargs, groups=1)
    assert [one.error for one in recorded] == [None, None]
    assert names(tmp_path / "videos") == ["g0.0.mp4", "g0.1.mp4"]
    assert [len(painted(tmp_path / "videos" / f"g0.{member}.mp4")) for member in range(2)] == [7, 7]


async def test_error_of_the_caller_leaves_whole_videos(tmp_path: Path) -> None:
    async with ar.EnvPool(backend="inline") as pool:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with VideoRecorder(tmp_path) as recorder, pool.open(PAINTER, record=recorder.record("a")) as env:
                await env.reset(seed=1)
                await env.step("go 3")
                raise ZeroDivisionError
    assert painted(tmp_path / "a.mp4") == [(4, actions) for actions in range(4)]
    assert is_whole(tmp_path / "a.mp4")


async def test_no_more_encoders_than_allowed(tmp_path: Path) -> None:
    recorder = VideoRecorder(tmp_path, max_encoders=3)
    most = 0

    async def count_then_reply(request: Request) -> str:
        nonlocal most
        most = max(most, len(await anyio.to_thread.run_sync(encoders)))
        return replies(request)

    with structlog.testing.capture_logs() as logs:
        recorded = await play(None, count_then_reply, record=recorder, group_size=8, groups=1)
    assert recorder.skipped == {"max_encoders": 5}
    assert [entry["reason"] for entry in logs if entry["event"] == "episode_not_recorded"] == ["max_encoders=3"]
    assert [one.uid for one in recorded if one.video is not None] == [name[:-4] for name in names(tmp_path)]
    assert len(names(tmp_path)) == 3
    assert 0 < most <= 3


async def test_no_more_bytes_than_allowed(tmp_path: Path) -> None:
    (tmp_path / "earlier.mp4").write_bytes(bytes(9_000))
    recorder = VideoRecorder(tmp_path, max_bytes=9_001, max_encoders=2)
    plain = await play(None)
    with structlog.testing.capture_logs() as logs:
        recorded = await play(None, record=recorder)
    assert without_times(recorded) == without_times(plain)
    assert recorder.skipped == {"max_bytes": 4}
    assert [entry["reason"] for entry in logs if entry["event"] == "episode_not_recorded"] == ["max_bytes=9001"]
    assert names(tmp_path) == ["earlier.mp4"]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"every": 3}, ["g0.0", "g0.1", "g0.2", "g3.0", "g3.1", "g3.2"]),
        ({"keep": "failures"}, [f"g{group}.{member}" for group in range(4) for member in range(2)]),
        ({"keep": "extremes"}, [f"g{group}.{member}" for group in range(4) for member in (0, 2)]),
        ({"keep": "extremes", "every": 4}, ["g0.0", "g0.2"]),
    ],
)
async def test_which_episodes_are_kept(tmp_path: Path, options: dict[str, Any], kept: list[str]) -> None:
    def by_member(request: Request) -> str:
        return f"go {request.session[-1]}"  # 0, 1 or 4 points; more than one point is a success

    recorder = VideoRecorder(tmp_path, **options)
    recorded = await play(None, by_member, record=recorder, group_size=3, groups=4, limits=Limits(turns=1))
    assert names(tmp_path) == [f"{uid}.mp4" for uid in kept]
    assert [one.uid for one in recorded if one.video is not None] == kept
    assert recorder.finished == len(kept)


async def test_run_directory_has_videos_and_tells_of_them(tmp_path: Path) -> None:
    recorded = await play(None, record=True, run_dir=tmp_path / "run")
    assert names(tmp_path / "run" / "videos") == sorted(f"{one.uid}.mp4" for one in recorded)
    records = RunRecords(tmp_path / "run")
    assert [records.find(one.uid).trajectory.video for one in recorded] == [one.video for one in recorded]
    assert recorded[0].video == ar.Video("g0.0.mp4", 5.0, ENDS)


@pytest.mark.parametrize("way", ["loop", "process"])
async def test_killed_run_leaves_videos_that_play_and_its_resume_has_whole_ones(tmp_path: Path, way: str) -> None:
    directory = tmp_path / "run"
    videos = directory / "videos"
    with running("recording.py", str(directory), way) as process:
        assert process.stdout is not None
        assert await anyio.to_thread.run_sync(process.stdout.readline) == "four wait\n"
        until(lambda: sum(count_frames(part) >= 3 for part in videos.glob(PARTS)) == 4)
        process.kill()
    until(lambda: not any(map(is_written, videos.glob(PARTS))))
    for part in videos.glob(PARTS):
        assert [actions for _, actions in painted(part)] == [0, 1, 2, 3]
    env = PAINTER if way == "loop" else ON_WORKER
    plain = await play(None, env=env)
    recorded = await play(None, env=env, record=True, run_dir=directory, resume=True)
    assert without_times(recorded) == without_times(plain)
    assert names(videos) == sorted(f"{one.uid}.mp4" for one in recorded)
    for one in recorded:
        assert one.video == ar.Video(f"{one.uid}.mp4", 5.0, ENDS)
        assert painted(videos / one.video.file) == [(painter(one), actions) for actions in FRAMES]


async def test_retry_of_an_episode_that_cannot_be_resumed_has_a_video(tmp_path: Path) -> None:
    once_only = dataclasses.replace(PAINTER, replayable=False)
    options: dict[str, Any] = {"group_size": 2, "limits": Limits(turns=4), "record": True, "run_dir": tmp_path / "run"}

    async def stop(request: Request) -> str:
        if request.turn:
            await anyio.sleep_forever()
        return replies(request)

    broken = ar.Rollouts(once_only, policy=ar.ScriptedPolicy(stop), **options)
    await break_off(broken, lambda source: source.collect(groups=1))
    with structlog.testing.capture_logs() as logs:
        recorded = await play(None, env=once_only, groups=1, resume=True, failures=ar.Failures(retries=2), **options)
    assert [one.video for one in recorded] == [ar.Video(f"{one.uid}.mp4", 5.0, ENDS) for one in recorded]
    assert [painted(tmp_path / "run" / "videos" / f"{one.uid}.mp4") for one in recorded] == [
        [(painter(one), actions) for actions in FRAMES] for one in recorded
    ]
    assert logs == []


async def test_what_a_killed_run_left_of_finished_rollouts_is_finished(tmp_path: Path) -> None:
    recorded = await play(None, record=True, run_dir=tmp_path / "run")
    videos = tmp_path / "run" / "videos"
    (videos / "g0.0.mp4").unlink()
    part = new_part(videos, "g0.0", new_take())
    taker = EpisodeWriter(part, fps=5.0, ffmpeg=find_ffmpeg())
    taker.write(np.zeros((32, 48, 3), dtype=np.uint8))
    taker.end()
    taker.wait()
    policy = ar.ScriptedPolicy(replies)
    limits, run_dir = Limits(turns=4), tmp_path / "run"
    async with ar.Rollouts(
        PAINTER, policy=policy, group_size=2, limits=limits, run_dir=run_dir, resume=True, record=True
    ):
        assert names(videos) == sorted(f"{one.uid}.mp4" for one in recorded)
    assert len(decode(videos / "g0.0.mp4")) == 1


async def test_what_a_killed_run_left_is_removed_if_it_is_not_wanted(tmp_path: Path) -> None:
    await play(tmp_path, group_size=8, groups=1)
    assert len(names(tmp_path)) == 8  # as if parts of all were made whole by a resume, which plays them once more
    record = VideoRecorder(tmp_path, keep="extremes")
    policy = ar.ScriptedPolicy(replies)
    async with ar.Rollouts(PAINTER, policy=policy, record=record, group_size=8, limits=Limits(turns=4)) as rollouts:
        batch = await rollouts.collect(groups=1)
    kept = sorted(one.video.file for one in batch.groups[0].trajectories if one.video is not None)
    assert 0 < len(kept) <= 2
    assert names(tmp_path) == kept


@pytest.mark.parametrize("options", BACKENDS.values(), ids=BACKENDS)
async def test_handle_with_several_episodes_has_a_file_for_each(tmp_path: Path, options: dict[str, Any]) -> None:
    async with ar.EnvPool(**options) as pool, VideoRecorder(tmp_path, fps=2, overlay=True) as recorder:
        async with pool.open(PAINTER, record=recorder.record("walk")) as env:
            for episode in range(3):
                await env.reset(seed=episode)
                for _ in range(episode):
                    await env.step(1)
            twin = await env.fork()  # which is not recorded
            await twin.step(1)
            await twin.close()
        async with pool.open("tests.envs.video:NoRender", record=recorder.record("none")) as env:
            await env.reset(seed=0)
        async with pool.open("tests.envs.video:Asked", record=recorder.record("asked")) as env:
            await env.reset(seed=0)
        spec = ar.EnvSpec(name="waiting", factory="tests.envs.video:Waiting", runs="io")
        async with pool.open(spec, record=recorder.record("waiting")) as env:
            await env.reset(seed=0)
            await env.step(1)
    assert names(tmp_path) == ["asked.mp4", "waiting.mp4", "walk.mp4", "walk_episode1.mp4", "walk_episode2.mp4"]
    assert painted(tmp_path / "walk_episode2.mp4") == [(8, 0), (8, 1), (8, 2)]
    assert len(painted(tmp_path / "waiting.mp4")) == 2
    assert decode(tmp_path / "walk.mp4").shape == (1, 48, 48, 3)


async def test_env_restored_from_a_snapshot_has_the_rest_of_its_video(tmp_path: Path) -> None:
    async with ar.EnvPool(1, recover="snapshot") as pool, VideoRecorder(tmp_path) as recorder:
        recording = recorder.record("a")
        assert recording is not None
        async with pool.open(ON_WORKER, record=recording) as env:
            await env.reset(seed=0)
            await env.step("go 1")
            pid = pool.stats().workers[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await env.step("go 1")
        assert recording.video(2) == ar.Video("a.mp4", 5.0, [[0, 0], [0, 1]], partial=True)
    assert painted(tmp_path / "a.mp4") == [(0, 1), (0, 2)]


@pytest.mark.parametrize("options", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("spec", ["has snapshots", "is replayed"])
async def test_restored_env_never_overwrites_another_video(tmp_path: Path, options: dict[str, Any], spec: str) -> None:
    env_of = dataclasses.replace(
        PAINTER, factory=f"tests.envs.video:{'Painter' if spec == 'has snapshots' else 'Replayed'}"
    )
    first = 2 if spec == "has snapshots" else 0  # an env without snapshots is recorded from its reset
    async with ar.EnvPool(**options) as pool, VideoRecorder(tmp_path) as recorder:
        async with pool.open(env_of) as other:
            await other.reset(seed=3)
            await other.step("go 2")
            foreign = await other.snapshot()
        recording = recorder.record("a")
        assert recording is not None
        async with pool.open(env_of, record=recording) as env:
            await env.reset(seed=0)
            await env.step("go 2")
            own = await env.snapshot()
            await env.step("go 3")
            await env.restore(own)
            await env.step("go 1")
            await env.restore(foreign)
            await env.restore(foreign)
            await env.step("go 2")
            await env.reset(seed=1)
        assert recording.video(0) == ar.Video("a_episode4.mp4", 5.0, [])
        async with pool.open(env_of, record=recorder.record("b")) as env:
            await env.restore(foreign)
            await env.reset(seed=2)
    assert {name: painted(tmp_path / name) for name in names(tmp_path)} == {
        "a.mp4": [(0, actions) for actions in range(6)],
        "a_episode1.mp4": [(0, actions) for actions in range(first, 4)],
        "a_episode2.mp4": [(12, actions) for actions in range(first, 3)],
        "a_episode3.mp4": [(12, actions) for actions in range(first, 5)],
        "a_episode4.mp4": [(4, 0)],
        "b.mp4": [(12, actions) for actions in range(first, 3)],
        "b_episode1.mp4": [(8, 0)],
    }


async def test_worker_that_dies_after_a_restore_costs_no_video(tmp_path: Path) -> None:
    async with (
        ar.EnvPool(1) as pool,
        VideoRecorder(tmp_path) as recorder,
        pool.open(ON_WORKER, record=recorder.record("a")) as env,
    ):
        await env.reset(seed=0)
        await env.step("go 1")
        kept = await env.snapshot()
        await env.step("go 2")
        await env.restore(kept)
        await env.step("go 1")
        await anyio.to_thread.run_sync(
            until, lambda: sum(count_frames(part) >= 1 for part in tmp_path.glob(PARTS)) == 2
        )
        pid = pool.stats().workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await env.step("go 1")
    assert names(tmp_path) == ["a.mp4", "a_episode1.mp4"]
    assert painted(tmp_path / "a.mp4")[0] == (0, 0)
    assert painted(tmp_path / "a_episode1.mp4") == [(0, 1), (0, 2), (0, 3)]


LIVES: dict[str, tuple[dict[str, Any], str]] = {
    "loop": (BACKENDS["inline"], "light"),
    "thread": (BACKENDS["inline"], "io"),
    "worker": (BACKENDS["process"], "cpu"),
    "thread of a worker": (BACKENDS["process"], "io"),
}


@pytest.mark.parametrize(("options", "runs"), LIVES.values(), ids=LIVES)
async def test_recorder_that_is_left_before_its_env_has_every_frame(
    tmp_path: Path, options: dict[str, Any], runs: Any
) -> None:
    spec = dataclasses.replace(PAINTER, runs=runs)
    async with ar.EnvPool(**options) as pool:
        with anyio.fail_after(PATIENCE):
            async with VideoRecorder(tmp_path, keep="failures") as recorder:
                recording = recorder.record("a")
                assert recording is not None
                env = await pool.open(spec, record=recording)
                await env.reset(seed=0)
                await env.step("go 3")
        assert recording.footage[0].frames == 4
        assert recording.footage[0].trouble == ""
        before = (tmp_path / "a.mp4").read_bytes()
        assert (await env.step("go 1")).observation.text == "4 strokes"
        await env.reset(seed=1)
        await env.step("go 1")
        await env.close()
        await env.close()
    assert painted(tmp_path / "a.mp4") == [(0, actions) for actions in range(4)]
    assert is_whole(tmp_path / "a.mp4")
    assert (tmp_path / "a.mp4").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize(("options", "runs"), LIVES.values(), ids=LIVES)
async def test_pool_that_is_left_before_its_recorder_has_every_frame(
    tmp_path: Path, options: dict[str, Any], runs: Any
) -> None:
    spec = dataclasses.replace(PAINTER, runs=runs)
    async with VideoRecorder(tmp_path) as recorder, ar.EnvPool(**options) as pool:
        env = await pool.open(spec, record=recorder.record("a"))
        await env.reset(seed=0)
        await env.step("go 3")
    assert painted(tmp_path / "a.mp4") == [(0, actions) for actions in range(4)]
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


async def test_env_whose_worker_dies_after_its_recorder_was_left_is_not_recorded(tmp_path: Path) -> None:
    async with ar.EnvPool(1) as pool:
        async with VideoRecorder(tmp_path) as recorder:
            env = await pool.open("tests.envs.video:Asked", record=recorder.record("a"))
            await env.reset(seed=0)
            await env.step(1)
        pid = pool.stats().workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await env.step(1)
        await env.reset(seed=1)
        assert isinstance(await env.render(), np.ndarray)  # it is made as before
        await env.close()
    assert painted(tmp_path / "a.mp4") == [(0, 0), (0, 1)]
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize(("options", "runs"), [*LIVES.values()][1:], ids=[*LIVES][1:])
@pytest.mark.parametrize("during", ["step", "reset"])
async def test_cancelled_within_a_slow_call_leaves_no_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], runs: Any, during: str
) -> None:
    monkeypatch.setattr("asyncrollout.video.recorder._ABORTED_WAIT", 0.05)
    spec = dataclasses.replace(PAINTER, factory="tests.envs.video:Slow", runs=runs)
    gate, videos = tmp_path / "gate", tmp_path / "videos"

    async def play() -> None:
        async with (
            VideoRecorder(videos) as recorder,
            pool.open(spec, gate=str(gate), record=recorder.record("a")) as env,
        ):
            await env.reset(seed=0)
            await env.step("go 1")
            await anyio.to_thread.run_sync(until, lambda: any(map(count_frames, videos.glob(PARTS))))
            gate.mkdir()
            await (env.step("go 1") if during == "step" else env.reset(seed=1))

    async with ar.EnvPool(**options) as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(play)
            await anyio.to_thread.run_sync(until, (gate / "waits").exists)
            tasks.cancel_scope.cancel()
        assert [path.name for path in videos.iterdir()] == ["a.mp4"]
        (gate / "opens").touch()
        async with pool.open(spec) as other:  # on a worker, it comes after the slow call
            await other.reset(seed=0)
    assert [path.name for path in videos.iterdir()] == ["a.mp4"]
    assert painted(videos / "a.mp4") in ([(0, 0), (0, 1)], [(0, 0)])  # the encoder was not at its end


async def test_no_two_videos_have_the_same_name(tmp_path: Path) -> None:
    async with (
        ar.EnvPool(backend="inline") as pool,
        VideoRecorder(tmp_path) as recorder,
        pool.open(PAINTER, record=recorder.record("a")) as env,
    ):
        await env.reset(seed=0)
        with pytest.raises(ar.UsageError, match="'a' is being recorded"):
            recorder.record("a")
        with pytest.raises(ar.UsageError, match="'a' is being recorded"):
            recorder.record("a_episode1")  # where the second episode goes
        assert recorder.record_rollout("a", "painter") is None
        async with pool.open(PAINTER, record=recorder.record("b_episode2")) as other:
            await other.reset(seed=1)
            with pytest.raises(ar.UsageError, match="'b_episode2' is being recorded"):
                recorder.record("b")
            others = [recorder.record(name) for name in ("a_episode", "a_episode01", "ab", "b_episode", "b_episode2x")]
        assert None not in others
    assert painted(tmp_path / "a.mp4") == [(0, 0)]


async def test_video_without_pictures_is_reported(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        async with (
            ar.EnvPool(backend="inline") as pool,
            VideoRecorder(tmp_path) as recorder,
            pool.open(PAINTER, record=recorder.record("a")),
        ):
            pass
    without_times = [(entry["event"], entry["name"], entry["reason"]) for entry in logs]
    assert without_times == [("episode_not_recorded", "a", "no frame was recorded: was its env reset?")]


@pytest.mark.parametrize("way", ["loop", "process"])
async def test_all_bytes_are_for_one_video_or_shared(tmp_path: Path, way: str) -> None:
    spec = dataclasses.replace(PAINTER if way == "loop" else ON_WORKER, factory="tests.envs.video:Noise", text=None)
    lone, most = 140_000, 1_000_000  # bytes of a video of 41 frames, and of all

    def size(directory: Path, pattern: str) -> int:
        return sum(path.stat().st_size for path in directory.glob(pattern))

    async def record_episodes(recorder: VideoRecorder, name: str, episodes: int) -> None:
        async with pool.open(spec, record=recorder.record(name)) as env:
            for episode in range(episodes):
                await env.reset(seed=episode)
                for _ in range(40):
                    await env.step(0)

    async with ar.EnvPool(1) as pool:
        async with (
            VideoRecorder(tmp_path / "lone", max_bytes=most) as recorder,
            pool.open(spec, record=recorder.record("a")) as env,
        ):
            await env.reset(seed=0)
            for _ in range(40):
                await env.step(0)
            await anyio.to_thread.run_sync(until, lambda: size(tmp_path / "lone", PARTS) > most / 10)
            await env.step(0)
        assert recorder.skipped == {}
        assert len(decode(tmp_path / "lone" / "a.mp4")) == 42
        with structlog.testing.capture_logs() as logs:
            async with VideoRecorder(tmp_path / "many", max_bytes=most) as recorder:
                await record_episodes(recorder, "a", 20)
        assert 5 < recorder.skipped["max_bytes"] < 20
        assert most / 2 < size(tmp_path / "many", "*.mp4") < most + 3 * lone  # frames were on their way
        assert [entry["reason"] for entry in logs if "reason" in entry] == [OVER_BUDGET]


async def test_videos_of_short_episodes_do_not_pile_up_encoders(tmp_path: Path) -> None:
    async with (
        ar.EnvPool(backend="inline") as pool,
        VideoRecorder(tmp_path) as recorder,
        pool.open(PAINTER, record=recorder.record("a")) as env,
    ):
        for episode in range(20):
            await env.reset(seed=episode)
            await env.step("go 1")
            assert len(encoders()) <= 4
    assert len(names(tmp_path)) == 20


async def test_worker_that_records_stays_light(tmp_path: Path) -> None:
    async with (
        ar.EnvPool(1) as pool,
        VideoRecorder(tmp_path) as recorder,
        pool.open(ON_WORKER, record=recorder.record("a")) as env,
    ):
        await env.reset(seed=0)
        modules = await env.call("modules")
    assert "asyncrollout.video.camera" in modules
    assert not {"aiohttp", "rich", "structlog", "cyclopts", "imageio_ffmpeg"} & {*modules}


async def test_frames_wait_for_a_slow_encoder_without_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrollout.video.episode_writer._MOST_HELD", 100_000)
    async with (
        ar.EnvPool(backend="inline") as pool,
        VideoRecorder(tmp_path) as recorder,
        pool.open(PAINTER, size=(128, 128), record=recorder.record("a")) as env,
    ):
        await env.reset(seed=0)
        for _ in range(40):
            await env.step(1)
            camera: Any = pool._inline_host._hosted[env._calls.binding.id].camera
            assert camera._writer._held <= 5 * 128 * 128 * 3
    assert len(decode(tmp_path / "a.mp4")) == 41


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "a/b", "x" * 300, "\0", "."])
async def test_files_stay_in_their_directory(tmp_path: Path, name: str) -> None:
    videos = tmp_path / "videos"
    async with ar.EnvPool(backend="inline") as pool, VideoRecorder(videos) as recorder:
        agent = ar.ChatAgent(ar.ScriptedPolicy(replies))
        group = await ar.run_group(
            pool, PAINTER, agent, seed=0, size=1, id=name, limits=Limits(turns=1), record=recorder
        )
    assert names(tmp_path) == ["videos"]
    (one,) = group.trajectories
    assert one.video is not None
    assert names(videos) == [one.video.file]


BAD: list[tuple[Callable[[Path], Any], str]] = [
    (lambda _: VideoRecorder(every=0), "every=0"),
    (lambda _: VideoRecorder(keep="best"), "keep='best'"),  # type: ignore[arg-type]
    (lambda _: VideoRecorder(max_encoders=0), "max_encoders=0"),
    (lambda _: VideoRecorder(max_bytes=1.5), "max_bytes=1.5"),  # type: ignore[arg-type]
    (lambda _: VideoRecorder(fps=-1), "fps=-1"),
    (lambda _: ar.Rollouts(PAINTER, policy=ar.ScriptedPolicy(["x"]), record=True), "Give a run_dir"),
    (lambda _: ar.Rollouts(PAINTER, policy=ar.ScriptedPolicy(["x"]), record="videos"), "neither True nor"),  # type: ignore[arg-type]
    (lambda path: VideoRecorder(path).record("a"), "is not open"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_mistakes_are_reported(tmp_path: Path, make: Callable[[Path], Any], message: str) -> None:
    with pytest.raises(ar.UsageError, match=message):
        make(tmp_path)


async def test_directory_that_cannot_be_written_to_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ar.JournalError, match="cannot record videos"):
        await play(tmp_path / "file")
    (tmp_path / "left" / "g0.0.mp4.a.1.part").mkdir(parents=True)
    with pytest.raises(ar.JournalError, match="Is a directory"):
        await play(tmp_path / "left")
    with pytest.raises(ar.UsageError, match="needs a directory"):
        async with VideoRecorder():
            pass


async def test_two_recorders_leave_each_other_alone(tmp_path: Path) -> None:
    async with ar.EnvPool(backend="inline") as pool, VideoRecorder(tmp_path) as one:
        recording = one.record("a", hold=True)
        assert recording is not None
        async with pool.open(PAINTER, record=recording) as env:
            await env.reset(seed=0)
        (part,) = tmp_path.glob(PARTS)
        until(lambda: not is_written(part))
        async with VideoRecorder(tmp_path) as other:
            assert names(tmp_path) == [part.name]
            async with pool.open(PAINTER, record=other.record("b")) as env:
                await env.reset(seed=0)
        assert names(tmp_path) == [part.name, "b.mp4"]
        recording.settle(keep=True)
    assert names(tmp_path) == ["a.mp4", "b.mp4"]


async def test_directory_that_goes_away_costs_videos_only(tmp_path: Path) -> None:
    videos = tmp_path / "videos"

    recorder = VideoRecorder(videos)
    async with recorder:
        await anyio.to_thread.run_sync(shutil.rmtree, videos)
        async with ar.EnvPool(backend="inline") as pool:
            agent = ar.ChatAgent(ar.ScriptedPolicy(replies))
            group = await ar.run_group(pool, PAINTER, agent, seed=0, size=2, limits=Limits(turns=4), record=recorder)
    assert [one.error for one in group.trajectories] == [None, None]
    assert [one.video for one in group.trajectories] == [None, None]
