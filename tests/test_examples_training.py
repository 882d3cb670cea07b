"""The training examples learn, and a seed has one curve, whatever the scheduling."""

import importlib
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from tests.test_examples import EXAMPLES


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.mark.parametrize(
    ("command", "steps", "least_gain"),
    [  # Over 12 seeds they gain at least 0.12, 0.18 and 1.3; a policy that does not learn, at most 0.02, 0.06 and 0.4.
        (["train_grpo", "--env", "bandit"], 12, 0.08),
        (["train_grpo", "--env", "frozen_lake"], 6, 0.14),
        (["train_gigpo"], 6, 0.9),
    ],
)
def test_mean_reward_rises(
    command: list[str],
    steps: int,
    least_gain: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        sys, "argv", [*command, "--seed", "0", "--steps", str(steps), "--run-dir", str(tmp_path / "run")]
    )
    importlib.import_module(command[0]).main()
    printed = capsys.readouterr().out
    rewards = [float(reward) for reward in re.findall(r"reward +(-?[0-9.]+)  kept +[0-9]+%", printed)]
    assert len(rewards) == steps
    first, _, last = np.reshape(rewards, (3, -1)).mean(axis=1)
    assert last - first > least_gain
    gain = re.search(rf"mean reward: (\S+) in the first {steps // 4} steps, (\S+) in the last", printed)
    assert gain is not None
    assert float(gain[2]) > float(gain[1])
    assert (tmp_path / "run" / "journal.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "arguments", "schedules"),
    [
        ("train_grpo", ["frozen_lake", 2], [{}, {"max_in_flight": 24}]),
        ("train_gigpo", [2], [{"workers": 1}, {"workers": 2, "max_in_flight": 24}]),
    ],
)
def test_a_seed_has_one_curve(name: str, arguments: list[Any], schedules: list[dict[str, Any]]) -> None:
    train = importlib.import_module(name).train

    def curve(uvloop: bool, schedule: dict[str, Any]) -> list[float]:
        training = partial(train, *arguments, seed=0, **schedule)
        return anyio.run(training, backend_options={"use_uvloop": uvloop})

    assert curve(False, schedules[0]) == curve(True, schedules[1])
