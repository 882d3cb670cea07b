"""The ways to collect rollouts: which one is taken, and that it makes no difference to what is collected."""

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncrollout import ProviderError, UsageError
from asyncrollout.dropin import portal
from asyncrollout.dropin.metarl import AGENT_ARCHS, Learner, ParallelEnvManager
from asyncrollout.dropin.metarl.acting import AgentPolicy
from asyncrollout.dropin.metarl.chance import kept_generators, seed_generators
from asyncrollout.dropin.metarl.row_rng import RowGenerator
from asyncrollout.dropin.metarl.ways import Took, Way, WayChooser, WayShare
from asyncrollout.types import Request, Sampling
from tests.envs.meta import Careless, Chance, Counting, Global, Homebound, OldEnv, Recall

WAYS = [*Way]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    portal.close()


class Episodes:
    """A storage that keeps whole rollouts."""

    def __init__(self) -> None:
        self.episodes: list[dict[str, Any]] = []

    def add_episode(self, **episode: Any) -> None:
        self.episodes.append(episode)


class Clock:
    """Each way of collecting takes as long as the test says: the time of the n-th reading is the sum of the first n."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = iter(seconds)
        self._now = 0.0

    def __call__(self) -> float:
        self._now += next(self._seconds)
        return self._now


def learner(agent: Any, arch: AGENT_ARCHS = AGENT_ARCHS.Memory_Markov, **attributes: Any) -> Learner:
    made = Learner()
    made.agent, made.agent_arch, made.policy_storage = agent, arch, Episodes()
    made.train_env, made.train_tasks = OldEnv(), range(3)
    vars(made).update(attributes)
    return made


def same(one: Learner, other: Learner) -> bool:
    a, b = one.policy_storage.episodes, other.policy_storage.episodes
    return len(a) == len(b) and all(
        np.array_equal(x[key], y[key]) for x, y in zip(a, b, strict=True) for key in ("observations", "actions")
    )


# the choice, by a model of a machine


@dataclass
class Machine:
    """What each way takes, in seconds: busy processes share the cores; `others` are not ours."""

    cores: float = 2.0
    others: float = 0.0
    agent: float = 1e-4
    env: float = 4e-4
    steps: int = 200  # of a rollout
    ship: float = 0.01
    trip: float = 6e-5
    at_once: int = 2

    def took(self, share: WayShare) -> Took:
        way, rollouts = share
        alone = way is Way.SEQUENTIAL
        busy = 1 if alone else min(rollouts, self.at_once)
        rounds = -(-rollouts // busy)
        slow = max(1.0, (busy + self.others) / self.cores)
        one = self.agent + self.env
        step = max(busy * (self.agent + self.trip), one + self.trip) if way is Way.HERE else one
        seconds = rounds * self.steps * step * slow + (self.ship if way is Way.WORKERS else 0.0)
        steps = rollouts * self.steps
        computed = 0.0 if way is Way.HERE else steps * one
        return Took(steps, seconds, steps * one * slow, steps * self.agent * slow, computed)

    def seconds(self, way: Way, rollouts: int) -> float:
        return self.took(WayShare(way, rollouts)).seconds


@dataclass
class Played:
    """Calls of a learner: the shares of each, its seconds, and those of each way alone."""

    shares: list[list[WayShare]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    alone: dict[Way, list[float]] = field(default_factory=lambda: {way: [] for way in Way})

    def ratio(self, way: Way, first: int = 0) -> float:
        """How many times as long as in that way the calls from that one on took."""
        return sum(self.seconds[first:]) / sum(self.alone[way][first:])

    @property
    def best(self) -> Way:
        return min(Way, key=lambda way: sum(self.alone[way]))

    @property
    def ways(self) -> list[Way]:
        """That of most rollouts of each call."""
        return [shares[-1].way for shares in self.shares]


def play(machine: Machine, rollouts: int, calls: int, loads: Any = lambda call: {}, noise: float = 0.0) -> Played:
    chooser, played, rng = WayChooser(min(machine.at_once, rollouts)), Played(), random.Random(7)
    for call in range(calls):
        now = replace(machine, **loads(call))
        shares = chooser.choose(WAYS, rollouts)
        assert sum(share.rollouts for share in shares) == rollouts
        luck = rng.lognormvariate(0.0, noise)
        total = 0.0
        for share in shares:
            took = now.took(share)
            took = took._replace(seconds=took.seconds * luck * rng.lognormvariate(0.0, noise))
            chooser.record(share, took)
            total += took.seconds
        played.shares.append(shares)
        played.seconds.append(total)
        for way in Way:
            played.alone[way].append(now.seconds(way, rollouts) * luck)
    return played


MACHINES = {
    "idle": Machine(),
    "eight cores": Machine(cores=8, at_once=8),
    "one core": Machine(cores=1),
    "half of the cores": Machine(others=1),
    "light env": Machine(agent=2e-5, env=2e-6, steps=60),
    "light env on one core": Machine(cores=1, agent=2e-5, env=2e-6, steps=60),
    "heavy agent to send": Machine(ship=3.0),
    "large agent, slow env": Machine(agent=2e-3, env=2e-2, ship=30.0),
}


@pytest.mark.parametrize("rollouts", [1, 2, 3, 12, 50])
@pytest.mark.parametrize("machine", [*MACHINES.values()], ids=[*MACHINES])
def test_collecting_is_as_fast_as_the_fastest_way_and_never_slower_than_one_env(
    machine: Machine, rollouts: int
) -> None:
    """All calls count, those too that look at slower ways; the first ones, which know nothing yet, by themselves."""
    played = play(machine, rollouts, 400)
    assert played.ratio(Way.SEQUENTIAL, first=3) <= 1.02
    assert played.ratio(played.best, first=3) <= 1.02
    assert {*played.ways[-100:]} >= {played.best}
    slower = [
        call
        for call, (seconds, alone) in enumerate(zip(played.seconds, played.alone[Way.SEQUENTIAL], strict=True))
        if seconds > 1.02 * alone
    ]
    assert len(slower) <= 16


def test_one_core_on_which_every_worker_seems_busy_is_seen_through() -> None:
    """Each worker waits for the other one: by the clock, agent and env took twice as long as they would alone."""
    played = play(MACHINES["one core"], 2, 20)
    assert played.alone[Way.WORKERS][0] > played.alone[Way.SEQUENTIAL][0]
    assert played.ways[2:].count(Way.SEQUENTIAL) >= 15


def test_no_other_way_is_looked_at_where_workers_are_surely_faster() -> None:
    played = play(MACHINES["eight cores"], 8, 100)
    assert played.shares == [[WayShare(Way.WORKERS, 8)]] * 100


def test_a_look_at_one_env_plays_one_rollout() -> None:
    played = play(MACHINES["idle"], 12, 300)
    assert played.shares[1] == [WayShare(Way.SEQUENTIAL, 1), WayShare(Way.WORKERS, 11)]
    looks = [shares for shares in played.shares if len(shares) > 1]
    assert {*map(tuple, looks)} == {tuple(played.shares[1])}
    assert {share.way for shares in played.shares for share in shares} == {Way.WORKERS, Way.SEQUENTIAL}


@pytest.mark.parametrize("rollouts", [2, 12])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_machine_that_becomes_busy_or_idle_is_noticed(rollouts: int, noise: float) -> None:
    def loads(call: int) -> dict[str, float]:
        return {"cores": 1.0} if 200 <= call < 400 else {}

    played = play(Machine(env=1e-4, ship=0.008 * rollouts), rollouts, 600, loads, noise)
    for first, last, best in ((3, 200, Way.WORKERS), (205, 400, Way.SEQUENTIAL), (450, 600, Way.WORKERS)):
        for way in (best, Way.SEQUENTIAL):
            assert sum(played.seconds[first:last]) <= (1.02 + noise / 2) * sum(played.alone[way][first:last])
    assert sum(played.seconds[200:205]) <= (1.3 + noise) * sum(played.alone[Way.SEQUENTIAL][200:205])


def test_one_slow_call_changes_nothing_but_one_rollout() -> None:
    played = play(Machine(), 12, 40, lambda call: {"others": 9.0 if call == 20 else 0.0})
    assert {*played.ways} == {Way.WORKERS}
    looks = [call for call, shares in enumerate(played.shares) if len(shares) > 1]
    assert [call for call in looks if 20 <= call < 25] == [21]


def test_slower_ways_are_looked_at_the_rarer_the_slower_they_are() -> None:
    def looks(ship: float) -> int:
        played = play(Machine(cores=1, ship=ship), 12, 1000)
        return sum(way is Way.WORKERS for way in played.ways[3:])

    assert 50 > looks(0.1) > looks(1.0) > looks(10.0) > 0


def test_a_way_that_is_not_there_is_not_taken() -> None:
    chooser = WayChooser(2)
    chooser.record(WayShare(Way.WORKERS, 2), Took(1, 0.1, worked=1.0, acted=0.5))
    assert chooser.choose([Way.HERE, Way.SEQUENTIAL], 2) == [WayShare(Way.HERE, 2)]


# what is played


class LongerEnv(OldEnv):
    _max_episode_steps = 7


@pytest.mark.parametrize("first", [None, *WAYS])
@pytest.mark.parametrize("way", WAYS)
def test_different_envs_of_a_manager_play_the_same_shares_in_every_way(
    way: Way, first: Way | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(chooser: WayChooser, ways: list[Way], rollouts: int) -> list[WayShare]:
        return [WayShare(way, rollouts)] if first is None else [WayShare(first, 1), WayShare(way, rollouts - 1)]

    monkeypatch.setattr(WayChooser, "choose", choose)
    manager = ParallelEnvManager([OldEnv, LongerEnv, OldEnv], processes=1)
    made = learner(Chance(2, 1))
    for count in (5, 2):
        made.collect_rollouts_parallel(count, parallel_env=manager)
    assert made.last_collection is not None
    assert made.last_collection.way is way
    assert [len(one["rewards"]) for one in made.policy_storage.episodes] == [5, 7, 5, 5, 7, 5, 7]


# the choice of a learner, by a clock of the test


def test_a_learner_takes_the_way_that_was_fastest() -> None:
    manager = ParallelEnvManager([OldEnv] * 2, processes=2)
    workers, one_rollout = (0, 0, 1000), (0, 100, 0, 1000)  # a third reading after the agent is loaded; then two shares
    clock = Clock(*workers, *one_rollout, 0, 3000, *[0, 500] * 9)
    made = learner(Chance(2, 1), _clock=clock)
    ways = []
    for _ in range(6):
        made.collect_rollouts_parallel(4, parallel_env=manager)
        assert made.last_collection is not None
        ways.append((made.last_collection.way, made.last_collection.seconds))
    assert ways == [(Way.WORKERS, 1000), (Way.WORKERS, 1100), (Way.HERE, 3000), *[(Way.SEQUENTIAL, 500)] * 3]
    alone = learner(Chance(2, 1))
    alone.collect_rollouts(24)
    assert same(made, alone)
    other = learner(Chance(2, 1), _clock=Clock(0, 500))  # what is known belongs to the pool
    other.collect_rollouts_parallel(4, parallel_env=manager)
    assert other.last_collection is not None
    assert other.last_collection.way is Way.SEQUENTIAL
    manager.close()


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("make", [OldEnv, Global])
@pytest.mark.parametrize(
    ("agent", "arch"),
    [(Chance(2, 1), AGENT_ARCHS.Memory_Markov), (Careless(), AGENT_ARCHS.Markov), (Recall(), AGENT_ARCHS.Memory)],
)
def test_every_way_collects_the_same(make: Any, agent: Any, arch: AGENT_ARCHS, processes: int) -> None:
    if arch is AGENT_ARCHS.Memory and make is Global:
        pytest.skip("Recall knows what OldEnv pays")
    arch = AGENT_ARCHS.Memory_Markov if arch is AGENT_ARCHS.Markov else arch
    manager = ParallelEnvManager([make] * 3, processes=processes)
    alone = learner(agent, arch, train_env=make())
    alone.collect_rollouts(7)
    for wish in (True, False, None):
        made = learner(agent, arch, acts_in_workers=wish)
        made.collect_rollouts_parallel(7, parallel_env=manager)
        assert same(made, alone)
    manager.close()


def test_what_a_network_of_torch_draws_is_the_same_in_every_way() -> None:
    torch = pytest.importorskip("torch", reason="needs pip install 'asyncrollout[torch]'")

    class Network(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.out = torch.nn.Linear(2, 1)

        def act(self, obs: Any, deterministic: bool) -> Any:
            assert torch.get_num_threads() == 1
            return torch.distributions.Normal(torch.tanh(self.out(obs / 1000)), 1.0).sample()

    agent, threads = Network(), torch.get_num_threads()
    manager = ParallelEnvManager([OldEnv] * 3, processes=2)
    alone = learner(agent)
    torch.manual_seed(5)
    before = torch.rand(3)
    torch.manual_seed(5)
    alone.collect_rollouts(5)
    assert torch.equal(torch.rand(3), before)
    assert torch.get_num_threads() == threads
    for wish in (True, False, None):
        made = learner(agent, acts_in_workers=wish)
        made.collect_rollouts_parallel(5, parallel_env=manager)
        assert same(made, alone)
        assert made.last_collection is not None
        assert made.last_collection.reason == ""
    assert len({float(action) for one in alone.policy_storage.episodes for action in one["actions"].ravel()}) == 25
    manager.close()


def test_the_callers_generators_are_as_before() -> None:
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    before = random.random(), np.random.uniform()  # noqa: NPY002
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    made = learner(Careless(), train_env=Global())
    made.collect_rollouts(2)
    assert (random.random(), np.random.uniform()) == before  # noqa: NPY002
    actions = np.concatenate([episode["actions"] for episode in made.policy_storage.episodes])
    assert len({*actions.ravel()}) == 10


class GpuGenerator:
    """torch's generator of a device, which cannot be had without the device."""

    state = 5

    def manual_seed(self, seed: int) -> None:
        self.state = seed

    def get_state(self) -> int:
        return self.state

    def set_state(self, state: int) -> None:
        self.state = state


def test_generators_of_gpus_are_seeded_and_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    processor, gpus = GpuGenerator(), (GpuGenerator(), GpuGenerator())
    cuda = SimpleNamespace(is_initialized=lambda: True, default_generators=gpus)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(default_generator=processor, cuda=cuda))
    with kept_generators():
        seed_generators(9)
        assert [one.state for one in (processor, *gpus)] == [9, 9, 9]
    assert [one.state for one in (processor, *gpus)] == [5, 5, 5]


# agents that stay here


def test_an_agent_that_acting_changes_acts_here() -> None:
    manager = ParallelEnvManager([OldEnv] * 2, processes=1)
    made = learner(Counting(), AGENT_ARCHS.Memory)
    for _ in range(2):
        assert made.collect_rollouts_parallel(3, parallel_env=manager) == 15
    assert made.last_collection is not None
    assert made.last_collection.way is not Way.WORKERS
    assert "acting changes the agent" in made.last_collection.reason
    assert len(made.agent.sizes) == 30
    alone = learner(Recall(), AGENT_ARCHS.Memory)
    alone.collect_rollouts(6)
    assert same(made, alone)
    manager.close()


def test_an_agent_that_cannot_be_loaded_elsewhere_acts_here(tmp_path: Any) -> None:
    manager = ParallelEnvManager([OldEnv] * 2, processes=1)
    made = learner(Homebound(tmp_path))
    made.collect_rollouts_parallel(3, parallel_env=manager)
    assert made.last_collection is not None
    assert made.last_collection.way is Way.HERE
    told = "the agent cannot be loaded in a worker process: LookupError: lost on the way"
    assert made.last_collection.reason.endswith(told)
    manager.close()


def test_an_agent_that_fails_everywhere_is_raised_and_not_held_against_its_kind() -> None:
    class Failing:
        is_lost = True

        def act(self, obs: Any, deterministic: bool) -> Any:
            if self.is_lost:
                raise LookupError("no such action")
            return np.zeros((len(obs), 1))

    manager = ParallelEnvManager([OldEnv] * 2, processes=1)
    made = learner(Failing())
    with pytest.raises(ProviderError, match="no such action"):
        made.collect_rollouts_parallel(2, parallel_env=manager)
    assert made.policy_storage.episodes == []
    made.agent.is_lost = False
    made.collect_rollouts_parallel(2, parallel_env=manager)
    assert made.last_collection is not None
    assert made.last_collection.way is Way.WORKERS
    manager.close()


# chance in batches


def asked(agent: Any, seeds: list[int]) -> list[Any]:
    policy = AgentPolicy(agent, AGENT_ARCHS.Markov, discrete=False)
    requests = [Request(sampling=Sampling(seed=seed), data=np.array([seed, 1.0])) for seed in seeds]
    return [reply.action.tolist() for reply in policy(requests)]


@pytest.mark.parametrize("batch", [[1, 2, 3], [3, 1], [2, 3, 1, 5]])
def test_what_is_drawn_from_rng_does_not_depend_on_who_waits_too(batch: list[int]) -> None:
    agent = Chance(2, 1)
    alone = {seed: asked(agent, [seed])[0] for seed in (1, 2, 3, 5)}
    assert len({tuple(action) for action in alone.values()}) == 4
    assert np.array(asked(agent, batch)) == pytest.approx(np.array([alone[seed] for seed in batch]), abs=1e-6)


def generators(count: int = 3) -> list[np.random.Generator]:
    return [np.random.default_rng(number) for number in range(count)]


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("normal", (), {"size": (3, 2)}),
        ("normal", (0.0, 2.0, (3, 2)), {}),
        ("normal", (), {"loc": np.arange(6.0).reshape(3, 2), "scale": np.array([1.0, 2.0])}),
        ("uniform", (np.zeros(3), 2.0), {}),
        ("uniform", (np.array([0.0, 5.0, 9.0]), 10.0), {"size": (3, 3)}),  # for each column, and not for each row
        ("standard_normal", ((3, 2),), {}),
        ("random", (3,), {}),
        ("integers", (0, 9), {"size": (3, 1)}),
        ("choice", ([5, 6, 7],), {"size": 3}),
    ],
)
def test_row_i_is_what_its_own_generator_gives(name: str, args: Any, kwargs: Any) -> None:
    drawn = getattr(RowGenerator(generators()), name)(*args, **kwargs)
    for row in range(3):
        others = [np.random.default_rng(99), np.random.default_rng(77)]
        mixed = RowGenerator([*others[:row], generators()[row], *others[row:]])
        assert np.array_equal(getattr(mixed, name)(*args, **kwargs)[row], drawn[row])


def test_what_cannot_be_drawn_row_by_row() -> None:
    rng = RowGenerator(generators())
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: rng.normal(), r"3 rollouts wait together: draw with size=\(batch, ...\)"),
        (lambda: rng.normal(size=(2, 1)), r"with the shape \(2, 1\), but 3 rollouts"),
        (lambda: rng.shuffle([1, 2]), "rng.shuffle cannot be drawn for a batch"),
        (lambda: rng.choice([1], 3, False), "after size by name"),
    ]
    for draw, told in wrong:
        with pytest.raises(UsageError, match=told):
            draw()
