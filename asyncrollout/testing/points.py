"""What a point of the contract is: a sentence, a check that gives what it saw against it, and what to do then."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncrollout.testing.cases import Case

Check = Callable[["Case"], Awaitable[list[str]]]


class Skipped(Exception):  # noqa: N818 (no error: the point does not apply to this env)
    """Raised by a check with the reason why there is nothing to check."""


@dataclass(frozen=True)
class Point:
    says: str
    remedy: str
    check: Check


def point(says: str, remedy: str) -> Callable[[Check], Point]:
    """Make a point of an async function that returns what it saw against `says`: nothing, if all is well."""

    def make(check: Check) -> Point:
        return Point(says, remedy, check)

    return make
