"""Names of parametrised tests."""

import re


def stable_name(value: object) -> str:
    """The same in every process that collects the test: without addresses, and without the order of a set."""
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__} of {sorted(map(stable_name, value))}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
