"""The selection of tests names files that exist, and no test inherits an ignored Ctrl-C."""

import signal
from pathlib import Path

from tests import selection


def test_selected_files_exist() -> None:
    files = {path.stem for path in Path(__file__).parent.glob("test_*.py")}
    named = selection.ON_ONE_LOOP | selection.BOTH_LOOPS_EACH_TIME | selection.EXTENDED | selection.HEAVY
    assert named <= files


def test_programs_that_tests_start_can_be_interrupted() -> None:
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
