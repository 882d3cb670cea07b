"""Recorded runs under odd circumstances: cancelled consumers, other arguments, agents of all kinds, secrets."""

import asyncio
import os
import resource
import shutil
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from asyncrollout import (
    ChatAgent,
    Failures,
    Generation,
    Group,
    JournalError,
    Outcome,
    Policy,
    ProviderError,
    Request,
    Rollouts,
    UsageError,
    filters,
)
from asyncrollout.journal.files import cut_torn_end
from asyncrollout.journal.history import read_past
from asyncrollout.journal.records import RunRecords
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES
from asyncrollout.redaction import hide, hide_in_command, without_secrets
from asyncrollout.trajectories import Move
from tests.envs.rollout import WALK
from tests.playing import PATIENCE
from tests.test_journal import events, rollouts
from tests.test_rollouts import Model, transcripts
from tests.waiting import all_tasks_blocked

Body = Callable[[Rollouts], Coroutine[Any, Any, Any]]


class Stopping(Model):
    """Gives no reply from some turn on."""

    def __init__(self, turn: int = 1) -> None:
        super().__init__()
        self._turn = turn

    async def generate(self, request: Request) -> Generation:
        if request.turn >= self._turn:
            await anyio.sleep_forever()
        return await super().generate(request)


async def break_off(source: Rollouts, body: Body) -> None:
    """Leave in the middle, when nothing moves any more."""
    async with source, anyio.create_task_group() as consumers:
        consumers.start_soon(body, source)
        await all_tasks_blocked()
        consumers.cancel_scope.cancel()


async def test_what_was_played_when_everything_is_cancelled_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrollout.journal.writer._LINGER", 10**6)  # nothing is written unless there is a hurry
    with anyio.CancelScope() as scope:
        async with rollouts(tmp_path, Stopping()) as source, anyio.create_task_group() as consumers:
            consumers.start_soon(source.collect, 3)
            await all_tasks_blocked()
            scope.cancel()
    assert len(events(tmp_path, "turn")) == 6


async def test_evaluation_continues_only_if_it_is_the_same(tmp_path: Path) -> None:
    await break_off(rollouts(tmp_path, Stopping()), lambda source: source.evaluate(["a", "b"]))
    async with rollouts(tmp_path, resume=True) as source:
        other = await source.evaluate(["c", "d"])
        longer = await source.evaluate(["a", "b"], env_kwargs={"turns": 1})
        same = await source.evaluate(["a", "b"])
    assert [one.task for one in other.trajectories] == ["c", "d"]
    assert [len(one.turns) for one in longer.trajectories] == [1, 1]
    assert [one.uid for one in same.trajectories] == ["eval0-g0.0", "eval0-g1.0"]


async def test_batch_whose_taker_is_cancelled_comes_next(tmp_path: Path) -> None:
    """By asyncio itself, which knows nothing of shields, at every step of the way."""
    seen: list[int] = []
    async with rollouts(tmp_path, keep=filters.reward_varies) as source:
        for steps in range(60):
            taking = asyncio.Task(source.collect(groups=1))
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            taking.cancel()
            try:
                seen.append((await taking).index)
            except asyncio.CancelledError:
                continue
        seen.append((await source.collect(groups=1)).index)
    assert seen == list(range(len(seen)))
    last = {event["batch"]: event["groups"] for event in events(tmp_path, "delivered")}  # others were taken back
    delivered = [group for groups in last.values() for group in groups]
    assert len(delivered) == len({*delivered}) == len(seen)
    assert len(events(tmp_path, "delivered")) - len(events(tmp_path, "taken_back")) == len(seen)


@pytest.mark.parametrize("order", ["finish", "start"])
@pytest.mark.parametrize("max_lag", [0, 1, None])
async def test_batches_are_delivered_again_as_they_were(tmp_path: Path, order: str, max_lag: int | None) -> None:
    options: dict[str, Any] = {"order": order, "max_lag": max_lag, "keep": filters.reward_varies}
    async with rollouts(tmp_path, Model(spread=9), **options) as source:
        first = []
        async for batch in source.batches(groups=2):
            first.append(transcripts(batch.groups))
            async with source.weight_update(batch.index + 1):
                pass
            if len(first) == 4:
                break
    model = Model(hurry=1, spread=9)
    async with rollouts(tmp_path, model, resume=2, **options) as source:
        assert (source.next_batch, source.version) == (2, 2)
        batches = source.batches(groups=2)
        assert [transcripts((await anext(batches)).groups) for _ in range(2)] == first[2:]
        assert model.calls == 0
        assert (await anext(batches)).index == 4
    assert read_past(tmp_path).next_batch == 5


async def test_on_policy_nothing_of_old_weights_is_left_over(tmp_path: Path) -> None:
    async def update_and_collect(source: Rollouts) -> list[Any]:
        batches = []
        while source.next_batch < 3:
            batches.append(transcripts((await source.collect(groups=2)).groups))
            async with source.weight_update(source.next_batch):
                pass
        return batches

    async with rollouts(tmp_path / "whole", max_lag=0) as source:
        whole = await update_and_collect(source)
    await break_off(rollouts(tmp_path / "run", Stopping(), max_lag=0), lambda source: source.collect(groups=4))
    async with rollouts(tmp_path / "run", max_lag=0, resume=True) as source:
        assert await update_and_collect(source) == whole
    assert {event["group"] for event in events(tmp_path / "run", "cancelled")} >= {"g2", "g3"}


async def test_source_that_waits_for_what_is_finished_is_reported(tmp_path: Path) -> None:
    class Waiting:
        def __init__(self) -> None:
            self.seen = 0
            self.changed = anyio.Event()

        async def __aiter__(self) -> Any:
            for number in range(6):
                while self.seen < number - 1:
                    await self.changed.wait()
                yield number

        def finished(self, group: Group) -> None:
            self.seen += 1
            self.changed.set()
            self.changed = anyio.Event()

    async with rollouts(tmp_path, tasks=Waiting(), max_lag=None) as source:
        await anext(source.batches(groups=3))
    waiting = Waiting()
    async with rollouts(tmp_path, tasks=waiting, max_lag=None, resume=True) as source:
        with anyio.fail_after(PATIENCE):
            assert (await anext(source.batches(groups=1))).groups[0].id == "g3"
    assert waiting.seen >= 3


@pytest.mark.parametrize("resume", [1.5, -1, "1", None, [1]])
def test_what_is_no_batch_to_continue_with_is_refused(tmp_path: Path, resume: Any) -> None:
    with pytest.raises(UsageError, match="is neither True, False nor the number of a batch"):
        rollouts(tmp_path, resume=resume)


def test_resume_needs_a_directory() -> None:
    with pytest.raises(UsageError, match="resume is for Rollouts with a run_dir"):
        Rollouts(WALK, policy=Model(), resume=True)
    with pytest.raises(UsageError, match="is not the path of a directory"):
        Rollouts(WALK, policy=Model(), run_dir="a\0b")


async def test_replies_with_numbers_of_numpy_are_recorded(tmp_path: Path) -> None:
    class Numpy(Stopping):
        async def generate(self, request: Request) -> Generation:
            said = await super().generate(request)
            ids: Any = np.array([1, 2])
            return msgspec.structs.replace(said, token_ids=ids, logprobs=[np.float32(-1), np.float32(-np.inf)])

    await break_off(rollouts(tmp_path, Numpy(2)), lambda source: source.collect(groups=1))
    model = Model()
    async with rollouts(tmp_path, model, resume=True) as source:
        (group,) = (await source.collect(groups=1)).groups
    assert model.calls == 2
    first = group.trajectories[0].turns[0]
    assert (first.token_ids is not None and first.token_ids.tolist()) == [1, 2]
    assert first.logprobs is not None
    assert first.logprobs.tolist() == [-1, -np.inf]


async def test_reply_that_cannot_be_recorded_is_asked_for_again(tmp_path: Path) -> None:
    class Odd(Stopping):
        async def generate(self, request: Request) -> Generation:
            return msgspec.structs.replace(await super().generate(request), state=object())

    with capture_logs() as logs:
        await break_off(rollouts(tmp_path, Odd(2)), lambda source: source.collect(groups=1))
    assert {log["event"] for log in logs} == {"reply_not_recorded"}
    model = Model()
    async with rollouts(tmp_path, model, resume=True) as source:
        await source.collect(groups=1)
    assert model.calls == 6


async def test_full_disk_is_reported_by_an_evaluation(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with rollouts(tmp_path) as source:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limits[1]))
        try:
            with pytest.raises(JournalError, match="File too large"):
                await source.evaluate(20)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def test_directory_that_is_deleted_under_a_run_is_reported(tmp_path: Path) -> None:
    async with rollouts(tmp_path / "run") as source:
        await source.collect(groups=1)
        while (tmp_path / "run").exists():  # the figures of the batch may be on their way to it
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
        with pytest.raises(JournalError, match="the directory of the run is gone"):
            await source.collect(groups=1)


async def test_files_of_another_run_are_not_taken_for_this_one(tmp_path: Path) -> None:
    async with rollouts(tmp_path) as source:
        await source.collect(groups=1)
    (tmp_path / JOURNAL).unlink()
    with pytest.raises(UsageError, match="holds a run already"):
        await rollouts(tmp_path).__aenter__()
    (tmp_path / TRAJECTORIES).write_bytes(b"")
    (tmp_path / JOURNAL).write_bytes(b'{"event": "beg')  # killed before the first line was there
    async with rollouts(tmp_path) as source:
        assert (await source.collect(groups=1)).index == 0


async def test_forked_process_does_not_keep_the_directory(tmp_path: Path) -> None:
    async with rollouts(tmp_path) as source:
        await source.collect(groups=1)
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
    try:
        async with rollouts(tmp_path, resume=True) as source:
            await source.collect(groups=1)
    finally:
        os.kill(child, signal.SIGKILL)
        await anyio.to_thread.run_sync(os.waitpid, child, 0)


@dataclass(frozen=True)
class Doubting:
    """Asks twice in a turn, both at once, and takes the second reply."""

    policy: Policy

    def open(self, session: str, seed: int) -> "DoubtingPlayer":
        return DoubtingPlayer(self.policy, session, seed)


class DoubtingPlayer:
    def __init__(self, policy: Policy, session: str, seed: int) -> None:
        self.messages: list[dict[str, Any]] = []
        self._policy, self._session, self._seed, self._turn = policy, session, seed, 0

    async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:
        replies: dict[int, Generation] = {}

        async def ask(number: int) -> None:
            sampling = msgspec.structs.replace(Request().sampling, seed=self._seed + self._turn + number)
            messages = [{"role": "user", "content": f"{outcome.observation.text} {number}"}]
            replies[number] = await self._policy.generate(
                Request(messages, sampling=sampling, session=self._session, turn=self._turn)
            )

        async with anyio.create_task_group() as asking:
            for number in range(2):
                asking.start_soon(ask, number)
        self._turn += 1
        return Move(replies[1].text, replies[1])


async def test_agent_that_asks_twice_in_a_turn_is_replayed(tmp_path: Path) -> None:
    async with rollouts(tmp_path / "whole", agent=Doubting(Model())) as source:
        whole = transcripts((await source.collect(groups=1)).groups)
    await break_off(rollouts(tmp_path / "run", agent=Doubting(Stopping(2))), lambda source: source.collect(groups=1))
    model = Model(spread=9)
    async with rollouts(tmp_path / "run", agent=Doubting(model), resume=True) as source:
        assert transcripts((await source.collect(groups=1)).groups) == whole
    assert model.calls == 4


async def test_agent_whose_replies_cannot_be_recorded_is_reported(tmp_path: Path) -> None:
    class Plain:
        def __init__(self, policy: Policy) -> None:
            self.agent = ChatAgent(policy)

        def open(self, session: str, seed: int) -> Any:
            return self.agent.open(session, seed)

    with capture_logs() as logs:
        async with rollouts(tmp_path, agent=Plain(Model())) as source:
            await source.collect(groups=1)
    assert [log["event"] for log in logs] == ["replies_not_recorded"]


async def test_secrets_do_not_reach_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-of-the-key")
    monkeypatch.setattr("sys.argv", ["train.py", "--api-key", "canary-1", "--openai-key=canary-2", "canary-of-the-key"])

    class Telling(Model):
        async def generate(self, request: Request) -> Generation:
            if request.session.endswith(".0"):
                raise ProviderError("refused: Bearer canary-3, canary-of-the-key at http://u:canary-4@host/")
            return await super().generate(request)

    failures = Failures(retries=1, min_valid=1)
    async with rollouts(tmp_path, Telling(), failures=failures) as source:
        await source.collect(groups=2)
    for path in tmp_path.rglob("*"):
        assert b"canary" not in path.read_bytes(), path


def test_secrets_are_hidden_by_name_and_by_look() -> None:
    assert hide_in_command(["a", "--token", "x", "password=y", "key"]) == [
        "a", "--token", "[hidden]", "password=[hidden]", "key",
    ]  # fmt: skip
    assert without_secrets({"X-Key": 1, "monkey": 2, "deep": [{"api_key": "a"}]}) == {
        "X-Key": "[hidden]",
        "monkey": 2,
        "deep": [{"api_key": "[hidden]"}],
    }
    assert hide("at https://me:pw@host/x", []) == "at https://[hidden]@host/x"


async def test_records_of_a_run_can_be_read_while_it_continues(tmp_path: Path) -> None:
    async with rollouts(tmp_path, keep=filters.reward_varies) as source:
        batches = [await source.collect(groups=2) for _ in range(3)]
        with (tmp_path / TRAJECTORIES).open("ab") as file:
            file.write(b'{"uid": "g9')
        records = RunRecords(tmp_path)
        assert [(index, transcripts(groups)) for index, groups in records.batches()] == [
            (batch.index, transcripts(batch.groups)) for batch in batches
        ]
        assert records.find(batches[1].groups[0].trajectories[1].uid).tag == "walk"
        with pytest.raises(UsageError, match=r"no finished rollout 'g99.0': \d+ are finished, such as g0.0"):
            records.find("g99.0")
    with pytest.raises(UsageError, match="holds no run"):
        RunRecords(tmp_path / "other")


@given(content=st.binary(max_size=40).map(lambda content: content.replace(b"\x00", b"\n")), block=st.integers(1, 50))
def test_torn_end_is_cut_and_nothing_else(content: bytes, block: int) -> None:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncrollout.journal.files._BLOCK", block)
        path = Path(directory) / "file"
        cut_torn_end(path)
        path.write_bytes(content)
        cut_torn_end(path)
        assert path.read_bytes() == content[: content.rfind(b"\n") + 1]
