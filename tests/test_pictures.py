"""Pictures as PNG files, read back by a decoder that is not ours."""

import subprocess

import imageio_ffmpeg
import numpy as np
import pytest

from asyncrollout import UsageError
from asyncrollout.images import encode_png


def decode(png: bytes, shape: tuple[int, ...]) -> np.ndarray:
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-f", "png_pipe", "-i", "-", "-f", "rawvideo"]
    done = subprocess.run([*command, "-pix_fmt", "rgb24", "-"], input=png, capture_output=True, check=True)
    return np.frombuffer(done.stdout, dtype=np.uint8).reshape(shape)


@pytest.mark.parametrize("shape", [(1, 1, 3), (7, 5, 3), (64, 96, 3)])
def test_picture_comes_back(shape: tuple[int, ...]) -> None:
    picture = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    assert (decode(encode_png(picture), shape) == picture).all()
    turned = picture.swapaxes(0, 1)
    assert (decode(encode_png(turned), turned.shape) == turned).all()


@pytest.mark.parametrize("wrong", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)])
def test_what_is_no_picture(wrong: np.ndarray) -> None:
    with pytest.raises(UsageError, match=r"an array \(height, width, 3\) of uint8, not of"):
        encode_png(wrong)
