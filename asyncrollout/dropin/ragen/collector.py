"""The loop between a model and its environments, turn by turn, until all episodes end; with dynamic sampling, again."""

import logging
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from asyncrollout.dropin.ragen.collected import CollectedEpisode, gather
from asyncrollout.dropin.ragen.collector_settings import read_collector_settings
from asyncrollout.dropin.ragen.data import (
    DataProto,
    from_any,
    merged,
    objects,
    pad_dataproto_to_divisor,
    unpad_dataproto,
)
from asyncrollout.dropin.ragen.managers import EnvironmentManagerBase, Observations
from asyncrollout.dropin.ragen.tensors import is_verls, to_verl
from asyncrollout.dropin.ragen.tokens import encode_prompts, row_arrays
from asyncrollout.dropin.ragen.vision import picture_columns
from asyncrollout.errors import ExhaustedError, UsageError
from asyncrollout.filters import varies

logger = logging.getLogger(__name__)

_FOR_VERL = ("raw_prompt_ids", "raw_prompt", "multi_modal_data")
"""The columns of objects that verl's rollout workers read."""


class TrajectoryCollector:
    """`config` is RAGEN's or verl-agent's; the tokenizer may be None for models that read `messages_list`.

    Environments that are done are neither prompted nor stepped again. Dynamic sampling gives exactly the groups asked
    for (`data.train_batch_size`, or one from each of the environments' groups); surplus groups come first next time.

    With a `gen_batch` of verl's own class, the model is given verl's, with tensors, and so is the caller. Prompts are
    padded to a multiple of the model's `world_size`, if it has one.
    """

    def __init__(self, config: Any, tokenizer: Any = None, processor: Any = None) -> None:
        self._settings = read_collector_settings(config)
        self.config = config
        self.tokenizer = tokenizer
        self.processor = processor
        self.carried: list[list[CollectedEpisode]] = []

    def multi_turn_loop(
        self, gen_batch: Any, actor_rollout_wg: Any, envs: EnvironmentManagerBase, is_train: bool = True
    ) -> DataProto:
        """A row for each turn that was played, in verl's own class or ours. Validation never samples dynamically."""
        dynamic = is_train and self._settings.algorithm.filter_groups.enable
        loop = self.dynamic_multi_turn_loop if dynamic else self.vanilla_multi_turn_loop
        episodes = [episode for group in loop(gen_batch, actor_rollout_wg, envs) for episode in group]
        ours = gather(episodes, self._settings.scoring, self._pad_token)
        batch: DataProto = to_verl(ours) if is_verls(gen_batch) else ours
        return batch

    def vanilla_multi_turn_loop(
        self, gen_batch: Any, actor_rollout_wg: Any, envs: EnvironmentManagerBase
    ) -> list[list[CollectedEpisode]]:
        """Groups of episodes, one from each environment."""
        observations, infos = _reset(envs, gen_batch)
        size = envs.envs.group_n
        episodes = _episodes(envs.envs.tags, size)
        _check_rows(gen_batch, len(episodes), size)
        done = np.array(["error" in info for info in infos])
        for index in np.flatnonzero(done):
            episodes[index].failed = True
        for _ in range(self._settings.turns):
            playing = np.flatnonzero(~done)
            if not playing.size:
                break
            batch = self._prompts(gen_batch, observations, playing, size)
            answered = self._answered(batch, actor_rollout_wg, as_verl=is_verls(gen_batch))
            said: list[str | None] = [None] * len(done)
            for index, text in zip(playing, self._texts(answered, len(playing)), strict=True):
                said[index] = text
            observations, rewards, ends, infos = envs.step(said)
            for row, index in enumerate(playing):
                turn = {"rewards": rewards[index], "is_action_valid": infos[index]["is_action_valid"]}
                episodes[index].add(answered, row, turn, infos[index])
            done |= ends
        _evaluate(envs, episodes)
        return [episodes[start : start + size] for start in range(0, len(episodes), size)]

    def dynamic_multi_turn_loop(
        self, gen_batch: Any, actor_rollout_wg: Any, envs: EnvironmentManagerBase
    ) -> list[list[CollectedEpisode]]:
        """Groups without failures whose rewards are not all equal, until there are enough, or the tries are used up.

        Rewards are minus the penalties of format, as scores are.
        """
        rules = self._settings.algorithm.filter_groups
        target = self._settings.data.train_batch_size or envs.envs.num_processes // envs.envs.group_n
        kept = self.carried  # what is kept from here on is there for the next call, if this one fails
        dropped: list[list[CollectedEpisode]] = []
        for tries in range(1, rules.max_num_gen_batches + 1):
            if len(kept) >= target:
                break
            for group in self.vanilla_multi_turn_loop(gen_batch, actor_rollout_wg, envs):
                (kept if self._is_kept(group) else dropped).append(group)
            logger.info("%d of %d groups after %d tries; %d were dropped", len(kept), target, tries, len(dropped))
        if len(kept) < target:
            return self._exhausted(kept, dropped, target)
        self.carried = kept[target:]
        return kept[:target]

    def preprocess_batch(self, gen_batch: Any, obs: Observations, rows: Iterable[int] | None = None) -> Any:
        """What a model is asked for some environments (or all): messages, and with a tokenizer their tokens."""
        chosen = range(len(obs["text"])) if rows is None else rows
        batch = self._prompts(gen_batch, obs, chosen, 1)
        return to_verl(batch) if is_verls(gen_batch) else batch

    @property
    def _pad_token(self) -> int:
        return getattr(self.tokenizer, "pad_token_id", None) or 0

    def _prompts(self, gen_batch: Any, obs: Observations, rows: Iterable[int], group_n: int) -> DataProto:
        chosen = [*map(int, rows)]
        messages = [[{"role": "user", "content": obs["text"][row]}] for row in chosen]
        sources = _data_sources(gen_batch, len(obs["text"]), group_n)
        columns = {
            "messages_list": objects(messages),
            "anchor_obs": objects([obs["anchor"][row] for row in chosen]),
            "index": objects(chosen),
            "data_source": objects([sources[row] for row in chosen]),
        }
        pictures = None if obs["image"] is None else [obs["image"][row] for row in chosen]
        if pictures is not None:
            columns["multi_modal_data"] = objects([{"image": [picture]} for picture in pictures])
        if self._settings.data.return_raw_chat:
            columns["raw_prompt"] = objects(messages)
        meta_info = getattr(gen_batch, "meta_info", None) or {}
        if self.tokenizer is None:
            return DataProto(None, columns, meta_info)
        width, truncation = self._settings.longest_prompt, self._settings.data.truncation
        options = self._settings.data.apply_chat_template_kwargs
        if pictures is not None and is_verls(gen_batch):
            arrays, more = picture_columns(
                self.tokenizer,
                self.processor,
                messages,
                pictures,
                width=width,
                truncation=truncation,
                options=options,
            )
            return DataProto(arrays, {**columns, **more}, meta_info)
        ids = encode_prompts(self.tokenizer, messages, width=width, truncation=truncation, options=options)
        return DataProto(row_arrays(self.tokenizer, ids, width), {**columns, "raw_prompt_ids": objects(ids)}, meta_info)

    def _answered(self, batch: DataProto, actor_rollout_wg: Any, *, as_verl: bool) -> DataProto:
        """Prompts with a model's answers; what only its workers read stays with them."""
        asked = batch.select(non_tensor_batch_keys=_FOR_VERL) if as_verl else batch
        padded, extra = pad_dataproto_to_divisor(asked, int(getattr(actor_rollout_wg, "world_size", None) or 1))
        answers = actor_rollout_wg.generate_sequences(to_verl(padded) if as_verl else padded)
        found = unpad_dataproto(from_any(answers), extra)
        if not as_verl:
            known = batch.select(non_tensor_batch_keys=batch.non_tensor_batch.keys() - {"raw_prompt_ids"})
            return _joined(known, found)
        left_out = {"messages_list", *_FOR_VERL}
        known = batch.select((), batch.non_tensor_batch.keys() - left_out)
        return _joined(known, found.select(non_tensor_batch_keys=found.non_tensor_batch.keys() - left_out))

    def _texts(self, answers: Any, expected: int) -> list[str]:
        texts = response_texts(answers, self.tokenizer)
        if len(texts) != expected:
            raise UsageError(f"generate_sequences gave {len(texts)} replies for {expected} prompts")
        return texts

    def _is_kept(self, group: Sequence[CollectedEpisode]) -> bool:
        if any(episode.failed for episode in group):
            return False
        penalty = self._settings.penalty
        return len(group) == 1 or varies([episode.reward - penalty * episode.unreadable for episode in group])

    def _exhausted(
        self, kept: list[list[CollectedEpisode]], dropped: list[list[CollectedEpisode]], target: int
    ) -> list[list[CollectedEpisode]]:
        rules = self._settings.algorithm.filter_groups
        reason = (
            f"{len(kept)} of {target} groups were kept in {rules.max_num_gen_batches} tries "
            f"(algorithm.filter_groups.max_num_gen_batches); {len(dropped)} had equal rewards or failed"
        )
        if rules.on_exhausted == "raise" or (rules.on_exhausted == "short" and not kept):
            raise ExhaustedError(reason)
        self.carried = []
        dropped.sort(key=lambda group: any(episode.failed for episode in group))  # these come last
        fill = dropped[: target - len(kept)] if rules.on_exhausted == "fill" else []
        logger.warning("%s: %s", reason, f"{len(fill)} of these fill the batch" if fill else "the batch is short")
        for episode in (episode for group in fill for episode in group):
            episode.kept = False
        return kept + fill


def response_texts(answers: Any, tokenizer: Any) -> list[str]:
    """What a model said: `response_texts`, or the decoded `responses`."""
    columns = answers.non_tensor_batch or {}
    if "response_texts" in columns:
        return [str(text) for text in columns["response_texts"]]
    if answers.batch is None or "responses" not in answers.batch or tokenizer is None:
        raise UsageError(
            "generate_sequences must give batch['responses'] (with a tokenizer to decode them) or "
            "non_tensor_batch['response_texts']"
        )
    return list(tokenizer.batch_decode(answers.batch["responses"], skip_special_tokens=True))


def _reset(envs: EnvironmentManagerBase, gen_batch: Any) -> tuple[Observations, list[dict[str, Any]]]:
    """With the `env_kwargs` of the rows, which verl-agent's managers take, if there are any."""
    given = (getattr(gen_batch, "non_tensor_batch", None) or {}).get("env_kwargs")
    return envs.reset() if given is None else envs.reset(kwargs=given)


def _check_rows(gen_batch: Any, count: int, group_n: int) -> None:
    """verl's trainer gives a row for each group in training, and for each environment in validation."""
    if is_verls(gen_batch) and len(gen_batch) not in (0, count, count // group_n):
        raise UsageError(
            f"gen_batch has {len(gen_batch)} rows for {count // group_n} groups of {group_n} environments: "
            "make data.train_batch_size and data.val_batch_size the number of groups"
        )


def _joined(known: DataProto, answers: DataProto) -> DataProto:
    if len(answers) and len(known) != len(answers):
        raise UsageError(f"generate_sequences gave {len(answers)} replies for {len(known)} prompts")
    return merged(known, answers)


def _evaluate(envs: EnvironmentManagerBase, episodes: list[CollectedEpisode]) -> None:
    """Ask the manager how each episode ended."""
    found = envs.success_evaluator(
        total_infos=[episode.infos for episode in episodes],
        total_batch_list=[episode.rows for episode in episodes],
        episode_rewards=np.array([episode.reward for episode in episodes]),
        episode_lengths=np.array([len(episode.rows) for episode in episodes]),
    )
    for name, values in found.items():
        for episode, value in zip(episodes, values, strict=True):
            episode.outcomes[name] = float(value)


def _episodes(tags: Sequence[str], group_n: int) -> list[CollectedEpisode]:
    groups = [str(uuid.uuid4()) for _ in range(len(tags) // group_n)]
    return [CollectedEpisode(groups[index // group_n], str(uuid.uuid4()), tag) for index, tag in enumerate(tags)]


def _data_sources(gen_batch: Any, count: int, group_n: int) -> list[Any]:
    """Of each environment: of its group if there are as many sources as groups, else of its own row."""
    sources = [*((getattr(gen_batch, "non_tensor_batch", None) or {}).get("data_source", ()))]
    if len(sources) * group_n == count:
        return [sources[index // group_n] for index in range(count)]
    return [sources[index] if index < len(sources) else "default" for index in range(count)]
