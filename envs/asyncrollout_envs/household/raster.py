"""A picture of flat faces in space, in numpy: each is projected, and drawn where it is nearer than what is there."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Picture = NDArray[np.uint8]

_NEAR = 0.04
_AMBIENT, _FROM_ABOVE = 0.8, 0.12
_BY_SIDE = np.array([0.02, 0.12, 0.08])  # the walls to the left and right of a window are darker than it
_EDGE = 0.72  # how dark the line between two things is


class Faces(NamedTuple):
    """Faces with four corners (n, 4, 3), in counter-clockwise order from outside; colours (n, 3); owners (n,).

    Faces of one owner have no line between them.
    """

    corners: Floats
    colours: Floats
    owners: NDArray[np.int32]


def joined(parts: list[Faces]) -> Faces:
    """All of them; owners stay apart."""
    owners, most = [], 0
    for part in parts:
        owners.append(part.owners + most)
        most += int(part.owners.max(initial=-1)) + 1
    return Faces(
        np.concatenate([part.corners for part in parts]),
        np.concatenate([part.colours for part in parts]),
        np.concatenate(owners).astype(np.int32),
    )


class Eye(NamedTuple):
    """Where a camera is, what it looks along, and how wide: the tangent of half its angle."""

    at: Floats
    forward: Floats
    wide: float


def draw(faces: Faces, eye: Eye, side: int) -> Picture:
    """What an eye sees of faces, `side` pixels wide and high."""
    normals = np.cross(faces.corners[:, 1] - faces.corners[:, 0], faces.corners[:, 3] - faces.corners[:, 0])
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
    towards = np.einsum("nk,nk->n", normals, eye.at - faces.corners[:, 0]) > 1e-9
    seen = _seen_from(faces.corners[towards], eye)
    in_view = _in_view(seen, eye.wide)
    seen = seen[in_view]
    kept = np.flatnonzero(towards)[in_view]
    light = _AMBIENT + np.abs(normals[kept]) @ _BY_SIDE + _FROM_ABOVE * normals[kept, 2]
    colours = faces.colours[kept] * light[:, None]
    nearness, index = _fill(seen, eye.wide, side)
    return _coloured(index, nearness, colours, faces.owners[kept])


def _seen_from(corners: Floats, eye: Eye) -> Floats:
    """To the right, down and forward of the eye."""
    right = np.array([eye.forward[1], -eye.forward[0], 0.0])
    right /= max(float(np.linalg.norm(right)), 1e-9)
    down = np.cross(eye.forward, right)
    turned: Floats = (corners - eye.at) @ np.stack([right, down, eye.forward]).T
    return turned


def _in_view(seen: Floats, wide: float) -> NDArray[np.bool_]:
    """Those faces that are not wholly beside the picture, or behind the eye."""
    x, y, z = seen[..., 0], seen[..., 1], seen[..., 2]
    out = [z < _NEAR, x > wide * z, x < -wide * z, y > wide * z, y < -wide * z]
    hidden: NDArray[np.bool_] = np.logical_or.reduce([part.all(axis=1) for part in out])
    return ~hidden


class _Outlines(NamedTuple):
    """Faces as the picture has them: the box of pixels around each, its edges, and its nearness as a plane."""

    boxes: NDArray[np.int64]  # top, bottom, first, last
    edges: Floats  # (n, 4, corners): x and y where an edge begins, how far x runs for each row, and the row of its end
    planes: Floats  # (n, 3): nearness is what it is at the corner of the picture, and more with each column and row


def _fill(seen: Floats, wide: float, side: int) -> tuple[Floats, NDArray[np.int32]]:
    """For each pixel, how near the nearest face is (1 / distance), and which it is (-1: none)."""
    nearness = np.zeros((side, side))
    index = np.full((side, side), -1, dtype=np.int32)
    pixels = np.arange(side) + 0.5
    outlines = _outlined(_before_eye(seen), wide, side)
    spread = (outlines.boxes[:, 1] > outlines.boxes[:, 0]) & (outlines.boxes[:, 3] > outlines.boxes[:, 2])
    for number in np.flatnonzero(spread).tolist():
        top, bottom, first, last = outlines.boxes[number].tolist()
        base, by_column, by_row = outlines.planes[number].tolist()
        rows, across = pixels[top:bottom, None], pixels[first:last]
        begin_x, begin_y, run, end_y = outlines.edges[number]
        crossed = begin_x + (rows - begin_y) * run
        meets = (rows >= begin_y) != (rows >= end_y)
        left = np.where(meets, crossed, np.inf).min(axis=1, keepdims=True)
        right = np.where(meets, crossed, -np.inf).max(axis=1, keepdims=True)
        near = (by_row * rows + base) + by_column * across
        region = nearness[top:bottom, first:last]
        shown = (across >= left) & (across < right) & (near > region)
        np.copyto(region, near, where=shown)
        np.copyto(index[top:bottom, first:last], number, where=shown)
    return nearness, index


def _outlined(corners: Floats, wide: float, side: int) -> _Outlines:
    scale, middle = side / 2 / wide, side / 2
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    away = np.einsum("nk,nk->n", normals, corners[:, 0])
    normals /= np.where(np.abs(away) < 1e-12, np.inf, away)[:, None]
    by_column, by_row = normals[:, 0] / scale, normals[:, 1] / scale
    planes = np.stack([normals[:, 2] - (by_column + by_row) * middle, by_column, by_row], axis=1)
    at = corners[..., :2] / corners[..., 2:] * scale + middle
    reach = np.ceil(np.stack([at.min(axis=1), at.max(axis=1)], axis=1) - 0.5)  # (n, least and most, x and y)
    boxes = np.clip(reach, 0, side).astype(np.int64)[:, [0, 1, 0, 1], [1, 1, 0, 0]]
    then = np.concatenate([at[:, 1:], at[:, :1]], axis=1)
    rise = then[..., 1] - at[..., 1]
    run = (then[..., 0] - at[..., 0]) / np.where(np.abs(rise) < 1e-9, np.inf, rise)
    return _Outlines(boxes, np.stack([at[..., 0], at[..., 1], run, then[..., 1]], axis=1), planes)


def _before_eye(seen: Floats) -> Floats:
    """What of each face lies before the eye: at most one corner more; others repeat their last one."""
    corners = np.concatenate([seen, seen[:, -1:]], axis=1)
    for number in np.flatnonzero((seen[..., 2] < _NEAR).any(axis=1)).tolist():
        kept = _clipped(seen[number])
        corners[number] = np.concatenate([kept, np.repeat(kept[-1:], corners.shape[1] - len(kept), axis=0)])
    return corners


def _clipped(corners: Floats) -> Floats:
    kept = []
    for here, then in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if here[2] >= _NEAR:
            kept.append(here)
        if (here[2] >= _NEAR) != (then[2] >= _NEAR):
            kept.append(here + (then - here) * ((_NEAR - here[2]) / (then[2] - here[2])))
    return np.array(kept)


def _coloured(index: NDArray[np.int32], nearness: Floats, colours: Floats, owners: NDArray[np.int32]) -> Picture:
    """Colours fade with distance; a thin dark line is between things."""
    shades = np.concatenate([colours, np.zeros((1, 3))]).astype(np.float32)  # the last one is for -1
    picture = shades[index]
    faded = (0.8 + 0.2 * np.clip(nearness * 1.2, 0.0, 1.0)).astype(np.float32)
    owner = np.append(owners, -1)[index]
    line = np.zeros(index.shape, dtype=bool)
    line[:, 1:] |= owner[:, 1:] != owner[:, :-1]
    line[1:] |= owner[1:] != owner[:-1]
    faded[line] *= _EDGE
    return np.asarray(np.clip(picture * faded[..., None], 0, 255), dtype=np.uint8)
