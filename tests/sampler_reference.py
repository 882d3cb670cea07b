"""What start order comes to, found out slowly and simply."""

from tests.sampler_world import World


class Reference:
    """Judges draws one by one, as if there were neither time nor anything else at the same time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._program = world.program
        self._next = 0
        self._kept: list[int] = []
        self._spare: list[int] = []
        self._waiting: list[int] = []
        self._judged = self._since = 0

    def take(self, groups: int, *, once: bool) -> list[int] | None:
        """The indices of the next batch; none at the end, and None if its draws are used up."""
        if once:
            self._begin_anew(groups)
        while len(self._kept) < groups:
            most = None if self._program.max_rounds is None else self._program.max_rounds * groups
            if most is not None and self._judged + len(self._waiting) >= most:
                self._judge_together(groups)
                return self._kept_or_filled(groups) if len(self._kept) < groups else self._taken(groups)
            if (index := self._draw()) is None:
                self._judge_together(groups)
                return self._filled(groups) if self._kept else []
            self._judge(index, groups)
        return self._taken(groups)

    def _draw(self) -> int | None:
        if not self._program.is_endless and self._next >= self._program.tasks:
            return None
        self._next += 1
        return self._next - 1

    def _judge(self, index: int, groups: int) -> None:
        if self._world.is_dropped_as_failed(index):
            self._put(index, groups, keep=False)
        elif self._program.keep != "batch":
            self._put(index, groups, keep=self._world.is_kept(index))
        else:
            self._waiting.append(index)
            if len(self._waiting) == groups:
                self._judge_together(groups)

    def _judge_together(self, groups: int) -> None:
        waiting, self._waiting = self._waiting, []
        for index, keep in zip(waiting, self._world.are_kept(waiting), strict=True):
            self._put(index, groups, keep=keep)

    def _put(self, index: int, groups: int, *, keep: bool) -> None:
        self._judged += 1
        if keep:
            self._kept.append(index)
            self._since += 1
            if self._since >= groups:
                self._begin_anew(groups)
        elif not self._world.is_dropped_as_failed(index):
            self._spare = [*self._spare, index][-groups:]

    def _begin_anew(self, groups: int) -> None:
        self._judged, self._since, self._spare = 0, len(self._kept) % groups, []

    def _taken(self, groups: int) -> list[int]:
        taken, self._kept = self._kept[:groups], self._kept[groups:]
        return taken

    def _filled(self, groups: int) -> list[int]:
        taken = self._taken(groups)
        if self._program.on_exhausted == "fill":
            taken += self._spare[: groups - len(taken)]
        return taken

    def _kept_or_filled(self, groups: int) -> list[int] | None:
        taken = None if self._program.on_exhausted == "raise" else self._filled(groups) or None
        self._begin_anew(groups)
        return taken
