"""Which worker builds what, and which calls move to another: no env waits for others longer than it must."""

import asyncio
from collections import Counter as Tally
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from asyncrollout import EnvHandle, EnvPool, EnvSpec
from asyncrollout.errors import ClosedError, EnvBuildError
from asyncrollout.pool.binding import EnvBinding
from asyncrollout.pool.hosts import SOON
from asyncrollout.pool.process.rebalancing import plan_moves, plan_recalls
from asyncrollout.pool.process.worker_host import SentCall, WorkerHost
from asyncrollout.pool.wire.messages import CallReply, Op
from tests.envs.slow import read
from tests.playing import COUNTER, PATIENCE
from tests.scripts.processes import until
from tests.waiting import all_tasks_blocked, cancelled

HELD = EnvSpec(name="held", factory="tests.envs.slow:Held")


def words(diary: Path) -> Tally[str]:
    return Tally(line[0] for line in read(diary))


def is_closed(pool: EnvPool) -> bool:
    try:
        pool.open(COUNTER)
    except ClosedError:
        return True
    return False


@pytest.fixture
def holds(tmp_path: Path) -> list[Path]:
    """Files that something lasts as long as."""
    files = [tmp_path / f"hold{number}" for number in range(6)]
    for file in files:
        file.touch()
    return files


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"


# Envs that wait to be built


async def test_opens_that_wait_for_a_worker_fail_when_the_pool_is_closed(diary: Path, holds: list[Path]) -> None:
    waiting = 4

    async def wait(pool: EnvPool) -> None:
        nonlocal waiting
        with pytest.raises(ClosedError):
            await pool.open(EnvSpec(name="unknown", factory=HELD.factory), diary=str(diary))
        waiting -= 1
        if not waiting:  # not before: a worker that becomes free would build them
            for hold in holds:
                hold.unlink()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks, EnvPool(workers=1) as pool:
            env = await pool.open(HELD, diary=str(diary), hold=str(holds[0]), worker=0)
            await env.reset(seed=1)
            await cancelled(lambda: env.step("hold"), lambda: until(lambda: words(diary)["step"] == 1))
            for _ in range(waiting):
                tasks.start_soon(wait, pool)
            await all_tasks_blocked()
    assert not waiting


async def test_a_quick_env_does_not_wait_for_slow_ones_before_it(diary: Path, holds: list[Path]) -> None:
    async with EnvPool(workers=2) as pool:
        await pool.open(COUNTER)
        quick: list[EnvHandle] = []

        async def build(hold: Path) -> None:
            await pool.open(HELD, diary=str(diary), name=hold.name, build_hold=str(hold))

        async def open_quick() -> None:
            quick.append(await pool.open(COUNTER))

        def built() -> int:
            return words(diary)["built"]

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for hold in holds:
                    tasks.start_soon(build, hold)
                await until(lambda: words(diary)["building"] == 2)
                await until(lambda: pool.stats().queued == 2)  # by now, building is known to take long
                tasks.start_soon(open_quick)
                await all_tasks_blocked()
                while not quick:  # end one build after the other
                    before = built()
                    _, name, *_ = [line for line in read(diary) if line[0] == "building"][before]
                    (diary.parent / name).unlink()
                    await until(lambda before=before: bool(quick) or words(diary)["building"] > before + 2)  # type: ignore[misc]
                assert built() < len(holds)
                for hold in holds:
                    hold.unlink(missing_ok=True)


async def test_envs_that_were_never_reset_are_not_taken_for_slow() -> None:
    work = []

    class Asked(EnvBinding):
        def work(self, op: Op) -> float:
            work.append(super().work(op))
            return work[-1]

    async with EnvPool(workers=1) as pool:
        await pool.open(COUNTER)
        handle = pool.open(COUNTER)
        handle._calls.binding.__class__ = Asked
        await handle
    assert max(work) < SOON


async def test_how_long_a_failure_took_says_nothing_about_builds() -> None:
    async with EnvPool(workers=1) as pool:
        usual = pool._rules.usual(HELD.name)
        before = usual.build
        with pytest.raises(EnvBuildError):
            await pool.open(HELD, diary="/nowhere/to/be/found")
        assert usual.build == before


# Closing


async def test_an_env_is_closed_though_nobody_awaits_it_any_more(
    diary: Path, holds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrollout.pool.handle.CLOSE_GRACE", 0.01)
    async with EnvPool(workers=1) as pool:
        slow, other = [
            await pool.open(HELD, diary=str(diary), name=name, hold=str(holds[0])) for name in ("slow", "other")
        ]
        await slow.reset(seed=0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow.step, "hold")
            await until(lambda: words(diary)["step"] == 1)
            await other.close()
            await cancelled(lambda: pool.open(HELD, diary=str(diary), worker=0), all_tasks_blocked)
            holds[0].unlink()
        await slow.step(1)
        assert [name for what, name, *_ in read(diary) if what == "closed"] == ["other"]


async def test_an_env_that_takes_long_to_close_counts_as_work(diary: Path, holds: list[Path]) -> None:
    async with EnvPool(workers=2) as pool:
        left = await pool.open(HELD, diary=str(diary), hold=str(holds[0]), close_hold=str(holds[1]), worker=0)
        await left.reset(seed=0)
        others = [await pool.open(COUNTER) for _ in range(3)]
        await cancelled(lambda: left.step("hold"), lambda: until(lambda: words(diary)["step"] == 1))
        await left.close()
        holds[0].unlink()
        await until(lambda: words(diary)["closing"] == 1)
        with anyio.fail_after(PATIENCE):
            assert [(await pool.open(COUNTER)).worker for _ in others] == [1, 1, 1]
        holds[1].unlink()


async def test_a_pool_that_is_closed_skips_any_number_of_calls(diary: Path, holds: list[Path]) -> None:
    async def step(env: EnvHandle) -> None:
        with pytest.raises(ClosedError):
            await env.step(1)

    async def let_go() -> None:
        await until(lambda: is_closed(pool))
        holds[0].unlink()

    async with anyio.create_task_group() as tasks, EnvPool(workers=1) as pool:
        slow = await pool.open(HELD, diary=str(diary), hold=str(holds[0]))
        await slow.reset(seed=0)
        envs = [await pool.open(HELD, diary=str(diary)) for _ in range(1100)]
        await pool.reset_many(envs)
        await cancelled(lambda: slow.step("hold"), lambda: until(lambda: words(diary)["step"] == 1))
        for env in envs:
            tasks.start_soon(step, env)
        await all_tasks_blocked()
        tasks.start_soon(let_go)
    assert words(diary)["step"] == 1
    assert words(diary)["closed"] == 1101


async def test_a_pool_waits_for_io_envs_that_were_let_go(diary: Path, holds: list[Path]) -> None:
    async def let_go() -> None:
        await until(lambda: is_closed(pool))
        await all_tasks_blocked()
        for hold in holds:
            hold.unlink()

    kwargs: dict[str, Any] = {"diary": str(diary), "hold": str(holds[0]), "close_hold": str(holds[1])}
    spec = EnvSpec(name="io", factory=HELD.factory, runs="io")
    async with anyio.create_task_group() as tasks:
        async with EnvPool(backend="inline") as pool:
            env = await pool.open(spec, **kwargs)
            await env.reset(seed=1)
            await cancelled(lambda: env.step("hold"), lambda: until(lambda: words(diary)["step"] == 1))
            await env.close()
            await cancelled(
                lambda: pool.open(spec, **kwargs, build_hold=str(holds[2])),
                lambda: until(lambda: words(diary)["building"] == 2),
            )
            tasks.start_soon(let_go)
        assert words(diary)["closed"] == 2


# The plan of moves


@dataclass
class FakePage:
    at_work: tuple[int, float] = (0, 0.0)

    def main_call(self) -> tuple[int, float]:
        return self.at_work

    def last_begun(self) -> int:
        return self.at_work[0]


@dataclass
class FakeCaller:
    seconds: float = 0.0
    extra: float = 0.0
    may_move: bool = True
    may_be_recalled: bool = True
    builds_slowly: bool = False
    is_new: bool = False
    resets_slowly: bool = True
    id: int = 0
    step_work: float = 0.0

    def work(self, _op: Op) -> float:
        return self.seconds

    def detour(self, _op: Op) -> float:
        return self.extra


@dataclass
class FakeLink:
    """Of a link, all that the plan looks at: the first call is at work since `since`."""

    calls: list[tuple[Op, FakeCaller]] = field(default_factory=list)
    since: float = 0.0

    def __post_init__(self) -> None:
        self.pending: dict[int, SentCall] = {
            number: (cast("asyncio.Future[CallReply]", None), op, caller, caller.seconds)
            for number, (op, caller) in enumerate(self.calls, start=1)
        }
        self.page = FakePage((1, self.since) if self.calls else (0, 0.0))

    remaining = WorkerHost.remaining


def recalls(link: FakeLink, now: float) -> list[int]:
    return [call for _, call in plan_recalls([cast("WorkerHost", link)], now)]


def planned(*links: FakeLink, now: float) -> list[list[int]]:
    moves = dict.fromkeys(range(len(links)), cast("list[int]", []))
    for link, calls in plan_moves(cast("list[WorkerHost]", links), now, soft=1.0):
        moves[list(links).index(cast("FakeLink", link))] = calls
    return list(moves.values())


SLOW = (Op.STEP, FakeCaller())


def test_envs_that_build_slowly_wait_for_whichever_worker_is_free() -> None:
    known, new = (Op.OPEN, FakeCaller(5.0, builds_slowly=True)), (Op.OPEN, FakeCaller(0.2, is_new=True))
    quick = (Op.OPEN, FakeCaller(0.001))
    recalled = (Op.OPEN, FakeCaller(5.0, builds_slowly=True, may_be_recalled=False))
    assert recalls(FakeLink([known, known, recalled, known]), now=0.1) == [2, 4]
    assert recalls(FakeLink([new, new, SLOW]), now=0.9) == []
    assert recalls(FakeLink([new, new, quick, SLOW]), now=1.1) == [2]


def test_envs_that_are_recalled_keep_their_order() -> None:
    first, second = [
        FakeLink([(Op.OPEN, FakeCaller(5.0, builds_slowly=True, id=number)) for number in numbers])
        for numbers in ((1, 3, 5), (2, 4, 6))
    ]
    moves = plan_recalls(cast("list[WorkerHost]", [second, first]), 0.1)
    assert [(link is cast("WorkerHost", first), call) for link, call in moves] == [
        (True, 2),
        (False, 2),
        (True, 3),
        (False, 3),
    ]


def test_an_idle_worker_takes_one_reset_at_a_time() -> None:
    resets = [(Op.RESET, FakeCaller(5.0))] * 4
    assert planned(FakeLink(resets), FakeLink(), now=0.1) == [[2], []]
    assert planned(FakeLink(resets), FakeLink(), FakeLink(), now=0.1) == [[2, 3], [], []]
    assert planned(FakeLink(resets), FakeLink(resets[:1]), now=0.1) == [[], []]
    quick = [(Op.RESET, FakeCaller(0.2, resets_slowly=False))] * 4
    assert planned(FakeLink(quick), FakeLink(), now=0.9) == [[], []]


def test_steps_leave_a_call_that_takes_long_if_that_is_quicker() -> None:
    quick, slow = (Op.STEP, FakeCaller(0.001, extra=0.01)), (Op.STEP, FakeCaller(0.001, extra=3.0))
    assert planned(FakeLink([SLOW, quick, slow]), FakeLink(), now=0.9) == [[], []]
    assert planned(FakeLink([SLOW, quick, slow]), FakeLink(), now=1.1) == [[2], []]
    assert planned(FakeLink([SLOW, quick, slow]), FakeLink(), now=9.0) == [[2, 3], []]


def test_nothing_moves_that_may_not_or_moved_before() -> None:
    stays = (Op.STEP, FakeCaller(0.001, may_move=False))
    assert planned(FakeLink([SLOW, stays]), FakeLink(), now=50.0) == [[], []]


def test_nothing_moves_to_a_worker_that_is_as_busy() -> None:
    quick = (Op.STEP, FakeCaller(0.001, extra=0.01))
    assert planned(FakeLink([SLOW, quick]), FakeLink([SLOW, quick]), now=5.0) == [[], []]


def test_a_reset_moves_at_once_only_if_building_is_worth_it() -> None:
    resets = [(Op.RESET, FakeCaller(4.0, extra=0.1))] * 3
    assert planned(FakeLink(resets), FakeLink(), now=0.1) == [[2], []]
    costly = [(Op.RESET, FakeCaller(4.0, extra=20.0))] * 3
    assert planned(FakeLink(costly), FakeLink(), now=0.1) == [[], []]


def test_a_call_whose_reply_was_not_read_yet_does_not_move() -> None:
    quick = (Op.STEP, FakeCaller(0.001, extra=0.01))
    link = FakeLink([quick, SLOW, quick])
    link.page.at_work = (2, 0.0)
    assert planned(link, FakeLink(), now=9.0) == [[3], []]
