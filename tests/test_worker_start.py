"""Workers start in every real program, and what its main script defines works in them."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipapp
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.to_process
import psutil
import pytest

from asyncrollout import EnvError, EnvPool, EnvSpec, PoolError, UsageError, find_env
from asyncrollout.pool.wire import by_value, definitions
from asyncrollout.pool.wire.definitions import SentDefinitions
from asyncrollout.rollouts.options import read_envs
from asyncrollout.testing import same
from tests.envs.tiny import Counter
from tests.playing import ACTIONS, BACKENDS, COUNTER, expected, play
from tests.scripts.processes import LIMIT, ROOT, spoil_starts, until
from tests.test_guards import mark, uvloop_only  # noqa: F401 (a fixture)

DEFINING = ROOT / "tests" / "scripts" / "defining.py"
NOTEBOOK = ROOT / "tests" / "scripts" / "notebook.py"

pytestmark = pytest.mark.usefixtures("mark")


def run(*command: str | Path, cwd: Path | None = None, source: str = "", **environ: str) -> str:
    """What a program of its own prints; it must succeed, and say nothing but of deaths of workers."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environ,
        input=source,
        capture_output=True,
        text=True,
        timeout=4 * LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def parsed(output: str) -> dict[str, Any]:
    """What the workers of `defining.py` know of their program."""
    assert "all is well" in output, output
    known: dict[str, Any] = json.loads(output.rpartition("all is well")[2].splitlines()[0])
    return known


# Ways to start a program. Each imports dill, reads its arguments when it is loaded, and has no main guard.


def test_a_script_in_a_folder_with_spaces_defines_its_env(tmp_path: Path) -> None:
    script = tmp_path / "my programs" / "the script.py"
    script.parent.mkdir()
    shutil.copy(DEFINING, script)
    known = parsed(run(script.name, "--size", "3", cwd=script.parent))
    assert known["argv"] == ["the script.py", "--size", "3"]
    assert known["file"] == str(script)


def test_a_program_from_stdin_defines_its_env() -> None:
    known = parsed(run("-", "--size", "3", source=DEFINING.read_text()))
    assert known["argv"] == ["-", "--size", "3"]


def test_a_program_in_the_command_line_defines_its_env() -> None:
    program = STARTS_POOL.replace("return 0, {}", "return __import__('sys').argv, {}")
    program = program.replace("await env.reset(seed=0)", "print((await env.reset(seed=0)).observation)")
    assert run("-c", program, "one", "two") == "['-c', 'one', 'two']\n"


def test_cells_of_a_notebook_define_an_env() -> None:
    assert parsed(run(NOTEBOOK, DEFINING))["file"] is None


PACKAGE = """
import asyncio, os, sys, tempfile
from . import parts
import asyncrollout as ar

class Env:
    def reset(self, *, seed=None, options=None):
        from .parts import FACTOR  # needs the package of the main module
        return [FACTOR, parts.FACTOR, parts.Part], {"spec": sys.modules["__main__"].__spec__.name, "name": __name__}
    def step(self, action):
        raise NotImplementedError

async def main():
    async with ar.EnvPool(workers=2) as pool, pool.open(Env) as env:
        outcome = await env.reset(seed=0)
        assert outcome.observation == [7, 7, parts.Part]
        print("all is well", '{"info": "%(spec)s %(name)s"}' % outcome.info)

os.chdir(tempfile.mkdtemp(dir="."))
os.rmdir(os.getcwd())
sys.path = [path if isinstance(path, str) else path for path in sys.path] + [None, os.path, "/nowhere at all"]
asyncio.run(main())
"""


def test_a_module_with_relative_imports_runs_where_its_folder_is_gone_and_its_path_is_odd(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text("FACTOR = 7\nclass Part: pass\n")
    (package / "program.py").write_text(PACKAGE)
    assert parsed(run("-m", "package.program", cwd=tmp_path)) == {"info": "package.program __main__"}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["interactive", "ipython", "runpy", "zipapp", "link"])
def test_other_ways_to_start_a_program(way: str, tmp_path: Path) -> None:
    script = shutil.copy(DEFINING, tmp_path / "program.py")
    size = ("--size", "3")
    match way:
        case "interactive":
            known = parsed(run("-i", script, *size))
        case "ipython":
            known = parsed(
                run("-m", "IPython", "--no-banner", script, "--", *size, IPYTHONDIR=str(tmp_path / "ipython"))
            )
        case "runpy":
            call = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
            known = parsed(run("-c", call, *size))
        case "zipapp":
            folder = tmp_path / "folder"
            folder.mkdir()
            (folder / "beside.py").write_text("WORD = 'beside'\n")
            (folder / "__main__.py").write_text(DEFINING.read_text().replace("import dill", "import beside, dill"))
            zipapp.create_archive(folder, tmp_path / "program.pyz")
            known = parsed(run(tmp_path / "program.pyz", *size))
        case _:
            (tmp_path / "program").symlink_to(script)
            known = parsed(run(tmp_path / "program", *size))
    assert known["argv"][-2:] == [*size]


# What starts a worker


async def test_a_worker_never_runs_the_main_script_and_others_still_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own call of `to_process` runs it, also while the workers of a pool start."""
    script = tmp_path / "script.py"
    script.write_text(f"import os; open({str(tmp_path)!r} + f'/run-{{os.getpid()}}', 'w').close()\n")
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", str(script), raising=False)
    own: list[int] = []

    async def call() -> None:
        own.append(await anyio.to_process.run_sync(os.getpid))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        async with EnvPool(workers=2) as pool:
            workers = {worker.pid for worker in pool.stats().workers}
    assert {path.name for path in tmp_path.glob("run-*")} == {f"run-{pid}" for pid in own}
    assert not workers & {*own}
    assert main.__file__ == str(script)
    await end_workers_of_anyio()


async def end_workers_of_anyio() -> None:
    for child in psutil.Process().children():
        child.kill()
    await until(lambda: not psutil.Process().children())


@pytest.mark.parametrize(
    ("code", "why", "said"),
    [
        ("raise SystemExit('no interpreter today')", "its process ended before it answered", "no interpreter today"),
        ("import os; os.write(1, b'Hello. ')", "does a sitecustomize", ""),
    ],
    ids=["ends", "talks"],
)
async def test_an_interpreter_that_does_not_start_is_shown_with_its_output(
    code: str, why: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_worker = "'anyio.to_process' in open('/proc/self/cmdline').read()"
    monkeypatch.setenv("PYTHONPATH", spoil_starts(tmp_path, f"if {is_worker}:\n    {code}"))
    with pytest.raises(PoolError, match=why) as caught:
        async with EnvPool(workers=1):
            pass
    assert said in str(caught.value)
    assert "__main__" not in str(caught.value)


@uvloop_only
@pytest.mark.parametrize("executable", ["", "/no/such/python"])
async def test_a_program_without_an_interpreter_is_reported(executable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(PoolError, match=r"workers need a Python interpreter.*backend='inline'"):
        async with EnvPool(workers=1):
            pass


STARTS_POOL = """
import asyncio
import asyncrollout as ar

class Env:
    def reset(self, *, seed=None, options=None):
        return 0, {}
    step = reset

async def main():
    async with ar.EnvPool(workers=1) as pool, pool.open(Env) as env:
        await env.reset(seed=0)

asyncio.run(main())
"""


def test_a_module_that_starts_its_pool_when_imported_does_not_do_so_in_its_workers(tmp_path: Path) -> None:
    """They would start workers, which would start workers."""
    (tmp_path / "starting.py").write_text(STARTS_POOL)
    with pytest.raises(AssertionError, match="a pool is started by an import in a child process"):
        run("-c", "import starting", cwd=tmp_path)


def test_a_script_that_multiprocessing_runs_again_does_not_start_its_pool_there(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    again = "import multiprocessing\nmultiprocessing.get_context('spawn').Process(target=print).start()\n"
    script.write_text(STARTS_POOL.replace("asyncio.run(main())", f"asyncio.run(main())\n{again}"))
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, check=False)
    assert "PoolError: a pool is started by an import in a child process" in done.stderr


# What travels


class Picture:
    """An observation."""


async def test_classes_of_a_function_travel_and_come_back_as_themselves() -> None:
    class Place:
        def __init__(self, number: int) -> None:
            self.number = number

    class Local(Counter):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert type(action) is Place
            return Place(action.number + 1), 0.0, False, False, {"picture": Picture()}

    before = vars(Local).copy()
    async with EnvPool(workers=1) as pool, pool.open(Local) as env:
        assert env.name.endswith("<locals>.Local")
        await env.reset(seed=1)
        for number in range(3):
            outcome = await env.step(Place(number))
            assert type(outcome.observation) is Place
            assert outcome.observation.number == number + 1
            assert type(outcome.info["picture"]) is Picture
    assert vars(Local) == before


@uvloop_only
async def test_a_class_that_a_worker_makes_itself_cannot_come_back() -> None:
    def make() -> Any:
        class Place:
            pass

        class Local(Counter):
            def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
                return Place(), 0.0, False, False, {}

        return Local()

    async with EnvPool(workers=1) as pool, pool.open(make) as env:
        await env.reset(seed=1)
        with pytest.raises(EnvError, match=r"Place was made in the worker: define it at the top"):
            await env.step(0)


@uvloop_only
async def test_what_cannot_be_loaded_in_a_worker_is_reported_again_whenever_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("class Part: pass\n")
    async with EnvPool(workers=1) as pool:
        monkeypatch.syspath_prepend(tmp_path)  # after the worker got its own

        import only_here  # type: ignore[import-not-found] # it was written just now

        class Local(Counter):
            part = only_here.Part

        for _ in range(2):
            with pytest.raises(UsageError, match=r"No module named 'only_here'.*sys.path of when"):
                await pool.open(Local)
        async with pool.open(COUNTER) as env:
            await env.reset(seed=1)
    del sys.modules["only_here"]


@uvloop_only
async def test_a_worker_forgets_classes_that_are_gone() -> None:
    async with EnvPool(workers=1) as pool:
        for _ in range(10):

            class Local(Counter):
                def known(self) -> int:
                    return len(definitions._received)

            async with pool.open(Local) as env:
                known = await env.call("known")
            del Local, env
            gc.collect()
    assert known <= 3


@uvloop_only
@pytest.mark.parametrize("backend", ["inline", "process"])
@pytest.mark.parametrize("env", [Counter, partial(Counter), lambda: Counter(), "tests.envs.tiny:Counter"])
async def test_an_env_is_opened_by_its_class_or_a_function(env: Any, backend: Any) -> None:
    async with EnvPool(**BACKENDS[backend]) as pool, pool.open(env) as opened:
        assert same(await play(opened, 1, ACTIONS), expected(COUNTER, 1, ACTIONS))
    assert read_envs(env, None)[0].env == find_env(env)


@uvloop_only
async def test_classes_keep_their_full_names_and_slots_so_that_digests_agree() -> None:
    class Slotted:
        __slots__ = ("__weakref__", "number")

        def __init__(self, number: int) -> None:
            self.number = number

    class Local(Counter):
        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return Slotted(action), 0.0, False, False, {}

        def snapshot(self) -> bytes:
            return b""

        def restore(self, state: bytes) -> None:
            assert not state

    digests = set()
    for backend in ("inline", "process"):
        async with EnvPool(**BACKENDS[backend]) as pool, pool.open(Local) as env:
            await env.reset(seed=1)
            outcome = await env.step(3)
            assert outcome.observation.number == 3
            assert not hasattr(outcome.observation, "__dict__")
            twin = await env.fork()
            digests |= {env._calls.binding.history.last_digest, twin._calls.binding.history.last_digest}
    assert len(digests) == 1


@uvloop_only
async def test_a_class_is_announced_to_its_bases_once() -> None:
    class Registered(Counter):
        keys: ClassVar[list[str]] = []

        def __init_subclass__(cls, *, key: str) -> None:
            super().__init_subclass__()
            Registered.keys.append(key)

        def known(self) -> list[str]:
            class Late(Registered, key="late"):
                pass

            return Registered.keys

    class First(Registered, key="first"):
        pass

    class Second(First, key="second"):
        pass

    async with EnvPool(workers=1) as pool, pool.open(Second) as env:
        assert await env.call("known") == ["first", "second", "late"]
    assert Registered.keys == ["first", "second"]


def test_to_have_many_classes_costs_nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local:
        pass

    sent = SentDefinitions()
    by_value.dumps(Local, sent)
    sent.is_behind()
    monkeypatch.setattr(definitions, "classes_sent", None)  # nobody looks through them
    assert not sent.missing_classes()
    assert not sent.gone_classes()


def test_a_class_travels_once() -> None:
    class Local:
        text = "x" * 10_000

    sent = SentDefinitions()
    first, second = (len(by_value.dumps([Local, Local()], sent)) for _ in range(2))
    assert first > 10_000 > 1_000 > second


@pytest.fixture
def main_script() -> Iterator[dict[str, Any]]:
    """The globals of the main script, as they were afterwards."""
    names = vars(sys.modules["__main__"])
    before = dict(names)
    yield names
    names.clear()
    names.update(before)


SCRIPT = """
import threading
client = {"lock": threading.Lock()}
class Env:
    def reset(self):
        return client
class Holding:
    lock = client["lock"]
"""


@uvloop_only
@pytest.mark.parametrize(("name", "culprit"), [("Env", "script's client['lock'] is"), ("Holding", "Holding.lock is")])
async def test_an_error_names_the_global_or_attribute_that_cannot_travel(
    name: str, culprit: str, main_script: dict[str, Any]
) -> None:
    exec(SCRIPT, main_script)
    async with EnvPool(workers=1) as pool:
        with pytest.raises(UsageError, match=r"cannot be sent to a worker.*runs='light'.*backend='inline'") as caught:
            pool.open(EnvSpec(name, main_script[name]))
    assert f"{culprit} a lock: " in str(caught.value)


BYSTANDER = """
shared = None
class Base:
    def reset(self, *, seed=None, options=None):
        return self.see(), {}
    def step(self, action):
        return self.see(), 0.0, False, False, {}
    def see(self):
        return 0
class Using(Base):
    def see(self):
        return shared
class Other(Base):
    pass
class Action:
    pass
"""


@uvloop_only
async def test_what_cannot_travel_any_more_troubles_only_envs_that_use_it(main_script: dict[str, Any]) -> None:
    exec(BYSTANDER, main_script)
    async with EnvPool(workers=2) as pool:
        using, other = await pool.open(main_script["Using"], worker=0), await pool.open(main_script["Other"], worker=1)
        await using.reset(seed=1)
        await other.reset(seed=1)
        main_script["shared"] = threading.Lock()
        with pytest.raises(UsageError, match=r"script's shared is a lock"):
            pool.open(main_script["Using"])
        await other.step(main_script["Action"]())
        await pool.open(main_script["Other"], worker=0)
        os.kill(pool.stats().workers[1].pid or 0, signal.SIGKILL)
        await other.step(main_script["Action"]())
        main_script["shared"] = 7
        again = await pool.open(main_script["Using"], worker=1)
        assert (await again.reset(seed=1)).observation == 7


UNLOADABLE = """
class Bomb:
    def __reduce__(self):
        return explode, ()
def explode():
    raise RuntimeError("it exploded")
class Env:
    def reset(self, *, seed=None, options=None):
        return count(), {}
    def step(self, action):
        return count(), 0.0, False, False, {}
class Bad(Env):
    bomb = Bomb()
calls = 0
def count():
    global calls
    calls += 1
    return calls
"""


@uvloop_only
async def test_what_cannot_be_loaded_takes_nothing_else_with_it(main_script: dict[str, Any]) -> None:
    exec(UNLOADABLE, main_script)
    seen = []
    async with EnvPool(workers=2) as pool:
        for worker in (0, 0, 1):
            with pytest.raises(UsageError, match=r"cannot be loaded in its worker: RuntimeError: it exploded"):
                await pool.open(main_script["Bad"], worker=worker)
            env = await pool.open(main_script["Env"], worker=worker)
            seen.append((await env.reset(seed=1)).observation)
    assert seen == [1, 2, 1]  # and the worker's globals stay as they are


TYPING = """
import typing
from typing import NewType, ParamSpec, TypeVarTuple
Number = NewType("Number", int)
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")
def wrapped(function: typing.Callable[P, Number]) -> "tuple[typing.Unpack[Ts]]":
    return function()
class Env:
    best: Number
    def reset(self, *, seed=None, options=None) -> tuple[Number, dict]:
        return wrapped(lambda: Number(3)), {}
    def step(self, action: Number):
        return Number.__supertype__.__name__, 0.0, False, False, {}
"""
ALIASES = "type Pair[T] = tuple[T, Number]" if sys.version_info >= (3, 12) else "Pair = tuple"


@uvloop_only
async def test_types_that_pickle_knows_by_name_alone_travel(main_script: dict[str, Any]) -> None:
    exec(f"{TYPING}{ALIASES}\nEnv.pair = lambda self: repr(Pair)", main_script)
    async with EnvPool(workers=1) as pool, pool.open(main_script["Env"]) as env:
        assert (await env.reset(seed=1)).observation == 3
        assert (await env.step(0)).observation == "int"
        assert "Pair" in await env.call("pair") or sys.version_info < (3, 12)


TORCH = os.environ.get("ASYNCROLLOUT_TORCH_PYTHON", str(ROOT / ".venv-torch" / "bin" / "python"))


@pytest.mark.slow
@pytest.mark.skipif(not Path(TORCH).exists(), reason="needs `make torch-venv`")
def test_a_script_with_torch_dill_transformers_and_datasets(tmp_path: Path) -> None:
    script = tmp_path / "training.py"
    script.write_text((ROOT / "tests" / "scripts" / "torch_training.py").read_text())
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([TORCH, script], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "all is well" in done.stdout


KILLED_LATE = """
import asyncio, os, signal, sys
import anyio
from asyncrollout.pool.process.interpreter import KilledByPid

async def end_and_kill():
    process = await anyio.open_process([sys.executable, "-c", "import time; time.sleep(600)"])
    os.kill(process.pid, signal.SIGTERM)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # without a turn of the loop
    KilledByPid(process).kill()
    return await process.wait()

if sys.version_info < (3, 12):  # as newer ones do it: by the loop itself, and not by a thread
    watcher = asyncio.PidfdChildWatcher()
    asyncio.set_child_watcher(watcher)
print(asyncio.run(end_and_kill()))
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux has it")
def test_the_exit_status_of_a_process_that_ends_just_before_it_is_killed_is_its_own() -> None:
    assert int(run("-", source=KILLED_LATE)) == -signal.SIGTERM
