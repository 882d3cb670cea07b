"""The loop between a model and its environments, turn by turn, until all episodes end; with dynamic sampling, again."""

import logging
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrollout.dropin.configs import plain
from asyncrollout.dropin.ragen.data import DataProto, objects
from asyncrollout.dropin.ragen.managers import EnvironmentManagerBase, Observations
from asyncrollout.dropin.ragen.settings import Algorithm, Count, Data
from asyncrollout.dropin.ragen.tokens import prompt_arrays
from asyncrollout.errors import ExhaustedError, UsageError
from asyncrollout.filters import varies
from asyncrollout.types import total_reward

logger = logging.getLogger(__name__)

_MOST_TURNS = 50


class _CollectorEnv(msgspec.Struct, frozen=True):
    max_steps: Count | None = None


class _Turns(msgspec.Struct, frozen=True):
    max_turn: Count | None = None


class _CollectorSettings(msgspec.Struct, frozen=True):
    env: _CollectorEnv = _CollectorEnv()
    agent_proxy: _Turns = _Turns()
    algorithm: Algorithm = Algorithm()
    data: Data = Data()

    @property
    def turns(self) -> int:
        return self.env.max_steps or self.agent_proxy.max_turn or _MOST_TURNS


class CollectedEpisode(msgspec.Struct):
    """One environment's turns, as rows of a batch to be: `arrays` of its numbers, `rows` of its objects.

    `kept` is false for one that only fills the batch up, `failed` is true for one whose environment gave an error.
    """

    group: str
    uid: str
    arrays: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    infos: list[dict[str, Any]]
    success: float = 0.0
    kept: bool = True
    failed: bool = False

    @property
    def reward(self) -> float:
        """The exact sum over single steps: that of equal ones is equal, however they were split into turns."""
        rewards = (float(row["rewards"]) for row in self.rows)
        return total_reward(zip(rewards, self.infos, strict=True))


class TrajectoryCollector:
    """`config` is RAGEN's or verl-agent's; the tokenizer may be None for models that read `messages_list`.

    Environments that are done are neither prompted nor stepped again. Dynamic sampling gives exactly the groups asked
    for (`data.train_batch_size`, or one from each of the environments' groups); what is beyond comes first next time.
    """

    def __init__(self, config: Any, tokenizer: Any = None, processor: Any = None) -> None:
        try:
            self._settings = msgspec.convert(plain(config), _CollectorSettings)
        except msgspec.ValidationError as error:
            raise UsageError(f"config: {error}".replace("$.", "").replace("`", "'")) from error
        self.tokenizer = tokenizer
        self.processor = processor
        self.carried: list[list[CollectedEpisode]] = []

    def multi_turn_loop(
        self, gen_batch: Any, actor_rollout_wg: Any, envs: EnvironmentManagerBase, is_train: bool = True
    ) -> DataProto:
        """A row for each turn that was played. Validation never samples dynamically."""
        dynamic = is_train and self._settings.algorithm.filter_groups.enable
        loop = self.dynamic_multi_turn_loop if dynamic else self.vanilla_multi_turn_loop
        return _gathered([episode for group in loop(gen_batch, actor_rollout_wg, envs) for episode in group])

    def vanilla_multi_turn_loop(
        self, gen_batch: Any, actor_rollout_wg: Any, envs: EnvironmentManagerBase
    ) -> list[list[CollectedEpisode]]:
        """Groups of episodes, one from each environment."""
        observations, infos = envs.reset()
        episodes = _episodes(len(observations["text"]), envs.envs.group_n)
        done = np.array(["error" in info for info in infos])
        for index in np.flatnonzero(done):
            episodes[index].failed = True
        for _ in range(self._settings.turns):
            playing = np.flatnonzero(~done)
            if not playing.size:
                break
            batch = self.preprocess_batch(gen_batch, observations, playing)
            answers = actor_rollout_wg.generate_sequences(batch)
            said: list[str | None] = [None] * len(done)
            for index, text in zip(playing, self._texts(answers, len(playing)), strict=True):
                said[index] = text
            observations, rewards, ends, infos = envs.step(said)
            answered = batch.union(answers)
            for row, index in enumerate(playing):
                turn = {"rewards": rewards[index], "is_action_valid": infos[index]["is_action_valid"]}
                _add(episodes[index], answered, row, turn, infos[index])
            done |= ends
        success = envs.success_evaluator(total_infos=[episode.infos for episode in episodes])["success_rate"]
        for episode, solved in zip(episodes, success, strict=True):
            episode.success = float(solved)
        size = envs.envs.group_n
        return [episodes[start : start + size] for start in range(0, len(episodes), size)]

    def dynamic_multi_turn_loop(
        self, gen_batch: Any, actor_rollout_wg: Any, envs: EnvironmentManagerBase
    ) -> list[list[CollectedEpisode]]:
        """Groups without failures whose rewards are not all equal, until there are enough, or the tries are used up."""
        rules = self._settings.algorithm.filter_groups
        target = self._settings.data.train_batch_size or envs.envs.num_processes // envs.envs.group_n
        kept = self.carried  # what is kept from here on is there for the next call, if this one fails
        dropped: list[list[CollectedEpisode]] = []
        for tries in range(1, rules.max_num_gen_batches + 1):
            if len(kept) >= target:
                break
            for group in self.vanilla_multi_turn_loop(gen_batch, actor_rollout_wg, envs):
                (kept if _is_kept(group) else dropped).append(group)
            logger.info("%d of %d groups after %d tries; %d were dropped", len(kept), target, tries, len(dropped))
        if len(kept) < target:
            return self._exhausted(kept, dropped, target)
        self.carried = kept[target:]
        return kept[:target]

    def preprocess_batch(self, gen_batch: Any, obs: Observations, rows: Iterable[int] | None = None) -> DataProto:
        """What a model is asked for some environments (or all): messages, and with a tokenizer their tokens."""
        chosen = [*range(len(obs["text"]))] if rows is None else [*map(int, rows)]
        messages = [[{"role": "user", "content": obs["text"][row]}] for row in chosen]
        columns = {
            "messages_list": objects(messages),
            "anchor_obs": objects([obs["anchor"][row] for row in chosen]),
            "index": objects(chosen),
            "data_source": objects([_data_source(gen_batch, row) for row in chosen]),
        }
        if obs["image"] is not None:
            columns["multi_modal_data"] = objects([{"image": [obs["image"][row]]} for row in chosen])
        width = self._settings.data.max_prompt_length
        arrays = {} if self.tokenizer is None else prompt_arrays(self.tokenizer, messages, width=width)
        return DataProto(arrays, columns, getattr(gen_batch, "meta_info", None) or {})

    def _texts(self, answers: Any, expected: int) -> list[str]:
        texts = response_texts(answers, self.tokenizer)
        if len(texts) != expected:
            raise UsageError(f"generate_sequences gave {len(texts)} replies for {expected} prompts")
        return texts

    def _exhausted(
        self, kept: list[list[CollectedEpisode]], dropped: list[list[CollectedEpisode]], target: int
    ) -> list[list[CollectedEpisode]]:
        rules = self._settings.algorithm.filter_groups
        told = (
            f"{len(kept)} of {target} groups were kept in {rules.max_num_gen_batches} tries "
            f"(algorithm.filter_groups.max_num_gen_batches); {len(dropped)} had equal rewards or failed"
        )
        if rules.on_exhausted == "raise" or (rules.on_exhausted == "short" and not kept):
            raise ExhaustedError(told)
        self.carried = []
        dropped.sort(key=lambda group: any(episode.failed for episode in group))  # these come last
        fill = dropped[: target - len(kept)] if rules.on_exhausted == "fill" else []
        logger.warning("%s: %s", told, f"{len(fill)} of these fill the batch" if fill else "the batch is short")
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


def _is_kept(group: Sequence[CollectedEpisode]) -> bool:
    if any(episode.failed for episode in group):
        return False
    return len(group) == 1 or varies([episode.reward for episode in group])


def _episodes(count: int, group_n: int) -> list[CollectedEpisode]:
    groups = [str(uuid.uuid4()) for _ in range(count // group_n)]
    return [CollectedEpisode(groups[index // group_n], str(uuid.uuid4()), [], [], []) for index in range(count)]


def _add(episode: CollectedEpisode, batch: DataProto, row: int, turn: dict[str, Any], info: dict[str, Any]) -> None:
    episode.arrays.append({key: column[row] for key, column in batch.batch.items()})
    episode.rows.append({**{key: column[row] for key, column in batch.non_tensor_batch.items()}, **turn})
    episode.infos.append(info)
    episode.failed |= "error" in info


def _data_source(gen_batch: Any, row: int) -> Any:
    sources = (getattr(gen_batch, "non_tensor_batch", None) or {}).get("data_source", ())
    return sources[row] if row < len(sources) else "default"


def _gathered(episodes: Sequence[CollectedEpisode]) -> DataProto:
    rows = [
        {
            **row,
            "uid": episode.group,
            "traj_uid": episode.uid,
            "active_masks": True,
            "turn": turn,
            "episode_rewards": episode.reward,
            "episode_lengths": len(episode.rows),
            "success_rate": episode.success,
            "kept": episode.kept,
            "failed": episode.failed,
        }
        for episode in episodes
        for turn, row in enumerate(episode.rows)
    ]
    arrays = [row for episode in episodes for row in episode.arrays]
    return DataProto(
        {key: _padded([row[key] for row in arrays]) for key in (arrays[0] if arrays else ())},
        {key: _column([row[key] for row in rows]) for key in (rows[0] if rows else ())},
    )


def _column(values: list[Any]) -> NDArray[Any]:
    return np.array(values) if isinstance(values[0], bool | int | float | np.number | np.bool_) else objects(values)


def _padded(values: list[Any]) -> NDArray[Any]:
    """Rows of different shapes, filled up at their ends."""
    longest = np.max([np.shape(value) for value in values], axis=0)
    padded = np.zeros((len(values), *map(int, longest)), dtype=values[0].dtype)
    for place, value in enumerate(values):
        corner: tuple[int | slice, ...] = (place, *map(slice, np.shape(value)))
        padded[corner] = value
    return padded
