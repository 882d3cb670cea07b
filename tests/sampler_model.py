"""Random programs for `Rollouts`, a scripted world to play them in, and what they must come to.

Time is virtual, so that a program and its seeds decide what happens when.
"""

import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import anyio

from asyncrollout import (
    ClosedError,
    EnvSpec,
    ExhaustedError,
    Failures,
    Generation,
    Group,
    Request,
    Rollouts,
    Share,
    Task,
    Trajectory,
    UsageError,
    Verdict,
)
from asyncrollout.agents.seeds import sampling_seed
from asyncrollout.filters import BatchFilter
from asyncrollout.journal.batches import RunRecords
from asyncrollout.tasks import task_group
from asyncrollout.trajectories import member_uid

Op = tuple[Any, ...]
"""`(name, *arguments)`: a method of `Player`."""

LONGEST = 20_000.0  # virtual seconds for one operation; a reply takes one on average
ONCE, SHARED = ("collect", "batches", "cancelled"), ("batches", "groups", "cancelled")
TAKES = ("batches", "groups", "collect")


class Violation(AssertionError):
    """Something was not as it must be."""


class HookError(Exception):
    """What a hook of the caller raises."""


def check(is_so: bool, *what: object) -> None:
    if not is_so:
        raise Violation(" ".join(map(str, what)))


@dataclass(frozen=True)
class Program:
    """What `Rollouts` are made of, and what is asked of them."""

    ops: tuple[Op, ...] = ()
    seed: int = 0
    latencies: int = 0
    group_size: int = 2
    groups_in_flight: int = 4
    order: Literal["finish", "start"] = "finish"
    max_lag: int | None = 1
    keep: Literal["all", "group", "batch"] = "all"
    max_rounds: int | None = None
    on_exhausted: Literal["raise", "short", "fill"] = "raise"
    retries: int = 2
    min_valid: int | None = None
    fails: bool = False
    """Whether replies of some members fail: once, or always."""
    score: Literal["none", "trajectory", "group"] = "none"
    source: Literal["endless", "list", "async", "chooser"] = "endless"
    tasks: int = 0
    shares: tuple[float, ...] = (1.0,)
    journal: bool = False
    broken: tuple[str, int] | None = None
    """Which hook ("filter", "score", "tasks") raises at which draw, once."""

    @property
    def is_endless(self) -> bool:
        return self.source == "endless"

    @property
    def takes(self) -> list[Op]:
        """All operations that give groups, wherever they are."""
        return [op for op in _flat(self.ops) if op[0] in TAKES]

    @property
    def names(self) -> set[str]:
        return {op[0] for op in _flat(self.ops)}

    @property
    def ahead(self) -> int:
        return 1 if self.max_lag is None else self.max_lag

    @property
    def is_once(self) -> bool:
        """Whether each take stands for itself: what is beyond it is cancelled."""
        return all(op[0] == "collect" or (op[0] == "batches" and self.max_lag == 0) for op in self.takes)

    @property
    def is_in_start_order(self) -> bool:
        """Whether what is delivered follows from the draws alone."""
        return self.is_once or (self.order == "start" and all(op[0] == "batches" for op in self.takes) and self.is_even)

    @property
    def is_even(self) -> bool:
        return len({op[1] for op in self.takes}) <= 1

    @property
    def may_be_stale(self) -> bool:
        """Whether weights may change while something plays that is delivered later."""
        if "update" not in self.names or self.max_lag is None:
            return False
        inside = {op[0] for beside in _flat(self.ops) if beside[0] == "beside" for op in beside[2]}
        may_be_left_over = self.keep == "batch" or self.max_rounds is not None or self.is_broken_off
        return not self.is_once or may_be_left_over or "update" in inside

    @property
    def is_broken_off(self) -> bool:
        """Whether takes end before they have what they wanted, by something else than the draws."""
        return self.broken is not None or bool(self.names & {"cancelled", "closing", "reopen"})


def _flat(ops: tuple[Op, ...]) -> Iterator[Op]:
    for op in ops:
        yield op
        for part in op[1:]:
            if isinstance(part, tuple) and part:
                yield from _flat(part if isinstance(part[0], tuple) else (part,))


# What is to be expected of each draw, each in the simplest way.


class World:
    """What follows from a program's seeds alone."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tags = [f"env{place}" for place in range(len(program.shares))]
        self._tags: list[str] = []

    def chance(self, *place: object) -> float:
        return sampling_seed(self.program.seed, *place) / 2**31

    def task(self, index: int) -> Any:
        if self.program.is_endless:
            return None
        tag = self.tags[index % len(self.tags)] if index % 4 == 1 else None
        return Task({"number": index}, 1_000 + index if index % 5 == 0 else None, tag)

    def env_seed(self, index: int) -> int:
        task = self.task(index)
        given = None if task is None else task.seed
        return sampling_seed(self.program.seed, "env", index) if given is None else given

    def tag(self, index: int) -> str:
        while len(self._tags) <= index:
            task, number = self.task(len(self._tags)), len(self._tags) + 1
            shares, total = self.program.shares, sum(self.program.shares)
            behind = [number * share / total - self._tags.count(tag) for share, tag in zip(shares, self.tags, strict=True)]
            own = None if task is None else task.tag
            self._tags.append(self.tags[behind.index(max(behind))] if own is None else own)
        return self._tags[index]

    def actions(self, group: str, member: int, seed: int) -> list[int]:
        base = sampling_seed(sampling_seed(self.program.seed, group), member)
        return [sampling_seed(base, turn) % 3 for turn in range(length(seed))]

    def failures(self, uid: str) -> float:
        """How often a member fails, in all: one of a group at most, so that its retries never depend on timing."""
        group, _, member = uid.rpartition(".")
        if not self.program.fails or group.startswith("eval") or member != "0" or self.chance("fails", group) > 0.3:
            return 0
        return math.inf if not self.program.retries or self.chance("always", group) < 0.5 else 1

    def is_failed(self, index: int, member: int) -> bool:
        return self.failures(f"g{index}.{member}") > self.program.retries

    def is_dropped_as_failed(self, index: int) -> bool:
        size, least = self.program.group_size, self.program.min_valid
        failed = sum(self.is_failed(index, member) for member in range(size))
        return failed > 0 and (least is None or size - failed < least)

    def is_kept(self, index: int) -> bool:
        """What the filter says of a group by itself."""
        return self.program.keep == "all" or self.chance("keep", index) < 0.4

    def are_kept(self, indices: list[int]) -> list[bool]:
        """What a filter of batches says: the better half stays."""
        ranked = sorted(indices, key=lambda index: self.chance("rank", index))
        return [index in ranked[: (len(ranked) + 1) // 2] for index in indices]


def length(seed: int) -> int:
    return 1 + seed % 4


class Steps:
    """An episode of some steps, whose rewards are its actions."""

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.left = length(seed)
        return f"episode {seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return f"{self.left} left", float(action.split()[0]), self.left == 0, False, {}


STEPS = EnvSpec(name="steps", factory="tests.sampler_model:Steps", runs="light")


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


# The world that is played in.


class Scripted:
    """A policy whose replies take virtual time, and which knows itself by which weights each one was begun."""

    def __init__(self, world: World, loaded: int) -> None:
        self.loaded = loaded
        self.updating: str | None = None
        self.calls = self.under_way = self.most_under_way = 0
        self.begun: Counter[str] = Counter()
        """How often each rollout was begun."""
        self.wrong: list[str] = []
        self._world = world
        self._asked: Counter[tuple[str, int]] = Counter()
        self._failed: Counter[str] = Counter()

    async def generate(self, request: Request) -> Generation:
        uid, turn, begun = request.session, request.turn, self.loaded
        if self.updating is not None:
            self.wrong.append(f"turn {turn} of {uid} began while an update ({self.updating}) was under way")
        self.calls += 1
        self.begun[uid] += turn == 0
        self._asked[uid, turn] += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await anyio.sleep(self._seconds(uid, turn, self._asked[uid, turn]))
        finally:
            self.under_way -= 1
        if self._failed[uid] < self._world.failures(uid):
            self._failed[uid] += 1
            raise RuntimeError("no reply")
        assert request.sampling.seed is not None
        return Generation(f"{request.sampling.seed % 3} by weights {begun}")

    def _seconds(self, *place: object) -> float:
        """A second on average; one of ten groups is much slower than others."""
        rng = random.Random(f"{self._world.program.latencies} {place}")
        slow = random.Random(f"{self._world.program.latencies} {str(place[0]).partition('.')[0]}").random() < 0.1
        return rng.expovariate(1.0) * (20.0 if slow else 0.5)


class Hooks:
    """The filter, the score and the source of tasks; what they heard, and what they raised."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.verdicts: list[tuple[str, bool]] = []
        self.finished: list[Group] = []
        self.raised: list[HookError] = []
        self.rounds: list[int] = []

    def _raise_once(self, hook: str, index: int) -> None:
        if self.world.program.broken == (hook, index) and not self.raised:
            self.raised.append(HookError(f"the {hook} breaks at {index}"))
            raise self.raised[-1]

    def keep(self, group: Group) -> Verdict:
        index = index_of(group)
        self._raise_once("filter", index)
        keep = self.world.is_kept(index)
        self.verdicts.append((group.id, keep))
        return Verdict(keep, "" if keep else "dull")

    def keep_best(self, groups: Any) -> list[Verdict]:
        self.rounds.append(len(groups))
        for group in groups:
            self._raise_once("filter", index_of(group))
        kept = self.world.are_kept([index_of(group) for group in groups])
        self.verdicts += [(group.id, keep) for group, keep in zip(groups, kept, strict=True)]
        return [Verdict(keep, "" if keep else "outranked") for keep in kept]

    async def score(self, trajectory: Trajectory) -> float:
        await anyio.sleep(0.1)
        self._break_score(trajectory.uid.partition(".")[0])
        return trajectory.reward + 100

    async def score_group(self, group: Group) -> list[float]:
        await anyio.sleep(0.1)
        self._break_score(group.id)
        return [member.reward + 100 for member in group.trajectories]

    def _break_score(self, group: str) -> None:
        if not group.startswith("eval"):
            try:
                self._raise_once("score", int(group[1:]))
            except HookError as error:
                raise UsageError(str(error)) from error  # not a failure of the rollout: the hook is wrong

    def tasks(self, begin: int) -> Any:
        program = self.world.program
        match program.source:
            case "endless":
                return None
            case "list":
                return _Source(self, 0)
            case "async":
                return _slow_source(self)
            case "chooser":
                return _Chooser(self, begin)


class _Source:
    def __init__(self, hooks: Hooks, begin: int) -> None:
        self._hooks = hooks
        self._next = begin

    def __iter__(self) -> "_Source":
        return self

    def __next__(self) -> Any:
        if self._next >= self._hooks.world.program.tasks:
            raise StopIteration
        self._hooks._raise_once("tasks", self._next)
        self._next += 1
        return self._hooks.world.task(self._next - 1)


class _Chooser(_Source):
    def finished(self, group: Group) -> None:
        self._hooks.finished.append(group)


async def _slow_source(hooks: Hooks) -> AsyncIterator[Any]:
    for index in range(hooks.world.program.tasks):
        await anyio.sleep(0.2)
        yield hooks.world.task(index)


def index_of(group: Group) -> int:
    return int(group.id[1:])


# Playing a program, with everything checked that can be at once.


@dataclass
class Handed:
    """A batch that somebody has; or a group, of which `groups` gives one at a time."""

    op: Op
    indices: list[int]
    groups: list[Group]
    batch: int | None = None


@dataclass
class Player:
    """Plays one program; what is wrong is raised as a `Violation`."""

    program: Program
    directory: Path
    handed: list[Handed] = field(default_factory=list)
    outcomes: list[Any] = field(default_factory=list)
    """What each operation came to, in order: indices, or what was raised."""
    rollouts: Rollouts | None = None

    def __post_init__(self) -> None:
        self.world = World(self.program)
        self.hooks = Hooks(self.world)
        self.policy = Scripted(self.world, 0)
        self.told: list[BaseException] = []
        self.again: list[Handed] = []
        self.lost: list[Handed] = []
        self.dropped: set[int] = set()
        self.evaluated = self.first = 0
        self.ended = False
        self.sessions = 0
        self.stale = 0

    @property
    def run(self) -> Rollouts:
        assert self.rollouts is not None
        return self.rollouts

    @cached_property
    def run_dir(self) -> Path | None:
        return self.directory / "run" if self.program.journal else None

    async def play(self) -> None:
        """All operations, then whatever is left."""
        resume: bool | int = False
        rest = list(self.program.ops)
        while rest is not None:
            rest, resume = await self._session(rest, resume)
        self._check_all()
        if self.run_dir is not None:
            await self._read_back()

    def _make(self, resume: bool | int) -> Rollouts:
        program, hooks = self.program, self.hooks
        drawn = 0
        if resume is not False and self.run_dir is not None:
            drawn = sum('"drawn"' in line for line in (self.run_dir / "journal.jsonl").read_text().splitlines())
        keep = {"all": None, "group": hooks.keep, "batch": BatchFilter(hooks.keep_best)}[program.keep]
        score = {"none": None, "trajectory": hooks.score, "group": hooks.score_group}[program.score]
        return Rollouts(
            [Share(STEPS, tag, share) for tag, share in zip(self.world.tags, program.shares, strict=True)],
            policy=self.policy,
            group_size=program.group_size,
            max_in_flight=program.group_size * program.groups_in_flight,
            keep=keep,
            seed=program.seed,
            tasks=hooks.tasks(drawn),
            score=score,
            failures=Failures(program.retries, program.min_valid),
            order=program.order,
            max_lag=program.max_lag,
            max_num_gen_batches=program.max_rounds,
            on_exhausted=program.on_exhausted,
            run_dir=self.run_dir,
            resume=resume,
        )

    async def _session(self, ops: list[Op], resume: bool | int) -> tuple[Any, bool | int]:
        """Play until it is closed: what is left of the program, and how to resume it."""
        loaded = self.policy.loaded
        self.rollouts = self._make(resume)
        self.first, self.evaluated = len(self.handed), 0
        self.sessions += 1
        rest: list[Op] | None = None
        how: bool | int = False
        async with task_group() as outside:
            async with self.run:
                if resume is not False:
                    check(self.run.version == loaded, "resumed with version", self.run.version, "and not", loaded)
                while ops:
                    op, ops = ops[0], ops[1:]
                    if op[0] == "reopen":
                        if self.run_dir is None:
                            continue
                        rest, how = ops, self._resume_at(op[1])
                        break
                    if op[0] == "closing":
                        outside.start_soon(self._take_while_closing, op[1])
                        await anyio.sleep(op[2])
                        rest, how = (ops, True) if self.run_dir is not None else (None, False)
                        break
                    with anyio.move_on_after(10 * LONGEST) as bound:
                        await getattr(self, op[0])(*op[1:])
                    check(not bound.cancelled_caught, op, "has no end")
                    self._check_now()
                else:
                    await self._take_the_rest()
                    self._check_now()
                self._check_counts()
        self._check_closed()
        return rest, how

    def _resume_at(self, how: str) -> bool | int:
        batches = [one for one in self.handed if one.batch is not None]
        if how == "rewind" and len(batches) == len(self.handed) and batches and "update" not in self.program.names:
            count = (batches[-1].batch or 0) // 2
            self.again = [one for one in batches if (one.batch or 0) >= count]
            self.handed = [one for one in batches if (one.batch or 0) < count]
            return count
        return True if how == "on" else self.run.next_batch

    # Operations.

    async def batches(self, groups: int) -> None:
        await self._take(("batches", groups))

    async def collect(self, groups: int) -> None:
        await self._take(("collect", groups))

    async def groups(self, count: int) -> None:
        for _ in range(count):
            await self._take(("groups", 1))

    async def train(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def idle(self) -> None:
        """So long that everything comes to a rest which does not wait for anybody."""
        calls = self.policy.calls
        await anyio.sleep(LONGEST / 10)
        check(self.policy.under_way == 0, "something plays without end while nobody asks")
        if self.program.is_once:
            check(self.policy.calls == calls, "replies were asked for while nobody wanted groups, and max_lag=0")
        shared = [op for op in self.program.takes if op[0] != "collect"]
        if self.program.keep == "all" and not self.program.fails and shared and self.program.max_lag != 0:
            at_once = self.program.groups_in_flight
            begun = self.program.ahead + ("cancelled" in self.program.names)  # what a taker who left had wanted
            most = max(op[1] if op[0] == "batches" else at_once for op in shared) * begun
            buffered = self.run.stats().buffered_groups
            check(buffered <= most, buffered, "groups were played ahead, and not", most)

    async def evaluate(self, tasks: int, k: int) -> None:
        evaluation = await self.run.evaluate(tasks, k=k)
        check(len(evaluation.groups) == tasks, "evaluate gave", len(evaluation.groups), "groups")
        for group in evaluation.groups:
            check(len(group.trajectories) == k, group.id, "has", len(group.trajectories), "members")
            self._check_members(group)
        self.evaluated += tasks * k

    async def update(self, by: int, mode: Any, seconds: float, fails: bool = False) -> None:
        """New weights, which are `seconds` on their way; versions may jump."""
        version = self.run.version + by
        with suppress(HookError):
            async with self.run.weight_update(version, mode):
                check(mode == "continue" or not self.policy.under_way, "replies are under way within an update by", mode)
                self.policy.updating = mode
                await anyio.sleep(seconds)
                self.policy.updating = None
                if fails:
                    raise HookError("the push of the weights failed")
                self.policy.loaded = version
        check(self.run.version == self.policy.loaded, "version", self.run.version, "loaded", self.policy.loaded)

    async def cancelled(self, op: Op, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await getattr(self, op[0])(*op[1:])

    async def beside(self, op: Op, others: tuple[Op, ...]) -> None:
        """One operation, and others that begin while it is under way."""
        failures: list[Exception] = []

        async def do(op: Op) -> None:
            try:
                await getattr(self, op[0])(*op[1:])
            except Exception as failure:
                failures.append(failure)

        async with task_group() as tasks:
            tasks.start_soon(do, op)
            await anyio.sleep(0.01)
            for other in others:
                await do(other)
        if failures:
            raise failures[0]

    async def _take_while_closing(self, op: Op) -> None:
        with suppress(ClosedError):
            await self._take((op[0], 1 if op[0] == "groups" else op[1]), may_be_closed=True)

    async def _take(self, op: Op, *, may_be_closed: bool = False) -> bool:
        """Whether anything was taken."""
        try:
            with anyio.move_on_after(LONGEST) as bound:
                handed = await self._taken(op)
            check(not bound.cancelled_caught, op, "has no end")
        except ExhaustedError as error:
            check(self.program.max_rounds is not None, "there is no bound, and yet", error)
            check(self.program.on_exhausted != "short" or "0 of" in str(error), error)
            self.outcomes.append((op, "exhausted"))
            return False
        except StopAsyncIteration:
            self._check_end(op)
            return False
        except ClosedError:
            check(may_be_closed, "closed while", op)
            raise
        except UsageError as error:
            if "is at its end" in str(error):
                self._check_end(op)
                return False
            self._tell(op, error)
            return False
        except HookError as error:
            self._tell(op, error)
            return False
        self._check_handed(handed)
        self.handed.append(handed)
        self.outcomes.append((op, handed.indices))
        return True

    async def _taken(self, op: Op) -> Handed:
        name, groups = op
        if name == "groups":
            group = await anext(self.run.groups())
            return Handed(op, [index_of(group)], [group])
        batch = await (self.run.collect(groups) if name == "collect" else anext(self.run.batches(groups)))
        return Handed(op, [index_of(group) for group in batch.groups], batch.groups, batch.index)

    def _tell(self, op: Op, error: BaseException) -> None:
        """A failure of a hook, which the one has who takes."""
        check(any(str(raised) in str(error) for raised in self.hooks.raised), op, "raised", repr(error))
        self.told.append(error)
        self.outcomes.append((op, "a hook failed"))

    def _check_end(self, op: Op) -> None:
        self.outcomes.append((op, "the end"))
        check(not self.program.is_endless, op, "is at the end of tasks that have none")

    async def _take_the_rest(self) -> None:
        """Of tasks that end: nothing is lost, if all of it comes to somebody."""
        if self.program.is_endless or not self.program.takes:
            return
        used = dict(op for op in self.program.takes if op[0] != "collect")
        failed = 0
        for name, size in (*used.items(), ("collect", 3)):  # each may have something that the others do not see
            op = (name, 1 if name == "groups" else size)
            while self.outcomes[-1:] != [(op, "the end")]:
                await self._take(op)
                failed += self.outcomes[-1][1] in ("exhausted", "a hook failed")
                check(failed <= 2 + 2 * self.program.tasks, "there are only failures:", self.outcomes[-3:])
            self.outcomes.append(("rest",))
        self.ended = True

    # Checks.

    def _check_handed(self, handed: Handed) -> None:
        name, wanted = handed.op
        if self.again:
            first = self.again.pop(0)
            check(shown(first.groups) == shown(handed.groups), "batch", first.batch, "is not the same again")
            return
        check(bool(handed.groups), handed.op, "gave an empty batch")
        check(len(handed.indices) <= wanted, handed.op, "gave", handed.indices)
        if len(handed.indices) < wanted:
            may = not self.program.is_endless or (self.program.max_rounds and self.program.on_exhausted != "raise")
            check(bool(may), handed.op, "gave too few:", handed.indices)
        if self.program.journal or name != "groups":
            numbers = [one.batch for one in (*self.handed, handed) if one.batch is not None]
            check(len({*numbers}) == len(numbers), "two batches have one number:", numbers)
        self._check_lag(handed)
        for group in handed.groups:
            self._check_group(group)
        before = {index for one in self.handed for index in one.indices}
        twice = [index for index in handed.indices if index in before or handed.indices.count(index) > 1]
        check(not twice, handed.op, "gave once more", twice)
        filled = [group.verdict is not None and not group.verdict.keep for group in handed.groups]
        if name == "collect" or (name == "batches" and (self.program.max_lag == 0 or self.program.order == "start")):
            kept = [index for index, is_filled in zip(handed.indices, filled, strict=True) if not is_filled]
            check(kept == sorted(kept), handed.op, "is not in start order:", handed.indices)

    def _check_lag(self, handed: Handed) -> None:
        if self.program.max_lag is None:
            return
        for group in handed.groups:
            lag = self.run.version - (self.run.version if group.version is None else group.version)
            check(lag <= self.program.max_lag, handed.op, "gave", group.id, "which is", lag, "versions behind")

    def _check_group(self, group: Group) -> None:
        index, world, size = index_of(group), self.world, self.program.group_size
        check([one.uid for one in group.trajectories] == [member_uid(group.id, at) for at in range(size)], group.id)
        check({one.seed for one in group.trajectories} == {world.env_seed(index)}, group.id, "has another seed")
        task = world.task(index)
        check(all(one.task == (task and task.task) for one in group.trajectories), group.id, "has another task")
        check(group.tag == world.tag(index), group.id, "is of", group.tag, "and not of", world.tag(index))
        check(not world.is_dropped_as_failed(index), group.id, "has too many members that failed")
        for member, one in enumerate(group.trajectories):
            check(one.valid != world.is_failed(index, member), one.uid, "valid:", one.valid)
        check(group.verdict is not None, group.id, "was not judged")
        assert group.verdict is not None
        check(group.verdict.keep or self.program.on_exhausted == "fill", group.id, "was dropped", group.verdict)
        if self.program.keep != "batch":
            check(group.verdict.keep == world.is_kept(index), group.id, "was not judged so")
        self._check_members(group)

    def _check_members(self, group: Group) -> None:
        for one in group.trajectories:
            if not one.valid:
                continue
            actions = self.world.actions(group.id, one.member, one.seed)
            check([int(turn.reply.split()[0]) for turn in one.turns] == actions, one.uid, "is another rollout")
            scored = 0 if self.program.score == "none" else 100
            check(one.reward == sum(actions) + scored, one.uid, "has the reward", one.reward)
            for place, turn in enumerate(one.turns):
                begun = int(turn.reply.split()[-1])
                check(turn.version == begun, one.uid, "turn", place, "by", begun, "is stamped", turn.version)

    def _check_now(self) -> None:
        """At every moment."""
        ledger = self.run.ledger
        check(ledger.balanced, ledger)
        check(not self.policy.wrong, *self.policy.wrong)
        most = self.program.group_size * self.program.groups_in_flight
        check(self.policy.most_under_way <= most, self.policy.most_under_way, "rollouts in flight, and not", most)

    def _check_counts(self) -> None:
        """While nobody takes anything."""
        mine = self.handed[self.first :]
        if self.run.next_batch == len(self.handed) and not self.again and "rewind" not in str(self.program.ops):
            delivered = sum(len(group.valid) for one in mine for group in one.groups) + self.evaluated
            ends = self.run.ledger.ends["delivered"]
            check(ends == delivered, "the ledger has", ends, "delivered, and not", delivered)
            figures = self.run.figures()
            check(figures.batches == len(self.handed), "figures:", figures.batches, "batches of", len(self.handed))
            count = sum(len(one.groups) for one in self.handed)
            check(figures.delivered == count, "figures:", figures.delivered, "groups delivered of", count)
        if self.program.source == "chooser" and self.sessions == 1:
            figures, heard = self.run.figures(), self.hooks.finished
            judged = [group.verdict for group in heard if group.verdict is not None]
            stale_kept = figures.stale - (len(heard) - len(judged))
            kept = sum(verdict.keep for verdict in judged) - stale_kept
            check(figures.groups == len(judged), "figures:", figures.groups, "groups, and", len(judged), "judged")
            check(figures.kept == kept, "figures:", figures.kept, "groups kept, and not", kept)
        stats = self.run.stats()
        if self.program.keep != "all" and self.sessions == 1:
            dropped = sum(not keep for _, keep in self.hooks.verdicts)
            told = sum(count for reason, count in stats.dropped.items() if reason != "failed")
            check(told == dropped, "stats:", stats.dropped, "and the filter dropped", dropped)
        if self.program.max_lag != 0 and not (self.program.names & {"collect"}) and self.program.broken is None:
            ends = self.run.ledger.ends["cancelled"]
            check(not ends, ends, "rollouts were cancelled, and nobody gave up")
        self.stale += stats.ends["stale"]

    def _check_closed(self) -> None:
        ledger = self.run.ledger
        check(ledger.balanced and not ledger.open, "after the end:", ledger)
        check(self.policy.under_way == 0, "replies are still under way after the end")

    def _check_all(self) -> None:
        """What can be told only in the end."""
        delivered = {index for one in self.handed for index in one.indices}
        if self.ended:
            self._check_nothing_lost(delivered)
        check(len(self.told) <= len(self.hooks.raised), "a failure was told twice:", self.told)
        if self.ended:
            check(len(self.told) == len(self.hooks.raised), "swallowed:", self.hooks.raised)
        if self.program.source == "chooser" and self.sessions == 1:
            heard = Counter(group.id for group in self.hooks.finished)
            often = [name for name, count in heard.items() if count > 1]
            check(not often, "the source heard more than once of", often)
            check({f"g{index}" for index in delivered} <= {*heard}, "the source has not heard of all")
        if self.program.is_in_start_order and not self.program.may_be_stale:
            self._compare_with_reference()

    def _check_nothing_lost(self, delivered: set[int]) -> None:
        dropped = {int(name[1:]) for name, keep in self.hooks.verdicts if not keep}
        failed = {index for index in range(self.program.tasks) if self.world.is_dropped_as_failed(index)}
        missing = {*range(self.program.tasks)} - delivered - dropped - failed
        if not self.program.may_be_stale:
            check(not missing, "lost:", missing)
            return
        rollouts = sum(not self.world.is_failed(index, m) for index in missing for m in range(self.program.group_size))
        check(rollouts <= self.stale, "lost:", missing, "of which", self.stale, "rollouts were stale")

    def _compare_with_reference(self) -> None:
        """In start order everything follows from the draws."""
        takes = [one for one in self.outcomes if one[1:] not in ((), ("a hook failed",))]
        if self.program.is_broken_off:
            self._compare_all(takes)
            return
        reference = Reference(self.world)
        for op, came in takes:
            once = op[0] == "collect" or self.program.max_lag == 0
            expected = reference.take(op[1], once=once)
            told = "exhausted" if expected is None else expected or "the end"
            check(came == told, op, "gave", came, "and not", told)
            if came == "the end":
                break

    def _compare_all(self, takes: list[Any]) -> None:
        """Where a batch ends may depend on what was cancelled; not what comes after what."""
        if self.program.keep == "batch" or self.program.on_exhausted != "raise":
            return
        came = [index for _, indices in takes if isinstance(indices, list) for index in indices]
        kept = [
            index
            for index in range(max(came, default=-1) + 1)
            if self.world.is_kept(index) and not self.world.is_dropped_as_failed(index)
        ]
        check(came == kept, "delivered in all:", came, "and not", kept)

    async def _read_back(self) -> None:
        """The journal tells the same; and a run that is resumed at its beginning gives it again, and asks nobody."""
        assert self.run_dir is not None
        batches = [one for one in self.handed if one.batch is not None]
        recorded = dict(RunRecords(self.run_dir).batches())
        for one in batches:
            assert one.batch is not None
            check(shown(recorded[one.batch]) == shown(one.groups), "the journal has another batch", one.batch)
        calls = self.policy.calls
        async with self._make(0) as again:
            for one in self.handed:
                with anyio.move_on_after(LONGEST) as scope:
                    batch = await anext(again.batches(one.op[1]))
                check(not scope.cancelled_caught, "batch", one.batch, "does not come again")
                check(shown(batch.groups) == shown(one.groups), "batch", one.batch, "is another one when resumed at 0")
        check(self.policy.calls == calls, "recorded replies were asked for again")


def shown(groups: list[Group]) -> list[Any]:
    """All of it; errors are compared by their texts."""
    return [
        (group.id, group.tag, group.verdict, [(_plain(one), repr(one.error)) for one in group.trajectories])
        for group in groups
    ]


def _plain(trajectory: Trajectory) -> list[Any]:
    return [getattr(trajectory, name) for name in trajectory.__struct_fields__ if name not in ("error",)]


def other_latencies(program: Program) -> Program:
    return replace(program, latencies=program.latencies + 1)
