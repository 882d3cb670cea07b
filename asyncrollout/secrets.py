"""Keys and passwords, which never reach a file or a terminal."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "[hidden]"

_NAME = re.compile(r"(api_?key|(^|_)key|token|secret|password|authorization)$", re.IGNORECASE)
_VALUE = re.compile(r"\bsk-[\w-]{16,}|(?<=Bearer )[^\s'\"\\]+|(?<=://)[^/\s:@\"]+:[^/\s@\"]+(?=@)")
_SHORTEST = 8  # a shorter one may be a word


def is_secret(name: str) -> bool:
    """Whether what has such a name is a secret."""
    return bool(_NAME.search(name.replace("-", "_")))


def known_secrets(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The values of variables that are named like keys, longest first: one may be a part of another."""
    found = {value for name, value in environ.items() if is_secret(name) and len(value) >= _SHORTEST}
    return sorted(found, key=len, reverse=True)


def hide(text: str, secrets: Sequence[str]) -> str:
    """The text without these secrets, and without what looks like one."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return _VALUE.sub(HIDDEN, text)


def hide_in_command(command: Sequence[str]) -> list[str]:
    """The words of a command, without secrets: `--api-key x`, `--api-key=x`, and what is known or looks like one."""
    shown: list[str] = []
    secrets = known_secrets()
    for place, word in enumerate(command):
        name, equals, _ = word.partition("=")
        if equals and is_secret(name):
            shown.append(f"{name}={HIDDEN}")
        elif place and command[place - 1].startswith("-") and is_secret(command[place - 1]):
            shown.append(HIDDEN)
        else:
            shown.append(hide(word, secrets))
    return shown


def without_secrets(value: Any) -> Any:
    """Plain data, in which what is named or looks like a secret is hidden."""
    if isinstance(value, dict):
        return {name: HIDDEN if is_secret(str(name)) else without_secrets(one) for name, one in value.items()}
    if isinstance(value, list):
        return [without_secrets(one) for one in value]
    return hide(value, known_secrets()) if isinstance(value, str) else value
