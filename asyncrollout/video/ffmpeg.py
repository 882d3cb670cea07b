"""ffmpeg: where it is, and the commands it is run with."""

from functools import cache
from pathlib import Path

from asyncrollout.errors import MissingExtraError, UsageError


@cache
def find_ffmpeg() -> str:
    """The program; takes a tenth of a second the first time."""
    try:
        import imageio_ffmpeg  # noqa: PLC0415 (only those who record need it)

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        raise MissingExtraError(f"recording needs ffmpeg: pip install imageio-ffmpeg ({error})") from error


def encode_command(ffmpeg: str, height: int, width: int, fps: float) -> list[str]:
    """Raw frames on stdin, an MP4 on stdout that plays however it ends.

    Each frame is a fragment and is written at once, so that a kill costs one frame at most. Every 15th is a key frame.
    """
    raw = f"-f rawvideo -pix_fmt rgb24 -video_size {width}x{height} -framerate {fps:.6g}"
    quick = "-probesize 32 -analyzeduration 0"
    h264 = "-c:v libx264 -preset ultrafast -tune zerolatency -crf 20 -g 15 -pix_fmt yuv420p -threads 1"
    mp4 = "-f mp4 -movflags frag_every_frame+empty_moov+default_base_moof -flush_packets 1"
    options = f"-loglevel error -nostats {raw} {quick} -i pipe:0 -an {h264} {mp4} pipe:1"
    return [ffmpeg, *options.split()]


def remux_command(ffmpeg: str, part: Path, whole: Path) -> list[str]:
    """The same frames with one index at the front, as players and web servers like it; nothing is encoded again."""
    options = ["-loglevel", "error", "-nostdin", "-y", "-i", f"file:{part}"]
    return [ffmpeg, *options, "-c", "copy", "-movflags", "+faststart", "-f", "mp4", f"file:{whole}"]


def check_fps(fps: object) -> float:
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps <= 1000:
        raise UsageError(f"fps={fps!r} is not a frame rate: it must be above 0 and at most 1000")
    return float(fps)
