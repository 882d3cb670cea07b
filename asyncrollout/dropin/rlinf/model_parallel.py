"""RLinf's placement of training with model parallelism: who shares GPUs, and how many processes each component has."""

from enum import auto
from typing import Any

from asyncrollout.dropin.configs import lookup
from asyncrollout.dropin.rlinf.placement import ComponentPlacement, NameEnum, PlacementMode
from asyncrollout.dropin.rlinf.ranks import PlacementError
from asyncrollout.dropin.rlinf.strategies import ClusterView, PackedPlacementStrategy, PlacementStrategy

_NAMES = {
    "actor": ("actor",),
    "rollout": ("rollout",),
    "reward": ("reward",),
    "inference": ("inference", "actor_inference"),
    "critic_inference": ("critic_inference",),
    "critic": ("critic",),
}
"""The components, and under which names each may be placed."""

_REQUIRED = ("actor", "rollout", "reward")
_MAY_HAVE_GAPS = ("reward",)
_APART = (
    ("actor", "rollout"),
    ("actor", "inference"),
    ("critic", "actor"),
    ("critic", "rollout"),
    ("critic", "critic_inference"),
    ("rollout", "critic_inference"),
)
"""Components that have no GPU in common where they are disaggregated; RLinf compares these pairs."""

_TENSOR, _PIPELINE, _CONTEXT = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"


class RolloutSyncMode(NameEnum):
    """How new weights come to the rollout: on the same GPU, or between GPUs."""

    COLLOCATED = auto()
    DISAGGREGATED = auto()


class ModelParallelComponentPlacement(ComponentPlacement):
    """Actor, rollout, reward and, where they are placed, inference and critic, each with its GPUs in a row.

    Actor and rollout have the same GPUs (collocated) or none in common (disaggregated; "auto" with
    `cluster.auto_scheduler`, where the actor may take all GPUs of `cluster` later).
    """

    def __init__(self, config: Any, cluster: ClusterView | None = None) -> None:
        super().__init__(config, cluster)
        self._config = config
        self._gpus = {role: self._gpus_of(*names) for role, names in _NAMES.items()}
        self._cluster_num_gpus = 0 if cluster is None else int(cluster.get_node_group().hardware_resource_count)
        self._check_gpus()
        self._placement_mode = self._mode()
        is_collocated = self._placement_mode is PlacementMode.COLLOCATED
        self._rollout_sync_mode = RolloutSyncMode.COLLOCATED if is_collocated else RolloutSyncMode.DISAGGREGATED
        self._check_size("Actor TP size", self.actor_tp_size, "actor")
        self._check_size("Rollout TP size", self.rollout_tp_size, "rollout")
        self._packed = self._strategies_of_mode()

    def get_strategy(self, component_name: str) -> PlacementStrategy:
        """What says on which node and GPUs each process runs; a process of the rollout has those of its model."""
        return self._packed.get(component_name) or super().get_strategy(component_name)

    @property
    def is_collocated(self) -> bool:
        return self._placement_mode is PlacementMode.COLLOCATED

    @property
    def is_disaggregated(self) -> bool:
        return self._placement_mode is PlacementMode.DISAGGREGATED

    @property
    def is_auto(self) -> bool:
        return self._placement_mode is PlacementMode.AUTO

    @property
    def is_pipeline(self) -> bool:
        return self.is_disaggregated or self.is_auto

    @property
    def has_dedicated_inference(self) -> bool:
        return self.is_pipeline and bool(self._gpus["inference"])

    @property
    def has_dedicated_actor_inference(self) -> bool:
        return self.has_dedicated_inference

    @property
    def has_dedicated_critic_inference(self) -> bool:
        return self.is_pipeline and bool(self._gpus["critic_inference"])

    def has_dedicated_inference_for_role(self, role: str) -> bool:
        """Whether "actor" or "critic" has GPUs of its own for inference."""
        if role not in ("actor", "critic"):
            raise PlacementError(f"role={role!r:.100}: it must be 'actor' or 'critic'")
        return self.has_dedicated_actor_inference if role == "actor" else self.has_dedicated_critic_inference

    @property
    def actor_tp_size(self) -> int:
        return self._size("actor", "model", _TENSOR)

    @property
    def actor_pp_size(self) -> int:
        return self._size("actor", "model", _PIPELINE)

    @property
    def actor_dp_size(self) -> int:
        return self.actor_world_size // (
            self.actor_tp_size * self.actor_pp_size * self._size("actor", "model", _CONTEXT)
        )

    @property
    def actor_world_size(self) -> int:
        return len(self._gpus["actor"])

    @property
    def critic_tp_size(self) -> int:
        return self._size("critic", "model", _TENSOR)

    @property
    def critic_pp_size(self) -> int:
        return self._size("critic", "model", _PIPELINE)

    @property
    def critic_dp_size(self) -> int:
        return self.critic_world_size // (
            self.critic_tp_size * self.critic_pp_size * self._size("critic", "model", _CONTEXT)
        )

    @property
    def critic_world_size(self) -> int:
        return len(self._gpus["critic"])

    @property
    def inference_tp_size(self) -> int:
        part = self._inference_part()
        return self.actor_tp_size if part is None else self._size(part, "model", _TENSOR)

    @property
    def inference_pp_size(self) -> int:
        part = self._inference_part()
        return self.actor_pp_size if part is None else self._size(part, "model", _PIPELINE, default=self.actor_pp_size)

    @property
    def inference_dp_size(self) -> int:
        return self.inference_world_size // (self.inference_tp_size * self.inference_pp_size)

    @property
    def inference_world_size(self) -> int:
        return len(self._gpus["inference"])

    @property
    def critic_inference_tp_size(self) -> int:
        return self._size("critic_inference", "model", _TENSOR, default=self.critic_tp_size)

    @property
    def critic_inference_pp_size(self) -> int:
        return self._size("critic_inference", "model", _PIPELINE, default=self.critic_pp_size)

    @property
    def critic_inference_dp_size(self) -> int:
        return self.critic_inference_world_size // (self.critic_inference_tp_size * self.critic_inference_pp_size)

    @property
    def critic_inference_world_size(self) -> int:
        return len(self._gpus["critic_inference"])

    @property
    def rollout_tp_size(self) -> int:
        return self._size("rollout", "tensor_parallel_size")

    @property
    def rollout_dp_size(self) -> int:
        return self.rollout_world_size // (self.rollout_tp_size * self._size("rollout", "pipeline_parallel_size"))

    @property
    def rollout_world_size(self) -> int:
        return len(self._gpus["rollout"])

    @property
    def reward_world_size(self) -> int:
        return len(self._gpus["reward"])

    def _gpus_of(self, *names: str) -> list[int]:
        placed = [name for name in names if name in self.components]
        return self.get_hardware_ranks(placed[0]) if placed else []

    def _check_gpus(self) -> None:
        for role in _REQUIRED:
            if not self._gpus[role]:
                raise PlacementError(f"{_title(role)} GPUs must be specified: set cluster.component_placement.{role}")
        for role, gpus in self._gpus.items():
            if gpus and role not in _MAY_HAVE_GAPS and gpus != [*range(gpus[0], gpus[-1] + 1)]:
                raise PlacementError(f"{_title(role)} GPUs {gpus} must be continuous: write a range, such as 0-3")
        groups = {self._found(name).node_groups for names in _NAMES.values() for name in names if name in self._placed}
        if len(groups) > 1:
            raise PlacementError(f"the components must be in one node group, not in {sorted(groups)}")

    def _mode(self) -> PlacementMode:
        gpus = self._gpus
        is_apart = not any({*gpus[one]} & {*gpus[other]} for one, other in _APART)
        if _at(self._config, "cluster", "auto_scheduler") and not gpus["critic"]:
            self._check_auto(is_apart=is_apart)
            return PlacementMode.AUTO
        if gpus["actor"] == gpus["rollout"]:
            for role in ("inference", "critic_inference"):
                if gpus[role]:
                    raise PlacementError(f"{_title(role)} GPUs must not be specified in collocated mode")
            return PlacementMode.COLLOCATED
        if not is_apart:
            raise PlacementError(
                "the components must be collocated (actor and rollout on the same GPUs) or disaggregated (all of them "
                f"on different GPUs), but their GPUs are { ({role: own for role, own in gpus.items() if own}) }"
            )
        if gpus["inference"]:
            self._check_size("Inference TP size", self.inference_tp_size, "inference")
            if not _at(self._config, "algorithm", "recompute_logprobs"):
                raise PlacementError(
                    f"algorithm.recompute_logprobs is false, so nothing infers on the inference GPUs "
                    f"{gpus['inference']}: set it to true, or do not place inference"
                )
        if gpus["critic_inference"]:
            self._check_size("Critic inference TP size", self.critic_inference_tp_size, "critic_inference")
        return PlacementMode.DISAGGREGATED

    def _check_auto(self, *, is_apart: bool) -> None:
        """One after the other, actor, rollout and inference have all GPUs of the cluster."""
        in_order = [gpu for role in ("actor", "rollout", "inference") for gpu in self._gpus[role]]
        if not is_apart or in_order != [*range(self._cluster_num_gpus)]:
            raise PlacementError(
                "cluster.auto_scheduler: actor, rollout and inference must have all GPUs of the cluster "
                f"({self._cluster_num_gpus}), one after the other in this order, not {in_order}"
            )

    def _strategies_of_mode(self) -> dict[str, PlacementStrategy]:
        if self.is_auto and _at(self._config, "cluster", "use_pre_process_policy"):
            self._give_rollout_the_actors_gpus()
        made = {
            "actor": self._packing("actor"),
            "rollout": self._rollout_packing(),
            "reward": self._packing("reward"),
        }
        if self._gpus["inference"]:
            has_critics = self.is_disaggregated and bool(self._gpus["critic_inference"])
            made["actor_inference" if has_critics else "inference"] = self._packing("inference")
        for role in ("critic_inference", "critic"):
            if self._gpus[role]:
                made[role] = self._packing(role)
        if self.is_auto:
            made["actor"] = self._packed_over([*range(self._cluster_num_gpus)])
        return made

    def _give_rollout_the_actors_gpus(self) -> None:
        actor, rollout = self._gpus["actor"], self._gpus["rollout"]
        if len(actor) % self.rollout_tp_size:
            raise PlacementError(
                f"cluster.use_pre_process_policy: {len(actor)} actor GPUs do not divide among processes of the "
                f"rollout with {self.rollout_tp_size} each"
            )
        self._gpus["rollout"] = [*actor, *rollout]

    def _rollout_packing(self) -> PlacementStrategy:
        gpus = self._gpus["rollout"]
        if not self.is_collocated:
            if not self.rollout_dp_size:
                raise PlacementError(f"rollout: its model needs more GPUs than the {len(gpus)} it has")
            return self._packed_over(gpus, len(gpus) // self.rollout_dp_size)
        actor, rollout = self.actor_tp_size, self.rollout_tp_size
        if actor > rollout and actor % rollout:
            raise PlacementError(f"Actor TP size ({actor}) must be divisible by Rollout TP size ({rollout})")
        return self._packed_over(gpus, rollout, stride=max(actor // rollout, 1))

    def _packing(self, role: str) -> PlacementStrategy:
        return self._packed_over(self._gpus[role])

    def _packed_over(self, gpus: list[int], each: int = 1, stride: int = 1) -> PlacementStrategy:
        labels = self._found("actor").node_groups or None
        return PackedPlacementStrategy(gpus[0], gpus[-1], each, stride, labels)

    def _check_size(self, what: str, size: int, role: str) -> None:
        world = len(self._gpus[role])
        if size > world:
            raise PlacementError(f"{what} {size} must be at most the world size of {role}, {world}")

    def _inference_part(self) -> str | None:
        return next((name for name in _NAMES["inference"] if lookup(self._config, name) is not None), None)

    def _size(self, *keys: str, default: int = 1) -> int:
        found = _at(self._config, *keys)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise PlacementError(f"{'.'.join(keys)}: found {found!r:.100}, expected a whole number from 1")
        return found


def _at(config: Any, *keys: str) -> Any:
    """A value of a configuration, None if it is not there; other values of it need not be resolvable."""
    for key in keys:
        config = None if config is None else lookup(config, key)
    return config


def _title(role: str) -> str:
    return role.replace("_", " ").capitalize()
