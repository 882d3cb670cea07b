"""Runs that are recorded, broken off at any point, and resumed: nothing is lost, nothing is done twice."""

import dataclasses
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import (
    EnvSpec,
    Failures,
    Generation,
    Group,
    JournalError,
    Limits,
    MemoryAgent,
    ProviderError,
    Request,
    RolloutError,
    Rollouts,
    StopReason,
    Usage,
    UsageError,
    Verdict,
    filters,
)
from asyncrollout.journal import writer
from asyncrollout.journal.events import (
    AnyEvent,
    Began,
    Dispatched,
    Finished,
    decode,
    decode_reply,
    encode,
    encode_reply,
    sampled_tokens,
)
from asyncrollout.journal.history import read_past
from asyncrollout.journal.records import RunRecords
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES, Writer
from tests.envs.rollout import ODD_WALK, WALK
from tests.playing import PATIENCE
from tests.test_rollouts import Model, transcripts
from tests.waiting import all_tasks_blocked

REPOSITORY = Path(__file__).parent.parent
LOST = Finished(uid="g9.0", reward=1.0, stop_reason=StopReason.TURNS, turns=1, tokens=1, seconds=1.0)


def rollouts(run_dir: Path, policy: Any = None, **options: Any) -> Rollouts:
    options = {"group_size": 2, "seed": 1, "order": "start", **options}
    if "agent" not in options:
        options["policy"] = Model() if policy is None else policy
    return Rollouts(options.pop("env", WALK), run_dir=run_dir, **options)


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    every = [msgspec.json.decode(line) for line in (run_dir / JOURNAL).read_bytes().splitlines()]
    return [event for event in every if event["event"] == kind]


def run_killing(directory: Path, kills: int) -> None:
    script = REPOSITORY / "tests" / "scripts" / "killing.py"
    command = [sys.executable, str(script), str(directory), str(kills), "7"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["wrong"] == []
    assert result["kills"] >= kills


def test_killed_at_random_bytes_and_resumed_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    run_killing(tmp_path, 30)


@pytest.mark.slow
def test_killed_at_many_random_bytes_and_resumed_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    run_killing(tmp_path, 300)


async def test_what_is_delivered_is_on_disk(tmp_path: Path) -> None:
    async with rollouts(tmp_path / "run") as source:
        async for batch in source.batches(groups=2):
            uids = {event["uid"] for event in events(tmp_path / "run", "finished")}
            assert uids >= {member.uid for group in batch.groups for member in group.trajectories}
            assert events(tmp_path / "run", "delivered")[-1]["groups"] == [group.id for group in batch.groups]
            past = read_past(tmp_path / "run")
            assert past.next_batch == batch.index + 1
            if batch.index == 3:
                break
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_bytes())
    assert (manifest["seed"], manifest["group_size"]) == (1, 2)
    assert manifest["envs"]["walk"]["env"] == "walk"
    assert "anyio" in manifest["packages"]


async def test_resumed_run_continues_with_what_the_other_would_have_delivered(tmp_path: Path) -> None:
    async with rollouts(tmp_path / "whole", keep=filters.reward_varies) as source:
        whole = [transcripts((await source.collect(groups=3)).groups) for _ in range(4)]
    async with rollouts(tmp_path / "run", keep=filters.reward_varies) as source:
        parts = [transcripts((await source.collect(groups=3)).groups) for _ in range(2)]
    model = Model()
    async with rollouts(tmp_path / "run", model, keep=filters.reward_varies, resume=True) as source:
        assert source.next_batch == 2
        parts += [transcripts((await source.collect(groups=3)).groups) for _ in range(2)]
        assert source.ledger.balanced
    assert parts == whole


async def test_journal_that_lost_all_its_lines_begins_anew_and_can_be_resumed(tmp_path: Path) -> None:
    async with rollouts(tmp_path) as source:
        first = transcripts((await source.collect(groups=3)).groups)
    (tmp_path / JOURNAL).write_bytes(b"")
    async with rollouts(tmp_path, resume=True) as source:
        assert transcripts((await source.collect(groups=3)).groups) == first
    async with rollouts(tmp_path, resume=True) as source:
        assert source.next_batch == 1


async def test_groups_that_are_judged_together_are_so_again_if_not_all_verdicts_were_written(tmp_path: Path) -> None:
    options: dict[str, Any] = {"keep": filters.top_std(0.5), "max_lag": 0}

    async def taken(run_dir: Path, **more: Any) -> list[Any]:
        async with rollouts(run_dir, **options, **more) as source:
            return [transcripts((await source.collect(groups=3)).groups) for _ in range(2 - source.next_batch)]

    whole = await taken(tmp_path / "whole")
    lines = (tmp_path / "whole" / JOURNAL).read_bytes().splitlines(keepends=True)
    first = [place for place, line in enumerate(lines, start=1) if b'"event":"judged"' in line][:4]
    for cut in first:
        killed = tmp_path / f"killed {cut}"
        killed.mkdir()
        shutil.copy(tmp_path / "whole" / TRAJECTORIES, killed)
        (killed / JOURNAL).write_bytes(b"".join(lines[:cut]))
        assert await taken(killed, resume=True) == whole


async def test_batches_are_delivered_again_from_where_a_trainer_says(tmp_path: Path) -> None:
    async with rollouts(tmp_path / "run", keep=filters.reward_varies) as source:
        first = [batch async for batch in _some(source, 4)]
        async with source.weight_update(7):
            pass
    model = Model()
    async with rollouts(tmp_path / "run", model, keep=filters.reward_varies, resume=1) as source:
        assert source.version == 0
        again = [batch async for batch in _some(source, 3)]
    assert [(batch.index, transcripts(batch.groups)) for batch in again] == [
        (batch.index, transcripts(batch.groups)) for batch in first[1:]
    ]
    asked = {event["uid"] for event in events(tmp_path / "run", "turn")}
    delivered = {member.uid for batch in again for group in batch.groups for member in group.trajectories}
    assert delivered <= asked
    assert [event["batch"] for event in events(tmp_path / "run", "delivered")] == [0, 1, 2, 3, 1, 2, 3]
    with pytest.raises(UsageError, match="batch 9 is not the next one: 4 have been delivered"):
        await rollouts(tmp_path / "run", resume=9).__aenter__()


async def _some(source: Rollouts, count: int) -> Any:
    batches = source.batches(groups=2)
    for _ in range(count):
        yield await anext(batches)


async def test_weights_and_evaluations_are_remembered(tmp_path: Path) -> None:
    async with rollouts(tmp_path / "run") as source:
        async with source.weight_update(3):
            pass
        first = await source.evaluate(2, k=2)
    model = Model()
    async with rollouts(tmp_path / "run", model, resume=True) as source:
        assert source.version == 3
        second = await source.evaluate(2, k=2)
    assert model.calls > 0
    assert [one.uid for one in first.trajectories] == ["eval0-g0.0", "eval0-g0.1", "eval0-g1.0", "eval0-g1.1"]
    assert [one.uid for one in second.trajectories] == ["eval1-g0.0", "eval1-g0.1", "eval1-g1.0", "eval1-g1.1"]


async def test_evaluation_that_was_interrupted_is_resumed(tmp_path: Path) -> None:
    class Stopping(Model):
        async def generate(self, request: Request) -> Generation:
            if request.turn == 2 and request.session.endswith("g1.0"):
                await anyio.sleep_forever()
            return await super().generate(request)

    stopping = Stopping()
    async with rollouts(tmp_path / "run", stopping) as source, anyio.create_task_group() as evaluating:
        evaluating.start_soon(source.evaluate, 2)
        evaluating.start_soon(source.evaluate, [1, 2])
        with anyio.fail_after(PATIENCE):
            while stopping.calls < 10:  # of each evaluation three turns of the first task, and two of the second
                await all_tasks_blocked()
        await all_tasks_blocked()
        evaluating.cancel_scope.cancel()
    model = Model()
    async with rollouts(tmp_path / "run", model, resume=True) as source:
        evaluation = await source.evaluate(2)
        assert [one.uid for one in evaluation.trajectories] == ["eval0-g0.0", "eval0-g1.0"]
        assert model.calls == 1


async def test_run_with_a_name_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    async with rollouts(tmp_path / "run") as source:
        await source.collect(groups=1)
        before = (tmp_path / "run" / JOURNAL).read_bytes()
        with pytest.raises(UsageError, match="is in use by another process"):
            await rollouts(tmp_path / "run", resume=True).__aenter__()
    with pytest.raises(UsageError, match="holds a run already: resume it, or choose another directory"):
        await rollouts(tmp_path / "run").__aenter__()
    with pytest.raises(UsageError, match="holds no run"):
        await rollouts(tmp_path / "other", resume=True).__aenter__()
    with pytest.raises(UsageError, match=r"cannot be resumed with other settings: seed=2 \(was 1\)"):
        await rollouts(tmp_path / "run", resume=True, seed=2).__aenter__()
    assert (tmp_path / "run" / JOURNAL).read_bytes() == before


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        (b"hello\n", r"journal.jsonl, line 3: this is not a line of a journal"),
        (b"\xff\xfe\x00\n", r"line 3: this is not a line of a journal"),
        (b'{"event": "danced", "at": 1.0}\n', r"line 3: .*danced"),
        (encode(Began(version=99)), r"line 3: .*version 99: this asyncrollout reads .* up to version 1"),
        (encode(LOST), r"trajectories.jsonl lacks 1 rollouts that journal.jsonl says are finished, such as g9.0"),
    ],
)
async def test_journal_with_a_foreign_line_is_reported_and_left_alone(
    tmp_path: Path, line: bytes, trouble: str
) -> None:
    async with rollouts(tmp_path / "run") as source:
        await source.collect(groups=1)
    path = tmp_path / "run" / JOURNAL
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line, *lines[2:]]))
    content = path.read_bytes()
    with pytest.raises(RolloutError, match=trouble):
        await rollouts(tmp_path / "run", resume=True).__aenter__()
    assert path.read_bytes() == content


async def test_trajectories_that_are_no_trajectories_are_reported(tmp_path: Path) -> None:
    async with rollouts(tmp_path / "run") as source:
        await source.collect(groups=1)
    with (tmp_path / "run" / TRAJECTORIES).open("ab") as file:
        file.write(b"[1, 2]\n")
    with pytest.raises(UsageError, match=r"trajectories.jsonl, line 3: "):
        await rollouts(tmp_path / "run", resume=True).__aenter__()


async def test_tasks_must_be_the_same_but_for_a_source_that_chooses(tmp_path: Path) -> None:
    async with rollouts(tmp_path / "run", tasks=["a", "b", "c"]) as source:
        await source.collect(groups=1)
    with pytest.raises(UsageError, match="task 0 was 'a', and is now 'x'"):
        async with rollouts(tmp_path / "run", tasks=["x", "b", "c"], resume=True) as source:
            await source.collect(groups=1)

    class Chooser:
        """Its next task follows from what is finished; it has none before something is."""

        def __init__(self) -> None:
            self.seen: list[str] = []

        def __iter__(self) -> Any:
            while True:
                yield f"after {len(self.seen)}"

        def finished(self, group: Group) -> None:
            self.seen.append(group.id)

    chooser = Chooser()
    async with rollouts(tmp_path / "run", tasks=chooser, resume=True) as source:
        assert chooser.seen == ["g0"]
        batch = await source.collect(groups=1)
        assert chooser.seen == ["g0", "g1"]
    assert [group.trajectories[0].task for group in batch.groups] == ["after 1"]


async def test_env_that_shows_something_else_on_replay_is_an_error_of_its_rollouts(tmp_path: Path) -> None:
    class Stopping(Model):
        async def generate(self, request: Request) -> Generation:
            if request.turn == 1:
                await anyio.sleep_forever()
            return await super().generate(request)

    async def break_off(run_dir: Path, env: EnvSpec) -> None:
        async with rollouts(run_dir, Stopping(), env=env) as source, anyio.create_task_group() as consumers:
            consumers.start_soon(source.collect, 1)
            await all_tasks_blocked()
            consumers.cancel_scope.cancel()

    await break_off(tmp_path / "run", WALK)
    journal = tmp_path / "run" / JOURNAL
    journal.write_bytes(journal.read_bytes().replace(b'"asked":', b'"asked":1'))
    model = Model()
    options: dict[str, Any] = {"resume": True, "failures": Failures(retries=0)}
    async with rollouts(tmp_path / "run", model, **options) as source:
        batch = await source.collect(groups=1)
        assert [group.id for group in batch.groups] == ["g1"]
    failed = {event["uid"]: event["error"] for event in events(tmp_path / "run", "finished") if "error" in event}
    assert "EnvDiverged: turn 0 of g0.0 is not as it was when its reply was recorded" in (failed["g0.0"] or "")

    once_only = dataclasses.replace(WALK, replayable=False)
    await break_off(tmp_path / "outside", once_only)
    async with rollouts(tmp_path / "outside", model, env=once_only, **options) as source:
        assert [group.id for group in (await source.collect(groups=1)).groups] == ["g1"]
    (first, *_) = [event["error"] for event in events(tmp_path / "outside", "finished") if event.get("error")]
    assert first.endswith("was interrupted within an episode, and is not replayable")


async def test_retries_of_a_group_are_remembered(tmp_path: Path) -> None:
    class Failing(Model):
        async def generate(self, request: Request) -> Generation:
            self.calls += 1
            if self.calls > 3:
                await anyio.sleep_forever()
            raise ProviderError("no answer")

    async with rollouts(tmp_path / "run", Failing(), group_size=1) as source, anyio.create_task_group() as consumers:
        consumers.start_soon(source.collect, 1)
        await all_tasks_blocked()
        consumers.cancel_scope.cancel()
    assert read_past(tmp_path / "run").retries["g0"] == 2
    failing = Failing()
    failing.calls = -1000
    async with rollouts(tmp_path / "run", failing, group_size=1, resume=True) as source:
        with pytest.raises(RolloutError, match="no answer"):
            await source.collect(groups=1)
    ends = [event["uid"] for kind in ("failed", "finished") for event in events(tmp_path / "run", kind)]
    assert ends.count("g0.0") == 3


async def test_trajectory_that_cannot_be_written_has_failed_alone(tmp_path: Path) -> None:
    def score(trajectory: Any) -> float:
        if trajectory.uid == "g0.1":
            trajectory.messages.append({"odd": object()})
        return 1.0

    async with rollouts(tmp_path / "run", score=score, failures=Failures(min_valid=1)) as source:
        (group,) = (await source.collect(groups=1)).groups
    assert [member.stop_reason for member in group.trajectories] == [StopReason.TERMINATED, StopReason.ENV_ERROR]
    assert re.search(r"messages\[\d+\].odd: a builtins.object cannot be written", str(group.trajectories[1].error))
    assert read_past(tmp_path / "run").next_batch == 1


async def test_full_disk_is_one_clear_error_and_what_was_written_can_be_resumed(tmp_path: Path) -> None:
    async def collect_for_ever(source: Rollouts) -> None:
        while True:
            await source.collect(groups=2)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        async with rollouts(tmp_path / "run") as source:
            with anyio.fail_after(PATIENCE), pytest.raises(JournalError, match=r"cannot write to .*: File too large"):
                await collect_for_ever(source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "run" / TRAJECTORIES).stat().st_size == 20_000  # in the middle of a line
    delivered = read_past(tmp_path / "run").next_batch
    assert delivered > 0
    async with rollouts(tmp_path / "run", resume=True) as source:
        assert (await source.collect(groups=2)).index == delivered


async def test_directory_that_cannot_be_written_to_is_reported_before_anything_is_played(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    model = Model()
    with pytest.raises(JournalError, match=r"cannot write to .*/file/run: Not a directory"):
        await rollouts(tmp_path / "file" / "run", model).__aenter__()
    assert model.calls == 0


async def test_numeric_agents_are_replayed_with_their_memory(tmp_path: Path) -> None:
    class Counting:
        def __init__(self, *, stop_at: int | None) -> None:
            self.stop_at = stop_at
            self.calls = 0

        async def generate(self, request: Request) -> Generation:
            self.calls += 1
            state = np.zeros(2) if request.data.state is None else request.data.state
            if request.turn == self.stop_at:
                await anyio.sleep_forever()
            return Generation("", action=np.int64(1 + state.sum() % 3), state=state + 1, logprobs=[-np.inf])

    options: dict[str, Any] = {"env_kwargs": {"text": False, "turns": 4}}
    async with rollouts(tmp_path / "whole", agent=MemoryAgent(Counting(stop_at=None)), **options) as source:
        (whole,) = (await source.collect(groups=1)).groups
    stopping = MemoryAgent(Counting(stop_at=3))
    async with (
        rollouts(tmp_path / "run", agent=stopping, **options) as source,
        anyio.create_task_group() as consumers,
    ):
        consumers.start_soon(source.collect, 1)
        await all_tasks_blocked()
        consumers.cancel_scope.cancel()
    counting = Counting(stop_at=None)
    async with rollouts(tmp_path / "run", agent=MemoryAgent(counting), resume=True, **options) as source:
        (resumed,) = (await source.collect(groups=1)).groups
    assert [[turn.action for turn in one.turns] for one in resumed.trajectories] == [
        [turn.action for turn in one.turns] for one in whole.trajectories
    ]
    assert counting.calls < 2 * 4


@given(
    text=st.text(st.characters(exclude_categories=())),
    logprobs=st.none() | st.lists(st.floats(max_value=0, allow_nan=False)),
    action=st.none() | st.integers() | st.floats(allow_nan=False) | st.just((1, "a")),
)
def test_replies_come_back_as_they_were(text: str, logprobs: list[float] | None, action: Any) -> None:
    ids = None if logprobs is None else [*range(len(logprobs))]
    generation = Generation(
        text, token_ids=ids, logprobs=logprobs, action=action, tool_calls=[{"name": "f"}], usage=Usage(completion=7)
    )
    line = encode(Dispatched(uid="g0.0"))
    event: AnyEvent = decode(line)
    assert isinstance(event, Dispatched)
    assert decode_reply(encode_reply(generation)) == generation
    assert sampled_tokens(encode_reply(generation)) == generation.sampled_tokens


async def test_writer_writes_in_order_and_waits_for_a_full_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_MOST_QUEUED", 1000)
    async with Writer(tmp_path) as writing, anyio.create_task_group() as tasks:

        async def produce(name: str) -> None:
            for number in range(200):
                await writing.room()
                writing.put(Dispatched(uid=f"{name}.{number}"), f'"{name}.{number}"\n'.encode())
                assert writing._queued - writing._written < 2000

        for name in "ab":
            tasks.start_soon(produce, name)
    uids = [event["uid"] for event in events(tmp_path, "dispatched")]
    assert [uid for uid in uids if uid.startswith("a")] == [f"a.{number}" for number in range(200)]
    assert (tmp_path / TRAJECTORIES).read_bytes().decode().split() == [f'"{uid}"' for uid in uids]


async def test_recording_changes_no_outcome_whatever_info_holds(tmp_path: Path) -> None:
    found = []
    for run_dir in (None, tmp_path / "run"):
        async with Rollouts(ODD_WALK, policy=Model(), group_size=2, seed=1, order="start", run_dir=run_dir) as source:
            found.append((await source.collect(groups=2)).groups)
    assert transcripts(found[0]) == transcripts(found[1])
    assert all(one.valid for group in found[1] for one in group.trajectories)
    info = RunRecords(tmp_path / "run").find("g0.0").trajectory.turns[0].info
    assert info["counted"] == {"a": 2, "b": 1}
    assert (info["named"], info["direction"], info["day"]) == ((1, 2), "Direction.UP", "2026-01-01")
    assert (info["where"], info["price"], info["objects"]) == ("a/b", "1.5", "[{}]")


async def test_verdicts_and_numbers_of_numpy_are_recorded(tmp_path: Path) -> None:
    options: dict[str, Any] = {"group_size": np.int64(2), "seed": np.int64(1), "max_lag": np.int64(1)}
    options |= {"limits": Limits(turns=np.int64(3))}  # type: ignore[arg-type]
    keep = iter([lambda group: Verdict(group.rewards.std() >= 0), lambda group: group.rewards.std() >= 0])
    first: Any = next(keep)
    async with rollouts(tmp_path / "run", keep=first, **options) as source:
        await source.collect(groups=np.int64(2))  # type: ignore[arg-type]
        async with source.weight_update(version=np.int64(3)):  # type: ignore[arg-type]
            pass
        await source.evaluate(np.int64(1), k=np.int64(2), seed=np.int64(4))  # type: ignore[arg-type]
    assert [event["weights"] for event in events(tmp_path / "run", "weights")] == [3]
    second: Any = next(keep)
    plain = {"group_size": 2, "seed": 1, "limits": Limits(turns=3), "resume": True}
    async with rollouts(tmp_path / "run", keep=second, **plain) as source:  # the same settings
        await source.collect(groups=1)
    assert [type(event["keep"]) for event in events(tmp_path / "run", "judged")] == [bool] * 3


async def test_filter_that_gives_no_verdict_is_named(tmp_path: Path) -> None:
    def mistaken(group: Group) -> Any:
        return Verdict(keep="yes")  # type: ignore[arg-type]

    async with rollouts(tmp_path / "run", keep=mistaken) as source:
        with pytest.raises(UsageError, match=r"mistaken raised TypeError: Verdict: keep='yes'"):
            await source.collect(groups=1)
