"""The sampler, driven by random programs in virtual time, against a reference that is slow and simple.

A program that fails is printed after it was made as short as possible; `Program(...)` in `PROGRAMS` plays it again.
"""

import re
import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.sampler_model import Player
from tests.sampler_programs import Program, random_program, random_sharded_program, simpler
from tests.virtual_time import run_virtually

PATIENCE = 30.0  # real seconds for one program; most take a few hundredths
SHRINKING = 100  # programs that are tried to make one that fails shorter

PROGRAMS = {
    "two updates in a row": Program(
        (("beside", ("batches", 2), (("update", 1, "wait", 0.0, False), ("update", 1, "wait", 10.0, False))),),
        seed=9, latencies=9, groups_in_flight=1,
    ),
    "a failed group is no filling": Program(
        (("batches", 1),), seed=7, latencies=7, groups_in_flight=1, max_rounds=1, on_exhausted="fill", fails=True
    ),
    "no lag means start order": Program(
        (("batches", 1),), seed=239, latencies=239, groups_in_flight=2, max_lag=0, keep="group"
    ),
    "a cancelled collect": Program(
        (("cancelled", ("collect", 4), 0.5),), seed=80, latencies=80, groups_in_flight=1, source="chooser", tasks=2
    ),
    "kept beyond a batch": Program(
        (("collect", 5),), seed=69, latencies=69, groups_in_flight=6, keep="batch", source="chooser", tasks=19
    ),
    "closed at the end of the tasks": Program(
        (("closing", ("batches", 5), 1.0),), seed=1391, latencies=1391, groups_in_flight=2, source="chooser", tasks=1
    ),
    "closed while collecting": Program(
        (("batches", 2), ("collect", 2), ("closing", ("collect", 3), 1.0)),
        seed=338, latencies=338, groups_in_flight=6, keep="batch", fails=True, source="async", tasks=18,
    ),
    "the last draws of the last task": Program(
        (("batches", 1),), seed=391, latencies=391, groups_in_flight=2, order="start", keep="group", max_rounds=1,
        on_exhausted="fill", source="chooser", tasks=7,
    ),
    "stale before they are judged": Program(
        (("batches", 1), ("beside", ("batches", 2), (("update", 1, "wait", 0.0, False),))),
        seed=283, latencies=283, groups_in_flight=2, max_lag=0, source="chooser", tasks=3,
    ),
    "collect beside batches in start order": Program(
        (("batches", 2), ("collect", 3)),
        seed=374, latencies=374, groups_in_flight=1, order="start", keep="batch", source="list", tasks=14,
    ),
    "a hook fails as its taker leaves": Program(
        (("cancelled", ("batches", 5), 0.0),),
        seed=970, latencies=970, groups_in_flight=1, max_lag=0, source="list", tasks=1, broken=("tasks", 0),
    ),
    "a rewound run in which nothing happens": Program(
        (("collect", 1), ("reopen", "rewind"), ("reopen", "on")), seed=5003346, source="list", tasks=1, journal=True
    ),
    "one group of a batch that comes again": Program(
        (("batches", 2), ("reopen", "rewind"), ("groups", 1)), seed=5000470, groups_in_flight=1, journal=True
    ),
}  # fmt: skip


def play(program: Program) -> Player:
    with tempfile.TemporaryDirectory() as directory:
        player = Player(program, Path(directory))
        try:
            run_virtually(player.play, patience=PATIENCE, at_rest=player.check_at_rest)
        except BaseException as error:
            error.add_note(f"{_stats(player)}\noutcomes: {player.outcomes}")
            raise
    return player


def _stats(player: Player) -> str:
    if player.rollouts is None:
        return "not open"
    stats = {name: value for name, value in msgspec.structs.asdict(player.rollouts.stats()).items() if name != "pool"}
    return f"{player.rollouts.ledger}, {stats}, under way: {[*map(str, player.rollouts.ledger.open.values())]}"


def fails(program: Program) -> BaseException | None:
    """How it fails, with itself or with other latencies."""
    try:
        player = play(program)
        if program.is_in_start_order and not program.may_be_stale and not program.was_interrupted:
            other = play(replace(program, latencies=program.latencies + 1))
            assert player.outcomes == other.outcomes, f"{player.outcomes} but with other latencies {other.outcomes}"
    except (Exception, ExceptionGroup) as error:
        return error
    return None


def check(program: Program) -> None:
    failure = fails(program)
    if failure is not None:
        shortest, failure = shrink(program, failure)
        pytest.fail(f"{shortest!r}\nfails with {type(failure).__name__}: {failure}\n" + "\n".join(failure.__notes__))


def shrink(program: Program, failure: BaseException) -> tuple[Program, BaseException]:
    """The shortest program found that fails in the same way."""
    tried = 0
    is_shorter = True
    while is_shorter and tried < SHRINKING:
        is_shorter = False
        for candidate in simpler(program):
            tried += 1
            if (found := fails(candidate)) is not None and kind_of(found) == kind_of(failure):
                program, failure, is_shorter = candidate, found, True
                break
    return program, failure


def kind_of(failure: BaseException) -> str:
    """Its text without numbers."""
    return re.sub(r"\W*\d[\d\W]*", " ", f"{type(failure).__name__}: {failure}")[:60]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_once_failed(name: str) -> None:
    check(PROGRAMS[name])


@pytest.mark.parametrize("part", [*range(4), *(pytest.param(n, marks=pytest.mark.extended) for n in range(4, 10))])
def test_random_programs(part: int) -> None:
    for seed in range(30 * part, 30 * (part + 1)):
        check(random_program(seed))


@pytest.mark.parametrize("part", [*range(3), *(pytest.param(n, marks=pytest.mark.extended) for n in range(3, 10))])
def test_random_programs_on_shards(part: int) -> None:
    for seed in range(20 * part, 20 * (part + 1)):
        check(random_sharded_program(seed))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(100))
def test_many_random_programs(part: int) -> None:
    for seed in range(1_000 + 100 * part, 1_100 + 100 * part):
        check(random_program(seed))
