"""Programs of other systems, run as they are where their sources are given by path."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == _HERE:
            item.add_marker(pytest.mark.upstream)
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def upstream() -> Callable[[str], Path]:
    """The directory of a system's sources by its name, as in `upstream("ragen-2025-06")`; skips without it."""

    def find(name: str) -> Path:
        given = os.environ.get("UPSTREAM")
        if not given:
            pytest.skip(f"the sources of {name} are not given: make test-upstream UPSTREAM=dir, with {name} in dir")
        folder = Path(given).expanduser().resolve() / name
        if not folder.is_dir():
            pytest.skip(f"{folder} does not exist: unpack the sources of {name} there")
        return folder

    return find
