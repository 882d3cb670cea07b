"""For env authors: `await check_env("my_env")` puts an env through the contract that all else relies on.

`check.py` runs the points and reports the result, `cases.py` plays the episodes; the points themselves are in
`closing.py` (the first one, as all others close envs), `pooled.py` (through the pool), `direct.py` (on the env object
itself), `text.py` (the text interface) and `anchors.py` (whether its anchors hold the whole state).
"""

from asyncrollout.testing.cases import MethodCall
from asyncrollout.testing.check import EnvReport, check_env
from asyncrollout.testing.compare import same

__all__ = ["EnvReport", "MethodCall", "check_env", "same"]
