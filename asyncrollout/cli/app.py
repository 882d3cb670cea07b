"""The `asyncrollout` command: which commands there are, what is common to all of them, and how they end."""

import inspect
import io
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, CycloptsError, Group, Parameter, Token

from asyncrollout import __version__
from asyncrollout.errors import RolloutError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

DONE, FAILED, MISUSED, STOPPED = 0, 1, 2, 130
"""What the command exits with: done; a check or a run failed; bad usage or bad input; stopped by Ctrl-C."""

RUN = Group.create_ordered("Run")
LOOK = Group.create_ordered("Look")
ENVIRONMENTS = Group.create_ordered("Environments")
MACHINE = Group.create_ordered("Machine")
EVERYWHERE = Group.create_ordered("Everywhere")

# One entry for each command, in the order of the list that `--help` shows: the function that does it, which is given an
# `Output` (see `Told`) and may be async; its group; its help, of which that list has the first line. The help is here
# and not there because a command's module loads when it is called, and `--help` loads none.
COMMANDS = (
    (
        "asyncrollout.cli.demo:demo",
        RUN,
        """Play several environments at once, with no server, GPU or key.

        An expert that errs now and then plays in groups, which are filtered and streamed in batches as for a trainer.

        Example: asyncrollout demo

        Example: asyncrollout demo sokoban

        Example: asyncrollout demo --base-url http://localhost:8000/v1 --model Qwen/Qwen3-4B
        """,
    ),
    (
        "asyncrollout.cli.run:run",
        RUN,
        """Play a run as a YAML file says, in a directory of its own.

        Values of the file are replaced by key=value. Ctrl-C stops the run so that it can be resumed.

        Example: asyncrollout run examples/configs/mixed_dapo.yaml

        Example: asyncrollout run examples/configs/frozen_lake_solver.yaml name=lake env_kwargs.size=8
        """,
    ),
    (
        "asyncrollout.cli.run:resume",
        RUN,
        """Resume a run that was stopped or killed, without losing or repeating anything.

        Example: asyncrollout resume runs/demo-1
        """,
    ),
    (
        "asyncrollout.cli.eval:eval",
        RUN,
        """Evaluate a model on any environment: pass@k and rewards, with confidence intervals.

        Each of -n tasks is played -k times. All of it is recorded in a run directory, with a report; Ctrl-C or a kill
        loses nothing, and `asyncrollout resume DIR` plays the rest. Other keys of a run are given as key=value. A YAML
        file of a run is evaluated in place of --env. One in RLinf's keys (env.eval) plays envs on ranked processes,
        with a video of each.

        Example: asyncrollout eval --env sokoban --base-url http://localhost:8000/v1 --model Qwen/Qwen3-4B -n 50 -k 4

        Example: asyncrollout eval --env sokoban --env.num_boxes 2 --policy solver policy.error_rate=0.3 -k 4

        Example: asyncrollout eval examples/configs/frozen_lake_solver.yaml -n 100 -k 8 --max-turns 20

        Example: asyncrollout eval examples/configs/behavior_eval.yaml env.eval.total_num_envs=8
        """,
    ),
    (
        "asyncrollout.cli.serve:serve",
        RUN,
        """Offer environments to other processes and machines, over HTTP.

        For batches of them, with the addresses and bodies of VAGEN's server, and for asyncrollout.RemoteEnvPool. Only
        registered environments and Gymnasium's can be opened, and only from this machine, unless you say otherwise.

        Example: asyncrollout serve

        Example: ASYNCROLLOUT_TOKEN=... asyncrollout serve --host 0.0.0.0 --data-dir videos
        """,
    ),
    (
        "asyncrollout.cli.report:report",
        LOOK,
        """Write a page that shows all of a run: one file, to open in a browser.

        The run may be going on, or have been stopped or killed. Nothing of it is changed.

        Example: asyncrollout report runs/demo-1
        """,
    ),
    (
        "asyncrollout.cli.view:view",
        LOOK,
        """Show runs in a browser: a list of them, and the report of each.

        A run that is going on is followed. The page is for this machine only; its /metrics is for Prometheus.

        Example: asyncrollout view

        Example: asyncrollout view runs/demo-1 other/runs --port 8090 --no-browser
        """,
    ),
    (
        "asyncrollout.cli.replay:replay",
        LOOK,
        """Play a recorded episode again, turn by turn, and compare.

        No model is asked: the replies are those that were recorded.

        Example: asyncrollout replay runs/demo-1 g0.0
        """,
    ),
    (
        "asyncrollout.cli.compare:compare",
        LOOK,
        """Compare runs: rewards and pass rates with confidence intervals.

        Runs that played the same tasks from the same seeds as the first one are compared with it task by task. A page
        with their plots is written to compare.html.

        Example: asyncrollout compare runs/before runs/after
        """,
    ),
    (
        "asyncrollout.cli.envs:envs",
        ENVIRONMENTS,
        """List every environment that can be found here.

        Example: asyncrollout envs
        """,
    ),
    (
        "asyncrollout.cli.envs:check_env",
        ENVIRONMENTS,
        """Put an environment through the contract that rollouts rely on.

        Options of the environment are given as key=value, with values as in YAML.

        Example: asyncrollout check-env sokoban num_boxes=2 "dim_room=[8, 8]"

        Example: asyncrollout check-env gymnasium:CartPole-v1 text=true

        Example: asyncrollout check-env my_module:MyEnv --allow-import
        """,
    ),
    (
        "asyncrollout.cli.new_env:new_env",
        ENVIRONMENTS,
        """Write a small environment of your own to start from, with its test.

        Example: asyncrollout new-env maze --dir projects
        """,
    ),
    (
        "asyncrollout.cli.videos:make_videos",
        ENVIRONMENTS,
        """Make short videos with questions about them, for the video environment.

        They show moving shapes, captions and flashes; every answer is exact. The same seed makes the same clips.

        What this command made before is replaced; a directory with anything else in it is refused.

        Example: asyncrollout make-videos clips --clips 100 --seed 7
        """,
    ),
    (
        "asyncrollout.cli.doctor:doctor",
        MACHINE,
        """Look whether everything that rollouts need works on this machine.

        Example: asyncrollout doctor
        """,
    ),
    (
        "asyncrollout.cli.bench:bench",
        MACHINE,
        """Run the benchmarks of a checkout.

        All of them take about eight minutes.

        Example: asyncrollout bench pool
        """,
    ),
)

app = App(
    name="asyncrollout",
    help="""Rollouts for reinforcement learning and evaluation of agents, asyncio first.

    A first command to try: asyncrollout demo

    All about one command: asyncrollout COMMAND --help
    """,
    help_format="plaintext",
    help_flags=["--help", "-h"],
    version=f"asyncrollout {__version__}",
    default_parameter=Parameter(negative=(), show_default=False),
    group_commands=EVERYWHERE,
)
app.meta.suppress_keyboard_interrupt = False  # main() has a word to say


def _flowing(text: str) -> str:
    """Paragraphs on a line each, which a terminal of any width wraps by itself."""
    return "\n\n".join(" ".join(part.split("\n")) for part in inspect.cleandoc(text).split("\n\n"))


for place, (path, group, text) in enumerate(COMMANDS):
    app.command(path, group=group, help=_flowing(text), sort_key=place)


class Output(msgspec.Struct, frozen=True):
    """How a command tells what it has to tell; every command that tells something has one as a parameter."""

    json: bool = False
    quiet: bool = False

    def record(self, record: dict[str, Any]) -> None:
        """With `--json`, one object on one line of stdout; else nothing."""
        if self.json:
            _write(_line(record))

    def show(self, result: "RenderableType") -> None:
        """What the command was called for, for people to read: a text, or anything that rich can draw."""
        if self.json:
            return
        if isinstance(result, str):
            _write(printable(result))
        else:
            from rich.console import Console  # noqa: PLC0415 (a tenth of a second)

            console = Console()
            with _stdout(), console.capture() as drawn:
                console.print(result)
            _write("\n".join(line.rstrip() for line in drawn.get().rstrip("\n").split("\n")))

    def warn(self, text: str) -> None:
        """What must be known, on stderr."""
        _complain(text)

    def say(self, text: str) -> None:
        """What happens on the way, for people to read; not with `--quiet`."""
        if not self.quiet:
            self.show(text)


def _line(record: dict[str, Any]) -> str:
    """In ASCII, so that no control code gets through; a number that JSON does not have becomes null."""
    plain = msgspec.to_builtins(record, str_keys=True, enc_hook=lambda value: getattr(value, "tolist", value.__str__)())
    try:
        return json.dumps(plain, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(plain), parse_constant=lambda _: None))


Told = Annotated[Output, Parameter(parse=False)]
"""The type of a command's keyword parameter that `Output` is given as."""


def _read_whole(_kind: Any, tokens: Sequence[Token]) -> int:
    """Cyclopts would round `1.5`."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


WHOLE = Parameter(converter=_read_whole)
"""Belongs to every parameter of a command that is an int."""


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command, and return what to exit with."""
    _open_missing_descriptors()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _called(sys.argv[1:] if tokens is None else tokens)
    except _StdoutLost as lost:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # or what is left would fail at the exit
        if not isinstance(lost.__cause__, BrokenPipeError):  # whoever closed it knows
            _complain(f"stdout cannot be written to: {lost}")
        return FAILED


class _StdoutLost(Exception):  # noqa: N818 (no error if the reader has had enough)
    """Stdout takes nothing more."""


def _write(text: str) -> None:
    """A text on lines of its own, at once: whoever reads them may wait for them."""
    with _stdout():
        print(text, flush=True)


@contextmanager
def _stdout() -> Iterator[None]:
    """Whatever cannot be written here is lost for good."""
    try:
        yield
    except OSError as error:
        raise _StdoutLost(error.strerror) from error


def _open_missing_descriptors() -> None:
    """A loop of uvloop aborts the process if one of its own descriptors is taken for a standard stream."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def program() -> str:
    """How this command is called here: an environment that is not activated has it in a directory of its own."""
    if shutil.which("asyncrollout"):
        return "asyncrollout"
    installed = Path(sys.executable).parent / "asyncrollout"
    if not installed.exists():
        return f"{sys.executable} -m asyncrollout"
    return str(installed.relative_to(Path.cwd()) if installed.is_relative_to(Path.cwd()) else installed)


def _called(tokens: Sequence[str]) -> int:
    try:
        code = app.meta(list(tokens), exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        _complain(f"{error}\nTry: {' '.join(['asyncrollout', *(error.command_chain or ()), '--help'])}")
        return MISUSED
    except KeyboardInterrupt:
        _complain("stopped")
        return STOPPED
    except OSError as error:
        if any(frame.name == _launch.__name__ for frame in traceback.extract_tb(error.__traceback__)):
            raise
        raise _StdoutLost(error.strerror) from error  # no command was launched: this is help, or the version
    return int(code or DONE)


@app.meta.default
def _launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    json: Annotated[bool, Parameter(group=EVERYWHERE, help="Results as JSON, one object a line.")] = False,
    quiet: Annotated[bool, Parameter(group=EVERYWHERE, help="Results and errors only.")] = False,
    debug: Annotated[
        bool, Parameter(group=EVERYWHERE, help="Errors with their traceback, as with ASYNCROLLOUT_DEBUG=1.")
    ] = False,
) -> int | None:
    """Run the command that the tokens name."""
    command, bound, ignored = app.parse_args(tokens, exit_on_error=False, print_error=False)
    output = Output(json, quiet)
    bound.arguments.update({name: output for name, kind in ignored.items() if kind is Output})
    try:
        _check_paths(bound)
        return _finished(command, bound, output)
    except Exception as error:
        failures = list(_leaves(error))
        for failure in failures:
            if isinstance(failure, _StdoutLost):
                raise failure from failure.__cause__
        if not all(isinstance(failure, RolloutError) for failure in failures):
            raise
        if debug or os.environ.get("ASYNCROLLOUT_DEBUG", "0") not in ("", "0"):
            _complain("".join(traceback.format_exception(error)))
        for failure in failures:
            _complain(str(failure))
        return MISUSED if all(isinstance(failure, UsageError) for failure in failures) else FAILED


def _check_paths(bound: inspect.BoundArguments) -> None:
    """What can be at no place, or cannot be looked at, is refused before a command stumbles over it."""
    given = [one for value in bound.arguments.values() for one in (value if isinstance(value, tuple) else (value,))]
    for path in given:
        if isinstance(path, Path):
            try:
                path.stat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise UsageError(f"{str(path)[:100]}: {error.strerror or error}") from error


def _finished(command: Callable[..., Any], bound: inspect.BoundArguments, output: Output) -> int | None:
    """What the command returns; an async one runs on uvloop, where there is one."""
    if command.__module__.startswith("cyclopts."):  # help and version log nothing
        with _stdout():
            command(*bound.args, **bound.kwargs)
            sys.stdout.flush()
        return DONE
    import asyncio  # noqa: PLC0415 (these two cost more than help does)

    from asyncrollout.cli.terminal.logs import logging_to  # noqa: PLC0415

    with logging_to(None, console=not output.quiet):
        result = command(*bound.args, **bound.kwargs)
        if inspect.iscoroutine(result):
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                result = runner.run(result)
    code: int | None = result
    return code


def _loop_factory() -> Any:
    try:
        import uvloop  # noqa: PLC0415 (not on every system)
    except ImportError:
        return None
    return uvloop.new_event_loop


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _complain(message: str) -> None:
    print(f"asyncrollout: {printable(message)}", file=sys.stderr)


_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text without codes that would steer a terminal; they are shown as escapes. Lines and tabs stay."""
    return _UNPRINTABLE.sub(lambda code: code[0].encode("unicode_escape").decode(), text)
