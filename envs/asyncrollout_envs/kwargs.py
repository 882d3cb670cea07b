"""Checks of keyword arguments; an error names the env, the key, the value and what would be valid."""

import math
from numbers import Integral, Real
from typing import Any, Literal, get_args

from asyncrollout.errors import UsageError

Style = Literal["plain", "ragen"]
"""Whose rules an env follows where ours and RAGEN's differ: what observations tell, how answers are scored."""


def check_whole(env: str, *, least: int = 1, most: int | None = None, **values: Any) -> None:
    """Numbers of numpy's count, too."""
    for key, value in values.items():
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_whole or value < least or (most is not None and value > most):
            bounds = f"from {least}" if most is None else f"from {least} to {most}"
            raise UsageError(f"{env}: {key}={value!r:.200} is not a whole number {bounds}")


def check_number(env: str, **values: Any) -> None:
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise UsageError(f"{env}: {key}={value!r:.200} is not a number")


def check_share(env: str, **values: Any) -> None:
    check_number(env, **values)
    for key, value in values.items():
        if not 0 <= value <= 1:
            raise UsageError(f"{env}: {key}={value!r} is not a number from 0 to 1")


def check_bool(env: str, **values: Any) -> None:
    for key, value in values.items():
        if not isinstance(value, bool):
            raise UsageError(f"{env}: {key}={value!r:.200} is neither True nor False")


def check_one_of(env: str, key: str, value: Any, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise UsageError(f"{env}: {key}={value!r:.200} is not one of {', '.join(known)}")


def check_style(env: str, style: Any) -> None:
    check_one_of(env, "style", style, get_args(Style))
