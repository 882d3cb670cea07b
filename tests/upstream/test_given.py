"""Tests of other systems' programs run where their sources are, and say what is missing elsewhere."""

from collections.abc import Callable
from pathlib import Path

import pytest


def test_sources_are_found_by_name(
    upstream: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some-system").mkdir()
    monkeypatch.setenv("UPSTREAM", str(tmp_path))
    assert upstream("some-system") == tmp_path.resolve() / "some-system"


@pytest.mark.parametrize("given", [None, "", "missing"])
def test_missing_sources_are_skipped_with_the_reason(
    upstream: Callable[[str], Path], given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UPSTREAM", raising=False)
    if given is not None:
        monkeypatch.setenv("UPSTREAM", given and str(tmp_path / given))
    with pytest.raises(pytest.skip.Exception, match="some-system"):
        upstream("some-system")
