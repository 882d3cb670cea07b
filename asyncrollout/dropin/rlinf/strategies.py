"""RLinf's placement strategies: on which node each process runs, and which of its GPUs it sees."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from asyncrollout.dropin.rlinf.ranks import PlacementError

ACCELERATOR = "Accelerator"
"""RLinf's name for GPUs as a type of hardware."""

Labels = str | Sequence[str] | None


class Node(Protocol):
    """As RLinf's NodeInfo."""

    node_rank: int

    @property
    def num_accelerators(self) -> int: ...
    @property
    def accelerator_type(self) -> Any: ...


class NodeGroup(Protocol):
    """As RLinf's NodeGroupInfo; its hardware is numbered from 0 over all its nodes."""

    label: str
    hardware_type: str | None

    @property
    def node_ranks(self) -> list[int]: ...
    @property
    def hardware_resource_count(self) -> int: ...
    def get_node_by_hardware_rank(self, hardware_rank: int) -> Any: ...
    def get_local_hardware_rank(self, hardware_rank: int) -> Any: ...


class ClusterView(Protocol):
    """As RLinf's Cluster."""

    def get_node_group(self, label: str = ..., /) -> Any: ...
    def get_node_info(self, node_rank: int, /) -> Any: ...


class NodeRankError(PlacementError, IndexError):
    """A node that the chosen node groups do not have."""


@dataclass
class Placement:
    """Where a process runs, in RLinf's fields.

    `rank` counts all processes, `local_rank` those on its node, `placement_node_rank` the nodes that have any.
    """

    rank: int
    cluster_node_rank: int
    placement_node_rank: int
    local_accelerator_rank: int
    accelerator_type: Any
    local_rank: int
    local_world_size: int
    visible_accelerators: list[str]
    isolate_accelerator: bool
    local_hardware_ranks: list[int]
    node_group_label: str


@dataclass(frozen=True)
class _Process:
    """What a strategy decides: the node, and the hardware there."""

    node: int
    label: str
    hardware: list[int]
    sees_only: list[int] | None = None


class PlacementStrategy:
    """Base class of the strategies; `node_groups` are labels, whose hardware is numbered in their order."""

    def __init__(self, node_groups: Labels) -> None:
        given = [node_groups] if isinstance(node_groups, str) else [*(node_groups or ())]
        self._labels = [str(label) for label in given]

    def get_placement(self, cluster: ClusterView, isolate_accelerator: bool = True) -> list[Placement]:
        """Where each process runs, by rank; with `isolate_accelerator` it sees no GPUs but its own."""
        processes = [*self._processes(cluster, self._groups(cluster))]
        nodes = [process.node for process in processes]
        if nodes != sorted(nodes):
            raise PlacementError(f"processes must be sorted by node, but theirs are {nodes}")
        sizes, order = Counter(nodes), [*dict.fromkeys(nodes)]
        placements = []
        for rank, process in enumerate(processes):
            info = cluster.get_node_info(process.node)
            isolated = process.sees_only if isolate_accelerator else None
            visible = [*range(info.num_accelerators)] if isolated is None else isolated
            placements.append(
                Placement(
                    rank=rank,
                    cluster_node_rank=process.node,
                    placement_node_rank=order.index(process.node),
                    local_accelerator_rank=visible[0] if visible else -1,
                    accelerator_type=info.accelerator_type,
                    local_rank=rank - nodes.index(process.node),
                    local_world_size=sizes[process.node],
                    visible_accelerators=[*map(str, visible)],
                    isolate_accelerator=isolate_accelerator,
                    local_hardware_ranks=process.hardware,
                    node_group_label=process.label,
                )
            )
        return placements

    def _groups(self, cluster: ClusterView) -> list[NodeGroup]:
        groups = [cluster.get_node_group(label) for label in self._labels] or [cluster.get_node_group()]
        for label, group in zip(self._labels, groups, strict=False):
            if group is None:
                raise PlacementError(f"there is no node group {label!r} in the cluster")
        return groups

    def _processes(self, cluster: ClusterView, groups: list[NodeGroup]) -> Iterator[_Process]:
        raise NotImplementedError


class FlexiblePlacementStrategy(PlacementStrategy):
    """Each process has the hardware that is listed for it, all on one node and of one type."""

    def __init__(self, hardware_ranks_list: Sequence[Sequence[int]], node_group_label: Labels = None) -> None:
        super().__init__(node_group_label)
        if not hardware_ranks_list or not all(hardware_ranks_list):
            raise PlacementError("hardware_ranks_list must not be empty: each process needs at least one")
        if min(min(ranks) for ranks in hardware_ranks_list) < 0:
            raise PlacementError(f"hardware is numbered from 0, but hardware_ranks_list={hardware_ranks_list!r:.200}")
        self._ranks = sorted((sorted(ranks) for ranks in hardware_ranks_list), key=lambda ranks: ranks[0])

    def _processes(self, cluster: ClusterView, groups: list[NodeGroup]) -> Iterator[_Process]:  # noqa: ARG002
        for group in groups:
            if group.hardware_type is None:
                raise PlacementError(f"the node group {group.label!r} has no hardware: place processes on its nodes")
        units = [(group, rank) for group in groups for rank in range(group.hardware_resource_count)]
        for ranks in self._ranks:
            if ranks[-1] >= len(units):
                raise PlacementError(f"hardware rank {ranks[-1]} is out of range: there are {len(units)}, from 0")
            if len({*ranks}) < len(ranks):
                raise PlacementError(f"the hardware ranks {ranks} of a process must be unique")
            own = [units[rank] for rank in ranks]
            nodes = {group.get_node_by_hardware_rank(rank).node_rank for group, rank in own}
            if len(nodes) > 1:
                raise PlacementError(f"the hardware ranks {ranks} of a process must be on the same node, not {nodes}")
            types = {group.hardware_type for group, _ in own}
            if len(types) > 1:
                raise PlacementError(f"the hardware ranks {ranks} of a process must be of one type, not {types}")
            local = [group.get_local_hardware_rank(rank) for group, rank in own]
            yield _Process(min(nodes), own[0][0].label, local, local if types == {ACCELERATOR} else None)


class PackedPlacementStrategy(FlexiblePlacementStrategy):
    """Processes in a row over a range of hardware; with a `stride`, a process has every so-manieth."""

    def __init__(
        self,
        start_hardware_rank: int,
        end_hardware_rank: int,
        num_hardware_per_process: int = 1,
        stride: int = 1,
        node_group: Labels = None,
    ) -> None:
        count, block = end_hardware_rank - start_hardware_rank + 1, num_hardware_per_process * stride
        if not 0 <= start_hardware_rank <= end_hardware_rank:
            raise PlacementError(f"{start_hardware_rank} to {end_hardware_rank} is not a range of hardware from 0")
        if block < 1 or count % block:
            raise PlacementError(
                f"{count} resources must be divisible by num_hardware_per_process * stride, which is {block}"
            )
        starts = (start for at in range(0, count, block) for start in range(at, at + stride))
        first = start_hardware_rank
        ranks = [[*range(first + start, first + start + block, stride)] for start in starts]
        super().__init__(ranks, node_group)


class NodePlacementStrategy(PlacementStrategy):
    """Each process runs on a node, numbered within the node groups, and sees all GPUs there."""

    def __init__(self, node_ranks: Sequence[int], node_group_label: Labels = None) -> None:
        super().__init__(node_group_label)
        if not node_ranks:
            raise PlacementError("node_ranks must not be empty")
        self._nodes = sorted(node_ranks)

    def _processes(self, cluster: ClusterView, groups: list[NodeGroup]) -> Iterator[_Process]:  # noqa: ARG002
        nodes = [(node, group.label) for group in groups for node in group.node_ranks]
        twice = [node for node, count in Counter(node for node, _ in nodes).items() if count > 1]
        if twice:
            raise PlacementError(f"the node groups {self._labels} have common nodes, {twice}")
        for rank in self._nodes:
            if not 0 <= rank < len(nodes):
                raise NodeRankError(f"node {rank} is out of range: there are {len(nodes)}, numbered from 0")
            node, label = nodes[rank]
            yield _Process(node, label, [])
