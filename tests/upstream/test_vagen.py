"""VAGEN's own code beside ours: its parsers, its grid worlds, its HTTP client, its data sets and its configs.

Nothing is replaced: its client talks to `asyncrollout serve`, its script makes data sets from our `REGISTERED_ENV`.
"""

import asyncio
import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from asyncrollout.dropin.vagen import EnvService, get_env_cls
from asyncrollout.dropin.vagen.replies import CURRENT, LEGACY, read_current, read_legacy
from tests.test_service_http import serve

HERE = Path(__file__).parents[2]
SPECIAL = ["<think>", "</think>", "<answer>", "</answer>"]
ANSWERS = ("Up", "Up,Down", " Left , Right ,Up, Down", "jump", "", "up,DOWN", "Down,,Left")
TAGS = ("think", "answer", "observation", "reasoning", "prediction")


def load(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def replies(count: int) -> Iterator[str]:
    """Replies in and near every format, and loose tags."""
    rng = random.Random(0)
    loose = [*(f"<{tag}>" for tag in TAGS), *(f"</{tag}>" for tag in TAGS), *ANSWERS, " ", "\n", "<image>"]

    def filled(tag: str, inside: tuple[str, ...]) -> str:
        if tag == "answer":
            return f"<answer>{rng.choice(ANSWERS)}</answer>"
        if tag == "think" and inside:
            return (
                "<think>" + rng.choice(["", "\n"]).join(["", *(filled(below, ()) for below in inside), ""]) + "</think>"
            )
        return f"<{tag}>{rng.choice(['x', ' y ', '', 'b <image>', '<think>'])}</{tag}>"

    for _ in range(count):
        form = rng.choice([*LEGACY.values(), *CURRENT.values()])
        parts = [filled(tag, form.inside) for tag in form.tags]
        whole = (
            rng.choice(["", " ", "so "]) + rng.choice(["", " ", "text"]).join(parts) + rng.choice(["", "\n", " end"])
        )
        yield rng.choice([whole, "".join(rng.choice(loose) for _ in range(rng.randrange(12)))])


def test_replies_are_read_as_its_parsers_do(upstream: Callable[[str], Path]) -> None:
    legacy = load(upstream("vagen-legacy") / "vagen/env/utils/parse_utils.py", "vagen_legacy_parsers")
    current = load(upstream("vagen") / "vagen/envs/sokoban/utils/utils.py", "vagen_parsers")
    assert legacy.PARSE_FUNC_MAP.keys() == LEGACY.keys()
    for reply in replies(5_000):
        for name, form in LEGACY.items():
            options = {"special_token_list": SPECIAL, "action_sep": ",", "max_actions": 3}
            assert read_legacy(reply, form, ",", 3, SPECIAL).info == legacy.PARSE_FUNC_MAP[name](reply, **options)
        for name, form in CURRENT.items():
            assert read_current(reply, form, ",", 3).info == current.parse_response(reply, name, ",", 3)


LAKES = (["SFFF", "FHFH", "FFFH", "HFFG"], ["GFFF", "FFHF", "HFFF", "FFFS"], ["FSF", "FHF", "FGF"])


@pytest.mark.parametrize("name", ["free_think", "wm"])
def test_its_frozen_lake_plays_alike(
    name: str, upstream: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step on the same maps: rewards, ends, infos and grids are equal; the words around the grids are ours."""
    monkeypatch.syspath_prepend(str(upstream("vagen")))
    theirs = pytest.importorskip("vagen.envs.frozenlake.frozenlake_env", reason="VAGEN's FrozenLake cannot be imported")
    rng = random.Random(1)
    steps = asyncio.run(_compare(theirs.FrozenLake, name, rng))
    assert steps > 300
    for module in [module for module in sys.modules if module.partition(".")[0] == "vagen"]:
        monkeypatch.delitem(sys.modules, module)


async def _compare(their_class: Any, name: str, rng: random.Random) -> int:
    steps = 0
    for lake in LAKES * 20:
        config = {"desc": lake, "prompt_format": name, "render_mode": "text"}
        theirs, ours = their_class(dict(config)), get_env_cls("FrozenLake")(dict(config))
        shown = [(await env.reset(seed=0))[0]["obs_str"] for env in (theirs, ours)]
        assert _grid(shown[0]) == _grid(shown[1])
        steps += await _play_alike(theirs, ours, name, rng)
    return steps


async def _play_alike(theirs: Any, ours: Any, name: str, rng: random.Random) -> int:
    """Up to eight turns of any replies; how many they were."""
    for turn in range(1, 9):
        names = rng.choices(["Up", "down", "LEFT", "Right", "jump"], weights=(5, 5, 5, 5, 1), k=rng.randrange(4))
        think, answer = "<think>t</think>", f"<answer>{','.join(names)}</answer>"
        whole = think + answer
        if name == "wm":
            whole = f"<observation>o</observation>{whole}<prediction>p</prediction>"
        reply = rng.choice([whole, whole, whole, answer])
        expected, found = await theirs.step(reply), await ours.step(reply)
        assert _grid(expected[0]["obs_str"]) == _grid(found[0]["obs_str"])
        assert found[1] == pytest.approx(expected[1])
        assert found[2:] == expected[2:]
        if found[2]:
            return turn
    return turn


@pytest.mark.filterwarnings("ignore")  # gym and its Sokoban are old
@pytest.mark.parametrize("name", ["free_think", "wm"])
def test_its_sokoban_plays_alike(name: str, upstream: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, in our rooms, which are put into its game."""
    monkeypatch.syspath_prepend(str(upstream("vagen")))
    needs = "VAGEN's Sokoban imports gym_sokoban: pip install gym gym-sokoban 'setuptools<80'"
    pytest.importorskip("gym_sokoban", reason=needs, exc_type=ImportError)
    theirs = importlib.import_module("vagen.envs.sokoban.sokoban_env")
    assert asyncio.run(_compare_rooms(theirs.Sokoban, name, random.Random(2))) > 200
    for module in [module for module in sys.modules if module.partition(".")[0] == "vagen"]:
        monkeypatch.delitem(sys.modules, module)


async def _compare_rooms(their_class: Any, name: str, rng: random.Random) -> int:
    steps = 0
    for seed in range(40):
        config = {"prompt_format": name, "render_mode": "text", "num_boxes": rng.choice([1, 2])}
        theirs, ours = their_class(dict(config)), get_env_cls("Sokoban")(dict(config))
        await theirs.reset(seed=seed)
        await ours.reset(seed=seed)
        cells = ours.game._env.cells.astype(int)
        game = theirs.env
        game.room_fixed = np.where(np.isin(cells, (2, 3, 6)), 2, np.where(cells == 0, 0, 1))
        game.room_state = np.where(cells == 6, 5, cells)
        game.player_position = np.argwhere(game.room_state == 5)[0]
        game.boxes_on_target, game.num_env_steps = int((cells == 3).sum()), 0
        steps += await _play_alike(theirs, ours, name, rng)
    return steps


def _grid(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(" ") and line.endswith(" ")]


CLIENT = """
import sys
from vagen.server.client import BatchEnvClient

client = BatchEnvClient(sys.argv[1])
assert client.wait_for_server()
free = {"prompt_format": "free_think"}
configs = {
    "a": {"env_name": "frozenlake", "env_config": {"is_slippery": False, "size": 4, "render_mode": "text", **free}},
    "b": {"env_name": "frozenlake", "env_config": {"is_slippery": True, "size": 8, "render_mode": "vision"}},
    "c": {"env_name": "sokoban", "env_config": {"render_mode": "vision", **free}},
}
client.create_environments_batch(configs)
first = client.reset_batch({"a": 0, "b": 42, "c": 84})
assert all("Choose" in obs["obs_str"] for obs, _ in first.values())
assert [len(obs["multi_modal_data"]["<image>"]) for obs, _ in first.values()] == [0, 1, 1]
assert first["b"][0]["multi_modal_data"]["<image>"][0].size == (192, 192)
assert all(client.get_system_prompts_batch(list(configs)).values())
after = client.step_batch({env_id: "<think>right first</think><answer>Right</answer>" for env_id in configs})
for env_id, (obs, reward, done, info) in after.items():
    is_free = env_id != "b"
    assert info["metrics"]["turn_metrics"]["action_is_valid"] is is_free, info
    assert info["is_format_rewarded"] is is_free
    assert reward >= 0.4 if is_free else reward == 0.0
assert client.compute_reward_batch(list(configs)) == {"a": 0.0, "b": 0.0, "c": 0.0}
client.close_batch(list(configs))
print("played")
"""


def test_its_client_plays_its_environments_at_our_server(upstream: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("requests", reason="VAGEN's client imports requests: pip install requests")
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    with serve() as (_, url):
        ran = subprocess.run(
            [sys.executable, script, url],
            env={**os.environ, "PYTHONPATH": str(upstream("vagen-legacy"))},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert ran.stdout.endswith("played\n"), ran.stdout[-2000:] + ran.stderr[-2000:]


def test_its_script_makes_data_sets(upstream: Callable[[str], Path], tmp_path: Path) -> None:
    for package in ("datasets", "torch"):
        pytest.importorskip(package, reason=f"VAGEN's script imports {package}: pip install datasets torch")
    sources = upstream("vagen-legacy")
    config = tmp_path / "dataset.yaml"
    config.write_text(
        "e1: {env_name: sokoban, env_config: {render_mode: vision}, train_size: 6, test_size: 3}\n"
        "e2: {env_name: frozenlake, env_config: {prompt_format: free_think}, train_size: 4, test_size: 2}\n"
    )
    ran = make_data_set(sources / "vagen/env/create_dataset.py", config, tmp_path)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert "Train dataset with 10 instances" in ran.stdout
    assert "Test dataset with 5 instances" in ran.stdout
    assert "SokobanEnvConfig(" in ran.stdout


def make_data_set(script: Path, config: Path, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run VAGEN's script, with the import lines of its own package changed."""
    text = script.read_text()
    lines = {
        "from vagen.env import REGISTERED_ENV": "from asyncrollout.dropin.vagen import REGISTERED_ENV",
        "from vagen.env.utils.env_utils import permanent_seed": "from env_utils import permanent_seed",
    }
    for theirs, ours in lines.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    changed = folder / "create_dataset.py"
    changed.write_text(text)
    paths = [f"--train_path={folder}/train.parquet", f"--test_path={folder}/test.parquet", "--force_gen"]
    return subprocess.run(
        [sys.executable, changed, "--yaml_path", config, *paths],
        env={**os.environ, **environ, "PYTHONPATH": f"{script.parent / 'utils'}{os.pathsep}{HERE}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_its_configs_are_read(upstream: Callable[[str], Path]) -> None:
    """Every Sokoban and FrozenLake in its example files; those that need its LLM judge are refused by name."""
    found: dict[str, Any] = {}
    for file in sorted(upstream("vagen-legacy").glob("scripts/**/*.yaml")):
        for key, entry in (yaml.safe_load(file.read_text()) or {}).items():
            if isinstance(entry, dict) and entry.get("env_name") in ("sokoban", "frozenlake"):
                found[f"{file}:{key}"] = {"env_name": entry["env_name"], "env_config": entry.get("env_config")}
    for file in sorted(upstream("vagen").glob("examples/**/*.yaml")):
        values = yaml.safe_load(file.read_text())
        for number, entry in enumerate(values.get("envs") or [] if isinstance(values, dict) else []):
            if entry["name"] in ("Sokoban", "FrozenLake"):
                found[f"{file}:{number}"] = {"env_name": entry["name"], "env_config": entry.get("config")}
    assert len(found) >= 20
    service = EnvService(max_workers=2)
    try:
        service.create_environments_batch(found)
        judged = [key for key, one in found.items() if (one["env_config"] or {}).get("use_state_reward")]
        assert [*service.failures] == judged
        assert all("LLM judge" in reason for reason in service.failures.values())
        results = service.reset_batch(dict.fromkeys(service.environments, 1))
        assert all("error" not in info for _, info in results.values())
    finally:
        service.close_batch()
