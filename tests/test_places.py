"""Places for rollouts in flight: who gets one, in which order, and that none is empty while somebody waits."""

import random
from collections import Counter, deque
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import Request, Rollouts, ScriptedPolicy
from asyncrollout.concurrency import CANCELLED_AT_ONCE, GradualTasks
from asyncrollout.rollouts.sampling.places import GroupPlaces, Places, RolloutPlace, Use
from tests.envs.rollout import WALK
from tests.playing import PATIENCE
from tests.sampler_world import STEPS
from tests.virtual_time import run_virtually
from tests.waiting import all_tasks_blocked

USES: list[Use] = ["training", "evaluation"]


class Reference:
    """Who should have a place, found out slowly: requests are looked through one by one."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.waiting: list[tuple[Use, tuple[int, int]]] = []
        self.playing: list[tuple[Use, tuple[int, int]]] = []

    def may_be_next(self) -> list[tuple[Use, tuple[int, int]]]:
        """The first of each use; while both wait, the one whose use has less than half, and either at the half."""
        firsts = [min(one for one in self.waiting if one[0] == use) for use in {use for use, _ in self.waiting}]
        if len(firsts) < 2:
            return firsts
        evaluated = sum(use == "evaluation" for use, _ in self.playing)
        may_have = {
            "evaluation": 2 * evaluated < self.total + self.total % 2,
            "training": 2 * evaluated > self.total - 2,
        }
        return [one for one in firsts if may_have[one[0]]]


@given(st.integers(1, 7), st.integers(0, 10_000))
def test_places_are_given_in_order_and_none_is_empty_while_somebody_waits(total: int, seed: int) -> None:
    rng, places, reference = random.Random(seed), Places(total), Reference(total)
    requested: dict[tuple[Use, tuple[int, int]], RolloutPlace] = {}

    def request(use: Use, turn: tuple[int, int]) -> None:
        one = use, turn

        def granted() -> None:
            assert one in reference.may_be_next(), f"{one} has a place, and not one of {reference.may_be_next()}"
            reference.waiting.remove(one)
            reference.playing.append(one)

        reference.waiting.append(one)
        requested[one] = places.request(use, turn, granted)

    for number in range(60):
        if rng.random() < 0.55 or not requested:
            request(rng.choice(USES), (rng.randrange(6), number))
        else:
            one = rng.choice(sorted(requested))
            place = requested.pop(one)
            (reference.playing if place.is_granted else reference.waiting).remove(one)
            place.release()
            place.release()  # again: without effect
        assert places.used == len(reference.playing) <= total
        assert places.free == 0 or not reference.waiting
        for use in USES:
            assert places.waiting(use) == sum(other == use for other, _ in reference.waiting)


@pytest.mark.parametrize("total", [1, 2, 3, 8])
def test_training_and_evaluations_have_half_each_while_both_wait(total: int) -> None:
    places = Places(total)
    playing: deque[RolloutPlace] = deque()
    count: Counter[Use] = Counter()

    def request(use: Use, number: int) -> None:
        place = places.request(use, (number, 0), lambda: count.update([use]))
        waiting.append(place)

    def give_one_back() -> None:
        playing.extend(place for place in waiting if place.is_granted)
        waiting[:] = [place for place in waiting if not place.is_granted]
        playing.popleft().release()

    waiting: list[RolloutPlace] = []
    for number in range(total):
        request("evaluation", number)
    assert count == {"evaluation": total}  # all, as long as nobody else waits
    for number in range(200):
        request("training", number)
        request("evaluation", total + number)
    for _ in range(total):
        give_one_back()
    shares = Counter[int]()
    began = count.copy()
    for _ in range(150):
        give_one_back()
        shares[places._used["evaluation"]] += 1
    assert shares.keys() <= {total // 2, (total + 1) // 2}
    assert abs((count["training"] - began["training"]) - (count["evaluation"] - began["evaluation"])) <= 4


async def test_a_group_larger_than_all_places_takes_them_one_by_one() -> None:
    places = Places(2)
    group, other = await places.next_group("training"), GroupPlaces(places, "training", 99)
    order: list[str] = []

    async def play(of: GroupPlaces, name: str) -> None:
        await of.acquire_on_behalf_of(name)
        order.append(name)
        await anyio.lowlevel.checkpoint()
        of.release_on_behalf_of(name)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for member in range(5):
                tasks.start_soon(play, group, f"first {member}")
            tasks.start_soon(play, other, "second")
    assert order == [*(f"first {member}" for member in range(5)), "second"]
    assert places.free == 2


async def test_who_is_cancelled_waits_for_no_place_and_keeps_none() -> None:
    places = Places(1)
    first = await places.next_group("training")
    for _ in range(3):
        with anyio.move_on_after(0):
            await places.next_group("evaluation")
    assert (places.waiting("evaluation"), places.used) == (0, 1)
    group = GroupPlaces(places, "evaluation", 9)
    scope = anyio.CancelScope()

    async def wait() -> None:
        with scope:
            await group.acquire_on_behalf_of("somebody")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await all_tasks_blocked()
        assert places.waiting("evaluation") == 1
        scope.cancel()  # and the place is granted before it hears of that
        first.unreserve()
        assert places.used == 1
    assert places.free == 1


async def test_a_retry_comes_before_younger_groups() -> None:
    places = Places(1)
    old = await places.next_group("training")
    await old.acquire_on_behalf_of("old")
    young = GroupPlaces(places, "training", 7)
    granted: list[str] = []
    young.request(lambda: granted.append("young"))
    old.request(lambda: granted.append("again"))
    old.release_on_behalf_of("old")
    assert granted == ["again"]


def seconds_of(request: Request) -> float:
    """Lognormal: a few turns take much longer than the rest."""
    return random.Random(f"{request.session} {request.turn}").lognormvariate(0.0, 1.5)


class Usage:
    """A policy that knows how many rollouts wait for its reply, on average, until the `last` group is asked for."""

    def __init__(self, last: str) -> None:
        self.mean = 0.0
        self.most = 0
        self._last = last
        self._now = 0
        self._sum = self._since = 0.0
        self._is_over = False

    async def reply(self, request: Request) -> str:
        self._note()
        self._is_over = self._is_over or request.session.startswith(self._last)
        self._now += 1
        self.most = max(self.most, self._now)
        await anyio.sleep(seconds_of(request))
        self._note()
        self._now -= 1
        return "1"

    def _note(self) -> None:
        if not self._is_over:
            now = anyio.current_time()
            self._sum += self._now * (now - self._since)
            self._since = now
            self.mean = self._sum / max(now, 1e-9)


@pytest.mark.parametrize("size", [1, 8, 64])
@pytest.mark.parametrize("how", ["collect", "batches", "evaluate"])
def test_places_are_at_work_whatever_the_size_of_a_group(how: str, size: int) -> None:
    """A third of them were for groups of 8, and an eighth for groups of 64."""
    count = 1_024 // size
    usage = Usage(f"eval0-g{count - 1}." if how == "evaluate" else f"g{count - 1}.")

    async def play() -> None:
        async with Rollouts(
            STEPS, policy=ScriptedPolicy(usage.reply), group_size=size, max_in_flight=64, seed=3, max_lag=None
        ) as source:
            if how == "collect":
                await source.collect(count)
            elif how == "batches":
                stream = source.batches(count // 2)
                for _ in range(2):
                    await anext(stream)
            else:
                await source.evaluate(count, k=size, split=None)

    run_virtually(play, patience=PATIENCE)
    assert usage.most == 64
    assert usage.mean >= 0.95 * 64


async def test_an_evaluation_beside_a_stream_has_half_and_alone_has_all() -> None:
    playing: Counter[str] = Counter()
    most: Counter[str] = Counter()
    is_shared = False
    together = 0

    async def reply(request: Request) -> str:
        nonlocal together
        use = "evaluation" if request.session.startswith("eval") else "training"
        playing[use] += 1
        if is_shared or use == "training":
            together = max(together, playing.total())
        most[use] = max(most[use], playing[use])
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        playing[use] -= 1
        return "go 9"

    async with Rollouts(WALK, policy=ScriptedPolicy(reply), group_size=5, max_in_flight=12) as source:
        with anyio.fail_after(PATIENCE):
            await source.evaluate(10, k=9, split=None)
            assert most == {"evaluation": 12}
            most.clear()
            is_shared = True
            async with anyio.create_task_group() as tasks:

                async def train() -> None:
                    stream = source.batches(20)
                    for _ in range(3):
                        await anext(stream)

                async def evaluate(seed: int) -> None:
                    await source.evaluate(20, k=13, seed=seed, split=None)

                tasks.start_soon(train)
                for seed in range(2):
                    tasks.start_soon(evaluate, seed)
        assert together == 12
        assert source._engine.places.free == 12
        assert source.ledger.balanced


async def test_a_source_that_waits_for_an_evaluation_keeps_no_place_from_it() -> None:
    evaluated = anyio.Event()

    async def tasks() -> Any:
        yield 1
        await evaluated.wait()
        yield 2

    async with Rollouts(WALK, policy=ScriptedPolicy(["go 9"]), group_size=1, max_in_flight=1, tasks=tasks()) as source:
        with anyio.fail_after(PATIENCE):
            stream = source.batches(1)
            await anext(stream)
            await source.evaluate(3, split=None)
            evaluated.set()
            assert [group.id for group in (await anext(stream)).groups] == ["g1"]


class Ends:
    """Counts the tasks that clean up in each iteration of the event loop."""

    def __init__(self) -> None:
        self.iteration = 0
        self.by_iteration: Counter[int] = Counter()

    async def count(self) -> None:
        while True:
            self.iteration += 1
            await anyio.lowlevel.checkpoint()

    async def work(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self.by_iteration[self.iteration] += 1


@pytest.mark.parametrize("counts", [1, 8])
async def test_tasks_are_cancelled_some_at_a_time(counts: int) -> None:
    ends = Ends()
    async with anyio.create_task_group() as counting:
        counting.start_soon(ends.count)
        with anyio.CancelScope() as scope:
            async with GradualTasks() as tasks:
                for _ in range(500):
                    tasks.start_soon(ends.work, counts=counts)
                await anyio.lowlevel.checkpoint()
                tasks.start_soon(ends.work)  # not yet begun when all are cancelled
                scope.cancel()
        assert scope.cancelled_caught
        counting.cancel_scope.cancel()
    assert ends.by_iteration.total() == 501
    assert max(ends.by_iteration.values()) <= CANCELLED_AT_ONCE // counts + 1


async def test_a_gradual_task_that_fails_cancels_the_block_and_is_raised() -> None:
    ends = Ends()

    async def fail() -> None:
        await anyio.lowlevel.checkpoint()
        raise ValueError("it fails")

    async def play(*, waits: bool) -> None:
        async with GradualTasks() as tasks:
            tasks.start_soon(ends.work)
            tasks.start_soon(fail)
            if waits:
                await anyio.sleep_forever()

    for waits in (True, False):
        with pytest.raises(ValueError, match="it fails"):
            await play(waits=waits)
    assert ends.by_iteration.total() == 2


async def test_gradual_tasks_are_waited_for() -> None:
    done: list[int] = []

    async def work(number: int) -> None:
        await anyio.lowlevel.checkpoint()
        done.append(number)
        if number:
            tasks.start_soon(work, number - 1)

    async with GradualTasks() as tasks:
        tasks.start_soon(work, 3)
    assert done == [3, 2, 1, 0]


@pytest.mark.parametrize("how", ["leaves", "evaluate", "collect"])
async def test_rollouts_in_flight_are_cancelled_some_at_a_time(how: str) -> None:
    ends, all_asked = Ends(), anyio.Event()
    asked = 0

    async def never(request: Request) -> str:
        nonlocal asked
        asked += 1
        if asked == 400:
            all_asked.set()
        await ends.work()
        return ""

    async with anyio.create_task_group() as counting:
        counting.start_soon(ends.count)
        source = Rollouts(WALK, policy=ScriptedPolicy(never), group_size=4, max_in_flight=400)
        async with source, anyio.create_task_group() as taking:

            async def take() -> None:
                if how == "evaluate":
                    await source.evaluate(400, split=None)
                elif how == "collect":
                    await source.collect(100)
                else:
                    await anext(source.batches(100))

            taking.start_soon(take)
            with anyio.fail_after(PATIENCE):
                await all_asked.wait()
            taking.cancel_scope.cancel()
        assert source.ledger.balanced
        assert not source.ledger.open
        counting.cancel_scope.cancel()
    assert ends.by_iteration.total() == 400
    assert max(ends.by_iteration.values()) <= CANCELLED_AT_ONCE


async def test_a_place_may_be_asked_for_without_waiting() -> None:
    places = Places(1)
    group = await places.next_group("training")
    group.acquire_on_behalf_of_nowait("first")  # the one that was reserved
    with pytest.raises(anyio.WouldBlock):
        group.acquire_on_behalf_of_nowait("second")
    assert places.waiting("training") == 0
    group.release_on_behalf_of("first")
    group.acquire_on_behalf_of_nowait("second")
    assert places.free == 0


async def test_members_who_ask_later_keep_their_turn() -> None:
    """Those of a group on a shard ask by message."""
    places, granted = Places(4), list[str]()
    group = await places.next_group("training")
    group.expect(3)
    younger = await places.next_group("training")
    assert places.free == 0
    for member in range(4):
        group.request(lambda member=member: granted.append(f"old {member}"))  # type: ignore[misc]
    assert granted == ["old 0", "old 1", "old 2"]
    younger.request(lambda: granted.append("young"))
    younger.request(lambda: granted.append("young again")).release()
    with group:
        group.expect(2)
    assert (places.free, places.waiting("training")) == (0, 1)
