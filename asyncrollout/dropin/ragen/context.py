"""What a model is told of a history, what it asked for, and a batch of finished histories for the trainer."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout import rewards
from asyncrollout.agents.templates import ragen
from asyncrollout.dropin.ragen.collector import response_texts
from asyncrollout.dropin.ragen.data import DataProto, objects
from asyncrollout.dropin.ragen.settings import Mode, read_settings
from asyncrollout.dropin.ragen.states import Cache
from asyncrollout.dropin.ragen.tokens import (
    Message,
    TokenizedConversation,
    conversation_arrays,
    encode_conversation,
    prompt_arrays,
)
from asyncrollout.text.replies import find_answer
from asyncrollout.types import Outcome, exact_sum

_SYSTEM = "You're a helpful assistant. "
_FORMAT = "Always output: <think> your thoughts </think> <answer> your answer </answer>"


class ContextManager:
    """Between an `EnvStateManager` and a model; the tokenizer may be None for models that read `messages_list`.

    `instructions` has the rules of each environment by its id; the proxy fills it in after a reset. A tag's
    `env_instruction` in the config comes first.
    """

    def __init__(self, config: Any, tokenizer: Any = None, mode: Mode = "train") -> None:
        self._settings = read_settings(config)
        self.tokenizer = tokenizer
        self.mode = mode
        self.instructions: dict[int, str] = {}

    def get_lm_inputs(self, env_outputs: Sequence[Cache], prepare_for_update: bool = False) -> DataProto:
        """Prompts for the environments' next turns, or finished conversations to train on."""
        if prepare_for_update:
            return self.formulate_rollouts(env_outputs)
        messages = [self.messages(cache) for cache in env_outputs]
        width = self._settings.data.max_prompt_length
        arrays = {} if self.tokenizer is None else prompt_arrays(self.tokenizer, messages, width=width)
        return DataProto(arrays, _columns(env_outputs, messages))

    def get_env_inputs(self, lm_outputs: Any) -> list[dict[str, Any]]:
        """What each reply asks its environment for."""
        texts = response_texts(lm_outputs, self.tokenizer)
        env_ids = lm_outputs.non_tensor_batch["env_ids"]
        return [self._asked(int(env_id), text) for env_id, text in zip(env_ids, texts, strict=True)]

    def formulate_rollouts(self, env_outputs: Sequence[Cache]) -> DataProto:
        """A row for each environment. `rm_scores` are normalised as the config says, `original_rm_scores` are not.

        Scores stand at the last token of a reply; without a tokenizer, in as many columns as there are scores.
        """
        messages = [self.messages(cache, is_over=True) for cache in env_outputs]
        raw, normalized = self._scores(env_outputs)
        if self.tokenizer is None:
            arrays: dict[str, Any] = {"rm_scores": _in_columns(normalized), "original_rm_scores": _in_columns(raw)}
        else:
            encoded = [encode_conversation(self.tokenizer, conversation) for conversation in messages]
            arrays = {
                **conversation_arrays(self.tokenizer, encoded),
                "rm_scores": _at_ends(encoded, normalized),
                "original_rm_scores": _at_ends(encoded, raw),
            }
        return DataProto(arrays, _columns(env_outputs, messages), {"metrics": _mean_metrics(env_outputs)})

    def messages(self, cache: Cache, *, is_over: bool = False) -> list[Message]:
        """States and rewards from the environment, and the replies; of an episode that is over, to the last reply."""
        custom = self._settings.custom_envs.get(cache["tag"])
        rules = (custom.env_instruction if custom else "") or self.instructions.get(cache["env_id"], "")
        messages: list[Message] = [{"role": "system", "content": _SYSTEM}]
        reward = 0.0
        for turn, item in enumerate(item for item in cache["history"] if not is_over or "llm_response" in item):
            outcome = Outcome(item["state"], reward, info={"actions_left": item["actions_left"]})
            parts = [rules] if rules and not turn else []
            parts += [ragen(turn, item["state"], outcome), _FORMAT]
            messages.append({"role": "user", "content": "\n\n".join(parts)})
            if "llm_response" in item:
                messages.append({"role": "assistant", "content": item["llm_response"]})
            reward = item.get("reward", 0.0)
        return messages

    def _asked(self, env_id: int, text: str) -> dict[str, Any]:
        """The actions of a reply, of which only an answer in tags counts; and the reply with just these."""
        talk, answer = self._settings.agent_proxy, find_answer(text)
        asked = {"env_id": env_id, "llm_raw_response": text, "llm_response": text, "actions": []}
        if not answer.tagged:
            return asked
        parts = [part.strip() for part in answer.text.split(talk.action_sep)]
        actions = [part for part in parts if part][: talk.max_actions_per_turn]
        thought = text.rpartition("</think>")[0].rpartition("<think>")[2]
        reply = f"<think>{thought}</think><answer>{f' {talk.action_sep} '.join(actions)}</answer>"
        return {**asked, "llm_response": reply, "actions": actions}

    def _scores(self, env_outputs: Sequence[Cache]) -> tuple[list[list[float]], list[list[float]]]:
        """Of each environment, raw and normalised: one score, or with `use_turn_scores` one for each turn."""
        turns = [[turn["reward"] for turn in cache["history"] if "reward" in turn] for cache in env_outputs]
        penalties = [cache["penalty"] for cache in env_outputs]
        if self._settings.agent_proxy.use_turn_scores:
            scores = [
                [*gained[:-1], gained[-1] + penalty] if gained else []
                for gained, penalty in zip(turns, penalties, strict=True)
            ]
            return scores, scores
        rule = self._settings.agent_proxy.reward_normalization
        totals = [_total(cache) for cache in env_outputs]
        normalized = rewards.normalize(
            totals,
            penalties=penalties,
            groups=[cache["group_id"] for cache in env_outputs],
            tags=[cache["tag"] for cache in env_outputs],
            grouping=rule.grouping,
            method=rule.method,
            valid=[not _failed(cache) for cache in env_outputs],
        )
        raw = [[total + penalty] for total, penalty in zip(totals, penalties, strict=True)]
        return raw, [[float(score)] for score in normalized]


def _total(cache: Cache) -> float:
    """The exact sum over single actions: equal for equal ones, however they were split into turns."""
    earned = [turn["reward"] for turn in cache["history"] if "reward" in turn]
    return exact_sum(part for reward in earned for part in getattr(reward, "parts", ()) or (reward,))


def _columns(env_outputs: Sequence[Cache], messages: list[list[Message]]) -> dict[str, NDArray[Any]]:
    return {
        "env_ids": objects([cache["env_id"] for cache in env_outputs]),
        "group_ids": objects([cache["group_id"] for cache in env_outputs]),
        "messages_list": objects(messages),
    }


def _failed(cache: Mapping[str, Any]) -> bool:
    return any("error" in turn.get("info", {}) for turn in cache["history"])


def _in_columns(scores: list[list[float]]) -> NDArray[np.float64]:
    placed = np.zeros((len(scores), max(map(len, scores), default=0)))
    for row, values in enumerate(scores):
        placed[row, : len(values)] = values
    return placed


def _at_ends(conversations: list[TokenizedConversation], scores: list[list[float]]) -> NDArray[np.float64]:
    """Aligned with `responses`, which begin at the second token of rows that are padded on the left."""
    width = max(len(one.ids) for one in conversations)
    placed = np.zeros((len(conversations), width))
    for row, (one, values) in enumerate(zip(conversations, scores, strict=True)):
        for end, value in zip(one.ends[-len(values) :] if values else [], values, strict=False):
            placed[row, width - len(one.ids) + end] = value
    return placed[:, 1:]


def _mean_metrics(env_outputs: Sequence[Cache]) -> dict[str, float]:
    """Each metric's mean over the environments of its tag; one that an environment does not tell counts as 0."""
    sums: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for cache in env_outputs:
        counts[cache["tag"]] += 1
        for key, value in cache.get("metrics", {}).items():
            sums[key] += value
    return {key: total / counts[key.rpartition("/")[0]] for key, total in sums.items()}
