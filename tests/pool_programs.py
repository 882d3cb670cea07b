"""Random programs for the pool: what several users do with their envs at a time, as data."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.envs.pool_model import ODD, SAVING, SHOWN, SPECS

Op = tuple[Any, ...]
"""`(name, *arguments)`: a method of `User`. The first argument is a slot, which holds one env."""

SLOTS = 2
PLACES = ("inline", "process", "snapshots", "remote")
DISTURBANCES = {"process": ["kill"], "snapshots": ["kill"], "remote": ["cut", "cut", "cut", "kill", "lose", "restart"]}

CALLS: list[tuple[str, tuple[Any, ...], list[bool | None]]] = [
    ("set_level", (2,), [None, True]),
    ("set_level", (3,), [None, True]),
    ("add", ([5, 1],), [None, True]),
    ("add", ([2],), [None, True]),
    ("change_then_raise", (), [None, True]),
    ("score", (), [None]),
    ("nudge", (5,), [None, False]),
    ("look", (), [False]),
    ("level", (), [None, True, False]),
    ("hint", (), [None, False]),
    ("no_such_method", (), [None, True]),
    ("_private", (), [None]),
]
"""Methods, arguments, and what may be said of them: `keep=False` promises that nothing outlives the episode."""


@dataclass(frozen=True)
class Part:
    """What one user does: all envs are of one kind, and are opened in one place."""

    env: str = "model_cpu"
    place: str = "inline"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    ops: tuple[Op, ...] = ()


@dataclass(frozen=True)
class Program:
    """What users do at the same time, each in a task."""

    parts: tuple[Part, ...] = ()

    @property
    def places(self) -> set[str]:
        forks = {op[3] for part in self.parts for op in flat(part.ops) if op[0] == "fork"}
        disturbed = {op[1] for part in self.parts for op in part.ops if op[0] == "disturb"}
        return {part.place for part in self.parts} | forks | disturbed

    @property
    def is_calm(self) -> bool:
        return not any(op[0] == "disturb" for part in self.parts for op in part.ops)


def flat(ops: tuple[Op, ...]) -> Iterator[Op]:
    for op in ops:
        yield op[1] if op[0] == "cancelled" else op


def random_program(seed: int, places: tuple[str, ...] = PLACES) -> Program:
    luck = random.Random(seed)
    if "process" in places and luck.random() < 0.15:
        return _crowd(luck)
    disturbances = luck.choice([0, 1, 2, 4])
    parts = [_part(luck, places) for _ in range(luck.choice([1, 2, 4, 6]))]
    for _ in range(disturbances):
        place = luck.choice([*places, "remote", "remote"] if "remote" in places else places)
        if kinds := DISTURBANCES.get(place):
            at = luck.randrange(len(parts))
            ops = list(parts[at].ops)
            ops.insert(luck.randrange(len(ops) + 1), ("disturb", place, luck.choice(kinds), luck.randrange(4)))
            parts[at] = replace(parts[at], ops=tuple(ops))
    return Program(tuple(parts))


def _crowd(luck: random.Random) -> Program:
    """Quick envs on the workers of slow ones, from which they move away."""
    reset = ("reset", 0, luck.randrange(9), None, 0)
    slow = Part("model_cpu", "process", {"pause": 0.05}, (reset, *[("step", 0, 1)] * 5))
    names = [luck.choice(["model_cpu", "model_cpu", "model_saving", "model_text", "model_once"]) for _ in range(6)]
    ops = [(reset, *[_quiet_op(luck) for _ in range(luck.choice([4, 12]))]) for _ in names]
    quick = [Part(name, "process", {"length": 50}, some) for name, some in zip(names, ops, strict=True)]
    return Program((slow, *quick))


def _quiet_op(luck: random.Random) -> Op:
    """None that binds an env to its worker."""
    ops: list[Op] = [("run", 0, 5, 1), ("run", 0, 20, 2), ("step", 0, [7, 3]), ("reset", 0, 5, None, 0), ("render", 0)]
    return luck.choice([*ops, ("fork", 0, 1, "process"), ("cancelled", ("step", 0, 1), 0.005), ("step", 0, "bad")])


def _part(luck: random.Random, places: tuple[str, ...]) -> Part:
    env = luck.choice([*SPECS])
    shows = luck.choice([*SHOWN]) if luck.random() < 0.6 else "text"
    if shows in ODD:
        places = tuple(place for place in places if place != "remote")
    kwargs: dict[str, Any] = {"shows": shows}
    if luck.random() < 0.5:
        kwargs["items"] = ["given"]
    if luck.random() < 0.3:
        kwargs["length"] = luck.choice([1, 2, 50, 50])
    if luck.random() < 0.3:
        kwargs["pause"] = luck.choice([0.002, 0.01, 0.03])
    if luck.random() < 0.1:
        kwargs["build"] = 0.03
    if env not in SAVING and shows == "text" and SPECS[env].replayable and luck.random() < 0.1:
        kwargs["drifts"] = True
    if SPECS[env].text is not None:
        if luck.random() < 0.3:
            kwargs |= {"action_history": 2, "format_penalty": 0.7}
        if luck.random() < 0.5:
            kwargs |= {"max_actions_per_turn": 2, "max_actions_per_traj": 5}
    ops = tuple(_op(luck, env, places) for _ in range(luck.choice([4, 10, 10, 20])))
    return Part(env, luck.choice(places), kwargs, (("reset", 0, luck.randrange(9), None, 0), *ops))


def _op(luck: random.Random, env: str, places: tuple[str, ...]) -> Op:
    slot = luck.choice([0, 0, 0, 1])
    kinds = (
        ["step"] * 7
        + ["run", "run"]
        + ["reset"] * 3
        + ["call"] * 5
        + ["fork"] * 2
        + ["snapshot", "snapshot", "restore", "restore"]
    )
    match luck.choice([*kinds, "spoil", "spoil", "render", "close", "cancelled", "cancelled"]):
        case "step":
            return ("step", slot, _action(luck, env))
        case "run":
            return ("run", slot, luck.choice([5, 20]), luck.choice([0, 1, 2]))
        case "reset":
            task = luck.choice([None, None, [1, 2], "bad" if luck.random() < 0.3 else ["a"]])
            return ("reset", slot, luck.randrange(9), task, luck.choice([0, 0, 3]))
        case "call":
            method, args, keeps = luck.choice(CALLS)
            return ("call", slot, method, args, luck.choice(keeps))
        case "fork":
            return ("fork", slot, luck.randrange(SLOTS), luck.choice(places))
        case "snapshot":
            return ("snapshot", slot)
        case "restore":
            return ("restore", slot, luck.randrange(4))
        case "cancelled":
            wanted = luck.choice(["step", "reset", "call", "call", "restore", "restore", "fork", "snapshot", "render"])
            while (inner := _op(luck, env, places))[0] != wanted:
                pass
            return ("cancelled", inner, luck.choice([0.0, 0.0, 0.001, 0.005, 0.02]))
        case kind:
            return (kind, slot)


def _action(luck: random.Random, env: str) -> Any:
    if luck.random() < 0.08:
        return [] if luck.random() < 0.5 else "bad"
    if SPECS[env].text is not None and luck.random() < 0.8:
        return luck.choice(["0", "1", "2", "0 1", "2 2 1", "", "nonsense"])
    return luck.choice([0, 1, 2, [7, 3]])


def simpler(program: Program) -> Iterator[Program]:
    """Programs with less in them, the boldest cuts first."""
    parts = program.parts
    for at, part in enumerate(parts):
        if len(parts) > 1:
            yield Program((*parts[:at], *parts[at + 1 :]))
        for other in _simpler_part(part):
            yield Program((*parts[:at], other, *parts[at + 1 :]))


def _simpler_part(part: Part) -> Iterator[Part]:
    ops = part.ops
    size = len(ops) // 2
    while size >= 1:
        for start in range(0, len(ops), size):
            yield replace(part, ops=(*ops[:start], *ops[start + size :]))
        size //= 2
    for key in part.kwargs:
        yield replace(part, kwargs={name: value for name, value in part.kwargs.items() if name != key})
    for at, op in enumerate(ops):
        if op[0] == "cancelled":
            yield replace(part, ops=(*ops[:at], op[1], *ops[at + 1 :]))
    for env in ("model_cpu", "model_saving"):
        if part.env not in ("model_cpu", env):
            yield replace(part, env=env)
    if part.place not in ("inline", "process"):
        yield replace(part, place="process")
