"""verl-agent's environment managers, which its own collector can use as well as ours."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.dropin.ragen import managers
from asyncrollout.dropin.ragen.container import SynchronousContainer
from asyncrollout.dropin.ragen.managers import Observations, last_of
from asyncrollout.dropin.verl_agent import prompts
from asyncrollout.dropin.verl_agent.projections import why_invalid
from asyncrollout.dropin.verl_agent.settings import read_env_settings
from asyncrollout.text.projections import Projection

_CELL = 16  # pixels of its side


class VerlAgentManager(managers.EnvironmentManagerBase):
    """`config` is verl-agent's; `env.history_length` steps are shown in prompts."""

    def __init__(self, envs: SynchronousContainer, projection_f: Projection, config: Any) -> None:
        self.settings = read_env_settings(config)
        history_length = max(self.settings.history_length, 0)
        super().__init__(envs, projection_f, self.settings.env_name, history_length=history_length)
        self.config = config
        self.explain_invalid = self.settings.explain_invalid

    def why_invalid(self, reply: str) -> str:
        return why_invalid(reply)

    def success_evaluator(
        self, *, total_infos: Sequence[Sequence[Mapping[str, Any]]], **_: Any
    ) -> dict[str, NDArray[np.float64]]:
        """Whether each episode was won, by the last info that says so; after its end, infos do not."""
        return {"success_rate": np.array([float(last_of("won", infos, default=False)) for infos in total_infos])}


class VerlAgentSokobanManager(VerlAgentManager):
    """With `env.sokoban.mode: rgb_array`, images and anchors are one array of all pictures."""

    @property
    def is_multi_modal(self) -> bool:
        return self.settings.sokoban.mode == "rgb_array"

    def prompt(self, observation: Any, history: Sequence[Mapping[str, Any]], available: Sequence[Any]) -> str:  # noqa: ARG002
        return prompts.visual_sokoban_prompt() if self.is_multi_modal else prompts.sokoban_prompt(observation, history)

    def _observations(self) -> Observations:
        found = super()._observations()
        if self.is_multi_modal:
            found["image"] = found["anchor"] = self._pictures()
        return found

    def _pictures(self) -> NDArray[np.uint8]:
        """All of one shape; an environment that failed shows nothing, which is black."""
        height, width = self.settings.sokoban.dim_room
        nothing = np.zeros((height * _CELL, width * _CELL, 3), dtype=np.uint8)
        return np.stack([nothing if isinstance(seen, str) else seen for seen in self._seen])


class WebshopEnvironmentManager(VerlAgentManager):
    """Prompts begin with the task; observations and anchors are pages without it."""

    def reset(self, kwargs: Any = None) -> tuple[Observations, list[dict[str, Any]]]:
        self._tasks: list[str] = []
        _, infos = super().reset(kwargs)
        self._tasks = [info.get("task", "") for info in infos]
        return self._observations(), infos

    def success_evaluator(
        self, *, total_infos: Sequence[Sequence[Mapping[str, Any]]], **_: Any
    ) -> dict[str, NDArray[np.float64]]:
        scores = np.array([float(last_of("task_score", infos, default=0.0)) for infos in total_infos])
        return {
            **super().success_evaluator(total_infos=total_infos),
            "webshop_task_score (not success_rate)": scores,
        }

    def why_invalid(self, reply: str) -> str:
        return why_invalid(reply, is_shop=True)

    def _prompt_of(self, index: int, seen: Any, history: Sequence[Mapping[str, Any]], available: Sequence[Any]) -> str:
        task = self._tasks[index] if self._tasks else ""
        return prompts.webshop_prompt(task, seen, history, available)


EnvironmentManagerBase = VerlAgentManager
"""verl-agent's name of `VerlAgentManager`."""

SokobanEnvironmentManager = VerlAgentSokobanManager
"""verl-agent's name of `VerlAgentSokobanManager`."""
