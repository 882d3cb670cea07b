"""Our stand-in for DataProto beside verl's own, which is installed in an environment of its own."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.scripts.processes import ROOT

PYTHON = os.environ.get("ASYNCROLLOUT_VERL_PYTHON", str(ROOT / ".venv-verl" / "bin" / "python"))


@pytest.mark.slow
@pytest.mark.skipif(not Path(PYTHON).exists(), reason="needs `make verl-venv`")
def test_random_programs_give_the_same_as_with_verl() -> None:
    done = subprocess.run(
        [PYTHON, str(ROOT / "tests" / "scripts" / "verl_protocol.py"), "2000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2000 programs" in done.stdout
