"""The document on one video per environment: its layouts, its code, and its check, as they stand there."""

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrollout.cli.app import main
from asyncrollout.dropin.rlinf.config import parse_evaluation
from asyncrollout.dropin.rlinf.ranks import RankedWorker
from asyncrollout.video import VideoWriter
from asyncrollout_envs.sensors import find_pictures, tile
from tests.video_files import decode, is_whole

EXAMPLE_1 = """
cluster:
  component_placement:
    env: 0-1      # 2 workers
    rollout: 2-3  # 2 workers

env:
  eval:
    total_num_envs: 4  # 4 environments total
"""
VIDEOS_1 = """
behavior_video_rank0_gpu0_env0.mp4  # Worker 0, Environment 0
behavior_video_rank0_gpu0_env1.mp4  # Worker 0, Environment 1
behavior_video_rank1_gpu1_env0.mp4  # Worker 1, Environment 0
behavior_video_rank1_gpu1_env1.mp4  # Worker 1, Environment 1
"""
EXAMPLE_2 = """
cluster:
  component_placement:
    env: 0-3      # 4 workers
    rollout: 0-3  # 4 workers

env:
  eval:
    total_num_envs: 4  # 4 environments total
"""
VIDEOS_2 = """
behavior_video_rank0_gpu0_env0.mp4  # Worker 0, Environment 0
behavior_video_rank1_gpu1_env0.mp4  # Worker 1, Environment 0
behavior_video_rank2_gpu2_env0.mp4  # Worker 2, Environment 0
behavior_video_rank3_gpu3_env0.mp4  # Worker 3, Environment 0
"""
EXAMPLE_3 = """
cluster:
  component_placement:
    env: 0        # 1 worker
    rollout: 0    # 1 worker

env:
  eval:
    total_num_envs: 4  # 4 environments total
"""
VIDEOS_3 = """
behavior_video_rank0_gpu0_env0.mp4  # Worker 0, Environment 0
behavior_video_rank0_gpu0_env1.mp4  # Worker 0, Environment 1
behavior_video_rank0_gpu0_env2.mp4  # Worker 0, Environment 2
behavior_video_rank0_gpu0_env3.mp4  # Worker 0, Environment 3
"""
THROUGHPUT = """
cluster:
  component_placement:
    env: 0-7      # 8 workers
    rollout: 0-7  # 8 workers

env:
  eval:
    total_num_envs: 8  # 1 env per worker
"""
MEMORY = """
cluster:
  component_placement:
    env: 0-1      # 2 workers
    rollout: 2-3  # 2 workers

env:
  eval:
    total_num_envs: 8  # 4 envs per worker
"""
TESTING = """
cluster:
  component_placement:
    env: 0        # 1 worker
    rollout: 0    # 1 worker

env:
  eval:
    total_num_envs: 2  # 2 envs on one worker
"""
CHECK = "ls -lh logs/behavior_eval/video/eval/ | grep behavior_video | wc -l"
OFF = """
   env.eval.video_cfg.save_video: False
"""
ON = """
   env.eval.video_cfg.save_video: True
"""
LAYOUTS = {
    "example-1": (EXAMPLE_1, 4, VIDEOS_1),
    "example-2": (EXAMPLE_2, 4, VIDEOS_2),
    "example-3": (EXAMPLE_3, 4, VIDEOS_3),
    "throughput": (THROUGHPUT, 8, None),
    "memory": (MEMORY, 8, None),
    "testing": (TESTING, 2, None),
}
STEPS = 2


def evaluate(text: str, *overrides: str) -> int:
    Path("eval.yaml").write_text(text)
    return main(["eval", "eval.yaml", f"env.eval.max_episode_steps={STEPS}", *overrides])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, total, listed = LAYOUTS[layout]
    monkeypatch.chdir(tmp_path)
    assert evaluate(text) == 0
    counted = subprocess.run(["bash", "-c", CHECK], capture_output=True, text=True, check=True)
    assert int(counted.stdout) == total
    videos = sorted((tmp_path / "logs/behavior_eval/video/eval").iterdir())
    if listed is not None:
        assert [video.name for video in videos] == re.findall(r"^\S+\.mp4", listed, re.MULTILINE)
    films = [decode(video) for video in videos]
    assert all(map(is_whole, videos))
    assert {film.shape for film in films} == {(STEPS + 1, 256, 384, 3)}
    assert len({film[0].tobytes() for film in films}) == total, "two envs have the same film"


def test_videos_off_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert evaluate(OFF) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["eval.yaml"]
    assert "no videos" in capfd.readouterr().out


def test_switch_is_read_as_it_is_written() -> None:
    assert parse_evaluation(OFF).env.eval.video_cfg.save_video is False
    assert parse_evaluation(ON).env.eval.video_cfg.save_video is True
    assert parse_evaluation(EXAMPLE_1).env.eval.video_cfg.save_video is True


def test_rollout_is_placed_beside_env() -> None:
    cluster = parse_evaluation(EXAMPLE_1).cluster
    assert cluster.workers("env") == (RankedWorker(0, (0,)), RankedWorker(1, (1,)))
    assert cluster.workers("rollout") == (RankedWorker(0, (2,)), RankedWorker(1, (3,)))


BEFORE_WRITER = """
self._video_writer = None  # Single video writer
"""
WRITERS = """
self._video_writers = []  # List of video writers, one per environment
"""
CREATING = """
# Create one video writer per environment
for env_idx in range(self.cfg.total_num_envs):
    video_id = f"rank{rank}_gpu{gpu}_env{env_idx}"
    video_writer = create_video_writer(...)
    self._video_writers.append(video_writer)
"""
WRITING = """
# Write each environment's observations to its own video
for env_idx, env_obs in enumerate(raw_obs):
    video_writer = self.video_writers[env_idx]
    for sensor_data in env_obs.values():
        ...
    write_video(..., video_writer=video_writer)
"""


class Evaluator:
    """What the document's code is a part of."""

    _video_writers: list[VideoWriter]

    def __init__(self, total_num_envs: int) -> None:
        self.cfg = parse_evaluation(f"env.eval.total_num_envs: {total_num_envs}").env.eval

    @property
    def video_writers(self) -> list[VideoWriter]:
        return self._video_writers


def observation(env_idx: int, step: int) -> dict[str, Any]:
    shade = (40 * env_idx + 20, 20 * step + 20, 128)
    side = 128
    cameras = ("left_realsense_link", "right_realsense_link", "zed_link")
    pictures = {f"robot_r1:{name}:Camera:0": {"rgb": np.full((side, side, 3), shade, np.uint8)} for name in cameras}
    return {"robot_r1": {**pictures, "proprio": np.zeros(256)}}


def test_code_blocks_write_frame_k_of_env_i_into_file_i_only(tmp_path: Path) -> None:
    envs, steps = 4, 5
    names: dict[str, Any] = {"self": Evaluator(envs), "rank": 1, "gpu": 3}

    def create_video_writer(_: Any) -> VideoWriter:
        return VideoWriter(tmp_path / f"behavior_video_{names['video_id']}.mp4", fps=30)

    def write_video(_: Any, video_writer: VideoWriter) -> None:
        video_writer.write(tile(find_pictures(names["env_obs"]), "low"))

    names |= {"create_video_writer": create_video_writer, "write_video": write_video}
    exec(BEFORE_WRITER + WRITERS + CREATING, names)
    assert len(names["self"].video_writers) == envs
    for step in range(steps):
        names["raw_obs"] = [observation(env_idx, step) for env_idx in range(envs)]
        exec(WRITING, names)
    for writer in names["self"].video_writers:
        writer.close()
    for env_idx in range(envs):
        frames = decode(tmp_path / f"behavior_video_rank1_gpu3_env{env_idx}.mp4").astype(int)
        assert frames.shape == (steps, 256, 384, 3)
        for step, frame in enumerate(frames):
            expected = observation(env_idx, step)["robot_r1"]["robot_r1:zed_link:Camera:0"]["rgb"][0, 0]
            assert abs(frame - expected.astype(int)).max() <= 8
