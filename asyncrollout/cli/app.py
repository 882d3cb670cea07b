"""The `asyncrollout` command: its commands, the options that all of them share, and how they end."""

import ast
import inspect
import io
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter

from asyncrollout import __version__
from asyncrollout.cli.terminal.output import (
    DONE,
    FAILED,
    MISUSED,
    STOPPED,
    Output,
    StdoutLost,
    complain,
    writing_stdout,
)
from asyncrollout.errors import RolloutError, UsageError

RUN = Group.create_ordered("Run")
INSPECT = Group.create_ordered("Inspect")
ENVIRONMENTS = Group.create_ordered("Environments")
MACHINE = Group.create_ordered("Machine")
GLOBAL = Group.create_ordered("Global options")

COMMANDS = {
    "demo:demo": RUN,
    "run:run": RUN,
    "run:resume": RUN,
    "eval:eval": RUN,
    "serve:serve": RUN,
    "report:report": INSPECT,
    "view:view": INSPECT,
    "replay:replay": INSPECT,
    "compare:compare": INSPECT,
    "envs:envs": ENVIRONMENTS,
    "envs:check_env": ENVIRONMENTS,
    "new_env:new_env": ENVIRONMENTS,
    "doctor:doctor": MACHINE,
}
"""Module and function of each command, in the order of `--help`. The function may be async, and takes an `Output`."""

app = App(
    name="asyncrollout",
    help="""Rollouts for reinforcement learning and evaluation of LLM agents.

    Get started: asyncrollout demo

    Help for one command: asyncrollout COMMAND --help
    """,
    help_format="plaintext",
    help_flags=["--help", "-h"],
    version=f"asyncrollout {__version__}",
    default_parameter=Parameter(negative=(), show_default=False),
    group_commands=GLOBAL,
)
app.meta.suppress_keyboard_interrupt = False  # main() reports it


def _help(module: str, function: str) -> str:
    """A command's docstring, read without importing its module: `--help` would take seconds to load them all.

    Each paragraph becomes one line, which the terminal wraps to its own width.
    """
    content = pkgutil.get_data("asyncrollout.cli", f"{module}.py")
    assert content is not None
    source = ast.parse(content)
    defined = {node.name: node for node in source.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    text = ast.get_docstring(defined[function]) or ""
    return "\n\n".join(" ".join(part.split("\n")) for part in text.split("\n\n"))


for place, (command, group) in enumerate(COMMANDS.items()):
    app.command(f"asyncrollout.cli.{command}", group=group, help=_help(*command.split(":")), sort_key=place)


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _open_missing_descriptors()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _called(sys.argv[1:] if tokens is None else tokens)
    except StdoutLost as lost:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # or flushing the rest would fail at exit
        if not isinstance(lost.__cause__, BrokenPipeError):  # the reader closed it, and knows
            complain(f"stdout cannot be written to: {lost}")
        return FAILED


def _open_missing_descriptors() -> None:
    """uvloop aborts the process if one of its own descriptors is taken for a standard stream."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def _called(tokens: Sequence[str]) -> int:
    try:
        code = app.meta(list(tokens), exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        complain(f"{error}\nTry: {' '.join(['asyncrollout', *(error.command_chain or ()), '--help'])}")
        return MISUSED
    except KeyboardInterrupt:
        complain("stopped")
        return STOPPED
    except OSError as error:
        if any(frame.name == _launch.__name__ for frame in traceback.extract_tb(error.__traceback__)):
            raise
        raise StdoutLost(error.strerror) from error  # no command was launched: this is help, or the version
    return int(code or DONE)


@app.meta.default
def _launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    json: Annotated[bool, Parameter(group=GLOBAL, help="Print results as JSON, one object per line.")] = False,
    quiet: Annotated[bool, Parameter(group=GLOBAL, help="Print results and errors only.")] = False,
    debug: Annotated[
        bool, Parameter(group=GLOBAL, help="Show tracebacks of errors; ASYNCROLLOUT_DEBUG=1 does the same.")
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
            if isinstance(failure, StdoutLost):
                raise failure from failure.__cause__
        if not all(isinstance(failure, RolloutError) for failure in failures):
            raise
        if debug or os.environ.get("ASYNCROLLOUT_DEBUG", "0") not in ("", "0"):
            complain("".join(traceback.format_exception(error)))
        for failure in failures:
            complain(str(failure))
        return MISUSED if all(isinstance(failure, UsageError) for failure in failures) else FAILED


def _check_paths(bound: inspect.BoundArguments) -> None:
    """Refuse a path that cannot exist or cannot be read, before a command stumbles over it."""
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
    """Run the command and return what it returns; an async one runs on uvloop where that is installed."""
    if command.__module__.startswith("cyclopts."):  # help and version log nothing
        with writing_stdout():
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
