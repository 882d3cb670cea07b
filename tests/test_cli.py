"""The command line: what it prints where, what it exits with, and that its workers start however it was started."""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import registry
from asyncrollout.cli.app import COMMANDS, app, main
from asyncrollout.cli.envs import env_kwargs
from asyncrollout.cli.terminal.output import Output, OutputParam, one_line, printable
from asyncrollout.cli.terminal.output import program as shown_program
from asyncrollout.errors import EnvError, PoolError, UsageError
from asyncrollout.registry import register_env
from tests.old_runs import COMMAND_LINE, TRAINER

ROOT = Path(__file__).parent.parent
LONGEST = 120  # seconds; none comes near it
NAMES = [path.rpartition(":")[2].replace("_", "-") for path in COMMANDS]


class Walk:
    """Four steps, and it is over.

    Nobody reads this line in a list.
    """


LAUNCHER = """\
import sys
from {module} import {function}
if __name__ == "__main__":
    sys.exit({function}())
"""
ENVS = """\
import sys

class Walk:
    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.steps, {}

    def step(self, action):
        self.steps += 1
        return self.steps, 1.0, self.steps >= 4, False, {}

class Broken(Walk):
    def step(self, action):
        raise RuntimeError("the wheel \\x1b[31mcame off")

class Heavy(Walk):
    def reset(self, *, seed=None, options=None):
        loaded = [name for name in ("cyclopts", "rich", "aiohttp", "structlog") if name in sys.modules]
        if "anyio.to_process" in sys.orig_argv and loaded:
            raise RuntimeError(f"a worker loaded {loaded}")
        return super().reset(seed=seed)

class Hangs(Walk):
    def reset(self, *, seed=None, options=None):
        import time
        time.sleep(1000)
"""


def run(
    *tokens: str,
    program: tuple[str, ...] = ("-m", "asyncrollout"),
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, *tokens],
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80", **(env or {})},
    )


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(params=["python -m", "installed"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """Both ways to start the command; the script is what pip makes of the entry point."""
    if request.param == "python -m":
        return ("-m", "asyncrollout")
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["asyncrollout"]
    module, _, function = entry.partition(":")
    script = tmp_path / "bin" / "asyncrollout"
    script.parent.mkdir()
    script.write_text(LAUNCHER.format(module=module, function=function))
    return (str(script),)


@pytest.fixture
def walks(tmp_path: Path) -> Path:
    """A directory with envs in a module of it."""
    (tmp_path / "walks.py").write_text(ENVS)
    return tmp_path


@pytest.fixture
def trial() -> Iterator[Callable[[Any], Callable[..., int]]]:
    """Make a command of a function; what is returned runs it in this process."""

    def make(function: Any) -> Callable[..., int]:
        app.command(function, name="trial")
        return lambda *tokens: main(["trial", *tokens])

    yield make
    del app["trial"]


# What the command says of itself


def test_help_teaches_and_loads_little() -> None:
    script = "import sys; from asyncrollout.cli.app import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    printed = run(program=("-c", script))
    assert {"Environments", "Machine", "Global options", "Get started: asyncrollout demo"} <= {
        line.strip("╭─╮ ") for line in printed.stdout.splitlines()
    }
    assert all(f"│ {name} " in printed.stdout for name in NAMES)
    loaded = set(printed.stderr.split())
    assert "cyclopts" in loaded
    assert not loaded & {"aiohttp", "asyncio", "numpy", "structlog", "asyncrollout.cli.envs", "asyncrollout.pool.pool"}


def test_no_command_at_all_shows_the_help() -> None:
    assert run().stdout == run("--help").stdout


@pytest.mark.parametrize("name", NAMES)
def test_each_command_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"Example: asyncrollout {name}" in capsys.readouterr().out


def test_help_of_resume_names_what_may_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "workers=4 batches=8" in shown
    assert "group_size" not in shown


def test_help_is_wrapped_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["eval", "--help"]) == 0
    _, _, text = capsys.readouterr().out.partition("Plays each of")
    paragraph = text.partition("\n\n")[0].splitlines()
    assert len(paragraph) > 3
    assert all(len(line) > 60 for line in paragraph[1:-1])


def test_version(program: tuple[str, ...]) -> None:
    from asyncrollout import __version__

    printed = run("--version", program=program)
    assert (printed.stdout, printed.stderr, printed.returncode) == (f"asyncrollout {__version__}\n", "", 0)


EVAL = ["eval", "--env", "bandit", "--policy", "solver"]
WHOLE_NUMBERS = [
    *([*EVAL, option] for option in ("-n", "-k", "--seed", "--max-turns", "--max-tokens", "--workers")),
    *(["serve", option] for option in ("--port", "--workers", "--max-envs", "--max-requests", "--max-body")),
    ["view", "--port"],
    ["compare", "a", "b", "--k"],
    ["demo", "--batches"],
]
NAME = "a" * 300
TOO_LONG = [[command, NAME] for command in ("run", "resume", "compare", "view", "report")]
TOO_LONG += [["replay", NAME, "g0.0"], [*EVAL, "--run-dir", NAME], [*EVAL, "--runs", NAME]]


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (["chek-env"], "check-env"),
        (["envs", "more"], "more"),
        (["envs", "--jsn"], "--jsn"),
        (["check-env"], "NAME"),
        (["check-env", "sokobn"], "'sokoban'"),
        (["check-env", "sokoban", "boxes"], "key=value"),
        (["check-env", "sokoban", "nope=1"], "it takes no keyword 'nope'"),
        (["check-env", "sokoban", "num_boxes=1", "num_boxes=2"], "twice"),
        (["check-env", "sokoban", "num_boxes=[1"], "YAML"),
        (["check-env", "os:system"], "--allow-import"),
        *(([*tokens, "1.5"], "'1.5' is not a whole number") for tokens in WHOLE_NUMBERS),
        *((tokens, "File name too long") for tokens in TOO_LONG),
        (["eval", "--env", "bandit", "--policy", "solver", "--name", ""], "name: found ''"),
    ],
)
def test_bad_usage_is_one_message(tokens: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*tokens, "--quiet"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("asyncrollout: ")
    assert says in printed.err
    assert "Traceback" not in printed.err


def test_a_command_shown_to_users_has_no_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache" / "bin").mkdir(parents=True)
    (tmp_path / "cache" / "bin" / "asyncrollout").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "cache" / "bin" / "python"))
    monkeypatch.setenv("PATH", "")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert shown_program() == "asyncrollout"
    monkeypatch.chdir(tmp_path)  # an environment that is not activated
    assert shown_program() == "cache/bin/asyncrollout"
    (tmp_path / "cache" / "bin" / "asyncrollout").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "cache" / "bin"))
    assert shown_program() == "asyncrollout"
    monkeypatch.setenv("UV", "/usr/bin/uv")  # `uv run`: the path is this process's own
    assert shown_program() == "cache/bin/asyncrollout"


@pytest.mark.parametrize(
    ("prefix", "command"),
    [
        (".cache/uv/archive-v0/acFK6BQKRN2_sOuj", "uvx asyncrollout"),
        (".cache/pipx/f3d24533e1d839e", "pipx run asyncrollout"),
        (".local/pipx/.cache/f3d24533e1d839e", "pipx run asyncrollout"),
        (".local/share/pipx/venvs/asyncrollout", "asyncrollout"),
        (".local/share/uv/tools/asyncrollout", "asyncrollout"),
    ],
)
def test_a_command_from_a_cache_is_shown_with_its_launcher(
    prefix: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / prefix))
    monkeypatch.setenv("PATH", str(tmp_path / prefix / "bin"))
    assert shown_program() == command


# How commands end


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("bad input"), 2),
        (EnvError("broken"), 1),
        (ExceptionGroup("", [UsageError("bad input"), ExceptionGroup("", [EnvError("broken")])]), 1),
        (ExceptionGroup("", [UsageError("bad input")]), 2),
    ],
)
def test_errors_are_messages(
    error: Exception, code: int, trial: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise error

    run_it = trial(fail)
    assert run_it() == code
    plain = capsys.readouterr().err
    assert "Traceback" not in plain
    assert plain.count("asyncrollout: ") == len([word for word in ("bad input", "broken") if word in plain]) >= 1
    assert run_it("--debug") == code
    assert "Traceback" in capsys.readouterr().err
    for value, is_shown in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("ASYNCROLLOUT_DEBUG", value)
        assert run_it() == code
        assert ("Traceback" in capsys.readouterr().err) == is_shown


def test_our_own_bugs_are_not_dressed_up(trial: Any) -> None:
    def fail() -> None:
        raise ExceptionGroup("", [EnvError("broken"), KeyError("ours")])

    with pytest.raises(ExceptionGroup):
        trial(fail)()


def test_what_a_command_returns_is_the_exit_code(trial: Any) -> None:
    def fail() -> int:
        return 1

    assert trial(fail)() == 1


def test_async_commands_run_on_uvloop(trial: Any) -> None:
    loops = []

    async def look() -> None:
        loops.append(type(asyncio.get_running_loop()).__module__)

    assert trial(look)() == 0
    assert loops == ["uvloop"]


def test_interrupted_in_python(trial: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    assert trial(fail)() == 130
    assert capsys.readouterr().err == "asyncrollout: stopped\n"


def test_ctrl_c_ends_it_with_its_workers(program: tuple[str, ...], walks: Path) -> None:
    command = [sys.executable, *program, "check-env", "walks:Hangs", "--action=1", "--allow-import"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=walks) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Checking")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LONGEST)
    assert (said, process.returncode) == ("asyncrollout: stopped\n", 130)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("tokens", [["envs"], ["envs", "--json"], ["--help"]])
def test_nobody_reads_to_the_end(tokens: list[str], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "asyncrollout", *tokens]
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    ran = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=LONGEST, check=False, env=environ)
    os.close(writing)
    assert (ran.stderr, ran.returncode) == (b"", 1)


def test_nobody_reads_what_a_task_group_writes() -> None:
    script = (
        "import asyncio, sys\n"
        "from asyncrollout.cli.app import app, main\n"
        "from asyncrollout.cli.terminal.output import OutputParam\n"
        "async def talk(output): output.say('hello')\n"
        "@app.command\n"
        "async def trial(*, output: OutputParam) -> None:\n"
        "    async with asyncio.TaskGroup() as tasks: tasks.create_task(talk(output))\n"
        "sys.exit(main(['trial']))"
    )
    assert run(program=("-c", script)).stdout == "hello\n"
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=LONGEST, check=False)
    os.close(writing)
    assert (ran.stderr, ran.returncode) == (b"", 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has such a device")
@pytest.mark.parametrize("tokens", [["envs", "--json"], ["envs"], ["--help"], ["eval", "--help"], ["--version"]])
def test_a_full_disk_under_stdout_is_reported(tokens: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "asyncrollout", *tokens]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=LONGEST, check=False)
    assert (ran.returncode, ran.stderr) == (1, "asyncrollout: stdout cannot be written to: No space left on device\n")


# What is printed


def test_output_for_people_and_for_programs(trial: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def tell(*, output: OutputParam) -> None:
        output.record({"reward": math.nan, "count": np.int64(3), "text": "\ud800\x1b[31m\u202e", "where": Path("a")})
        output.say("on the way")
        output.show("the \x1b[31mresult")

    run_it = trial(tell)
    printed = {}
    for tokens in ((), ("--quiet",), ("--json",), ("--json", "--quiet")):
        assert run_it(*tokens) == 0
        printed[tokens] = capsys.readouterr().out
    assert printed[()] == "on the way\nthe \\x1b[31mresult\n"
    assert printed["--quiet",] == "the \\x1b[31mresult\n"
    assert printed["--json",] == printed["--json", "--quiet"]
    (record,) = records(printed["--json",])
    assert record == {"reward": None, "count": 3, "text": "\ud800\x1b[31m\u202e", "where": "a"}
    assert printed["--json",].strip().isprintable()
    assert printed["--json",].isascii()


def test_warnings_never_reach_stdout(trial: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def warn(*, output: OutputParam) -> None:
        structlog.get_logger("any").warning("worker_died", worker=3)
        output.record({"done": True})

    run_it = trial(warn)
    assert run_it("--json") == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ('{"done": true}\n', "warning: worker_died worker=3\n")
    assert run_it("--json", "--quiet") == 0
    assert capsys.readouterr().err == ""


@given(st.text())
def test_printable_text_cannot_steer_a_terminal(text: str) -> None:
    shown = printable(text)
    assert not any(ord(sign) < 32 and sign not in "\n\t" for sign in shown)
    assert not any(0x7F <= ord(sign) < 0xA0 or 0xD800 <= ord(sign) < 0xE000 for sign in shown)
    assert printable(shown) == shown
    assert not any(sign in one_line(text) for sign in "\n\t\r")


def test_output_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Output().json = True  # type: ignore[misc]


# envs


def test_envs_lists_all_that_is_installed() -> None:
    listed = records(run("envs", "--json").stdout)
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["asyncrollout.envs"]
    shipped = {card["name"]: card for card in listed if card["name"] in offered}
    assert shipped.keys() == offered.keys()
    assert not [name for name, card in shipped.items() if not (card["actions"] and card["task"])]
    assert shipped["sokoban"]["runs"] == "cpu"
    assert shipped["bandit"]["plays"] == "text"
    table = run("envs").stdout
    assert all(name in table for name in shipped)
    assert max(map(len, table.splitlines())) <= 80
    page = (ROOT / "docs" / "command_line.md").read_text()
    documented = page.partition("$ asyncrollout envs\n")[2].partition("```")[0]
    assert [line.split()[0] for line in documented.splitlines()[1:] if line[:1].strip()][: len(offered)] == sorted(
        offered
    )


def test_envs_tells_which_package_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    assert main(["envs", "--json"]) == 0
    missing = {card["name"]: card["missing"] for card in records(capsys.readouterr().out)}
    assert missing["reasoning_gym"] == "pip install 'asyncrollout[reasoning-gym]'"
    assert missing["AntDir-v0"] == missing["HalfCheetahVel-v0"] == "pip install 'asyncrollout[mujoco]'"
    assert missing["sokoban"] == ""
    assert main(["envs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "reasoning_gym: pip install 'asyncrollout[reasoning-gym]'" in lines  # whole, to be copied
    (mujoco,) = [line for line in lines if line.endswith(": pip install 'asyncrollout[mujoco]'")]
    assert mujoco.startswith("AntDir-v0, ")


def test_any_env_introduces_itself(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register_env("maze", Walk, summary="find the exit", actions="Left, Right", requires={"no_such": "pip install it"})
    register_env("walk", Walk)
    assert main(["envs", "--json"]) == 0
    cards = {card["name"]: card for card in records(capsys.readouterr().out)}
    assert [cards["maze"][key] for key in ("task", "actions", "missing")] == [
        "find the exit",
        "Left, Right",
        "pip install it",
    ]
    assert [cards["walk"][key] for key in ("task", "actions", "missing")] == ["Four steps, and it is over.", "", ""]


def test_envs_survives_the_packages_of_others(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise RuntimeError('\\x1b[31mbad [bold]day')")
    info = tmp_path / "bad-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[asyncrollout.envs]\nbad = bad:SPEC\n")
    printed = run("envs", env={"PYTHONPATH": str(tmp_path)})
    assert printed.returncode == 0
    assert "\x1b" not in printed.stdout
    assert "bad [bold]day" in " ".join(printed.stdout.split())
    assert "sokoban" in printed.stdout


# check-env


def test_check_env_with_workers(program: tuple[str, ...], walks: Path) -> None:
    """The script's directory, not the current one, is on its path: --allow-import adds that, for workers, too."""
    tokens = ("check-env", "walks:Heavy", "--action", "1", "--allow-import", "--json")
    printed = run(*tokens, program=program, cwd=walks)
    assert (printed.returncode, printed.stderr) == (0, "")
    (report,) = records(printed.stdout)
    assert report["ok"]
    assert "worker 1" in report["ran_on"]


def test_check_env_of_a_broken_env(walks: Path) -> None:
    printed = run("check-env", "walks:Broken", "--action=1", "--allow-import", "--json", cwd=walks)
    assert printed.returncode == 1
    (report,) = records(printed.stdout)
    assert (report["env"], report["ok"]) == ("walks:Broken", False)
    assert "the wheel" in report["error"]
    assert printed.stderr.startswith("asyncrollout: env 'walks:Broken' breaks the contract at ")
    assert 'raise RuntimeError("the wheel' in printed.stderr  # the author's own line
    assert "\x1b" not in printed.stderr
    printed = run("check-env", "walks:Broken", "--action=1", "--allow-import", "--debug", cwd=walks)
    assert printed.stderr.count("the wheel \\x1b[31mcame off") > 1
    assert "\x1b" not in printed.stderr


@pytest.mark.parametrize("name", ["trap:Env", "gymnasium:trap:Env-v0"])
def test_import_paths_load_nothing_unless_allowed(name: str, tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text("from pathlib import Path\nPath('sprung').touch()")
    assert run("check-env", name, cwd=tmp_path).returncode == 2
    assert not (tmp_path / "sprung").exists()
    assert run("check-env", name, "--allow-import", cwd=tmp_path).returncode in (1, 2)
    assert (tmp_path / "sprung").exists()


def test_options_go_to_the_env(capsys: pytest.CaptureFixture[str]) -> None:
    """`max_steps` is one of bandit's, and one of check_env's own."""
    steps = []
    for option in ("max_steps=1", "max_steps=6"):
        assert main(["check-env", "bandit", option, "names=[left, right]", "--json"]) == 0
        steps.append(records(capsys.readouterr().out)[0]["steps"])
    assert steps[0] < steps[1]


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
        st.recursive(st.none() | st.booleans() | st.integers() | st.text("abc =:'\"#"), st.lists, max_leaves=5),
    )
)
def test_options_are_read_as_yaml(kwargs: dict[str, Any]) -> None:
    assert env_kwargs([f"{key}={json.dumps(value)}" for key, value in kwargs.items()]) == kwargs


# doctor


def test_doctor(program: tuple[str, ...]) -> None:
    printed = run("doctor", "--json", program=program)
    found = {line["what"]: line for line in records(printed.stdout)}
    assert (printed.returncode, printed.stderr) == (0, "")
    assert {"python", "cores", "open files"} <= found.keys()
    assert found["worker process"]["state"] == "ok"
    assert found["ffmpeg"]["says"].startswith("ffmpeg version")
    extras = {*tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]} - {
        "test",
        "docs",
    }
    assert extras <= found.keys()


def test_doctor_finds_problems(tmp_path: Path) -> None:
    """Each of them is reported in words; --quiet leaves out what succeeds."""
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\nexit 3")
    program.chmod(0o700)
    ulimit = ("-c", 'ulimit -S -n 60; exec "$0" -m asyncrollout doctor --quiet', sys.executable)
    environ = {**os.environ, "IMAGEIO_FFMPEG_EXE": str(program), "COLUMNS": "200"}
    ran = subprocess.run(
        ["/bin/sh", *ulimit], env=environ, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert ran.returncode == 1
    problems = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith("problem")]
    assert {"open", "ffmpeg"} <= set(problems)
    assert "exited with 3" in ran.stdout
    assert "ulimit -n" in ran.stdout
    assert "python " not in ran.stdout


def test_pool_errors_fail(trial: Any) -> None:
    async def fail() -> None:
        raise PoolError("no workers")

    assert trial(fail)() == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has such a device")
@pytest.mark.parametrize(
    "tokens", [["doctor"], ["compare", str(COMMAND_LINE), str(TRAINER)]], ids=["doctor", "compare"]
)
def test_a_full_disk_under_the_results_of_a_command_is_reported(tokens: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "asyncrollout", *tokens]
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, timeout=LONGEST, check=False)
    assert (ran.returncode, ran.stderr) == (1, b"asyncrollout: stdout cannot be written to: No space left on device\n")
