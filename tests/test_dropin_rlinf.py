"""RLinf's placement, writers and evaluation for synchronous trainers, with the document's own files and code."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from asyncrollout import UsageError
from asyncrollout.dropin.rlinf import (
    HybridComponentPlacement,
    create_video_writer,
    create_video_writers,
    evaluate,
    write_video,
)
from asyncrollout.dropin.rlinf.config import VIDEO_DIRECTORY
from asyncrollout.video import VideoWriter
from asyncrollout_envs.sensors import find_pictures, tile
from tests import test_evaluation_seed as seed
from tests.envs.evaluation import Adding, act, act_later
from tests.video_files import decode

PAINTER = {"env_type": "tests.envs.evaluation:Painter", "max_episode_steps": 3}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def configured(**eval_: Any) -> dict[str, Any]:
    return {"env": {"eval": {**PAINTER, **eval_}}}


def as_object(value: Any) -> Any:
    """With attributes for keys, as Hydra's configurations have them."""
    if not isinstance(value, dict):
        return value
    return SimpleNamespace(**{key: as_object(inner) for key, inner in value.items()})


@pytest.mark.parametrize("layout", seed.LAYOUTS)
@pytest.mark.parametrize("form", [yaml.safe_load, lambda text: as_object(yaml.safe_load(text))])
def test_each_rank_has_the_writers_of_its_envs(layout: str, form: Any) -> None:
    text, total, listed = seed.LAYOUTS[layout]
    config = form(text)
    placement = HybridComponentPlacement(config)
    assert placement.components == ["env", "rollout"]
    ranks = range(placement.get_world_size("env"))
    assert placement.get_hardware_ranks("env") == [*ranks]
    writers = [writer for rank in ranks for writer in create_video_writers(config, rank)]
    assert len({writer.path for writer in writers}) == total
    if listed is not None:
        expected = re.findall(r"^\S+\.mp4", listed, re.MULTILINE)
        assert [str(writer.path) for writer in writers] == [f"{VIDEO_DIRECTORY}/{name}" for name in expected]


def test_no_videos_no_writers() -> None:
    Path("eval.yaml").write_text(seed.OFF)
    assert create_video_writers("eval.yaml") == []
    assert [path.name for path in Path().iterdir()] == ["eval.yaml"]


def test_code_blocks_write_frame_k_of_env_i_into_file_i_only() -> None:
    """The document's blocks, with what they leave out (`...`) in its places; files without a picture never appear."""
    envs, steps = 4, 3
    creating = seed.CREATING.replace("(...)", "(fpath=f'behavior_video_{video_id}.mp4', resolution=(256, 384))")
    writing = seed.WRITING.replace("...,", "np.expand_dims(tile(find_pictures(env_obs), 'low'), 0), mode='rgb',")
    names: dict[str, Any] = {"self": seed.Evaluator(envs + 1), "rank": 1, "gpu": 3, "np": np}
    names |= {"tile": tile, "find_pictures": find_pictures}
    names |= {"create_video_writer": create_video_writer, "write_video": write_video}
    exec(seed.BEFORE_WRITER + seed.WRITERS + creating, names)
    for step in range(steps):
        names["raw_obs"] = [seed.observation(env_idx, step) for env_idx in range(envs)]
        exec(writing, names)
    writers: list[VideoWriter] = names["self"].video_writers
    for writer in writers:
        writer.close()
    assert len(writers) == envs + 1
    assert sorted(path.name for path in Path().iterdir()) == [writer.path.name for writer in writers[:envs]]
    for env_idx, writer in enumerate(writers[:envs]):
        frames = decode(writer.path).astype(int)
        assert frames.shape == (steps, 256, 384, 3)
        for step, frame in enumerate(frames):
            expected = seed.observation(env_idx, step)["robot_r1"]["robot_r1:zed_link:Camera:0"]["rgb"][0, 0]
            assert abs(frame - expected.astype(int)).max() <= 8


def test_one_picture_and_several() -> None:
    writer = create_video_writer("a.mp4", rate=5)
    write_video(np.zeros((16, 16, 3), np.uint8), writer)
    write_video(np.zeros((2, 16, 16, 3), np.uint8), video_writer=writer, batch_size=2)
    with pytest.raises(UsageError, match="mode='depth'"):
        write_video(np.zeros((16, 16, 3), np.uint8), writer, mode="depth")
    writer.close()
    assert len(decode(Path("a.mp4"))) == 3


def test_writers_take_what_omnigibson_s_take_and_nothing_else() -> None:
    create_video_writer("a.mp4", (16, 16), "libx264", 15, "yuv420p", stream_options={"crf": "18"}, context_options={})
    with pytest.raises(TypeError, match="fps"):
        create_video_writer("a.mp4", fps=15)  # type: ignore[call-arg]


def test_a_class_of_policies_is_not_a_policy() -> None:
    with pytest.raises(UsageError, match=r"policy: Adding is a class: give an instance, such as Adding\(\)"):
        evaluate(configured(), policy=Adding, allow_import=True)


async def test_evaluation_in_a_running_loop() -> None:
    """As in a notebook; from a dict, with values put in, for a function of an observation."""
    chosen = configured(total_num_envs=3, video_cfg={"video_base_dir": "films"})
    chosen["cluster"] = {"component_placement": {"env": "0-1"}}
    found = evaluate(chosen, "env.eval.seed=2", policy=act, allow_import=True)
    ids = ["rank0_gpu0_env0", "rank0_gpu0_env1", "rank1_gpu1_env0"]
    assert [(one.env, one.seed, one.success) for one in found.episodes] == [
        (ids[0], 2, True),
        (ids[1], 3, False),
        (ids[2], 4, True),
    ]
    assert found.metrics == {
        "eval/success_once": pytest.approx(2 / 3),
        "eval/return": 0.5 + 1.5 + 2.5,
        "eval/episode_len": 3.0,
        "eval/num_trajectories": 3.0,
    }
    assert sorted(path.name for path in Path("films").iterdir()) == [f"behavior_video_{one}.mp4" for one in ids]


def test_success_at_any_step_counts_and_a_step_is_a_step() -> None:
    chosen = configured(env_type="tests.envs.evaluation:Blinking", video_cfg={"save_video": False})
    found = evaluate(chosen, policy=act, allow_import=True)
    assert (found.metrics["eval/success_once"], found.metrics["eval/episode_len"]) == (1.0, 3.0)


def test_videos_that_were_not_made_have_no_name() -> None:
    found = evaluate({"env": {"eval": {"env_type": "countdown"}}})
    assert (found.split, [one.video for one in found.episodes]) == ("test", [None])
    found = evaluate(configured(), policy=act, allow_import=True)
    assert (found.split, [one.video for one in found.episodes]) == (None, ["behavior_video_rank0_gpu0_env0.mp4"])


def test_a_function_around_a_coroutine_function() -> None:
    found = evaluate(
        configured(video_cfg={"save_video": False}), policy=lambda seen: act_later(seen), allow_import=True
    )
    assert found.metrics["eval/return"] == 4.5


def test_keys_with_dots() -> None:
    found = evaluate(
        {"env.eval.env_type": "bandit", "env.eval.total_num_envs": 2, "env.eval.video_cfg.save_video": False}
    )
    assert found.metrics["eval/num_trajectories"] == 2.0


def test_evaluation_of_a_file_by_its_expert() -> None:
    Path("eval.yaml").write_text(seed.OFF)
    found = evaluate("eval.yaml", "env.eval.env_type=frozen_lake", "env.eval.env_kwargs.is_slippery=false")
    assert found.metrics["eval/success_once"] == 1.0
    assert [path.name for path in Path().iterdir()] == ["eval.yaml"]


def test_failed_episodes_are_data_and_in_no_figure() -> None:
    off = {"save_video": False}
    chosen = configured(total_num_envs=2, env_kwargs={"fails_at": 1}, video_cfg=off)
    found = evaluate(as_object(chosen), policy=act, allow_import=True)
    assert ["this one cannot" in one.error for one in found.episodes] == [False, True]
    assert found.metrics["eval/num_trajectories"] == 1.0
    nothing = evaluate(configured(env_kwargs={"fails_at": 0}, video_cfg=off), policy=act, allow_import=True)
    assert nothing.metrics == {"eval/num_trajectories": 0.0}


def test_a_policy_s_gpus_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    chosen = configured(video_cfg={"save_video": False})
    chosen["cluster"] = {"component_placement": {"rollout": 2}}
    chosen["policy"] = {"kind": "python", "path": "tests.envs.evaluation:Seeing"}
    for _ in range(2):  # the second one counts among the same
        assert evaluate(chosen, allow_import=True).metrics["eval/return"] == 3 * 7


@pytest.mark.parametrize(("policy", "total"), [("Counting", 3 * 31), ("Nested", 3)])
def test_one_evaluation_at_a_time_chooses_gpus(policy: str, total: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    chosen = configured(video_cfg={"save_video": False})
    chosen["cluster"] = {"component_placement": {"rollout": 2}}
    chosen["policy"] = {"kind": "python", "path": f"tests.envs.evaluation:{policy}"}
    assert evaluate(chosen, allow_import=True).metrics["eval/return"] == total


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (configured(), r"names code to import, 'tests.envs.evaluation:Painter': allow it with allow_import=True"),
        ({"env": {"eval": {"total_num_env": 4}}}, r"unknown key 'env.eval.total_num_env': did you mean"),
        ({"env.eval.total_num_env": 4}, r"unknown key 'env.eval.total_num_env': did you mean"),
        ({"env.eval.seed": 4, "env": {"eval": {"seed": 3}}}, r"a key with dots: 'env.eval.seed' is given twice"),
        (
            {"cluster": {"component_placement": {"env": "0-x"}}},
            r"config: cluster.component_placement: env: found '0-x'",
        ),
        ({"cluster": {"component_placement": {"envs": 0}}}, r"component_placement: there is no 'env', but 'envs'"),
        (4, "expected a file name or a dict, found 4"),
        ("nowhere.yaml", "nowhere.yaml"),
    ],
)
def test_what_is_wrong_is_told(config: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        evaluate(config)


def test_what_is_wrong_with_a_placement_is_told() -> None:
    config = {"cluster": {"component_placement": {"env": "0-1"}}}
    with pytest.raises(UsageError, match=r"no component 'envs': did you mean 'env'"):
        HybridComponentPlacement(config).get_world_size("envs")
    with pytest.raises(UsageError, match=r"cluster.component_placement: env: found '3-1': .*write 1-3"):
        HybridComponentPlacement({"cluster": {"component_placement": {"env": "3-1"}}})
    without: list[Any] = [{}, {"cluster": {}}, None]
    for missing in without:
        with pytest.raises(UsageError, match=r"cluster.component_placement is missing"):
            HybridComponentPlacement(missing)
    with pytest.raises(UsageError, match=r"rank=2: .* has 2 processes"):
        create_video_writers(config, rank=2)
