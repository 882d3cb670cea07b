"""Pictures of every kind become MP4 files that play, whatever happens to encoders."""

import os
import random
import resource
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from asyncrollout import ClosedError, UsageError
from asyncrollout.video import VideoWriter, episode_writer
from asyncrollout.video.captions import CAPTION_HEIGHT, with_caption
from asyncrollout.video.episode_writer import EpisodeWriter
from asyncrollout.video.ffmpeg import find_ffmpeg
from asyncrollout.video.files import (
    check_name,
    count_frames,
    finish_left_parts,
    is_written,
    name_for,
    new_part,
    new_take,
    parts_in,
    whole_file,
)
from asyncrollout.video.frames import ImageReader, declared_bounds, fitted, video_size
from tests.envs.video import colour
from tests.playing import PATIENCE
from tests.video_files import boxes, decode, full_disk, is_whole, names, painted, until
from tests.waiting import freeze


def paint(actions: int, size: tuple[int, int] = (32, 48), painter: int = 0) -> Any:
    return np.full((*size, 3), colour(painter, actions), dtype=np.uint8)


def write_until_trouble(writer: VideoWriter, picture: Any) -> None:
    def has_trouble() -> bool:
        writer.write(picture)
        return bool(writer.trouble)

    until(has_trouble)


@pytest.mark.parametrize("size", [(32, 48), (33, 47), (7, 5), (1, 1), (96, 2)])
def test_video_has_every_frame_once(tmp_path: Path, size: tuple[int, int]) -> None:
    with VideoWriter(tmp_path / "sub" / "a.mp4", fps=5) as writer:
        for actions in range(12):
            writer.write(paint(actions, size))
    assert names(tmp_path / "sub") == ["a.mp4"]
    assert is_whole(writer.path)
    assert (writer.frames, writer.trouble) == (12, "")
    count, height, width, _ = decode(writer.path).shape
    assert (count, height, width) == (12, *video_size(paint(0, size)))
    assert height % 2 == width % 2 == 0
    if min(size) > 16:  # the colours of fewer pixels run into the black around them
        assert painted(writer.path) == [(0, actions) for actions in range(12)]


RGB = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        (RGB, RGB),
        (np.dstack([RGB, np.full((4, 4), 9, np.uint8)]), RGB),
        (RGB[:, :, 0], np.dstack([RGB[:, :, 0]] * 3)),
        (RGB[:, :, :1], np.dstack([RGB[:, :, 0]] * 3)),
        (RGB / 255.0, RGB),
        (RGB.astype(np.float32), RGB),
        (RGB.astype(np.int64) - 8, np.maximum(RGB.astype(int) - 8, 0)),
        (RGB.astype(np.uint16) << 8, RGB),
        (RGB > 20, (RGB > 20) * 255),
        (RGB[:, :2].transpose(2, 0, 1), RGB[:, :2]),
        ([RGB * 0, RGB], RGB),
        (np.dstack([RGB.astype(np.float32), np.ones((4, 4))]), RGB),
        ((RGB / 255).astype(np.float16), RGB),
        (RGB.astype(np.uint16), RGB),
        (RGB[:, :2, :1].transpose(2, 0, 1) / 255, np.dstack([RGB[:, :2, 0]] * 3)),
        (Image.fromarray(RGB).convert("CMYK"), RGB),
        (Image.fromarray(RGB[:, :, 0]), np.dstack([RGB[:, :, 0]] * 3)),
    ],
)
def test_pictures_of_every_kind(picture: Any, expected: Any) -> None:
    reader = ImageReader()
    frame = reader.read(picture)
    assert frame.dtype == np.uint8
    np.testing.assert_array_equal(frame, expected)
    assert reader.doubt == ""


DARK = np.array([[0.0, 1.0, 1.0, 0.0]])
GREY = np.array([[0.2, 0.4, 0.6, 1.0]])
BRIGHT = np.array([[0.0, 51.0, 102.0, 255.0]])


@pytest.mark.parametrize(
    ("frames", "shown", "doubt"),
    [
        ([BRIGHT, DARK, BRIGHT], [[0, 51, 102, 255], [0, 1, 1, 0], [0, 51, 102, 255]], ""),
        ([DARK * 0, BRIGHT, DARK], [[0, 0, 0, 0], [0, 51, 102, 255], [0, 1, 1, 0]], ""),
        ([GREY, GREY * 1.0001, GREY], [[51, 102, 153, 255]] * 3, ""),
        ([DARK, GREY * 1.3], [[0, 255, 255, 0], [66, 133, 199, 255]], ""),
        ([DARK, BRIGHT, DARK], [[0, 255, 255, 0], [0, 51, 102, 255], [0, 1, 1, 0]], "frame 1: values up to 255: "),
        ([BRIGHT, GREY], [[0, 51, 102, 255], [0, 0, 1, 1]], "frame 1: values up to 1 are shown black"),
        ([GREY, GREY - 1], [[51, 102, 153, 255], [0, 0, 0, 0]], "frame 1: values down to -0.8 are shown black"),
        ([GREY, BRIGHT * 4], [[51, 102, 153, 255], [0, 204, 255, 255]], "frame 1: values up to 1020"),
        ([[[np.nan, np.inf, -np.inf, 0.6]], GREY], [[0, 255, 0, 153], [51, 102, 153, 255]], "frame 0: NaN is shown"),
        ([[[np.nan, np.inf, -np.inf, 51.0]], DARK], [[0, 255, 0, 51], [0, 1, 1, 0]], "frame 0: NaN is shown"),
    ],
)
def test_range_of_floats_is_decided_once_for_a_video(frames: list[Any], shown: list[list[int]], doubt: str) -> None:
    reader = ImageReader()
    assert [reader.read(np.asarray(picture))[0, :, 0].tolist() for picture in frames] == shown
    assert reader.doubt.startswith(doubt)
    assert bool(reader.doubt) == bool(doubt)


def test_one_highlight_leaves_the_others_as_they_are() -> None:
    reader = ImageReader()
    picture = np.full((20, 20), 0.6)
    picture[3, 3] = 7.0
    for _ in range(2):
        frame = reader.read(picture)
        assert (frame[0, 0, 0], frame[3, 3, 0]) == (153, 255)
    assert reader.doubt == "frame 0: values up to 7 are shown white, as is 1"


@pytest.mark.parametrize(
    ("low", "high", "dtype", "shown"),
    [
        (0, 255, np.float32, [0, 1, 1, 0]),
        (0, 1, np.float32, [0, 255, 255, 0]),
        (-1, 1, np.float32, [128, 255, 255, 128]),
        (-np.inf, np.inf, np.float32, [0, 255, 255, 0]),
        (0, 255, np.uint8, [0, 255, 255, 0]),
    ],
)
def test_env_that_declares_the_range_of_its_pictures_is_right(low: float, high: float, dtype: Any, shown: Any) -> None:
    space = gymnasium.spaces.Box(low, high, (1, 4), dtype)
    picture = DARK.astype(np.float32)
    assert ImageReader(declared_bounds(space, picture)).read(picture)[0, :, 0].tolist() == shown
    assert declared_bounds(space, picture[:, :2]) is None
    assert declared_bounds(gymnasium.spaces.Discrete(3), picture) is None
    assert declared_bounds(None, picture) is None


def test_video_in_doubt_is_reported(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs, VideoWriter(tmp_path / "a.mp4") as writer:
        for level in (1.0, 120.0):
            writer.write(np.full((32, 48), level))
    assert [(entry["event"], entry["reason"]) for entry in logs] == [("video_in_doubt", writer.doubt)]
    assert writer.trouble == ""
    assert abs(decode(writer.path)[:, 9, 9, 0].astype(int) - (255, 120)).max() < 4


NO_PICTURES: list[Any] = [
    None,
    7,
    "text",
    [],
    np.zeros(3),
    np.zeros((5, 5, 5)),
    np.zeros((0, 4, 3)),
    np.full((4, 4, 3), "a"),
]


@pytest.mark.parametrize("picture", NO_PICTURES, ids=repr)
def test_what_is_no_picture_is_reported(picture: Any, tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4") as writer, pytest.raises(UsageError, match=r"render\(\) gives"):
        writer.write(picture)
    assert names(tmp_path) == []


@given(
    hnp.arrays(
        dtype=st.sampled_from([np.uint8, np.int16, np.uint32, np.float16, np.float64, np.bool_, np.complex64]),
        shape=hnp.array_shapes(min_dims=1, max_dims=4, max_side=20),
    ),
    st.integers(1, 30),
    st.integers(1, 30),
)
def test_any_array_is_a_frame_or_a_usage_error(picture: Any, height: int, width: int) -> None:
    try:
        frame = ImageReader().read(picture)
    except UsageError:
        return
    assert (str(frame.dtype), frame.ndim, frame.shape[2]) == ("uint8", 3, 3)
    assert fitted(frame, height, width).shape == (height, width, 3)


def test_frames_of_other_sizes_fit_in(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4") as writer:
        for actions, size in enumerate([(32, 48), (64, 48), (16, 16), (33, 300), (32, 48)]):
            writer.write(paint(actions, size))
    assert painted(writer.path) == [(0, actions) for actions in range(5)]
    frames = decode(writer.path)
    assert frames.shape[1:] == (32, 48, 3)
    is_black = frames.max(axis=3) < 30
    assert is_black[1][:, 0].all()  # too high: it is smaller now, with black at its sides
    assert not is_black[1][:, 24].any()
    assert is_black[3][0].all()


@pytest.mark.parametrize("path", ["a.avi", "a", "..mp4", "a b.mp4", "-a.mp4"])
def test_files_with_other_names_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(UsageError):
        VideoWriter(tmp_path / path)


def test_misuse_of_a_writer_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fps=0 is not"):
        VideoWriter(tmp_path / "a.mp4", fps=0)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot make"):
        VideoWriter(tmp_path / "file" / "a.mp4")
    writer = VideoWriter(tmp_path / "a.mp4")
    writer.close()
    writer.close()
    assert writer.trouble == "no frame was written, so there is no file"
    with pytest.raises(ClosedError):
        writer.write(paint(0))
    assert names(tmp_path) == ["file"]


def begin(directory: Path, **options: Any) -> tuple[EpisodeWriter, Path]:
    part = new_part(directory, "a", new_take())
    return EpisodeWriter(part, **{"fps": 5.0, "ffmpeg": find_ffmpeg(), **options}), part


def kill_at(directory: Path, frames: int) -> None:
    taker, part = begin(directory)
    for actions in range(frames):
        taker.write(paint(actions % 15))
    until(lambda: taker._process and count_frames(part) >= frames - 1)  # by itself: nothing asks it to flush
    assert taker._process is not None
    taker._process.kill()
    taker.end()
    assert taker.wait(PATIENCE)
    assert "ended" in taker.trouble
    kept = painted(part)
    assert len(kept) >= frames - 1
    assert kept == [(0, actions % 15) for actions in range(len(kept))]
    part.unlink()


@pytest.mark.parametrize("frames", [2, 17, 40])
def test_killed_encoder_loses_at_most_a_frame(tmp_path: Path, frames: int) -> None:
    kill_at(tmp_path, frames)


@pytest.mark.slow
def test_fifty_killed_encoders_lose_at_most_a_frame_each(tmp_path: Path) -> None:
    chance = random.Random(0)
    for _ in range(50):
        kill_at(tmp_path, chance.randint(2, 200))


def test_writer_outlives_its_encoder(tmp_path: Path) -> None:
    writer = VideoWriter(tmp_path / "a.mp4")
    for actions in range(5):
        writer.write(paint(actions))
    part = next(iter(tmp_path.iterdir()))
    until(lambda: count_frames(part) >= 4)
    taker = writer._writer
    assert taker._process is not None
    taker._process.kill()
    write_until_trouble(writer, paint(5))
    writer.close()
    assert writer.trouble.startswith("the encoder has ended")
    assert painted(writer.path)[:4] == [(0, actions) for actions in range(4)]
    assert is_whole(writer.path)


def test_forgotten_writer_is_closed_as_garbage(tmp_path: Path) -> None:
    writer = VideoWriter(tmp_path / "a.mp4")
    writer.write(paint(3))
    del writer
    assert painted(tmp_path / "a.mp4") == [(0, 3)]
    assert is_whole(tmp_path / "a.mp4")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_copy_of_a_writer_leaves_the_video_alone(tmp_path: Path) -> None:
    writer = VideoWriter(tmp_path / "a.mp4")
    writer.write(paint(3))
    child = os.fork()
    if not child:
        try:
            writer.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    writer.write(paint(4))
    writer.close()
    assert painted(writer.path) == [(0, 3), (0, 4)]


def test_encoder_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_writer, "_PATIENCE", 0.2)
    monkeypatch.setattr(episode_writer, "_MOST_HELD", 100_000)
    monkeypatch.setattr(episode_writer, "_PIPE", 4096)
    with VideoWriter(tmp_path / "a.mp4") as writer:
        writer.write(paint(0, (128, 128)))
        taker = writer._writer
        until(lambda: taker._process is not None)
        assert taker._process is not None
        freeze(taker._process.pid)
        write_until_trouble(writer, paint(1, (128, 128)))
    assert "has taken nothing" in writer.trouble


def test_encoder_that_hangs_at_the_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_writer, "_PATIENCE", 0.2)
    monkeypatch.setattr(episode_writer, "_PIPE", 4096)
    writer = VideoWriter(tmp_path / "a.mp4")
    for actions in range(3):
        writer.write(paint(actions, (128, 128)))
    part = next(iter(tmp_path.iterdir()))
    until(lambda: count_frames(part))
    taker = writer._writer
    assert taker._process is not None
    freeze(taker._process.pid)
    for actions in range(3, 6):
        writer.write(paint(actions, (128, 128)))
    taker.end()
    assert taker.wait(PATIENCE)
    writer.close()
    assert "has taken nothing" in writer.trouble
    assert painted(writer.path)[0] == (0, 0)


def test_video_that_cannot_be_made_whole_plays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ffmpeg = str(full_disk(tmp_path))
    monkeypatch.setattr("asyncrollout.video.writer.find_ffmpeg", lambda: ffmpeg)
    writer = VideoWriter(tmp_path / "a.mp4")
    for actions in range(5):
        writer.write(paint(actions))
    writer.close()
    assert "No space left on device" in writer.trouble
    assert names(tmp_path) == ["a.mp4", "full_disk"]
    assert painted(writer.path) == [(0, actions) for actions in range(5)]


def test_slow_encoder_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_writer, "_MOST_HELD", 100_000)
    most = 0
    with VideoWriter(tmp_path / "a.mp4") as writer:
        for actions in range(60):
            writer.write(paint(actions % 15, (128, 128)))
            most = max(most, writer._writer._held)
    assert most <= 3 * 128 * 128 * 3
    assert painted(writer.path) == [(0, actions % 15) for actions in range(60)]


def test_file_that_may_not_grow_ends_early(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4", max_bytes=4000) as writer:
        write_until_trouble(writer, paint(1))
    assert "limit of 4000 bytes" in writer.trouble
    assert 0 < len(painted(writer.path)) <= writer.frames


def test_disk_that_takes_no_more_leaves_what_it_took(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    noise = np.random.default_rng(0)
    writer = VideoWriter(tmp_path / "a.mp4")
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    try:
        write_until_trouble(writer, noise.integers(0, 255, (64, 64, 3), dtype=np.uint8))
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "the encoder has ended" in writer.trouble
    assert [count_frames(tmp_path / name) > 0 or is_whole(tmp_path / name) for name in names(tmp_path)] == [True]


def test_without_ffmpeg_there_is_a_hint(tmp_path: Path) -> None:
    taker, part = begin(tmp_path, ffmpeg=str(tmp_path / "none"))
    taker.write(paint(0))
    assert taker.wait(PATIENCE)
    assert "cannot be started" in taker.trouble
    assert not taker.write(paint(1))
    assert count_frames(part) == 0


def test_directory_that_is_gone_is_trouble_and_no_error(tmp_path: Path) -> None:
    writer = VideoWriter(tmp_path / "sub" / "a.mp4")
    (tmp_path / "sub").rmdir()
    writer.write(paint(0))
    writer.write(paint(1))
    writer.close()
    assert "cannot write" in writer.trouble
    assert names(tmp_path) == []


def test_captions_are_above_the_picture() -> None:
    picture = paint(1, (20, 100))
    one, other = with_caption(picture, "1 right +0.5"), with_caption(picture, "2 left -0.5")
    assert one.shape == (20 + CAPTION_HEIGHT, 100, 3)
    np.testing.assert_array_equal(one[CAPTION_HEIGHT:], picture)
    assert (one[:CAPTION_HEIGHT] != other[:CAPTION_HEIGHT]).any()
    assert len(np.unique(one[:CAPTION_HEIGHT])) == 2
    np.testing.assert_array_equal(with_caption(picture, "x" * 12), with_caption(picture, "x" * 500))
    assert with_caption(paint(0, (4, 4)), "é\x00").shape == (4 + CAPTION_HEIGHT, 4, 3)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "/etc/a", "a/b", "a\0b", "a\nb", ".a", "x" * 300, None, 7, "a*"]
)
def test_names_stay_inside(name: Any) -> None:
    with pytest.raises(UsageError, match="a video's name"):
        check_name(name)


@given(st.text(), st.text())
def test_any_uid_has_a_name_of_its_own(one: str, other: str) -> None:
    assert check_name(name_for(one)) == name_for(one)
    assert (name_for(one) == name_for(other)) == (one == other)
    assert name_for("g12.3") == "g12.3"


@given(st.binary(max_size=200), st.integers(0, 3000))
def test_frames_of_a_broken_file_are_counted(tmp_path_factory: pytest.TempPathFactory, end: bytes, cut: int) -> None:
    whole = _six_frames(tmp_path_factory)
    path = tmp_path_factory.getbasetemp() / "broken.part"
    path.write_bytes(whole[:cut] + end)
    assert 0 <= count_frames(path) <= 6 + len(end) // 8


def _six_frames(factory: pytest.TempPathFactory, kept: dict[str, bytes] = {}) -> bytes:  # noqa: B006 (made once)
    if not kept:
        taker, part = begin(factory.mktemp("six"))
        for actions in range(6):
            taker.write(paint(actions))
        taker.end()
        taker.wait()
        assert count_frames(part) == boxes(part).count("moof") == 6
        kept["bytes"] = part.read_bytes()
    return kept["bytes"]


def test_what_a_killed_process_left_is_made_whole(tmp_path: Path) -> None:
    def leave(stem: str, frames: int) -> Path:
        part = new_part(tmp_path, stem, new_take())
        taker = EpisodeWriter(part, fps=5.0, ffmpeg=find_ffmpeg())
        for actions in range(frames):
            taker.write(paint(actions))
        taker.end()
        taker.wait()
        return part

    leave("g0.0", 2)
    leave("g0.0", 5)
    leave("g0.1", 3)
    older = leave("g1.0", 3)
    os.utime(older, (1, 1))
    whole_file(tmp_path, "g1.0").write_bytes(b"a newer one")
    new_part(tmp_path, "g2.0", new_take()).touch()
    (tmp_path / "g0.0.mp4.1.2.3.whole").touch()
    taker, at_work = begin(tmp_path)
    taker.write(paint(0))
    assert finish_left_parts(find_ffmpeg(), tmp_path) == 2
    assert names(tmp_path) == sorted([at_work.name, "g0.0.mp4", "g0.1.mp4", "g1.0.mp4"])
    assert [len(painted(tmp_path / f"g0.{member}.mp4")) for member in range(2)] == [5, 3]
    assert (tmp_path / "g1.0.mp4").read_bytes() == b"a newer one"
    assert is_written(at_work)
    taker.end()
    taker.wait()
    assert not is_written(at_work)
    assert parts_in(tmp_path) == {"a": [at_work]}
