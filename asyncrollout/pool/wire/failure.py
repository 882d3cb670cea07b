"""Exceptions as data, so that any of them can cross a process boundary and arrive attributed."""

import traceback

from asyncrollout.errors import EnvBuildError, EnvError, EnvResourceError, RolloutError
from asyncrollout.pool.wire.messages import Failure, Op
from asyncrollout.pool.wire.raised import TRACEBACK, describe, is_own, text_of, type_name

_CLIP = 2_000
_CLIP_TRACEBACK = 20_000


def failure(error: BaseException, op: Op = Op.STEP) -> Failure:
    """Never fails itself, even if methods of the exception or its class do."""
    text = text_of(error, with_notes=True)
    raises = _error_for(error, op).__name__
    return Failure(raises, type_name(error), clip(text, _CLIP), clip(_trace(error), _CLIP_TRACEBACK))


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as broken:  # names and causes of exceptions can be an env author's code, too
        if not is_own(broken):
            raise
        lines = traceback.format_tb(TRACEBACK.__get__(error))
        return "".join(["Traceback (most recent call last):\n", *lines, describe(error), "\n"])


def _error_for(error: BaseException, op: Op) -> type[RolloutError]:
    kind = type(error)  # not `isinstance`, which looks at `__class__`
    if issubclass(kind, RolloutError) and kind is not EnvError:
        return kind
    if issubclass(kind, MemoryError):
        return EnvResourceError
    return EnvBuildError if op is Op.OPEN else EnvError


def clip(text: str, limit: int) -> str:
    text = text.encode(errors="replace").decode()  # lone surrogates have no wire form
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} ... {len(text) - limit} characters ... {text[-limit // 2 :]}"
