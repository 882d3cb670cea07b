"""From histories to prompts, from replies to actions, and from finished histories to a training batch."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrollout.dropin.configs import lookup
from asyncrollout.dropin.ragen import alfworld, scores
from asyncrollout.dropin.ragen.collapse import collapse_columns
from asyncrollout.dropin.ragen.collector import response_texts
from asyncrollout.dropin.ragen.conversation import ConversationWriter, Turn, drop_oldest, shorten
from asyncrollout.dropin.ragen.data import DataProto, objects
from asyncrollout.dropin.ragen.prompts import DEFAULT, PromptTemplates, write_rules
from asyncrollout.dropin.ragen.replies import ReplyReader
from asyncrollout.dropin.ragen.settings import Mode, read_plans, read_settings
from asyncrollout.dropin.ragen.states import Cache
from asyncrollout.dropin.ragen.tensors import as_trainers
from asyncrollout.dropin.ragen.tokens import (
    Learned,
    Message,
    conversation_arrays,
    count_tokens,
    encode_conversation,
    prompt_arrays,
)
from asyncrollout.errors import UsageError

logger = logging.getLogger(__name__)


class ConversationRow(msgspec.Struct, frozen=True):
    """A row of a training batch: a conversation of the episode with this number."""

    episode: int
    messages: list[Message]


class ContextManager:
    """Between an `EnvStateManager` and a model; the tokenizer may be None for models that read `messages_list`.

    `templates` are the texts around states. `prefix_lookup` has the rules of each environment by its id, as the config
    says. A tag without `env_instruction` has those of `instructions`, which the proxy fills in after a reset.
    Batches are verl's own, with tensors, in a program that has loaded verl.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any = None,
        processor: Any = None,
        mode: Mode = "train",
        *,
        templates: PromptTemplates = DEFAULT,
    ) -> None:
        self._settings = settings = read_settings(config)
        talk = settings.agent_proxy
        self.config = config
        self.tokenizer = tokenizer
        self.processor = processor
        self.mode = mode
        self.action_sep = talk.action_sep
        self.es_cfg = lookup(lookup(config, "es_manager"), mode)
        self.templates = templates
        self.instructions: dict[int, str] = {}
        self.env_nums: dict[str, int] = {}
        self.prefix_lookup: dict[int, str] = {}
        self.env_config_lookup: dict[int | str, dict[str, Any]] = {}
        self._uninstructed: set[int] = set()
        self._writer = ConversationWriter(templates, talk.enable_think)
        self._reader = ReplyReader(talk.action_sep, talk.max_actions_per_turn, talk.enable_think)
        self._fill_lookups()
        if talk.use_turn_scores and self._has_row_per_turn:
            raise UsageError(
                "config: agent_proxy.use_turn_scores needs a row for each episode, and context_window_mode="
                f"{talk.context_window_mode!r} makes one for each turn: set one of them"
            )
        if talk.context_window_mode == "full" and (talk.max_context_window or -1) > 0:
            window = talk.max_context_window
            logger.warning("agent_proxy.max_context_window=%s has no effect with context_window_mode 'full'", window)

    def get_lm_inputs(
        self, env_outputs: Sequence[Cache], prepare_for_update: bool = False, include_collapse_data: bool = True
    ) -> Any:
        """Prompts for the environments' next turns, or finished conversations to train on."""
        if prepare_for_update:
            return self.formulate_rollouts(env_outputs, include_collapse_data=include_collapse_data)
        messages = [self.messages(cache) for cache in env_outputs]
        width, prefill = self._settings.data.max_prompt_length, self._writer.prefill
        arrays: dict[str, Any] = {}
        if self.tokenizer is not None:
            arrays = prompt_arrays(self.tokenizer, messages, width=width, prefill=prefill)
        return as_trainers(DataProto(arrays, _columns(env_outputs, messages)))

    def get_env_inputs(self, lm_outputs: Any) -> list[dict[str, Any]]:
        """What each reply asks its environment for; it continues the `<think>` or `<answer>` that prompts end with."""
        inputs = []
        texts = response_texts(lm_outputs, self.tokenizer)
        for env_id, text in zip(lm_outputs.non_tensor_batch["env_ids"], texts, strict=True):
            raw = self._reader.complete(text)
            reply, actions = self._parse_response(raw)
            inputs.append({"env_id": int(env_id), "llm_raw_response": raw, "llm_response": reply, "actions": actions})
        return inputs

    def formulate_rollouts(self, env_outputs: Sequence[Cache], include_collapse_data: bool = True) -> Any:
        """A row for each environment, or for each turn, as `agent_proxy.context_window_mode` says.

        `rm_scores` are normalised as the config says, `original_rm_scores` are not. Scores stand at the last token of a
        reply; without a tokenizer, in as many columns as there are scores.
        """
        histories = [self._extract_history(cache, prepare_for_update=True) for cache in env_outputs]
        samples = self._samples(env_outputs, histories)
        raw, normalized = self._scores(env_outputs, samples)
        metrics = scores.mean_metrics(env_outputs)
        arrays: dict[str, Any]
        if self.tokenizer is None:
            arrays = {"rm_scores": scores.in_columns(normalized), "original_rm_scores": scores.in_columns(raw)}
        else:
            learned: Learned = "last" if self._has_row_per_turn else "replies"
            if learned == "replies" and not self._settings.enable_response_mask:
                learned = "all"
            encoded = [encode_conversation(self.tokenizer, sample.messages, learned) for sample in samples]
            arrays = {
                **conversation_arrays(self.tokenizer, encoded),
                "rm_scores": scores.at_ends(encoded, normalized),
                "original_rm_scores": scores.at_ends(encoded, raw),
            }
            metrics["response_length"] = float(np.mean([sum(one.spoken) for one in encoded])) if encoded else 0.0
        rows = [env_outputs[sample.episode] for sample in samples]
        columns = _columns(rows, [sample.messages for sample in samples])
        columns |= self._more_columns(rows, samples)
        if include_collapse_data and self.tokenizer is not None and not self._has_row_per_turn:
            asked = self._settings.collapse_detection
            columns |= collapse_columns(
                self.tokenizer,
                [self._turn_prompts(cache, history) for cache, history in zip(env_outputs, histories, strict=True)],
                first=asked.first_turn_enabled,
                every=asked.multi_turn_enabled,
            )
        return as_trainers(DataProto(arrays, columns, {"metrics": metrics}))

    def messages(self, cache: Cache, *, is_over: bool = False) -> list[Message]:
        """The conversation as far as the context window reaches; of an episode that is over, to the last reply."""
        return self._window(cache, self._extract_history(cache, prepare_for_update=is_over))

    def reset_memory_managers(self) -> None:
        """Histories are read from the caches: there is nothing to reset."""

    def _parse_response(self, response: str) -> tuple[str, list[str]]:
        """The reply with just the actions that count, and these actions."""
        return self._reader.read(response)

    def _extract_history(self, env_output: Mapping[str, Any], prepare_for_update: bool) -> list[Turn]:
        """The turns; to train on, without those that have no reply."""
        history = env_output["history"]
        return [turn for turn in history if not prepare_for_update or "llm_response" in turn]

    def _normalize_episode_rewards(
        self, env_outputs: Sequence[Cache], episode_raw_rewards: Sequence[float], episode_penalties: Sequence[float]
    ) -> NDArray[np.float64]:
        rule = self._settings.agent_proxy
        return scores.normalized_scores(env_outputs, episode_raw_rewards, episode_penalties, rule)

    def _apply_max_length(self, messages: list[Message], add_generation_prompt: bool = False) -> list[Message]:
        """Without the oldest turns, if all of them are more than `max_model_len` tokens."""
        prefill = self._writer.prefill if add_generation_prompt else ""
        while not self._fits(messages, prefill) and (shorter := drop_oldest(messages)) is not messages:
            messages = shorter
        return messages

    @property
    def _has_row_per_turn(self) -> bool:
        return self._settings.agent_proxy.context_window_mode in ("single_turn", "limited_multi_turn")

    def _fill_lookups(self) -> None:
        settings, group_size = self._settings, self._settings.part(self.mode).group_size
        for env_id, plan in enumerate(read_plans(settings, self.mode)):
            if plan.tag not in self.env_config_lookup:
                custom = settings.custom_env(plan.tag, f"es_manager.{self.mode}.env_configs.tags")
                length = custom.max_tokens or settings.actor_rollout_ref.rollout.response_length
                self.env_config_lookup[plan.tag] = {"max_tokens": length, "env_type": custom.env_type}
                rules = write_rules(plan.tag, custom, self.action_sep, self.templates)
                is_instructed = custom.env_instruction is not None
                if custom.option("render_mode") == "rgb_array":
                    logger.warning(
                        "custom_envs.%s: its states are pictures, and prompts have none, as in RAGEN: a model reads "
                        "'<images>' in their place",
                        plan.tag,
                    )
            if env_id % group_size == 0:
                self.env_nums[plan.tag] = self.env_nums.get(plan.tag, 0) + group_size
            self.prefix_lookup[env_id] = rules
            self.env_config_lookup[env_id] = self.env_config_lookup[plan.tag]
            self._uninstructed |= set() if is_instructed else {env_id}

    def _rules(self, env_id: int) -> str:
        own = self.instructions.get(env_id) if env_id in self._uninstructed else None
        return own or self.prefix_lookup.get(env_id, "")

    def _samples(self, caches: Sequence[Cache], histories: Sequence[list[Turn]]) -> list[ConversationRow]:
        samples = []
        for episode, (cache, history) in enumerate(zip(caches, histories, strict=True)):
            ends = range(1, len(history) + 1) if self._has_row_per_turn else [len(history)]
            samples += [ConversationRow(episode, self._window(cache, history[:end])) for end in ends]
        return samples

    def _window(self, cache: Cache, history: list[Turn]) -> list[Message]:
        """The last turns of a history, as many as the context window and the model's length allow."""
        talk = self._settings.agent_proxy
        rules, env_id = self._rules(cache["env_id"]), cache["env_id"]
        known = self.env_config_lookup.get(env_id, {})
        length, write = known.get("max_tokens"), self._writer.write
        if talk.context_window_mode == "single_turn":
            is_alfworld = str(known.get("env_type")).lower() == alfworld.ENV_TYPE
            write = self._writer.write_alfworld if is_alfworld else self._writer.write_single
        first = 0 if talk.window is None else max(0, len(history) - talk.window)
        return shorten(
            lambda start: write(rules, history, start, length),
            range(first, max(len(history), first + 1)),
            lambda messages: self._fits(messages, self._writer.prefill),
        )

    def _fits(self, messages: list[Message], prefill: str) -> bool:
        """June's RAGEN, which has no `context_window_mode`, never shortens a conversation."""
        limit = self._settings.actor_rollout_ref.rollout.max_model_len
        if limit is None or self.tokenizer is None or self._settings.agent_proxy.context_window_mode is None:
            return True
        return count_tokens(self.tokenizer, messages, prefill) <= limit

    def _scores(
        self, caches: Sequence[Cache], samples: Sequence[ConversationRow]
    ) -> tuple[scores.Scores, scores.Scores]:
        """Of each row, raw and normalised: one score, or with `use_turn_scores` one for each turn."""
        talk = self._settings.agent_proxy
        if talk.use_turn_scores:
            turns = scores.turn_scores(caches)
            return turns, turns
        raw, normalized = scores.episode_scores(caches, talk)
        episodes = [sample.episode for sample in samples]
        return [[float(raw[episode])] for episode in episodes], [[float(normalized[episode])] for episode in episodes]

    def _more_columns(self, rows: Sequence[Cache], samples: Sequence[ConversationRow]) -> dict[str, NDArray[Any]]:
        columns: dict[str, NDArray[Any]] = {}
        if self._has_row_per_turn:
            columns["episode_ids"] = np.array([sample.episode for sample in samples], dtype=np.int64)
            columns["uid"] = objects([cache.get("uid", cache["env_id"]) for cache in rows])
        if self.mode == "val":
            columns["history"] = objects([cache["history"] for cache in rows])
            columns["metrics"] = objects([cache.get("metrics", {}) for cache in rows])
        return columns

    def _turn_prompts(self, cache: Cache, history: Sequence[Turn]) -> list[tuple[str, str]]:
        """Of each turn, the prompt as text, and the thoughts of the reply."""
        found = []
        for end in range(1, len(history) + 1):
            present = {key: value for key, value in history[end - 1].items() if key != "llm_response"}
            messages = self._window(cache, [*history[: end - 1], present])
            prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            found.append((prompt + self._writer.prefill, self._reader.thought(history[end - 1]["llm_response"])))
        return found


def _columns(env_outputs: Sequence[Cache], messages: list[list[Message]]) -> dict[str, NDArray[Any]]:
    return {
        "env_ids": np.array([cache["env_id"] for cache in env_outputs], dtype=np.int64),
        "group_ids": np.array([cache["group_id"] for cache in env_outputs], dtype=np.int64),
        "messages_list": objects(messages),
    }
