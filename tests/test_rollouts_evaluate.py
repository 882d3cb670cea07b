"""`Rollouts.evaluate`: repeatable, apart from the figures of training, and within its half of the capacity."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from asyncrollout import (
    ChatAgent,
    Evaluation,
    Generation,
    Group,
    RandomPolicy,
    Request,
    Rollouts,
    ScriptedPolicy,
    SolverPolicy,
    Trajectory,
)
from asyncrollout.telemetry import flat
from tests.playing import PATIENCE
from tests.test_rollouts import Model, rollouts
from tests.waiting import all_tasks_blocked


def replies(evaluation: Evaluation) -> list[Any]:
    return [[turn.reply for turn in one.turns] for one in evaluation.trajectories]


class Written:
    """A sink."""

    def __init__(self) -> None:
        self.figures: list[dict[str, float]] = []

    def write(self, figures: Mapping[str, float]) -> None:
        self.figures.append(dict(figures))


@pytest.mark.parametrize("run_dir", [None, "run"])
async def test_evaluation_enters_no_figure_of_training(tmp_path: Path, run_dir: str | None) -> None:
    def reply(request: Request) -> str:
        return "go 9" if request.session.startswith("eval") else "go 0"

    sink = Written()
    where = None if run_dir is None else tmp_path / run_dir
    async with rollouts(ScriptedPolicy(reply), metrics=[sink], run_dir=where) as source:
        await source.collect(groups=2)
        before = flat(source.figures())
        batch_before = await source.collect(groups=2)
        one_batch = flat(source.figures())
        evaluation = await source.evaluate(["ok", "breaks"], k=4)
        after = flat(source.figures())
        batch_after = await source.collect(groups=2)
        assert source.ledger.balanced
        assert source.ledger.ends["delivered"] == 3 * 2 * 2 + 4
    assert evaluation.success_rate == 1.0
    assert evaluation.failed == 4
    timed = {"seconds", "turns_per_second", "tokens_per_second"}
    same = {name for name in one_batch if name not in timed and not name.startswith(("policy_sec", "env_sec"))}
    assert one_batch["rollouts"] == 8
    assert {name: after[name] for name in same} == {name: one_batch[name] for name in same} | {
        "evaluated_rollouts": 8 + 2  # two were played again
    }
    assert after.keys() == one_batch.keys()
    assert (after["policy_seconds/count"], after["env_seconds/count"]) == (24, 24)
    assert before["success_rate"] == after["success_rate"] == sink.figures[-1]["success_rate"] == 0.0
    assert batch_after.stats == batch_before.stats


async def test_rollouts_of_an_evaluation_are_not_shown_as_waiting() -> None:
    async def never(request: Request) -> str:
        await anyio.sleep_forever()
        return ""

    async with rollouts(ScriptedPolicy(never)) as source, anyio.create_task_group() as tasks:
        tasks.start_soon(source.evaluate, 4)
        await all_tasks_blocked()
        figures = source.figures()
        assert (figures.waiting_policy, figures.waiting_env, figures.waiting_else) == (0, 0, 0)
        assert source.stats().open_rollouts == 4
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("together", [True, False])
async def test_rollouts_that_wait_for_their_score_are_counted(together: bool) -> None:
    go, called = anyio.Event(), anyio.Event()

    async def score_group(group: Group) -> list[float]:
        called.set()
        await go.wait()
        return [one.reward for one in group.trajectories]

    async def score_one(trajectory: Trajectory) -> float:
        called.set()
        await go.wait()
        return trajectory.reward

    scored = score_group if together else score_one
    async with rollouts(Model(), score=scored, group_size=4) as source, anyio.create_task_group() as tasks:
        tasks.start_soon(source.collect, 1)
        await called.wait()
        await all_tasks_blocked()
        figures = source.figures()
        assert (figures.waiting_score, figures.waiting_else, figures.score_seconds.count) == (4, 0, 0)
        go.set()
    assert source.figures().waiting_score == 0
    assert source.figures().score_seconds.count == 4


async def test_slow_members_leave_no_place_empty() -> None:
    go, waiting = anyio.Event(), set[str]()

    async def reply(request: Request) -> str:
        if request.session.endswith(".1"):
            waiting.add(request.session)
            await go.wait()
        return "go 9"

    async with rollouts(ScriptedPolicy(reply), max_in_flight=4) as source, anyio.create_task_group() as tasks:

        async def evaluate() -> None:
            await source.evaluate(6, k=2)

        tasks.start_soon(evaluate)
        await all_tasks_blocked()
        assert sorted(waiting) == [f"eval0-g{group}.1" for group in range(4)]
        go.set()


@pytest.mark.parametrize(
    "agent",
    [
        lambda: ChatAgent(Model()),
        lambda: ChatAgent(SolverPolicy(error_rate=0.5)),
        lambda: ChatAgent(RandomPolicy(["go 1", "go 2", "go 3"]), seeded=False),
    ],
)
async def test_evaluation_can_be_repeated(agent: Any) -> None:
    async with rollouts(agent=agent()) as source:
        first = await source.evaluate(4, k=3)
        await source.collect(groups=2)
        again = await source.evaluate(4, k=3)
        longer = await source.evaluate(6, k=3)
        other = await source.evaluate(4, k=3, seed=1)
    async with rollouts(agent=agent(), seed=9) as source:
        elsewhere = await source.evaluate(4, k=3)
    assert replies(first) == replies(again) == replies(elsewhere) == replies(longer)[:12]
    assert [one.seed for one in first.trajectories] != [one.seed for one in other.trajectories]
    assert not agent().seeded or replies(first) != replies(other)
    assert len({str(one) for one in replies(first)}) > 1
    assert {one.uid for one in first.trajectories}.isdisjoint(one.uid for one in again.trajectories)


async def test_evaluation_tells_which_weights_played() -> None:
    class Held(Model):
        def __init__(self) -> None:
            super().__init__()
            self.go = anyio.Event()

        async def generate(self, request: Request) -> Generation:
            if request.session.startswith("eval1-g1."):
                await self.go.wait()
            return await super().generate(request)

    model, evaluations = Held(), list[Evaluation]()
    async with rollouts(model) as source:
        with capture_logs() as logs:
            assert (await source.evaluate(2)).versions == (0,)
            assert logs == []

            async def evaluate() -> None:
                evaluations.append(await source.evaluate(2))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(evaluate)
                await all_tasks_blocked()
                async with source.weight_update(3, mode="abort"):
                    model.go.set()
    assert evaluations[0].versions == (0, 3)
    assert [log["versions"] for log in logs if log["event"] == "weights_changed_within_evaluation"] == [(0, 3)]


@pytest.mark.parametrize("k", [1, 4, 9])
async def test_evaluations_alone_have_the_whole_capacity_together_and_no_more(k: int) -> None:
    playing: set[str] = set()
    most = 0

    class Watched:
        async def generate(self, request: Request) -> Generation:
            nonlocal most
            playing.add(request.session)
            most = max(most, len(playing))
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            playing.discard(request.session)
            return Generation("go 1")

    sizes: list[int] = []
    async with rollouts(Watched(), max_in_flight=12) as source:

        async def evaluate(seed: int) -> None:
            evaluation = await source.evaluate(5, k=k, seed=seed)
            sizes.extend(len(group.trajectories) for group in evaluation.groups)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for seed in range(3):
                    tasks.start_soon(evaluate, seed)
        assert source.ledger.balanced
    assert most == 12
    assert sizes == [k] * 15


async def test_evaluation_of_one_rollout_at_a_time() -> None:
    async with rollouts(max_in_flight=1, group_size=1) as source:
        with anyio.fail_after(PATIENCE):
            assert len((await source.evaluate(3, k=2)).trajectories) == 6


class Table:
    """A map-style dataset, such as torch's: it has a length and items by number, and no end of them by itself."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> str:
        return f"row {index}"


async def test_map_style_datasets_are_tasks() -> None:
    async with Rollouts("bandit", policy=ScriptedPolicy(["x"]), tasks=Table(3), group_size=1) as source:
        taken = [group.trajectories[0].task async for group in source.groups()]
    assert sorted(taken) == ["row 0", "row 1", "row 2"]
    async with rollouts() as source:
        evaluation = await source.evaluate(Table(2))
    assert [one.task for one in evaluation.trajectories] == ["row 0", "row 1"]
