"""Programs for `Rollouts`: options, and what is asked of them; at random, and simpler than others."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

Op = tuple[Any, ...]
"""`(name, *arguments)`: a method of `Player`."""

TAKES = ("batches", "groups", "collect")


@dataclass(frozen=True)
class Program:
    """What `Rollouts` are made of, and what is asked of them."""

    ops: tuple[Op, ...] = ()
    seed: int = 0
    latencies: int = 0
    group_size: int = 2
    groups_in_flight: int = 4
    odd_places: int = 0
    """Beyond those of whole groups."""
    order: Literal["finish", "start"] = "finish"
    max_lag: int | None = 1
    keep: Literal["all", "group", "batch"] = "all"
    max_rounds: int | None = None
    on_exhausted: Literal["raise", "short", "fill"] = "raise"
    retries: int = 2
    min_valid: int | None = None
    fails: bool = False
    """Whether replies of some members fail: once, or always."""
    score: Literal["none", "trajectory", "group"] = "none"
    source: Literal["endless", "list", "async", "chooser"] = "endless"
    tasks: int = 0
    shares: tuple[float, ...] = (1.0,)
    journal: bool = False
    shards: int = 0
    broken: tuple[str, int] | None = None
    """Which hook ("filter", "score", "tasks") raises at which draw, once."""

    @property
    def is_endless(self) -> bool:
        return self.source == "endless"

    @property
    def takes(self) -> list[Op]:
        """All operations that give groups, wherever they are."""
        return [op for op in flat(self.ops) if op[0] in TAKES]

    @property
    def names(self) -> set[str]:
        return {op[0] for op in flat(self.ops)}

    @property
    def ahead(self) -> int:
        return 1 if self.max_lag is None else self.max_lag

    @property
    def is_once(self) -> bool:
        """Whether each take stands for itself: what is beyond it is cancelled."""
        return all(op[0] == "collect" or (op[0] == "batches" and self.max_lag == 0) for op in self.takes)

    @property
    def is_in_start_order(self) -> bool:
        """Whether what is delivered follows from the draws alone."""
        return self.is_once or (self.order == "start" and all(op[0] == "batches" for op in self.takes) and self.is_even)

    @property
    def is_even(self) -> bool:
        return len({op[1] for op in self.takes}) <= 1

    @property
    def may_be_stale(self) -> bool:
        """Whether weights may change while something plays that is delivered later."""
        if "update" not in self.names or self.max_lag is None:
            return False
        inside = {op[0] for beside in flat(self.ops) if beside[0] == "beside" for op in beside[2]}
        may_be_left_over = self.keep == "batch" or self.max_rounds is not None or self.was_interrupted
        return not self.is_once or may_be_left_over or "update" in inside

    @property
    def was_interrupted(self) -> bool:
        """Whether takes end before they have what they wanted, by something else than the draws."""
        return self.broken is not None or bool(self.names & {"cancelled", "closing", "reopen"})


def flat(ops: tuple[Op, ...]) -> Iterator[Op]:
    for op in ops:
        yield op
        for part in op[1:]:
            if isinstance(part, tuple) and part:
                yield from flat(part if isinstance(part[0], tuple) else (part,))


def random_program(seed: int) -> Program:
    rng, beside = random.Random(seed), random.Random(f"beside {seed}")
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
    keep: Any = rng.choice(["all", "group", "batch"])
    fails = group_size > 1 and rng.random() < 0.4
    source: Any = rng.choice(["endless", "list", "async", "chooser"])
    score: Any = rng.choice(["none", "none", "trajectory", "group"])
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
                if beside.random() < 0.4:
                    others.append(("evaluate", beside.randint(1, 4), beside.randint(1, 9)))
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
        odd_places=beside.randrange(group_size),
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


def random_sharded_program(seed: int) -> Program:
    """A random program that is played on shards, which are killed, added and removed meanwhile."""
    rng = random.Random(f"shards {seed}")
    program = random_program(10_000_000 + seed)
    ops: list[Op] = []
    for op in program.ops:
        if op[0] in TAKES and rng.random() < 0.5:
            others = tuple(_shard_op(rng) for _ in range(rng.randint(1, 3)))
            op = ("beside", op, others)
        elif op[0] == "beside" and rng.random() < 0.5:
            op = ("beside", op[1], (*op[2], _shard_op(rng)))
        ops.append(op)
        if rng.random() < 0.2:
            ops.append(_shard_op(rng))
    return replace(program, ops=tuple(ops), shards=rng.randint(1, 3))


def _shard_op(rng: random.Random) -> Op:
    return rng.choice([
        ("kill", rng.randint(0, 2)),
        ("kill", rng.randint(0, 2)),
        ("scale", rng.randint(1, 4), rng.random() < 0.5),
        ("train", rng.choice([0.3, 2.0, 9.0])),
    ])  # fmt: skip


def simpler(program: Program) -> Iterator[Program]:
    ops = program.ops
    for at, op in enumerate(ops):
        yield replace(program, ops=(*ops[:at], *ops[at + 1 :]))
        for other in _simpler_op(op):
            yield replace(program, ops=(*ops[:at], other, *ops[at + 1 :]))
    plain = Program()
    for name in (
        "shards", "journal", "broken", "score",
        "fails", "shares", "keep", "source", "max_rounds", "on_exhausted", "min_valid",
        "retries", "order", "max_lag", "odd_places", "group_size",
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
