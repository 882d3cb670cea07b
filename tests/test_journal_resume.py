"""What a resumed run goes on with: its source of tasks, its groups, its agent, its figures; and what it refuses."""

import gc
import itertools
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import numpy as np
import pytest

from asyncrollout import (
    ChatAgent,
    Generation,
    Group,
    JournalError,
    OpenAIPolicy,
    Request,
    Rollouts,
    Sampling,
    ScriptedPolicy,
    Task,
    UsageError,
    filters,
)
from asyncrollout.journal.events import (
    AnyEvent,
    Began,
    Cancelled,
    Delivered,
    Dispatched,
    Drawn,
    Finished,
    Judged,
    TakenBack,
    encode,
)
from asyncrollout.journal.group_numbers import GroupNumbers
from asyncrollout.journal.history import RunHistory
from asyncrollout.journal.policy import _digests
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES
from asyncrollout.trajectories import StopReason
from tests.playing import PATIENCE
from tests.test_journal import events, rollouts
from tests.test_journal_trouble import Stopping, break_off
from tests.test_rollouts import Model, transcripts
from tests.waiting import all_tasks_blocked


class Rows:
    """Rows one after the other; it may choose by what is finished, and counts how far it was pulled."""

    def __init__(self, count: int = 40) -> None:
        self.count = count
        self.pulled = 0
        self.seen: list[str] = []

    def __iter__(self) -> Iterator[str]:
        for row in range(self.count):
            self.pulled += 1
            yield f"row {row}"

    def finished(self, group: Group) -> None:
        self.seen.append(group.id)


class AsyncRows(Rows):
    __iter__ = None  # type: ignore[assignment]

    async def __aiter__(self) -> AsyncIterator[str]:
        for row in range(self.count):
            self.pulled += 1
            yield f"row {row}"


class Ladder(Rows):
    """Its level goes up with every second group that is finished; a row tells the level, and how many came before."""

    def __iter__(self) -> Iterator[str]:
        for row in range(self.count):
            yield f"level {len(self.seen) // 2}, row {row}"


class AsyncLadder(Ladder):
    __iter__ = None  # type: ignore[assignment]

    async def __aiter__(self) -> AsyncIterator[str]:
        for row in range(self.count):
            while len(self.seen) < row - 3:
                await anyio.lowlevel.checkpoint()
            yield f"level {len(self.seen) // 2}, row {row}"


def tasks_of(groups: list[Group]) -> list[Any]:
    return [group.trajectories[0].task for group in groups]


@pytest.mark.parametrize("kind", [Rows, AsyncRows])
async def test_source_that_chooses_is_wound_forward(tmp_path: Path, kind: type[Rows]) -> None:
    async with rollouts(tmp_path, tasks=kind(), max_lag=0) as source:
        first = [(await source.collect(groups=3)).groups for _ in range(2)]
    tasks = kind()
    async with rollouts(tmp_path, tasks=tasks, max_lag=0, resume=True) as source:
        again = (await source.collect(groups=3)).groups
    rows = [row for groups in (*first, again) for row in tasks_of(groups)]
    assert rows == [f"row {number}" for number in range(9)]
    assert tasks.seen == [f"g{number}" for number in range(9)]


@pytest.mark.parametrize("kind", [Ladder, AsyncLadder])
@pytest.mark.parametrize("max_lag", [0, 1])
async def test_source_is_at_the_state_that_the_undisturbed_one_has(
    tmp_path: Path, kind: type[Ladder], max_lag: int
) -> None:
    async def taken(run_dir: Path, count: int, **options: Any) -> list[Any]:
        async with rollouts(run_dir, tasks=kind(), max_lag=max_lag, **options) as source:
            return [tasks_of((await anext(source.batches(groups=2))).groups) for _ in range(count)]

    whole = await taken(tmp_path / "whole", 6)
    parts = await taken(tmp_path / "run", 2)
    for count in (1, 3):
        with anyio.fail_after(PATIENCE):
            parts += await taken(tmp_path / "run", count, resume=True)
    if max_lag == 0:
        assert parts == whole
    rows = [int(task.rpartition(" ")[2]) for batch in parts for task in batch]
    assert rows == list(range(12))


@pytest.mark.parametrize("is_async", [False, True])
async def test_source_that_resumes_by_itself_is_not_wound_forward(tmp_path: Path, is_async: bool) -> None:
    class Resumable:
        def __init__(self) -> None:
            self.at = self.pulled = 0

        def resume(self, drawn: int) -> Any:
            self.at = drawn
            return anyio.lowlevel.checkpoint() if is_async else None

        def __iter__(self) -> Any:
            return map(self.row, itertools.count(self.at))

        def row(self, number: int) -> str:
            self.pulled += 1
            return f"row {number}"

    async with rollouts(tmp_path, tasks=Resumable(), max_lag=0) as source:
        await source.collect(groups=3)
    tasks = Resumable()
    async with rollouts(tmp_path, tasks=tasks, max_lag=0, resume=True) as source:
        batch = await source.collect(groups=2)
    assert tasks_of(batch.groups) == ["row 3", "row 4"]
    assert tasks.pulled == 2


async def test_tasks_that_end_before_what_was_drawn_are_not_those_of_the_run(tmp_path: Path) -> None:
    await break_off(rollouts(tmp_path, Stopping(), tasks=["a", "b", "c"]), lambda source: source.collect(groups=3))
    async with rollouts(tmp_path, tasks=["a"], resume=True) as source:
        with pytest.raises(UsageError, match="they end before task 1, which was 'b'"):
            await source.collect(groups=3)


def test_source_with_an_async_report_is_refused() -> None:
    class Waits(Rows):
        async def finished(self, group: Group) -> None: ...  # type: ignore[override]

    with pytest.raises(UsageError, match=r"finished\(group\) is called while groups are judged, so it must not be"):
        Rollouts("bandit", policy=ScriptedPolicy(["x"]), tasks=Waits())


async def test_report_that_gives_an_awaitable_is_reported_where_groups_are_awaited() -> None:
    class Waits(Rows):
        def finished(self, group: Group) -> Any:
            return anyio.lowlevel.checkpoint()

    async with Rollouts("bandit", policy=ScriptedPolicy(["x"]), tasks=Waits()) as source:
        with pytest.raises(UsageError, match="returned an awaitable, which is not awaited"):
            await source.collect(groups=1)


class Held(Model):
    """Holds groups below a number back until it is let go."""

    def __init__(self, below: int) -> None:
        super().__init__()
        self._below = below
        self.go = anyio.Event()

    async def generate(self, request: Request) -> Generation:
        if int(request.session[1:].partition(".")[0]) < self._below:
            await self.go.wait()
        return await super().generate(request)


class FirstAlone(Model):
    """Only the first member of a group comes to its end."""

    async def generate(self, request: Request) -> Generation:
        if request.turn == 1 and not request.session.endswith(".0"):
            await anyio.sleep_forever()
        return await super().generate(request)


async def test_collect_beside_batches_of_a_resumed_run_leaves_their_groups_alone(tmp_path: Path) -> None:
    async def take(source: Rollouts) -> None:
        await anext(source.batches(groups=2))

    await break_off(rollouts(tmp_path, FirstAlone(), group_size=4), take)
    model, taken = Held(below=4), []
    async with rollouts(tmp_path, model, group_size=4, resume=True) as source:

        async def take_and_keep() -> None:
            taken.append(await anext(source.batches(groups=2)))

        async with anyio.create_task_group() as consumers:
            consumers.start_soon(take_and_keep)
            await all_tasks_blocked()
            taken.append(await source.collect(groups=1))
            model.go.set()
        assert source.ledger.balanced
    assert [transcripts(batch.groups)[0][0] for batch in taken] == ["g4", "g0"]
    assert events(tmp_path, "cancelled") == []
    again = Model()
    async with rollouts(tmp_path, again, group_size=4, resume=0) as source:
        batches = source.batches(groups=2)
        second = [await anext(batches) for _ in taken]
    assert [transcripts(batch.groups) for batch in second] == [transcripts(batch.groups) for batch in taken]
    assert [len(group.trajectories) for batch in second for group in batch.groups] == [4] * 3


async def test_group_to_be_delivered_again_that_lacks_a_member_is_an_error(tmp_path: Path) -> None:
    async with rollouts(tmp_path) as source:
        await source.collect(groups=2)
    lines = (tmp_path / TRAJECTORIES).read_bytes().splitlines(keepends=True)
    lost = [line for line in lines if b'"g1.1"' not in line]
    (tmp_path / TRAJECTORIES).write_bytes(b"".join(lost))
    with pytest.raises(JournalError, match=r"trajectories.jsonl has 1 of the 2 rollouts of group g1, which was deliv"):
        await rollouts(tmp_path, resume=0).__aenter__()


async def test_group_that_was_cancelled_while_it_played_is_delivered_again_whole(tmp_path: Path) -> None:
    """As older versions have recorded it, whose collect() cancelled what another stream played."""
    async with rollouts(tmp_path) as source:
        first = await source.collect(groups=2)
    lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    ends = [place for place, line in enumerate(lines) if b'"finished"' in line and b'"g1.' in line]
    (tmp_path / JOURNAL).write_bytes(b"".join([*lines[: ends[1]], encode(Cancelled(group="g1")), *lines[ends[1] :]]))
    async with rollouts(tmp_path, resume=0) as source:
        assert transcripts((await source.collect(groups=2)).groups) == transcripts(first.groups)


AGENT: dict[str, Any] = {"history": 2, "system_prompt": "Go.", "sampling": Sampling(temperature=0.5)}


def shout(turn: int, text: str, outcome: Any) -> str:
    return text.upper()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"system_prompt": "Stay."}, r"agent\.system_prompt='Stay\.' \(was 'Go\.'\)"),
        ({"history": None}, r"agent\.history=None \(was 2\)"),
        ({"template": "ragen"}, r"agent\.template='ragen' \(was 'plain'\)"),
        ({"template": shout}, r"agent\.template='shout' \(was 'plain'\)"),
        (
            {"sampling": Sampling(temperature=0.0)},
            r"agent\.sampling=\{'temperature': 0.0\} \(was \{'temperature': 0.5\}\)",
        ),
        ({"seeded": False}, r"agent\.seeded=False \(was True\)"),
        ({"encode": lambda messages, is_start: [1]}, r"agent\.encode=.*lambda.* \(was None\)"),
        ({"policy": ScriptedPolicy(["go 1"])}, r"policy=\['ScriptedPolicy\(\)'\] \(was \['Model\(\)'\]\)"),
        (
            {"policy": "tiny"},
            r"policy=\['OpenAIPolicy\(tiny\)'\] \(was \['Model\(\)'\]\)",
        ),
    ],
)
async def test_another_agent_or_policy_is_refused_by_name(tmp_path: Path, change: Any, message: str) -> None:
    async with rollouts(tmp_path, agent=ChatAgent(Model(), **AGENT)) as source:
        await source.collect(groups=1)
    before = (tmp_path / JOURNAL).read_bytes()
    if change.get("policy") == "tiny":  # one of its own for each loop
        change = {"policy": OpenAIPolicy("http://localhost:1/v1", "tiny")}
    changed = ChatAgent(**{"policy": Model(), **AGENT, **change})
    with pytest.raises(
        UsageError, match=rf"{message}; to accept that, and play unfinished groups from the start: accept_chan"
    ):
        await rollouts(tmp_path, agent=changed, resume=True).__aenter__()
    assert (tmp_path / JOURNAL).read_bytes() == before


async def test_servers_of_a_policy_may_change(tmp_path: Path) -> None:
    for resume, port in ((False, 1), (True, 2)):
        policy = OpenAIPolicy(f"http://localhost:{port}/v1", "tiny")
        async with rollouts(tmp_path, policy, resume=resume):
            pass


async def test_accepted_change_has_unfinished_groups_played_anew(tmp_path: Path) -> None:
    """None is of two prompts, neither within a trajectory nor among members; what was finished stays."""

    class Rest(FirstAlone):
        async def generate(self, request: Request) -> Generation:
            finishes = request.session.startswith("g0.") or request.turn == 0
            return await (Model.generate if finishes else FirstAlone.generate)(self, request)

    def agent(policy: Any, prompt: str) -> ChatAgent:
        return ChatAgent(policy, system_prompt=prompt)

    async def take(source: Rollouts) -> None:
        await anext(source.batches(groups=3))

    await break_off(rollouts(tmp_path, agent=agent(Rest(), "Go."), max_lag=1), take)
    new = agent(Model(), "Stay.")
    with pytest.raises(UsageError, match="must stay the same: only agent and policy may change"):
        rollouts(tmp_path, agent=new, resume=True, accept_changes={"seed"})
    async with rollouts(tmp_path, agent=new, resume=True, accept_changes={"agent.system_prompt"}) as source:
        evaluation = await source.evaluate(1)
        batch = await anext(source.batches(groups=3))
    prompts = [{one.messages[0]["content"] for one in group.trajectories} for group in batch.groups]
    assert [group.id for group in batch.groups] == ["g0", "g1", "g2"]
    assert prompts == [{"Go."}, {"Stay."}, {"Stay."}]
    assert evaluation.trajectories[0].messages[0]["content"] == "Stay."
    async with rollouts(tmp_path, agent=new, resume=True) as source:  # it is the run's own now
        assert {one.messages[0]["content"] for one in (await source.collect(groups=1)).trajectories} == {"Stay."}
    with pytest.raises(UsageError, match=r"agent\.system_prompt='Go\.' \(was 'Stay\.'\)"):
        await rollouts(tmp_path, agent=agent(Model(), "Go."), resume=True).__aenter__()


async def test_accepted_change_means_the_same_to_later_processes(tmp_path: Path) -> None:
    def agent(policy: Any, prompt: str) -> ChatAgent:
        return ChatAgent(policy, system_prompt=prompt)

    async def take(source: Rollouts) -> None:
        await anext(source.batches(groups=2))

    await break_off(rollouts(tmp_path, agent=agent(FirstAlone(), "Go.")), take)
    await break_off(
        rollouts(tmp_path, agent=agent(FirstAlone(), "Stay."), resume=True, accept_changes=["agent.system_prompt"]),
        take,
    )
    async with rollouts(tmp_path, agent=agent(Model(), "Stay."), resume=True) as source:
        batch = await anext(source.batches(groups=2))
    assert {one.messages[0]["content"] for one in batch.trajectories} == {"Stay."}


async def test_reply_to_another_conversation_is_not_given_even_if_the_run_does_not_tell_its_agent(
    tmp_path: Path,
) -> None:
    """As with journals of older versions, or an agent that does not show what it asks with."""
    await break_off(
        rollouts(tmp_path, agent=ChatAgent(Stopping(), system_prompt="Go.")), lambda source: source.collect(1)
    )
    lines = (tmp_path / JOURNAL).read_bytes().splitlines()
    began = msgspec.json.decode(lines[0])
    began["given"] = {name: value for name, value in began["given"].items() if not name.startswith("agent")}
    (tmp_path / JOURNAL).write_bytes(b"\n".join([msgspec.json.encode(began), *lines[1:], b""]))
    async with rollouts(tmp_path, agent=ChatAgent(Model(), system_prompt="Stay."), resume=True) as source:
        batch = await source.collect(groups=1)
    errors = [event["error"] for event in events(tmp_path, "failed")]
    assert "the env shows the same, but the agent asks with other messages before it" in errors[0]
    assert {one.messages[0]["content"] for one in batch.trajectories} == {"Stay."}


async def test_journal_of_an_older_version_is_resumed(tmp_path: Path) -> None:
    """It tells neither of the agent nor of all that was asked."""
    await break_off(rollouts(tmp_path, Stopping(turn=2)), lambda source: source.collect(1))
    old = []
    for line in (tmp_path / JOURNAL).read_bytes().splitlines():
        event = msgspec.json.decode(line)
        event.pop("request", None)
        if "given" in event:
            event["given"] = {name: one for name, one in event["given"].items() if name[:5] not in {"agent", "polic"}}
        old.append(msgspec.json.encode(event) + b"\n")
    (tmp_path / JOURNAL).write_bytes(b"".join(old))
    model = Model()
    async with rollouts(tmp_path, model, resume=True) as source:
        await source.collect(groups=1)
    assert model.calls == 2  # the third turns of two rollouts
    assert "agent.history" in events(tmp_path, "began")[-1]["given"]


@pytest.mark.parametrize("max_lag", [0, 1])
async def test_batches_that_are_delivered_again_have_their_stats(tmp_path: Path, max_lag: int) -> None:
    options: dict[str, Any] = {"keep": filters.reward_varies, "max_lag": max_lag}
    async with rollouts(tmp_path, **options) as source:
        batches = source.batches(groups=2)
        first = [await anext(batches) for _ in range(3)]
    async with rollouts(tmp_path, resume=1, **options) as source:
        batches = source.batches(groups=2)
        again = [await anext(batches) for _ in range(2)]
    assert [batch.stats for batch in again] == [batch.stats for batch in first[1:]]
    assert sum(batch.stats["drawn_groups"] for batch in first) >= 6


async def test_a_batch_that_is_delivered_again_is_not_taken_apart(tmp_path: Path) -> None:
    async with rollouts(tmp_path) as source:
        first = [await source.collect(groups=2), await source.collect(groups=1)]
    async with rollouts(tmp_path, resume=0) as source:
        with pytest.raises(UsageError, match=r"batch 0 is delivered again, and has 2 groups: .* batches\(\) or"):
            await anext(source.groups())
        assert transcripts((await source.collect(groups=2)).groups) == transcripts(first[0].groups)
        assert transcripts([await anext(source.groups())]) == transcripts(
            first[1].groups
        )  # one group is a batch of one


async def test_opening_and_leaving_a_run_changes_nothing(tmp_path: Path) -> None:
    async with rollouts(tmp_path, agent=ChatAgent(Model())) as source:
        for _ in range(3):
            await source.collect(groups=1)
    before = [(tmp_path / name).read_bytes() for name in (JOURNAL, TRAJECTORIES)]
    other = ChatAgent(Model(), system_prompt="Stay.")
    for options in (
        {"resume": 1, "agent": ChatAgent(Model())},
        {"resume": True, "agent": other, "accept_changes": ["agent.system_prompt"]},
    ):
        async with rollouts(tmp_path, **options):
            pass
        assert [(tmp_path / name).read_bytes() for name in (JOURNAL, TRAJECTORIES)] == before
    async with rollouts(tmp_path, agent=ChatAgent(Model()), resume=True) as source:
        assert source.next_batch == 3
    async with rollouts(tmp_path, agent=ChatAgent(Model()), resume=1) as source:
        assert (await source.collect(groups=1)).index == 1
    async with rollouts(tmp_path, agent=ChatAgent(Model()), resume=True) as source:
        assert source.next_batch == 2
        assert transcripts((await source.collect(groups=1)).groups)[0][0] == "g2"


COUNTED = ("groups", "kept", "dropped", "stale", "rollouts", "retries", "errors", "turns", "tokens", "invalid",
           "evaluated_rollouts", "keep_rate", "success_rate", "reward_mean", "reward_history")  # fmt: skip


@pytest.mark.parametrize("resume", [True, 0, 2])
@pytest.mark.parametrize("on_exhausted", ["short", "fill"])
async def test_figures_and_ledger_of_a_resumed_run_balance(tmp_path: Path, resume: Any, on_exhausted: Any) -> None:
    options: dict[str, Any] = {
        "keep": filters.reward_varies, "on_exhausted": on_exhausted, "max_num_gen_batches": 1,
    }  # fmt: skip
    async with rollouts(tmp_path, **options) as source:
        batches = source.batches(groups=3)
        for _ in range(4):
            await anext(batches)
    before = source.figures()  # what plays ahead may still finish while it is left
    async with rollouts(tmp_path, resume=resume, **options) as source:
        batches = source.batches(groups=3)
        while source.next_batch < 4:
            await anext(batches)
        figures = source.figures()
        assert figures.groups == figures.kept + sum(figures.dropped.values())
        assert (figures.batches, figures.delivered) == (before.batches, before.delivered)
        assert [getattr(figures, name) for name in COUNTED] == [getattr(before, name) for name in COUNTED]
        again = 0 if resume is True else sum(len(event["groups"]) for event in events(tmp_path, "delivered")[4:])
        assert source.ledger.ends["delivered"] == again * 2  # the ledger counts what this process has read again
        await anext(batches)
        figures = source.figures()
        assert figures.groups == figures.kept + sum(figures.dropped.values())
        assert source.ledger.balanced


def test_numbers_are_a_set_however_they_come() -> None:
    numbers = GroupNumbers([3, 0, 1, 7])
    assert [number for number in range(9) if number in numbers] == [0, 1, 3, 7]
    numbers.add(2)
    numbers.add(2)
    assert [number for number in range(9) if number in numbers] == [0, 1, 2, 3, 7]
    assert -1 not in numbers
    assert None not in numbers


async def test_resumed_process_keeps_nothing_of_what_was_delivered(tmp_path: Path) -> None:
    groups, size = 5_000, 4
    tasks = [Task(f"row {number}", seed=1) for number in range(groups + 8)]
    lines: list[bytes] = []
    async with rollouts(tmp_path, group_size=size, tasks=tasks) as source:
        await source.collect(groups=1)
    (began,) = events(tmp_path, "began")
    (record,) = (line for line in (tmp_path / TRAJECTORIES).read_bytes().splitlines() if b'"g0.0"' in line)
    lines.append(encode(Began(given=began["given"])))
    with (tmp_path / TRAJECTORIES).open("wb") as file:
        for number in range(groups):
            lines.append(encode(Drawn(group=f"g{number}", index=number, seed=1, tag="walk", task=f"row {number}")))
            for member in range(size):
                uid = f"g{number}.{member}"
                end = Finished(uid=uid, reward=1.0, stop_reason=StopReason.TURNS, turns=1, tokens=1, seconds=1.0)
                lines += [encode(Dispatched(uid=uid)), encode(end)]
                new = record.replace(b'"g0.0"', f'"{uid}"'.encode()).replace(b'"g0"', f'"g{number}"'.encode())
                file.write(new + b"\n")
            lines.append(encode(Judged(group=f"g{number}", keep=True, reason="")))
            lines.append(encode(Delivered(batch=number, groups=[f"g{number}"])))
    (tmp_path / JOURNAL).write_bytes(b"".join(lines))
    tracemalloc.start()
    try:
        async with rollouts(tmp_path, group_size=size, resume=True, tasks=tasks) as source:
            assert (await source.collect(groups=1)).groups[0].id == f"g{groups}"
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept / (groups * size) < 30  # bytes for each rollout; what the process has besides makes up most of it


def test_digest_of_a_request_depends_on_all_that_is_asked_and_on_nothing_else() -> None:
    def said(*texts: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": text} for text in texts]

    grown = said("a", "b", "c")
    requests = [
        Request(said("a", "b", "c")),
        Request(said("x", "b", "c")),
        Request(said("a", "x", "c")),
        Request(said("b", "c")),
        Request(said("a", "b", "c"), sampling=Sampling(temperature=1.0)),
        Request(said("a", "b", "c"), prompt_ids=[1, 2]),
        Request(said("a", "b", "x")),
    ]
    digests = [_digests(request) for request in requests]
    assert len({one.all for one in digests}) == len(requests)
    assert len({one.last for one in digests}) == 2
    for size in (1, 2, 3, 2, 3):
        assert _digests(Request(grown[:size])) == _digests(Request(said("a", "b", "c")[:size]))
    pictures = [{"role": "user", "content": [{"type": "image", "image": np.zeros(3)}]}, *said("a")]
    assert _digests(Request(pictures)) == _digests(Request([{**pictures[0]}, *said("a")]))


@pytest.mark.parametrize("resume", [3, 4])
async def test_numbers_of_batches_that_were_left_out_are_not_given_twice(tmp_path: Path, resume: int) -> None:
    """A number stays free if its batch is taken back while another taker has the one after it."""
    async with rollouts(tmp_path) as source:
        groups = [group.id for _ in range(4) for group in (await source.collect(groups=1)).groups]
    journal = tmp_path / JOURNAL
    journal.write_bytes(journal.read_bytes().replace(b'"batch":3', b'"batch":4'))
    async with rollouts(tmp_path, resume=resume) as source:
        batches = [await source.collect(groups=1) for _ in range(3)]
    assert [batch.index for batch in batches] == [4, 5, 6]
    assert batches[0].groups[0].id == groups[3]


def test_batch_that_is_taken_back_beside_others_comes_later() -> None:
    past = RunHistory()
    delivered = [Delivered(batch=number, groups=[f"g{number}"]) for number in range(3)]
    transcripts: list[AnyEvent] = [
        Began(),
        *delivered,
        Began(batch=0),
        *delivered[:2],
        TakenBack(batch=0),
        delivered[0],
    ]
    for event in transcripts:
        past.add(event)
    assert past.next_batch == 2
    past.go_back_to(1)
    assert past.next_batch == 1


def test_verdicts_of_a_round_that_was_given_up_are_none() -> None:
    """Its filter's verdicts were not all recorded; the next verdict does not complete them."""
    past = RunHistory()
    judged = [Judged(group="g0", keep=True, reason="", more=1), Judged(group="g2", keep=True, reason="")]
    transcripts: list[AnyEvent] = [Began(), judged[0], Cancelled(group="g0"), judged[1]]
    for event in transcripts:
        past.add(event)
    assert [*past.verdicts] == ["g2"]
