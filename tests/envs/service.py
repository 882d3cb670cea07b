"""Envs for tests of services: they count how many are at work, show pictures, have splits, and tell things apart."""

import math
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np

from asyncrollout import EnvSpec, Observation
from tests.envs.tiny import Counter, CounterText, Step
from tests.odd_values import Pair
from tests.playing import ENVS

HERE = "tests.envs.service"


class Rounds(Counter):
    """In each step it waits for others, until `together` of them are at work; all is written to a file, in order."""

    def __init__(self, log: str, together: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.log = log
        self.together = together

    def step(self, action: Any) -> Step:
        end = self._write(b"+")
        mine = self._read()[:end].count(b"+")
        whole = -(-mine // self.together) * self.together
        while self._read().count(b"+") < whole:
            threading.Event().wait(0.001)
        self._write(b"-")
        return super().step(action)

    def _read(self) -> bytes:
        with open(self.log, "rb") as log:
            return log.read()

    def _write(self, sign: bytes) -> int:
        """Where the sign ends."""
        log = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, sign)
        end = os.lseek(log, 0, os.SEEK_CUR)
        os.close(log)
        return end


class AsyncRounds:
    """The same on the event loop."""

    at_work = most = 0
    full = anyio.Event()

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    async def step(self, action: int) -> Any:
        cls = type(self)
        cls.at_work += 1
        cls.most = max(cls.most, cls.at_work)
        if cls.at_work == action:
            cls.full.set()
            cls.full = anyio.Event()
        else:
            await cls.full.wait()
        for _ in range(20):  # whoever else may come in does so now
            await anyio.lowlevel.checkpoint()
        cls.at_work -= 1
        return 0, 1.0, False, False, {}


class Meeting:
    """Its end comes when `size` of them are about to end."""

    waiting = closed = 0
    all_here = anyio.Event()

    def __init__(self, size: int) -> None:
        self.size = size

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    async def step(self, action: int) -> Any:
        return 0, 1.0, False, False, {}

    async def close(self) -> None:
        cls = type(self)
        cls.waiting += 1
        try:
            if cls.waiting == self.size:
                cls.all_here.set()
                cls.all_here = anyio.Event()
            else:
                await cls.all_here.wait()
            cls.closed += 1
        finally:
            cls.waiting -= 1


class Gallery(Counter):
    """Counts, and has splits and an embedder."""

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        task = (options or {}).get("task") or {"split": "train"}
        observation, info = super().reset(seed=seed)
        return observation, {**info, "split": task["split"], "odd": {np.int64(3), np.int64(1)}, "at": np.float32(0.5)}

    def get_split_size(self, split: str) -> int:
        return {"train": 12, "test": 3}.get(split, 0)

    def init_embedder(self, service_url: str) -> dict[str, Any]:
        return {"ok": "5000" in service_url, "error": "" if "5000" in service_url else "nobody is there"}


class Frank(Counter):
    """Its info has an `error` of its own, and a number that is too large for msgpack."""

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"error": "that was not wise", "large": 2**70}


class Talkative(Counter):
    """Its errors tell where it lives, and what it knows."""

    def step(self, action: Any) -> Step:
        raise OSError(f"cannot read {__file__} as {os.environ.get('DB_PWD')}")


class Informed(Counter):
    """Its info has a named tuple."""

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed)
        return observation, {**info, "pair": Pair(1, 2)}


class Boundless(Counter):
    """Rewards of which two have no finite sum, and an info as deep as the action says."""

    def step(self, action: Any) -> Step:
        observation, _, terminated, truncated, _ = super().step(1)
        deep: list[Any] = []
        for _ in range(action):
            deep = [deep]
        info = {"up": math.inf, "down": -np.float32("inf"), "none": [np.float64("nan")], "deep": deep}
        return observation, sys.float_info.max, terminated, truncated, info


class GalleryText(CounterText):
    def describe(self, observation: str) -> Observation:
        pictures = (self.env.render(), self.env.render() + 1)
        return Observation(text=f"You are at {observation} <image> <image>", images=pictures)


GALLERY = EnvSpec(name="gallery", factory=f"{HERE}:Gallery", text=f"{HERE}:GalleryText")
KNOWN = [
    GALLERY,
    EnvSpec(name="counter", factory=f"{ENVS}:Counter"),
    EnvSpec(name="text", factory=f"{ENVS}:Counter", text=f"{ENVS}:CounterText"),
    EnvSpec(name="light_text", factory=f"{ENVS}:Counter", text=f"{ENVS}:CounterText", runs="light"),
    EnvSpec(name="echo", factory=f"{ENVS}:Echo"),
    EnvSpec(name="big", factory=f"{ENVS}:BigArray"),
    EnvSpec(name="bigs", factory=f"{ENVS}:BigArray", kwargs={"kind": "dict"}),
    EnvSpec(name="growing", factory=f"{ENVS}:Growing"),
    EnvSpec(name="snapshot", factory=f"{ENVS}:SnapshotCounter"),
    EnvSpec(name="crasher", factory=f"{ENVS}:Crasher"),
    EnvSpec(name="once_only", factory=f"{ENVS}:Counter", replayable=False),
    EnvSpec(name="nondeterministic", factory=f"{ENVS}:Nondeterministic"),
    EnvSpec(name="refuses", factory=f"{ENVS}:Refuses"),
    EnvSpec(name="gated", factory=f"{ENVS}:Gated"),
    EnvSpec(name="dice", factory=f"{ENVS}:Dice"),
    EnvSpec(name="bag", factory=f"{ENVS}:BagEnv"),
    EnvSpec(name="informed", factory=f"{HERE}:Informed"),
    EnvSpec(name="talkative", factory=f"{HERE}:Talkative"),
    EnvSpec(name="frank", factory=f"{HERE}:Frank"),
    EnvSpec(name="rounds", factory=f"{HERE}:Rounds"),
    EnvSpec(name="async_rounds", factory=f"{HERE}:AsyncRounds", runs="io"),
    EnvSpec(name="meeting", factory=f"{HERE}:Meeting", runs="io"),
    EnvSpec(name="boundless", factory=f"{HERE}:Boundless"),
    EnvSpec(name="slow", factory=f"{ENVS}:Slow"),
]
