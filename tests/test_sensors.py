"""A robot's cameras: found by name, brought to size, put side by side."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import UsageError
from asyncrollout_envs.sensors import SIZES, Camera, Size, as_rgb, find_pictures, resized, tile

LEFT, RIGHT, HEAD = (200, 10, 10), (10, 200, 10), (10, 10, 200)
NAMES = {
    "left_wrist": "robot_r1:left_realsense_link:Camera:0",
    "right_wrist": "robot_r1:right_realsense_link:Camera:0",
    "head": "robot_r1:zed_link:Camera:0",
}


def plain(side: int, colour: tuple[int, ...]) -> np.ndarray:
    return np.full((side, side, len(colour)), colour, dtype=np.uint8)


def observation(**pictures: Any) -> dict[str, Any]:
    cameras = {NAMES[camera]: {"rgb": picture, "depth": np.zeros((2, 2))} for camera, picture in pictures.items()}
    return {"robot_r1": {**cameras, "proprio": np.zeros(256)}, "task": {"low_dim": np.zeros(3)}}


@pytest.mark.parametrize(("size", "shape"), [("low", (256, 384, 3)), ("high", (960, 1440, 3))])
def test_wrist_over_wrist_on_the_left_and_the_head_on_the_right(size: Size, shape: tuple[int, ...]) -> None:
    wrist, _ = SIZES[size]
    seen = observation(left_wrist=plain(wrist, LEFT), right_wrist=plain(wrist, RIGHT), head=plain(224, HEAD))
    frame = tile(find_pictures(seen), size)
    assert frame.shape == shape
    assert (frame[:wrist, :wrist] == LEFT).all()
    assert (frame[wrist:, :wrist] == RIGHT).all()
    assert (frame[:, wrist:] == HEAD).all()


@pytest.mark.parametrize("missing", ["left_wrist", "right_wrist", "head"])
def test_a_missing_camera_is_black(missing: Camera) -> None:
    pictures: dict[str, Any] = {name: plain(128, (255, 255, 255)) for name in NAMES if name != missing}
    frame = tile(find_pictures(observation(**pictures)), "low")
    black = np.zeros((256, 384), dtype=bool)
    where = {"left_wrist": np.s_[:128, :128], "right_wrist": np.s_[128:, :128], "head": np.s_[:, 128:]}
    black[where[missing]] = True
    assert ((frame == 0).all(axis=2) == black).all()


def test_cameras_are_found_at_any_depth_and_by_a_part_of_their_name() -> None:
    flat = {"robot_r1::robot_r1:zed_link:Camera:0::rgb": plain(8, HEAD), "robot_r1::proprio": np.zeros(3)}
    assert find_pictures(flat).keys() == {"head"}
    deep = {"env": {"other_robot": {"other:left_realsense_link:Camera:0": {"rgb": plain(8, LEFT)}}}}
    assert find_pictures(deep).keys() == {"left_wrist"}
    assert find_pictures({"robot_r1": {"robot_r1:eyes:Camera:0": {"rgb": plain(8, HEAD)}}}) == {}
    assert find_pictures({}) == {}


def test_only_colours_are_taken() -> None:
    seen = {"robot_r1": {NAMES["head"]: {"depth": np.ones((8, 8)), "seg": np.ones((8, 8))}}}
    assert find_pictures(seen) == {}


class Tensor:
    """As torch's, as far as pictures go."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def detach(self) -> "Tensor":
        return self

    def cpu(self) -> "Tensor":
        return self

    def numpy(self) -> np.ndarray:
        return self._array


@pytest.mark.parametrize(
    "picture",
    [
        plain(4, (*HEAD, 7)),
        Tensor(plain(4, HEAD)),
        plain(4, HEAD).astype(np.float32) / 255,
        plain(4, HEAD).astype(np.float64),
        plain(4, HEAD).astype(np.int64),
    ],
)
def test_pictures_of_every_kind_become_rgb(picture: Any) -> None:
    made = as_rgb(picture)
    assert made.dtype == np.uint8
    assert made.shape == (4, 4, 3)
    assert (made == HEAD).all()


@pytest.mark.parametrize("bad", [np.zeros((4, 4)), np.zeros((4, 4, 2)), 7])
def test_what_is_no_picture_is_an_error(bad: Any) -> None:
    with pytest.raises(UsageError, match="height, width"):
        as_rgb(bad)


@given(height=st.integers(1, 60), width=st.integers(1, 60), side=st.integers(1, 70), shade=st.integers(0, 255))
def test_a_plain_picture_stays_plain_at_any_size(height: int, width: int, side: int, shade: int) -> None:
    picture = np.full((height, width, 3), shade, dtype=np.uint8)
    made = resized(picture, side)
    assert made.shape == (side, side, 3)
    assert (made == shade).all()


def test_enlarged_smoothly_and_made_smaller_by_means() -> None:
    steps = np.repeat(np.array([[0], [100]], dtype=np.uint8), 2, axis=1)[..., None].repeat(3, axis=2)
    assert resized(steps, 4)[:, 0, 0].tolist() == [0, 25, 75, 100]
    checks = np.indices((8, 8)).sum(axis=0) % 2 * 200
    assert (resized(checks[..., None].repeat(3, axis=2).astype(np.uint8), 4) == 100).all()
