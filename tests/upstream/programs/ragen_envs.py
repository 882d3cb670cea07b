"""RAGEN's own environments beside ours: the same state and the same actions must give the same in both.

Usage: python ragen_envs.py SOURCES ENV, with RAGEN's sources and an env's folder in `ragen/env`. Episodes of RAGEN are
carried over to ours as tasks. Texts are compared by what they tell; grids of symbols, as they are.
"""

import functools
import importlib
import itertools
import json
import random
import re
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from asyncrollout.dropin.ragen import REGISTERED_ENV_CONFIGS, REGISTERED_ENVS
from asyncrollout_envs.game_2048 import moves
from asyncrollout_envs.rubikscube import SOLVED, is_solved, turned

PLACE = re.compile(r"\((\d+), (\d+)\)")
WALLS = re.compile(r"^Walls, beside those around it: .*$", re.MULTILINE)
INFO = ("action_is_effective", "action_is_valid", "success")


def theirs(sources: Path, env: str) -> tuple[Any, Any]:
    """RAGEN's modules of an environment and of its config, without what its packages import besides."""
    for name, folder in (("ragen", "ragen"), ("ragen.env", "ragen/env"), (f"ragen.env.{env}", f"ragen/env/{env}")):
        package = types.ModuleType(name)
        package.__path__ = [str(sources / folder)]
        sys.modules[name] = package
    return importlib.import_module(f"ragen.env.{env}.env"), importlib.import_module(f"ragen.env.{env}.config")


def ours(env: str, **env_config: Any) -> Any:
    return REGISTERED_ENVS[env](REGISTERED_ENV_CONFIGS[env](**env_config))


def start(env: Any, task: Any) -> str:
    """Our env at the start of a task, which RAGEN's interface has no way to give."""
    env._seen, _ = env._env.reset(seed=1, options={"task": task})
    return str(env.describe())


def same(what: Any, expected: Any, found: Any) -> None:
    assert expected == found, f"{what}\nRAGEN: {expected}\nours:  {found}"


def same_step(what: Any, expected: Any, found: Any, info: tuple[str, ...] = INFO) -> None:
    """Reward, end and infos."""
    same(what, (round(float(expected[1]), 9), bool(expected[2])), (round(found[1], 9), found[2]))
    same(what, {key: bool(expected[3][key]) for key in info}, {key: found[3][key] for key in info})


def places(text: str) -> Counter[tuple[str, str]]:
    """Each place that a text names, but those of walls inside a room: ours tells them, RAGEN's does not."""
    told = WALLS.sub("", text.partition("Grid")[0].replace("(0, 0) at", ""))
    return Counter(PLACE.findall(told))


def grid_world(their: Any, our: Any, seeds: int) -> int:
    """Episodes of a grid world, whose maps are carried over."""
    steps = 0
    for seed in range(seeds):
        told = their.reset(seed=seed)
        rows = their.render("grid") if "(" in told else told
        symbols = our.config.grid_vocab
        if {symbols[one] for one in rows if one != "\n"}.isdisjoint({"box", "goal", "target"}):
            continue  # a room that is solved already
        shown, rng, done = start(our, rows), random.Random(seed), False
        while True:
            same(seed, places(told), places(shown))
            if "(" not in told or "Grid" in told:
                same(seed, told.rpartition("Grid Map: \n")[2], shown.rpartition("Grid:\n")[2])
            if done or rng.random() < 0.02:
                break
            action = rng.randint(1, 4)
            expected, found = their.step(action), our.step(action)
            same_step((seed, action), expected, found)
            told, shown, done = expected[0], found[0], found[2]
            steps += 1
    return steps


def sokoban(env: Any, config: Any) -> str:
    custom = {
        "grid_lookup": {0: "W", 1: ".", 2: "G", 3: "C", 4: "B", 5: "A", 6: "@"},
        "grid_vocab": {
            "W": "wall",
            ".": "empty",
            "G": "target",
            "C": "box on target",
            "B": "box",
            "A": "player",
            "@": "player on target",
        },
    }
    forms: list[dict[str, Any]] = [
        {"dim_room": (6, 6), "num_boxes": 1, "max_steps": 30, "search_depth": 30},
        {"dim_x": 8, "dim_y": 7, "num_boxes": 2, "max_steps": 100, "search_depth": 10},
        {"dim_room": (6, 6), "num_boxes": 1, "search_depth": 30, **custom},
    ]
    if hasattr(config.SokobanEnvConfig(), "observation_format"):
        forms += [{**forms[0], "observation_format": kind} for kind in ("grid_coord", "coord")]
    steps = 0
    for form in forms:
        their = env.SokobanEnv(config.SokobanEnvConfig(**form))
        steps += grid_world(their, ours("sokoban", **form), 12)
    same("boxes", config.SokobanEnvConfig().num_boxes, ours("sokoban")._env.settings.num_boxes)
    return f"{steps} steps of {len(forms)} forms"


def frozen_lake(env: Any, config: Any) -> str:
    newer = hasattr(config.FrozenLakeEnvConfig(), "observation_format")
    rates = {"success_rate": 0.8} if newer else {}
    forms: list[dict[str, Any]] = [{"size": 4, "is_slippery": False}, {"size": 7, "p": 0.7, "is_slippery": False}]
    if newer:
        forms += [{**forms[0], **rates, "observation_format": kind} for kind in ("grid_coord", "coord")]
    steps = 0
    for form in forms:
        their = env.FrozenLakeEnv(config.FrozenLakeEnvConfig(**form))
        steps += grid_world(their, ours("frozen_lake", **form), 20)
    their, our = env.FrozenLakeEnv(config.FrozenLakeEnvConfig(**rates)), ours("frozen_lake", **rates)
    same("p", their.config.p, our._env.p)
    same("size", their.config.size, our._env.size)
    chances = {chance for ways in their.P.values() for way in ways[1] for chance in [round(way[0], 9)]}
    rate = our._env.success_rate
    assert chances <= {round(rate, 9), round((1 - rate) / 2, 9), 1.0}, (chances, rate)
    return f"{steps} steps of {len(forms)} forms, and the same chances to slip"


def bandit(env: Any, config: Any) -> str:
    is_older = "lo_arm_name" in config.BanditEnvConfig.__dataclass_fields__
    forms: list[dict[str, Any]] = (
        [{}, {"lo_arm_name": "Trader", "hi_arm_name": "Librarian", "hi_arm_loscore": -1.0, "lo_arm_score": 0.3}]
        if is_older
        else [{"split": "train"}, {"split": "test", "hi_arm_hiscore": 3.0, "hi_arm_hiscore_prob": 0.5}]
    )
    count = 0
    for form in forms:
        their, our = env.BanditEnv(config.BanditEnvConfig(**form)), ours("bandit", **form)
        paid: list[Counter[tuple[bool, float]]] = [Counter(), Counter()]
        for seed, (one, earned) in itertools.product(range(600), zip((their, our), paid, strict=True)):
            first, arms = one.reset(seed=seed), one.config.action_lookup
            assert all(name in first for name in arms.values()), first
            assert all(f"<answer> {name} </answer>" in first for name in arms.values()), first
            assert sorted(arms) == [1, 2]
            shown, reward, done, info = one.step(1 + seed % 2)
            assert done
            assert all(info[key] for key in INFO[:2])
            assert arms[1 + seed % 2] in shown
            assert f"{reward:g}" in shown
            if is_older:
                same(seed, arms[1 + seed % 2] == their.hi_arm_name, info["success"])
            earned[bool(info["success"]), round(reward, 9)] += 1
            count += 1
        same(form, {*paid[0]}, {*paid[1]})
        for outcome in paid[0]:
            assert abs(paid[0][outcome] - paid[1][outcome]) < 60, (form, paid)
    return f"{count} episodes of {len(forms)} forms"


ANSWERS = (
    *("{0} + {1} - {2}", "{0} + {1} + {2}", "({0} + {1}) * {2}", "{0} * {1} / {2}", "{0} ** {1} % {2}"),
    *("{0} + {1} - {2} = 4", "I would say {0}, {1}, {2}", "{0} {1} {2}", "{0}.{1} + {2}", "-{0} + {1} + {2}", "", "x"),
    *("{0} ^ {1} ^ {2}", "({0} + {1} - {2}", "{0} + {1}", "{0} + {1} - {2} + {2}", "{0}e{1} - {2}"),
    *("{0} / ({1} - {1}) + {2}", "{0} // {1} + {2}"),
    *(
        "{0} \u00d7 {1} - {2}",
        "{0} | {1} & {2}",
        "~{0} + {1} + {2}",
        "{0}({1} + {2})",
        "[{0}, {1}, {2}]",
        "{0} - -{1} - {2}",
    ),
    *("0{0} + {1} - {2}", "{0} +\n{1} - {2}", "{0} % {1} - {2}", "({0} - {1}) * ({2})", "{0} < {1} < {2}"),
)


def countdown(env: Any, config: Any) -> str:
    import pyarrow
    from pyarrow import parquet

    rng = random.Random(5)
    rows = [{"target": rng.randint(1, 40), "nums": [rng.randint(1, 20) for _ in range(3)]} for _ in range(400)]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "train.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        their = env.CountdownEnv(config.CountdownEnvConfig(train_path=path, max_instances=300))
        settings = {"train_path": path, "max_instances": 300}
        kept = {split: ours("countdown", split=split, **settings) for split in ("train", "val", "test")}
        played = [row for our in kept.values() for row in our._env._rows]
        told = sorted(f"Target: {row.target}, nums: {[*row.nums]}" for row in played)
        same("the rows", sorted(their.reset(seed=seed) for seed in range(len(their.data))), told)
        our, count = kept["train"], 0
        for seed, form in itertools.product(range(len(their.data)), ANSWERS):
            row = their.data[seed]
            their.reset(seed=seed)
            start(our, {"target": row["target"], "nums": row["nums"]})
            answer = form.format(*row["nums"])
            expected, found = their.step(answer), our.step(answer)
            same_step((row, answer), expected, found)
            assert f"{float(expected[1]):g}" in found[0]
            count += 1
    return f"{count} answers, and the same {len(told)} of 300 rows"


def metamathqa(env: Any, config: Any) -> str:
    labels = ["42", "\\frac{1}{2}", "x + 1", "1,000", "No", "$5", "3.50", "7 apples"]
    rows = [
        {"query": f"Question {place}?", "response": f"So it is.\n#### {label}\nThe answer is: {label}", "type": "GSM"}
        for place, label in enumerate(labels)
    ]
    answers = ["42", " 42 ", "42.0", "1/2", "\\frac{1}{2}", "X+1", "1000", "1,000"]
    answers += ["no", "5", "$5", "3.5", "3.50", "", "7", "7apples"]
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rows.json").write_text(json.dumps(rows))
        their = env.MetaMathQAEnv(config.MetaMathQAEnvConfig(dataset_path=folder, cache_dir=f"{folder}/cache"))
        our = ours("metamathqa", dataset_path=f"{folder}/rows.json")
        known = {problem.question: place for place, problem in enumerate(our._env._problems)}
        for seed in range(60):
            first, rng = their.reset(seed=seed), random.Random(seed)
            if first not in known:
                continue  # of the rows that we keep for validation
            same(seed, first, start(our, known[first]))
            for answer in rng.sample(answers, len(answers)):
                expected, found = their.step(answer), our.step(answer)
                same_step((first, answer), expected, found, ("action_is_valid", "success"))
                count += 1
                if found[2]:
                    break
    return f"{count} answers to {len(known)} questions"


PLACING = (
    *("place {2} at row {0} col {1}", "{0},{1},{2}", "place {2} at ({0},{1})"),
    *("({0}, {1}, {2})", "{2} at {0},{1}", "hm"),
)


def sudoku(env: Any, config: Any) -> str:
    """Our puzzles in RAGEN's environment: any numbers first, then what the solution has."""
    count = 0
    for seed, size in itertools.product(range(8), (4, 9)):
        settings: dict[str, Any] = {"grid_size": size, "render_format": "with_feedback", "max_steps": 10_000}
        their, our = env.SudokuEnv(config.SudokuEnvConfig(**settings)), ours("sudoku", difficulty="hard", **settings)
        their.reset(seed=seed)
        our.reset(seed=seed)
        puzzle, rng = our._env.puzzle, random.Random(seed)
        their.initial_grid, their.solution_grid = np.array(puzzle.start), np.array(puzzle.solution)
        their.current_grid = their.initial_grid.copy()
        asked = [(rng.randint(0, size), rng.randint(1, size), rng.randint(0, size + 1)) for _ in range(40 * (seed % 2))]
        numbers = range(size)
        asked += [(row + 1, column + 1, puzzle.solution[row][column]) for row in numbers for column in numbers] * 2
        for place in asked:
            action = rng.choice(PLACING).format(*place)
            expected, found = their.step(action), our.step(action)
            same_step((seed, action), expected, found)
            same(action, their.current_grid.tolist(), [[*line] for line in our._env.grid])
            count += 1
            if found[2]:
                break
    return f"{count} steps"


def game_2048(env: Any, config: Any) -> str:
    count = 0
    for logs, seed in itertools.product((True, False), range(400)):
        rng = random.Random(seed)
        tiles = [rng.choice([0, 0, 2, 2, 4, 4, 8, 16, 1024, 2048]) for _ in range(16)]
        grid = [tiles[at : at + 4] for at in range(0, 16, 4)]
        if not moves(tuple(map(tuple, grid))):
            continue
        for action in range(4):
            their = env.Game2048Env(config.Game2048EnvConfig(use_log_reward=logs))
            our = ours("game_2048", use_log_reward=logs)
            their.reset(seed=seed)
            their.grid = np.array(grid)
            text = start(our, grid)
            possible = [f"{at} ({their.ACTION_LOOKUP[at]})" for at in their._valid_actions()]
            same(grid, ", ".join(possible), text.partition("Possible moves: ")[2].partition(". ")[0])
            merged, _ = their._move_sim(np.array(grid), action)
            expected, found = their.step(action), our.step(action)
            same((grid, action), (round(expected[1], 9), expected[3]["score"]), (round(found[1], 9), found[3]["score"]))
            same((grid, action), merged, found[3]["score"])
            same((grid, action), [bool(expected[3][key]) for key in INFO[:2]], [found[3][key] for key in INFO[:2]])
            same((grid, action), float(expected[3]["raw_reward"]), found[3]["raw_reward"])
            count += 1
    return f"{count} moves"


def rubikscube(env: Any, config: Any) -> str:
    """All turns but of the back face: RAGEN's takes corners apart, which no cube can do."""
    count, turns = 0, range(1, 11)
    for seed in range(60):
        rng = random.Random(seed)
        their, our = env.RubiksCube2x2Env(config.RubiksCube2x2Config(max_steps=20)), ours("rubikscube")
        scramble = rng.choices(turns, k=rng.randint(1, 3))
        if is_solved(functools.reduce(turned, scramble, SOLVED)):
            continue  # no task of ours, however the cube is held
        their.reset(seed=seed)
        their.state = their.solved_state.copy()
        for action in scramble:
            their._apply_action(action)
        start(our, scramble)
        undo = [action + 1 if action % 2 else action - 1 for action in reversed(scramble)]
        actions = undo if seed % 2 else rng.choices(turns, k=30)
        for action in actions:
            same(seed, their.state.tolist(), [*our._env.cube])
            expected, found = their.step(action), our.step(action)
            same_step((seed, action), expected, found)
            count += 1
            if found[2]:
                break
    same("names", their.ACTION_LOOKUP, our.config.action_lookup)
    same("depth", config.RubiksCube2x2Config().scramble_depth, our._env.scramble_depth)
    return f"{count} turns"


COMPARED: dict[str, Callable[[Any, Any], str]] = {
    one.__name__: one for one in (sokoban, frozen_lake, bandit, countdown, metamathqa, sudoku, game_2048, rubikscube)
}


if __name__ == "__main__":
    print(sys.argv[2], COMPARED[sys.argv[2]](*theirs(Path(sys.argv[1]), sys.argv[2])), sep=": ")
