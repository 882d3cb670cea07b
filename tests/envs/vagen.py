"""An environment of a user's own, written for VAGEN's first version."""

from dataclasses import dataclass
from typing import Any

from PIL import Image

from asyncrollout.dropin.vagen import BaseEnv, BaseEnvConfig


@dataclass
class CountConfig(BaseEnvConfig):
    """To which number the model must count."""

    goal: int = 2

    identifying = ("goal",)


class CountEnv(BaseEnv):
    """Each reply counts; `compute_reward` is 5 at the goal."""

    def __init__(self, config: CountConfig) -> None:
        self.config, self.count = config, 0

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.count = 0
        return self._shown(), {"seed": seed}

    def step(self, llm_raw_response: str) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        self.count += 1
        info = {"metrics": {"turn_metrics": {"words": len(llm_raw_response.split())}, "traj_metrics": {}}}
        return self._shown(), self.config.format_reward, self.count >= self.config.goal, info

    def system_prompt(self) -> str:
        return f"Count to {self.config.goal}."

    def compute_reward(self) -> float:
        return 5.0 if self.count >= self.config.goal else 0.0

    def close(self) -> None:
        pass

    def _shown(self) -> dict[str, Any]:
        image = Image.new("RGB", (4, 3), (self.count, 0, 0))
        return {"obs_str": f"{self.count} <image>", "multi_modal_data": {"<image>": [image]}}
