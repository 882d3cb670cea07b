"""What `bench_video.py` videos. Workers import this file, so it imports little."""

from typing import Any

import numpy as np

from benchmarks.pool_envs import Computing

SIDE = 128


class Recorded(Computing):
    """Spins for a while in each step; shows a square that moves over a board."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        rows, columns = np.mgrid[:SIDE, :SIDE]
        board = np.where((rows // 16 + columns // 16) % 2, 200, 160)
        self.board = np.stack([board, board - 20, board - 60], axis=2).astype(np.uint8)

    def render(self) -> Any:
        picture = self.board.copy()
        top, left = 3 * self.turn % (SIDE - 24), 5 * self.turn % (SIDE - 24)
        picture[top : top + 24, left : left + 24] = (30, 60, 160)
        return picture
