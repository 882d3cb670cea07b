"""Names of parametrised tests."""

import re


def stable_name(value: object) -> str:
    """The value's repr without its address, so that every process collects the same tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
