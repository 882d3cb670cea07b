"""What a pool's env should do: the raw object in a plain loop, its text interface in the simplest code."""

import copy
import inspect
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from asyncrollout import Observation, Outcome, TextOptions
from asyncrollout.registry import load_factory
from tests.envs.pool_model import SPECS

TEXT_OPTIONS = set(TextOptions.__struct_fields__)


class Reference:
    """An env and its interface. A fork, and a snapshot, is a deep copy of all of it."""

    def __init__(self, name: str, kwargs: Mapping[str, Any]) -> None:
        spec = SPECS[name]
        own = {key: value for key, value in kwargs.items() if key not in ("diary", "build", "pause", *TEXT_OPTIONS)}
        self.env = load_factory(spec.factory)(**copy.deepcopy(own))
        self.options = TextOptions(**{key: value for key, value in kwargs.items() if key in TEXT_OPTIONS})
        self.interface = None if spec.text is None else load_factory(spec.text)(self.env, self.options)
        self.last: Outcome | None = None
        self.raw: Any = None
        self.played: list[Any] = []

    def copied(self) -> "Reference":
        return copy.deepcopy(self)

    async def reset(self, seed: int, task: Any, member: int) -> Outcome:
        options = {"member": member} | ({} if task is None else {"task": copy.deepcopy(task)})
        self.raw, info = await _awaited(self.env.reset(seed=seed, options=options))
        shown, info, self.played = self.raw, dict(info), []
        if self.interface is not None:
            info["system_prompt"] = self.interface.system_prompt()
            if self.options.max_actions_per_traj is not None:
                info["actions_left"] = self.options.max_actions_per_traj
            shown = self._described()
        return self._took(shown, 0.0, False, False, info)

    async def step(self, action: Any) -> Outcome:
        action = copy.deepcopy(action)
        if self.interface is None:
            return self._took(*await _awaited(self.env.step(action)))
        reason, actions = "", [action]
        if isinstance(action, str):
            parsed = self.interface.parse(action)
            reason = "" if parsed.valid else parsed.reason
            actions = list(parsed.actions)[: self.options.max_actions_per_turn]
        return await self._step_all(actions, reason)

    async def _step_all(self, actions: list[Any], reason: str) -> Outcome:
        limit, played, rewards = self.options.max_actions_per_traj, [], []
        info: dict[str, Any] = {"success": False, "invalid_reason": reason} if reason else {}
        terminated = truncated = False
        while actions and not terminated and not truncated and (limit is None or len(self.played) < limit):
            action = actions.pop(0)
            self.raw, reward, terminated, truncated, more = await _awaited(self.env.step(action))
            rewards.append(reward)
            played.append(action)
            self.played.append(str(action))
            info |= more
        if limit is not None:
            info["actions_left"] = limit - len(self.played)
            truncated = truncated or (len(self.played) >= limit and not terminated)
        if reason:
            rewards.append(-self.options.format_penalty)
        if len(rewards) > 1:
            info["step_rewards"] = rewards
        info |= {"actions": played, "action_is_valid": not reason, "action_is_effective": bool(played)}
        return self._took(self._described(), math.fsum(rewards), terminated, truncated, info)

    def _described(self) -> Observation:
        assert self.interface is not None
        shown: Observation = self.interface.describe(self.raw)
        if self.options.action_history and self.played:
            actions = ", ".join(self.played[-self.options.action_history :])
            shown = msgspec.structs.replace(shown, text=f"{shown.text}\nYour last actions: {actions}")
        return msgspec.structs.replace(shown, anchor=self.interface.anchor())

    def _took(self, *fields: Any) -> Outcome:
        self.last = Outcome(*copy.deepcopy(fields))
        return self.last

    async def call(self, method: str, args: tuple[Any, ...]) -> Any:
        owner = self.interface if hasattr(self.interface, method) else self.env
        found = getattr(owner, method)
        result = await _awaited(found(*copy.deepcopy(args))) if callable(found) else found
        return copy.deepcopy(result)

    def offers(self, method: str) -> bool:
        return not method.startswith("_") and (hasattr(self.interface, method) or hasattr(self.env, method))

    async def render(self) -> Any:
        return await _awaited(self.env.render())


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def alike(a: Any, b: Any, seen: frozenset[tuple[int, int]] = frozenset()) -> bool:
    """Equal in type and content all the way down, whatever holds itself; compared without any code of the pool."""
    if type(a) is not type(b):
        return False
    if (id(a), id(b)) in seen:
        return True
    seen = seen | {(id(a), id(b))}
    if isinstance(a, np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return alike(a.tolist(), b.tolist(), seen) if a.dtype.hasobject else a.tobytes() == b.tobytes()
    if isinstance(a, msgspec.Struct):
        return alike(msgspec.structs.astuple(a), msgspec.structs.astuple(b), seen)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(value, b[key], seen) for key, value in a.items())
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(alike(one, other, seen) for one, other in zip(a, b, strict=True))
    return bool(a == b) and alike(getattr(a, "__dict__", None), getattr(b, "__dict__", None), seen)
