"""The world in which programs are played: draws, an env, a policy and hooks, all of which follow from seeds."""

import math
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakValueDictionary

import anyio

from asyncrollout import EnvSpec, Generation, Group, Request, Task, Trajectory, UsageError, Verdict
from asyncrollout.seeding import sampling_seed, training_seed
from tests.sampler_programs import Program


class HookError(Exception):
    """What a hook of the caller raises."""


class World:
    """What follows from a program's seeds alone."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tags = [f"env{place}" for place in range(len(program.shares))]
        self._tags: list[str] = []
        self._seeds: list[int] = []
        self._drawn: Counter[str] = Counter()  # without a seed of their own

    def chance(self, *place: object) -> float:
        return sampling_seed(self.program.seed, *place) / 2**31

    def task(self, index: int) -> Any:
        if self.program.is_endless:
            return None
        tag = self.tags[index % len(self.tags)] if index % 4 == 1 else None
        return Task({"number": index}, 1_000 + index if index % 5 == 0 else None, tag)

    def env_seed(self, index: int) -> int:
        """Its task's own, or the next one of its tag."""
        while len(self._seeds) <= index:
            task, tag = self.task(len(self._seeds)), self.tag(len(self._seeds))
            given = None if task is None else task.seed
            if given is None:
                given = training_seed(self.program.seed, tag, self._drawn[tag])
                self._drawn[tag] += 1
            self._seeds.append(given)
        return self._seeds[index]

    def tag(self, index: int) -> str:
        while len(self._tags) <= index:
            task, number = self.task(len(self._tags)), len(self._tags) + 1
            shares, total = self.program.shares, sum(self.program.shares)
            behind = [
                number * share / total - self._tags.count(tag) for share, tag in zip(shares, self.tags, strict=True)
            ]
            own = None if task is None else task.tag
            self._tags.append(self.tags[behind.index(max(behind))] if own is None else own)
        return self._tags[index]

    def actions(self, group: str, member: int, seed: int) -> list[int]:
        _, is_evaluated, index = group.partition("-g")
        chance = sampling_seed(0, "evaluation", "sampling", index) if is_evaluated else None
        base = sampling_seed(sampling_seed(self.program.seed, group) if chance is None else chance, member)
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
        return f"{self.left} left", float(action.split(maxsplit=1)[0]), self.left == 0, False, {}


STEPS = EnvSpec(name="steps", factory="tests.sampler_world:Steps", runs="light")


class Asker:
    """What a shard asks: a client of the one policy, as of a server."""

    def __init__(self, policy: "Scripted") -> None:
        self._policy = policy

    async def generate(self, request: Request) -> Generation:
        return await self._policy.generate(request)


_KNOWN: WeakValueDictionary[int, Any] = WeakValueDictionary()


def _known(key: int) -> Any:
    return _KNOWN[key]


def _asker(key: int) -> Asker:
    return Asker(_KNOWN[key])


class Scripted:
    """A policy whose replies take virtual time, and which knows itself by which weights each one was begun."""

    def __reduce__(self) -> Any:
        _KNOWN[id(self)] = self
        return _asker, (id(self),)

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

    def __reduce__(self) -> Any:
        _KNOWN[id(self)] = self
        return _known, (id(self),)

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

    def tasks(self) -> Any:
        program = self.world.program
        match program.source:
            case "endless":
                return None
            case "list":
                return _Source(self)
            case "async":
                return _slow_source(self)
            case "chooser":
                return _Chooser(self)


class _Source:
    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._next = 0

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
