"""What the shipped envs cost, so that a slow one stands out: microseconds of a reset and a step, and the slowest reply.

    python benchmarks/bench_envs.py [--only NAME ...] [--json]

Each env plays its expert's episodes as a plain object (raw), and again with its text interface: read the reply, step,
describe. No pool is involved. A worst case is the smallest of three rounds, as the machine interrupts, too.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from asyncrollout import TextOptions, find_env
from asyncrollout.pool.worker.env_runner import run_now
from asyncrollout.pool.worker.text import TextDialogue
from asyncrollout.registry import load_factory
from asyncrollout.testing.text import HOSTILE, hostile_forms
from benchmarks.harness import chosen_parts, show
from tests.shipped import FORMS

SEEDS = range(150)
ROUNDS = 3
STEP_LIMIT, RESET_LIMIT, REPLY_LIMIT = 1_000.0, 50_000.0, 10_000.0  # microseconds
MEGABYTE = 1_000_000
LARGE = {"sokoban-four-boxes": ("sokoban", {"dim_room": (10, 10), "num_boxes": 4})}

HUGE = tuple(
    (piece * MEGABYTE)[:MEGABYTE]
    for piece in (
        "<answer>",
        "</answer>",
        "<think></think>",
        "<answer>1</answer>",
        "1+",
        "(",
        "9",
        "||",
        "search[",
        "up ",
    )
) + tuple(
    f"<answer>{(piece * MEGABYTE)[:MEGABYTE]}</answer>"
    for piece in ("(", "1+", "9", "||", "search[a] ", "\u4f60", "\\frac{")
)


class Row(NamedTuple):
    env: str
    make: float
    reset: float
    worst_reset: float
    again: float  # a reset of a seed that was played before
    raw: float
    text: float
    worst_step: float
    worst_reply: float

    @property
    def met(self) -> bool:
        return self.worst_step <= STEP_LIMIT and self.worst_reset <= RESET_LIMIT and self.worst_reply <= REPLY_LIMIT


def microseconds(do: Callable[[], Any]) -> float:
    began = time.perf_counter()
    do()
    return (time.perf_counter() - began) * 1e6


def mean(times: Sequence[float]) -> float:
    return sum(times) / len(times)


class Played:
    """An env and its text interface as plain objects, and an expert's replies for each seed."""

    def __init__(self, name: str, kwargs: dict[str, Any]) -> None:
        spec = find_env(name)
        self.env: Any = load_factory(spec.factory)(**{**spec.kwargs, **kwargs})
        self.text: Any = load_factory(spec.text_interface)(self.env, TextOptions())
        self.dialogue = TextDialogue(self.text, TextOptions(), expert=False)
        self.resets: list[float] = []
        self.replies = {seed: self._episode(seed) for seed in SEEDS}

    def _episode(self, seed: int) -> list[str]:
        replies: list[str] = []
        self.resets.append(microseconds(lambda: self.env.reset(seed=seed)))
        over = False
        while not over:
            replies.append(self.text.solve())
            for action in self.text.parse(replies[-1]).actions:
                _, _, terminated, truncated, _ = self.env.step(action)
                over = terminated or truncated
                if over:
                    break
        return replies

    def raw_round(self) -> tuple[list[float], list[float]]:
        resets, steps = [], []
        for seed, replies in self.replies.items():
            resets.append(microseconds(lambda seed=seed: self.env.reset(seed=seed)))
            actions = [action for reply in replies for action in self.text.parse(reply).actions]
            steps += [microseconds(lambda action=action: self.env.step(action)) for action in actions]
        return resets, steps

    def text_round(self) -> list[float]:
        """The time of each action of a reply, with reading it and describing what came of it."""

        async def step_env(action: Any) -> Any:
            return self.env.step(action)

        steps = []
        for seed, replies in self.replies.items():
            self.dialogue.begin(self.env.reset(seed=seed)[0], {})
            for reply in replies:
                count = len(self.text.parse(reply).actions)
                taken = microseconds(lambda reply=reply: run_now(self.dialogue.step(reply, step_env)))
                steps.append(taken / count)
        return steps

    def slowest_reply(self) -> float:
        """Of replies that no model should give: the time to read one, and to play the first action of it, if any."""
        self.env.reset(seed=0)
        hostile = [*HOSTILE, *hostile_forms(self.replies[0][0]), *HUGE]
        return max(self._reading(reply) for text in hostile for reply in (text, f"<answer>{text}</answer>"))

    def _reading(self, reply: str) -> float:
        times = []
        for _ in range(ROUNDS):
            self.env.reset(seed=0)
            taken = microseconds(lambda: self.text.parse(reply))
            for action in self.text.parse(reply).actions[:1]:
                taken += microseconds(lambda action=action: self.env.step(action))
            times.append(taken)
        return min(times)


def measure(form: str, name: str, kwargs: dict[str, Any]) -> Row:
    print(f"{form} ...", file=sys.stderr, flush=True)
    spec = find_env(name)
    make = microseconds(lambda: load_factory(spec.factory)(**{**spec.kwargs, **kwargs}))
    played = Played(name, kwargs)
    raws = [played.raw_round() for _ in range(ROUNDS)]
    texts = [played.text_round() for _ in range(ROUNDS)]
    worst_steps = [min(times) for times in zip(*(steps for _, steps in raws), strict=True)]
    return Row(
        env=form,
        make=make,
        reset=mean(played.resets),
        worst_reset=max(played.resets),
        again=min(mean(resets) for resets, _ in raws),
        raw=min(mean(steps) for _, steps in raws),
        text=min(mean(steps) for steps in texts),
        worst_step=max(worst_steps),
        worst_reply=played.slowest_reply(),
    )


HEAD = (
    "env",
    "made us",
    "reset us",
    "worst",
    "again",
    "raw steps/s",
    "text steps/s",
    "worst step us",
    "worst reply us",
)


def cells(row: Row) -> tuple[str, ...]:
    resets = row.make, row.reset, row.worst_reset, row.again
    figures = *resets, 1e6 / row.raw, 1e6 / row.text, row.worst_step, row.worst_reply
    return row.env, *(f"{figure:,.0f}" for figure in figures), "met" if row.met else "MISSED"


def main() -> None:
    forms = {**FORMS, **LARGE}
    chosen = chosen_parts(__doc__, forms, "--only")
    rows = [measure(form, forms[form][0], dict(forms[form][1])) for form in chosen.parts]
    show(rows, as_json=chosen.json, head=(*HEAD, "limits"), cells=cells)


if __name__ == "__main__":
    main()
