"""A text interface at work: replies in, descriptions out, and what must be remembered in between."""

import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.pool.wire.digest import digest
from asyncrollout.pool.wire.failure import clip
from asyncrollout.protocols import has_snapshots
from asyncrollout.text.replies import turn_format
from asyncrollout.types import STEP_REWARDS, Observation, TextOptions, exact_sum

Fields = tuple[Any, float, bool, bool, dict[str, Any]]
"""What an `Outcome` holds, on its way."""

_LONGEST_ACTION = 100


class TextDialogue:
    """One env's text interface through an episode: the count of its actions, the last of them, the last observation."""

    def __init__(self, interface: Any, options: TextOptions, *, expert: bool, env: Any = None) -> None:
        """With `env`, if that one has snapshots: they keep the interface's own state apart from the env's."""
        self.interface = interface
        self._env = env
        self._own_snapshots = has_snapshots(interface)
        self._options = options
        self._expert = expert
        self._count = 0
        self._played: deque[str] = deque(maxlen=options.action_history)
        self._last: Any = None
        self._untouched = None if env is None or self._own_snapshots else self._digest()

    async def snapshot(self) -> list[Any]:
        """What belongs into the env's snapshot."""
        own = None
        if self._own_snapshots:
            own = self.interface.snapshot()
            own = await own if inspect.isawaitable(own) else own
        return [self._count, list(self._played), self._last, own]

    async def restore(self, state: Sequence[Any]) -> None:
        count, played, last, *own = state  # files of format 1 have nothing of the interface's own
        self._set(count, played, last)
        if self._own_snapshots and own and own[0] is not None:
            done = self.interface.restore(own[0])
            if inspect.isawaitable(done):
                await done

    def _set(self, count: int, played: Sequence[str], last: Any) -> None:
        self._count, self._last = count, last
        self._played = deque(played, maxlen=self._options.action_history)

    @property
    def is_untouched(self) -> bool:
        """Whether a snapshot holds all of the interface: it has its own, or is still as it was made."""
        return self._own_snapshots or (self._untouched is not None and self._digest() == self._untouched)

    def _digest(self) -> int | None:
        """Of what the interface keeps beside env and options; by value, as it may share objects with the env."""
        given = (self._env, getattr(self._env, "unwrapped", self._env), self._options)
        kept = {name: value for name, value in _attributes(self.interface) if not any(value is one for one in given)}
        try:
            return digest(kept)
        except Exception:  # of any kind: nobody can say whether it changed
            return None

    def begin(self, observation: Any, info: dict[str, Any]) -> Observation:
        self._set(0, [], observation)
        info["system_prompt"] = self._system_prompt()
        if self._options.max_actions_per_traj is not None:
            info["actions_left"] = self._options.max_actions_per_traj
        return self._described(info, over=False)

    def _system_prompt(self) -> str:
        rules = self._options.instruction
        if rules is None:
            return str(self.interface.system_prompt())
        return "\n\n".join(part for part in (rules, turn_format(self._options)) if part)

    async def step(self, action: Any, step_env: Callable[[Any], Awaitable[Fields]]) -> Fields:
        """Step the actions of a reply until the episode ends; an invalid one steps nothing and costs the penalty."""
        options = self._options
        actions, reason = self._read(action)
        limit = options.max_actions_per_traj
        terminated, truncated, effective = False, False, False
        info: dict[str, Any] = {"success": False} if reason else {}
        played: list[Any] = []
        rewards: list[float] = []
        for chosen in actions if limit is None else actions[: limit - self._count]:
            self._last, gained, terminated, truncated, step_info = await step_env(chosen)
            self._count += 1
            played.append(chosen)
            self._remember(chosen)
            rewards.append(gained)
            info.update(step_info)
            effective |= bool(step_info.get("action_is_effective", True))
            if terminated or truncated:
                break
        if limit is not None:
            info["actions_left"] = limit - self._count
            truncated |= self._count >= limit and not terminated
        if reason:
            rewards.append(-abs(options.format_penalty))
            info["invalid_reason"] = reason
        info.update(actions=played, action_is_valid=not reason, action_is_effective=effective)
        if len(rewards) > 1:  # so that an episode's sum does not depend on how its actions are split into turns
            info[STEP_REWARDS] = rewards
        return self._described(info, over=terminated or truncated), exact_sum(rewards), terminated, truncated, info

    def _read(self, action: Any) -> tuple[Sequence[Any], str]:
        """The actions to play, or why there are none; anything but a text is an action as it is."""
        if not isinstance(action, str):
            return (action,), ""
        parsed = self.interface.parse(action)
        if not parsed.valid:
            return (), parsed.reason or "no valid action"
        return parsed.actions[: self._options.max_actions_per_turn], ""

    def _remember(self, action: Any) -> None:
        if self._played.maxlen:
            tell = getattr(self.interface, "tell", str)
            self._played.append(clip(tell(action), _LONGEST_ACTION))

    def _described(self, info: dict[str, Any], *, over: bool) -> Observation:
        shown = self.interface.describe(self._last)
        if not isinstance(shown, Observation):
            shown = Observation(text=shown, data=self._last)
        if self._played:
            text = f"{shown.text}\nYour last actions: {', '.join(self._played)}"
            shown = msgspec.structs.replace(shown, text=text)
        if hasattr(self.interface, "anchor"):
            shown = msgspec.structs.replace(shown, anchor=self.interface.anchor())
        if self._expert and not over:
            if not hasattr(self.interface, "solve"):
                raise UsageError(
                    "SolverPolicy (expert=True) needs a text interface with solve(), and this one has none"
                )
            info["expert"] = self.interface.solve()
        return shown


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """Those of the instance, in its dict and in slots."""
    yield from sorted(getattr(thing, "__dict__", {}).items())
    for kind in type(thing).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(thing, name) and name not in ("__dict__", "__weakref__"):
                yield f"{kind.__qualname__}.{name}", getattr(thing, name)
