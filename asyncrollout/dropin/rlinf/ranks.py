"""Placement: which processes and GPUs a component has, from texts such as `0-3`, and which env runs where.

A text is a comma-separated list. Each part names GPUs (`5`, `0-3` or `all`) and, after a colon, the processes that
share them evenly: `0-3:0-7` is two per GPU, `0-3:0-1` two GPUs per process. Without a colon each GPU has a process.
With `{node_group, placement}` in place of a text, the numbers count the resources of a node group: its GPUs, its
robots, or its nodes.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.validation import did_you_mean

DEVICES = "CUDA_VISIBLE_DEVICES"

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_MOST = 4096  # processes, or GPUs
_given: list[str | None] = []  # while an evaluation restricts it: CUDA_VISIBLE_DEVICES before
_NVIDIA = Path("/proc/driver/nvidia/gpus")


class PlacementError(UsageError, AssertionError):
    """A placement that cannot be; code written for RLinf, which asserts, catches it as well."""


class RankedWorker(msgspec.Struct, frozen=True):
    """A process of a component, and the GPUs (or other resources) it has."""

    rank: int
    gpus: tuple[int, ...]


class EnvSlot(msgspec.Struct, frozen=True):
    """Where an env runs: its process, the first GPU of that process, and its index among the envs there."""

    rank: int
    gpu: int
    env_idx: int

    @property
    def video_id(self) -> str:
        return f"rank{self.rank}_gpu{self.gpu}_env{self.env_idx}"


class ComponentRanks(msgspec.Struct, frozen=True):
    """What a placement says: the text, and the node groups whose resources it counts (none: all of them)."""

    text: str | int
    node_groups: tuple[str, ...] = ()


def read_component(given: Any) -> ComponentRanks:
    """A placement as it is written: a text or a number, or `{node_group, placement}`."""
    if not isinstance(given, Mapping):
        return ComponentRanks(given)
    for key in given:
        if key not in ("node_group", "placement"):
            known = did_you_mean(str(key), ("node_group", "placement"))
            raise PlacementError(f"there is no key {key!r}{known}: write {{node_group: ..., placement: ...}}")
    if given.get("placement") is None:
        raise PlacementError(f"found {dict(given)!r:.200}: 'placement' must be specified, such as 0-3")
    labels = given.get("node_group")
    if isinstance(labels, str):
        labels = labels.split(",")
    elif labels is None:
        labels = []
    elif not isinstance(labels, list | tuple):
        labels = [labels]
    return ComponentRanks(given["placement"], tuple(str(label).strip() for label in labels))


def named_components(given: Mapping[Any, Any]) -> Iterator[tuple[list[str], Any]]:
    """The components of each key, with their placement: `actor,inference` share one."""
    seen: set[str] = set()
    for key, value in given.items():
        names = [name.strip() for name in str(key).split(",")]
        for name in names:
            if not name:
                raise PlacementError(f"{key!r}: a component has no name")
            if name in seen:
                raise PlacementError(f"{key!r}: the component {name!r} is placed twice")
            seen.add(name)
        yield names, value


def parse_ranks(text: str | int, *, gpus: int | None = None, bounded: bool = False) -> tuple[RankedWorker, ...]:
    """The processes that a text asks for; `all` GPUs are `gpus`, or as many as this machine has.

    If it is `bounded`, a text may name no others.
    """
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise _wrong(text, "it must be a string or a number")
    workers: list[RankedWorker] = []
    used: list[int] = []
    for part in str(text).split(","):
        resources, colon, processes = (piece.strip() for piece in part.partition(":"))
        is_all = resources.lower() == "all"
        on = [*range(count_gpus() if gpus is None else gpus)] if is_all else _range(resources, text)
        if not on:
            raise _wrong(text, "there are no resources to place it on")
        if used and on[0] <= used[-1]:
            rule = "unique" if {*on} & {*used} else "in ascending order"
            raise _wrong(text, f"Resource ranks must be {rule}, but {on[0]} comes after {used[-1]}")
        if bounded and gpus is not None and on[-1] >= gpus:
            raise _wrong(text, f"{on[-1]} is out of range: there are {gpus}, numbered from 0")
        used += on
        ranks = _range(processes, text) if colon else [len(workers) + at for at in range(len(on))]
        if ranks[0] != len(workers):
            raise _wrong(
                text,
                "Process ranks must be in ascending order from 0 without a gap, "
                f"but {ranks[0]} comes where {len(workers)} should",
            )
        workers += _shared(ranks, on, text)
    if len(workers) > _MOST:
        raise _wrong(text, f"more than {_MOST} processes")
    return tuple(workers)


def spread(envs: int, workers: Sequence[RankedWorker]) -> list[EnvSlot]:
    """Envs over processes as evenly as possible; the first ones get one more each if they do not divide."""
    share, left = divmod(envs, len(workers))
    return [
        EnvSlot(worker.rank, worker.gpus[0], env_idx)
        for place, worker in enumerate(workers)
        for env_idx in range(share + (place < left))
    ]


def visible_devices(gpus: Sequence[int], visible: str | None) -> str:
    """The value of CUDA_VISIBLE_DEVICES for some GPUs, which are counted among those it names already.

    If it names none, all GPUs are hidden, and stay so.
    """
    if visible is None:
        return ",".join(map(str, gpus))
    named = _named(visible)
    if not named:
        return visible
    if gpus[-1] >= len(named):
        raise UsageError(f"GPU {gpus[-1]} is requested, but {DEVICES}={visible} names only {len(named)}")
    return ",".join(named[gpu] for gpu in gpus)


def devices() -> str | None:
    """CUDA_VISIBLE_DEVICES as it was given to this process."""
    return _given[0] if _given else os.environ.get(DEVICES)


@contextmanager
def restricted(to: str) -> Iterator[None]:
    """Code that is loaded in here sees these GPUs alone; in a process, one evaluation at a time can do so."""
    if _given:
        raise UsageError(
            f"another evaluation in this process restricts {DEVICES} for its policy: run them one after the other, "
            "or without cluster.component_placement.rollout"
        )
    _given.append(os.environ.get(DEVICES))
    os.environ[DEVICES] = to
    try:
        yield
    finally:
        if (before := _given.pop()) is None:
            del os.environ[DEVICES]
        else:
            os.environ[DEVICES] = before


def count_gpus() -> int:
    """How many GPUs CUDA_VISIBLE_DEVICES names, or this machine has; 1 if there are none."""
    visible = devices()
    if visible is not None:
        return max(len(_named(visible)), 1)
    return max(len([*_NVIDIA.iterdir()]) if _NVIDIA.is_dir() else 0, 1)


def _named(visible: str) -> list[str]:
    """The GPUs that CUDA_VISIBLE_DEVICES names; a negative number ends the list, as CUDA reads it."""
    names = (name.strip() for name in visible.split(","))
    return [*takewhile(lambda name: name and not name.startswith("-"), names)]


def _shared(ranks: list[int], on: list[int], text: str | int) -> Iterator[RankedWorker]:
    few, many = sorted((len(ranks), len(on)))
    if many % few:
        raise _wrong(text, f"{len(ranks)} processes and {len(on)} resources cannot share evenly")
    each = many // few
    for place, rank in enumerate(ranks):
        is_shared = len(ranks) >= len(on)
        yield RankedWorker(rank, (on[place // each],) if is_shared else tuple(on[place * each : (place + 1) * each]))


def _range(piece: str, text: str | int) -> list[int]:
    found = _RANGE.fullmatch(piece)
    if not piece or found is None:
        shown = f"{piece!r} is" if piece else "a part of it is empty, and"
        raise _wrong(text, f"{shown} neither a number such as 0 nor a range such as 0-3")
    low, high = int(found[1]), int(found[2] or found[1])
    if high < low:
        raise _wrong(text, f"a range is ascending: write {high}-{low}")
    if high - low >= _MOST:
        raise _wrong(text, f"{piece} has more than {_MOST} numbers")
    return [*range(low, high + 1)]


def _wrong(text: object, why: str) -> PlacementError:
    return PlacementError(f"found {text!r:.100}: {why} (write 0, 0-3, '0-2,5', 'all' or '0-3:0-7')")
