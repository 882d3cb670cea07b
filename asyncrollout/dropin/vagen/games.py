"""VAGEN's Sokoban and FrozenLake: its rules, rewards and observations around the shipped environments."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrollout.dropin.vagen import prompts
from asyncrollout.dropin.vagen.replies import CURRENT, LEGACY, ReadReply, ReplyFormat, read_current, read_legacy
from asyncrollout.errors import EnvError, UsageError
from asyncrollout.images import IMAGE_MARK
from asyncrollout.registry import find_env, load_factory
from asyncrollout.text.replies import after_invalid

_SOKOBAN = ("Up", "Down", "Left", "Right")
_LAKE = ("Left", "Down", "Right", "Up")
_MAP = str.maketrans("SFHG", "P_OG")
_GOAL_BONUS = 9.0
_LONGEST_SHOWN = 100  # characters of a reply
_MAX_STEPS = 10**6  # VAGEN's lakes have no limit of their own
_NEXT_SEED = 1_000_003  # from one try to the next


class GameTurn(msgspec.Struct, frozen=True):
    """What a reset or a step shows: a text with a mark for each image, the images, and VAGEN's results."""

    text: str
    images: tuple[NDArray[np.uint8], ...]
    reward: float = 0.0
    done: bool = False
    info: dict[str, Any] = {}


class GridGame:
    """A grid world with VAGEN's replies, rewards and prompts; subclasses say how the two versions differ."""

    _forms: ClassVar[dict[str, ReplyFormat]]

    def __init__(self, config: Any) -> None:
        self.config = config
        self.total_reward = 0.0
        self._no_step = "call reset() before the first step()"
        self._is_lake = hasattr(config, "size")
        self._env, self._symbols = _made_env(config, is_lake=self._is_lake)
        names = _LAKE if self._is_lake else _SOKOBAN
        self._actions = {self._spelled(name): number for number, name in enumerate(names, start=1)}
        slippery = self._is_lake and (config.is_slippery or getattr(config, "slip_prob", 0) > 0)
        self._game = prompts.frozen_lake(slippery=slippery, won=self._symbols[-1]) if self._is_lake else prompts.SOKOBAN

    def reset(self, seed: int | None, member: int = 0) -> GameTurn:
        task = _drawn(self.config.desc) if self._is_lake and self.config.desc is not None else None
        self._no_step = "its last reset() failed: call reset() again"
        self._begin(seed, {"task": task, "member": member})
        self._no_step = ""
        self.total_reward = 0.0
        return self._shown(prompts.first_text, 0.0, done=False, info={})

    def step(self, reply: str) -> GameTurn:
        if self._no_step:
            raise UsageError(f"{'frozenlake' if self._is_lake else 'sokoban'} cannot step: {self._no_step}")
        read = self._read(str(reply))
        before, played = self._env.player, []
        reward, done, success, is_valid = 0.0, False, False, bool(read.actions) and self._may_play(read)
        reason = "" if is_valid else self._why_invalid(read)
        for name in read.actions:
            if name not in self._actions:
                is_valid, reason = False, f"not an action: {name[:_LONGEST_SHOWN]!r}"
                break
            _, gained, terminated, truncated, info = self._env.step(self._actions[name])
            played.append(name)
            success = bool(info["success"])
            reward += self._earned(float(gained), success=success)
            if done := bool(terminated or truncated):
                self._no_step = "the episode is over: call reset() before the next step()"
                break
        has_format = self._has_format_reward(read, played, is_valid=is_valid)
        reward += self.config.format_reward if has_format else 0.0
        self.total_reward += reward
        turn = {"action_is_valid": is_valid, "action_is_effective": self._env.player != before}
        metrics = {"turn_metrics": turn, "traj_metrics": {"success": success}}
        info = {**read.info, **self._more_info(has_format=has_format, success=success), "metrics": metrics}
        shown = reason if self.config.explain_invalid else ""
        return self._shown(
            lambda state: after_invalid(prompts.next_text(played, state), shown), reward, done=done, info=info
        )

    def _why_invalid(self, read: ReadReply) -> str:
        form = self._forms[self.config.prompt_format]
        return "its answer names no action" if read.format_correct else f"it is not in the form {form.shape}"

    def system_prompt(self) -> str:
        return f"{prompts.rules_text(self._game)}\n{self._format(example=True)}"

    def close(self) -> None:
        """There is nothing to release."""

    def _shown(self, describe: Any, reward: float, *, done: bool, info: Mapping[str, Any]) -> GameTurn:
        is_drawn = self.config.render_mode == "vision"
        shown = IMAGE_MARK if is_drawn else self._text()
        return GameTurn(self._observed(describe(shown)), (self.render(),) if is_drawn else (), reward, done, dict(info))

    def _text(self) -> str:
        rows = self._env.cells.tolist()
        return "\n".join("".join(self._cell(self._symbols[code]) for code in row) for row in rows)

    def render(self) -> NDArray[np.uint8]:
        picture: NDArray[np.uint8] = self._env.render()
        return picture

    def _begin(self, seed: int | None, options: Mapping[str, Any]) -> None:
        self._env.reset(seed=seed, options=options)

    def _spelled(self, name: str) -> str:
        return name

    def _cell(self, symbol: str) -> str:
        raise NotImplementedError

    def _observed(self, text: str) -> str:
        raise NotImplementedError

    def _read(self, reply: str) -> ReadReply:
        raise NotImplementedError

    def _may_play(self, read: ReadReply) -> bool:
        raise NotImplementedError

    def _earned(self, gained: float, *, success: bool) -> float:
        raise NotImplementedError

    def _has_format_reward(self, read: ReadReply, played: Sequence[str], *, is_valid: bool) -> bool:
        raise NotImplementedError

    def _more_info(self, *, has_format: bool, success: bool) -> dict[str, Any]:
        raise NotImplementedError

    def _format(self, *, example: bool) -> str:
        raise NotImplementedError


class LegacyGame(GridGame):
    """Of VAGEN's first version: the game's own rewards, a bonus at the goal, and the form of replies in each turn."""

    _forms = LEGACY

    def _cell(self, symbol: str) -> str:
        return f" {symbol} \t"

    def _observed(self, text: str) -> str:
        return f"{text}\n{self._format(example=False)}"

    def _read(self, reply: str) -> ReadReply:
        config = self.config
        form = self._forms[config.prompt_format]
        return read_legacy(reply, form, config.action_sep, config.max_actions_per_step, config.special_token_list)

    def _may_play(self, read: ReadReply) -> bool:  # noqa: ARG002
        return True

    def _earned(self, gained: float, *, success: bool) -> float:
        return gained + (_GOAL_BONUS if success and self._is_lake else 0.0)

    def _has_format_reward(self, read: ReadReply, played: Sequence[str], *, is_valid: bool) -> bool:  # noqa: ARG002
        return is_valid and read.format_correct

    def _more_info(self, *, has_format: bool, success: bool) -> dict[str, Any]:  # noqa: ARG002
        return {"is_format_rewarded": has_format}

    def _format(self, *, example: bool) -> str:
        config = self.config
        most, separator = config.max_actions_per_step, config.action_sep
        return prompts.legacy_format(self._game, config.prompt_format, most, separator, example=example)


class CurrentGame(GridGame):
    """Of VAGEN as it is: rewards for success and form alone, and the form of replies in the system prompt."""

    _forms = CURRENT

    def _begin(self, seed: int | None, options: Mapping[str, Any]) -> None:
        wanted = getattr(self.config, "min_solution_steps", None)
        if wanted is None:
            super()._begin(seed, options)
            return
        low, high = wanted
        depth = min(high, self.config.min_solution_bfs_max_depth)
        first = secrets.randbelow(_NEXT_SEED) if seed is None else seed
        for tries in range(self.config.reset_seed_max_tries):
            self._env.reset(seed=first + tries * _NEXT_SEED, options=options)
            length = solution_length(self._env, depth)
            if length is not None and low <= length:
                return
        raise EnvError(
            f"Sokoban: none of {self.config.reset_seed_max_tries} rooms has a solution of {low} to {high} steps: "
            "widen min_solution_steps, or raise reset_seed_max_tries"
        )

    def _spelled(self, name: str) -> str:
        return name.lower()

    def _cell(self, symbol: str) -> str:
        return f" {symbol} "

    def _observed(self, text: str) -> str:
        return f"{text}\n"

    def _read(self, reply: str) -> ReadReply:
        config = self.config
        return read_current(reply, self._forms[config.prompt_format], config.action_sep, config.max_actions_per_step)

    def _may_play(self, read: ReadReply) -> bool:
        return read.format_correct

    def _earned(self, gained: float, *, success: bool) -> float:  # noqa: ARG002
        return float(self.config.success_reward) if success else 0.0

    def _has_format_reward(self, read: ReadReply, played: Sequence[str], *, is_valid: bool) -> bool:  # noqa: ARG002
        return bool(played) and read.format_correct

    def _more_info(self, *, has_format: bool, success: bool) -> dict[str, Any]:  # noqa: ARG002
        return {"success": success}

    def _format(self, *, example: bool) -> str:
        config = self.config
        shown = example and config.use_example_in_sys_prompt
        most, separator = config.max_actions_per_step, config.action_sep
        return prompts.current_format(self._game, config.prompt_format, most, separator, example=shown)


def _made_env(config: Any, *, is_lake: bool) -> tuple[Any, str]:
    """The shipped env, with rooms that can be solved in an episode, and the symbols of its cells."""
    kwargs, symbols = _options(config, is_lake=is_lake)
    env = load_factory(find_env("frozen_lake" if is_lake else "sokoban").factory)(**kwargs)
    if not is_lake:
        env.limit_actions(env.max_steps)
    return env, symbols


def _options(config: Any, *, is_lake: bool) -> tuple[dict[str, Any], str]:
    """The shipped env's keyword arguments, and the symbols of its cells."""
    if not is_lake:
        room = tuple(config.dim_room)
        return {"dim_room": room, "num_boxes": config.num_boxes, "max_steps": config.max_steps}, "#_O√XPS"
    slips = getattr(config, "slip_prob", 0.0)
    options = {
        "size": config.size,
        "p": config.p,
        "max_steps": _MAX_STEPS,
        "is_slippery": config.is_slippery or slips > 0,
    }
    if slips:
        options["success_rate"] = 1 - slips
    return options, "P_OGXV" if hasattr(config, "slip_prob") else "P_OGX√"


def _drawn(desc: Sequence[str]) -> str:
    """A map of Gymnasium's letters in the shipped env's symbols."""
    rows = [str(row) for row in desc]
    if any(letter not in "SFHG" for row in rows for letter in row):
        raise UsageError(f"frozenlake: desc={rows!r:.200}: a map has the letters S, F, H and G")
    return "\n".join(row.translate(_MAP) for row in rows)


def solution_length(env: Any, most: int) -> int | None:
    """How many moves the shortest solution of a Sokoban has; None if it has more than `most`, or there is none."""
    board, states = env.room.board, {(env.player, env.boxes)}
    seen = set(states)
    for length in range(most + 1):
        if any(boxes == board.targets for _, boxes in states):
            return length
        states = {board.after(*state, action) for state in states for action in (1, 2, 3, 4)} - seen
        if not states:
            return None
        seen |= states
    return None


def solvable_seeds(config: Any, size: int, candidates: Iterable[int]) -> list[int]:
    """The first seeds whose rooms can be solved within `config.min_actions_to_succeed` moves."""
    env, _ = _made_env(config, is_lake=False)
    found: list[int] = []
    for seed in candidates:
        if len(found) == size:
            break
        env.reset(seed=seed)
        if solution_length(env, config.min_actions_to_succeed) is not None:
            found.append(seed)
    return found
