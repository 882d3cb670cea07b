"""A data set of generated clips: MP4 files, questions and moments with their answers, and the YAML that names them."""

import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

import msgspec
import yaml

from asyncrollout.errors import UsageError
from asyncrollout_envs.caching import alone, cache_directory, short_digest
from asyncrollout_envs.kwargs import check_whole
from asyncrollout_envs.seeding import split_of
from asyncrollout_envs.video import ffmpeg, scenes

CONFIG = "data.yaml"
DEFAULT_CLIPS, DEFAULT_SEED = 24, 0
MOST_CLIPS = 9_999

_GOP = 15  # frames from one that can be seeked to, to the next
_ENCODE_TIMEOUT = 60.0
_MARK = "generated.json"
_CODE = ("drawing.py", "scenes.py", "ffmpeg.py", "generate.py")
_PREFIX, _PARTIAL = "video-", ".partial"

Told = Callable[[int, int], None]
"""Told how many clips are done, of how many."""


class Mark(msgspec.Struct, frozen=True):
    """What says that a directory is ours: how it was made, and all files in it, but this."""

    clips: int
    seed: int
    files: list[str]


def make_videos(
    directory: str | os.PathLike[str], *, clips: int = DEFAULT_CLIPS, seed: int = DEFAULT_SEED, told: Told | None = None
) -> Path:
    """Write a data set, and return the path of its YAML; one that was made here before is replaced, nothing else is."""
    check_whole("make_videos", most=MOST_CLIPS, clips=clips)
    check_whole("make_videos", least=0, seed=seed)
    path = Path(directory).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        _clear(path)
        return _write(path, clips, seed, told)
    except OSError as error:
        raise UsageError(f"videos cannot be written to {str(path)!r}: {error.strerror or error}") from error


def default_config() -> Path:
    """The YAML of the data set that an env without one plays: made once, and kept in the cache directory."""
    try:
        return _default_config(cache_directory())
    except OSError as error:
        raise UsageError(
            f"video: the clips to play by default cannot be kept: {error}. Set ASYNCROLLOUT_CACHE to a directory that "
            "can be written to, or name your own data"
        ) from error


def _default_config(kept_in: Path) -> Path:
    path = kept_in / f"{_PREFIX}{short_digest(_code())}"
    if not _is_complete(path):
        kept_in.mkdir(parents=True, exist_ok=True)
        with alone(kept_in / "lock-video") as is_alone:
            if is_alone:  # whoever began one of these was killed
                for left in kept_in.glob(f"{_PREFIX}*{_PARTIAL}"):
                    shutil.rmtree(left, ignore_errors=True)
            if not _is_complete(path):
                _make_at(path)
    return path / CONFIG


def _is_complete(path: Path) -> bool:
    """All files are there; what clears caches may have left some."""
    try:
        return all((path / name).exists() for name in _read_mark(path).files)
    except (OSError, msgspec.DecodeError):
        return False


def _make_at(path: Path) -> None:
    """Make the default set elsewhere, and put it in its place at once."""
    own = Path(tempfile.mkdtemp(dir=path.parent, prefix=_PREFIX, suffix=_PARTIAL))
    try:
        _write(own, DEFAULT_CLIPS, DEFAULT_SEED, None)
        shutil.rmtree(path, ignore_errors=True)  # what is there is not complete
        own.rename(path)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _clear(directory: Path) -> None:
    """Remove what was made here before; a directory with anything else is not ours."""
    if not any(directory.iterdir()):
        return
    try:
        ours = _read_mark(directory)
    except (OSError, msgspec.DecodeError):
        raise UsageError(
            f"{str(directory)!r} is not empty and was not made by make_videos: choose another directory"
        ) from None
    for name in ours.files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UsageError(
                f"{str(directory / _MARK)!r} names {name!r}, which is not a file of ours: choose another directory"
            )
        (directory / name).unlink(missing_ok=True)


def _read_mark(directory: Path) -> Mark:
    return msgspec.json.decode((directory / _MARK).read_bytes(), type=Mark)


def _write(directory: Path, count: int, seed: int, told: Told | None) -> Path:
    clips = [scenes.invent_clip(number, seed) for number in range(count)]
    rows: dict[str, list[scenes.Row]] = {}
    for number, clip in enumerate(clips):
        split = split_of(number)
        rows.setdefault(f"questions_{split}.json", []).extend(scenes.questions(clip, seed))
        rows.setdefault(f"moments_{split}.jsonl", []).extend(scenes.moments(clip, 10 * number))
    files = [*(f"videos/{clip.name}.mp4" for clip in clips), *rows, CONFIG]
    (directory / _MARK).write_bytes(msgspec.json.encode(Mark(count, seed, files)))  # first: a part of it is ours, too
    (directory / "videos").mkdir(exist_ok=True)
    threads = ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
    try:
        for done, _ in enumerate(threads.map(partial(_film, directory / "videos"), clips), start=1):
            if told:
                told(done, count)
    finally:
        threads.shutdown(cancel_futures=True)
    for name, listed in rows.items():
        text = msgspec.json.encode(listed) if name.endswith(".json") else b"".join(map(_line, listed))
        (directory / name).write_bytes(text)
    config = {"dataset": {"data_root": ".", **_named(rows)}}
    (directory / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return directory / CONFIG


def _named(rows: dict[str, list[scenes.Row]]) -> dict[str, list[str]]:
    splits = dict.fromkeys(Path(name).stem.rpartition("_")[2] for name in rows)
    return {f"{split}_anno_path": [name for name in rows if Path(name).stem.endswith(split)] for split in splits}


def _film(directory: Path, clip: scenes.Clip) -> None:
    ffmpeg.encode(directory / f"{clip.name}.mp4", clip.draw(), fps=scenes.FPS, gop=_GOP, timeout=_ENCODE_TIMEOUT)


def _line(row: scenes.Row) -> bytes:
    return msgspec.json.encode(row) + b"\n"


@cache
def _code() -> bytes:
    """The code that makes the clips, so that a change of it makes new ones."""
    return b"".join(Path(__file__).with_name(name).read_bytes() for name in _CODE)
