"""Envs that keep something where it does not belong, each beside its good twin, for `check_env`."""

import os
import threading
from typing import Any, ClassVar

import numpy as np

from asyncrollout import Observation, Parsed, TextOptions
from tests.envs.tiny import AsyncCounter, Counter, CounterText, SnapshotCounter, Step

STATE: dict[str, int] = {}
HANGING = threading.Event()
"""Set, it lets go whatever hangs."""


class InModule(Counter):
    """Keeps its total in its module: an env at a time does not notice."""

    @property
    def total(self) -> int:
        return STATE["total"]

    @total.setter
    def total(self, total: int) -> None:
        STATE["total"] = total


class InClass(Counter):
    """The same in its class."""

    kept: ClassVar[list[int]] = [0]

    @property
    def total(self) -> int:
        return self.kept[0]

    @total.setter
    def total(self, total: int) -> None:
        self.kept[0] = total


class ClearsOthers(Counter):
    """Whoever is made begins with an empty table, and so do all others."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        STATE.clear()

    def step(self, action: Any) -> Step:
        STATE["steps"] = STATE.get("steps", 0) + 1
        observation, reward, *rest = super().step(action)
        return f"{observation} {STATE['steps']}", reward, *rest  # type: ignore[return-value]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        STATE["steps"] = 0
        return super().reset(seed=seed, options=options)


class PastItsEnd(Counter):
    """What it wins at an end, it has in the next episode, and only there; a good one begins anew."""

    def __init__(self, *, leaks: bool = True, limit: int = 20) -> None:
        super().__init__(limit=limit)
        self.leaks = leaks
        self.won = self.brought = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.brought, self.won = self.won and self.leaks, False
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = super().step(action)
        self.won = terminated
        return observation, reward + 100 * self.brought, terminated, truncated, info


class TakesBonuses(Counter):
    """Uses up the list that it was given, or a copy of it."""

    def __init__(self, bonuses: list[int], *, copies: bool = False) -> None:
        super().__init__()
        self.given = bonuses
        self.copies = copies

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.bonuses = list(self.given) if self.copies else self.given
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        self.bonus = self.bonuses.pop() if self.bonuses else 0
        return super().step(action)


class Closes(Counter):
    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.how = how
        self.closed = 0

    def close(self) -> None:
        self.closed += 1
        if self.how == "hangs" or (self.how == "hangs the second time" and self.closed == 2):
            HANGING.wait()
        if self.how == "raises" or (self.how == "raises the second time" and self.closed == 2):
            raise OSError("no such window")
        if self.how == "exits":
            raise SystemExit(3)


class AsyncCloses(AsyncCounter):
    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.how = how

    async def close(self) -> None:
        if self.how == "hangs":
            await self.step("hang")
        if self.how == "raises":
            raise OSError("no such window")


class Seen:
    """An observation that is equal to others, and says where it lies in memory."""

    def __init__(self, text: str, place: int) -> None:
        self.text, self.place = text, place

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


class ShowsPlaces(Counter):
    def __init__(self, *, places: bool) -> None:
        super().__init__()
        self.places = places

    def _show(self) -> Any:
        return Seen(super()._show(), int.from_bytes(os.urandom(4)) if self.places else 0)


class ShowsItself(Counter):
    """Each observation holds itself."""

    def _show(self) -> Any:
        shown: dict[str, Any] = {"text": super()._show()}
        shown["self"] = shown
        return shown


class Bonus(SnapshotCounter):
    """What a call changed is in its snapshot, or forgotten."""

    def __init__(self, *, forgets: bool) -> None:
        super().__init__()
        self.forgets = forgets

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.bonus = 0.0
        return super().reset(seed=seed, options=options)

    def snapshot(self) -> bytes:
        return b"%d|" % (0 if self.forgets else self.bonus) + super().snapshot()

    def restore(self, state: bytes) -> None:
        bonus, _, rest = state.partition(b"|")
        self.bonus = float(bonus)
        super().restore(rest)


class ForgetsItsStart(SnapshotCounter):
    """A snapshot before the first step has another generator."""

    def restore(self, state: bytes) -> None:
        super().restore(state)
        if self.total == 0:
            self.generator = np.random.default_rng(99)


class AsyncSnapshots(AsyncCounter):
    """All of its methods are coroutines, those of snapshots, too."""

    def __init__(self, *, forgets: bool) -> None:
        self.inner: SnapshotCounter = SnapshotCounter()
        self.forgets = forgets

    async def snapshot(self) -> bytes:
        return self.inner.snapshot()

    async def restore(self, state: bytes) -> None:
        self.inner.restore(state)
        if self.forgets:
            self.inner.total += 1


class Renders(Counter):
    def __init__(self, shape: tuple[int, ...], kind: str = "uint8") -> None:
        super().__init__()
        self.picture = np.zeros(shape, dtype=kind)

    def render(self) -> Any:
        return self.picture


class MenuText(CounterText):
    """Replies are numbers of a menu, which it keeps from what it described last."""

    menu: ClassVar[list[int]] = []

    def __init__(self, env: Counter, options: TextOptions) -> None:
        super().__init__(env, options)
        self.own: list[int] = []

    def _menu(self) -> list[int]:
        return self.own

    def parse(self, reply: str) -> Parsed:
        menu = self._menu()
        if reply.isascii() and reply.isdecimal() and len(reply) < 4 and int(reply) < len(menu):
            return Parsed([menu[int(reply)]])
        return Parsed([], valid=False, reason="not on the menu")

    def describe(self, observation: str) -> Observation:
        self._menu()[:] = [1 + len(observation) % 3, 1 + self.env.total % 5, 7]
        return Observation(text=f"{observation}: {self._menu()}", data=observation)

    def solve(self) -> str:
        return "1"


class SharedMenuText(MenuText):
    """The same menu for all."""

    def _menu(self) -> list[int]:
        return self.menu


class KeepsOrder(Counter):
    """What it shows was made once; used, it comes in another order."""

    def __init__(self, *, anew: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.anew = anew
        self.table = {"left": 0, "right": 0}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        if self.anew:
            self.table = {"left": 0, "right": 0}
        self.table.update(left=0, right=0)
        return {"table": self.table, "at": observation}, info

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        self.table["left"] = self.table.pop("left") + 1
        return {"table": self.table, "at": observation}, *rest
