"""Runs that older versions recorded can be resumed, replayed and reported."""

import json
from pathlib import Path

import pytest

from asyncrollout.cli.app import main
from asyncrollout.journal.records import RunRecords
from tests.old_runs import COMMAND_LINE, OTHER_ROOMS, TRAINER, copied, described, other_rooms_rollouts, resumed


@pytest.fixture(params=[COMMAND_LINE, TRAINER], ids=["command_line", "trainer"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return copied(request.param, tmp_path)


async def test_resumed_batches_are_those_of_the_version_that_recorded_them(tmp_path: Path) -> None:
    expected = json.loads((TRAINER / "expected.json").read_text())
    assert await resumed(copied(TRAINER, tmp_path)) == expected["on"]


async def test_recorded_batches_are_delivered_again_as_they_were(tmp_path: Path) -> None:
    expected = json.loads((TRAINER / "expected.json").read_text())
    assert await resumed(copied(TRAINER, tmp_path), resume=0) == expected["again"]


def test_a_run_of_the_command_line_is_resumed_to_its_end(tmp_path: Path) -> None:
    directory = copied(COMMAND_LINE, tmp_path)
    assert main(["resume", str(directory)]) == 0
    batches = [[index, [described(group) for group in groups]] for index, groups in RunRecords(directory).batches()]
    assert batches == json.loads((COMMAND_LINE / "expected.json").read_text())
    assert (directory / "report.html").exists()


def test_every_rollout_replays_as_recorded(run: Path) -> None:
    for _, groups in RunRecords(run).batches():
        for one in (member for group in groups for member in group.completed):
            assert main(["replay", str(run), one.uid]) == 0


def test_a_report_is_made(run: Path) -> None:
    assert main(["report", str(run)]) == 0
    assert all(name in (run / "report.html").read_text() for name in ("g0.0", "reward"))


async def test_rooms_that_have_changed_are_not_mixed_with_those_recorded(tmp_path: Path) -> None:
    """What is finished is delivered as it was; an episode in a room that is another one now fails by name."""
    directory = copied(OTHER_ROOMS, tmp_path)
    recorded = [[described(group) for group in groups] for _, groups in RunRecords(directory).batches()]
    async with other_rooms_rollouts(directory, resume=0) as rollouts:
        batches = rollouts.batches(groups=1)
        delivered = [await anext(batches) for _ in range(3)]
    assert [[described(group) for group in batch.groups] for batch in delivered[:2]] == recorded
    lost = [group for group in RunRecords(directory).groups() if group.id == "g2"]
    assert [type(member.error).__name__ for group in lost for member in group.trajectories] == ["EnvDiverged"] * 2
    assert [group.id for group in delivered[2].groups] == ["g3"]


def test_a_rollout_in_a_room_that_has_changed_is_not_as_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = copied(OTHER_ROOMS, tmp_path)
    assert main(["replay", str(directory), "g0.0"]) == 1
    assert "not as recorded: before turn 0 the env shows" in capsys.readouterr().out
    assert main(["report", str(directory)]) == 0
    assert (directory / "report.html").exists()
