"""Plays programs in pools of every backend, each op also on a plain object, and compares what comes of both.

What may differ from the plain object, and nothing else:

- `EnvCrashed`, after a home was lost: for an env that is not replayable, or failed; for one with a call that cannot be
  repeated (cancelled, made after a failure, made in an episode that cannot be replayed); and if workers were killed
  five times during one call. A restore that failed has given up the old env, which is as good as lost.
- `EnvDiverged`, for an env that shows which object it is, from any call that makes it anew; no episode may show two.
- `UsageError`, and nothing else changes, for a fork or snapshot of an env with a call that cannot be repeated; of one
  that is not replayable, unless its own snapshot holds everything; to or at a remote pool, of an env with snapshots of
  its own; into a file, of values that only a pickle can hold. Also if a remote pool is given an env's own state.
- After a reset or a restore that failed, an env has an earlier episode or none.
- A call that was cancelled may have been made or not; after a restore that was, the env may be the old or the new one.
"""

import contextlib
import copy
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import numpy as np

from asyncrollout import EnvHandle, Observation, Outcome, RolloutError
from tests.envs.pool_model import ODD, SAVING, SPECS
from tests.pool_places import Place, disturb
from tests.pool_programs import Op, Part, Program
from tests.pool_reference import Reference, alike

PATIENCE = 60.0  # seconds for one op, a guard against hanging
EPISODIC = ("score", "nudge", "look", "hint")  # calls that need an episode


class Failed(NamedTuple):
    """An error, as far as it must be the same everywhere."""

    kind: str
    remote: str | None = None


class Kept(NamedTuple):
    """A snapshot, and what it should hold."""

    snapshot: bytes
    worlds: list[Reference]
    phase: str
    unkept: bool
    place: str


class Slot:
    """An env of a pool, and the plain objects of which it may be one: more than one after a call that was cancelled."""

    def __init__(self, handle: EnvHandle, place: Place, worlds: list[Reference]) -> None:
        self.handle, self.place, self.worlds = handle, place, worlds
        self.phase = "new"
        self.unkept = False  # a call of this episode may have changed the env for good, and nobody said whether
        self.failed = False  # the env saw a step or reset that failed
        self.is_blank = False  # a reset or restore failed: whether an earlier episode is left, nobody can say
        self.forgotten = False  # it was called in a way that cannot be repeated
        self.losses = place.losses  # at the beginning of the last op that it came through

    @property
    def has_episode(self) -> bool:
        return self.phase in ("running", "ended")


class Mismatch(AssertionError):
    """What the pool gave is not what a plain object gives."""


class User:
    """One part of a program. Each op is a method."""

    def __init__(self, part: Part, places: dict[str, Place], diary: Path) -> None:
        self.part, self.places = part, places
        self.spec = SPECS[part.env]
        self.kwargs = {**part.kwargs, "diary": str(diary)}
        self.diary = diary
        self.slots: dict[int, Slot] = {}
        self.kept: list[Kept] = []
        self.made = self.steps = 0  # as many envs as may have been asked for, and steps
        self.trail: list[str] = []
        self._limit: float | None = None  # seconds until the op is cancelled
        self._was_cancelled = False
        self._losses: dict[str, int] = {}  # when the op began

    async def play(self) -> None:
        for op in self.part.ops:
            self.trail.append(f"{op}")
            await self.do(op)
            self.trail[-1] += " cancelled" if self._was_cancelled else ""
        with anyio.fail_after(PATIENCE):
            for slot in self.slots.values():
                await slot.handle.close()

    async def do(self, op: Op) -> None:
        self._was_cancelled = False
        with anyio.fail_after(2 * PATIENCE):
            await getattr(self, op[0])(*op[1:])

    async def cancelled(self, op: Op, seconds: float) -> None:
        self._limit = seconds
        try:
            await self.do(op)
        finally:
            self._limit = None

    async def disturb(self, place: str, kind: str, number: int) -> None:
        await disturb(self.places[place], kind, number)

    # Ops.

    async def open(self, at: int) -> Slot | None:
        """The env of a slot, opened if there is none."""
        slot = self.slots.get(at)
        if slot is None:
            place = self.places[self.part.place]
            self.made += 1
            got = await self._tried(lambda: _opened(place, self.part.env, self.kwargs))
            if self._was_cancelled:
                return None
            if isinstance(got, Failed):
                raise Mismatch(f"it cannot be opened: {got}")
            slot = self.slots[at] = Slot(got, place, [Reference(self.part.env, self.kwargs)])
            slot.losses = self._losses[place.name]
        return slot

    async def close(self, at: int) -> None:
        if slot := self.slots.get(at):
            await slot.handle.close()
            if slot.phase == "closed":
                del self.slots[at]
            slot.phase = "closed"

    async def reset(self, at: int, seed: int, task: Any, member: int) -> None:
        slot = await self.open(at)
        if slot is None:
            return
        self.made += slot.phase == "failed"
        task = copy.deepcopy(task)
        got = await self._tried(lambda: slot.handle.reset(seed=seed, task=task, member=member))
        if slot.phase == "closed":
            self._demand(got, Failed("ClosedError"))
            return
        self._end_episode(slot)
        if self._was_cancelled:
            slot.phase = "unsure"
            return
        if isinstance(got, Outcome) and self.part.kwargs.get("drifts"):
            _be_the_same(slot.worlds, got)
        await self._compare(slot, got, lambda world: world.reset(seed, task, member))
        slot.is_blank = slot.phase == "failed"

    async def step(self, at: int, action: Any) -> None:
        slot = await self.open(at)
        if slot is None:
            return
        self.steps += slot.phase == "running"
        given = copy.deepcopy(action)
        got = await self._tried(lambda: slot.handle.step(given))
        if isinstance(given, list):
            given.append("changed afterwards")
        if slot.phase != "running":
            self._demand(got, _misuse(slot))
        elif self._was_cancelled:
            slot.phase = "unsure"
        else:
            await self._compare(slot, got, lambda world: world.step(action))

    async def run(self, at: int, count: int, action: Any) -> None:
        """Quick steps in a row, until the episode ends."""
        while count and (slot := await self.open(at)) and slot.phase == "running":
            await self.step(at, action)
            count -= 1

    async def call(self, at: int, method: str, args: tuple[Any, ...], keep: bool | None) -> None:
        slot = await self.open(at)
        if slot is None:
            return
        got = await self._tried(lambda: slot.handle.call(method, *copy.deepcopy(args), keep=keep))
        if slot.phase in ("unsure", "closed"):
            self._demand(got, _misuse(slot))
        elif self._was_cancelled:
            await self._take_cancelled_call(slot, method, args, keep)
        elif not slot.worlds[0].offers(method):
            self._demand_or_crash(slot, got, Failed("UsageError"))
        else:
            if not slot.is_blank or method not in EPISODIC:
                await self._compare(slot, got, lambda world: world.call(method, args), is_read=True)
            elif isinstance(got, Failed) and got.kind != "EnvError":
                self._demand_or_crash(slot, got, None)
            else:
                await self._take_unsure_call(slot, method, args)
                slot.losses = self._losses[slot.place.name]
            if not _is_gone(got):  # else it was not made in the env that comes next
                self._note_call(slot, method, keep, raised=isinstance(got, Failed))

    async def _take_cancelled_call(self, slot: Slot, method: str, args: tuple[Any, ...], keep: bool | None) -> None:
        slot.phase = "unsure"
        if slot.worlds[0].offers(method):
            await self._take_unsure_call(slot, method, args)
        if keep is not False:
            slot.forgotten = True

    async def _take_unsure_call(self, slot: Slot, method: str, args: tuple[Any, ...]) -> None:
        """It was made, or not."""
        for world in [*slot.worlds]:
            made = world.copied()
            with contextlib.suppress(Exception):
                await made.call(method, args)
            slot.worlds.append(made)

    def _note_call(self, slot: Slot, method: str, keep: bool | None, *, raised: bool) -> None:
        """What the pool must remember of a call that was made."""
        if method == "level":  # an attribute is only read
            return
        is_unsaid = keep is None or (keep and raised)
        if slot.failed:
            slot.forgotten |= is_unsaid
        elif slot.has_episode:
            slot.unkept |= is_unsaid

    async def render(self, at: int) -> None:
        slot = await self.open(at)
        if slot is None:
            return
        got = await self._tried(slot.handle.render)
        if slot.phase in ("unsure", "closed"):
            self._demand(got, _misuse(slot))
        elif not self._was_cancelled and not slot.is_blank:
            await self._compare(slot, got, lambda world: world.render(), is_read=True)

    async def spoil(self, at: int) -> None:
        """What a user does to his copy is his own business."""
        slot = self.slots.get(at)
        if slot is not None and slot.has_episode:
            _spoil(slot.handle.outcome)

    async def snapshot(self, at: int) -> None:
        slot = await self.open(at)
        if slot is None:
            return
        got = await self._tried(slot.handle.snapshot)
        if self._was_cancelled:
            return
        if not slot.has_episode:
            self._demand(got, _misuse(slot))
        elif isinstance(got, Failed):
            self._check_refused(slot, got, slot.place, is_file=True)
        elif slot.forgotten:
            raise Mismatch("a snapshot was taken of an env that cannot be made again")
        else:
            worlds = [world.copied() for world in slot.worlds]
            self.kept.append(Kept(got, worlds, slot.phase, slot.unkept, slot.place.name))

    async def restore(self, at: int, number: int) -> None:
        slot = await self.open(at)
        if slot is None or not self.kept:
            return
        kept = self.kept[number % len(self.kept)]
        self.made += 2
        got = await self._tried(lambda: slot.handle.restore(kept.snapshot))
        if slot.phase == "closed":
            self._demand(got, _misuse(slot))
        elif self._was_cancelled:
            slot.phase = "unsure"
            slot.worlds += [world.copied() for world in kept.worlds]
            slot.losses = self._losses[slot.place.name] - 1  # the old env may be gone
        elif isinstance(got, Failed):
            refused = got.kind == "UsageError" and slot.place.name == "remote" and kept.place != "remote"
            if not refused or not self._saves:
                self._demand_or_crash(slot, got, None)
                self._end_episode(slot)
                slot.phase, slot.is_blank = "failed", True
                slot.losses = self._losses[slot.place.name] - 1  # the old env is gone
        else:
            slot.worlds = self._matching(got, [(world.copied(), world.last) for world in kept.worlds])
            slot.phase, slot.unkept = kept.phase, kept.unkept
            slot.failed = slot.forgotten = slot.is_blank = False
            slot.losses = self._losses[slot.place.name]

    async def fork(self, at: int, to: int, place: str) -> None:
        slot = await self.open(at)
        if slot is None:
            return
        self.made += 2
        target = self.places[place]
        got = await self._tried(lambda: slot.handle.fork(target.pool))
        if self._was_cancelled:
            return
        if not slot.has_episode:
            self._demand(got, _misuse(slot))
        elif isinstance(got, Failed):
            self._check_refused(slot, got, target)
        elif slot.forgotten:
            raise Mismatch("an env was forked that cannot be made again")
        else:
            twin = Slot(got, target, [])
            twin.phase, twin.unkept, twin.losses = slot.phase, slot.unkept, self._losses[place]
            old = self.slots.pop(to, None)
            self.slots[to] = twin
            twin.worlds = self._matching(got.outcome, [(world.copied(), world.last) for world in slot.worlds])
            if old is not None:
                await old.handle.close()

    # What comes of them.

    @property
    def _saves(self) -> bool:
        return self.part.env in SAVING

    def _end_episode(self, slot: Slot) -> None:
        slot.forgotten |= slot.unkept and not self.spec.replayable
        slot.unkept = slot.failed = False

    def _may_diverge(self, got: Any) -> bool:
        return isinstance(got, Failed) and got.kind == "EnvDiverged" and bool(self.part.kwargs.get("drifts"))

    async def _tried(self, act: Callable[[], Awaitable[Any]]) -> Any:
        self._was_cancelled = False
        self._losses = {place.name: place.losses for place in self.places.values()}
        limit = self._limit
        got: Any = None
        with anyio.fail_after(PATIENCE), anyio.move_on_after(limit) as scope:
            try:
                got = await act()
            except RolloutError as error:
                got = Failed(type(error).__name__, getattr(error, "remote_type", None))
                self.trail.append(f"    {error}")
                self.made += _is_gone(got)  # the next op asks for another one
        self._was_cancelled = scope.cancelled_caught
        return got

    async def _compare(
        self, slot: Slot, got: Any, act: Callable[[Reference], Awaitable[Any]], *, is_read: bool = False
    ) -> None:
        """Keep the objects that do the same."""
        made = []
        for world in slot.worlds:
            after = world.copied()
            try:
                wanted = await act(after)
            except Exception as error:  # whatever the env raises
                wanted = Failed("EnvError", type(error).__name__)
            made.append((after, wanted))
        try:
            slot.worlds = self._matching(got, made)
        except Mismatch:
            if not (self._may_crash(slot, got) or self._may_diverge(got)):
                raise
            slot.phase = "failed"
            return
        slot.losses = self._losses[slot.place.name]
        if not is_read:
            slot.failed = isinstance(got, Failed)
            slot.phase = "failed" if slot.failed else "ended" if got.done else "running"

    def _matching(self, got: Any, made: list[tuple[Reference, Any]]) -> list[Reference]:
        if found := [world for world, wanted in made if alike(got, wanted)]:
            return found
        raise Mismatch(f"got {got!r}, wanted {' or '.join(repr(wanted) for _, wanted in made)}")

    def _may_crash(self, slot: Slot, got: Any) -> bool:
        if not isinstance(got, Failed) or got.kind != "EnvCrashed" or slot.place.losses == slot.losses:
            return False
        is_over = slot.forgotten or slot.failed or not self.spec.replayable
        return is_over or slot.place.losses > slot.losses + 4

    def _demand(self, got: Any, wanted: Failed) -> None:
        if self._was_cancelled or got[:1] != wanted[:1] if isinstance(got, Failed) else True:
            raise Mismatch(f"got {got!r}, wanted {wanted!r}")

    def _demand_or_crash(self, slot: Slot, got: Any, wanted: Failed | None) -> None:
        if self._may_crash(slot, got) or self._may_diverge(got):
            slot.phase = "failed"
        elif wanted is None or not isinstance(got, Failed) or got.kind != wanted.kind:
            raise Mismatch(f"got {got!r}, wanted {wanted!r}")

    def _check_refused(self, slot: Slot, got: Failed, target: Place, *, is_file: bool = False) -> None:
        """A fork or snapshot that failed: was there a reason?"""
        if self._may_crash(slot, got):
            slot.phase = "failed"
            return
        to_remote = "remote" in (target.name, slot.place.name)
        is_odd = is_file and self.part.kwargs.get("shows") in ODD
        may_be_refused = slot.forgotten or not self.spec.replayable or (self._saves and (to_remote or is_odd))
        if not self._may_diverge(got) and not (got.kind == "UsageError" and may_be_refused):
            raise Mismatch(f"got {got!r} for a fork or snapshot of a sound env")

    def check_diary(self, *, calm: bool) -> None:
        """Every env was closed once, and those that may act once only did."""
        lines = self.diary.read_text().splitlines() if self.diary.exists() else []
        counts = Counter(lines)
        built = [line.split()[1] for line in lines if line.startswith("built")]
        closed = [counts[f"closed {uid}"] for uid in built]
        assert max(closed, default=0) <= 1, f"closed {max(closed)} times"
        if calm:
            assert min(closed, default=1) == 1, f"{closed.count(0)} of {len(built)} envs were not closed"
        acted = sum(line.startswith("acted") for line in lines)
        if not self.spec.replayable:
            assert acted <= self.steps, f"it is not replayable, and made {acted} steps instead of {self.steps}"

    @property
    def built(self) -> int:
        return self._count("built")

    @property
    def left(self) -> int:
        """Envs that are not closed."""
        return self.built - self._count("closed")

    async def wait_until_all_closed(self) -> None:
        """Envs that were dropped are closed a little later, in another process."""
        with anyio.move_on_after(PATIENCE / 6):
            while self.left:  # noqa: ASYNC110 (no event comes from there)
                await anyio.sleep(0.001)
        if self.left:
            raise Mismatch(f"{self.left} of {self.built} {self.part.env} were not closed")

    def _count(self, what: str) -> int:
        return self.diary.read_text().count(what) if self.diary.exists() else 0


async def _opened(place: Place, name: str, kwargs: dict[str, Any]) -> EnvHandle:
    return await place.pool.open(name, **copy.deepcopy(kwargs))


def _is_gone(got: Any) -> bool:
    """Whether there is no env after this, until the next op makes one."""
    return isinstance(got, Failed) and got.kind in ("EnvCrashed", "EnvDiverged")


def _misuse(slot: Slot) -> Failed:
    return Failed("ClosedError" if slot.phase == "closed" else "UsageError")


def _be_the_same(worlds: list[Reference], outcome: Outcome) -> None:
    found = re.search(r"by ([0-9a-f]{12})", repr(outcome))
    assert found is not None
    for world in worlds:
        world.env.uid = found[1]


def _spoil(outcome: Outcome) -> None:
    shown = outcome.observation.data if isinstance(outcome.observation, Observation) else outcome.observation
    if isinstance(shown, np.ndarray):
        shown[:] = 99
    elif hasattr(shown, "clear"):
        shown.clear()
    for value in outcome.info.values():
        if hasattr(value, "clear"):
            value.clear()
    outcome.info["spoilt"] = 1


async def play_program(program: Program, places: dict[str, Place], directory: Path) -> list[User]:
    """All users at once; their diaries are to be checked when the pools are closed."""
    users = [User(part, places, directory / f"diary{at}") for at, part in enumerate(program.parts)]
    try:
        async with anyio.create_task_group() as tasks:
            for user in users:
                tasks.start_soon(user.play)
        if program.is_calm:
            for user in users:
                await user.wait_until_all_closed()
    except BaseException as error:
        for user in users:
            error.add_note(f"{user.part.env} in {user.part.place}, {dict(user.part.kwargs)}:\n" + "\n".join(user.trail))
        raise
    return users
