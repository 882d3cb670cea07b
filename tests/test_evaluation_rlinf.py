"""RLinf's own evaluation files: Hydra's defaults beside the file, keys that are mapped, unused or refused."""

import logging
from pathlib import Path

import pytest

from asyncrollout import UsageError
from asyncrollout.cli.app import main as command
from asyncrollout.dropin.rlinf import evaluate
from asyncrollout.dropin.rlinf.config import RLinfModel, read_evaluation

MAIN = """
defaults:
  - env/robot@env.eval
  - model/vla@rollout.model
  - override hydra/job_logging: stdout

hydra:
  searchpath:
    - file://${oc.env:ROBOT_CONFIGS}/config/

cluster:
  num_nodes: 1
  component_placement:
    rollout,env: 0-1

runner:
  only_eval: True
  logger:
    log_path: ../results

env:
  group_name: EnvGroup
  eval:
    rollout_epoch: 2
    total_num_envs: 4
    max_episode_steps: 4096
    max_steps_per_rollout_epoch: 512
    video_cfg:
      save_video: True
      video_base_dir: ${runner.logger.log_path}/video/eval
      fps: 15

rollout:
  backend: huggingface
  model:
    model_path: /models/vla
    action_env_dim: ${actor.model.action_dim}
"""
ROBOT = """
env_type: behavior
total_num_envs: null
auto_reset: False
ignore_terminations: False
use_rel_reward: True
seed: 0
group_size: 1
use_fixed_reset_state_ids: False
max_steps_per_rollout_epoch: 2000
max_episode_steps: 2000
skip_intermediate_obs_in_chunk: True
num_env_subprocess: 1
policy_wrapper: null
video_cfg:
  save_video: False
  info_on_video: True
omni_config:
  env: {action_frequency: 60}
  camera: {head_resolution: [720, 720]}
  macro: {headless: True}
  task: {type: BehaviorTask, activity_name: turning_on_radio, activity_instance_id: 3, activity_instance_dir: null}
"""


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An evaluation and the files that its defaults name, laid out as RLinf's are."""
    for name, text in {
        "evaluations/eval.yaml": MAIN,
        "config/env/robot.yaml": ROBOT,
        "config/model/vla.yaml": "",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setenv("ROBOT_CONFIGS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "evaluations/eval.yaml"


def test_the_whole_file(main: Path) -> None:
    config = read_evaluation(main)
    eval_ = config.env.eval
    assert (eval_.env_type, eval_.total_num_envs, eval_.episodes, eval_.seed) == ("behavior", 4, 2, 0)
    assert eval_.max_episode_steps == 512, "an episode ends with its rollout epoch"
    assert (eval_.video_cfg.video_base_dir, eval_.video_cfg.fps) == ("../results/video/eval", 15)
    assert (eval_.video_cfg.save_video, eval_.video_cfg.info_on_video) == (True, True)
    assert eval_.env_kwargs == {
        "activity": "turning_on_radio",
        "instance": 3,
        "config": {"env": {"action_frequency": 60}, "task": {"type": "BehaviorTask"}},
    }
    assert config.policy == RLinfModel("/models/vla")
    assert [len(config.cluster.workers(name)) for name in ("env", "rollout")] == [2, 2]


def test_references_see_overrides(main: Path) -> None:
    config = read_evaluation(main, ["runner.logger.log_path=/logs", "env.eval.max_steps_per_rollout_epoch=9999"])
    assert config.env.eval.video_cfg.video_base_dir == "/logs/video/eval"
    assert config.env.eval.max_episode_steps == 4096


def test_the_former_name_of_epochs_counts_where_the_new_one_is_missing(main: Path) -> None:
    former = ["algorithm.eval_rollout_epoch=7"]
    assert read_evaluation(main, former).env.eval.episodes == 2
    main.write_text(MAIN.replace("    rollout_epoch: 2\n", ""))
    assert read_evaluation(main, former).env.eval.episodes == 7


def test_another_policy_never_plays_in_the_place_of_the_file_s_model(main: Path) -> None:
    with pytest.raises(UsageError, match=r"rollout\.model names a model '/models/vla', which only RLinf loads"):
        evaluate(main, "env.eval.env_type=household", "env.eval.env_kwargs={}")
    household = ["env.eval.env_type=household", "env.eval.omni_config=null", "env.eval.max_steps_per_rollout_epoch=3"]
    few = [*household, "env.eval.total_num_envs=1", "env.eval.rollout_epoch=1", "env.eval.video_cfg.save_video=false"]
    found = evaluate(main, *few, "policy=solver", "cluster.component_placement={env: 0}")
    assert [episode.steps for episode in found.episodes] == [3]


def test_what_is_missing_says_how_to_go_on(main: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROBOT_CONFIGS")
    with pytest.raises(
        UsageError, match="the environment variable ROBOT_CONFIGS is not set: set it, or write the values"
    ):
        read_evaluation(main)
    monkeypatch.setenv("ROBOT_CONFIGS", "/nowhere")
    with pytest.raises(UsageError, match=r"'env/robot': there is no env/robot.yaml in .*/evaluations, /nowhere/config"):
        read_evaluation(main)
    with pytest.raises(UsageError, match="'defaults' are resolved from the files beside a file: give its path"):
        evaluate({"defaults": ["env/robot@env.eval"]})


def test_the_command_names_settings_that_are_not_applied(main: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command(["eval", str(main)]) == 2
    shown = capfd.readouterr().err
    assert "setting=env.eval.omni_config.camera" in shown
    assert "give your own policy (--policy module:name, or policy= in Python)\n" in shown, "behavior has no expert"


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("env.eval.auto_reset=true", "env.eval.auto_reset: found true, expected False: each env plays whole episodes"),
        ("env.eval.group_size=4", "env.eval.group_size: found 4, expected 1"),
        ("env.eval.omni_config.task.instance_resample_mode=offline", "instance_resample_mode: found 'offline'"),
        ("env.eval.max_steps_per_rollout_epoch=0", "max_steps_per_rollout_epoch: found 0, expected a whole number"),
        ("env.eval.rollout_epoch=0", "env.eval.rollout_epoch"),
        ("env.eval.episodes=3", "means the same"),
        ("algorithm.eval_rollout_epoch=${nowhere}", "algorithm.eval_rollout_epoch: found '${nowhere}'"),
        ("env.eval.rollout_epochs=3", "unknown key 'env.eval.rollout_epochs'"),
        ("env.eval.env_type=libero", "RLinf's 'libero' is not available here; of its environments, only 'behavior' is"),
        ("env.eval.env_type=behaviour", "no env is called 'behaviour': did you mean 'behavior'"),
        ("cluster.num_nodes=2", "an evaluation runs on one machine"),
        ("cluster.component_placement={env: {node_group: node, placement: 0}}", "node_group 'node' has no GPUs"),
    ],
)
def test_what_would_change_what_is_played_is_refused(main: Path, override: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_evaluation(main, [override])
    assert why in str(caught.value)


def test_a_value_of_another_file_is_placed_there(main: Path) -> None:
    robot = main.parents[1] / "config/env/robot.yaml"
    robot.write_text(ROBOT.replace("seed: 0", "seed: -1"))
    with pytest.raises(UsageError, match=r"env/robot.yaml, line 7: env.eval.seed"):
        read_evaluation(main)


def test_keys_without_effect_are_reported(main: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        read_evaluation(main)
    mapped, *warned = caplog.records
    for key in ("runner", "env.group_name", "env.eval.num_env_subprocess", "rollout"):
        assert f"{key}: " in mapped.getMessage()
    assert "env.eval.rollout_epoch -> env.eval.episodes" in mapped.getMessage()
    assert [record.levelno for record in warned] == [logging.WARNING] * 2
    for record, key in zip(warned, ("macro", "camera"), strict=True):
        assert f"setting=env.eval.omni_config.{key}" in record.getMessage()
