"""Checks of arguments, with errors of one form: what was given, and what is expected."""

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np

from asyncrollout.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")


def suggests_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Answer an unknown keyword with the nearest one that the function takes."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    owner = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in known:
                raise UsageError(f"{owner} takes no {name}={did_you_mean(name, known)}")
        return function(*args, **kwargs)

    return checked


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the closest valid names, or all of them where none is close."""
    names = [name for name in known if not name.startswith("_")]
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.51)
    close = close or [name for name in names if word and word in name][:3]
    if close:
        return ": did you mean " + " or ".join(repr(name) for name in close) + "?"
    return "; available: " + ", ".join(names[:12]) if names else ""


def check_choice(name: str, value: object, valid: Iterable[str]) -> None:
    valid = [*valid]
    if value not in valid:
        raise UsageError(f"{name}={value!r} is not valid{did_you_mean(str(value), valid)}")


def check_int(name: str, value: object, least: int) -> int:
    """The value as an int; numpy's integers are valid."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UsageError(f"{name}={value!r} is not a whole number from {least}")
    return int(value)


def check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UsageError(f"{name}={value!r} is not a number of seconds above 0")
