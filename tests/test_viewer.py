"""The viewer: what it lists and serves, to whom, and that a browser follows a run that goes on."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio
import anyio.to_thread
import pytest
from anyio.from_thread import check_cancelled
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from asyncrollout import Group, UsageError, Verdict
from asyncrollout.journal.events import Began
from asyncrollout.telemetry import METRICS
from asyncrollout.viewer.run_index import RunIndex, last_figures
from asyncrollout.viewer.server import serving
from tests.chromium import needs_chromium, opened
from tests.playing import PATIENCE
from tests.recorded_runs import BEGAN, events_of, group_of_rewards, played, write_run

ATTACK = "<img src=x onerror='window.pwned=1'>"


def figures(directory: Path, **values: float) -> None:
    (directory / METRICS).write_text(json.dumps({"at": 1.0, **values}) + "\n")


def quiet(directory: Path) -> None:
    """As if nothing had been written for an hour."""
    for path in directory.iterdir():
        os.utime(path, (time.time() - 3600,) * 2)


@asynccontextmanager
async def viewing(*places: Path) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    async with serving(RunIndex(places), None) as address, aiohttp.ClientSession(address) as session:
        yield address, session


async def read(session: aiohttp.ClientSession, path: str, **options: Any) -> tuple[int, str]:
    async with session.get(path, **options) as answer:
        return answer.status, await answer.text()


async def test_runs_are_listed_as_they_stand(tmp_path: Path) -> None:
    for name, began in (("done", 1), ("going", 3), ("ended", 2)):
        events = [Began(at=BEGAN + began, given={"envs": {"maze": {}}})]
        write_run(tmp_path / "runs" / name, [], [*events])
    figures(tmp_path / "runs" / "done", batches=4, wanted_batches=4)
    figures(tmp_path / "runs" / "going", batches=1, wanted_batches=4)
    quiet(tmp_path / "runs" / "ended")
    (tmp_path / "runs" / "no_run").mkdir()
    other = write_run(tmp_path / "elsewhere" / "done", [], [Began(at=BEGAN)])
    async with viewing(tmp_path / "runs", other, other) as (_, session):
        listed = json.loads((await read(session, "/runs.json"))[1])
        assert [(run["name"], run["state"], run["envs"]) for run in listed] == [
            ("going", "playing", ["maze"]), ("ended", "stopped", ["maze"]), ("done", "complete", ["maze"]),
            ("done (2)", "playing", []),
        ]  # fmt: skip
        write_run(tmp_path / "runs" / "late", [], [Began(at=BEGAN + 9)])
        assert json.loads((await read(session, "/runs.json"))[1])[0]["name"] == "late"


def test_each_run_has_a_name_of_its_own(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, []) for name in ("a/run", "a/run (2)", "b/run", "c/run")]
    found = RunIndex([tmp_path / "a", tmp_path / "b", tmp_path / "c"]).runs()
    assert found == dict(zip(("run", "run (2)", "run (3)", "run (4)"), paths, strict=True))


def test_figures_that_are_no_numbers_hide_no_others(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"batches": 4, "reward_mean": null}\n')
    assert last_figures(tmp_path) == {"batches": 4}


class Endless(RunIndex):
    """Looks for runs until it is stopped."""

    def __init__(self) -> None:
        super().__init__([])
        self.looks = threading.Event()

    def runs(self) -> dict[str, Path]:
        self.looks.set()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            check_cancelled()
        raise AssertionError("nobody stopped it")


async def test_end_of_the_viewer_stops_what_it_is_at() -> None:
    shelf = Endless()
    async with AsyncExitStack() as served, aiohttp.ClientSession() as session, anyio.create_task_group() as tasks:
        address = await served.enter_async_context(serving(shelf, None))
        answers: list[tuple[int, str]] = []

        async def ask() -> None:
            answers.append(await read(session, f"{address}runs/run/"))

        tasks.start_soon(ask)
        assert await anyio.to_thread.run_sync(shelf.looks.wait, PATIENCE)
        await served.aclose()
    assert answers == [(503, "The viewer was stopped.")]


async def test_report_is_that_of_the_run_as_it_is_now(tmp_path: Path) -> None:
    groups = [group_of_rewards("g0", [0.0, 1.0])]
    directory = write_run(tmp_path / "run", groups)
    (directory / "videos").mkdir()
    (directory / "videos" / "g0.0.mp4").write_bytes(b"video")
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    (directory / "videos" / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    async with viewing(directory) as (_, session):
        status, page = await read(session, "/runs/run/")
        assert (status, '"id":"g0"' in page, "g0.0.mp4" in page, "link.mp4" in page) == (200, True, True, False)
        write_run(directory, [*groups, group_of_rewards("g1", [1.0])])
        assert '"id":"g1"' in (await read(session, "/runs/run/"))[1]
        assert await read(session, "/runs/run/videos/g0.0.mp4") == (200, "video")
        async with session.get("/runs/run/videos/g0.0.mp4", headers={"Range": "bytes=1-2"}) as part:
            assert (part.status, await part.read()) == (206, b"id")
        for outside in ("link.mp4", "..%2F..%2Fsecret.mp4", "nothing.mp4", "a%00b"):
            assert (await read(session, f"/runs/run/videos/{outside}"))[0] in (400, 404), outside
    assert not (directory / "report.html").exists()


@pytest.mark.parametrize("name", ["br{ac}e", "new\nline", "50%2F", "?#&;'\"", os.fsdecode(b"\xff")])
async def test_run_of_any_name_is_shown(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / name, [group_of_rewards("g0", [1.0])])
    async with viewing(tmp_path) as (address, session):
        (run,) = json.loads((await read(session, "/runs.json"))[1])
        async with session.get(URL(f"{address}runs/{quote(run['name'], safe='')}/", encoded=True)) as answer:
            assert answer.status == 200


async def test_what_cannot_be_shown_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [])
    (write_run(tmp_path / "broken", []) / "journal.jsonl").write_text('{"event": "none"}\n')
    (write_run(tmp_path / "deep", []) / "journal.jsonl").write_text("[" * 100_000 + "\n")
    async with viewing(tmp_path) as (_, session):
        assert await read(session, "/runs/nothing/") == (404, "There is no such run here.")
        status, reported = await read(session, "/runs/broken/")
        assert (status, reported.startswith("This run cannot be shown: "), "journal.jsonl" in reported) == (
            422,
            True,
            True,
        )
        assert (await read(session, "/compare"))[0] == 400
        assert (await read(session, "/compare?run=run&run=nothing"))[0] == 404
        assert (await read(session, "/compare?run=run&run=broken"))[0] == 422
        assert (await read(session, "/runs.json"))[0] == 200
    for port in (-1, 0, 80_000):
        with pytest.raises(UsageError, match=f"--port {port}: it must be a whole number from 1 to 65535"):
            async with serving(RunIndex([tmp_path]), port):
                pass
    with pytest.raises(UsageError, match="nowhere is not a directory"):
        RunIndex([tmp_path / "nowhere"])


async def test_only_this_machine_is_served(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [])
    async with viewing(tmp_path) as (address, session):
        assert (await read(session, "/", headers={"Host": "evil.example"}))[0] == 403
        async with session.get("/") as answer:
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
        port = int(address.rstrip("/").rpartition(":")[2])
        with pytest.raises(UsageError, match=f"port {port} cannot be used"):
            async with serving(RunIndex([tmp_path]), port):
                pass


async def test_prometheus_reads_those_that_are_played(tmp_path: Path) -> None:
    for name in ("one", "two", "old"):
        figures(write_run(tmp_path / name, []), batches=3, reward_mean=0.5, **{"dropped/constant_reward": 2})
    quiet(tmp_path / "old")
    async with viewing(tmp_path) as (_, session):
        _, text = await read(session, "/metrics")
    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert {sample.labels["run"] for sample in found["asyncrollout_batches"]} == {"one", "two"}
    assert {sample.value for sample in found["asyncrollout_reward_mean"]} == {0.5}
    assert found["asyncrollout_dropped"][0].labels["reason"] == "constant_reward"


async def test_runs_are_compared_in_one_page(tmp_path: Path) -> None:
    write_run(tmp_path / "one", [group_of_rewards(f"g{number}", [0.0, 1.0]) for number in range(3)])
    write_run(tmp_path / "two", [group_of_rewards(f"g{number}", [1.0, 1.0 + number]) for number in range(3)])
    async with viewing(tmp_path) as (_, session):
        status, page = await read(session, "/compare?run=one&run=two")
    summary = json.loads(page.partition('id="summary">')[2].partition("</script>")[0])
    parts = {part["title"]: part for section in summary["sections"] for part in section["parts"]}
    assert status == 200
    assert [row[:3] for row in parts["Reward"]["rows"]] == [["one", 0, 0.5], ["two", 1, 1.5]]
    assert parts["Difference from one"]["rows"][0][:4] == ["all", "two", "3 pairs", "+1.000 [-0.242, +2.242]"]


def test_last_figures_are_the_last_that_make_sense(tmp_path: Path) -> None:
    assert last_figures(tmp_path) == {}
    lines = [json.dumps({"batches": number}) for number in range(20_000)]
    (tmp_path / METRICS).write_text("\n".join([*lines, "\x00junk", '{"batches": 5']))
    assert last_figures(tmp_path) == {"batches": 19_999}


def test_command_serves_until_it_is_stopped(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [])
    command = [sys.executable, "-m", "asyncrollout", "view", str(tmp_path), "--no-browser", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reported = json.loads(process.stdout.readline())
        assert reported["url"].startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (130, "")


@needs_chromium
@pytest.mark.extended
async def test_browser_lists_runs_whatever_they_are_called(tmp_path: Path) -> None:
    events = [Began(at=BEGAN, given={"envs": {ATTACK: {}}})]
    write_run(tmp_path / ATTACK, [], [*events])
    write_run(tmp_path / "plain & simple", [group_of_rewards("g0", [0.0, 1.0])])
    async with viewing(tmp_path) as (address, _), opened(address) as page:
        names = await page.run("[...document.querySelectorAll('tbody a')].map((one) => one.textContent)")
        assert {*names} == {ATTACK, "plain & simple"}
        assert await page.run("document.querySelector('.pager button').disabled")
        await page.run("for (const box of document.querySelectorAll('tbody input')) box.click()")
        await page.wait_for("document.querySelector('.pager button').textContent === 'Compare 2 runs'")
        await page.run("document.querySelector('.pager button').click()")
        await page.loaded(2)
        assert await page.run("document.getElementById('name').textContent.split(', ').length") == 2
        assert await page.run("window.pwned") is None
        for method in ("Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening"):
            assert page.seen(method) == []


@needs_chromium
@pytest.mark.extended
async def test_browser_follows_a_run_and_leaves_a_reader_alone(tmp_path: Path) -> None:
    groups = [group_of_rewards("g0", [0.0, 1.0])]
    directory = write_run(tmp_path / "run", groups)
    figures(directory, batches=1, wanted_batches=9, reward_recent=0.5, turns_per_second=7.0)
    rows = "[...document.querySelectorAll('.rows tbody tr')].map((row) => row.cells[0].innerText.trim()).join()"
    async with viewing(directory) as (address, _), opened(f"{address}runs/run/") as page:
        await page.wait_for("document.getElementById('live').innerText.includes('1 of 9 batches')")
        await page.run("setTheme('dark'); toggle('g0', true); openTrajectory('g0.1')")
        await page.wait_for("dialog.open")
        await page.run("window.same = true")
        more = Group("g1", [played("g1", 0)], "maze", Verdict(keep=True))
        write_run(directory, [*groups, more], [*events_of([*groups, more])])
        figures(directory, batches=2, wanted_batches=9)
        await page.wait_for("document.getElementById('live').innerText.includes('2 of 9 batches')")
        await page.wait_for("Date.now() - came > LEAST + 2 * EVERY")
        assert await page.run("window.same")
        await page.run("dialog.close()")
        await page.loaded(2)
        assert await page.run(rows) == "▾g0,g0.0,g0.1,▸g1"
        assert await page.run("document.documentElement.dataset.theme") == "dark"
        assert page.seen("Runtime.exceptionThrown") == []
