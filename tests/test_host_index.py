"""Placement among very many hosts finds what a look at each of them would find."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout.pool import host_index
from asyncrollout.pool.host_index import HostIndex
from asyncrollout.pool.process.rebalancing import _Soonest


@dataclass(eq=False)
class Host:
    """As far as an index looks at it."""

    rank: int
    load: float = 0.0
    envs: int = 0
    usable: bool = True
    busy: float = 0.0

    def wait(self) -> float:
        return self.busy


steps = st.lists(
    st.tuples(st.sampled_from(["place", "leave", "grow", "block", "lose"]), st.integers(0, 11)), max_size=60
)


@given(steps)
def test_the_least_loaded_host_that_is_free_soon(steps: list[tuple[str, int]]) -> None:
    hosts: Any = [Host(rank) for rank in range(12)]
    index = HostIndex()
    for step, number in steps:
        host = hosts[number % len(hosts)]
        if step == "place":
            chosen: Any = index.least_loaded(hosts, soon=0.05)
            free = [one for one in hosts if one.busy <= 0.05]
            if free:
                assert (chosen.load, chosen.envs) == min((one.load, one.envs) for one in free)
            else:
                assert chosen.busy == min(one.busy for one in hosts)
            chosen.envs += 1
            chosen.load += 0.001
        elif step == "leave" and host.envs:
            host.envs -= 1
            host.load = max(host.load - 0.001, 0.0)
            index.add(host)
        elif step == "grow":
            host.load += 0.0005
        elif step == "block":
            host.busy = 0.0 if host.busy else 1.0 + number
        elif step == "lose" and len(hosts) > 1:
            host.usable = False
            hosts = [one for one in hosts if one is not host]


def test_loads_that_have_shrunk_are_found_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_index, "_RENEW_AFTER", -1.0)
    hosts: Any = [Host(rank, load=0.1 + rank) for rank in range(3)]
    index = HostIndex()
    assert index.least_loaded(hosts, soon=0.05) is hosts[0]
    hosts[2].load = 0.0
    assert index.least_loaded(hosts, soon=0.05) is hosts[2]
    assert index.mean_load == 0.0


@dataclass
class Queue:
    ends: float


changes = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([-1.0, 0.0, 0.5, 2.0])), max_size=40)


@given(st.lists(st.sampled_from([0.0, 1.0, 3.5]), min_size=2, max_size=6), changes)
def test_the_queue_beside_one_that_ends_first(ends: list[float], changes: list[tuple[int, float]]) -> None:
    queues: Any = [Queue(end) for end in ends]
    soonest = _Soonest(queues)
    for number, change in changes:
        place = number % len(queues)
        found = soonest.beside(place)
        assert found == min((one for one in range(len(queues)) if one != place), key=lambda one: queues[one].ends)
        for changed in (found, place):
            queues[changed].ends += change
            soonest.note_change(changed)
