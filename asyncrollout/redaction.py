"""Keys and passwords, which never reach a file or a terminal."""

import copy
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrollout.errors import RolloutError

HIDDEN = "[hidden]"

_VARIABLE = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|AUTHORIZATION)$", re.IGNORECASE)
_NAME = re.compile(
    r"(api|access|auth|private|openai|x)_?key$|^key$|(access|auth|api|hf|bearer)_?token$|^token$|"
    r"(^|_)(secret|password|passwd|authorization)$",
    re.IGNORECASE,
)
_VALUE = re.compile(r"\bsk-[\w-]{16,}|(?<=Bearer )[^\s'\"\\]+|(?<=://)[^/\s:@\"]+:[^/\s@\"]+(?=@)")
_SHORTEST = 8  # a shorter one may be a word


def is_secret(name: object) -> bool:
    """Whether what has such a name, also as an option, is a secret."""
    return isinstance(name, str) and bool(_NAME.search(name.lstrip("-").replace("-", "_")))


def known_secrets(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The values of variables that are named like keys, longest first: one may be a part of another."""
    found = {value for name, value in environ.items() if _VARIABLE.search(name) and len(value) >= _SHORTEST}
    return sorted(found, key=len, reverse=True)


def hide_in_error(error: RolloutError, secrets: Sequence[str]) -> RolloutError:
    """The same error, without secrets in anything that it tells."""
    shown = copy.copy(error)
    shown.args = tuple(hide(one, secrets) if isinstance(one, str) else one for one in error.args)
    told = {name: hide(one, secrets) if isinstance(one, str) else one for name, one in vars(error).items()}
    shown.__dict__.update(told)
    if hasattr(error, "__notes__"):
        shown.__notes__ = [hide(note, secrets) for note in error.__notes__]
    return shown


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
