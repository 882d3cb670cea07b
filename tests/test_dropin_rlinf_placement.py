"""RLinf's placement classes: on which node and GPUs the processes of a component run."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from asyncrollout import UsageError
from asyncrollout.dropin.rlinf import (
    FlexiblePlacementStrategy,
    HybridComponentPlacement,
    ModelParallelComponentPlacement,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    PlacementError,
    PlacementMode,
    RolloutSyncMode,
)
from asyncrollout.dropin.rlinf.strategies import ACCELERATOR


@dataclass
class Node:
    node_rank: int
    num_accelerators: int
    accelerator_type: str = "NV_GPU"


@dataclass
class Group:
    """Nodes with hardware of a type, or none; robots are one to a node."""

    label: str
    nodes: list[Node]
    hardware_type: str | None = ACCELERATOR

    @property
    def node_ranks(self) -> list[int]:
        return [node.node_rank for node in self.nodes]

    @property
    def _units(self) -> list[tuple[Node, int]]:
        is_gpu = self.hardware_type == ACCELERATOR
        return [(node, at) for node in self.nodes for at in range(node.num_accelerators if is_gpu else 1)]

    @property
    def hardware_resource_count(self) -> int:
        return len(self._units)

    def get_node_by_hardware_rank(self, hardware_rank: int) -> Node:
        return self._units[hardware_rank][0]

    def get_local_hardware_rank(self, hardware_rank: int) -> int:
        return self._units[hardware_rank][1]


class Cluster:
    """Nodes with so many GPUs each, and groups of them."""

    def __init__(self, *gpus: int, **groups: tuple[list[int], str | None]) -> None:
        self.nodes = [Node(rank, count) for rank, count in enumerate(gpus)]
        self.groups = {
            "cluster": Group("cluster", self.nodes),
            "node": Group("node", self.nodes, None),
            **{
                label: Group(label, [self.nodes[rank] for rank in ranks], kind)
                for label, (ranks, kind) in groups.items()
            },
        }

    def get_node_group(self, label: str = "cluster", /) -> Group | None:
        return self.groups.get(label)

    def get_node_info(self, node_rank: int, /) -> Node:
        return self.nodes[node_rank]


def seen(strategy: Any, cluster: Cluster, **options: Any) -> list[tuple[int, list[str]]]:
    """Of each process, its node and the GPUs that it sees."""
    placements = strategy.get_placement(cluster, **options)
    assert [placement.rank for placement in placements] == [*range(len(placements))]
    return [(placement.cluster_node_rank, placement.visible_accelerators) for placement in placements]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (FlexiblePlacementStrategy([[4], [0, 1]]), [(0, ["0", "1"]), (1, ["0"])]),
        (FlexiblePlacementStrategy([[3, 2], [5]]), [(0, ["2", "3"]), (1, ["1"])]),
        (FlexiblePlacementStrategy([[0], [1]], "second"), [(1, ["0"]), (1, ["1"])]),
        (FlexiblePlacementStrategy([[0], [4]], ["second", "cluster"]), [(1, ["0"]), (0, ["0"])]),
        (PackedPlacementStrategy(2, 5), [(0, ["2"]), (0, ["3"]), (1, ["0"]), (1, ["1"])]),
        (PackedPlacementStrategy(0, 7, 2), [(0, ["0", "1"]), (0, ["2", "3"]), (1, ["0", "1"]), (1, ["2", "3"])]),
        (PackedPlacementStrategy(0, 3, 2, stride=2), [(0, ["0", "2"]), (0, ["1", "3"])]),
        (NodePlacementStrategy([1, 0]), [(0, ["0", "1", "2", "3"]), (1, ["0", "1", "2", "3"])]),
        (FlexiblePlacementStrategy([[0], [1]], "robots"), [(0, ["0", "1", "2", "3"]), (1, ["0", "1", "2", "3"])]),
    ],
)
def test_who_runs_where(strategy: Any, expected: list[tuple[int, list[str]]]) -> None:
    cluster = Cluster(4, 4, second=([1], ACCELERATOR), robots=([0, 1], "Franka"))
    if [node for node, _ in expected] != sorted(node for node, _ in expected):
        with pytest.raises(PlacementError, match="sorted by node"):
            strategy.get_placement(cluster)
    else:
        assert seen(strategy, cluster) == expected


def test_ranks_are_counted_on_each_node() -> None:
    placements = NodePlacementStrategy([0, 2, 2, 3], "node").get_placement(Cluster(0, 1, 2, 1))
    assert [placement.local_rank for placement in placements] == [0, 0, 1, 0]
    assert [placement.local_world_size for placement in placements] == [1, 2, 2, 1]
    assert [placement.placement_node_rank for placement in placements] == [0, 1, 1, 2]
    assert [placement.local_accelerator_rank for placement in placements] == [-1, 0, 0, 0]
    assert {placement.node_group_label for placement in placements} == {"node"}


def test_without_isolation_all_gpus_of_the_node_are_seen() -> None:
    assert seen(FlexiblePlacementStrategy([[1]]), Cluster(2), isolate_accelerator=False) == [(0, ["0", "1"])]


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (lambda: FlexiblePlacementStrategy([]), "must not be empty"),
        (lambda: FlexiblePlacementStrategy([[0], []]), "must not be empty"),
        (lambda: FlexiblePlacementStrategy([[-1]]), "numbered from 0"),
        (lambda: FlexiblePlacementStrategy([[0, 2]]), "must be on the same node"),
        (lambda: FlexiblePlacementStrategy([[4]]), "4 is out of range: there are 4"),
        (lambda: FlexiblePlacementStrategy([[0, 0]]), "must be unique"),
        (lambda: FlexiblePlacementStrategy([[0, 4]], ["cluster", "robots"]), "must be of one type"),
        (lambda: FlexiblePlacementStrategy([[0]], "node"), "'node' has no hardware"),
        (lambda: FlexiblePlacementStrategy([[0]], "nowhere"), "no node group 'nowhere'"),
        (lambda: PackedPlacementStrategy(0, 3, stride=3), "must be divisible"),
        (lambda: PackedPlacementStrategy(0, 2, 4), "must be divisible"),
        (lambda: PackedPlacementStrategy(3, 2), "not a range"),
        (lambda: PackedPlacementStrategy(4, 7), "out of range"),
        (lambda: NodePlacementStrategy([]), "must not be empty"),
        (lambda: NodePlacementStrategy([0], ["node", "cluster"]), "have common nodes"),
    ],
)
def test_what_cannot_be_placed(strategy: Any, why: str) -> None:
    cluster = Cluster(2, 2, robots=([0], "Franka"))
    for kind in (AssertionError, UsageError):
        with pytest.raises(kind, match=why):
            strategy().get_placement(cluster)


def test_a_node_that_is_not_there() -> None:
    with pytest.raises(IndexError, match="node 2 is out of range: there are 2"):
        NodePlacementStrategy([0, 2], "node").get_placement(Cluster(1, 1))


def test_components_have_strategies() -> None:
    config = {
        "cluster": {
            "component_placement": {
                "actor,inference": "all",
                "env": {"node_group": "node", "placement": "0-1:0-3"},
                "rollout": {"node_group": "second", "placement": "0-1:0"},
            }
        }
    }
    cluster = Cluster(2, 2, second=([1], ACCELERATOR))
    placement = HybridComponentPlacement(config, cluster)
    assert placement.get_strategy("actor") is placement.get_strategy("inference")
    assert seen(placement.get_strategy("actor"), cluster) == [(0, ["0"]), (0, ["1"]), (1, ["0"]), (1, ["1"])]
    assert isinstance(placement.get_strategy("env"), NodePlacementStrategy)
    assert [node for node, _ in seen(placement.get_strategy("env"), cluster)] == [0, 0, 1, 1]
    assert seen(placement.get_strategy("rollout"), cluster) == [(1, ["0", "1"])]
    assert (placement.get_world_size("rollout"), placement.get_hardware_ranks("rollout")) == (1, [0, 1])


def test_a_cluster_bounds_placements() -> None:
    config = {"cluster": {"component_placement": {"env": "0-4"}}}
    assert HybridComponentPlacement(config).get_world_size("env") == 5
    with pytest.raises(AssertionError, match="env: found '0-4': 4 is out of range: there are 4"):
        HybridComponentPlacement(config, Cluster(2, 2))
    elsewhere = {"cluster": {"component_placement": {"env": {"node_group": "third", "placement": 0}}}}
    with pytest.raises(AssertionError, match="no node group 'third' in the cluster"):
        HybridComponentPlacement(elsewhere, Cluster(2, 2))


def training(placed: dict[str, Any], actor: Any = 1, rollout: Any = 1, **cluster: Any) -> dict[str, Any]:
    """A configuration of RLinf's training: placements, and how many GPUs share a model."""
    return {
        "cluster": {"component_placement": placed, **cluster},
        "actor": {"model": {"tensor_model_parallel_size": actor}},
        "rollout": {"tensor_parallel_size": rollout},
        "algorithm": {"recompute_logprobs": True},
    }


APART = {"actor": "0-1", "rollout": "2-5", "inference": "6-7", "reward": "2-5"}


def test_collocated_training() -> None:
    """A process of the rollout has the GPUs whose parts of the actor's model it needs."""
    config = training({"actor,rollout,reward": "0-3"}, 4, 2)
    placement = ModelParallelComponentPlacement(config, Cluster(4))
    assert placement.is_collocated
    assert not placement.is_pipeline
    assert (placement.placement_mode, placement._rollout_sync_mode) == (
        PlacementMode.COLLOCATED,
        RolloutSyncMode.COLLOCATED,
    )
    assert (placement.actor_world_size, placement.rollout_world_size, placement.reward_world_size) == (4, 4, 4)
    assert (placement.actor_dp_size, placement.rollout_dp_size) == (1, 2)
    assert [gpus for _, gpus in seen(placement.get_strategy("rollout"), Cluster(4))] == [["0", "2"], ["1", "3"]]
    assert [gpus for _, gpus in seen(placement.get_strategy("actor"), Cluster(4))] == [["0"], ["1"], ["2"], ["3"]]


def test_disaggregated_training() -> None:
    config = {**training(APART, 2, 2), "inference": {"model": {"tensor_model_parallel_size": 2}}}
    placement = ModelParallelComponentPlacement(config, Cluster(8))
    assert placement.is_disaggregated
    assert placement.has_dedicated_inference
    assert placement.has_dedicated_inference_for_role("actor")
    assert not placement.has_dedicated_inference_for_role("critic")
    assert placement._rollout_sync_mode is RolloutSyncMode.DISAGGREGATED
    assert (placement.inference_world_size, placement.inference_tp_size, placement.inference_dp_size) == (2, 2, 1)
    assert [gpus for _, gpus in seen(placement.get_strategy("rollout"), Cluster(8))] == [["2", "3"], ["4", "5"]]
    assert [gpus for _, gpus in seen(placement.get_strategy("inference"), Cluster(8))] == [["6"], ["7"]]
    assert ModelParallelComponentPlacement(config).is_disaggregated, "only automatic placement needs the cluster"


def test_critics_have_their_own_gpus() -> None:
    placed = {"actor": 0, "rollout": 1, "reward": "1", "actor_inference": 2, "critic_inference": 3, "critic": "4-5"}
    config = {**training(placed), "critic": {"model": {"tensor_model_parallel_size": 2}}}
    with pytest.raises(PlacementError, match="Critic inference TP size 2 must be at most the world size"):
        ModelParallelComponentPlacement(config)
    config["critic_inference"] = {"model": {"tensor_model_parallel_size": 1}}
    placement = ModelParallelComponentPlacement(config)
    assert placement.has_dedicated_critic_inference
    assert (placement.critic_world_size, placement.critic_dp_size, placement.critic_inference_dp_size) == (2, 1, 1)
    for name, gpu in (("actor_inference", "2"), ("critic_inference", "3")):
        assert seen(placement.get_strategy(name), Cluster(6)) == [(0, [gpu])]


def test_automatic_placement() -> None:
    placed = {"actor": "0-3", "rollout": "4-7", "inference": "8-9", "reward": "4-7"}
    config = training(placed, 4, 2, auto_scheduler=True)
    placement = ModelParallelComponentPlacement(config, Cluster(10))
    assert placement.is_auto
    assert placement.has_dedicated_inference
    assert len(placement.get_strategy("actor").get_placement(Cluster(10))) == 10
    assert [gpus for _, gpus in seen(placement.get_strategy("rollout"), Cluster(10))] == [["4", "5"], ["6", "7"]]
    before = training(placed, 4, 2, auto_scheduler=True, use_pre_process_policy=True)
    assert (
        len(ModelParallelComponentPlacement(before, Cluster(10)).get_strategy("rollout").get_placement(Cluster(10)))
        == 4
    )
    with pytest.raises(PlacementError, match=r"must have all GPUs of the cluster \(12\), one after the other"):
        ModelParallelComponentPlacement(config, Cluster(12))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (training({"rollout,reward": "0-3"}), "Actor GPUs must be specified"),
        (training({"actor,reward": "0-1"}), "Rollout GPUs must be specified"),
        (training({"actor": "0-1", "rollout": "2-3"}), "Reward GPUs must be specified"),
        (training({"actor,rollout,reward": "0-1,3"}), r"Actor GPUs \[0, 1, 3\] must be continuous"),
        (
            training({"actor,rollout,reward": "0-1", "inference": 2}),
            "Inference GPUs must not be specified in collocated",
        ),
        (
            training({"actor": "0-1", "rollout": "1-2", "reward": 0}),
            r"must be collocated .* or disaggregated .*'rollout': \[1, 2\]",
        ),
        (training({"actor,rollout,reward": "0-1"}, 4), "Actor TP size 4 must be at most the world size of actor, 2"),
        (training({"actor,rollout,reward": "0-1"}, 1, 4), "Rollout TP size 4 must be at most"),
        (
            training({"actor,rollout,reward": "0-5"}, 3, 2),
            r"Actor TP size \(3\) must be divisible by Rollout TP size",
        ),
        (training({"actor,rollout,reward": 0}, "two"), "actor.model.tensor_model_parallel_size: found 'two'"),
        (
            {**training(APART), "inference": {"model": {"tensor_model_parallel_size": 4}}},
            "Inference TP size 4 must be",
        ),
        ({**training(APART), "algorithm": {"recompute_logprobs": False}}, "algorithm.recompute_logprobs is false"),
    ],
)
def test_training_that_cannot_be_placed(config: Any, why: str) -> None:
    for kind in (AssertionError, ValueError):
        with pytest.raises(kind, match=why):
            ModelParallelComponentPlacement(config, Cluster(8))


def test_modes_equal_rlinf_s_own() -> None:
    class Other(Enum):
        HYBRID = 3

    class Theirs(Enum):
        COLLOCATED = 1
        HYBRID = 3

    Theirs.__name__ = "PlacementMode"
    placement = HybridComponentPlacement({"cluster": {"component_placement": {"env": 0}}})
    assert placement.placement_mode == Theirs.HYBRID
    assert placement.placement_mode in {Theirs.COLLOCATED, Theirs.HYBRID}
    assert placement.placement_mode != Theirs.COLLOCATED
    assert placement.placement_mode != Other.HYBRID
