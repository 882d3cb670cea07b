"""Every async test runs on asyncio and on uvloop, and must leave nothing behind."""

import asyncio
import gc
import os
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

_LEAK_PATIENCE = 5.0  # seconds for killed processes to be gone
_PRIVATE = f"asyncrollout-{os.getpid()}-"  # others may have theirs


def pytest_configure() -> None:
    settings.register_profile("patient", deadline=None)  # the machine may be busy; nothing here is timed
    settings.load_profile("patient")
    # A worker runs its parent's main script again; pytest's own would cost each of them a quarter of a second.
    vars(sys.modules["__main__"]).pop("__file__", None)
    uvloop.new_event_loop().close()  # libuv keeps one pipe of its own from the first loop on


def pytest_collection_finish() -> None:
    # The collector runs after every test, and need not look at all tests and modules each time.
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def leftovers() -> dict[str, set[str]]:
    """What a test may not leave: processes, private directories, open descriptors of ours."""
    me = psutil.Process()
    directories = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    return {
        "processes": {f"{child.pid} {child.name()}" for child in me.children(recursive=True) if child.is_running()},
        "directories": {str(path) for parent in directories if parent.is_dir() for path in parent.glob(f"{_PRIVATE}*")},
        "descriptors": {
            os.readlink(f"/dev/fd/{fd}") for fd in os.listdir("/dev/fd") if os.path.exists(f"/dev/fd/{fd}")
        },
    }


@pytest.fixture(params=BACKENDS)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What makes a pool of each backend."""
    return BACKENDS[request.param]


@pytest.fixture(autouse=True, scope="session")
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What envs keep for later is kept here, not in the cache of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ASYNCROLLOUT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = leftovers()
    yield
    deadline = time.monotonic() + _LEAK_PATIENCE
    while True:
        gc.collect()
        after = leftovers()
        left = {kind: after[kind] - before[kind] for kind in after if after[kind] - before[kind]}
        if not left:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {left}")
        time.sleep(0.02)
