"""Frames of video files: decoded by seeking, kept on disk, shared by processes, and no harm done by broken files."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from asyncrollout import EnvError
from asyncrollout_envs.caching import alone
from asyncrollout_envs.video import ffmpeg, scenes
from asyncrollout_envs.video.cache import Entry, FrameCache, entry_key
from asyncrollout_envs.video.embedders import embed_colours, similarity
from asyncrollout_envs.video.ffmpeg import ClipInfo
from asyncrollout_envs.video.frames import Clips, Sampling, evenly

FPS, COUNT, SIZE, PATIENCE = 8, 320, 96, 30.0
CLIP = scenes.invent_clip(0, 0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("videos")


@pytest.fixture(scope="module")
def shapes(directory: Path) -> Path:
    path = directory / "shapes.mp4"
    ffmpeg.encode(path, CLIP.draw(), fps=scenes.FPS, gop=15, timeout=PATIENCE)
    return path


@pytest.fixture(scope="module")
def long_video(directory: Path) -> Path:
    """Forty seconds, in which every frame tells its number."""
    path = directory / "long.mp4"
    ffmpeg.encode(path, map(numbered, range(COUNT)), fps=FPS, gop=15, timeout=PATIENCE)
    return path


def numbered(number: int) -> NDArray[np.uint8]:
    """A frame with its number in black and white blocks, as bits."""
    frame = np.zeros((32, 80, 3), np.uint8)
    for bit in range(9):
        frame[8:24, 8 * bit : 8 * bit + 8] = 255 * (number >> bit & 1)
    return frame


def number_of(frame: NDArray[np.uint8]) -> int:
    return sum(1 << bit for bit in range(9) if frame[16, 8 * bit + 4].mean() > 127)


def clips(directory: Path, most_bytes: int = 2**30) -> Clips:
    return Clips(FrameCache(most_bytes, directory), SIZE, PATIENCE)


def test_frames_are_found_by_seeking(long_video: Path) -> None:
    info = ffmpeg.probe(long_video, PATIENCE)
    assert info == ClipInfo(COUNT, FPS)
    wanted = [0, 1, 7, 90, 91, 200, 319]
    assert ffmpeg.runs_of(wanted, FPS) == [[0, 1, 7], [90, 91], [200], [319]]
    decoded = ffmpeg.decode(long_video, info, wanted, 80, PATIENCE)
    assert [number_of(frame) for frame in decoded] == wanted


def test_a_large_picture_is_scaled(long_video: Path) -> None:
    info = ffmpeg.probe(long_video, PATIENCE)
    assert ffmpeg.decode(long_video, info, [5], 40, PATIENCE).shape == (1, 16, 40, 3)


def test_a_clip_shows_what_its_script_says(shapes: Path) -> None:
    info = ffmpeg.probe(shapes, PATIENCE)
    assert info == ClipInfo(CLIP.frames, scenes.FPS)
    decoded = ffmpeg.decode(shapes, info, range(CLIP.frames), 96, PATIENCE)
    for frame, drawn in zip(decoded, CLIP.draw(), strict=True):
        assert np.abs(frame.astype(int) - drawn).mean() < 4
    for scene in CLIP.scenes:
        told = f"{scene.colour} {scene.shape}"
        seen = [similarity(embed_colours, told, [*decoded[one.first : one.end]]) for one in CLIP.scenes]
        assert seen.index(max(seen)) == CLIP.scenes.index(scene)
        is_white = decoded[scene.first : scene.end, 0].mean(axis=(1, 2)) > 200
        starts = np.flatnonzero(np.diff(is_white.astype(int), prepend=0) == 1) + scene.first
        assert tuple(starts) == scene.flashes


def test_eight_frames_of_a_scene_show_every_flash() -> None:
    """So that whoever watches a scene can count them."""
    for number in range(40):
        for scene in scenes.invent_clip(number, 1).scenes:
            shown = evenly(scene.first, scene.end, 8)  # its last second is also the next one's first
            lit = [any(start <= frame < start + 3 for start in scene.flashes) for frame in shown]
            assert sum(now and not before for before, now in zip([False, *lit], lit, strict=False)) == len(
                scene.flashes
            )


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 80))
def test_frames_are_spread_evenly(first: int, more: int, count: int) -> None:
    chosen = evenly(first, first + more, count)
    assert chosen[0] == first
    assert len(chosen) == len({*chosen}) == min(count, more + 1)
    assert chosen == sorted(chosen)
    assert len(chosen) == 1 or chosen[-1] == first + more
    assert len({*np.diff(chosen)}) <= 2


def test_a_second_look_decodes_nothing(long_video: Path, tmp_path: Path) -> None:
    first = clips(tmp_path)
    sampling = Sampling.of(first.info(long_video), 64)
    pictures = first.pictures(long_video, sampling, [0, 20, 40])
    assert first.decodes == 2  # its length, its frames
    first.pictures(long_video, sampling, [20, 21])
    assert first.decodes == 3
    second = clips(tmp_path)
    assert second.info(long_video) == ClipInfo(COUNT, FPS)
    assert np.array_equal(second.pictures(long_video, sampling, [0, 20, 40]), pictures)
    assert second.decodes == 0
    assert [number_of(frame) for frame in pictures] == [sampling.numbers[at] for at in (0, 20, 40)]


def test_what_is_decoded_on_the_way_is_kept(shapes: Path, tmp_path: Path) -> None:
    """The frames of an overview are so near to each other that all between them are decoded, too."""
    here = clips(tmp_path)
    sampling = Sampling.of(here.info(shapes), 64)
    here.pictures(shapes, sampling, evenly(0, sampling.last, 16))
    decodes = here.decodes
    here.pictures(shapes, sampling, range(8, 16))
    assert here.decodes == decodes


def test_without_a_cache_everything_works(shapes: Path, tmp_path: Path) -> None:
    unkept = clips(tmp_path, most_bytes=0)
    sampling = Sampling.of(unkept.info(shapes), 64)
    assert unkept.pictures(shapes, sampling, [1, 2]).shape == (2, 72, 96, 3)
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "file").touch()
    nowhere = clips(tmp_path / "file")  # cannot be a directory
    assert nowhere.pictures(shapes, sampling, [1, 2]).shape == (2, 72, 96, 3)


def test_a_video_that_changes_is_decoded_again(shapes: Path, long_video: Path, tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    path.write_bytes(shapes.read_bytes())
    here = clips(tmp_path / "cache")
    assert here.info(path).frames == CLIP.frames
    path.write_bytes(long_video.read_bytes())
    assert here.info(path).frames == COUNT


def test_threads_decode_once(shapes: Path, tmp_path: Path) -> None:
    everybody = 8
    meeting = threading.Barrier(everybody)
    own = [clips(tmp_path) for _ in range(everybody)]

    def look(mine: Clips) -> int:
        meeting.wait()
        sampling = Sampling.of(mine.info(shapes), 64)
        return crc32(mine.pictures(shapes, sampling, range(16)).tobytes())

    with ThreadPoolExecutor(everybody) as threads:
        assert len({*threads.map(look, own)}) == 1
    assert sum(one.decodes for one in own) == 2


RACER = """
import sys
from pathlib import Path
from zlib import crc32
from asyncrollout_envs.video.cache import FrameCache
from asyncrollout_envs.video.frames import Clips, Sampling

path, directory = map(Path, sys.argv[1:])
mine = Clips(FrameCache(2**30, directory), 96, 30.0)
print("ready", flush=True)
sys.stdin.readline()
sampling = Sampling.of(mine.info(path), 64)
print(mine.pictures(path, sampling, range(16)).sum(), mine.decodes)
"""


def test_processes_decode_once_and_leave_one_entry(shapes: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACER, str(shapes), str(tmp_path)]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    results = [tuple(map(int, racer.communicate()[0].split())) for racer in racers]
    assert len({pixels for pixels, _ in results}) == 1
    assert sum(decodes for _, decodes in results) == 2
    assert [path.suffix for path in tmp_path.iterdir() if not path.name.startswith("lock-")] == [".frames"]
    third = clips(tmp_path)
    third.pictures(shapes, Sampling.of(third.info(shapes), 64), range(16))
    assert third.decodes == 0


def test_nobody_waits_for_ever_for_another(tmp_path: Path) -> None:
    with alone(tmp_path / "lock") as first, alone(tmp_path / "lock", patience=0.0) as second:
        assert (first, second) == (True, False)
    with alone(tmp_path / "lock", patience=0.0) as third:
        assert third


def entry(count: int, value: int = 7) -> Entry:
    return Entry(ClipInfo(100, 4.0), {number: np.full((4, 6, 3), value + number, np.uint8) for number in range(count)})


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_is_never_taken_for_frames(tmp_path: Path, data: st.DataObject) -> None:
    cache = FrameCache(2**20, tmp_path)
    cache.write("ab", entry(3))
    (path,) = tmp_path.glob("*.frames")
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[at] ^= data.draw(st.integers(1, 255))
    else:
        del content[at:]
    path.write_bytes(content)
    assert cache.read("ab", [0, 1, 2]) is None


def test_a_damaged_entry_is_made_again(shapes: Path, tmp_path: Path) -> None:
    first = clips(tmp_path)
    sampling = Sampling.of(first.info(shapes), 64)
    pictures = first.pictures(shapes, sampling, range(4))
    (path,) = tmp_path.glob("*.frames")
    path.write_bytes(path.read_bytes()[:-9])
    assert np.array_equal(first.pictures(shapes, sampling, range(4)), pictures)
    decodes = first.decodes
    assert np.array_equal(first.pictures(shapes, sampling, range(4)), pictures)
    assert first.decodes == decodes


def test_the_cache_is_bounded_and_what_was_unused_for_longest_goes_first(tmp_path: Path) -> None:
    cache = FrameCache(2**20, tmp_path)
    cache.write("00", entry(10))
    size = next(tmp_path.glob("*.frames")).stat().st_size
    cache = FrameCache(4 * size + size // 2, tmp_path)
    for number, key in enumerate(("01", "02", "03")):
        cache.write(key, entry(10))
        os.utime(tmp_path / f"{key}.frames", (number, number))
    os.utime(tmp_path / "00.frames", (3, 3))
    assert cache.read("01", [0]) is not None  # used just now
    cache.write("04", entry(10))
    left = {path.stem for path in tmp_path.glob("*.frames")}
    assert left == {"00", "01", "03", "04"}
    (tmp_path / "x.partial").touch()
    os.utime(tmp_path / "x.partial", (0, 0))  # of a process that was killed long ago
    cache.write("05", entry(10))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4 * size + size // 2
    assert not (tmp_path / "x.partial").exists()


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A file that never gives anything."""
    path = tmp_path / "pipe.mp4"
    os.mkfifo(path)
    yield path
    path.unlink()


def test_ffmpeg_has_a_deadline(pipe: Path) -> None:
    with pytest.raises(EnvError, match=r"pipe\.mp4.*within 0\.2 s"):
        ffmpeg.probe(pipe, 0.2)


def test_a_list_of_other_files_is_no_video(shapes: Path) -> None:
    playlist = shapes.with_name("playlist.mp4")
    playlist.write_text(f"ffconcat version 1.0\nfile {shapes.name}\n")
    with pytest.raises(EnvError, match="cannot be read"):
        ffmpeg.probe(playlist, PATIENCE)


def test_what_is_cut_off_is_shown_as_far_as_it_goes(shapes: Path) -> None:
    cut = shapes.with_name("cut.mp4")
    content = shapes.read_bytes()
    cut.write_bytes(content[: len(content) * 2 // 3])
    here = Clips(FrameCache(0), SIZE, PATIENCE)
    info = here.info(cut)
    assert 0 < info.frames < CLIP.frames
    sampling = Sampling.of(info, 64)
    assert len(here.pictures(cut, sampling, range(len(sampling.numbers)))) == info.frames


def test_the_key_of_an_entry_is_of_the_file_and_the_size(shapes: Path, long_video: Path) -> None:
    assert len({entry_key(shapes, 64), entry_key(shapes, 65), entry_key(long_video, 64)}) == 3
