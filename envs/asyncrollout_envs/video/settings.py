"""How the env is set up: its rules, and the data set that a YAML file or direct options name."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import yaml
from msgspec.structs import asdict

from asyncrollout.errors import UsageError
from asyncrollout.validation import did_you_mean
from asyncrollout_envs.datafiles import load_file
from asyncrollout_envs.kwargs import check_number
from asyncrollout_envs.seeding import Split, check_split
from asyncrollout_envs.video.generate import default_config
from asyncrollout_envs.video.paths import data_file
from asyncrollout_envs.video.questions import Question, Row

ENV = "video"
SPLITS: tuple[str, ...] = get_args(Split)

_LARGEST_CONFIG = 2**20  # bytes
_ANNOTATIONS = {f"{split}_anno_path": split for split in SPLITS}
_REWARDS = ("frame_reward", "add_step_frame_reward", "add_final_frame_reward")
_UNUSED = ("fps", "image_type")
"""What Video-MTR's files have, and is decided here by the video itself."""

Count = Annotated[int, msgspec.Meta(ge=1, le=4096)]
PathLike = str | os.PathLike[str]


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long an episode is, how much of the video is shown, and what is earned."""

    max_turns: Count = 3
    init_sample_num: Count = 16
    max_turn_frames: Count = 8
    max_video_frames: Count = 64
    frame_size: Annotated[int, msgspec.Meta(ge=16, le=4096)] = 336
    format_reward: float = 0.1
    format_reward_per: Literal["episode", "turn"] = "episode"
    answer_reward: float = 1.0
    turn_cost: float = 0.1
    frame_reward: float = 0.5
    step_frame_reward: Literal["iou", "last_iou", "similarity", "none"] = "iou"
    final_frame_reward: bool = False
    similarity_epsilon: Annotated[float, msgspec.Meta(ge=0)] = 0.04
    cache_bytes: Annotated[int, msgspec.Meta(ge=0)] = 2 * 2**30
    decode_timeout: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0


class Data(msgspec.Struct, frozen=True):
    """The questions of each split, and the directory that their videos are in."""

    root: Path
    splits: dict[str, tuple[Question, ...]]


def set_up(
    config: PathLike | None,
    data_path: PathLike | Mapping[str, PathLike] | None,
    data_root: PathLike | None,
    given: Mapping[str, Any],
) -> tuple[Data, Rules]:
    """The data and rules of an env; what is given by keyword comes before what the config says."""
    if data_path is None and data_root is not None:
        raise UsageError(f"{ENV}: data_root={str(data_root)!r} is of use with data_path only")
    if data_path is not None:
        if config is not None:
            raise UsageError(f"{ENV}: give video_data_config_path or data_path, not both")
        return _direct(data_path, data_root), read_rules(given)
    path = data_file("video_data_config_path", config) if config is not None else default_config()
    content = _read_config(path)
    rules = read_rules({**_configured(path, content), **given})
    return _named(path, content), rules


def read_rules(given: Mapping[str, Any]) -> Rules:
    try:
        rules = msgspec.convert(dict(given), Rules)
    except msgspec.ValidationError as error:
        known = Rules.__struct_fields__
        wrong = next((key for key in given if key not in known), None)
        if wrong is not None:
            raise UsageError(f"{ENV}: it takes no keyword {wrong!r}{did_you_mean(wrong, known)}") from None
        raise UsageError(f"{ENV}: {error}") from None
    check_number(ENV, **{key: value for key, value in asdict(rules).items() if isinstance(value, float)})
    return rules


def _direct(data_path: PathLike | Mapping[str, PathLike], data_root: PathLike | None) -> Data:
    """One file, divided as `datafiles` says, or one for each split."""
    if isinstance(data_path, Mapping):
        for split in data_path:
            check_split(ENV, split)
        files = {split: data_file("data_path", path) for split, path in data_path.items()}
        if not files:
            raise UsageError(f"{ENV}: data_path={{}} names no file")
        first = next(iter(files.values()))
        splits = {split: _rows(path) for split, path in files.items()}
    elif isinstance(data_path, str | os.PathLike):
        first = data_file("data_path", data_path)
        splits = load_file(ENV, first, Row, Row.read).splits
    else:
        raise UsageError(f"{ENV}: data_path={data_path!r:.200} is neither a path nor a dict of one for each split")
    return Data(_directory(first.parent if data_root is None else data_file("data_root", data_root)), splits)


def _rows(path: Path) -> tuple[Question, ...]:
    return load_file(ENV, path, Row, Row.read).items


def _directory(path: Path) -> Path:
    if not path.is_dir():
        raise UsageError(f"{ENV}: data_root={str(path)!r} is not a directory")
    return path


def _read_config(path: Path) -> dict[str, Any]:
    shown = f"{ENV}: video_data_config_path={str(path)!r}"
    if not path.is_file():
        raise UsageError(f"{shown} is not a regular file")
    try:
        if path.stat().st_size > _LARGEST_CONFIG:
            raise UsageError(f"{shown} is larger than {_LARGEST_CONFIG} bytes")
        with path.open("rb") as file:  # from a file, so that no error shows what is in it
            content = yaml.safe_load(file)
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{shown} is not YAML{where}") from None
    _check_keys(path, content, "", ("dataset", "video_env", "video_reader_env"))
    return dict(content)


def _check_keys(path: Path, section: Any, name: str, known: Sequence[str]) -> None:
    if not isinstance(section, dict):
        what = f"`{name}` of {str(path)!r}" if name else str(path)
        raise UsageError(f"{ENV}: {what} must be a mapping with keys such as {known[0]!r}")
    for key in section:
        if key not in known:
            where = f"{name}.{key}" if name else str(key)
            raise UsageError(
                f"{ENV}: {str(path)!r} has {where!r:.100}, which is not known{did_you_mean(str(key), known)}"
            )


def _named(path: Path, content: Mapping[str, Any]) -> Data:
    """The data set of a config: relative paths start at its directory, and annotations are there or with the videos."""
    dataset = content.get("dataset")
    _check_keys(path, dataset, "dataset", ("data_root", *_ANNOTATIONS))
    assert isinstance(dataset, dict)
    here = path.parent.resolve()  # allowed, as the config was, or our own
    named = here / str(dataset.get("data_root") or ".")
    root = here if named == here else _directory(data_file("dataset.data_root", named))
    splits = {}
    for key, split in _ANNOTATIONS.items():
        names = dataset.get(key) or []
        names = names if isinstance(names, list) else [names]
        files = [data_file(f"dataset.{key}", str(name), within=(here, root)) for name in names]
        splits[split] = tuple(question for file in files for question in _rows(file))
    if not any(splits.values()):
        raise UsageError(f"{ENV}: {str(path)!r} names no annotations: set one of {', '.join(_ANNOTATIONS)}")
    return Data(root, splits)


def _configured(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """The rules in a config, by our names."""
    found: dict[str, Any] = {}
    section = content.get("video_env") or {}
    _check_keys(path, section, "video_env", (*Rules.__struct_fields__, "rewards", *_UNUSED))
    found.update({key: value for key, value in section.items() if key in Rules.__struct_fields__})
    rewards = section.get("rewards") or {}
    _check_keys(path, rewards, "video_env.rewards", (*_REWARDS, "format_reward"))
    found.update({key: rewards[key] for key in ("frame_reward", "format_reward") if key in rewards})
    if "add_step_frame_reward" in rewards:
        found["step_frame_reward"] = "iou" if rewards["add_step_frame_reward"] else "none"
    if "add_final_frame_reward" in rewards:
        found["final_frame_reward"] = rewards["add_final_frame_reward"]
    reader = content.get("video_reader_env") or {}
    _check_keys(path, reader, "video_reader_env", ("use_cache", *_UNUSED))
    if not reader.get("use_cache", True):
        found["cache_bytes"] = 0
    return found
