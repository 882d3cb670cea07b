"""The adapter to OmniGibson: what it asks of it, and what it makes of its answers. A small package stands in for it."""

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrollout import EnvPool, UsageError
from asyncrollout.errors import MissingExtraError
from asyncrollout_envs.behavior import (
    Behavior,
    as_action,
    camera_sides,
    configured,
    has_succeeded,
    only,
)

PACKAGE = {
    "omnigibson/__init__.py": """
        import os
        import numpy as np
        example_config_path = os.path.join(os.path.dirname(__file__), "configs")
        CAMERAS = ["left_realsense_link", "right_realsense_link", "zed_link"]

        class Sensor:
            image_height = image_width = 720

        class Robot:
            def __init__(self):
                self.sensors = {f"robot_r1:{name}:Camera:0": Sensor() for name in CAMERAS}

        class Environment:
            action_space = observation_space = None

            def __init__(self, configs):
                self.configs, self.robots, self.steps = configs, [Robot()], 0

            def load_observation_space(self):
                pass

            def _observation(self):
                shades = {name: 50 * (at + 1) for at, name in enumerate(self.robots[0].sensors)}
                robot = {
                    name: {"rgb": np.full((sensor.image_height, sensor.image_width, 4), shades[name], np.uint8)}
                    for name, sensor in self.robots[0].sensors.items()
                }
                return {"robot_r1": {**robot, "proprio": np.zeros(256, np.float32)}}

            def reset(self):
                self.steps = 0
                return self._observation(), {}

            def step(self, action):
                has_timed_out = self.steps >= self.configs["task"]["termination_config"]["max_steps"]
                self.steps += 1  # as OmniGibson does: its limit is compared before the step counts
                done = {"success": self.steps == 2, "termination_conditions": {}}
                return self._observation(), float(action.sum()), self.steps == 2, has_timed_out, {"done": done}

            def close(self):
                pass
        """,
    "omnigibson/macros.py": "class gm: pass",
    "omnigibson/configs/r1pro_behavior.yaml": """
        robots: [{type: R1Pro, name: robot_r1, obs_modalities: [rgb, depth]}]
        task: {type: BehaviorTask, activity_name: other, reward_config: {r_potential: 1.0}}
        scene: {scene_model: house_single_floor}
        """,
    "torch.py": "def from_numpy(array): return array",
}


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        del sys.modules[name]
    Behavior._in_use = False


async def test_its_absence_names_the_command_that_helps() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install omnigibson.*household is like it"):
        Behavior()
    async with EnvPool(workers=1) as pool:
        with pytest.raises(UsageError, match="pip install omnigibson"):
            await pool.open("behavior")


@pytest.mark.usefixtures("stand_in")
def test_an_episode() -> None:
    env = Behavior(activity="picking_up_trash", max_episode_steps=5)
    observation, info = env.reset(seed=3)
    assert observation["instruction"] == "picking up trash"
    assert observation["robot_r1"]["proprio"].shape == (256,)
    assert observation["robot_r1"]["robot_r1:zed_link:Camera:0"]["rgb"].shape == (256, 256, 4)
    frame = env.render()
    assert frame.shape == (256, 384, 3)
    assert [frame[0, 0, 0], frame[200, 0, 0], frame[0, 200, 0]] == [50, 100, 150]
    _, reward, terminated, truncated, info = env.step(np.full(23, 0.5))
    assert (reward, terminated, truncated) == (11.5, False, False)
    assert info == {"success": False, "activity": "picking up trash"}
    assert env.step(np.zeros(23))[2:4] == (True, False)
    env.close()


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("most", [1, 4])
def test_an_episode_has_as_many_steps_as_it_may(most: int) -> None:
    env = Behavior(max_episode_steps=most)
    env.reset()
    assert [env.step(np.zeros(23))[3] for _ in range(most)] == [False] * (most - 1) + [True]


@pytest.mark.usefixtures("stand_in")
def test_one_in_a_process() -> None:
    Behavior()
    with pytest.raises(UsageError, match="a worker of its own"):
        Behavior()


@pytest.mark.usefixtures("stand_in")
def test_a_task_is_refused() -> None:
    with pytest.raises(UsageError, match="activity="):
        Behavior().reset(options={"task": "can_meat"})


def test_configuration() -> None:
    base: dict[str, Any] = {
        "robots": [{"type": "R1Pro", "obs_modalities": ["depth"], "name": "r"}],
        "task": {"activity_definition_id": 0, "termination_config": {"max_steps": 1, "other": 2}},
        "scene": {"scene_model": "a", "load_room_types": None},
    }
    made = configured(base, "can_meat", 3, 50, {"scene": {"scene_model": "b"}, "render": {"x": 1}})
    assert made["task"]["activity_name"] == "can_meat"
    assert made["task"]["activity_instance_id"] == 3
    assert made["task"]["activity_definition_id"] == 0
    assert made["task"]["termination_config"] == {"max_steps": 49, "other": 2}
    assert made["robots"] == [{"type": "R1Pro", "obs_modalities": ["proprio", "rgb"], "name": "r"}]
    assert made["scene"] == {"scene_model": "b", "load_room_types": None}
    assert made["render"] == {"x": 1}
    assert base["task"]["termination_config"]["max_steps"] == 1


def test_cameras_by_a_part_of_their_names() -> None:
    names = ["robot_r1:left_realsense_link:Camera:0", "robot_r1:zed_link:Camera:0", "robot_r1:base_scan"]
    assert camera_sides(names, "low") == {names[0]: 128, names[1]: 256}
    assert camera_sides(names, "high") == {names[0]: 480, names[1]: 960}


@pytest.mark.parametrize("bad", [np.zeros(22), np.full(23, np.inf), 3])
def test_bad_actions(bad: Any) -> None:
    with pytest.raises(ValueError, match="23 finite numbers"):
        as_action(bad)


def test_answers_of_older_and_newer_versions() -> None:
    assert only([{"done": {"success": True}}]) == {"done": {"success": True}}
    assert only({"a": 1}) == {"a": 1}
    assert has_succeeded({"done": {"success": True}})
    assert not has_succeeded({"done": {"success": False}})
    assert not has_succeeded({})
