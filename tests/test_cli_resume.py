"""A resume that is refused leaves the run's directory as it was, to the byte, and the run can be resumed as before."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asyncrollout.cli.app import main
from asyncrollout.cli.run_directory import claimed
from asyncrollout.journal.writer import Lock

CONFIG = """
env: frozen_lake
policy: {kind: solver, error_rate: 0.3}
env_kwargs: {size: 4}
group_size: 2
groups: 2
batches: 2
seed: 5
metrics: [tensorboard]
"""


def content(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file and folder below, with its time of change."""
    return {
        str(path.relative_to(directory)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in directory.rglob("*")
    }


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lake.yaml").write_text(CONFIG)
    assert main(["run", "lake.yaml", "name=mine", "--quiet"]) == 0
    return Path("runs/mine")


@contextmanager
def newer_version(run: Path) -> Iterator[None]:
    """As if the journal were of a version to come."""
    path = run / "journal.jsonl"
    before = path.read_bytes()
    path.write_bytes(before.replace(b'"version":1', b'"version":99', 1))
    try:
        yield
    finally:
        path.write_bytes(before)


@contextmanager
def played_elsewhere(run: Path) -> Iterator[None]:
    lock = Lock(run)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def with_torn_line(run: Path) -> Iterator[None]:
    with (run / "journal.jsonl").open("ab") as file:
        file.write(b'{"event": "drawn')
    yield


REFUSED: list[tuple[list[str], str]] = [
    (["group_size=4"], "group_size=4 (was 2)"),
    (["seed=6"], "seed=6 (was 5)"),
    (["env=bandit", "env_kwargs={}"], "cannot be resumed with other settings: envs="),
    (["env_kwargs.size=5"], "cannot be resumed with other settings: envs="),
    (["limits.turns=3"], "limits="),
    (["order=start"], "order='start' (was 'finish')"),
    (["agent.history=1"], "--accept-changes agent.history"),
    (["agent.history=1", "--accept-changes", "policy"], "agent.history=1 (was None)"),
    (["--accept-changes", "group_size", "group_size=4"], "accept_changes: 'group_size' must stay the same"),
    (["grup_size=4"], "group_size"),
    (["group_size=many"], "group_size"),
    (["group_size"], "no '=' in it"),
    (["score=os:getcwd"], "--allow-import"),
    (["agent.system_prompt=my key is CANARY-0123456789"], "the configuration holds the value of $HF_TOKEN"),
    (["env_kwargs.url='[hidden]'"], "env_kwargs.url: found [hidden]"),
]


def test_a_refused_resume_changes_nothing(
    run: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "CANARY-0123456789")
    before = content(run)
    for arguments, says in REFUSED:
        assert main(["resume", str(run), "batches=4", *arguments]) == 2, arguments
        assert says in capfd.readouterr().err, arguments
        assert content(run) == before, arguments
    for trouble, says in ((claimed, "in use by another process"), (played_elsewhere, "in use by another process")):
        with trouble(run):
            assert main(["resume", str(run), "batches=4"]) == 2
            assert says in capfd.readouterr().err
            assert content(run) == before
    with newer_version(run):
        before = content(run)
        assert main(["resume", str(run), "batches=4"]) != 0
        assert "99" in capfd.readouterr().err
        assert content(run) == before
    with with_torn_line(run):
        before = content(run)
        assert main(["resume", str(run), "batches=4", "group_size=4"]) == 2
        assert content(run) == before
    assert main(["resume", str(run), "batches=4", "--quiet", "--json"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["state"] == "done"
    assert (run / "logs" / "attempt_2" / "events.jsonl").exists()
    assert not (run / "logs" / "attempt_3").exists()


def test_what_happens_before_a_resume_is_accepted_is_in_its_log(run: Path) -> None:
    assert main(["resume", str(run), "batches=3", "--quiet"]) == 0
    events = [json.loads(line) for line in (run / "logs" / "attempt_2" / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events][:1] == ["run"]
