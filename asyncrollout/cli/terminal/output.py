"""What a command prints: results on stdout, for people or as JSON, and problems on stderr."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter, Token

if TYPE_CHECKING:
    from rich.console import RenderableType

DONE, FAILED, MISUSED, STOPPED = 0, 1, 2, 130
"""Exit codes: done; a check or a run failed; bad usage or bad input; stopped by Ctrl-C."""

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Output(msgspec.Struct, frozen=True):
    """Where a command reports; every command that prints takes one as a parameter of type `OutputParam`."""

    json: bool = False
    quiet: bool = False

    def record(self, record: dict[str, Any]) -> None:
        """With `--json`, print one object on one line of stdout; otherwise do nothing."""
        if self.json:
            _write(_line(record))

    def show(self, result: "RenderableType") -> None:
        """Print the command's result for people to read: a text, or anything that rich renders."""
        if self.json:
            return
        if isinstance(result, str):
            _write(printable(result))
        else:
            from rich.console import Console  # noqa: PLC0415 (a tenth of a second)

            console = Console()
            with writing_stdout(), console.capture() as drawn:
                console.print(result)
            _write("\n".join(line.rstrip() for line in drawn.get().rstrip("\n").split("\n")))

    def say(self, text: str) -> None:
        """Print progress for people to read, unless `--quiet`."""
        if not self.quiet:
            self.show(text)

    def warn(self, text: str) -> None:
        """Print what the user must know, on stderr."""
        complain(text)


OutputParam = Annotated[Output, Parameter(parse=False)]
"""The type of the parameter by which a command gets its `Output`."""


def _line(record: dict[str, Any]) -> str:
    """In ASCII, so that no control code gets through; a number that JSON does not have becomes null."""
    plain = msgspec.to_builtins(record, str_keys=True, enc_hook=lambda value: getattr(value, "tolist", value.__str__)())
    try:
        return json.dumps(plain, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(plain), parse_constant=lambda _: None))


def _write(text: str) -> None:
    """Print and flush: whoever reads the lines may wait for them."""
    with writing_stdout():
        print(text, flush=True)


class StdoutLost(Exception):  # noqa: N818 (not an error if the reader has had enough)
    """Stdout cannot be written to any more."""


@contextmanager
def writing_stdout() -> Iterator[None]:
    """Turn a failed write into `StdoutLost`, which ends the command."""
    try:
        yield
    except OSError as error:
        raise StdoutLost(error.strerror) from error


def complain(message: str) -> None:
    print(f"asyncrollout: {printable(message)}", file=sys.stderr)


def printable(text: str) -> str:
    """The text with control codes shown as escapes, so that it cannot steer a terminal. Newlines and tabs stay."""
    return _UNPRINTABLE.sub(lambda code: code[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """The same for a cell or a title, which has neither newlines nor tabs."""
    return "".join(sign if sign.isprintable() else " " for sign in printable(text))


def _read_whole(_kind: Any, tokens: Sequence[Token]) -> int:
    """Cyclopts would round `1.5`."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


WHOLE = Parameter(converter=_read_whole)
"""Belongs to every int parameter of a command."""


def program() -> str:
    """The command as the user can type it: a venv in this directory that is not activated has it at a path there.

    `uvx` and `pipx run` start it in an environment of their caches, which the user's shell does not find.
    """
    if (cache := Path(sys.prefix).parent).name.startswith("archive-v"):  # uv's
        return "uvx asyncrollout"
    if cache.name == "pipx" or (cache.name, cache.parent.name) == (".cache", "pipx"):
        return "pipx run asyncrollout"
    installed, here = Path(sys.executable).parent / "asyncrollout", Path.cwd()
    found = shutil.which("asyncrollout")
    if "UV" in os.environ and found == str(installed):  # `uv run` puts it there for this process alone
        found = None
    if not found and installed.exists() and installed.is_relative_to(here):
        return str(installed.relative_to(here))
    return "asyncrollout"
