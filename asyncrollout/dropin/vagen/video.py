"""Video-MTR's environment for code that runs it itself."""

from typing import Any

from asyncrollout.dropin.vagen.configs import VideoEnvConfig
from asyncrollout.dropin.vagen.envs import BaseEnv, Shown, Stepped
from asyncrollout.dropin.vagen.service import VideoEnvService
from asyncrollout.errors import UsageError
from asyncrollout.service.observations import from_json

_ID = "env"


class VideoEnv(BaseEnv):
    """The `video` env, in a worker process of its own. Images are Pillow's, which must be installed for them."""

    def __init__(self, config: VideoEnvConfig) -> None:
        self.config = config
        self._service = VideoEnvService(max_workers=1)
        options = {**config.options(), "explain_invalid": config.explain_invalid}
        self._service.create_environments_batch({_ID: {"env_name": "video", "env_config": options}})
        if _ID in self._service.failures:
            reason = self._service.failures[_ID]
            self.close()
            raise UsageError(reason)

    def reset(self, seed: int | None = None, extra_info: Any = None) -> Shown:
        observation, info = self._service.reset_batch({_ID: {"seed": seed, "extra_info": extra_info}})[_ID]
        _check(info)
        return from_json(observation), info

    def step(self, llm_raw_response: str, verbose: bool = False) -> Stepped:
        action = {"llm_raw_response": llm_raw_response, "verbose": verbose}
        observation, reward, done, info = self._service.step_batch({_ID: action})[_ID]
        _check(info)
        return from_json(observation), reward, done, info

    def system_prompt(self) -> str:
        return self._service.get_system_prompts_batch([_ID])[_ID]

    def compute_reward(self) -> float:
        return self._service.compute_reward_batch([_ID])[_ID]

    def get_split_size(self, split: str = "train") -> int:
        return self._service.get_split_size_batch([_ID], split)[_ID]

    def close(self) -> None:
        self._service.close_batch()


def _check(info: dict[str, Any]) -> None:
    if "error" in info:
        raise UsageError(info["error"])
