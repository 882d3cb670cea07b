"""The pool, driven by random programs on every backend at once, against plain objects in a plain loop.

A program that fails is printed after it was made as short as possible; `Program(...)` in `PROGRAMS` plays it again.
"""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import uvloop

from asyncrollout import registry
from asyncrollout.pool.hosts import PoolLimits
from asyncrollout.pool.process import backend, rebalancing
from asyncrollout.service import connection
from tests.envs.pool_model import SPECS
from tests.pool_model import User, play_program
from tests.pool_places import opened
from tests.pool_programs import Part, Program, random_program, simpler

SHRINKING = 80  # programs that are tried to make one that fails shorter

PROGRAMS: dict[str, Program] = {
    "a restore is cancelled": Program(
        (
            Part(
                "model_async_saving", "process", {"build": 0.03},
                (
                    ("reset", 0, 1, None, 0), ("call", 0, "add", ([2],), None), ("snapshot", 0),
                    ("cancelled", ("restore", 0, 0), 0.02), ("reset", 0, 2, [1, 2], 3),
                ),
            ),
        )
    ),
    "closed after two cancelled calls": Program(
        (
            Part(
                "model_io", "remote", {"pause": 0.02},
                (
                    ("reset", 0, 7, None, 0), ("cancelled", ("render", 0), 0.0),
                    ("cancelled", ("reset", 0, 7, None, 0), 0.0),
                ),
            ),
        )
    ),
    "a restore diverges after a call that cannot be repeated": Program(
        (
            Part(
                "model_cpu", "process", {"drifts": True},
                (
                    ("reset", 0, 8, [1, 2], 3), ("snapshot", 0), ("step", 0, "bad"), ("call", 0, "nudge", (5,), None),
                    ("restore", 0, 0), ("call", 0, "set_level", (3,), True), ("reset", 0, 1, None, 0),
                ),
            ),
        )
    ),
    "a restore diverges after a failed step": Program(
        (
            Part(
                "model_cpu", "inline", {"drifts": True},
                (
                    ("reset", 0, 8, None, 0), ("snapshot", 0), ("step", 0, "bad"), ("restore", 0, 0),
                    ("call", 0, "nudge", (5,), None), ("call", 0, "add", ([2],), None), ("reset", 0, 1, None, 0),
                    ("snapshot", 0),
                ),
            ),
        )
    ),
    "an earlier episode diverges before a call of no method": Program(
        (
            Part(
                "model_cpu", "inline", {"drifts": True},
                (
                    ("reset", 0, 7, None, 0), ("call", 0, "add", ([2],), None), ("step", 0, []),
                    ("reset", 0, 2, [1, 2], 3), ("call", 0, "no_such_method", (), None),
                ),
            ),
        )
    ),
    "a call of a failed env whose worker died is not made": Program(
        (
            Part(
                "model_cpu", "snapshots", {},
                (
                    ("reset", 0, 1, None, 0), ("step", 0, "bad"), ("disturb", "snapshots", "kill", 0),
                    ("call", 0, "set_level", (2,), None), ("reset", 0, 1, None, 0), ("snapshot", 0),
                ),
            ),
        )
    ),
    "a call after a failed reset and a death is not made": Program(
        (
            Part(
                "model_cpu", "snapshots", {},
                (
                    ("reset", 0, 1, None, 0), ("reset", 0, 1, "bad", 0), ("disturb", "snapshots", "kill", 0),
                    ("call", 0, "score", (), None), ("reset", 0, 1, None, 0), ("snapshot", 0),
                ),
            ),
        )
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in SPECS.values():
        monkeypatch.setitem(registry._registered, spec.name, spec)
    monkeypatch.delenv("ASYNCROLLOUT_TOKEN", raising=False)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls move away from those that take hundredths of a second, as others do from those that take seconds."""
    monkeypatch.setattr(PoolLimits, "soft", 0.01)
    monkeypatch.setattr(backend, "_WATCH_EVERY", 0.01)
    for module in (backend, rebalancing):
        monkeypatch.setattr(module, "SOON", 0.005)
    monkeypatch.setattr(connection, "_FIRST_PAUSE", 0.01)


async def play_all(programs: Sequence[Program]) -> None:
    """One after the other in the same pools."""
    names = set[str]().union(*(program.places for program in programs))
    users: list[User] = []
    with tempfile.TemporaryDirectory() as directory:
        async with opened(names) as places:
            for at, program in enumerate(programs):
                (Path(directory) / f"{at}").mkdir()
                users += await play_program(program, places, Path(directory) / f"{at}")
            made_again = sum(place.made_again for place in places.values())
        calm = all(program.is_calm for program in programs)
        for user in users:
            user.check_diary(calm=calm)
        built, made = sum(user.built for user in users), sum(user.made for user in users)
        assert built <= made + made_again, f"{built} envs were built, for {made} and {made_again} that were lost"


def fails(programs: Sequence[Program]) -> BaseException | None:
    try:
        uvloop.run(play_all(programs))
    except (Exception, ExceptionGroup) as error:
        return error
    return None


def check(programs: Sequence[Program]) -> None:
    failure = fails(programs)
    if failure is None:
        return
    for program in programs:
        if (alone := fails([program])) is not None:
            program, alone = shrink(program, alone)
            pytest.fail(f"{program!r}\nfails with {described(alone)}")
    pytest.fail(f"only in a row of {len(programs)} programs:\n{described(failure)}")


def shrink(program: Program, failure: BaseException) -> tuple[Program, BaseException]:
    """The shortest program found that fails in the same way."""
    tried = 0
    is_shorter = True
    while is_shorter and tried < SHRINKING:
        is_shorter = False
        for candidate in simpler(program):
            tried += 1
            if tried > SHRINKING:
                break
            if (found := fails([candidate])) is not None and kind_of(found) == kind_of(failure):
                program, failure, is_shorter = candidate, found, True
                break
    return program, failure


def first(failure: BaseException) -> BaseException:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


def described(failure: BaseException) -> str:
    lines = [f"{type(first(failure)).__name__}: {first(failure)}"]
    while isinstance(failure, BaseExceptionGroup):
        lines += getattr(failure, "__notes__", [])
        failure = failure.exceptions[0]
    return "\n".join([*lines, *getattr(failure, "__notes__", [])])


def kind_of(failure: BaseException) -> str:
    """Its text without numbers."""
    return re.sub(r"\W*\d[\d\W]*", " ", f"{type(first(failure)).__name__}: {first(failure)}")[:40]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_once_failed(name: str) -> None:
    check([PROGRAMS[name]])


@pytest.mark.parametrize("part", [*range(3), *(pytest.param(n, marks=pytest.mark.extended) for n in range(3, 6))])
def test_random_programs(part: int) -> None:
    check([random_program(seed) for seed in range(10 * part, 10 * (part + 1))])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(200))
def test_many_random_programs(part: int) -> None:
    check([random_program(seed) for seed in range(1_000 + 20 * part, 1_020 + 20 * part)])
