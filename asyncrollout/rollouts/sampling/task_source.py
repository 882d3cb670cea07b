"""What there is to play: tasks, seeds and envs, in an order that depends on nothing but the base seed."""

import heapq
import inspect
import math
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Container, Iterable, Iterator, Sequence
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import msgspec

from asyncrollout.concurrency import Background
from asyncrollout.errors import UsageError
from asyncrollout.rollouts.sampling.env_seeds import EnvSeeds, training_seeds
from asyncrollout.rollouts.sampling.shares import Shares, SharesOf
from asyncrollout.serialization import to_plain
from asyncrollout.trajectories import DRAWN, Group
from asyncrollout.validation import check_int, did_you_mean


class MapStyle(Protocol):
    """A dataset that is read by number, such as torch's."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Tasks = Iterable[Any] | AsyncIterable[Any] | MapStyle

_CLOSE_GRACE = 5.0
_SKIPPED_AT_ONCE = 500


class Task(msgspec.Struct, frozen=True):
    """A task with the env's seed, and with the tag of the env that plays it if there are several."""

    task: Any = None
    seed: int | None = None
    tag: str | None = None


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of several envs; `share` is its weight among them."""

    env: Any
    tag: str = ""
    share: float = 1.0
    env_kwargs: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not 0 < self.share < math.inf:
            raise ValueError(f"Share: share={self.share!r} is not a number above 0")
        msgspec.structs.force_setattr(self, "share", float(self.share))  # numpy's would be recorded as another value


class GroupRequest(msgspec.Struct, frozen=True, order=True):
    """A group to be played."""

    index: int
    id: str
    seed: int
    task: Any
    tag: str


class ReportedGroup(msgspec.Struct, frozen=True):
    """A group, and its number, that an earlier process reported to the source of tasks after `drawn` draws."""

    drawn: int
    index: int
    group: Group


class TaskSource:
    """Draws the groups to play: the same ones from the same seed, tasks and shares; without tasks, endlessly.

    If the source of tasks has a method `finished(group)`, each judged group is reported to it, so that it can choose
    the next tasks accordingly.
    """

    def __init__(
        self,
        tasks: Tasks | None,
        seed: int,
        shares: Sequence[Share],
        background: Background | None = None,
        shares_of: SharesOf = "drawn",
        *,
        env_seeds: EnvSeeds | None = None,
    ) -> None:
        """`env_seeds` are for tasks without a seed of their own; by default, those of training, from `seed`."""
        self.env_seeds = training_seeds(seed) if env_seeds is None else env_seeds
        self._background = background
        self._is_pulled = False
        self._ready: deque[Any] = deque()
        self._wanted, self._arrived = anyio.Event(), anyio.Event()
        self._failure: Exception | None = None
        self.shares = Shares({share.tag: share.share for share in shares}, shares_of)
        self._index = 0
        self._returned: list[GroupRequest] = []
        self._source = tasks
        self._tasks = None if tasks is None else _iterator(tasks)
        finished = getattr(tasks, "finished", None)
        self._finished = finished if callable(finished) else None
        if inspect.iscoroutinefunction(self._finished):
            raise UsageError("tasks: finished(group) is called while groups are judged, so it must not be async")
        self._recorded: dict[int, GroupRequest] = {}
        self._settled: Container[int] = ()
        self._reported: deque[ReportedGroup] = deque()
        self._reported_before: set[str] = set()  # of groups that are judged again
        self._wound = 0  # this many draws need no task of the source any more

    async def remember(
        self, recorded: dict[int, GroupRequest], settled: Container[int], reported: Iterable[ReportedGroup] = ()
    ) -> None:
        """Have the draws of an earlier process drawn again, except for settled numbers.

        The source is wound forward, with what was `reported` to it in between, unless it has a `resume()` of its own.
        """
        self._recorded, self._settled, self._reported = recorded, settled, deque(reported)
        self.env_seeds.remember(recorded.values())
        self._reported_before = {one.group.id for one in self._reported if one.index not in settled}
        resume = getattr(self._source, "resume", None)
        if recorded and callable(resume):
            while self._wound in recorded:
                self._wound += 1
            resumed = resume(self._wound)
            if inspect.isawaitable(resumed):
                await resumed
            self._tasks = _iterator(self._source)  # again: it may decide where to begin when it is made
        elif self.chooses and isinstance(self._tasks, Iterator):  # an async one may wait for groups to be judged
            while self._wound in recorded:
                self._report_until(self._wound)
                next(self._tasks, None)
                self._wound += 1
                if self._wound % _SKIPPED_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
        self._report_until(self._wound)

    @property
    def chooses(self) -> bool:
        """Whether the source of tasks chooses by what has finished."""
        return self._finished is not None

    def note_judged(self, group: Group) -> None:
        self.shares.note_judged(group)
        self._report_once(group)

    def note_stale(self, group: Group) -> None:
        """Note a stale group; one that was never judged is reported now."""
        self.shares.note_stale(group)
        if group.verdict is None:
            self._report_once(group)

    def _report_once(self, group: Group) -> None:
        """Report a group to the source, once."""
        if group.id in self._reported_before:
            self._reported_before.discard(group.id)
        else:
            self._report(group)

    @property
    def count(self) -> int:
        return self._index

    @property
    def has_returned(self) -> bool:
        """Whether a draw was given back, and not drawn again yet."""
        return bool(self._returned)

    @property
    def may_wait(self) -> bool:
        """Whether the next draw may have to be waited for: its task comes from an async source."""
        return isinstance(self._tasks, AsyncIterator) and not self._returned and not self._ready

    def __aiter__(self) -> AsyncIterator[GroupRequest]:
        return self

    async def __anext__(self) -> GroupRequest:
        if self._returned:
            return heapq.heappop(self._returned)
        while (draw := await self._draw()).index in self._settled:
            if draw.index % _SKIPPED_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        return draw

    async def _draw(self) -> GroupRequest:
        task = None if self._index < self._wound else await self._pulled()
        index, self._index = self._index, self._index + 1
        recorded = self._recorded.pop(index, None)
        if not self._recorded:
            self._recorded = {}  # a dict never shrinks
        self._report_until(self._index)
        if recorded is not None and (task is None or self.chooses):  # it may choose otherwise now
            self.shares.note_drawn(recorded.tag)
            return recorded
        assert task is not None
        tag = self._next_tag(recorded) if task.tag is None else task.tag
        if tag not in self.shares.tags:
            raise UsageError(f"task {index}: no env has the tag {tag!r}{did_you_mean(tag, self.shares.tags)}")
        self.shares.note_drawn(tag)
        if task.seed is None:
            seed = self.env_seeds.draw(index, tag, recorded)
        else:
            seed = check_int(f"task {index}: seed", task.seed, 0)
        draw = GroupRequest(index, f"{DRAWN}{index}", seed, task.task, tag)
        if recorded is not None and to_plain(_contents(draw)) != to_plain(_contents(recorded)):
            raise UsageError(
                f"tasks differ from those the run started with: task {draw.index} was {recorded.task!r:.100}, and "
                f"is now {draw.task!r:.100}"
            )
        return draw

    def give_back(self, draws: Iterable[GroupRequest]) -> None:
        """Return unused draws; they come first next time."""
        for draw in draws:
            heapq.heappush(self._returned, draw)

    async def _pulled(self) -> Task | None:
        """The source's next task; None at its end, if there is a recorded draw in its place."""
        try:
            return await self._next_task()
        except StopAsyncIteration:
            recorded = self._recorded.get(self._index)
            if recorded is None:
                raise
            if not self.chooses:
                raise UsageError(
                    f"tasks differ from those the run started with: they end before task {recorded.index}, which was "
                    f"{recorded.task!r:.100}"
                ) from None
            return None

    def _report_until(self, drawn: int) -> None:
        """Report what an earlier process had reported by this number of draws."""
        while self._reported and self._reported[0].drawn <= drawn:
            self._report(self._reported.popleft().group)

    def _report(self, group: Group) -> None:
        if self._finished is not None and inspect.isawaitable(returned := self._finished(group)):
            if inspect.iscoroutine(returned):
                returned.close()
            raise UsageError("tasks: finished(group) returned an awaitable, which is not awaited: it must not be async")

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
        """The next task of an async source, pulled in the background: a generator that is cancelled would end."""
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
        """Get a task whenever one is wanted, and no earlier: the source may choose by what has finished by then."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted = anyio.Event()
                self._ready.append(await anext(tasks))
                self._note_arrival()
        except Exception as error:  # noqa: BLE001 (raised where tasks are awaited, the end among them)
            self._failure = error
        finally:
            self._note_arrival()
            if hasattr(tasks, "aclose"):
                with anyio.move_on_after(_CLOSE_GRACE, shield=True):
                    await tasks.aclose()

    def _note_arrival(self) -> None:
        self._arrived.set()
        self._arrived = anyio.Event()

    def _next_tag(self, recorded: GroupRequest | None) -> str:
        is_fixed = recorded is not None and self.shares.depend_on_timing
        return recorded.tag if recorded is not None and is_fixed else self.shares.next_tag()


def _contents(draw: GroupRequest) -> list[Any]:
    return [draw.seed, draw.tag, draw.task]


def as_iterable(tasks: Any) -> Iterable[Any] | None:
    """An iterable of tasks, also of a map-style dataset; None for a text, and for anything else."""
    if isinstance(tasks, Iterable) and not isinstance(tasks, str | bytes):
        return tasks
    if all(hasattr(type(tasks), name) for name in ("__len__", "__getitem__")) and not isinstance(tasks, str | bytes):
        return (tasks[index] for index in range(len(tasks)))
    return None


def _iterator(tasks: Any) -> Iterator[Any] | AsyncIterator[Any]:
    if isinstance(tasks, AsyncIterable):
        return aiter(tasks)
    if (iterable := as_iterable(tasks)) is None:
        raise UsageError(f"tasks={tasks!r:.100} is neither a list of tasks nor another source of them")
    return iter(iterable)
