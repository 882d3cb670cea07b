"""A contact sheet of every environment that renders: `python examples/gallery.py [gallery.png]`.

Each row is one episode of an expert, from its start to its end.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import asyncrollout as ar
from asyncrollout.images import encode_png

COLUMNS, SIDE, GAP = 8, 192, 8
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "sokoban": [{}, {"dim_room": (8, 8), "num_boxes": 2}, {"dim_room": (10, 10), "num_boxes": 4}],
    "frozen_lake": [{"is_slippery": False}, {"size": 8, "success_rate": 0.8}],
}


async def play(pool: ar.EnvPool, name: str, kwargs: dict[str, Any]) -> list[NDArray[np.uint8]]:
    """A picture of each state of an expert's episode; none if the env does not render."""
    async with pool.open(name, expert=True, max_actions_per_turn=1, **kwargs) as env:
        outcome = await env.reset(seed=7)
        try:
            pictures = [await env.render()]
        except ar.UsageError:
            return []
        if not isinstance(pictures[0], np.ndarray):  # a page of text
            return []
        while not outcome.done:
            outcome = await env.step(outcome.info["expert"])
            pictures.append(await env.render())
        return pictures


def fitted(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Scaled to fit into a square of the sheet, by repeating or leaving out pixels."""
    longest = max(picture.shape[:2])
    rows, columns = (np.arange(SIDE * length // longest) * longest // SIDE for length in picture.shape[:2])
    return np.ascontiguousarray(picture[np.ix_(rows, columns)])


def sheet(episodes: list[list[NDArray[np.uint8]]]) -> NDArray[np.uint8]:
    cell = SIDE + GAP
    page = np.full((len(episodes) * cell + GAP, COLUMNS * cell + GAP, 3), 255, dtype=np.uint8)
    for row, pictures in enumerate(episodes):
        chosen = np.linspace(0, len(pictures) - 1, min(COLUMNS, len(pictures))).round().astype(int)
        for column, at in enumerate(chosen):
            top, left = GAP + row * cell, GAP + column * cell
            picture = fitted(pictures[at])
            page[top : top + len(picture), left : left + len(picture[0])] = picture
    return page


async def play_all() -> list[list[NDArray[np.uint8]]]:
    taken = []
    async with ar.EnvPool(workers=1) as pool:
        for name in (name for name in ar.env_names() if ar.find_env(name).text is not None):  # others have no expert
            for kwargs in VARIANTS.get(name, [{}]):
                try:
                    pictures = await play(pool, name, kwargs)
                except ar.MissingExtraError as error:
                    print(f"{name}: {error}")
                    continue
                print(f"{name} {kwargs or ''}: {f'{len(pictures)} pictures' if pictures else 'renders no pictures'}")
                taken += [pictures] if pictures else []
    return taken


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "gallery.png")
    path.write_bytes(encode_png(sheet(asyncio.run(play_all()))))
    print(f"wrote {path}, its rows in this order")
