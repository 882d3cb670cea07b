"""Where RAGEN's data sets are on this machine. Nothing is downloaded, and what stands in for one is logged."""

import functools
import logging
from pathlib import Path
from typing import Any

from asyncrollout.errors import UsageError

logger = logging.getLogger(__name__)

_PUZZLES = "data/countdown/train.parquet"
_PROBLEMS = "meta-math/MetaMathQA"
_CACHE = "./data"
_KINDS = (".json", ".jsonl", ".ndjson", ".parquet")


def find_puzzles(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Countdown's `train_path`; without one, RAGEN's own place, or puzzles that the env makes."""
    path = kwargs.pop("train_path", None)
    if path is not None:
        kwargs["data_path"] = _present("train_path", path)
    elif "data_path" not in kwargs and Path(_PUZZLES).is_file():
        kwargs["data_path"] = _PUZZLES
    if "data_path" not in kwargs:
        _say(f"countdown: {_PUZZLES} does not exist, so puzzles are generated: set env_config.train_path to play yours")
    return kwargs


def find_problems(kwargs: dict[str, Any]) -> dict[str, Any]:
    """MetaMathQA's `dataset_path`: a file, a directory with one, or the name of a data set that was downloaded."""
    name, cache = kwargs.pop("dataset_path", None) or _PROBLEMS, kwargs.pop("cache_dir", None) or _CACHE
    if "data_path" in kwargs:
        return kwargs
    if not isinstance(name, str | Path):
        raise UsageError(f"env_config.dataset_path={name!r:.200} is neither a path nor the name of a data set")
    short = Path(name).name
    for place in (Path(name).expanduser(), Path(cache) / name, Path(cache) / short):
        if place.is_dir():
            return {**kwargs, "data_path": str(_only_file(place))}
        if place.suffix.lower() in _KINDS or place.is_file():
            return {**kwargs, "data_path": _present("dataset_path", place)}
    if str(name) != _PROBLEMS:
        raise UsageError(
            f"env_config.dataset_path={str(name)!r} is not on this machine, and nothing is downloaded: fetch it, for "
            "example with 'hf download --repo-type dataset', and give the path of its file"
        )
    _say(
        f"metamathqa: {_PROBLEMS} is not on this machine, so 200 problems of the same form are played: fetch it into "
        f"{Path(cache) / name}, or set env_config.dataset_path to its file"
    )
    return kwargs


def find_shop(kwargs: dict[str, Any]) -> dict[str, Any]:
    """WebShop's `dataset`, small or full, whose files are where `file_path` or `data_path` says."""
    size, file = kwargs.pop("dataset", None) or "small", kwargs.pop("file_path", None)
    if size not in ("small", "full"):
        raise UsageError(f"env_config.dataset={size!r:.200} is neither 'small' nor 'full'")
    path = _present("file_path", file) if file is not None else kwargs.get("data_path")
    if path is not None:
        return {**kwargs, "data_path": str(_shop_file(Path(path).expanduser(), size))}
    if size == "full":
        raise UsageError(
            "env_config.dataset='full' needs WebShop's full data, which is not shipped: fetch items_shuffle.json and "
            "items_ins_v2.json, and set env_config.file_path to the first of them (or dataset: small)"
        )
    _say(
        "webshop: dataset 'small' is a generated shop of 1,312 products: set env_config.file_path to play WebShop's own"
    )
    return kwargs


def _present(key: str, path: Any) -> str:
    if not isinstance(path, str | Path) or not Path(path).expanduser().exists():
        raise UsageError(f"env_config.{key}={str(path)!r:.200} does not exist")
    return str(path)


def _shop_file(path: Path, size: str) -> Path:
    """Of a directory with both sizes, the file of the one that is wanted."""
    name = "items_shuffle.json" if size == "full" else "items_shuffle_1000.json"
    return path / name if path.is_dir() and (path / name).is_file() else path


def _only_file(folder: Path) -> Path:
    found = sorted(file for kind in _KINDS for file in folder.rglob(f"*{kind}") if "info" not in file.name)
    if len(found) != 1:
        names = ", ".join(str(file.relative_to(folder)) for file in found[:5]) or "none"
        raise UsageError(
            f"env_config.dataset_path: {str(folder)!r} must have one file of rows ({', '.join(_KINDS)}); found: {names}"
        )
    return found[0]


@functools.cache
def _say(text: str) -> None:
    """Once in a process."""
    logger.warning("%s", text)
