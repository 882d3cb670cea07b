"""`bench`: the benchmarks of a checkout."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import asyncrollout
from asyncrollout.cli.app import DONE, FAILED, Told
from asyncrollout.errors import UsageError
from asyncrollout.validation import did_you_mean

BENCHMARKS = Path(asyncrollout.__file__).parent.parent / "benchmarks"


def bench(
    *names: Annotated[str, Parameter(help="Such as pool or service; all of them, if none is given.")],
    output: Told,
) -> int:
    """Run some, one after the other."""
    scripts = {path.stem.removeprefix("bench_"): path for path in sorted(BENCHMARKS.glob("bench_*.py"))}
    if not scripts:
        raise UsageError(
            "benchmarks are in the source of asyncrollout, not in the installed package: get the source, "
            "`pip install -e '.[test]'` in it, and try again"
        )
    for name in names:
        if name not in scripts:
            raise UsageError(f"no benchmark is called {name!r}{did_you_mean(name, list(scripts))}")
    options = ["--json"] if output.json else []
    codes = []
    for name in names or scripts:
        output.say(f"{scripts[name].name}: this takes minutes; Ctrl-C stops it.")
        sys.stdout.flush()  # before what the script prints
        codes.append(subprocess.run([sys.executable, scripts[name], *options], check=False).returncode)  # noqa: S603
    return FAILED if any(codes) else DONE
