"""RAGEN's tags: what each one plays, what its observations tell and what given actions earn, as facts of its rules."""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from asyncrollout.dropin.ragen import REGISTERED_ENV_CONFIGS, REGISTERED_ENVS, EnvStateManager, env_data
from asyncrollout.dropin.ragen.env_keys import KNOWN_TAGS, REFUSED_TYPES, our_kwargs
from asyncrollout.errors import UsageError

JUNE: dict[str, Any] = {
    "SimpleSokoban": ("sokoban", {"dim_x": 6, "dim_y": 6, "num_boxes": 1, "max_steps": 100}),
    "Countdown": ("countdown", None),
    "Bandit": ("bandit", {"lo_arm_name": "Phoenix", "hi_arm_name": "Dragon"}),
    "BanditTest": ("bandit", {"lo_arm_name": "Trader", "hi_arm_name": "Librarian"}),
    "FrozenLake": ("frozen_lake", None),
    "MetamathQA": ("metamathqa", None),
    "WebShop": ("webshop", {"dataset": "small"}),
}
"""Tags whose `env_config` is not the same in the two versions; of the newer one, `KNOWN_TAGS` has them."""

TOLD = {
    "SimpleSokoban": ["######\n", "P", "X", "O"],
    "LargerSokoban": ["########\n"],
    "SokobanDifferentGridVocab": ["WWWWWW\n", "A", "B", "G"],
    "CoordSokoban": ["6 rows", "6 columns", "Targets: (", "Boxes: (", "You: (", "######\n"],
    "FrozenLake": ["P", "G"],
    "CoordFrozenLake": ["4 rows", "Start: (", "Goal: (", "You: (", "P", "G"],
    "Countdown": ["Target: ", "nums: ["],
    "Bandit": ["2 arms", "names", "on average", "<answer> "],
    "BanditTest": ["2 arms", "names", "on average", "<answer> "],
    "MetamathQA": ["?"],
    "WebShop": ["Instruction: ", "search[<words>]", "10 actions", "size", "color", "click[buy now]"],
    "SimpleSudoku": ["[", "given", "of 81 cells", "Step 0 of 81"],
    "MediumSudoku": ["[", "given", "of 81 cells", "Step 0 of 81"],
    "game_2048": ["Row 4: ", "Possible moves: ", "(Up)", "2048", "Score: 0"],
    "rubikscube": ["Up (U): ", "Down (D): ", "Turn 0 of 20", "U, U', D, D'"],
}


def config(custom: dict[str, Any], tag: str, mode: str = "train") -> dict[str, Any]:
    part = {"env_groups": 1, "group_size": 2, "env_configs": {"tags": [tag], "n_groups": [1]}}
    return {"es_manager": {"use_multiprocessing": False, "train": part, mode: part}, "custom_envs": custom}


def first_states(custom: dict[str, Any], tag: str, mode: Any = "train") -> list[Any]:
    manager = EnvStateManager(config(custom, tag, mode), mode=mode)
    try:
        return [entry["history"][0]["state"] for entry in manager.reset(seed=7)]
    finally:
        manager.close()


def make(env_type: str, **env_config: Any) -> Any:
    return REGISTERED_ENVS[env_type](REGISTERED_ENV_CONFIGS[env_type](**env_config))


@pytest.mark.parametrize("mode", ["train", "val"])
@pytest.mark.parametrize("tag", TOLD)
def test_observations_tell_what_a_tag_promises(tag: str, mode: str) -> None:
    first, second = first_states({}, tag, mode)
    assert first == second
    assert [part for part in TOLD[tag] if part not in first] == []


@pytest.mark.parametrize("tag", JUNE)
def test_the_older_versions_tags_open(tag: str) -> None:
    env_type, env_config = JUNE[tag]
    custom = {tag: {"env_type": env_type, "max_actions_per_traj": 1, "env_config": env_config}}
    told = [part for part in TOLD[tag] if part not in first_states(custom, tag)[0]]
    assert told == []


def test_arms_are_called_as_the_config_says() -> None:
    bandit, other = (make("bandit", **JUNE[tag][1]) for tag in ("Bandit", "BanditTest"))
    assert all(name in bandit.reset(seed=1) for name in ("Phoenix", "Dragon"))
    assert all(name in other.reset(seed=1) for name in ("Trader", "Librarian"))
    names = {name.lower() for seed in range(60) for name in _arms(make("bandit", split="train"), seed)}
    others = {name.lower() for seed in range(60) for name in _arms(make("bandit", split="test"), seed)}
    assert len(names) > 8
    assert len(others) > 8
    assert not names & others


def _arms(env: Any, seed: int) -> list[str]:
    env.reset(seed=seed)
    return [*env.config.action_lookup.values()]


def test_a_picture_is_the_state_of_a_visual_tag() -> None:
    (entry, _) = EnvStateManager(config({}, "VisualSimpleSokoban")).reset(seed=7)
    assert entry["history"][0]["state"] == "<images>"
    assert entry["history"][0]["images"][0].shape == (144, 144, 3)


def test_both_versions_tags_are_all_known() -> None:
    assert len(KNOWN_TAGS) == 23
    assert {*TOLD, "VisualSimpleSokoban", "WebShopFull"} | {
        tag for tag, custom in KNOWN_TAGS.items() if custom["env_type"] in REFUSED_TYPES
    } == {*KNOWN_TAGS}


@pytest.mark.parametrize("tag", [tag for tag, custom in KNOWN_TAGS.items() if custom["env_type"] in REFUSED_TYPES])
def test_what_needs_a_download_or_a_server_is_refused_by_name(tag: str) -> None:
    env_type = KNOWN_TAGS[tag]["env_type"]
    with pytest.raises(
        UsageError, match=rf"custom_envs\.{tag}\.env_type: env type '{env_type}' is not shipped: it need"
    ):
        EnvStateManager(config({}, tag))


def test_an_env_of_ones_own_takes_the_place_of_a_refused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTERED_ENVS, "alfworld", REGISTERED_ENVS["bandit"])
    monkeypatch.setitem(REGISTERED_ENV_CONFIGS, "alfworld", REGISTERED_ENV_CONFIGS["bandit"])
    custom = {"Alfworld": {"env_type": "alfworld", "max_actions_per_traj": 1, "env_config": {}}}
    assert "2 arms" in first_states(custom, "Alfworld")[0]


@pytest.mark.parametrize(
    ("env_type", "key", "value"),
    [
        ("sokoban", "action_lookup", {1: "North", 2: "South", 3: "West", 4: "East"}),
        ("sokoban", "observation_format", "hex"),
        ("sokoban", "render_mode", "human"),
        ("sokoban", "grid_lookup", {0: "W"}),
        ("sokoban", "grid_vocab", {"#": "wall"}),
        ("sokoban", "dim_x", 6),
        ("frozen_lake", "action_map", {1: 3, 2: 2, 3: 1, 4: 0}),
        ("frozen_lake", "map_lookup", {b"P": 3}),
        ("bandit", "action_space_start", 0),
        ("countdown", "render_mode", "rgb_array"),
        ("countdown", "train_path", "no/such.parquet"),
        ("metamathqa", "dataset_path", "some/other-set"),
        ("metamathqa", "dataset_path", "no/such.json"),
        ("webshop", "file_path", "no/such.json"),
        ("webshop", "dataset", "medium"),
        ("webshop", "dataset", "full"),
        ("webshop", "observation_mode", "html"),
        ("webshop", "show_attrs", True),
        ("webshop", "num_products", 100),
        ("sudoku", "grid_size", 8),
        ("game_2048", "action_lookup", {0: "Down", 1: "Right", 2: "Up", 3: "Left"}),
        ("rubikscube", "render_mode", "rgb_array"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_its_key(env_type: str, key: str, value: Any) -> None:
    with pytest.raises(UsageError, match=key):
        make(env_type, **{key: value})


@pytest.mark.parametrize(
    "env_type", ["sokoban", "frozen_lake", "bandit", "webshop", "sudoku", "game_2048", "rubikscube"]
)
def test_what_is_usual_may_be_said(env_type: str) -> None:
    usual: dict[str, dict[str, Any]] = {
        "sokoban": {"action_lookup": {"1": "Up", "2": "Down", "3": "Left", "4": "Right"}, "render_mode": "text"},
        "frozen_lake": {"map_lookup": {b"P": 0, b"F": 1, b"H": 2, b"G": 3}, "map_seed": 5},
        "bandit": {"action_space_start": 1, "action_lookup": None},
        "webshop": {"observation_mode": "text", "server": None, "limit_goals": -1, "show_attrs": False},
        "sudoku": {"show_candidates": True},
        "game_2048": {"action_lookup": None},
        "rubikscube": {"action_lookup": None},
    }
    assert isinstance(make(env_type, **usual[env_type]).reset(seed=1), str)
    assert {*our_kwargs(env_type, usual[env_type])[1]} == {*usual[env_type]} - (
        {"render_mode"} if env_type == "sokoban" else set()
    )


def test_defaults_are_ragens() -> None:
    assert make("sokoban").reset(seed=3).count("X") + make("sokoban").reset(seed=3).count("√") == 3
    assert our_kwargs("frozen_lake", {})[0]["p"] == 0.8
    assert our_kwargs("frozen_lake", {"success_rate": 0.8})[0]["p"] == 0.9
    assert our_kwargs("frozen_lake", {"success_rate": 0.8, "p": 0.7})[0]["p"] == 0.7
    assert our_kwargs("rubikscube", {})[0] == {}


def test_symbols_and_names_are_told_to_whoever_writes_prompts() -> None:
    sokoban = make("sokoban", **KNOWN_TAGS["SokobanDifferentGridVocab"]["env_config"])
    assert sokoban.config.grid_vocab["@"] == "player on target"
    assert sokoban.config.grid_lookup[6] == "@"
    assert make("frozen_lake").config.grid_vocab["O"] == "hole"
    assert make("game_2048").config.action_lookup == {0: "Up", 1: "Right", 2: "Down", 3: "Left"}
    assert make("rubikscube").config.action_lookup[2] == "U'"


SCORES: list[tuple[str, dict[str, Any], list[tuple[str, float, bool, bool]]]] = [
    ("countdown", {"target": 4, "nums": [2, 5, 3]}, [("2 + 5 - 3", 1.0, True, True)]),
    ("countdown", {"target": 4, "nums": [2, 5, 3]}, [("2 + 5 - 3 = 4", 0.0, True, False)]),
    ("countdown", {"target": 4, "nums": [2, 5, 3]}, [("2 + 5 + 3", 0.1, True, False)]),
    ("countdown", {"target": 4, "nums": [2, 5, 3]}, [("I take 2, 5 and 3", 0.1, True, False)]),
    ("countdown", {"target": 4, "nums": [2, 5, 3]}, [("2 + 5", 0.0, True, False)]),
    ("countdown", {"target": 4, "nums": [2, 5, 3]}, [("5 // 3 + 2", 0.1, True, False)]),
    ("countdown", {"target": 4, "nums": [9, 2]}, [("9 // 2", 1.0, True, True)]),
    ("countdown", {"target": 8, "nums": [2, 3]}, [("2 ** 3", 1.0, True, True)]),
    ("countdown", {"target": 1, "nums": [2, 3]}, [("2 ^ 3", 1.0, True, True)]),
    ("countdown", {"target": 9, "nums": [9, 9]}, [("9 ** 9 ** 9", 0.0, True, False)]),
    ("countdown", {"target": 9, "nums": [9, 9, 9]}, [("9 ** 9 ** 9", 0.1, True, False)]),
]


@pytest.mark.parametrize(("env_type", "task", "turns"), SCORES)
def test_scores_are_ragens(env_type: str, task: Any, turns: list[tuple[str, float, bool, bool]]) -> None:
    env = make(env_type)
    env._env.reset(seed=1, options={"task": task})
    for action, reward, done, success in turns:
        _, *told, info = env.step(action)
        assert (told, info["success"]) == ([reward, done], success)


@pytest.fixture
def rows(tmp_path: Path) -> Callable[[str, list[dict[str, Any]]], Path]:
    def write(name: str, content: list[dict[str, Any]]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
        return path

    return write


QUESTION = {"query": "How much is a half?", "response": "It is\n#### 1/2\nThe answer is: \\frac{1}{2}"}


def test_an_answer_is_compared_letter_by_letter(rows: Callable[..., Path]) -> None:
    env = make("metamathqa", dataset_path=str(rows("half.json", [QUESTION])))
    assert env.reset(seed=1) == QUESTION["query"]
    for action, expected in [
        ("0.5", (0.0, False, True, False)),
        ("", (0.0, False, False, False)),
        (" \\FRAC{1} {2}", (0.25, True, True, True)),
    ]:
        state, reward, done, info = env.step(action)
        assert (reward, done, info["action_is_valid"], info["success"]) == expected
        assert QUESTION["query"] not in state


@pytest.mark.parametrize("place", ["data/meta-math/MetaMathQA/MetaMathQA-395K.json", "data/MetaMathQA/rows.json"])
def test_a_data_set_that_was_fetched_is_found_by_its_name(
    place: str, rows: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows(place, [QUESTION])
    monkeypatch.chdir(tmp_path)
    assert make("metamathqa", dataset_path="meta-math/MetaMathQA").reset(seed=1) == QUESTION["query"]
    assert make("metamathqa", dataset_path="meta-math/MetaMathQA", cache_dir="data").reset(seed=1) == QUESTION["query"]


def test_what_stands_in_for_a_data_set_is_said(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env_data._say.cache_clear()
    with caplog.at_level(logging.WARNING):
        for env_type in ("countdown", "metamathqa", "webshop", "countdown"):
            make(env_type)
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(":")[0] for text in said] == ["countdown", "metamathqa", "webshop"]
    assert "env_config.train_path" in said[0]
    assert "meta-math/MetaMathQA is not on this machine" in said[1]
    assert "env_config.file_path" in said[2]


def test_countdowns_own_file_is_read(
    rows: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    puzzles = [{"target": 4, "nums": [2, 5, 3]}, {"target": 30, "nums": [2, 5, 3]}, {"target": 5, "nums": [9, 4]}]
    env_data._say.cache_clear()
    given = make("countdown", train_path=str(rows("puzzles.json", puzzles)))
    assert {given.reset(seed=seed) for seed in range(30)} == {"Target: 4, nums: [2, 5, 3]", "Target: 5, nums: [9, 4]"}
    few = make("countdown", train_path=str(rows("puzzles.json", puzzles)), max_instances=2)
    assert {few.reset(seed=seed) for seed in range(30)} == {"Target: 4, nums: [2, 5, 3]"}
    monkeypatch.chdir(tmp_path)
    Path("data/countdown").mkdir(parents=True)
    parquet.write_table(pyarrow.Table.from_pylist(puzzles[2:]), "data/countdown/train.parquet")
    assert make("countdown").reset(seed=1) == "Target: 5, nums: [9, 4]"
    assert not caplog.records


@pytest.mark.parametrize(("size", "name"), [("small", "items_shuffle_1000.json"), ("full", "items_shuffle.json")])
def test_webshops_own_files_are_found(size: str, name: str, rows: Callable[..., Path]) -> None:
    files = {given: rows(f"shop/{given}", []) for given in ("items_shuffle_1000.json", "items_shuffle.json")}
    folder = str(files[name].parent)
    for config_of in ({"file_path": folder}, {"data_path": folder}, {"file_path": str(files[name])}):
        assert our_kwargs("webshop", {"dataset": size, **config_of})[0]["data_path"] == str(files[name])


def test_configs_tell_of_actions_and_symbols_as_ragens_own_manager_reads_them() -> None:
    found = {name: asdict(make()) for name, make in REGISTERED_ENV_CONFIGS.items()}
    assert found["sokoban"]["action_lookup"] == {1: "Up", 2: "Down", 3: "Left", 4: "Right"}
    assert found["frozen_lake"]["action_lookup"] == {1: "Left", 2: "Down", 3: "Right", 4: "Up"}
    assert found["game_2048"]["action_lookup"] == {0: "Up", 1: "Right", 2: "Down", 3: "Left"}
    assert found["sokoban"]["grid_vocab"] == {sign: found["sokoban"]["grid_vocab"][sign] for sign in "#_O√XPS"}
    assert found["frozen_lake"]["grid_lookup"] == dict(enumerate("P_OGX√"))
    assert {found[name]["action_lookup"] for name in ("bandit", "countdown", "metamathqa", "webshop")} == {None}
    assert all(name in found for name in REGISTERED_ENVS)
    own = REGISTERED_ENV_CONFIGS["sokoban"](grid_vocab={"W": "wall"}, num_boxes=2)
    assert (asdict(own)["grid_vocab"], own.num_boxes) == ({"W": "wall"}, 2)
