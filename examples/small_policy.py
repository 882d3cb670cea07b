"""A policy small enough for numpy: one hidden layer, trained with PPO's clipped loss. For the training examples."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import asyncrollout as ar

Array = NDArray[Any]
Weights = dict[str, Array]

HIDDEN, EPOCHS, RATE = 32, 4, 0.02
CLIP_LOW, CLIP_HIGH = 0.2, 0.28  # as in DAPO: more room upwards lets unlikely actions grow
ENTROPY = 0.03  # what a bit of disorder is worth, so that no action dies out too soon
MEAN_DECAY, SQUARE_DECAY = 0.9, 0.999  # of Adam


class SmallPolicy:
    """Reads `places` symbols (numbers below `symbols`) and chooses one of `actions`, the first of which is 0.

    `weights` are what plays. `learn` leaves them alone and gives new ones, as a trainer beside an LLM server does.
    """

    def __init__(self, places: int, symbols: int, actions: int, seed: int) -> None:
        first = np.random.default_rng(seed).normal(size=(places, symbols, HIDDEN))
        self.weights: Weights = {"first": first, "second": np.zeros((HIDDEN, actions))}
        self._updates = 0
        self._mean = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        self._square = {name: np.zeros_like(weight) for name, weight in self.weights.items()}

    def choose(self, seen: Array, seeds: Sequence[int | None]) -> tuple[list[int], list[float]]:
        """For each row an action and its logprob. Luck comes from the row's seed alone, whatever the batch."""
        _, logprobs = _forward(self.weights, seen)
        luck = np.array([np.random.default_rng(seed).random() for seed in seeds])
        reached = np.exp(logprobs).cumsum(axis=1)[:, :-1]
        actions = (reached < luck[:, None]).sum(axis=1)
        return actions.tolist(), logprobs[np.arange(len(actions)), actions].tolist()

    def learn(self, seen: Array, actions: Array, advantages: Array, old_logprobs: Array) -> Weights:
        """New weights, after some ascents of the clipped objective on one batch."""
        weights, rows, places = self.weights, np.arange(len(actions)), np.arange(seen.shape[1])
        for _ in range(EPOCHS):
            hidden, logprobs = _forward(weights, seen)
            ratio = np.exp(logprobs[rows, actions] - old_logprobs)
            clipped = np.where(advantages > 0, ratio > 1 + CLIP_HIGH, ratio < 1 - CLIP_LOW)
            slope = np.where(clipped, 0.0, ratio * advantages)  # of the objective, along a chosen action's logprob
            chances = np.exp(logprobs)
            entropy = -(chances * logprobs).sum(axis=1, keepdims=True)
            by_logit = -chances * (slope[:, None] + ENTROPY * (logprobs + entropy))
            by_logit[rows, actions] += slope
            by_logit /= len(rows)
            by_hidden = by_logit @ weights["second"].T * (1 - hidden**2) / len(places) ** 0.5
            by_first = np.zeros_like(weights["first"])
            np.add.at(by_first, (places, seen), by_hidden[:, None])
            weights = self._ascend(weights, {"first": by_first, "second": hidden.T @ by_logit})
        return weights

    def _ascend(self, weights: Weights, slopes: Weights) -> Weights:
        """One step of Adam."""
        self._updates += 1
        risen = {}
        for name, slope in slopes.items():
            self._mean[name] = MEAN_DECAY * self._mean[name] + (1 - MEAN_DECAY) * slope
            self._square[name] = SQUARE_DECAY * self._square[name] + (1 - SQUARE_DECAY) * slope**2
            mean = self._mean[name] / (1 - MEAN_DECAY**self._updates)
            square = self._square[name] / (1 - SQUARE_DECAY**self._updates)
            risen[name] = weights[name] + RATE * mean / (np.sqrt(square) + 1e-8)
        return risen


def _forward(weights: Weights, seen: Array) -> tuple[Array, Array]:
    """The hidden layer, and the logprobs of all actions."""
    places = np.arange(seen.shape[1])
    hidden = np.tanh(weights["first"][places, seen].sum(axis=1) / len(places) ** 0.5)
    logits = hidden @ weights["second"]
    logits -= logits.max(axis=1, keepdims=True)
    return hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def print_step(batch: ar.Batch, began: float) -> None:
    """The mean reward of all rollouts, and how many of the groups the filter kept."""
    stats, seconds = batch.stats, time.monotonic() - began
    kept = 1 - stats.get("dropped_constant_reward", 0) / stats["drawn_groups"]
    print(f"step {batch.index:3}  reward {stats['mean_reward']:6.3f}  kept {kept:4.0%}  {seconds:4.1f} s", flush=True)


def print_gain(rewards: Sequence[float]) -> None:
    """How far the mean reward of a step rose."""
    few = max(len(rewards) // 4, 1)
    first, last = np.mean(rewards[:few]), np.mean(rewards[-few:])
    print(f"mean reward: {first:.3f} in the first {few} steps, {last:.3f} in the last")
