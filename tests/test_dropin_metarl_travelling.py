"""Agents that are sent to worker processes: who travels, who stays, and that what is played is the same."""

import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import EnvError, ProviderError, UsageError
from asyncrollout.dropin import portal
from asyncrollout.dropin.metarl import AGENT_ARCHS, Learner, ParallelEnvManager, SeqReplayBuffer
from asyncrollout.dropin.metarl.travelling import next_count
from tests.meta_envs import (
    Awry,
    Careless,
    Chance,
    DiesOnce,
    Homebound,
    OldEnv,
    Recall,
    Restless,
    Scheduled,
    Whereabouts,
)

HERE, THERE = 1.0, 2.0


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


def equal(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(a[key], b[key]) and a[key].dtype == b[key].dtype
        for a, b in zip(one, other, strict=True)
        for key in a
    )


@pytest.mark.parametrize(("wish", "where"), [(None, THERE), (True, THERE), (False, HERE)])
def test_where_an_agent_acts(manager: ParallelEnvManager, wish: bool | None, where: float) -> None:
    made = learner(Whereabouts(), acts_in_workers=wish)
    assert acted(collected(made, 4, manager)) == {where}
    assert acted(collected(made, 2, None)) == {HERE}


def test_new_weights_travel_too(manager: ParallelEnvManager) -> None:
    made = learner(Whereabouts())
    for factor in (0.5, 0.25):
        made.agent.factor = factor
        assert acted(collected(made, 6, manager)) == {THERE * factor}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Homebound, "cannot be loaded in a worker process: LookupError: lost on the way"),
        (lambda: Whereabouts(lock=threading.Lock()), "cannot be sent to a worker process"),
        (Restless, "acting changes it, or a global of its module"),
    ],
)
def test_who_cannot_travel_is_asked_here(
    manager: ParallelEnvManager, caplog: pytest.LogCaptureFixture, make: Callable[[], Any], why: str
) -> None:
    made = learner(make())
    with caplog.at_level(logging.INFO, logger="asyncrollout"):
        together = [*collected(made, 5, manager), *collected(made, 2, manager)]
    assert caplog.text.count("the agent is asked in this process") == 1  # and is not tried again
    assert why in caplog.text
    assert made.agent.home  # the learner's own
    if make is not Restless:  # which is asked in another order by many envs than by one
        assert equal(together, collected(learner(make()), 7, None))
        assert acted(together) == {HERE}
    with pytest.raises(UsageError, match=rf"acts_in_workers=True: agent=.* has to stay: it .*{why}|{why}"):
        collected(learner(make(), acts_in_workers=True), 3, manager)


def test_globals_that_acting_changes_keep_an_agent_here(manager: ParallelEnvManager) -> None:
    assert acted(collected(learner(Scheduled()), 4, manager)) == {HERE}
    assert acted(collected(learner(Scheduled(), acts_in_workers=True), 4, manager)) == {THERE}  # as it was told


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
        many = ParallelEnvManager([OldEnv] * envs, processes=processes)
        played.append(collected(learner(Careless()), 6, many))
        many.close()
    assert equal(played[0], played[1])
    assert equal(played[0], played[2])
    assert len(acted(played[0])) == 6 * 5


def test_a_dead_worker_changes_nothing(tmp_path: Path) -> None:
    many = ParallelEnvManager([partial(DiesOnce, tmp_path / "died")] * 2, processes=1)
    together = collected(learner(Chance(2, 1), acts_in_workers=True), 4, many)
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
        assert "step 2 of a rollout" in "".join(raised.value.__notes__)
    assert made.policy_storage.episodes == []
    many.close()


def test_the_agents_file_is_gone_in_the_end(
    manager: ParallelEnvManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    collected(learner(Chance(2, 1), acts_in_workers=True), 4, manager)
    with pytest.raises(UsageError):
        collected(learner(Restless(), acts_in_workers=True), 4, manager)
    assert list(tmp_path.iterdir()) == []


def test_envs_can_be_stepped_by_hand_afterwards(manager: ParallelEnvManager) -> None:
    collected(learner(Chance(2, 1), acts_in_workers=True), 4, manager)
    first = manager.reset(0, task=2)
    then, reward, done, _ = manager.step(0, np.array([0.5]))
    assert (first[1], then[1], reward, done) == (2.0, 2.5, 2.5, False)


def test_random_actions_are_played_in_workers_whatever_the_agent(manager: ParallelEnvManager) -> None:
    made = learner(Homebound(), acts_in_workers=False)
    made.collect_rollouts_parallel(5, random_actions=True, parallel_env=manager)
    alone = learner(Homebound())
    alone.collect_rollouts(5, random_actions=True)
    assert equal(made.policy_storage.episodes, alone.policy_storage.episodes)


def test_long_rollouts_come_whole() -> None:
    long = partial(_long_env, 2500)
    many = ParallelEnvManager([long] * 2, processes=2)
    made, alone = (learner(Chance(2, 1), train_env=long()) for _ in range(2))
    assert equal(collected(made, 3, many), collected(alone, 3, None))
    many.close()


def _long_env(steps: int) -> OldEnv:
    env = OldEnv()
    env._max_episode_steps = steps
    return env


def test_the_storage_of_episodes_takes_them(manager: ParallelEnvManager) -> None:
    made = learner(Recall(), AGENT_ARCHS.Memory, policy_storage=SeqReplayBuffer(100, 2, 1, 5))
    assert made.collect_rollouts_parallel(6, parallel_env=manager) == 30
    assert made.policy_storage.size() == 30


@given(count=st.integers(1, 1000), seconds=st.floats(0.0, 1e4), wanted=st.floats(1e-4, 1.0))
def test_how_many_steps_a_call_takes(count: int, seconds: float, wanted: float) -> None:
    following = next_count(count, seconds, wanted)
    assert 1 <= following <= min(4 * count, 1000)
    if following > 1:
        assert following * seconds / count <= wanted * 1.001  # at the pace of the last call it is in time
