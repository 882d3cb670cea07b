"""Plays programs for `Rollouts`, in virtual time, so that a program and its seeds decide what happens when."""

from contextlib import suppress
from typing import Any

import anyio

from asyncrollout import ClosedError, ExhaustedError, Failures, Rollouts, Share, UsageError
from asyncrollout.concurrency import task_group
from asyncrollout.filters import BatchFilter
from asyncrollout.journal.records import RunRecords
from tests.sampler_checks import Checks, Handed, Rewound, check, shown
from tests.sampler_programs import Op
from tests.sampler_world import STEPS, HookError, index_of
from tests.sharding import KillableShards

LONGEST = 20_000.0  # virtual seconds for one take; a reply takes one on average


class Player(Checks):
    """Each operation of a program is a method."""

    async def play(self) -> None:
        """All operations, then whatever is left."""
        resume: bool | int = False
        rest: list[Op] | None = list(self.program.ops)
        while rest is not None:
            rest, resume = await self._session(rest, resume)
        self._check_all()
        if self.run_dir is not None:
            await self._read_back()

    def _make(self, resume: bool | int) -> Rollouts:
        program, hooks = self.program, self.hooks
        keep = {"all": None, "group": hooks.keep, "batch": BatchFilter(hooks.keep_best)}[program.keep]
        score = {"none": None, "trajectory": hooks.score, "group": hooks.score_group}[program.score]
        return Rollouts(
            [Share(STEPS, tag, share) for tag, share in zip(self.world.tags, program.shares, strict=True)],
            policy=self.policy,
            group_size=program.group_size,
            max_in_flight=program.group_size * program.groups_in_flight + program.odd_places,
            keep=keep,
            seed=program.seed,
            tasks=hooks.tasks(),
            score=score,
            failures=Failures(program.retries, program.min_valid),
            order=program.order,
            max_lag=program.max_lag,
            max_num_gen_batches=program.max_rounds,
            on_exhausted=program.on_exhausted,
            run_dir=self.run_dir,
            resume=resume,
            shards=self._shards(),
        )

    def _shards(self) -> KillableShards | None:
        """Another number of them each time that the run is opened, and none now and then."""
        count = (self.program.shards + self.sessions) % 4 if self.program.shards else 0
        self.shards = KillableShards(count, nodes=2) if count else None
        return self.shards

    async def _session(self, ops: list[Op], resume: bool | int) -> tuple[Any, bool | int]:
        """Play until it is closed: what is left of the program, and how to resume it."""
        loaded = self.policy.loaded
        self.rollouts = self._make(resume)
        self.first, self.evaluated = len(self.handed), 0
        self.sessions += 1
        rest: list[Op] | None = None
        how = "on"
        async with task_group() as outside, self.run:
            if resume is not False:
                check(self.run.version == loaded, "resumed with version", self.run.version, "and not", loaded)
            while ops:
                op, ops = ops[0], ops[1:]
                if op[0] == "reopen":
                    if self.run_dir is None:
                        continue
                    rest, how = ops, op[1]
                    break
                if op[0] == "closing":
                    outside.start_soon(self._take_while_closing, op[1])
                    await anyio.sleep(op[2])
                    rest, how = (ops, "on") if self.run_dir is not None else (None, "on")
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
        return rest, False if rest is None else self._resume_at(how)

    def _resume_at(self, how: str) -> bool | int:
        batches = [one for one in self.handed if one.batch is not None]
        if how == "rewind" and len(batches) == len(self.handed) and batches and "update" not in self.program.names:
            self._forget_idle_rewind()
            batches = [*self.handed]
            self.rewound = Rewound(self._journal_bytes(), self.handed, self.again, self.outcomes)
            count = (batches[-1].batch or 0) // 2
            self.again = [*(one for one in batches if (one.batch or 0) >= count), *self.again]
            self.handed = [one for one in batches if (one.batch or 0) < count]
            again = [one.indices for one in self.again]  # which are reported again
            self.outcomes = [one for one in self.outcomes if one[-1] not in again]
            return count
        if how == "on":
            self._forget_idle_rewind()
            return True
        return self.run.next_batch

    def _forget_idle_rewind(self) -> None:
        """A run that was opened at an earlier batch, and in which nothing happened, is as it was."""
        before, self.rewound = self.rewound, None
        if before is not None and before.journal_bytes == self._journal_bytes():
            self.handed, self.again, self.outcomes = before.handed, before.again, before.outcomes

    def _journal_bytes(self) -> int:
        assert self.run_dir is not None
        journal = self.run_dir / "journal.jsonl"
        return journal.stat().st_size if journal.exists() else 0

    # Operations.

    async def kill(self, which: int) -> None:
        """Kill one of the shards; another one takes its place."""
        if self.shards is not None and (alive := self.shards.alive()):
            alive[which % len(alive)].die()

    async def scale(self, count: int, drain: bool) -> None:
        if self.shards is not None:
            await self.run.scale(count, drain=drain)

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
            gone = "cancelled" in self.program.names  # what a taker who left had wanted is still there
            begun = self.program.ahead + gone
            single = at_once * (self.program.ahead + 1) - (not gone)  # who awaits one group has places for `at_once`
            most = max(op[1] * begun if op[0] == "batches" else single for op in shared)
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
                check(
                    mode == "continue" or not self.policy.under_way, "replies are under way within an update by", mode
                )
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
            if "tasks has ended" in str(error):
                self._check_end(op)
                return False
            if "is delivered again" in str(error):
                check(op[0] == "groups" and len(self.again[0].indices) > 1, op, "raised", repr(error))
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
        self.raised.append(error)
        self.outcomes.append((op, "a hook failed"))

    def _check_end(self, op: Op) -> None:
        self.outcomes.append((op, "the end"))
        check(not self.program.is_endless, op, "is at the end of tasks that have none")

    async def _take_the_rest(self) -> None:
        """Of tasks that end: nothing is lost, if all of it comes to somebody."""
        if self.program.is_endless or not self.program.takes:
            return
        used: dict[str, int] = dict(op for op in self.program.takes if op[0] != "collect")
        failed = 0
        while self.again:  # whole batches, which `groups` refuses
            await self._take(("collect", 3))
        for name, size in (*used.items(), ("collect", 3)):  # each may have something that the others do not see
            op = (name, 1 if name == "groups" else size)
            while self.outcomes[-1:] != [(op, "the end")]:
                await self._take(op)
                failed += self.outcomes[-1][1] in ("exhausted", "a hook failed")
                check(failed <= 2 + 2 * self.program.tasks, "there are only failures:", self.outcomes[-3:])
            self.outcomes.append(("rest",))
        self.ended = True

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
