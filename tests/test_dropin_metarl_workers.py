"""Agents that are sent to worker processes: only if asked for, and what is played is the same."""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrollout import EnvError, EnvTimeout, ProviderError, UsageError
from asyncrollout.dropin import portal
from asyncrollout.dropin.metarl import AGENT_ARCHS, Learner, ParallelEnvManager, SeqReplayBuffer
from tests.envs.meta import (
    Awry,
    Careless,
    Chance,
    DiesOnce,
    Hiding,
    Homebound,
    Homesick,
    Normalising,
    OldEnv,
    Recall,
    Thrifty,
    Whereabouts,
)

HERE, THERE = "here", "there"


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    portal.close()


@pytest.fixture
def manager() -> Iterator[ParallelEnvManager]:
    made = ParallelEnvManager([OldEnv] * 3, processes=2)
    yield made
    made.close()


class Episodes:
    """A storage that keeps whole rollouts."""

    def __init__(self) -> None:
        self.episodes: list[dict[str, Any]] = []

    def add_episode(self, **episode: Any) -> None:
        self.episodes.append(episode)


def learner(agent: Any, arch: AGENT_ARCHS = AGENT_ARCHS.Memory_Markov, **attributes: Any) -> Learner:
    made = Learner()
    made.agent, made.agent_arch, made.policy_storage, made.train_env = agent, arch, Episodes(), OldEnv()
    made.train_tasks = range(3)
    vars(made).update(attributes)
    return made


def collected(made: Learner, count: int, manager: ParallelEnvManager | None) -> list[dict[str, Any]]:
    """The rollouts of one more call."""
    before = len(made.policy_storage.episodes)
    made.collect_rollouts_parallel(count, parallel_env=manager)
    episodes: list[dict[str, Any]] = made.policy_storage.episodes[before:]
    assert len(episodes) == count
    return episodes


def acted(episodes: list[dict[str, Any]]) -> set[float]:
    return {float(action) for episode in episodes for action in episode["actions"].ravel()}


def places(directory: Path) -> set[str]:
    """Where an agent acted that leaves files there, since this was last asked."""
    left = list(directory.iterdir())
    for file in left:
        file.unlink()
    return {HERE if file.name == str(os.getpid()) else THERE for file in left}


def equal(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(a[key], b[key]) and a[key].dtype == b[key].dtype
        for a, b in zip(one, other, strict=True)
        for key in a
    )


@pytest.mark.parametrize(
    ("asked", "where"),
    [({}, {THERE}), ({"acts_in_workers": True}, {THERE}), ({"acts_in_workers": False}, {HERE})],
)
def test_where_an_agent_acts(
    manager: ParallelEnvManager, tmp_path: Path, asked: dict[str, Any], where: set[str]
) -> None:
    made = learner(Whereabouts(tmp_path), **asked)
    collected(made, 4, manager)
    assert places(tmp_path) == where
    collected(made, 2, None)
    assert places(tmp_path) == {HERE}


def test_new_weights_are_sent_too(manager: ParallelEnvManager, tmp_path: Path) -> None:
    made = learner(Whereabouts(tmp_path), acts_in_workers=True)
    for factor in (0.5, 0.25):
        made.agent.factor = factor
        assert acted(collected(made, 6, manager)) == {factor}
        assert places(tmp_path) == {THERE}


def test_an_agent_that_cannot_be_sent(manager: ParallelEnvManager, tmp_path: Path) -> None:
    locked = Whereabouts(tmp_path, lock=threading.Lock())
    with pytest.raises(UsageError, match="acts_in_workers=True: the agent cannot be sent to a worker process"):
        collected(learner(locked, acts_in_workers=True), 3, manager)
    lost = "acts_in_workers=True: the agent cannot be loaded in a worker process: LookupError: lost on the way"
    with pytest.raises(UsageError, match=lost):
        collected(learner(Homebound(tmp_path), acts_in_workers=True), 3, manager)
    for agent in (locked, Homebound(tmp_path)):
        collected(learner(agent), 3, manager)
    assert places(tmp_path) == {HERE}


def test_an_agent_that_hangs_in_a_worker_is_an_error(tmp_path: Path) -> None:
    many = ParallelEnvManager([OldEnv] * 2, processes=1, step_timeout=0.5)
    with pytest.raises(EnvTimeout):
        collected(learner(Homesick(tmp_path, home=os.getpid()), acts_in_workers=True), 1, many)
    many.close()


class NeverReset(OldEnv):
    def reset(self, *args: Any, **kwargs: Any) -> Any:
        threading.Event().wait()


def test_a_reset_has_its_own_limit_which_is_no_shorter_than_that_of_a_step() -> None:
    with (
        closing(ParallelEnvManager([NeverReset], reset_timeout=3.0)) as many,
        pytest.raises(EnvTimeout, match=r"longer than 3 s"),
    ):
        many.reset(0)
    for step, reset in ((60.0, 120.0), (600.0, 600.0)):
        with closing(ParallelEnvManager([OldEnv], step_timeout=step)) as many:
            assert many.reset_timeout == reset


@pytest.mark.parametrize("make", [OldEnv, Thrifty])
@pytest.mark.parametrize("agent", [Chance(2, 1), Normalising()])
def test_nothing_that_is_stored_is_changed_afterwards(make: Any, agent: Any) -> None:
    many = ParallelEnvManager([make] * 2, processes=1)
    alone = collected(learner(agent, train_env=make()), 4, None)
    assert all(len({*map(tuple, episode["observations"])}) == 5 for episode in alone)
    for wish in (True, False):
        assert equal(alone, collected(learner(agent, acts_in_workers=wish), 4, many))
    many.close()


def test_an_agent_that_acts_in_two_ways_is_refused(manager: ParallelEnvManager) -> None:
    with pytest.raises(UsageError, match="both True"):
        collected(learner(Chance(2, 1), acts_in_workers=True, acts_in_batches=True), 1, manager)


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("arch", [AGENT_ARCHS.Memory_Markov, AGENT_ARCHS.Memory])
def test_the_same_rollouts_wherever_the_agent_acts(arch: AGENT_ARCHS, processes: int) -> None:
    many = ParallelEnvManager([OldEnv] * 4, processes=processes)
    agent = Recall() if arch is AGENT_ARCHS.Memory else Chance(2, 1)
    alone = collected(learner(agent, arch), 9, None)
    for wish in (True, False):
        assert equal(alone, collected(learner(agent, arch, acts_in_workers=wish), 9, many))
    many.close()


def test_chance_that_is_everybodys_is_a_rollouts_own() -> None:
    played = []
    for envs, processes in ((1, 1), (4, 1), (3, 2)):
        many = ParallelEnvManager([Hiding] * envs, processes=processes)
        played.append(collected(learner(Careless(), acts_in_workers=True), 6, many))
        many.close()
    assert equal(played[0], played[1])
    assert equal(played[0], played[2])
    assert len(acted(played[0])) == 6 * 5
    hidden = {float(episode["observations"][0, 0]) for episode in played[0]}
    assert hidden.isdisjoint(acted(played[0]))  # the agent does not draw what its env drew


@pytest.mark.parametrize("wish", [False, True])
def test_a_dead_worker_changes_nothing(tmp_path: Path, wish: bool) -> None:
    many = ParallelEnvManager([partial(DiesOnce, tmp_path / "died")] * 2, processes=1)
    together = collected(learner(Chance(2, 1), acts_in_workers=wish), 4, many)
    assert (tmp_path / "died").exists()
    assert equal(together, collected(learner(Chance(2, 1)), 4, None))
    many.close()


def test_an_agent_that_raises(manager: ParallelEnvManager) -> None:
    class Lost:
        def act(self, obs: Any, deterministic: bool) -> Any:
            if obs[0, 1] > 6:
                raise LookupError("no such action")
            return np.full((1, 1), 2.0)

    made = learner(Lost(), acts_in_workers=True)
    with pytest.raises(ProviderError, match="the policy raised LookupError: no such action") as raised:
        collected(made, 4, manager)
    assert "in act" in "".join(raised.value.__notes__)
    assert (made._n_env_steps_total, made.policy_storage.episodes) == (0, [])
    assert len(collected(learner(Chance(2, 1)), 4, manager)) == 4


@pytest.mark.parametrize(("how", "told"), [("raises", "LookupError: no way on"), ("nan", "reward nan at step 2")])
def test_an_env_that_fails(how: str, told: str) -> None:
    many = ParallelEnvManager([partial(Awry, how)] * 2, processes=1)
    made = learner(Chance(2, 1), acts_in_workers=True)
    with pytest.raises(EnvError, match=told) as raised:
        collected(made, 2, many)
    if how == "raises":
        notes = "".join(raised.value.__notes__)
        assert "step 2 of a rollout" in notes
        assert "action space" not in notes
    assert made.policy_storage.episodes == []
    many.close()


def test_the_agents_file_is_gone_in_the_end(
    manager: ParallelEnvManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    collected(learner(Chance(2, 1), acts_in_workers=True), 4, manager)
    with pytest.raises(UsageError):
        collected(learner(Homebound(tmp_path), acts_in_workers=True), 4, manager)
    assert [*tmp_path.iterdir()] == []


def test_an_agents_file_that_cannot_be_written(
    manager: ParallelEnvManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="the agent's file cannot be written"):
        collected(learner(Chance(2, 1), acts_in_workers=True), 1, manager)


def test_envs_can_be_stepped_by_hand_afterwards(manager: ParallelEnvManager) -> None:
    collected(learner(Chance(2, 1), acts_in_workers=True), 4, manager)
    first = manager.reset(0, task=2)
    then, reward, done, _ = manager.step(0, np.array([0.5]))
    assert (first[1], then[1], reward, done) == (2.0, 2.5, 2.5, False)


@pytest.mark.parametrize("wish", [False, True])
def test_random_actions_are_the_same_in_workers(manager: ParallelEnvManager, wish: bool) -> None:
    made = learner(Chance(2, 1), acts_in_workers=wish)
    made.collect_rollouts_parallel(5, random_actions=True, parallel_env=manager)
    alone = learner(Chance(2, 1))
    alone.collect_rollouts(5, random_actions=True)
    assert equal(made.policy_storage.episodes, alone.policy_storage.episodes)


def test_long_rollouts_come_whole() -> None:
    long = partial(_long_env, 2500)
    many = ParallelEnvManager([long] * 2, processes=2)
    made, alone = (learner(Chance(2, 1), train_env=long(), acts_in_workers=True) for _ in range(2))
    assert equal(collected(made, 3, many), collected(alone, 3, None))
    many.close()


def _long_env(steps: int) -> OldEnv:
    env = OldEnv()
    env._max_episode_steps = steps
    return env


def test_the_storage_of_episodes_takes_them(manager: ParallelEnvManager) -> None:
    made = learner(Recall(), AGENT_ARCHS.Memory, acts_in_workers=True, policy_storage=SeqReplayBuffer(100, 2, 1, 5))
    assert made.collect_rollouts_parallel(6, parallel_env=manager) == 30
    assert made.policy_storage.size() == 30
