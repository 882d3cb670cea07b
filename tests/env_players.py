"""Players without skill for every shipped env: an honest one that acts at random, and those that only look for reward.

A player is asked for its next reply with what an honest player sees. Tests and `benchmarks/env_scores.py` play them.
"""

import random
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import anyio.lowlevel

from asyncrollout import EnvHandle, EnvPool
from asyncrollout_envs.household.skills import SKILLS
from asyncrollout_envs.sudoku.grids import Grid, candidates

ACTIONS = 100  # of an episode at most, and an invalid reply counts as one: no env ends while nothing valid is played


class Turn(NamedTuple):
    """What a player knows when it replies; `expert` is for players that know the right way and leave it.

    `earned` is the reward of the reply before.
    """

    env: str
    text: str
    number: int
    rng: random.Random
    expert: str = ""
    earned: float = 0.0


class Played(NamedTuple):
    reward: float
    success: bool
    turns: int


Player = Callable[[Turn], str]

_WAYS = ("Up", "Down", "Left", "Right")
_CHANGE_OF_MIND = 0.2
_PRIME = "'"
_TIMES = 3
_FACES = tuple(f"{face}{way}" for face in "UDLRFB" for way in ("", "'"))
_OPTION = re.compile(r"^([A-Z])\. ", re.MULTILINE)


async def play(
    name: str,
    kwargs: Mapping[str, Any],
    player: Player,
    seeds: range,
    *,
    knows: bool = False,
    actions: int = ACTIONS,
    head_start: bool = False,
) -> list[Played]:
    """An episode for each seed, which also seeds the player's own chance; with `knows` it sees the expert's replies.

    With a `head_start` the expert plays first, up to the action that would earn the first reward.
    """
    async with EnvPool(backend="inline") as pool, pool.open(name, expert=knows or head_start, **kwargs) as env:
        played = []
        for seed in seeds:
            await anyio.lowlevel.checkpoint()
            before = await _before_reward(env, seed) if head_start else []
            outcome, rng = await env.reset(seed=seed), random.Random(seed)
            for reply in before:
                outcome = await env.step(reply)
            total, success, number, count, earned = 0.0, False, 0, 0, 0.0
            while not outcome.done and count < actions:
                known = outcome.info["expert"] if knows else ""
                outcome = await env.step(player(Turn(name, outcome.observation.text, number, rng, known, earned)))
                earned = outcome.reward
                total, number = total + outcome.reward, number + 1
                count += max(1, len(outcome.info["actions"]))
                success |= bool(outcome.info.get("success"))
            played.append(Played(total, success, number))
        return played


async def _before_reward(env: EnvHandle, seed: int) -> list[str]:
    """The expert's actions before the first one that earns something, a reply each."""
    outcome, played = await env.reset(seed=seed), list[str]()
    while not outcome.done:
        said = outcome.info["expert"].partition("<answer>")[2].partition("</answer>")[0]
        for action in said.split("||"):
            outcome = await env.step(f"<answer>{action}</answer>")
            if outcome.reward > 0 or outcome.done:
                return played
            played.append(f"<answer>{action}</answer>")
    return played


def expert(turn: Turn) -> str:
    return turn.expert


def honest(turn: Turn) -> str:
    """A valid reply, drawn at random from those that the text of the task names."""
    said = _HONEST[turn.env](turn)
    return said if said.startswith("<") else f"<answer>{said}</answer>"


def _arms(turn: Turn) -> list[str]:
    return re.findall(r"\d+\. (\w+)", turn.text)


def _expression(turn: Turn) -> str:
    numbers: list[str] = re.findall(r"\d+", turn.text.partition("nums:")[2])
    turn.rng.shuffle(numbers)
    return numbers[0] + "".join(f" {turn.rng.choice('+-*/')} {number}" for number in numbers[1:])


def _guess(turn: Turn) -> str:
    return turn.rng.choice(("yes", "no")) if "yes or no" in turn.text else str(turn.rng.randint(1, 100))


def _sum(turn: Turn) -> str:
    largest = max(map(int, re.findall(r"\d+", turn.text)))
    return str(turn.rng.randint(-largest, largest))


def sudoku_grid(text: str) -> Grid:
    """The grid that an observation shows, 0 for an empty cell."""
    rows = [re.findall(r"\d+|\.", line) for line in text.splitlines() if line.count("|") == 2]
    return tuple(tuple(0 if cell == "." else int(cell) for cell in row) for row in rows)


def _number(turn: Turn) -> str:
    grid = sudoku_grid(turn.text)
    empty = [(row, column) for row, cells in enumerate(grid, 1) for column, cell in enumerate(cells, 1) if not cell]
    row, column = turn.rng.choice(empty or [(1, 1)])
    return f"{row},{column},{turn.rng.randint(1, 9)}"


def _offered(turn: Turn) -> str:
    action = turn.rng.choice(turn.text.partition("Available actions:\n")[2].splitlines())
    words = re.findall(r"[a-z]{3,}", turn.text.partition("Instruction:")[2].splitlines()[0])
    return action.replace("<words>", " ".join(turn.rng.sample(words, min(3, len(words)))))


def _seconds(turn: Turn) -> float:
    (found,) = re.findall(r": ([\d.]+) s, sampled", turn.text)
    return float(found)


def _window(turn: Turn) -> str:
    start, end = sorted(turn.rng.sample(range(int(_seconds(turn)) + 1), 2))
    return f"{start}-{end}"


def _watched(turn: Turn) -> str:
    """Looks or answers with equal chance, and answers in the last turn."""
    if "watch or answer" in turn.text and turn.rng.random() < 0.5:
        return f"<watch>{_window(turn)}</watch>"
    if "Find this moment" in turn.text:
        return _window(turn)
    options: list[str] = _OPTION.findall(turn.text)
    return turn.rng.choice(options or [str(turn.rng.randint(0, 9))])


def _possible(turn: Turn) -> str:
    ways: list[str] = re.findall(r"\((\w+)\)", turn.text.partition("Possible moves:")[2])
    return turn.rng.choice(ways or _WAYS)


def _skills() -> Player:
    """Repeats a skill with what the task names for a while, as the rules advise, and then another one."""
    last: list[str] = []

    def reply(turn: Turn) -> str:
        if turn.number == 0 or turn.rng.random() < _CHANGE_OF_MIND:
            words = {*re.findall(r"[a-z]+", turn.text.partition("\n")[0])}
            named = [skill.name for skill in SKILLS if {skill.what, skill.where} <= words | {""}]
            last[:] = [turn.rng.choice(named)]
        return last[0]

    return reply


_HONEST: dict[str, Player] = {
    "sokoban": lambda turn: turn.rng.choice(_WAYS),
    "frozen_lake": lambda turn: turn.rng.choice(_WAYS),
    "game_2048": _possible,
    "rubikscube": lambda turn: turn.rng.choice(_FACES),
    "bandit": lambda turn: turn.rng.choice(_arms(turn)),
    "countdown": _expression,
    "metamathqa": _guess,
    "reasoning_gym": _sum,
    "sudoku": _number,
    "household": _skills(),
    "webshop": _offered,
    "video": _watched,
}

_WALKS = {"one": "Up", "other": "Down", "all": " || ".join(_WAYS), "short": "1"}
_ANSWERS = {"one": "1", "other": "2", "all": ", ".join(map(str, range(100))), "short": "<answer>1</answer>"}
_FIXED: dict[str, dict[str, str]] = {
    "sokoban": _WALKS,
    "frozen_lake": _WALKS,
    "game_2048": _WALKS,
    "rubikscube": {"one": "U", "other": "U'", "all": " || ".join(_FACES), "short": "1"},
    "bandit": {"one": "1", "other": "2", "all": "1 || 2", "short": "1"},
    "countdown": _ANSWERS,
    "metamathqa": {"one": "yes", "other": "no", "all": f"yes, no, {_ANSWERS['all']}", "short": "1"},
    "reasoning_gym": _ANSWERS,
    "sudoku": {
        "one": "1,1,1",
        "other": "1,1,2",
        "all": " || ".join(f"1,1,{number}" for number in range(1, 10)),
        "short": "1,1,1",
    },
    "household": {
        "one": "forward",
        "other": "back",
        "wait": "wait",
        "all": " || ".join(skill.name for skill in SKILLS),
        "short": "wait",
    },
    "webshop": {
        "one": "click[buy now]",
        "other": "search[a]",
        "wait": "click[back to search]",
        "all": "search[a] || click[buy now]",
        "short": "search[a]",
    },
    "video": {
        "one": "<watch>0-1</watch>",
        "other": "<watch>5-9</watch>",
        "wait": "<watch>0-0</watch>",
        "all": "A, B, C, D",
        "short": "<answer>A</answer>",
    },
}
"""Replies that take no look at the task: one, another that undoes it, one that does nothing, all, and the shortest."""


def _fixed(turn: Turn, kind: str) -> str:
    said = _FIXED[turn.env].get(kind) or _FIXED[turn.env]["one"]
    if turn.env == "video" and kind in ("all", "short") and not _OPTION.search(turn.text):
        is_moment = "Find this moment" in turn.text
        said = ("<answer>0-1</answer>" if kind == "short" else f"0-{_seconds(turn):g}") if is_moment else "1"
    return said if said.startswith("<") or kind == "short" else f"<answer>{said}</answer>"


def _back_and_forth() -> Player:
    numbers: list[str] = []

    def reply(turn: Turn) -> str:
        if turn.env != "sudoku":
            return _fixed(turn, "other" if turn.number % 2 else "one")
        if turn.number == 0:
            numbers[:] = _fitting(sudoku_grid(turn.text))
        return f"<answer>{numbers[turn.number % len(numbers)]}</answer>"

    return reply


def _fitting(grid: Grid) -> list[str]:
    """The numbers that fit the freest cell of a sudoku, as actions."""
    size = range(len(grid))
    places = [(row, column) for row in size for column in size if not grid[row][column]]
    row, column = max(places, key=lambda place: len(candidates(grid, place)))
    return [f"{row + 1},{column + 1},{number}" for number in candidates(grid, (row, column))]


DEGENERATE: dict[str, Player] = {
    "never answers": lambda _: "<think>I need more time.</think>",
    "says nothing": lambda _: "",
    "answers everything": lambda turn: _fixed(turn, "all"),
    "echoes the task": lambda turn: turn.text,
    "echoes the task in tags": lambda turn: f"<answer>{turn.text}</answer>",
    "repeats": lambda turn: _fixed(turn, "one"),
    "waits": lambda turn: _fixed(turn, "wait"),
    "back and forth": _back_and_forth(),
    "shortest valid reply": lambda turn: _fixed(turn, "short"),
}
"""None of them may earn more than the honest random player."""


def _twice() -> Player:
    said: list[str] = []

    def reply(turn: Turn) -> str:
        if turn.number == 0:
            said.clear()
        said.append(said[-1] if turn.number % 2 else turn.expert)
        return said[-1]

    return reply


def _dawdles(turn: Turn) -> str:
    return _fixed(turn, "wait") if turn.number % 2 else turn.expert


def _milks() -> Player:
    """Undoes what has paid, as far as that can be undone, and does it again, up to three times."""
    said: list[str] = []
    plan: list[str] = []

    def reply(turn: Turn) -> str:
        if turn.number == 0:
            said.clear()
            plan.clear()
        if not plan and turn.earned > 0 and said.count(said[-1]) <= _TIMES:
            plan[:] = [said[-1], _undone(turn, said[-1])]
        said.append(plan.pop() if plan else turn.expert)
        return said[-1]

    return reply


def _undone(turn: Turn, reply: str) -> str:
    answer = reply.rpartition("<answer>")[2].partition("</answer>")[0]
    last = answer.split("||")[-1].strip()
    match turn.env, last.split(" "):
        case "household", ["place", what, *_]:
            return f"<answer>grasp {what} || grasp {what}</answer>"
        case "household", ["close", what]:
            return f"<answer>open {what} || open {what}</answer>"
        case "sudoku", _:
            number, row, column = re.findall(r"\d+", last)
            return f"<answer>{row},{column},{int(number) % 4 + 1}</answer>"
        case "rubikscube", _:
            return f"<answer>{last[0] if len(last) > 1 else last + _PRIME}</answer>"
    return _fixed(turn, "other")


STALLING: dict[str, Player] = {
    "says everything twice": _twice(),
    "waits in between": _dawdles,
    "undoes what paid, and does it again": _milks(),
}
"""They know the way and take detours: none may earn more than the expert."""
