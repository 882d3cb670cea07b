"""RLinf's component placement: which resources of which nodes the processes of each component have."""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

import msgspec

from asyncrollout.dropin.configs import lookup, plain
from asyncrollout.dropin.rlinf.ranks import (
    PlacementError,
    RankedWorker,
    named_components,
    parse_ranks,
    read_component,
)
from asyncrollout.dropin.rlinf.strategies import (
    ACCELERATOR,
    ClusterView,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PlacementStrategy,
)
from asyncrollout.validation import did_you_mean

ALL, NODES = "cluster", "node"
"""The node groups that every cluster has: all GPUs, and all nodes without their GPUs."""


class Resources(msgspec.Struct, frozen=True):
    """What the numbers of a placement count: GPUs, robots or (without a type) nodes; how many, if that is known."""

    label: str
    hardware_type: str | None
    count: int | None


class PlacedComponent(msgspec.Struct, frozen=True):
    """A component's processes; `on_nodes` if their resources are whole nodes."""

    workers: tuple[RankedWorker, ...]
    node_groups: tuple[str, ...]
    hardware_types: tuple[str | None, ...]

    @property
    def on_nodes(self) -> bool:
        return None in self.hardware_types


def place_components(given: Any, cluster: ClusterView | None = None) -> dict[str, PlacedComponent]:
    """The components of `cluster.component_placement`, where `given` is what `cluster` says.

    Without a cluster, node groups are those that `given` describes, and any number of GPUs is taken.
    """
    if not isinstance(given, Mapping) or not isinstance(given.get("component_placement"), Mapping):
        raise PlacementError("cluster.component_placement is missing: set it, such as {'env': '0-3'}")
    described = _described(given)
    placed: dict[str, PlacedComponent] = {}
    for names, value in named_components(given["component_placement"]):
        try:
            placed |= dict.fromkeys(names, _placed(value, described, cluster))
        except PlacementError as error:
            raise PlacementError(f"cluster.component_placement: {','.join(names)}: {error}") from None
    return placed


def _placed(value: Any, described: Mapping[str, Resources], cluster: ClusterView | None) -> PlacedComponent:
    ranks = read_component(value)
    found = [_resources(label, described, cluster) for label in ranks.node_groups or (ALL,)]
    counts = [one.count for one in found]
    total = None if None in counts else sum(count for count in counts if count is not None)
    workers = parse_ranks(ranks.text, gpus=total, bounded=total is not None)
    placed = PlacedComponent(workers, ranks.node_groups, tuple(one.hardware_type for one in found))
    if placed.on_nodes and any(len(worker.gpus) > 1 for worker in workers):
        raise PlacementError(f"found {ranks.text!r}: a process cannot run on several nodes")
    return placed


def _resources(label: str, described: Mapping[str, Resources], cluster: ClusterView | None) -> Resources:
    if cluster is None:
        if label not in described:
            raise PlacementError(f"there is no node group {label!r}{did_you_mean(label, described)}")
        return described[label]
    group = cluster.get_node_group(label)
    if group is None:
        raise PlacementError(f"there is no node group {label!r} in the cluster")
    return Resources(label, group.hardware_type, group.hardware_resource_count)


def _described(given: Mapping[str, Any]) -> dict[str, Resources]:
    """The node groups of a configuration; how many GPUs they have is not written there."""
    nodes = given.get("num_nodes", 1)
    found = {ALL: Resources(ALL, ACCELERATOR, None), NODES: Resources(NODES, None, int(nodes or 1))}
    for group in given.get("node_groups") or []:
        if not isinstance(group, Mapping) or group.get("label") is None:
            raise PlacementError(f"cluster.node_groups: {group!r:.100} has no label")
        label = str(group["label"])
        if label in found:
            raise PlacementError(f"cluster.node_groups: the label {label!r} is given twice, or reserved")
        hardware = group.get("hardware")
        if isinstance(hardware, Mapping):
            found[label] = Resources(label, str(hardware.get("type")), len(hardware.get("configs") or ()))
        elif group.get("ignore_hardware"):
            found[label] = Resources(label, None, _count(group.get("node_ranks"), nodes))
        else:
            found[label] = Resources(label, ACCELERATOR, None)
    return found


def _count(ranks: Any, nodes: Any) -> int:
    listed = ranks if isinstance(ranks, Sequence) and not isinstance(ranks, str) else None
    return len(listed) if listed is not None else len(parse_ranks(ranks, gpus=int(nodes or 1), bounded=True))


class NameEnum(Enum):
    """Equal to RLinf's own member of the same name, with which its workers compare."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Enum) and (type(self).__name__, self.name) == (type(other).__name__, other.name)

    def __hash__(self) -> int:
        return hash(self.name)


class PlacementMode(NameEnum):
    """How components share GPUs."""

    COLLOCATED = auto()
    DISAGGREGATED = auto()
    HYBRID = auto()
    AUTO = auto()


class ComponentPlacement:
    """The processes of each component, from `cluster.component_placement` of a configuration.

    RLinf's `cluster`, or anything with its `get_node_group` and `get_node_info`, says how many GPUs there are.
    Without one, any numbers are taken, and `all` GPUs are those of this machine.
    """

    def __init__(self, config: Any, cluster: ClusterView | None = None) -> None:
        part = None if config is None else lookup(config, "cluster")
        try:
            self._placed = place_components(plain(part), cluster)
        except PlacementError as error:
            raise PlacementError(f"config: {error}") from None
        self._strategies: dict[int, PlacementStrategy] = {}
        self._placement_mode: PlacementMode | None = None

    @property
    def placement_mode(self) -> PlacementMode | None:
        return self._placement_mode

    @property
    def components(self) -> list[str]:
        return [*self._placed]

    def get_workers(self, component_name: str) -> tuple[RankedWorker, ...]:
        """The component's processes, by rank, with their GPUs (or robots, or nodes)."""
        return self._found(component_name).workers

    def get_world_size(self, component_name: str) -> int:
        """How many processes a component has."""
        return len(self.get_workers(component_name))

    def get_hardware_ranks(self, component_name: str) -> list[int]:
        """The GPUs of a component, counted within its node groups."""
        return sorted({gpu for worker in self.get_workers(component_name) for gpu in worker.gpus})

    def get_strategy(self, component_name: str) -> PlacementStrategy:
        """What says on which node and GPUs each process runs: `get_strategy("env").get_placement(cluster)`.

        Components that share a key share it.
        """
        placed = self._found(component_name)
        if id(placed) not in self._strategies:
            labels = placed.node_groups or None
            ranks = [[*worker.gpus] for worker in placed.workers]
            self._strategies[id(placed)] = (
                NodePlacementStrategy([node for (node,) in ranks], labels or (ALL,))
                if placed.on_nodes
                else FlexiblePlacementStrategy(ranks, labels)
            )
        return self._strategies[id(placed)]

    def _found(self, component_name: str) -> PlacedComponent:
        if component_name not in self._placed:
            close = did_you_mean(component_name, self._placed)
            raise PlacementError(f"cluster.component_placement has no component {component_name!r}{close}")
        return self._placed[component_name]


class HybridComponentPlacement(ComponentPlacement):
    """Components on any GPUs, as embodied training and evaluation place them."""

    def __init__(self, config: Any, cluster: ClusterView | None = None) -> None:
        super().__init__(config, cluster)
        self._placement_mode = PlacementMode.HYBRID
