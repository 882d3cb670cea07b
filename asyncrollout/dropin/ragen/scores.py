"""What finished histories earned, and the figures of a batch."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout import rewards
from asyncrollout.dropin.ragen.settings import AgentProxy
from asyncrollout.dropin.ragen.tokens import TokenizedConversation
from asyncrollout.types import exact_sum

Cache = Mapping[str, Any]
Scores = list[list[float]]


def total_reward(cache: Cache) -> float:
    """The exact sum over single actions: equal for equal ones, however they were split into turns."""
    earned = [turn["reward"] for turn in cache["history"] if "reward" in turn]
    return exact_sum(part for reward in earned for part in getattr(reward, "parts", ()) or (reward,))


def turn_scores(caches: Sequence[Cache]) -> Scores:
    """The reward of each turn; the penalty is part of the last one."""
    scores = []
    for cache in caches:
        gained = [turn["reward"] for turn in cache["history"] if "reward" in turn]
        scores.append([*gained[:-1], gained[-1] + cache.get("penalty", 0)] if gained else [])
    return scores


def episode_scores(caches: Sequence[Cache], rule: AgentProxy) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The score of each episode, raw and normalised."""
    totals = [total_reward(cache) for cache in caches]
    penalties = [cache.get("penalty", 0) for cache in caches]
    raw = np.array([total + penalty for total, penalty in zip(totals, penalties, strict=True)], dtype=np.float64)
    return raw, normalized_scores(caches, totals, penalties, rule)


def normalized_scores(
    caches: Sequence[Cache], totals: Sequence[float], penalties: Sequence[float], rule: AgentProxy
) -> NDArray[np.float64]:
    normalization = rule.reward_normalization
    scores = rewards.normalize(
        totals,
        penalties=penalties,
        groups=[cache["group_id"] for cache in caches],
        tags=[cache.get("tag", "") for cache in caches],
        grouping=normalization.grouping,
        method=normalization.method,
        valid=[not _failed(cache) for cache in caches],
    )
    return np.asarray(scores, dtype=np.float64)


def in_columns(scores: Scores) -> NDArray[np.float64]:
    """Without tokens: as many columns as there are scores."""
    placed = np.zeros((len(scores), max(map(len, scores), default=0)))
    for row, values in enumerate(scores):
        placed[row, : len(values)] = values
    return placed


def at_ends(conversations: Sequence[TokenizedConversation], scores: Scores) -> NDArray[np.float64]:
    """Aligned with `responses`, which begin at the second token of rows that are padded on the left."""
    width = max(len(one.ids) for one in conversations)
    placed = np.zeros((len(conversations), width))
    for row, (one, values) in enumerate(zip(conversations, scores, strict=True)):
        ends = one.ends[-len(values) :] if values else []
        for end, value in zip(ends, values[-len(ends) :] if ends else [], strict=True):
            placed[row, width - len(one.ids) + end] = value
    return placed[:, 1:]


def mean_metrics(caches: Sequence[Cache]) -> dict[str, float]:
    """Each metric's mean over the environments of its tag, and over those where it is not zero.

    An environment that does not report a metric counts as 0.
    """
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for cache in caches:
        tag = cache.get("tag", "")
        counts[tag] += 1
        for key, value in cache.get("metrics", {}).items():
            values[tag, key.removeprefix(f"{tag}/")].append(value)
    means: dict[str, float] = {}
    for (tag, name), found in values.items():
        means[f"{tag}/{name}"] = sum(found) / counts[tag]
        if others := [value for value in found if value]:
            means[f"{tag}/non-zero/{name}"] = sum(others) / len(others)
    return means


def _failed(cache: Cache) -> bool:
    return any("error" in turn.get("info", {}) for turn in cache.get("history", ()))
