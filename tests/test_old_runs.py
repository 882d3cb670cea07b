"""Runs that older versions recorded can be resumed, replayed and reported."""

import json
from pathlib import Path

import pytest

from asyncrollout.cli.app import main
from asyncrollout.journal.records import RunRecords
from tests.old_runs import COMMAND_LINE, TRAINER, copied, described, resumed


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
