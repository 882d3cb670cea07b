"""What there is to play: tasks, seeds and envs, in an order that depends on nothing but the base seed."""

import heapq
import math
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any

import anyio
import anyio.lowlevel
import msgspec

from asyncrollout.agents.seeds import sampling_seed
from asyncrollout.checks import nearest, whole
from asyncrollout.errors import UsageError
from asyncrollout.plain import to_plain
from asyncrollout.tasks import Background
from asyncrollout.trajectories import DRAWN, Group

Tasks = Iterable[Any] | AsyncIterable[Any]

_CLOSE_GRACE = 5.0
_SKIPPED_AT_ONCE = 500


class Task(msgspec.Struct, frozen=True):
    """A task with more to say than the env's own `task`: the env's seed, and the tag of one of several envs."""

    task: Any = None
    seed: int | None = None
    tag: str | None = None


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of several envs: of all groups, it gets `share` parts."""

    env: Any
    tag: str = ""
    share: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    env_kwargs: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not 0 < self.share < math.inf:
            raise ValueError(f"Share: share={self.share!r} is not a number above 0")
        msgspec.structs.force_setattr(self, "share", float(self.share))  # numpy's would be recorded as another value


class Draw(msgspec.Struct, frozen=True, order=True):
    """A group to be played."""

    index: int
    id: str
    seed: int
    task: Any
    tag: str


class Draws:
    """Draws one after the other; the same ones from the same seed, tasks and shares.

    Without tasks there is no end of them. An object of tasks that has a method `finished(group)` is told of every group
    that was judged, and may choose the next tasks by it.
    """

    def __init__(
        self, tasks: Tasks | None, seed: int, shares: Sequence[Share], background: Background | None = None
    ) -> None:
        self._background = background
        self._is_pulled = False
        self._ready: deque[Any] = deque()
        self._wanted, self._arrived = anyio.Event(), anyio.Event()
        self._failure: Exception | None = None
        self._seed = seed
        self._shares = {share.tag: share.share for share in shares}
        self._drawn = dict.fromkeys(self._shares, 0)
        self._index = 0
        self._returned: list[Draw] = []
        self._tasks: Iterator[Any] | AsyncIterator[Any] | None
        if tasks is None:
            self._tasks = None
        elif isinstance(tasks, AsyncIterable):
            self._tasks = aiter(tasks)
        elif isinstance(tasks, Iterable) and not isinstance(tasks, str | bytes):
            self._tasks = iter(tasks)
        else:
            raise UsageError(f"tasks={tasks!r:.100} is neither a list of tasks nor another source of them")
        self.tell = getattr(tasks, "finished", _nobody)
        self._recorded: dict[int, Draw] = {}
        self._settled: AbstractSet[str] = frozenset()

    def remember(self, recorded: dict[int, Draw], settled: AbstractSet[str]) -> None:
        """What was drawn in an earlier process is drawn again, but for what is settled."""
        self._recorded, self._settled = recorded, settled

    @property
    def chooses(self) -> bool:
        """Whether the source of tasks wants to know what is finished."""
        return self.tell is not _nobody

    @property
    def count(self) -> int:
        return self._index

    def __aiter__(self) -> AsyncIterator[Draw]:
        return self

    async def __anext__(self) -> Draw:
        if self._returned:
            return heapq.heappop(self._returned)
        while (draw := await self._draw()).id in self._settled:
            if draw.index % _SKIPPED_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        return draw

    async def _draw(self) -> Draw:
        recorded = self._recorded.pop(self._index, None)
        if recorded is not None and self.chooses:  # by what is finished, so that it may choose otherwise now
            self._index += 1
            self._drawn[recorded.tag] += 1
            return recorded
        task = await self._next_task()
        index, self._index = self._index, self._index + 1
        tag = self._turn() if task.tag is None else task.tag
        if tag not in self._shares:
            raise UsageError(f"task {index}: no env has the tag {tag!r}{nearest(tag, [*self._shares])}")
        self._drawn[tag] += 1
        seed = (
            sampling_seed(self._seed, "env", index) if task.seed is None else whole(f"task {index}: seed", task.seed, 0)
        )
        draw = Draw(index, f"{DRAWN}{index}", seed, task.task, tag)
        if recorded is not None and to_plain(_contents(draw)) != to_plain(_contents(recorded)):
            raise UsageError(
                f"tasks are not those that the run began with: task {draw.index} was {recorded.task!r:.100}, and is "
                f"{draw.task!r:.100}"
            )
        return draw

    def give_back(self, draws: Iterable[Draw]) -> None:
        """What was drawn and not used comes first the next time."""
        for draw in draws:
            heapq.heappush(self._returned, draw)

    async def _next_task(self) -> Task:
        if self._tasks is None:
            return Task()
        if isinstance(self._tasks, AsyncIterator):
            task = await self._next_of(self._tasks)
        else:
            try:
                task = next(self._tasks)
            except StopIteration:
                raise StopAsyncIteration from None
        return task if isinstance(task, Task) else Task(task)

    async def _next_of(self, tasks: AsyncIterator[Any]) -> Any:
        """The next of an async source, pulled in a task of its own: cancelled, a generator would be at its end."""
        if self._background is None:
            return await anext(tasks)
        if not self._is_pulled:
            self._is_pulled = True
            self._background.start_soon(self._pull, tasks)
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            self._wanted.set()
            await self._arrived.wait()
        return self._ready.popleft()

    async def _pull(self, tasks: AsyncIterator[Any]) -> None:
        """Whenever a task is wanted, get one; not earlier, since the source may choose by what is finished by then."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted = anyio.Event()
                self._ready.append(await anext(tasks))
                self._tell_arrival()
        except Exception as error:  # noqa: BLE001 (raised where tasks are awaited, the end among them)
            self._failure = error
        finally:
            self._tell_arrival()
            if hasattr(tasks, "aclose"):
                with anyio.move_on_after(_CLOSE_GRACE, shield=True):
                    await tasks.aclose()

    def _tell_arrival(self) -> None:
        self._arrived.set()
        self._arrived = anyio.Event()

    def _turn(self) -> str:
        """The tag that is furthest behind its share."""
        total, count = sum(self._shares.values()), sum(self._drawn.values()) + 1
        return max(self._shares, key=lambda tag: count * self._shares[tag] / total - self._drawn[tag])


def _contents(draw: Draw) -> list[Any]:
    return [draw.seed, draw.tag, draw.task]


def _nobody(group: Group) -> None: ...
