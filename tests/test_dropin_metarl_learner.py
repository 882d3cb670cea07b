"""Collecting: who plays what, at which pace, from which memory, and what is stored of it."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import ClosedError, ProviderError, UsageError
from asyncrollout.dropin import portal
from asyncrollout.dropin.metarl import (
    AGENT_ARCHS,
    Learner,
    ParallelEnvManager,
    SeqReplayBuffer,
    SimpleReplayBuffer,
    VariBadWrapper,
    make_env,
)
from tests.envs.meta import Chance, Choosing, Counting, Exchange, OldEnv, Recall, Unequal, in_thread


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    portal.close()


class Kept:
    """A storage that keeps what it is given, as it is."""

    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []
        self.episodes: list[dict[str, Any]] = []

    def add_sample(self, **sample: Any) -> None:
        self.samples.append(sample)

    def add_episode(self, **episode: Any) -> None:
        self.episodes.append(episode)


def learner(agent: Any, arch: Any = AGENT_ARCHS.Markov, env: Any = None, **attributes: Any) -> Learner:
    made = Learner()
    made.seed, made.agent, made.agent_arch, made.policy_storage = 11, agent, arch, Kept()
    made.train_env = OldEnv() if env is None else env
    made.train_tasks = np.arange(3)
    vars(made).update(attributes)
    return made


def managed(count: int, make: Any = OldEnv, **options: Any) -> ParallelEnvManager:
    return ParallelEnvManager([make] * count, **options)


def same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("random_actions", [False, True])
@pytest.mark.parametrize("arch", [*AGENT_ARCHS])
def test_envs_in_processes_collect_what_one_env_would(arch: AGENT_ARCHS, random_actions: bool) -> None:
    def agent() -> Any:
        return Recall() if arch is AGENT_ARCHS.Memory else Chance(2, 1)

    with_pool = managed(3, processes=2)
    alone, together = learner(agent(), arch), learner(agent(), arch)
    for count in (7, 2):
        steps = together.collect_rollouts_parallel(count, random_actions, with_pool)
        assert steps == alone.collect_rollouts_parallel(count, random_actions=random_actions) == 5 * count
    assert same(alone.policy_storage.samples, together.policy_storage.samples)
    assert same(alone.policy_storage.episodes, together.policy_storage.episodes)
    by_steps = arch is AGENT_ARCHS.Markov
    assert len(together.policy_storage.samples) == (45 if by_steps else 0)
    assert len(together.policy_storage.episodes) == (0 if by_steps else 9)
    assert (together._n_env_steps_total, together._n_rollouts_total) == (45, 9)
    assert together._successes_in_buffer == alone._successes_in_buffer
    with_pool.close()


def test_what_is_stored_of_a_rollout() -> None:
    made = learner(Recall(), AGENT_ARCHS.Memory)
    assert made.collect_rollouts(2) == 10
    first, second = made.policy_storage.episodes
    tag, task = first["observations"][0]
    assert task in range(3)
    assert tag != second["observations"][0][0]
    totals = task + np.cumsum([0.1, 0.2, 0.3, 0.4, 0.5])
    assert first["actions"].tolist() == pytest.approx(np.array([[0.1], [0.2], [0.3], [0.4], [0.5]]))
    assert first["next_observations"][:, 1] == pytest.approx(totals)
    assert (first["observations"][1:] == first["next_observations"][:-1]).all()
    assert first["rewards"].ravel() == pytest.approx(totals)
    assert first["terminals"].ravel().tolist() == (totals > 4).tolist()
    assert {array.ndim for array in first.values()} == {2}


def test_ends_are_terminal_unless_they_are_a_matter_of_time() -> None:
    class Ending(OldEnv):
        is_goal_state = None  # type: ignore[assignment]

        def __init__(self, of_time: bool) -> None:
            super().__init__()
            self._of_time = of_time

        def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
            state, reward, ended, info = super().step(action)
            return state, reward, ended, info if self._of_time else {}

    for of_time in (True, False):
        made = learner(Chance(2, 1), env=Ending(of_time))
        made.collect_rollouts(1)
        terminals = [bool(sample["terminal"][0]) for sample in made.policy_storage.samples]
        assert terminals == [False, False, False, False, not of_time]


def test_actions_that_are_chosen() -> None:
    for arch, random_actions in ((AGENT_ARCHS.Markov, False), (AGENT_ARCHS.Memory_Markov, True)):
        made = learner(Chance(2, 3, noise=2.0), arch, Choosing())
        made.collect_rollouts(4, random_actions)
        samples, episodes = made.policy_storage.samples, made.policy_storage.episodes
        actions = np.concatenate([[one["action"]] for one in samples] + [one["actions"] for one in episodes])
        assert actions.shape == (20, 1)
        assert {*actions.ravel()} == {0, 1, 2}


@pytest.mark.parametrize(("count", "shares"), [(12, [2] * 6), (13, [3, 2, 2, 2, 2, 2]), (2, [1, 1, 0, 0, 0, 0])])
def test_shares(count: int, shares: list[int]) -> None:
    manager = managed(6, processes=1)
    made = learner(Chance(2, 1))
    made.collect_rollouts_parallel(count, parallel_env=manager)
    assert [manager.get_attr("resets", rank) for rank in range(6)] == shares
    manager.close()


def test_no_episode_waits_for_another_env(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    manager = ParallelEnvManager([partial(Unequal, exchange.path, stands_still=rank == 0) for rank in range(3)])
    made = learner(Chance(2, 1))
    with in_thread(made.collect_rollouts_parallel, 9, False, manager) as results:
        waiting: list[Any] = []
        ended = 0
        while len(waiting) < 1 or ended < 6:  # both others end all of their three, while the first stands still
            word, line = exchange.heard()
            if word == b"waits":
                waiting.append(line)
            else:
                ended += 1
                exchange.answer(line)
        exchange.answer(waiting.pop())
        while ended < 9:
            word, line = exchange.heard()
            exchange.answer(line)
            ended += word == b"ended"
    assert results == [45]
    exchange.close()
    manager.close()


@pytest.mark.parametrize("in_batches", [False, True])
def test_no_memory_reaches_another_episode(in_batches: bool) -> None:
    manager = managed(4, processes=2)
    agent = Counting()  # which asserts it
    made = learner(agent, AGENT_ARCHS.Memory, acts_in_batches=in_batches)
    assert made.collect_rollouts_parallel(12, parallel_env=manager) == 60
    assert (max(agent.sizes) > 1) == in_batches
    assert sum(agent.sizes) == 60
    alone = learner(Recall(), AGENT_ARCHS.Memory)
    alone.collect_rollouts(12)
    assert same(made.policy_storage.episodes, alone.policy_storage.episodes)
    manager.close()


@pytest.mark.parametrize("cell", [None, "GRU", "LSTM"])
def test_agents_of_torch(cell: str | None) -> None:
    torch = pytest.importorskip("torch", reason="needs pip install 'asyncrollout[torch]'")

    class Network(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cell = getattr(torch.nn, cell)(4, 8) if cell else None
            self.out = torch.nn.Linear(8 if cell else 2, 1)

        def get_initial_info(self) -> tuple[Any, Any, Any]:
            nothing = torch.zeros(1, 1, 8)
            return torch.zeros(1, 1), torch.zeros(1, 1), nothing if cell == "GRU" else (nothing, nothing)

        def act(
            self,
            obs: Any,
            deterministic: bool,
            prev_internal_state: Any = None,
            prev_action: Any = None,
            reward: Any = None,
        ) -> Any:
            assert not torch.is_grad_enabled()
            if self.cell is None:
                return self.out(obs), None, None, None
            seen, state = self.cell(torch.cat([obs / 1000, prev_action, reward], -1)[None], prev_internal_state)
            return (torch.tanh(self.out(seen[0])), None, None, None), state

    agent, arch = Network(), AGENT_ARCHS.Memory if cell else AGENT_ARCHS.Memory_Markov
    manager = managed(3, processes=2)
    alone, together, batched = (learner(agent, arch) for _ in range(3))
    alone.collect_rollouts(5)
    together.collect_rollouts_parallel(5, parallel_env=manager)
    batched.acts_in_batches = True
    batched.collect_rollouts_parallel(5, parallel_env=manager)
    assert same(alone.policy_storage.episodes, together.policy_storage.episodes)
    sent = learner(agent, arch, acts_in_workers=True)
    sent.collect_rollouts_parallel(5, parallel_env=manager)
    assert same(alone.policy_storage.episodes, sent.policy_storage.episodes)
    for one, other in zip(alone.policy_storage.episodes, batched.policy_storage.episodes, strict=True):
        assert one["actions"] == pytest.approx(other["actions"], abs=1e-4)
    manager.close()


def test_an_agent_that_fails_and_one_that_gives_an_action_alone() -> None:
    class Simple:
        def act(self, obs: Any, deterministic: bool) -> Any:
            if obs[0, 1] > 6:
                raise LookupError("no such action")
            return np.full((1, 1), 2.0)

    made = learner(Simple())
    with pytest.raises(ProviderError, match="LookupError: no such action") as raised:
        made.collect_rollouts(1)
    assert "in act" in "".join(raised.value.__notes__)
    assert (made._n_env_steps_total, made.policy_storage.samples) == (0, [])


def test_actions_without_a_batch_axis_are_named() -> None:
    class Alone:
        def act(self, obs: Any, deterministic: bool = False) -> Any:
            return np.zeros(2), None, None, None

    with pytest.raises(UsageError, match=r"Alone.act\(\) gave actions of shape \(2,\) for 1 observation.*the batch"):
        learner(Alone(), env=make_env("PointRobot-v0", 1)).collect_rollouts(1)


def test_a_rollout_number_is_needed() -> None:
    with pytest.raises(UsageError, match="num_rollouts=0 is not a whole number from 1"):
        learner(Chance(2, 1)).collect_rollouts_parallel(0)


def test_what_is_missing_is_told_before_anything_is_played() -> None:
    agent = Chance(2, 1)
    for attribute, value, told in (
        ("train_env", None, r"call init_env\(\) first"),
        ("policy_storage", None, r"call init_storage\(\) first"),
        ("agent", "me", r"agent='me' has no act\(\)"),
    ):
        made = learner(agent)
        setattr(made, attribute, value)
        with pytest.raises(UsageError, match=told):
            made.collect_rollouts(1)
    with_pool = managed(1)
    with_pool.close()
    with pytest.raises(ClosedError, match="make another"):
        learner(agent).collect_rollouts_parallel(1, False, with_pool)


@pytest.mark.parametrize("arch", [AGENT_ARCHS.Markov, "memory"])
def test_storages_of_the_learner(arch: Any) -> None:
    made = Learner()
    made.agent_arch = arch
    made.init_env("meta", "PointRobotSparse-v0", 2, 3, 1, num_parallel_workers=0, max_episode_steps=4)
    made.init_storage(buffer_size=40)
    made.collect_rollouts(3, random_actions=True)
    assert made.policy_storage.size() == 24
    made.collect_rollouts(3, random_actions=True)
    assert made.policy_storage.size() == 40
    made.close()


def test_the_pool_of_a_learner_has_its_own_options() -> None:
    made = Learner()
    made.init_env("meta", "PointRobot-v0", 2, 3, 1, num_parallel_workers=3, processes=1, max_episode_steps=4)
    made.init_storage(buffer_size=40)
    assert made.collect_rollouts_parallel(3, random_actions=True, parallel_env=made.train_env_parallel) == 24
    made.close()


# storages


def rows(values: list[int], width: int) -> Any:
    return np.repeat(np.array(values, dtype=float)[:, None], width, axis=1)


def add(buffer: SeqReplayBuffer, values: list[int]) -> None:
    buffer.add_episode(rows(values, 2), rows(values, 1), rows(values, 1), rows([0] * len(values), 1), rows(values, 2))


def test_steps_are_drawn_from_those_that_are_left() -> None:
    buffer = SimpleReplayBuffer(4, 2, 1)
    with pytest.raises(UsageError, match="empty"):
        buffer.random_batch(1)
    for value in range(6):
        buffer.add_sample(rows([value], 2)[0], value, value, value == 5, rows([value + 1], 2)[0])
    batch = buffer.random_batch(200)
    assert {key: values.shape for key, values in batch.items()} == {
        "obs": (200, 2), "act": (200, 1), "rew": (200, 1), "term": (200, 1), "obs2": (200, 2),
    }  # fmt: skip
    assert {*batch["act"].ravel()} == {2, 3, 4, 5}
    assert (batch["obs2"] == batch["obs"] + 1).all()
    assert (batch["term"].ravel() == (batch["act"].ravel() == 5)).all()


@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=20), length=st.integers(1, 9))
def test_parts_of_episodes_never_mix_two(lengths: list[int], length: int) -> None:
    buffer = SeqReplayBuffer(16, 2, 1, length)
    for number, count in enumerate(lengths):
        add(buffer, [100 * (number + 1) + step for step in range(count)])
    kept = 0
    while kept < len(lengths) and sum(lengths[-kept - 1 :]) <= 16:
        kept += 1
    assert buffer.size() == sum(lengths[-kept:])
    batch = buffer.random_episodes(64)
    assert batch["obs"].shape == (length, 64, 2)
    assert batch["mask"].shape == (length, 64, 1)
    for column in range(64):
        mask, acts = batch["mask"][:, column, 0], batch["act"][:, column, 0]
        part = acts[mask == 1].astype(int).tolist()
        number, first = divmod(part[0], 100)
        assert len(lengths) - kept < number <= len(lengths)
        assert part == [part[0] + step for step in range(len(part))]
        assert len(part) == min(length, lengths[number - 1])
        assert first + len(part) <= lengths[number - 1]
        assert mask.tolist() == [1] * len(part) + [0] * (length - len(part))
        assert not acts[len(part) :].any()


def test_what_comes_after_an_episode_never_shows_even_if_it_is_infinite() -> None:
    buffer = SeqReplayBuffer(8, 2, 1, 4)
    add(buffer, [1] * 2)
    endless = np.full((4, 2), np.inf)
    ones = np.ones((4, 1))
    buffer.add_episode(observations=endless, actions=ones, rewards=ones, terminals=ones, next_observations=endless)
    batch = buffer.random_episodes(64)
    assert not np.isnan(batch["obs"]).any()
    assert not batch["obs"][batch["mask"][:, :, 0] == 0].any()


def test_long_episodes_are_drawn_more_often() -> None:
    drawn = {}
    for baseline in (0.0, 1000.0):
        buffer = SeqReplayBuffer(100, 2, 1, 2, baseline)
        add(buffer, [1] * 2)
        add(buffer, [2] * 10)
        drawn[baseline] = np.mean(buffer.random_episodes(4000)["act"][0] == 1)
    assert drawn[0.0] == pytest.approx(0.1, abs=0.03)
    assert drawn[1000.0] == pytest.approx(0.5, abs=0.03)


def test_what_is_no_episode() -> None:
    buffer = SeqReplayBuffer(4, 2, 1, 2)
    with pytest.raises(UsageError, match="from 1 to 4"):
        add(buffer, [1] * 5)
    with pytest.raises(UsageError, match="as many rows of each"):
        buffer.add_episode(rows([1, 2], 2), rows([1], 1), rows([1, 2], 1), rows([1, 2], 1), rows([1, 2], 2))
    with pytest.raises(UsageError, match="sample_weight_baseline=-1"):
        SeqReplayBuffer(4, 2, 1, 2, -1)


def test_gymnasium_envs_are_collected_from_too() -> None:
    manager = ParallelEnvManager([lambda: gymnasium.make("CartPole-v1")] * 2, processes=1)
    made = learner(Chance(4, 2), env=gymnasium.make("CartPole-v1"))
    steps = made.collect_rollouts_parallel(3, parallel_env=manager)
    assert steps == len(made.policy_storage.samples)
    again = learner(Chance(4, 2), env=VariBadWrapper(gymnasium.make("CartPole-v1"), 1))
    assert again.collect_rollouts(3) == steps
    manager.close()
