"""Hides keys and passwords, which never reach a file or a terminal."""

import base64
import binascii
import copy
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

from asyncrollout.errors import RolloutError
from asyncrollout.secret_names import is_secret

HIDDEN = "[hidden]"

_SHORTEST = 8  # a shorter one may be a word

_KEYS = re.compile(
    r"\b(?:sk-[\w-]{16,}|[sr]k_(?:live|test)_\w{10,}|hf_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9]{16,}|"
    r"github_pat_\w{16,}|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}|A[KS]IA[0-9A-Z]{12,}|AIza[\w-]{30,}|gsk_\w{16,}|"
    r"nvapi-[\w-]{16,}|eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?)"
    r"|(?s:-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z))"
)
_BEARER = re.compile(
    r"(?i:(?<=\bbearer))(\s+|%20|\+)(?![<{[$])(?=\S{16}|\S*[^\W_]?[^\sA-Za-z.,;:!?)'\"])[^\s'\"\\,;]{8,}"
)
_BEARER_ALONE = re.compile(r"\A(\w*:?\s*bearer\s+)\S+\Z", re.IGNORECASE)
_BEARER_LOOSE = re.compile(r"(?<=\bBearer)(\s+)[^\s'\"\\]+")
_AUTHORIZATION = re.compile(r"(?i)(\bauthorization['\"]?\s*[:=]\s*['\"]?)([a-z]+\s+)?[^\s'\"\\,;]+")
_BASIC = re.compile(r"(?i:(?<=\bbasic))(\s+|%20|\+)([\w+/%.~-]{6,}={0,2})")
_ADDRESS = re.compile(r"(?<=://)(?:[^\s\"<>\\]|\\.)*@")
_WHOLE_ADDRESS = re.compile(r"(?s)\A(\w[\w+.-]*://)(.*@)")
_PORT = re.compile(r"(?:localhost|[\d.]+|\[.*\]|[^:@]*\.[^:@]*):\d{1,5}\Z")
_QUERY = re.compile(r"(?<=[?&;])([\w.%-]+)=([^\s&;#'\"]+)")
_NAME = r"(?<![\w.-])([\w.-]+)"
_TEXT = r"""("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|"""
_ASSIGNED = re.compile(_NAME + r"""(=|['"]\s*:\s*)""" + _TEXT + r"""[^\s,;&'"{\[(]+)""")
_YAML = re.compile(_NAME + r"""(['"]?[ \t]*[:=][ \t]*)""" + _TEXT + r"""[^\s,;&'"{}\[\]][^,;&'"{}\[\]\n]*)""")


def known_secrets(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The values of variables that are named like keys, in all forms, longest first: one may be a part of another."""
    return forms(value for name, value in environ.items() if is_secret(name) and not _is_file(value))


def named_secrets(value: Any) -> list[str]:
    """The texts within data that have the name of a secret, and the passwords of addresses, in all forms."""
    return forms(_named(value, is_named=False))


def forms(secrets: Iterable[str]) -> list[str]:
    """Each secret as it is, and as JSON, Python, an address and base64 write it, unless it may be a word."""
    found: set[str] = set()
    for secret in secrets:
        if len(secret) >= _SHORTEST and HIDDEN not in secret:
            encoded = base64.b64encode(secret.encode(errors="replace")).decode()
            found |= {
                secret,
                json.dumps(secret)[1:-1],
                json.dumps(secret, ensure_ascii=False)[1:-1],
                repr(secret)[1:-1],
            }
            found |= {
                quote(secret, safe="", errors="replace"),
                quote(secret, errors="replace"),
                quote_plus(secret, errors="replace"),
                encoded,
            }
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
    """The text without these secrets, without what looks like one, and without what is assigned to such a name."""
    text = _BEARER_LOOSE.sub(lambda found: f"{found[1]}{HIDDEN}", hide_looks(text, secrets))
    text = _AUTHORIZATION.sub(lambda found: f"{found[1]}{found[2] or ''}{HIDDEN}", text)
    return _ASSIGNED.sub(_hide_assigned, text)


def hide_looks(text: str, secrets: Sequence[str]) -> str:
    """The text without these secrets, and without keys, headers and addresses that hold one."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    text = _KEYS.sub(HIDDEN, text)
    text = _BEARER.sub(lambda found: f"{found[1]}{HIDDEN}", text)
    text = _BEARER_ALONE.sub(lambda found: f"{found[1]}{HIDDEN}", text)
    text = _BASIC.sub(_hide_basic, text)
    if "://" not in text:
        return text
    text = _QUERY.sub(lambda found: f"{found[1]}={HIDDEN}" if is_secret(found[1]) else found[0], text)
    if not any(sign.isspace() for sign in text):  # an address and nothing else, which may have any sign in it
        return _WHOLE_ADDRESS.sub(lambda found: found[1] + _hide_user(found[2]), text)
    return _ADDRESS.sub(lambda found: _hide_user(found[0]), text)


def hide_in_document(text: str, secrets: Sequence[str]) -> str:
    """YAML or the like without secrets, in comments, too."""
    return _YAML.sub(_hide_yaml, hide_looks(text, secrets))


def hide_in_command(command: Sequence[str]) -> list[str]:
    """The words of a command, without secrets: `--api-key x`, `env.token=x`, and what is known or looks like one."""
    secrets = known_secrets()
    return [_hide_word(word, command[place - 1] if place else "", secrets) for place, word in enumerate(command)]


def without_secrets(value: Any, secrets: Sequence[str] | None = None) -> Any:
    """Plain data, in which what is named or looks like a secret is hidden."""
    known = known_secrets() if secrets is None else secrets
    if isinstance(value, dict):
        return {
            hide_looks(name, known) if isinstance(name, str) else name: HIDDEN
            if is_secret(str(name)) and may_be_secret(one)
            else without_secrets(one, known)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        items = [without_secrets(one, known) for one in value]
        shown = [items[0], HIDDEN] if _is_header(value) else items
        return tuple(shown) if isinstance(value, tuple) else shown
    return hide_looks(value, known) if isinstance(value, str) else value


def may_be_secret(value: Any) -> bool:
    """Whether what has the name of a secret can be one: `auth: true` and `password: null` tell nothing."""
    return not (isinstance(value, bool | None) or value in ("", [], {}))


def _named(value: Any, *, is_named: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _named(one, is_named=is_named or is_secret(str(name)))
    elif isinstance(value, list | tuple):
        is_header = _is_header(value)
        for one in value[is_header:]:  # its name is none
            yield from _named(one, is_named=is_named or is_header)
    elif isinstance(value, str):
        user = _WHOLE_ADDRESS.match(value)
        if is_named:
            yield value
        elif user is not None and hide_looks(value, ()) != value:
            yield from user[2].removesuffix("@").split(":", 1)[-1:]


def _is_header(value: Sequence[Any]) -> bool:
    """Whether it is a pair such as `["X-Api-Key", ...]`; `["key", "door"]` is none."""
    is_pair = len(value) == 2 and all(isinstance(one, str) for one in value)
    return is_pair and not value[0].isalpha() and is_secret(value[0])


def _is_file(value: str) -> bool:
    return value.startswith("/") and len(value) < 4096 and "\0" not in value and os.path.exists(value)  # noqa: PTH110


def _hide_user(found: str) -> str:
    """What stands between `://` and the last `@`, hidden if it is a user rather than the beginning of an address."""
    first = re.split(r"[/?#]", found, maxsplit=1)[0]
    is_user = "@" in first or (":" in first and not _PORT.match(first))
    return f"{HIDDEN}@" if is_user and found != "git@" else found


def _hide_basic(found: re.Match[str]) -> str:
    word = found[2]
    try:
        is_pair = b":" in base64.b64decode(word + "=" * (-len(word) % 4), validate=True)
    except (binascii.Error, ValueError):
        is_pair = False
    is_word = word.isalpha() and (word.islower() or word.istitle())
    looks_random = not is_word and len(word) >= _SHORTEST and any(sign.isdigit() or sign == "=" for sign in word)
    return f"{found[1]}{HIDDEN}" if is_pair or looks_random else found[0]


def _hide_assigned(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    is_plain = value in ("None", "null", "True", "False", "true", "false") or name == "key"
    return found[0] if is_plain or not is_secret(name) else f"{name}{between}{_quoted(value)}"


def _quoted(value: str) -> str:
    sign = value[0] if value[0] in "'\"" else ""
    return f"{sign}{HIDDEN}{sign}"


def _hide_word(word: str, before: str, secrets: Sequence[str]) -> str:
    name, equals, _ = word.partition("=")
    if equals and any(map(is_secret, name.split("."))):
        return f"{name}={HIDDEN}"
    if before.startswith("-") and "=" not in before and any(map(is_secret, before.split("."))):
        return HIDDEN
    return hide_in_document(word, secrets)


def _hide_yaml(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{_quoted(found[3])}" if is_secret(found[1]) else found[0]
