"""The sampler, driven by random programs in virtual time, against a reference that is slow and simple.

A program that fails is printed after it was made as short as possible; `Program(...)` in `PROGRAMS` plays it again.
"""

import random
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.sampler_model import TAKES, Op, Player, Program
from tests.virtual_time import run_virtually

PATIENCE = 5.0  # real seconds for one program; most take a few hundredths
SHRINKING = 150  # programs that are tried to make one that fails shorter

PROGRAMS: list[Program] = []


def play(program: Program) -> Player:
    with tempfile.TemporaryDirectory() as directory:
        player = Player(program, Path(directory))
        try:
            run_virtually(player.play, patience=PATIENCE)
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
        if program.is_in_start_order and not program.may_be_stale and not program.is_broken_off:
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


def simpler(program: Program) -> Iterator[Program]:
    ops = program.ops
    for at, op in enumerate(ops):
        yield replace(program, ops=(*ops[:at], *ops[at + 1 :]))
        for other in _simpler_op(op):
            yield replace(program, ops=(*ops[:at], other, *ops[at + 1 :]))
    plain = Program()
    for name in (
        "journal", "broken", "score", "fails", "shares", "keep", "source", "max_rounds", "on_exhausted", "min_valid",
        "retries", "order", "max_lag", "group_size",
    ):  # fmt: skip
        if getattr(program, name) != getattr(plain, name):
            yield replace(program, **{name: getattr(plain, name)})
    if program.tasks > 1:
        yield replace(program, tasks=program.tasks // 2)
        yield replace(program, tasks=program.tasks - 1)
    if program.groups_in_flight > 1:
        yield replace(program, groups_in_flight=program.groups_in_flight - 1)


def _simpler_op(op: Op) -> Iterator[Op]:
    name, *rest = op
    if name in TAKES and rest[0] > 1:
        yield (name, rest[0] - 1)
    elif name in ("cancelled", "closing"):
        yield rest[0]
    elif name == "beside":
        yield rest[0]
        for at in range(len(rest[1])):
            if len(rest[1]) > 1:
                yield (name, rest[0], (*rest[1][:at], *rest[1][at + 1 :]))
            for other in _simpler_op(rest[1][at]):
                yield (name, rest[0], (*rest[1][:at], other, *rest[1][at + 1 :]))
    elif name == "update" and rest[0] > 1:
        yield (name, 1, *rest[1:])


def random_program(seed: int) -> Program:
    rng = random.Random(seed)
    kind = rng.choice(["once", "start", "free", "free", "free"])
    max_lag = rng.choice([0, 1, 1, 2, None])
    takes = {"once": ["collect", "batches"], "start": ["batches"], "free": ["batches", "batches", "groups", "collect"]}
    if kind == "once":
        max_lag = 0
    if kind == "free" and rng.random() < 0.7:
        takes["free"] = [rng.choice(["batches", "groups", "collect"])]
    size, group_size = rng.randint(1, 5), rng.randint(1, 3)
    is_even = kind == "start" or rng.random() < 0.5
    is_quiet = rng.random() < 0.4  # nothing is broken off, no weights change in between
    keep = rng.choice(["all", "group", "batch"])
    fails = group_size > 1 and rng.random() < 0.4
    source = rng.choice(["endless", "list", "async", "chooser"])
    score = rng.choice(["none", "none", "trajectory", "group"])
    tasks = 0 if source == "endless" else rng.randint(1, 30)
    hooks = [name for name, is_there in (("filter", keep != "all"), ("score", score != "none")) if is_there]
    hooks += ["tasks"] * (source in ("list", "chooser"))

    def take() -> Op:
        return (rng.choice(takes[kind]), size if is_even else rng.randint(1, 5))

    def update() -> Op:
        return ("update", rng.choice([1, 1, 1, 2, 5]), rng.choice(["wait", "abort", "continue"]),
                rng.choice([0.0, 1.0, 10.0]), rng.random() < 0.1)  # fmt: skip

    def op() -> Op:
        kinds = ["take"] * 6 + ["train", "idle", "evaluate", "update", "update"]
        match rng.choice(kinds if is_quiet else [*kinds, "cancelled", "cancelled", "beside", "beside", "reopen"]):
            case "take":
                return take()
            case "train":
                return ("train", rng.choice([0.1, 1.0, 5.0, 30.0]))
            case "idle":
                return ("idle",)
            case "evaluate":
                return ("evaluate", rng.randint(1, 3), rng.randint(1, 2))
            case "update":
                return update()
            case "cancelled":
                return ("cancelled", take(), rng.choice([0.0, 0.5, 2.0, 5.0]))
            case "reopen":
                return ("reopen", rng.choice(["on", "next", "rewind"]))
            case _:
                others = [update() if rng.random() < 0.7 else ("train", 2.0) for _ in range(rng.randint(1, 3))]
                return ("beside", take(), tuple(others))

    ops = tuple(op() for _ in range(rng.randint(1, 8)))
    if not is_quiet and rng.random() < 0.2:
        ops = (*ops, ("closing", take(), rng.choice([0.0, 1.0, 5.0])))
    is_broken = not is_quiet and hooks and rng.random() < 0.3
    return Program(
        ops=ops,
        seed=seed,
        latencies=seed,
        group_size=group_size,
        groups_in_flight=rng.choice([1, 2, 4, 8]),
        order="start" if kind == "start" else rng.choice(["finish", "finish", "start"]),
        max_lag=max_lag,
        keep=keep,
        max_rounds=rng.choice([None, None, 1, 2, 3, 10]),
        on_exhausted=rng.choice(["raise", "short", "fill"]),
        retries=rng.randint(0, 2),
        min_valid=rng.choice([None, None, 1]),
        fails=fails,
        score=score,
        source=source,
        tasks=tasks,
        shares=rng.choice([(1.0,), (1.0,), (3.0, 1.0), (1.0, 2.0, 0.5)]),
        journal=rng.random() < 0.3,
        broken=(rng.choice(hooks), rng.randint(0, 8)) if is_broken else None,
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_programs_that_once_failed(program: Program) -> None:
    check(program)


@pytest.mark.parametrize("part", range(10))
def test_random_programs(part: int) -> None:
    for seed in range(30 * part, 30 * (part + 1)):
        check(random_program(seed))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(100))
def test_many_random_programs(part: int) -> None:
    for seed in range(1_000 + 100 * part, 1_100 + 100 * part):
        check(random_program(seed))
