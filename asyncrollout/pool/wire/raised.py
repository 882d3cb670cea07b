"""Distinguishes what an env's code raises from what happens to this program: an env may raise any kind of exception."""

import asyncio
import functools
import opcode
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, TracebackType
from typing import Any

_RAISE = opcode.opmap["RAISE_VARARGS"]
_NAME: Any = type.__dict__["__name__"]
TRACEBACK: Any = BaseException.__dict__["__traceback__"]  # the exception's class may define its own


class EnvRaised(Exception):  # noqa: N818 (a signal inside the pool, never an error that a user sees)
    """Takes an exception of an env across awaits, where some kinds of it would mean something else."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def is_own(error: BaseException, *, is_async: bool = False) -> bool:
    """Whether an env that was called here raised it; False for Ctrl-C and, where it `awaits`, for a cancellation."""
    kind = type(error)  # not `isinstance`, which looks at `__class__`
    if issubclass(kind, KeyboardInterrupt):
        return not _may_be_ctrl_c(error)
    if is_async and issubclass(kind, GeneratorExit):  # thrown into a coroutine that is being closed
        return _is_raised_by_statement(error)
    if is_async and issubclass(kind, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return True


@contextmanager
def ignored(*, is_async: bool = False) -> Iterator[None]:
    """Ignores what an env raises where nobody is left to hear of it."""
    try:
        yield
    except BaseException as error:
        if not is_own(error, is_async=is_async):
            raise


def type_name(value: object) -> str:
    """Not by `__name__`, which a metaclass may define."""
    name: str = _NAME.__get__(type(value))
    return name


def text_of(error: BaseException, *, with_notes: bool = False) -> str:
    try:
        notes = getattr(error, "__notes__", ()) if with_notes else ()
        return " ".join([str(error), *notes])
    except BaseException as broken:  # an env author's __str__ may do anything
        if not is_own(broken):
            raise
        return f"<its text cannot be made: {type_name(broken)}>"


def describe(error: BaseException) -> str:
    """Its type and text, as the last line of a traceback has them."""
    return f"{type_name(error)}: {text_of(error)}"


def repr_of(value: Any) -> str:
    """The repr of an env's value, or its type if that cannot be made."""
    try:
        return repr(value)
    except BaseException as broken:  # an env author's __repr__ may do anything
        if not is_own(broken):
            raise
        return f"<a {type_name(value)} whose repr raises {type_name(broken)}>"


def _may_be_ctrl_c(error: BaseException) -> bool:
    """A signal's handler runs in the main thread only: Python's own one anywhere in a line, another as a call."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        return not _is_raised_by_statement(error)
    code = _code_of(handler)
    return code is not None and any(entry.tb_frame.f_code is code for entry in _entries(error))


def _is_raised_by_statement(error: BaseException) -> bool:
    last: TracebackType | None = None
    for last in _entries(error):  # noqa: B007 (the last one)
        pass
    return last is not None and last.tb_frame.f_code.co_code[last.tb_lasti] == _RAISE


def _entries(error: BaseException) -> Iterator[TracebackType]:
    entry: TracebackType | None = TRACEBACK.__get__(error)
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return code if isinstance(code, CodeType) else None
