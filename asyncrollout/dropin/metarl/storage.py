"""Replay buffers in numpy: of single steps, for agents without a memory, and of whole episodes, for those with one."""

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError
from asyncrollout.validation import check_int

Batch = dict[str, NDArray[Any]]


class _Ring:
    """Steps in the order in which they came; the oldest are overwritten."""

    def __init__(self, size: int, observation_dim: int, action_dim: int, seed: int) -> None:
        for name, value in (("max_replay_buffer_size", size), ("observation_dim", observation_dim)):
            check_int(name, value, 1)
        check_int("action_dim", action_dim, 1)
        widths = {"obs": observation_dim, "act": action_dim, "rew": 1, "term": 1, "obs2": observation_dim}
        self._columns = {key: np.zeros((size, width), dtype=np.float32) for key, width in widths.items()}
        self._capacity = size
        self._chance = np.random.default_rng(seed)
        self.clear()

    def size(self) -> int:
        """How many steps are in it."""
        return self._size

    def clear(self) -> None:
        self._top = self._size = 0

    def _add(self, count: int, **rows: Any) -> None:
        places = (self._top + np.arange(count)) % self._capacity
        for key, values in rows.items():
            self._columns[key][places] = values
        self._top = (self._top + count) % self._capacity
        self._size = min(self._size + count, self._capacity)

    def _check_filled(self) -> None:
        if not self._size:
            raise UsageError("the replay buffer is empty: collect rollouts first")


class SimpleReplayBuffer(_Ring):
    """Steps, drawn one by one. Further settings of other buffers are taken, and mean nothing."""

    def __init__(
        self, max_replay_buffer_size: int, observation_dim: int, action_dim: int, *, seed: int = 0, **_: Any
    ) -> None:
        super().__init__(int(max_replay_buffer_size), observation_dim, action_dim, seed)

    def add_sample(
        self, observation: Any, action: Any, reward: Any, terminal: Any, next_observation: Any, **_: Any
    ) -> None:
        self._add(1, obs=observation, act=action, rew=reward, term=terminal, obs2=next_observation)

    def add_samples(self, observation: Any, action: Any, reward: Any, terminal: Any, next_observation: Any) -> None:
        """Several, each of shape (steps, width)."""
        rows = {"obs": observation, "act": action, "rew": reward, "term": terminal, "obs2": next_observation}
        self._add(min(len(reward), self._capacity), **{key: values[-self._capacity :] for key, values in rows.items()})

    def random_batch(self, batch_size: int) -> Batch:
        """Each of shape (batch_size, width): obs, act, rew, term, obs2."""
        self._check_filled()
        chosen = self._chance.integers(self._size, size=batch_size)
        return {key: column[chosen] for key, column in self._columns.items()}


class SeqReplayBuffer(_Ring):
    """Whole episodes, of which parts of `sampled_seq_len` steps are drawn.

    An episode is drawn the more often, the more parts it has, and as if it had `sample_weight_baseline` more.
    """

    buffer_type = "seq_vanilla"

    def __init__(
        self,
        max_replay_buffer_size: int,
        observation_dim: int,
        action_dim: int,
        sampled_seq_len: int,
        sample_weight_baseline: float = 0.0,
        *,
        seed: int = 0,
        **_: Any,
    ) -> None:
        check_int("sampled_seq_len", sampled_seq_len, 1)
        if sample_weight_baseline < 0:
            raise UsageError(f"sample_weight_baseline={sample_weight_baseline!r} is below 0")
        self._length = sampled_seq_len
        self._baseline = sample_weight_baseline
        super().__init__(int(max_replay_buffer_size), observation_dim, action_dim, seed)

    def clear(self) -> None:
        super().clear()
        self._episodes: deque[tuple[int, int]] = deque()  # where each begins, and how long it is
        self._steps = 0

    def add_episode(
        self, observations: Any, actions: Any, rewards: Any, terminals: Any, next_observations: Any
    ) -> None:
        """Each of shape (steps, width)."""
        rows = {"obs": observations, "act": actions, "rew": rewards, "term": terminals, "obs2": next_observations}
        lengths = {key: len(values) for key, values in rows.items()}
        count = lengths["obs"]
        if {*lengths.values()} != {count} or not 0 < count <= self._capacity:
            raise UsageError(f"an episode has as many rows of each, from 1 to {self._capacity}, and not {lengths}")
        self._episodes.append((self._top, count))
        self._add(count, **rows)
        self._steps += count
        while self._steps > self._capacity:  # its first steps are overwritten: the rest is not an episode
            self._steps -= self._episodes.popleft()[1]
        self._size = self._steps

    def random_episodes(self, batch_size: int) -> Batch:
        """Each of shape (sampled_seq_len, batch_size, width), and a "mask" that is 0 after the end of an episode."""
        self._check_filled()
        episodes = np.array(self._episodes)
        parts = np.maximum(episodes[:, 1] - self._length + 1, 1)
        weights = self._baseline + parts
        chosen = self._chance.choice(len(episodes), size=batch_size, p=weights / weights.sum())
        first = self._chance.integers(parts[chosen])
        within = first + np.arange(self._length)[:, None]
        is_inside = (within < episodes[chosen, 1])[:, :, None]
        places = (episodes[chosen, 0] + within) % self._capacity
        nothing = np.float32(0)  # not a product: what an env shows may be infinite
        parts_of = {key: np.where(is_inside, column[places], nothing) for key, column in self._columns.items()}
        return {"mask": is_inside.astype(np.float32), **parts_of}
