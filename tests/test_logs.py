"""The library logs through the standard `logging`; stdout belongs to the program."""

import logging
import re
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog

import asyncrollout
from asyncrollout import EnvPool
from asyncrollout.logs import get_logger
from tests.playing import COUNTER, PATIENCE, kill_worker_of
from tests.scripts.processes import ROOT

KILLING = """
import asyncio, logging, os, signal, sys
import asyncrollout as ar

COUNTER = ar.EnvSpec(name="counter", factory="tests.envs.tiny:Counter")

async def main():
    async with ar.EnvPool(workers=1) as pool, pool.open(COUNTER) as env:
        await env.reset(seed=1)
        os.kill(pool.stats().workers[0].pid, signal.SIGKILL)
        await env.step(1)

if __name__ == "__main__":
    {setup}
    asyncio.run(main())
"""
DIED = "worker_died worker=0 reason=crash cause=SIGKILL calls="


@pytest.fixture(autouse=True)
def _bare_structlog() -> Iterator[None]:
    """As in a program that does not use it."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        pytest.param("pass", rf"{DIED}\d\n", id="nothing"),
        pytest.param(
            "import structlog; logging.basicConfig(format='%(levelname)s|%(name)s|%(message)s')",
            rf"WARNING\|asyncrollout\.pool\.process\.supervisor\|{DIED}\d\n",
            id="basicConfig",
        ),
        pytest.param("logging.getLogger('asyncrollout').setLevel(logging.ERROR)", "", id="silenced"),
    ],
)
def test_nothing_goes_to_stdout_while_workers_die(setup: str, said: str, tmp_path: Path) -> None:
    script = tmp_path / "killing.py"
    script.write_text(KILLING.format(setup=setup))
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE, env=environ)
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(said, done.stderr), done.stderr


async def test_events_are_records_with_fields(caplog: pytest.LogCaptureFixture) -> None:
    async with EnvPool(workers=1) as pool, pool.open(COUNTER) as env:
        await env.reset(seed=1)
        kill_worker_of(pool, env)
        await env.step(1)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("asyncrollout.pool.process.supervisor", "WARNING")
    assert record.getMessage().startswith("worker_died worker=0")
    assert (record.event, record.fields["cause"]) == ("worker_died", "SIGKILL")  # type: ignore[attr-defined]
    assert record.module == "supervisor"


def test_values_stay_on_one_line_and_are_short(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncrollout")
    get_logger("asyncrollout.x").info("said", word="one", text="two words\nerror: forged", empty="", long="x" * 2000)
    assert caplog.messages == [
        r"said word=one text='two words\nerror: forged' empty='' long=" + "x" * 500 + "... (2000 characters)"
    ]
    get_logger("asyncrollout.x").warning("100%s", percent="%d")
    assert caplog.messages[-1] == "100%s percent=%d"


def test_an_exception_comes_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        get_logger("asyncrollout.x").exception("request_failed")
    assert caplog.records[0].exc_info is not None
    assert "ValueError: wrong" in caplog.text


def test_a_program_that_configures_structlog_gets_events_there(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def keep(_logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        seen.append((method, dict(event)))
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    get_logger("asyncrollout.x").warning("said", n=1)
    assert seen == [("warning", {"event": "said", "n": 1})]
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_only_the_command_line_prints_or_uses_structlog() -> None:
    package = Path(asyncrollout.__file__).parent
    log_of_a_worker = "pool/worker/main.py"
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"(?<![.\w])print\(|import structlog", path.read_text())
    }
    assert {name for name in found if not name.startswith("cli/")} <= {log_of_a_worker}
