"""Exceptions as data, so that any of them can cross a process boundary and arrive attributed."""

import traceback

import msgspec

from asyncrollout.errors import EnvBuildError, EnvError, EnvResourceError, RolloutError
from asyncrollout.pool.wire import Op

_CLIP = 2_000
_CLIP_TRACEBACK = 20_000


class Failure(msgspec.Struct, frozen=True):
    """What an env raised; `raises` names the error of ours to raise for it."""

    raises: str
    kind: str
    text: str
    trace: str


def failure(error: BaseException, op: Op = Op.STEP) -> Failure:
    """Never fails itself, whatever the exception's `__str__` does."""
    try:
        text = " ".join([str(error), *getattr(error, "__notes__", ())])
    except (Exception, SystemExit) as broken:  # an env author's __str__ may do anything
        text = f"<its text cannot be made: {type(broken).__name__}>"
    trace = "".join(traceback.format_exception(error))
    raises = _error_for(error, op).__name__
    return Failure(raises, type(error).__name__, clip(text, _CLIP), clip(trace, _CLIP_TRACEBACK))


def _error_for(error: BaseException, op: Op) -> type[RolloutError]:
    if isinstance(error, RolloutError) and type(error) is not EnvError:
        return type(error)
    if isinstance(error, MemoryError):
        return EnvResourceError
    return EnvBuildError if op is Op.OPEN else EnvError


def clip(text: str, limit: int) -> str:
    text = text.encode(errors="replace").decode()  # lone surrogates have no wire form
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} ... {len(text) - limit} characters ... {text[-limit // 2 :]}"
