"""BEHAVIOR-1K's activities in OmniGibson, where that is installed; it needs an NVIDIA GPU and data sets of its own."""

import copy
import gc
import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from asyncrollout.errors import MissingExtraError, UsageError
from asyncrollout.registry import EnvSpec
from asyncrollout_envs.kwargs import check_one_of, check_whole
from asyncrollout_envs.sensors import CAMERAS, SIZES, Camera, Picture, Size, find_pictures, tile

INSTALL = "pip install omnigibson, then its data sets (https://behavior.stanford.edu)"

_R1PRO = "r1pro_behavior.yaml"  # among OmniGibson's own examples
_ACTION_LENGTH = 23
_PROPRIO = "proprio"

SPEC = EnvSpec(
    name="behavior",
    factory="asyncrollout_envs.behavior:Behavior",
    runs="cpu",
    replayable=False,  # what a GPU simulates is not the same twice
    summary="BEHAVIOR-1K household activities in OmniGibson, on a GPU",
    actions="23 numbers",
    requires={"omnigibson": "pip install omnigibson"},
)


class Behavior:
    """BEHAVIOR's R1Pro in an activity. Observations are OmniGibson's own, as arrays, with the instruction added.

    An action is R1Pro's 23 numbers. `instance` says which of an activity's scenes it is played in, and `config` has
    values that replace those of OmniGibson's configuration, at any depth. There is no chance to seed.
    """

    alone_in_process = True
    """Stepping one env would step all those that its simulator holds."""

    metadata: Mapping[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}
    render_mode = "rgb_array"
    _in_use = False

    def __init__(
        self,
        *,
        activity: str = "turning_on_radio",
        instance: int = 0,
        instruction: str | None = None,
        max_episode_steps: int = 5000,
        resolution: Size = "low",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        check_whole("behavior", least=0, instance=instance)
        check_whole("behavior", max_episode_steps=max_episode_steps)
        check_one_of("behavior", "resolution", resolution, tuple(SIZES))
        if importlib.util.find_spec("omnigibson") is None:
            raise MissingExtraError(f"behavior needs OmniGibson: {INSTALL}; household is like it, and needs nothing")
        if Behavior._in_use:
            raise UsageError("behavior: there is one in this process already: open each with a worker of its own")
        omnigibson, macros = importlib.import_module("omnigibson"), importlib.import_module("omnigibson.macros")
        macros.gm.HEADLESS = True
        macros.gm.USE_GPU_DYNAMICS = False
        base = yaml.safe_load((Path(omnigibson.example_config_path) / _R1PRO).read_text(encoding="utf-8"))
        chosen = configured(base, activity, instance, max_episode_steps, config or {})
        self.resolution, self.max_episode_steps = resolution, max_episode_steps
        self.instruction = instruction or activity.replace("_", " ")
        self._env = omnigibson.Environment(configs=chosen)
        Behavior._in_use = True
        gc.enable()  # Isaac Sim turns it off, and OmniGibson's cycles would fill the memory
        for robot in self._env.robots:
            for name, side in camera_sides(robot.sensors, resolution).items():
                robot.sensors[name].image_height = robot.sensors[name].image_width = side
        self._env.load_observation_space()
        self._pictures: dict[Camera, Picture] = {}

    @property
    def action_space(self) -> Any:
        return self._env.action_space

    @property
    def observation_space(self) -> Any:
        return self._env.observation_space

    def reset(
        self,
        *,
        seed: int | None = None,  # noqa: ARG002 (there is no chance to seed)
        options: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if (options or {}).get("task") is not None:
            raise UsageError("behavior: an activity is loaded with its scene, and takes no task: give it as activity=")
        observation, _ = self._env.reset()
        return self._seen(observation), {"activity": self.instruction}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        torch = importlib.import_module("torch")
        observation, reward, terminated, truncated, info = self._env.step(torch.from_numpy(as_action(action)))
        success = has_succeeded(only(info))
        ended = bool(only(terminated)), bool(only(truncated))
        return self._seen(observation), float(only(reward)), *ended, {"success": success, "activity": self.instruction}

    def _seen(self, observation: Any) -> dict[str, Any]:
        observation = only(observation)
        self._pictures = find_pictures(observation)
        return {**as_arrays(observation), "instruction": self.instruction}

    def render(self) -> Picture:
        """The left wrist's picture above the right one's, and beside them the head's."""
        return tile(self._pictures, self.resolution)

    def close(self) -> None:
        """The simulator stays until its process ends, as there is no way to start it again."""
        self._env.close()


def configured(
    base: Mapping[str, Any], activity: str, instance: int, max_episode_steps: int, more: Mapping[str, Any]
) -> dict[str, Any]:
    """OmniGibson's configuration for an activity: cameras in colour, proprioception, no task observations."""
    config: dict[str, Any] = copy.deepcopy(dict(base))
    task = {
        "type": "BehaviorTask",
        "activity_name": activity,
        "activity_instance_id": instance,
        "online_object_sampling": False,
        "include_obs": False,
        "termination_config": {"max_steps": max_episode_steps - 1},  # it counts a step after it has compared
    }
    config["task"] = _merged(config.get("task") or {}, task)
    robot, *others = config.get("robots") or [{"type": "R1Pro"}]
    config["robots"] = [{**robot, "obs_modalities": [_PROPRIO, "rgb"]}, *others]
    return _merged(config, more)


def _merged(values: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, value in new.items():
        here = merged.get(key)
        merged[key] = _merged(here, value) if isinstance(here, Mapping) and isinstance(value, Mapping) else value
    return merged


def camera_sides(sensors: Iterable[str], size: Size) -> dict[str, int]:
    """How many pixels each camera of a robot is to have a side, by the sensor's name."""
    wrist, head = SIZES[size]
    return {
        name: head if camera == "head" else wrist
        for name in sensors
        for camera, part in CAMERAS.items()
        if part in name
    }


def as_action(action: Any) -> NDArray[np.float32]:
    numbers = np.asarray(action, dtype=np.float32)
    if numbers.shape != (_ACTION_LENGTH,) or not np.isfinite(numbers).all():
        raise ValueError(f"an action is {_ACTION_LENGTH} finite numbers, not numbers of shape {numbers.shape}")
    return numbers


def only(value: Any) -> Any:
    """A single env's part of what newer versions give as a list of one."""
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def has_succeeded(info: Mapping[str, Any]) -> bool:
    done = info.get("done")
    return bool(done.get("success", False)) if isinstance(done, Mapping) else False


def as_arrays(value: Any) -> Any:
    """An observation without tensors."""
    if isinstance(value, Mapping):
        return {key: as_arrays(below) for key, below in value.items()}
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
