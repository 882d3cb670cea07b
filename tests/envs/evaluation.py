"""Envs and policies that evaluations are tested with: what they paint says who painted it, and where."""

import os
from collections.abc import Mapping
from typing import Any

import anyio
import numpy as np
from numpy.typing import NDArray

from asyncrollout import Generation, Request, UsageError
from asyncrollout.dropin import rlinf
from asyncrollout.dropin.rlinf.ranks import devices

STEP = 20
"""Between two shades that can be distinguished in a video."""


class Painter:
    """Paints its process's GPU in red, its own seed in green, and the count of its steps in blue.

    It has no limit of its own. A seed of `crash_at` kills its process at the second step, `fails_at` raises.
    """

    metadata: Mapping[str, Any] = {"render_fps": 5}

    def __init__(self, crash_at: int | None = None, fails_at: int | None = None) -> None:
        self._crash_at, self._fails_at = crash_at, fails_at
        self._seed = self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self._seed, self._steps = seed or 0, 0
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._seed == self._fails_at:
            raise RuntimeError("this one cannot")
        if self._seed == self._crash_at and self._steps == 2:
            os._exit(1)
        return self._steps, float(action), False, False, {"success": self._seed % 2 == 0}

    def render(self) -> NDArray[np.uint8]:
        device = int(os.environ.get("CUDA_VISIBLE_DEVICES", "12"))
        shades = np.array([device, self._seed, self._steps]) * STEP + 10
        return np.full((32, 32, 3), shades, dtype=np.uint8)


class Loner(Painter):
    """Needs a process to itself, and says so if it has none."""

    alone_in_process = True
    _in_use = False

    def __init__(self) -> None:
        super().__init__()
        assert not Loner._in_use, "there is another one"
        Loner._in_use = True


class Blinking(Painter):
    """Reports success in its second step only, and the numbers of its motors under a name that text envs use."""

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        shown, *came, _ = super().step(action)
        return shown, *came, {"success": self._steps == 2, "actions": np.zeros(23)}  # type: ignore[return-value]


def act(observation: int) -> float:
    return 0.5 + observation


async def act_later(observation: int) -> float:
    return 0.5 + observation


def wait(_: object) -> int:
    """For frozen lakes: into the wall again and again."""
    return 1


class Seeing:
    """Acts by the GPU that it sees."""

    def __init__(self) -> None:
        self._device = float(os.environ["CUDA_VISIBLE_DEVICES"])

    def __call__(self, observation: int) -> float:
        return self._device


class Counting:
    """Acts by how many GPUs this process was given, and how many it sees."""

    def __call__(self, observation: int) -> float:
        return 10.0 * len((devices() or "").split(",")) + len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))


class Nested:
    """Starts an evaluation whose policy wants a GPU, too, and acts by whether it was refused."""

    def __call__(self, observation: int) -> float:
        other: Any = {"env": {"eval": {"env_type": "bandit"}}, "cluster": {"component_placement": {"rollout": 0}}}
        other["policy"] = {"kind": "python", "path": "tests.envs.evaluation:wait"}
        try:
            rlinf.evaluate(other, allow_import=True)
        except UsageError as error:
            return float("restricts CUDA_VISIBLE_DEVICES" in str(error))
        return 0.0


class Adding:
    """A policy of numbers."""

    async def generate(self, request: Request) -> Generation:
        return Generation("", action=request.data + 1)


class Waiting:
    """A policy for households, with options."""

    def __init__(self, word: str = "wait") -> None:
        self._word = word

    async def generate(self, request: Request) -> Generation:
        assert request.messages
        return Generation(f"<answer>{self._word}</answer>")


class Halting(Waiting):
    """Plays six steps of an episode, says so, and then waits for somebody to stop it."""

    async def generate(self, request: Request) -> Generation:
        if request.turn == 6:
            print("halted", flush=True)
            await anyio.sleep_forever()
        return await super().generate(request)


NEITHER = 7
