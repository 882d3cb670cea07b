"""Which processes a component has and on which GPUs, from texts such as `0-3`; and envs spread over its processes.

A text is a list of parts, separated by commas. Each names GPUs (`5`, `0-3` or `all`), and after a colon, if it is not
one process for each, the processes that share them evenly: `0-3:0-7` are two on each GPU, `0-3:0-1` two GPUs for each.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from asyncrollout.errors import UsageError

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_MOST = 4096  # processes, or GPUs
_NVIDIA = Path("/proc/driver/nvidia/gpus")


class RankedWorker(msgspec.Struct, frozen=True):
    """A process of a component, and the GPUs that it sees."""

    rank: int
    gpus: tuple[int, ...]


class EnvSlot(msgspec.Struct, frozen=True):
    """Where one of many envs is: which process, its first GPU, and the how many-th env it is there."""

    rank: int
    gpu: int
    env_idx: int

    @property
    def video_id(self) -> str:
        return f"rank{self.rank}_gpu{self.gpu}_env{self.env_idx}"


def parse_placement(given: Mapping[str, str | int], *, gpus: int | None = None) -> dict[str, tuple[RankedWorker, ...]]:
    """The processes of each component; several that are placed alike share a key, as in `actor,inference`."""
    placed: dict[str, tuple[RankedWorker, ...]] = {}
    for key, text in given.items():
        names = [name.strip() for name in str(key).split(",")]
        for name in names:
            if not name:
                raise UsageError(f"{key!r}: a component without a name")
            if name in placed:
                raise UsageError(f"{key!r}: the component {name!r} is placed twice")
            try:
                placed[name] = parse_ranks(text, gpus=gpus)
            except UsageError as error:
                raise UsageError(f"{name}: {error}") from None
    return placed


def parse_ranks(text: str | int, *, gpus: int | None = None) -> tuple[RankedWorker, ...]:
    """The processes that a text asks for; `all` GPUs are `gpus`, or as many as this machine has."""
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise _wrong(text, "it is neither a text nor a number")
    workers: list[RankedWorker] = []
    used: list[int] = []
    for part in str(text).split(","):
        resources, colon, processes = (piece.strip() for piece in part.partition(":"))
        on = [*range(count_gpus() if gpus is None else gpus)] if resources == "all" else _range(resources, text)
        if used and on[0] <= used[-1]:
            raise _wrong(text, f"GPUs go up, and {on[0]} comes after {used[-1]}")
        used += on
        ranks = _range(processes, text) if colon else [len(workers) + at for at in range(len(on))]
        if ranks[0] != len(workers):
            raise _wrong(
                text, f"processes count from 0 without a gap, and {ranks[0]} comes where {len(workers)} should"
            )
        workers += _shared(ranks, on, text)
    if len(workers) > _MOST:
        raise _wrong(text, f"more than {_MOST} processes")
    return tuple(workers)


def spread(envs: int, workers: Sequence[RankedWorker]) -> list[EnvSlot]:
    """Envs over processes, as evenly as can be: what is left over goes to the first ones, one each."""
    share, left = divmod(envs, len(workers))
    return [
        EnvSlot(worker.rank, worker.gpus[0], env_idx)
        for place, worker in enumerate(workers)
        for env_idx in range(share + (place < left))
    ]


def visible_devices(gpus: Sequence[int], visible: str | None) -> str:
    """What to set CUDA_VISIBLE_DEVICES to, where it is `visible` so far: GPUs are counted among those that it names."""
    named = _named(visible)
    if not named:
        return ",".join(map(str, gpus))
    if gpus[-1] >= len(named):
        raise UsageError(f"GPU {gpus[-1]} is asked for, but CUDA_VISIBLE_DEVICES={visible} names only {len(named)}")
    return ",".join(named[gpu] for gpu in gpus)


def count_gpus() -> int:
    """How many GPUs CUDA_VISIBLE_DEVICES names, or else this machine has; one, if it has none, as all that there is."""
    if named := _named(os.environ.get("CUDA_VISIBLE_DEVICES")):
        return len(named)
    return max(len([*_NVIDIA.iterdir()]) if _NVIDIA.is_dir() else 0, 1)


def _named(visible: str | None) -> list[str]:
    return [name.strip() for name in (visible or "").split(",") if name.strip()]


def _shared(ranks: list[int], on: list[int], text: str | int) -> Iterator[RankedWorker]:
    few, many = sorted((len(ranks), len(on)))
    if many % few:
        raise _wrong(text, f"{len(ranks)} processes and {len(on)} GPUs cannot share evenly")
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
        raise _wrong(text, f"a range goes up: write {high}-{low}")
    if high - low >= _MOST:
        raise _wrong(text, f"{piece} has more than {_MOST} numbers")
    return [*range(low, high + 1)]


def _wrong(text: object, why: str) -> UsageError:
    return UsageError(f"found {text!r:.100}: {why} (write 0, 0-3, '0-2,5', 'all' or '0-3:0-7')")
