"""A RAGEN environment where it lives, in a worker or on the loop: one call of ours is one of its steps, or a turn."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from asyncrollout.types import STEP_REWARDS, exact_sum

_BETWEEN = "\x1f"
_LONGEST_SHOWN = 100  # characters of a reply


def joined(actions: Sequence[str]) -> str | list[str]:
    """The actions of a turn as one text, the cheapest to send; as a list if one has the mark between them in it."""
    return [*map(str, actions)] if any(_BETWEEN in action for action in actions) else _BETWEEN.join(actions)


def _parted(turn: str | list[str]) -> list[str]:
    if isinstance(turn, list):
        return turn
    return turn.split(_BETWEEN) if turn else []


class StepEnv:
    """Plays one action at a time. Observations are states; infos have the environment's own, and what it offers."""

    plays_by_chance = True  # so that `reset` receives the number of the member in its group

    def __init__(
        self,
        *,
        make_env: Callable[[Any], Any],
        make_config: Callable[..., Any],
        config: Mapping[str, Any],
        mode: str = "train",
        max_actions: int | None = None,
    ) -> None:
        self._env = make_env(make_config(**config))
        self._reset_takes = _taken(self._env.reset, ("mode", "member"))
        self._mode = mode
        self._max_actions = max_actions
        self._count = 0
        self._shown: Any = ""
        self._names: dict[Any, str] = {}  # the table that `_actions` were made from
        self._actions: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        more = {"mode": self._mode, "member": (options or {}).get("member", 0)}
        result = self._env.reset(seed=seed, **{name: more[name] for name in self._reset_takes})
        self._count = 0
        has_info = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        self._shown, info = result if has_info else (result, {})
        return self._state(), {"env_info": info, **self._facts()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = self._known([action]) if isinstance(action, str) else [action]
        reward, done, info = self._play(chosen[0] if chosen else action)
        return self._state(), reward, done, self._is_cut_off and not done, {"env_info": info, **self._facts()}

    def render(self) -> Any:
        """A picture, if the env can draw one."""
        return self._env.render(mode="rgb_array")

    def close(self) -> None:
        close = getattr(self._env, "close", None)
        if callable(close):
            close()

    @property
    def _is_cut_off(self) -> bool:
        return self._max_actions is not None and self._count >= self._max_actions

    def _play(self, action: Any) -> tuple[float, bool, dict[str, Any]]:
        """RAGEN's four values, or Gymnasium's five; ours need not describe states that nobody sees."""
        self._count += 1
        if (play := getattr(self._env, "play_undescribed", None)) is not None:
            reward, done, info = play(action)
            return reward, done, info
        self._shown, reward, *ends, info = self._env.step(action)
        return float(reward), any(ends), dict(info)

    def _known(self, words: list[str]) -> list[Any]:
        """Actions by their names, or numbers, in any case; others are left out. Without a table, words are actions."""
        names = getattr(getattr(self._env, "config", None), "action_lookup", None)
        if names is None:
            return words
        if names != self._names:
            self._names = dict(names)
            numbers = {str(action): action for action in names}
            self._actions = numbers | {name.lower(): action for action, name in names.items()}
        plain = [word.strip().lower() for word in words]
        return [self._actions[word] for word in plain if word in self._actions]

    def _why_invalid(self, asked: list[str]) -> str:
        unknown = [word for word in asked if not self._known([word])]
        return f"not an action: {unknown[0][:_LONGEST_SHOWN]!r}" if unknown else "it names no action in <answer> tags"

    def _state(self) -> Any:
        render = getattr(self._env, "render", None)
        return render() if callable(render) else self._shown

    def _facts(self) -> dict[str, Any]:
        """What goes with a state: the actions it offers, and the names of actions, if they have any."""
        offered = getattr(self._env, "get_all_actions", None)
        names = getattr(getattr(self._env, "config", None), "action_lookup", None)
        return {"available": list(offered()) if callable(offered) else [], "names": dict(names or {})}


class TurnEnv(StepEnv):
    """Plays a turn, which is actions in words. Infos also hold what was played, and whether all words were known."""

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        state, info = super().reset(seed=seed, options=options)
        instruction = getattr(self._env, "instruction", None)
        return state, {**info, "instruction": instruction() if callable(instruction) else ""}

    def step(self, action: str | list[str]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        asked = _parted(action)
        known = self._known(asked)
        left = len(known) if self._max_actions is None else self._max_actions - self._count
        rewards: list[float] = []
        done, info, played = False, {}, []
        for chosen in known[:left]:
            reward, done, step_info = self._play(chosen)
            rewards.append(reward)
            info.update(step_info)
            played.append(chosen)
            if done:
                break
        is_valid = bool(known) and len(known) == len(asked)
        facts = {"env_info": info, "played": played, "is_valid": is_valid}
        if not is_valid:
            facts["invalid_reason"] = self._why_invalid(asked)
        if len(rewards) > 1:
            facts[STEP_REWARDS] = rewards
        return self._state(), exact_sum(rewards), done, self._is_cut_off and not done, facts


def _taken(function: Callable[..., Any], names: Iterable[str]) -> list[str]:
    """Those of the arguments that a function takes by name."""
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return [name for name in names if takes_all or name in parameters]
