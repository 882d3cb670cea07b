"""What a rollout, a start and a turn cost does not grow with how many there are: counted, and never timed."""

import contextvars
import gc
import inspect
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from asyncrollout import (
    ChatAgent,
    EnvPool,
    Generation,
    Limits,
    Observation,
    Outcome,
    Request,
    Rollouts,
    ScriptedPolicy,
    Turn,
    run_group,
    run_rollout,
)
from asyncrollout.journal.policy import _digests
from asyncrollout.rollouts.episode import group as groups_of_rollouts
from asyncrollout.rollouts.episode.observer import NullObserver
from asyncrollout.rollouts.episode.progress import Progress
from asyncrollout.rollouts.sampling.batch_buffer import BatchBuffer
from asyncrollout.trajectories import Group, Verdict
from tests.envs.rollout import WALK
from tests.playing import PATIENCE


class Ages:
    """Counts how often somebody asks how old a group is."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        known: Any = inspect.getattr_static(Group, "version").fget

        def version(group: Group) -> int | None:
            self.asked += 1
            version: int | None = known(group)
            return version

        patch.setattr(Group, "version", property(version))


@pytest.mark.parametrize("how", ["groups", "batches"])
async def test_staleness_is_looked_at_as_often_for_many_groups_as_for_few(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    ages = Ages(monkeypatch)
    each = []
    for in_flight in (16, 128):
        ages.asked = taken = 0

        async def reply(request: Request) -> str:
            for _ in range(random.Random(request.session).randrange(20)):
                await anyio.lowlevel.checkpoint()
            return "go 1"

        async with Rollouts(WALK, policy=ScriptedPolicy(reply), group_size=1, max_in_flight=in_flight) as source:
            with anyio.fail_after(PATIENCE):
                for version in (1, 2, 3):
                    if how == "groups":
                        async for _ in source.groups():
                            taken += 1
                            if taken == version * in_flight:
                                break
                    else:
                        taken += len((await anext(source.batches(in_flight // 2))).groups)
                    async with source.weight_update(version):
                        pass
        each.append(ages.asked / taken)
    assert each[1] <= 1.5 * each[0], f"{each} looks at the age of a group, for each that was taken"
    assert max(each) < 16


@pytest.mark.parametrize("seed", range(5))
def test_kept_groups_are_in_order_at_every_moment(seed: int) -> None:
    rng = random.Random(seed)
    tray = BatchBuffer(None, "raise", lambda group: (int(group.id[1:]) % 3, int(group.id[1:])))
    tray.needed = 1_000
    kept = []
    for index in rng.sample(range(60), 60):
        group = Group(f"g{index}", [], verdict=Verdict(keep=True))
        kept.append(group)
        if index % 7:
            tray.put(group)
        else:
            tray.adopt([group], [])
        kept.sort(key=lambda one: (int(one.id[1:]) % 3, int(one.id[1:])))
        assert tray.kept == kept
        if index % 5 == 0:
            assert tray.take(2) == kept[:2]
            del kept[:2]


class Starts:
    """A policy that never replies, and counts who asks it in the same iteration of the event loop."""

    def __init__(self, most: int) -> None:
        self.iteration = 0
        self.by_iteration: Counter[int] = Counter()
        self._most = most
        self.all_asked = anyio.Event()

    async def count_iterations(self) -> None:
        while True:
            self.iteration += 1
            await anyio.lowlevel.checkpoint()

    async def generate(self, _: Request) -> Any:
        self.by_iteration[self.iteration] += 1
        if self.by_iteration.total() == self._most:
            self.all_asked.set()
        await anyio.sleep_forever()


async def test_large_group_starts_in_slices() -> None:
    """Counted where a member starts: how many iterations later it asks depends on what else the loop does."""
    starts = Starts(200)
    started: Counter[int] = Counter()

    class Counting(NullObserver):
        def dispatched(self, uid: str) -> Progress:
            started[starts.iteration] += 1
            return super().dispatched(uid)

    async with EnvPool(backend="inline") as pool, anyio.create_task_group() as tasks:

        async def play() -> None:
            await run_group(pool, WALK, ChatAgent(starts), seed=1, size=200, watch=Counting())

        tasks.start_soon(starts.count_iterations)
        tasks.start_soon(play)
        with anyio.fail_after(PATIENCE):
            await starts.all_asked.wait()
        tasks.cancel_scope.cancel()
    assert started.total() == 200
    assert max(started.values()) <= groups_of_rollouts._STARTED_AT_ONCE


@pytest.mark.parametrize("how", ["evaluate", "collect"])
async def test_many_groups_start_one_after_the_other(how: str) -> None:
    starts = Starts(100)
    source = Rollouts(WALK, agent=ChatAgent(starts), group_size=2, max_in_flight=200)
    async with source, anyio.create_task_group() as tasks:

        async def play() -> None:
            await (source.evaluate(300) if how == "evaluate" else source.collect(50))

        tasks.start_soon(starts.count_iterations)
        tasks.start_soon(play)
        with anyio.fail_after(PATIENCE):
            await starts.all_asked.wait()
        tasks.cancel_scope.cancel()
    assert max(starts.by_iteration.values()) <= 4


class Compared(list[Any]):
    """A list that counts how often one of its entries is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        type(self).looks += 1
        return super().__getitem__(place)


def test_recorded_conversation_is_not_compared_from_its_beginning() -> None:
    said = [{"role": "user", "content": str(number)} for number in range(200)]
    contextvars.copy_context().run(_compare_growing, said)


def _compare_growing(said: list[Any]) -> None:
    chains: dict[int, Any] = {}
    for only_appends in (False, True):
        for length in range(1, len(said)):
            Compared.looks = 0
            asked = _digests(Request(Compared(said[:length])), only_appends=only_appends)
            assert chains.setdefault(length, asked) == asked
        assert (Compared.looks < 8) is only_appends
    rewritten = [{"role": "user", "content": "something else"}, *said[1:150], said[0]]
    assert _digests(Request(rewritten), only_appends=True) == _digests(Request(rewritten), only_appends=False)


async def test_tokens_of_a_turn_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = 0
    known: Any = inspect.getattr_static(Turn, "sampled_tokens").fget

    def sampled_tokens(turn: Turn) -> int:
        nonlocal counted
        counted += 1
        tokens: int = known(turn)
        return tokens

    monkeypatch.setattr(Turn, "sampled_tokens", property(sampled_tokens))
    agent = ChatAgent(ScriptedPolicy(["go 1"]))
    async with EnvPool(backend="inline") as pool, pool.open(WALK, turns=100) as env:
        trajectory = await run_rollout(env, agent, seed=1, limits=Limits(tokens=10**6))
    assert len(trajectory.turns) == 100
    assert counted == 100


async def test_conversation_is_kept_in_one_list_and_shown_in_others() -> None:
    shown: list[list[Any]] = []

    def reply(request: Request) -> str:
        shown.append(request.messages)
        if request.turn == 4:
            raise RuntimeError("no reply")
        return f"go {request.turn}"

    player = ChatAgent(ScriptedPolicy(reply)).open("a", 1)
    messages = player.messages
    for turn in range(4):
        await player.act(Outcome(f"turn {turn}"), tokens_left=None)
    with pytest.raises(RuntimeError):
        await player.act(Outcome("turn 4"), tokens_left=None)
    assert player.messages is messages
    assert [len(one) for one in shown] == [1, 3, 5, 7, 9]
    assert messages[-1] == {"role": "assistant", "content": "go 3"}


def test_turns_cost_the_garbage_collector_nothing() -> None:
    """A hundred thousand of them are alive in a run of long episodes, and it would look at each, again and again."""
    turn = Turn("here", info={"parts": [1, 2]}, tool_calls=[{"name": "look"}])
    outcome, generation = Outcome("here", info={"parts": [1]}), Generation("go", tool_calls=[{"name": "look"}])
    assert not any(map(gc.is_tracked, (turn, outcome, generation, Observation("here", data=[1]), turn.usage)))


@pytest.fixture
def threshold() -> Iterator[tuple[int, int, int]]:
    """The garbage collector's, restored afterwards."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def _open_rollouts(**options: Any) -> Rollouts:
    return Rollouts(WALK, policy=ScriptedPolicy(["go 1"]), **options)


async def test_garbage_is_looked_for_less_often_while_rollouts_are_open(threshold: tuple[int, int, int]) -> None:
    async with _open_rollouts():
        assert gc.get_threshold() == (10_000, 10, 10)
        async with _open_rollouts(gc_threshold=50_000):
            assert gc.get_threshold() == (50_000, 10, 10)
        assert gc.get_threshold() == (10_000, 10, 10)
        async with _open_rollouts(gc_threshold=800):
            assert gc.get_threshold() == (10_000, 10, 10)
    assert gc.get_threshold() == threshold
    async with _open_rollouts(gc_threshold=None):
        assert gc.get_threshold() == threshold


async def test_the_users_own_threshold_stays(threshold: tuple[int, int, int]) -> None:
    for own in ((0, 10, 10), (100_000, 5, 5)):
        gc.set_threshold(*own)
        async with _open_rollouts():
            assert gc.get_threshold() == own
        assert gc.get_threshold() == own
    gc.set_threshold(*threshold)
    async with _open_rollouts(), _open_rollouts():
        gc.set_threshold(900, 9, 9)
        async with _open_rollouts():
            assert gc.get_threshold() == (10_000, 9, 9)
        assert gc.get_threshold() == (900, 9, 9)
    assert gc.get_threshold() == (900, 9, 9)
