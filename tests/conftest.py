"""Which tests run when and on which event loop; none may leave anything behind."""

import asyncio
import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop
from hypothesis import settings

from tests.playing import BACKENDS
from tests.ray_cluster import TestCluster, joined, left_on_nodes, one_at_a_time
from tests.selection import BOTH_LOOPS_EACH_TIME, EXTENDED, EXTENDED_PREFIXES, HEAVY, ON_ONE_LOOP

_LEAK_PATIENCE = 5.0  # seconds for killed processes to be gone
_LIMITS = {"slow": 1800.0, "extended": 900.0, "heavy": 480.0}  # seconds for one test, the first that applies
_PRIVATE = f"asyncrollout-{os.getpid()}-"  # others may have theirs


def pytest_configure() -> None:
    settings.register_profile("patient", deadline=None)  # the machine may be busy; nothing here is timed
    settings.load_profile("patient")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads that no test uses are a quarter of a worker's start
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job; children would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    uvloop.new_event_loop().close()  # libuv keeps one pipe of its own from the first loop on


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.path.stem
        if name in HEAVY:
            item.add_marker(pytest.mark.heavy)
        on_second_loop = name not in BOTH_LOOPS_EACH_TIME and _on_second_loop(item)
        if name in EXTENDED or name.startswith(EXTENDED_PREFIXES) or on_second_loop:
            item.add_marker(pytest.mark.extended)
        limits = [limit for marker, limit in _LIMITS.items() if item.get_closest_marker(marker)]
        if limits and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(limits[0]))


def _on_second_loop(item: pytest.Item) -> bool:
    case = getattr(item, "callspec", None)
    return case is not None and case.params.get("_asyncio_loop_factory") is asyncio.new_event_loop


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.stem in ON_ONE_LOOP or item.path.stem.startswith("test_env"):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def leftovers() -> dict[str, set[str]]:
    """What a test may not leave: processes, private directories, open descriptors of ours."""
    directories = [parent for parent in ("/dev/shm", tempfile.gettempdir()) if os.path.isdir(parent)]
    return {
        "processes": _processes(),
        "directories": {name for parent in directories for name in os.listdir(parent) if name.startswith(_PRIVATE)},
        "descriptors": {
            os.readlink(f"/dev/fd/{fd}") for fd in os.listdir("/dev/fd") if os.path.exists(f"/dev/fd/{fd}")
        },
    }


def _processes() -> set[str]:
    if hasattr(os, "waitid"):  # tells at once whether there are any, which psutil must search all processes for
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return set()
    children = psutil.Process().children(recursive=True)
    return {f"{child.pid} {child.name()}" for child in children if child.is_running()}


@pytest.fixture(params=BACKENDS)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What makes a pool of each backend."""
    return BACKENDS[request.param]


@pytest.fixture(scope="session")
def ray_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all processes of this run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def _joined_cluster(ray_directory: Path) -> Iterator[TestCluster]:
    with joined(ray_directory) as cluster:
        yield cluster


@pytest.fixture
def ray_cluster(_joined_cluster: TestCluster, ray_directory: Path) -> Iterator[TestCluster]:
    """A Ray cluster on this machine, which the test has for itself, and on whose nodes it leaves no worker."""
    with one_at_a_time(ray_directory):
        yield _joined_cluster
        assert not left_on_nodes(_joined_cluster)


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools that close wait less long for workers that never come to an end."""
    monkeypatch.setattr("asyncrollout.pool.process.backend._STOP_GRACE", 0.5)


@pytest.fixture(autouse=True, scope="session")
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What envs keep for later is kept here, not in the cache of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ASYNCROLLOUT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    before = leftovers()
    kinds = before.keys() - ({"descriptors"} if request.node.get_closest_marker("ray") else set())  # Ray keeps some
    yield
    gc.collect()
    gc.freeze()  # the next test need not have all of this looked at again
    deadline = time.monotonic() + _LEAK_PATIENCE
    while True:
        after = leftovers()
        left = {kind: after[kind] - before[kind] for kind in sorted(kinds) if after[kind] - before[kind]}
        if not left:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {left}")
        gc.unfreeze()
        gc.collect()
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def _no_portal(_nothing_left: None) -> Iterator[None]:
    """The loop of synchronous calls lives as long as a process; here, as long as a test."""
    yield
    if portal := sys.modules.get("asyncrollout.dropin.portal"):
        portal.close()
