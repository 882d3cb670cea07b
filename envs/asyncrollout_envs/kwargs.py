"""Checks of keyword arguments; an error names the env, the key, the value and what would be valid."""

import math
from typing import Any

from asyncrollout.errors import UsageError


def check_whole(env: str, *, least: int = 1, **values: Any) -> None:
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"{env}: {key}={value!r} is not a whole number from {least}")


def check_number(env: str, **values: Any) -> None:
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UsageError(f"{env}: {key}={value!r} is not a number")


def check_share(env: str, **values: Any) -> None:
    check_number(env, **values)
    for key, value in values.items():
        if not 0 <= value <= 1:
            raise UsageError(f"{env}: {key}={value!r} is not a number from 0 to 1")


def check_one_of(env: str, key: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{env}: {key}={value!r} is not one of {', '.join(known)}")
