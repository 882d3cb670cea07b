"""Limits that a pool cannot keep are refused before anything starts."""

from typing import Any

from asyncrollout.errors import UsageError
from asyncrollout.pool.hosts import PoolLimits
from asyncrollout.registry import EnvSpec

STEP_TIMEOUT, RESET_TIMEOUT = 60.0, 120.0


def refuse_inline(**options: Any) -> None:
    """Refuse what only worker processes can do."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"{name} is for worker processes, and backend='inline' has none: leave it out")


def check_interruptible(spec: EnvSpec, limits: PoolLimits) -> None:
    """Refuse time limits that were set and cannot be kept: nothing interrupts the event loop's own thread."""
    if spec.runs == "cpu" and (limits.step, limits.reset) != (STEP_TIMEOUT, RESET_TIMEOUT):
        raise UsageError(
            f"env {spec.name!r}: step_timeout and reset_timeout cannot interrupt it with backend='inline': leave them "
            "out, use backend='process', or EnvSpec(..., runs='io'), which runs it in a thread"
        )
