"""The pool's contract, which all backends keep, on Ray: the same tests, with actors that live as long as this file."""

import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from asyncrollout import EnvPool, RayOptions
from asyncrollout.ray import env_actors
from asyncrollout.ray.actor_rank import ClusterCalls
from asyncrollout.ray.cluster import ClusterLease
from tests import test_digest, test_handle, test_pool, test_pool_episodes, test_pool_life, test_pool_values
from tests.pool_places import PLACES, Place
from tests.pool_programs import random_program
from tests.ray_cluster import TestCluster, left_on_nodes, one_at_a_time
from tests.test_pool_model import check, impatient, known  # noqa: F401 (fixtures, too)

pytestmark = pytest.mark.ray

MODULES = (test_digest, test_handle, test_pool, test_pool_episodes, test_pool_life, test_pool_values)
CONTRACT = {
    f"{module.__name__.removeprefix('tests.')}: {name}": test
    for module in MODULES
    for name, test in vars(module).items()
    if name.startswith("test_") and [*inspect.signature(test).parameters] == ["options"]
}


@pytest.fixture(scope="module")
def warm_actors(_joined_cluster: TestCluster, ray_directory: Path) -> Iterator[dict[str, Any]]:
    """What makes pools that pass their actors on: to start one takes as long as all the rest of a test."""
    idle: list[Any] = []
    original = env_actors._calls

    def passed_on(*args: Any) -> ClusterCalls:
        calls = original(*args)
        return calls._replace(create=lambda: idle.pop() if idle else calls.create(), kill=idle.append)

    with one_at_a_time(ray_directory), pytest.MonkeyPatch.context() as patched:
        patched.setattr(env_actors, "_calls", passed_on)
        lease = anyio.run(ClusterLease.take, _joined_cluster.address)
        yield {"workers": 1, "backend": "ray", "ray": RayOptions(address=_joined_cluster.address, wait=60)}
        anyio.run(lease.give_back)
        assert not left_on_nodes(_joined_cluster)


@pytest.mark.parametrize("name", CONTRACT)
async def test_contract(name: str, warm_actors: dict[str, Any]) -> None:
    await CONTRACT[name](warm_actors)


@pytest.mark.usefixtures("impatient", "known")
def test_random_programs(warm_actors: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the model of all backends wants of worker processes, it wants of those on Ray."""

    @asynccontextmanager
    async def on_ray() -> AsyncIterator[Place]:
        async with EnvPool(**{**warm_actors, "workers": 2}) as pool:
            yield Place("process", pool)

    monkeypatch.setitem(PLACES, "process", on_ray)
    programs = [random_program(seed) for seed in range(40)]
    check([program for program in programs if "process" in program.places and "snapshots" not in program.places])


def test_there_is_a_contract() -> None:
    assert len(CONTRACT) > 10
