"""Environments in RAGEN's shape, as its users write them; and configurations that tests of the drop-ins share."""

import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from asyncrollout import PoolStats
from asyncrollout.dropin.ragen.envs import (
    REGISTERED_ENV_CONFIGS,
    REGISTERED_ENVS,
    BanditEnv,
    CountdownEnv,
    EnvConfig,
    FrozenLakeEnv,
    Game2048Env,
    MetaMathQAEnv,
    RagenEnv,
    RubiksCube2x2Env,
    SokobanEnv,
    SudokuEnv,
    WebShopEnv,
)


@dataclass
class WalkConfig:
    """Of a walk to `goal`."""

    goal: int = 5
    render_mode: str = "text"
    action_lookup: dict[int, str] = field(
        default_factory=lambda: {1: "Forth", 2: "Back", 3: "Raise", 4: "Hang", 5: "Die"}
    )


class WalkEnv:
    """From a seeded place; some steps go wrong."""

    def __init__(self, config: WalkConfig) -> None:
        self.config = config
        self.at = 0

    def reset(self, seed: int | None = None, mode: str = "train") -> Any:
        self.at = int(np.random.default_rng(seed).integers(3))
        self.mode = mode
        return self.render()

    def step(self, action: int) -> tuple[Any, float, bool, dict[str, Any]]:
        name = self.config.action_lookup[action]
        if name == "Raise":
            raise LookupError("a stone in the way")
        if name == "Hang":
            time.sleep(3600)
        if name == "Die":
            os.kill(os.getpid(), signal.SIGKILL)
        self.at += 1 if name == "Forth" else -1
        success = self.at >= self.config.goal
        return self.render(), float(success) - 0.1, success, {"success": success, "at": self.at, "said": name}

    def render(self, mode: str = "") -> Any:
        if (mode or self.config.render_mode) == "rgb_array":
            return np.full((4, 4, 3), self.at, dtype=np.uint8)
        return f"{self.mode}: at {self.at} of {self.config.goal}"

    def close(self) -> None:
        """Nothing is open."""


class CountedEnv(WalkEnv):
    """Shows its process, and how many of its kind were made there."""

    made = 0

    def __init__(self, config: WalkConfig) -> None:
        super().__init__(config)
        CountedEnv.made += 1

    def render(self, mode: str = "") -> Any:
        return f"{os.getpid()} {self.made}"


class Unpicklable(WalkEnv):
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a simulator's handle stays in its process")


class OnlyHere:
    """Makes walks, but cannot be loaded in another process."""

    def __call__(self, config: WalkConfig) -> WalkEnv:
        return WalkEnv(config)

    def __reduce__(self) -> Any:
        return _load_simulator, ()


def _load_simulator() -> OnlyHere:
    raise ImportError("libsimulator.so cannot be opened")


def _in_workers(env: type[RagenEnv]) -> type[RagenEnv]:
    """Our light envs, to be played in worker processes all the same."""
    return type(f"Worker{env.__name__}", (env,), {"runs": "cpu", "__module__": __name__})


WorkerSokobanEnv = _in_workers(SokobanEnv)
WorkerFrozenLakeEnv = _in_workers(FrozenLakeEnv)
WorkerBanditEnv = _in_workers(BanditEnv)
WorkerCountdownEnv = _in_workers(CountdownEnv)
WorkerMetaMathQAEnv = _in_workers(MetaMathQAEnv)
WorkerWebShopEnv = _in_workers(WebShopEnv)
WorkerSudokuEnv = _in_workers(SudokuEnv)
WorkerGame2048Env = _in_workers(Game2048Env)
WorkerRubiksCube2x2Env = _in_workers(RubiksCube2x2Env)

WORKER_TYPES = {
    f"worker_{env.env_type}": env
    for env in (
        WorkerSokobanEnv,
        WorkerFrozenLakeEnv,
        WorkerBanditEnv,
        WorkerCountdownEnv,
        WorkerMetaMathQAEnv,
        WorkerWebShopEnv,
        WorkerSudokuEnv,
        WorkerGame2048Env,
        WorkerRubiksCube2x2Env,
    )
}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our envs of above are in RAGEN's tables, as a user's code puts them there."""
    for name, env in {"walk": WalkEnv, **WORKER_TYPES}.items():
        monkeypatch.setitem(REGISTERED_ENVS, name, env)
        monkeypatch.setitem(REGISTERED_ENV_CONFIGS, name, WalkConfig if name == "walk" else EnvConfig)


WORDS = {
    "sokoban": ["Up", "down", "LEFT", "Right", "jump", "2"],
    "frozen_lake": ["Left", "Down", "right", "up", "fly"],
    "bandit": ["phoenix", "Dragon", "1", "2", "unicorn"],
    "countdown": ["1 + 2", "no idea", "(3 * 4) - 5"],
    "metamathqa": ["42", "7", "1/2"],
    "webshop": ["search[red shoes]", "click[back to search]", "click[next >]", "click[buy now]", "buy"],
    "sudoku": ["place 5 at row 2 col 3", "1,1,1", "place 0 at row 1 col 1", "four"],
    "game_2048": ["up", "Left", "RIGHT", "0", "sideways"],
    "rubikscube": ["R", "u'", "12", "R2"],
    "walk": ["forth", "back", "sideways"],
}


def config(*types: str, groups: int = 1, size: int = 2, actions: int = 8, **more: Any) -> dict[str, Any]:
    """`groups` groups of each env type, which is its own tag; `more` goes to `es_manager`."""
    part = {
        "env_groups": groups * len(types),
        "group_size": size,
        "env_configs": {"tags": list(types), "n_groups": [groups] * len(types)},
    }
    return {
        "es_manager": {"train": part, "val": part, **more},
        "custom_envs": {name: {"env_type": name, "max_actions_per_traj": actions} for name in types},
    }


def turn(tags: list[str], number: int, seed: int = 0) -> list[dict[str, Any]]:
    """What a model asks for in a turn: up to three actions for each environment, and sometimes none."""
    inputs = []
    for env_id, tag in enumerate(tags):
        rng = np.random.default_rng([seed, number, env_id])
        words = WORDS[tag.removeprefix("worker_")]
        actions = [words[place] for place in rng.integers(len(words), size=rng.integers(4))]
        said = f"turn {number} of {env_id}"
        inputs.append({"env_id": env_id, "llm_raw_response": said, "llm_response": said, "actions": actions})
    return inputs


def worker_pids(stats: PoolStats) -> list[int]:
    """Of the worker processes that live now; one may just be being replaced."""
    return [worker.pid for worker in stats.workers if worker.rank >= 0 and worker.pid is not None]
