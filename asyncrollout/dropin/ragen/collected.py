"""Episodes that a collector played, and the batch that they become: a row for each turn."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrollout import rewards
from asyncrollout.dropin.ragen.collector_settings import Scoring
from asyncrollout.dropin.ragen.data import DataProto, objects
from asyncrollout.types import total_reward

_TOKENS = ("input_ids", "prompts", "responses")
"""Columns of token ids, which are filled up with the tokenizer's padding."""


class CollectedEpisode(msgspec.Struct):
    """One environment's turns, as rows of a batch to be: `arrays` of its numbers, `rows` of its objects.

    `kept` is false for one that only fills the batch up, `failed` is true for one whose environment gave an error.
    `outcomes` are the success evaluator's values.
    """

    group: str
    uid: str
    tag: str
    arrays: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    infos: list[dict[str, Any]] = []
    outcomes: dict[str, float] = {}
    kept: bool = True
    failed: bool = False

    @property
    def reward(self) -> float:
        """The exact sum over single steps: that of equal ones is equal, however they were split into turns."""
        earned = (float(row["rewards"]) for row in self.rows)
        return total_reward(zip(earned, self.infos, strict=True))

    @property
    def unreadable(self) -> int:
        """How many replies could not be read."""
        return sum(not row["is_action_valid"] for row in self.rows)

    def add(self, answered: DataProto, row: int, turn: dict[str, Any], info: dict[str, Any]) -> None:
        """Note a turn: a row of a model's prompts and answers, and what came of it."""
        self.arrays.append({key: column[row] for key, column in answered.batch.items()})
        columns = {key: column[row] for key, column in answered.non_tensor_batch.items()}
        self.rows.append({**columns, **turn, "active_masks": True})
        self.infos.append(info)
        self.failed |= "error" in info


def gather(episodes: Sequence[CollectedEpisode], scoring: Scoring | None, pad_token: int) -> DataProto:
    """A row for each turn. Success rates are means over all episodes, the same in each row, as verl-agent's are."""
    means = _means(episodes)
    rows = [
        {
            **row,
            "uid": episode.group,
            "traj_uid": episode.uid,
            "turn": turn,
            "episode_rewards": episode.reward,
            "episode_lengths": len(episode.rows),
            "tool_callings": float(sum(info.get("tool_calling", 0) for info in episode.infos)),
            **means,
            "success": episode.outcomes.get("success_rate", 0.0),
            "kept": episode.kept,
            "failed": episode.failed,
        }
        for episode in episodes
        for turn, row in enumerate(episode.rows)
    ]
    arrays = [row for episode in episodes for row in episode.arrays]
    columns = {
        key: _padded([row[key] for row in arrays], pad_token if key in _TOKENS else 0)
        for key in (arrays[0] if arrays else ())
    }
    if scoring is not None and rows:
        raw, normalized = _scores(episodes, scoring)
        columns["rm_scores"] = _at_last_tokens(normalized, columns, pad_token)
        columns["original_rm_scores"] = _at_last_tokens(raw, columns, pad_token)
    return DataProto(columns, {key: _column([row[key] for row in rows]) for key in (rows[0] if rows else ())})


def _means(episodes: Sequence[CollectedEpisode]) -> dict[str, float]:
    names = dict.fromkeys(name for episode in episodes for name in episode.outcomes)
    return {
        name: float(np.mean([episode.outcomes[name] for episode in episodes if name in episode.outcomes]))
        for name in names
    }


def _scores(episodes: Sequence[CollectedEpisode], scoring: Scoring) -> tuple[list[float], list[float]]:
    """Of each row, raw and normalized."""
    if scoring.of == "turns":
        turns = [
            float(row["rewards"]) - (0.0 if row["is_action_valid"] else scoring.penalty)
            for episode in episodes
            for row in episode.rows
        ]
        return turns, turns
    totals = [episode.reward for episode in episodes]
    costs = [scoring.penalty * episode.unreadable for episode in episodes]
    normalized = rewards.normalize(
        totals,
        penalties=costs,
        groups=[episode.group for episode in episodes],
        tags=[episode.tag for episode in episodes],
        grouping=scoring.normalization.grouping,
        method=scoring.normalization.method,
        valid=[not episode.failed for episode in episodes],
    )
    owners = [place for place, episode in enumerate(episodes) for _ in episode.rows]
    return [totals[place] - costs[place] for place in owners], [float(normalized[place]) for place in owners]


def _at_last_tokens(scores: list[float], columns: dict[str, NDArray[Any]], pad_token: int) -> NDArray[np.float32]:
    """Each score at the last token of its reply; without tokens, in one column."""
    if "responses" not in columns:
        return np.array(scores, dtype=np.float32)[:, None]
    replies = columns["responses"]
    placed = np.zeros(replies.shape, dtype=np.float32)
    placed[np.arange(len(scores)), np.maximum(_lengths(columns, pad_token) - 1, 0)] = scores
    return placed


def _lengths(columns: dict[str, NDArray[Any]], pad_token: int) -> NDArray[np.int64]:
    """Of replies in tokens: by the mask if it covers them, else up to the last token that is not padding."""
    replies = columns["responses"]
    width = replies.shape[1]
    prompts, mask = columns.get("prompts"), columns.get("attention_mask")
    if prompts is not None and mask is not None and mask.shape[1] == prompts.shape[1] + width:
        lengths: NDArray[np.int64] = mask[:, -width:].sum(axis=1).astype(np.int64)
        return lengths
    said = replies != pad_token
    return np.where(said.any(axis=1), width - said[:, ::-1].argmax(axis=1), 0)


def _column(values: list[Any]) -> NDArray[Any]:
    are_numbers = all(isinstance(value, bool | int | float | np.number | np.bool_) for value in values)
    return np.array(values) if are_numbers else objects(values)


def _padded(values: list[Any], fill: int) -> NDArray[Any]:
    """Rows of different shapes, filled up at their ends."""
    longest = np.max([np.shape(value) for value in values], axis=0)
    padded = np.full((len(values), *map(int, longest)), fill, dtype=values[0].dtype)
    for place, value in enumerate(values):
        corner: tuple[int | slice, ...] = (place, *map(slice, np.shape(value)))
        padded[corner] = value
    return padded
