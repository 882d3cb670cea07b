"""Between a training loop and its environments: replies become actions, observations become prompts with a history."""

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.dropin.ragen.container import SynchronousContainer
from asyncrollout.errors import UsageError
from asyncrollout.pool.wire.failure import clip
from asyncrollout.text.projections import Projection
from asyncrollout.text.replies import after_invalid, read_choice, why_unread
from asyncrollout.types import TextOptions

Observations = dict[str, Any]
Stepped = tuple[Observations, NDArray[np.float64], NDArray[np.bool_], list[dict[str, Any]]]

_LONGEST_REMEMBERED = 100  # characters of an observation in the history
_ONE_ACTION = TextOptions(max_actions_per_turn=1)


class EnvironmentManagerBase:
    """For any environment. `reset` and `step` give `{"text", "image", "anchor"}`; the anchor is the bare observation.

    A prompt shows the last `history_length` observations and actions, and no more of them are kept. With
    `explain_invalid`, which is not verl-agent's, it begins with the reason why the last reply was invalid, which is in
    the info, too.
    """

    explain_invalid = False
    task = "Choose the action that serves you best."
    hint = "your action"

    def __init__(
        self, envs: SynchronousContainer, projection_f: Projection, env_name: str, *, history_length: int = 2
    ) -> None:
        self.envs = envs
        self.projection_f = projection_f
        self.env_name = env_name
        self.history_length = history_length
        self.buffers: list[deque[dict[str, Any]]] = []
        self._seen: list[Any] = []
        self._reasons: list[str] = []

    def reset(self, kwargs: Any = None) -> tuple[Observations, list[dict[str, Any]]]:
        """New episodes in all environments. `kwargs` are those of verl-agent's rows, which no environment here has."""
        if kwargs is not None and any(kwargs):
            raise UsageError(f"{self.env_name}: env_kwargs are for verl-agent's search environment; remove them")
        self._seen, infos = self.envs.reset()
        self.buffers = [deque(maxlen=self.history_length) for _ in self._seen]
        self._reasons = [""] * len(self._seen)
        self._steps = 0
        return self._observations(), infos

    def step(self, text_actions: Sequence[str | None]) -> Stepped:
        """Play what replies ask for; None leaves an environment alone. Each info has `is_action_valid`."""
        actions, valids = self.project(text_actions)
        names = self.envs.get_action_names()
        before, (self._seen, rewards, dones, infos) = self._seen, self.envs.step(actions)
        self._steps += 1
        for index, action in enumerate(actions):
            if action is not None:
                chosen = _name(action, names[index])
                self.buffers[index].append({"observation": before[index], "action": chosen, "step": self._steps})
            infos[index]["is_action_valid"] = valids[index]
        if self.explain_invalid:
            self._explain(text_actions, valids, infos)
        return self._observations(), np.array(rewards, dtype=np.float64), np.array(dones, dtype=bool), infos

    def project(self, text_actions: Sequence[str | None]) -> tuple[list[Any], list[bool]]:
        """Actions and whether they could be read; an unreadable reply is the default action.

        Where an environment names its actions, and the projection gives words, these are read by the names. Then the
        default is the first of them.
        """
        if len(text_actions) != self.envs.num_processes:
            raise UsageError(f"{len(text_actions)} replies for {self.envs.num_processes} environments: give one each")
        said = [text for text in text_actions if text is not None]
        actions, valids = map(list, self.projection_f(said))
        if not len(actions) == len(valids) == len(said):
            raise UsageError(
                f"the projection of {self.env_name!r} gave {len(actions)} actions and {len(valids)} marks of validity "
                f"for {len(said)} replies: one of each is needed"
            )
        found = iter(zip(actions, valids, strict=True))
        pairs = [(None, True) if text is None else next(found) for text in text_actions]
        for index, names in enumerate(self.envs.get_action_names()):
            action, is_valid = pairs[index]
            if names and isinstance(action, str):
                pairs[index] = _read_by_name(str(text_actions[index]), action, is_valid, names)
        return [action for action, _ in pairs], [bool(valid) for _, valid in pairs]

    def prompt(self, observation: Any, history: Sequence[Mapping[str, Any]], available: Sequence[Any]) -> str:
        """What a model reads of one environment."""
        parts = [self.task]
        if history:
            parts.append("\n".join(["What happened last:", *map(_remembered, history)]))
        parts.append(f"Now you see:\n{observation}")
        if available:
            parts.append(f"You can choose: {', '.join(map(str, available))}")
        parts.append(f"Reply with <think> your reasoning </think><action> {self.hint} </action>")
        return "\n\n".join(parts)

    def why_invalid(self, reply: str) -> str:
        """Of a reply that could not be read, in words that follow "Your last reply was invalid:"."""
        return why_unread(reply)

    def success_evaluator(
        self, *, total_infos: Sequence[Sequence[Mapping[str, Any]]], **_: Any
    ) -> dict[str, NDArray[np.float64]]:
        """Whether each episode ended in success, by the last info that says so; after its end, infos do not."""
        return {"success_rate": np.array([float(last_of("success", infos, default=False)) for infos in total_infos])}

    def close(self) -> None:
        self.envs.close()

    def _observations(self) -> Observations:
        available = self.envs.get_available_actions()
        texts = [
            after_invalid(self._prompt_of(index, seen, self.buffers[index], available[index]), self._reasons[index])
            for index, seen in enumerate(self._seen)
        ]
        pictures = [None if isinstance(seen, str) else seen for seen in self._seen]
        has_pictures = any(picture is not None for picture in pictures)
        return {"text": texts, "image": pictures if has_pictures else None, "anchor": list(self._seen)}

    def _explain(self, replies: Sequence[str | None], valids: Sequence[bool], infos: Sequence[dict[str, Any]]) -> None:
        """Of environments that are left alone, the reason stays."""
        for index, (reply, is_valid) in enumerate(zip(replies, valids, strict=True)):
            if reply is not None:
                self._reasons[index] = "" if is_valid else self._why_invalid_of(index, reply)
            if self._reasons[index]:
                infos[index]["invalid_reason"] = self._reasons[index]

    def _why_invalid_of(self, index: int, reply: str) -> str:  # noqa: ARG002
        return self.why_invalid(reply)

    def _prompt_of(self, index: int, seen: Any, history: Sequence[Mapping[str, Any]], available: Sequence[Any]) -> str:  # noqa: ARG002
        return self.prompt(seen if isinstance(seen, str) else "<image>", history, available)


class SokobanEnvironmentManager(EnvironmentManagerBase):
    task = (
        "You are playing Sokoban: push every box onto a target. "
        "# wall, _ floor, O target, X box, √ box on a target, P you, S you on a target."
    )
    hint = "up"


class FrozenLakeEnvironmentManager(EnvironmentManagerBase):
    task = (
        "You are crossing a frozen lake to the goal. P you, _ ice, O hole, G goal, X you in a hole, √ you on the goal."
    )
    hint = "right"


class BanditEnvironmentManager(EnvironmentManagerBase):
    task = "You are at a machine with several arms. Choose the one that pays more in the mean, by its name or number."
    hint = "1"

    def project(self, text_actions: Sequence[str | None]) -> tuple[list[Any], list[bool]]:
        """An arm that this episode does not have is not an action."""
        actions, valids = super().project(text_actions)
        for index, arms in enumerate(self.envs.get_action_names()):
            if actions[index] is not None and actions[index] not in arms:
                actions[index], valids[index] = 1, False
        return actions, valids


class CountdownEnvironmentManager(EnvironmentManagerBase):
    task = "You are playing Countdown: reach the target with + - * / and parentheses, each number used exactly once."
    hint = "(5 * 3) + 9"


class MetaMathQAEnvironmentManager(EnvironmentManagerBase):
    task = "Answer this mathematical question. If an answer was wrong, think again."
    hint = "42"


class WebShopEnvironmentManager(EnvironmentManagerBase):
    task = "You are shopping online: find what the instruction asks for, choose its options, and buy it."
    hint = "search[red shoes]"


class MixedEnvironmentManager(EnvironmentManagerBase):
    """Environments of several tags side by side; `managers` has the one that knows each of them, by index."""

    def __init__(self, envs: SynchronousContainer, managers: Sequence[EnvironmentManagerBase], env_name: str) -> None:
        super().__init__(envs, managers[0].projection_f, env_name)
        self._managers = managers

    def project(self, text_actions: Sequence[str | None]) -> tuple[list[Any], list[bool]]:
        projected: dict[int, tuple[list[Any], list[bool]]] = {}
        for manager in self._managers:
            if id(manager) not in projected:
                own = [text if self._managers[index] is manager else None for index, text in enumerate(text_actions)]
                projected[id(manager)] = manager.project(own)
        found = [projected[id(manager)] for manager in self._managers]
        return [actions[index] for index, (actions, _) in enumerate(found)], [
            valids[index] for index, (_, valids) in enumerate(found)
        ]

    def _prompt_of(self, index: int, seen: Any, history: Sequence[Mapping[str, Any]], available: Sequence[Any]) -> str:
        return self._managers[index]._prompt_of(index, seen, history, available)  # noqa: SLF001

    def _why_invalid_of(self, index: int, reply: str) -> str:
        return self._managers[index].why_invalid(reply)


REGISTERED_MANAGERS: dict[str, Callable[..., EnvironmentManagerBase]] = {
    "sokoban": SokobanEnvironmentManager,
    "frozen_lake": FrozenLakeEnvironmentManager,
    "bandit": BanditEnvironmentManager,
    "countdown": CountdownEnvironmentManager,
    "metamathqa": MetaMathQAEnvironmentManager,
    "webshop": WebShopEnvironmentManager,
}
"""Env types and their managers; a type without one has `EnvironmentManagerBase`."""


def last_of(key: str, infos: Sequence[Mapping[str, Any]], *, default: Any) -> Any:
    """The value in the last info that has the key."""
    return next((info[key] for info in reversed(infos) if key in info), default)


def _read_by_name(reply: str, action: str, is_valid: bool, names: Mapping[Any, str]) -> tuple[Any, bool]:
    """The action that a projection's words name, or else a reply; without one, the default."""
    choices = {str(number): number for number in names} | {name.lower(): number for number, name in names.items()}
    plain = " ".join(action.split()).lower()
    if plain in choices:
        return choices[plain], is_valid
    parsed = read_choice(reply, _ONE_ACTION, choices)
    return (parsed.actions[0], True) if parsed.valid else (next(iter(names)), False)


def _name(action: Any, names: Mapping[Any, str]) -> Any:
    return names.get(action, action) if isinstance(action, Hashable) else action


def _remembered(step: Mapping[str, Any]) -> str:
    seen = clip(step["observation"], _LONGEST_REMEMBERED) if isinstance(step["observation"], str) else "<image>"
    return f"Step {step['step']}: you saw {seen} and chose {step['action']}"
