"""What an actor asks of a node, and whether a cluster has room for so many of them: Ray itself waits in silence."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from asyncrollout.errors import UsageError

_OPERATORS = ("!", "in(", "!in(")  # of label selectors; only Ray itself evaluates them
_MOST_SHOWN = 6  # nodes


class ActorDemand(msgspec.Struct, frozen=True, kw_only=True):
    """What each actor takes of its node, and the labels that the node must have."""

    num_cpus: float = 1
    num_gpus: float = 0
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}

    def __post_init__(self) -> None:
        amounts = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        for name in ("resources", "labels"):
            given = getattr(self, name)
            if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
                raise UsageError(f"{name}={given!r:.100} is not a dict with names for keys")
        for name, amount in [*amounts.items(), *self.resources.items()]:
            if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < math.inf:
                raise UsageError(f"{name}={amount!r} is not a number from 0")
        for name in {"CPU", "GPU"} & self.resources.keys():
            raise UsageError(f"resources={self.resources!r}: {name} is asked for as num_{name.lower()}s=")

    @property
    def amounts(self) -> dict[str, float]:
        """By Ray's own names, without those of which nothing is asked."""
        asked = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return {name: amount for name, amount in asked.items() if amount}

    def actor_options(self) -> dict[str, Any]:
        """Options of a Ray actor that is never started again by Ray, and never outlives its program."""
        options: dict[str, Any] = {
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
        }
        if self.resources:
            options["resources"] = dict(self.resources)
        if self.labels:
            options["label_selector"] = dict(self.labels)
        return options

    def room_on(self, node: Mapping[str, Any]) -> float:
        """How many actors this node (of `ray.nodes()`) could hold, if they had it for themselves."""
        held, total = node.get("Labels") or {}, node.get("Resources") or {}
        if not node.get("Alive") or not all(_fits(held.get(name), wanted) for name, wanted in self.labels.items()):
            return 0
        return min((_count(total.get(name, 0.0), amount) for name, amount in self.amounts.items()), default=math.inf)


def missing_room(demand: ActorDemand, count: int, what: str, nodes: Sequence[Mapping[str, Any]]) -> str:
    """What a cluster of these nodes lacks to hold so many actors; empty if it lacks nothing."""
    alive = [node for node in nodes if node.get("Alive")]
    room = sum(demand.room_on(node) for node in alive)
    if room >= count:
        return ""
    asked = _amounts(demand.amounts)
    asked += f" on a node with labels {demand.labels}" if demand.labels else ""
    fits = "none of its nodes has that" if not room else f"it has room for {int(room)}"
    shown = "; ".join(_described(demand, node) for node in alive[:_MOST_SHOWN])
    more = f" and {len(alive) - _MOST_SHOWN} more" if len(alive) > _MOST_SHOWN else ""
    return f"{count} {what} need {asked} each, and {fits}: {shown or 'no node is alive'}{more}"


def missing_now(demand: ActorDemand, count: int, what: str, now: "ClusterUsage", before: "ClusterUsage") -> str:
    """What others hold of a cluster that would have room: `before` there was an actor, and `now`."""
    for name, amount in demand.amounts.items():
        total, free = now.total.get(name, 0.0), now.free.get(name, 0.0)
        held = now.used(name) - before.used(name)
        if free < amount and held < count * amount:
            return (
                f"{count} {what} need {amount:g} {name} each, and others hold it: {free:g} of the cluster's {total:g} "
                "are free"
            )
    return ""


class ClusterUsage(NamedTuple):
    """Of the resources of a cluster at one moment."""

    total: Mapping[str, float]
    free: Mapping[str, float]

    def used(self, name: str) -> float:
        return self.total.get(name, 0.0) - self.free.get(name, 0.0)


def _fits(held: str | None, wanted: str) -> bool:
    return wanted.startswith(_OPERATORS) or held == wanted


def _described(demand: ActorDemand, node: Mapping[str, Any]) -> str:
    total = {name: (node.get("Resources") or {}).get(name, 0.0) for name in demand.amounts}
    labels = {name: (node.get("Labels") or {}).get(name) for name in demand.labels}
    told = [_amounts(total), *(f"{name}={value}" for name, value in labels.items())]
    return f"{node.get('NodeManagerAddress')} ({', '.join(part for part in told if part)})"


def _amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items())


def _count(total: float, amount: float) -> int:
    return math.floor(total / amount + 1e-9)  # of a whole there are ten tenths
