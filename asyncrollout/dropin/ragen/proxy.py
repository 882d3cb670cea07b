"""One rollout of a training step: a model plays all environments of a mode, and the trainer gets a batch."""

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from asyncrollout.dropin.ragen.collector import TrajectoryCollector
from asyncrollout.dropin.ragen.context import ContextManager
from asyncrollout.dropin.ragen.data import DataProto, from_any, merged, pad_dataproto_to_divisor, unpad_dataproto
from asyncrollout.dropin.ragen.factory import make_environments
from asyncrollout.dropin.ragen.managers import EnvironmentManagerBase
from asyncrollout.dropin.ragen.prompts import DEFAULT, PromptTemplates
from asyncrollout.dropin.ragen.settings import Mode, read_settings
from asyncrollout.dropin.ragen.states import EnvStateManager
from asyncrollout.dropin.ragen.tensors import is_verls, to_verl
from asyncrollout.errors import RolloutError, UsageError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LLMAgentProxy:
    """`actor_rollout_wg` has `generate_sequences(DataProto) -> DataProto`, as verl's worker groups have.

    Rollouts go through an `EnvStateManager`, or, after `init_parallel_environments()`, through a `TrajectoryCollector`.
    `templates` are the texts of the prompts.
    """

    parallel_envs: dict[Mode, EnvironmentManagerBase]
    traj_collector: TrajectoryCollector

    def __init__(
        self, config: Any, actor_rollout_wg: Any, tokenizer: Any = None, *, templates: PromptTemplates = DEFAULT
    ) -> None:
        if not callable(getattr(actor_rollout_wg, "generate_sequences", None)):
            raise UsageError(f"{actor_rollout_wg!r:.100} has no generate_sequences()")
        self._settings = read_settings(config)
        self.config = config
        self.actor_wg = actor_rollout_wg
        self.tokenizer = tokenizer
        modes: list[Mode] = ["train"] if self._settings.es_manager.val is None else ["train", "val"]
        self._managers = {mode: EnvStateManager(config, mode) for mode in modes}
        self._contexts = {mode: ContextManager(config, tokenizer, mode=mode, templates=templates) for mode in modes}

    def init_parallel_environments(self) -> bool:
        """Make the environments of the collector; if that fails, log why and use the state manager."""
        if not self._settings.use_parallel_envs:
            return False
        try:
            train, val = make_environments(self._settings)
        except RolloutError as error:
            logger.warning("Failed to initialize parallel environments: %s", error)
            logger.warning("Falling back to original environment system")
            return False
        self.parallel_envs = {"train": train, "val": val}
        self.traj_collector = TrajectoryCollector(self.config, self.tokenizer)
        return True

    @property
    def train_es_manager(self) -> EnvStateManager:
        return self._managers["train"]

    @property
    def val_es_manager(self) -> EnvStateManager:
        return self._of_mode(self._managers, "val")

    @property
    def train_ctx_manager(self) -> ContextManager:
        return self._contexts["train"]

    @property
    def val_ctx_manager(self) -> ContextManager:
        return self._of_mode(self._contexts, "val")

    @property
    def train_parallel_envs(self) -> EnvironmentManagerBase:
        return self.parallel_envs["train"]

    @property
    def val_parallel_envs(self) -> EnvironmentManagerBase:
        return self.parallel_envs["val"]

    def rollout(self, dataproto: Any, val: bool = False) -> Any:
        """Play new episodes to their ends, or through `agent_proxy.max_turn` turns."""
        if hasattr(self, "parallel_envs") and hasattr(self, "traj_collector"):
            envs = self.val_parallel_envs if val else self.train_parallel_envs
            return self.traj_collector.multi_turn_loop(
                gen_batch=dataproto, actor_rollout_wg=self.actor_wg, envs=envs, is_train=not val
            )
        states = self.val_es_manager if val else self.train_es_manager
        context = self.val_ctx_manager if val else self.train_ctx_manager
        return self._play(states, context, getattr(dataproto, "meta_info", None) or {})

    def generate_sequences(self, lm_inputs: Any) -> DataProto:
        """The model's replies, with what is known of the prompts where it does not repeat that.

        A worker group is given a number of rows that its workers can share evenly.
        """
        known = from_any(lm_inputs)
        padded, extra = pad_dataproto_to_divisor(known, int(getattr(self.actor_wg, "world_size", None) or 1))
        answers = self.actor_wg.generate_sequences(to_verl(padded) if is_verls(lm_inputs) else padded)
        return merged(known, unpad_dataproto(from_any(answers), extra))

    def close(self) -> None:
        for states in self._managers.values():
            states.close()
        for envs in getattr(self, "parallel_envs", {}).values():
            envs.close()

    def _play(self, states: EnvStateManager, context: ContextManager, meta_info: dict[str, Any]) -> Any:
        begun = states.reset()
        context.instructions = {entry["env_id"]: entry["instruction"] for entry in states.envs}
        playing = [cache for cache in begun if not states.envs[cache["env_id"]]["status"].terminated]
        for _ in range(self._settings.agent_proxy.max_turn):
            if not playing:
                break
            lm_inputs = context.get_lm_inputs(playing)
            lm_inputs.meta_info = meta_info
            playing = states.step(context.get_env_inputs(self.generate_sequences(lm_inputs)))
        asks_collapse = bool(meta_info.get("compute_collapse", True))
        return context.formulate_rollouts(states.get_rollout_states(), include_collapse_data=asks_collapse)

    def _of_mode(self, parts: Mapping[Mode, T], mode: Mode) -> T:
        if mode not in parts:
            raise UsageError(f"config: es_manager.{mode} is missing: say how many of which tags")
        return parts[mode]
