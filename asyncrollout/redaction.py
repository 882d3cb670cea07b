"""Hides keys and passwords, which never reach a file or a terminal; names of secrets are judged by their words."""

import base64
import binascii
import copy
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus

from asyncrollout.errors import RolloutError

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


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")

_ALWAYS = _words(
    "password passwords passwd passphrase passphrases passcode pwd secret secrets credential credentials creds cred "
    "bearer authorization jwt"
)
_AT_THE_END = _words("auth oauth key token cookie cookies pat otp")
_NOT_ALONE = frozenset({"pat", "otp"})
_CARRIERS = _words("header headers value string data")
"""`auth_value` is as secret as `auth`."""

_OF_PLACES = _words("env envs file files path paths var variable")
"""`api_key_env` and `password_file` say where a secret is."""

_OF_FIGURES = _words(
    "length len size count min max required enabled policy prompt field type name url uri expiry expires ttl"
)
"""`password_length` and `credentials_type` say something about one; what begins with `secret` is one all the same."""

_PLAIN_TOKENS = _words(
    "eos bos pad unk sep cls mask special stop start end begin next first last prev per image video audio think "
    "observation prompt reply completion answer sampled chosen target each by added img vision newline response total "
    "final previous current"
)
"""A tokenizer's `eos_token` is a text."""

_PLAIN_KEYS = _words(
    "primary foreign sort sorted group cache dict map hot partition public lookup index row column answer reward image "
    "images obs observation action state prompt question text label field json metric data info input output task "
    "config option env batch order unique dedup anchor arrow escape return space tab shift control ctrl alt enter "
    "delete up down left right any no message messages content score id uid video audio name path file join "
    "by per each first last next table entry item feature target response solution fn func function mask truth source "
    "type value query split length weight filter metadata time step episode agent layer attention rng prng random"
)
"""A dataset's `prompt_key` is the name of a column."""

_ISSUED = _words("api access auth refresh bearer secret private ssh signing encryption client service admin master")
"""Keys and tokens of these kinds are secrets in the plural, too, and wherever they stand in a name."""

_PASS = _words("user db smtp mail email login admin root proxy mysql pg postgres redis ftp http my ssh sudo")
_JOINED = re.compile(
    r"(api|access|auth|private|secret|openai|encryption|signing|ssh|license|client|master|service|account|hf|x|bearer|"
    r"refresh|session|id|csrf|oauth|user|db|admin)(key|token|secret|pass|passwd|password|pwd|passphrase)s?|"
    r"(api|private|secret|ssh|auth)(key|token)(id|value)?|proxyauthorization|setcookie|authheader"
)


def is_secret(name: object) -> bool:
    """Whether what has such a name is a secret; of a name with dots, the last part counts."""
    if not isinstance(name, str):
        return False
    words = [word.lower() for word in _WORD.findall(name.strip().rpartition(".")[2])]
    while len(words) > 1 and words[-1].isdigit():  # `api_key_2`
        words.pop()
    if not words or words[-1] in _OF_PLACES:
        return False
    is_joined = _JOINED.fullmatch(words[-1]) or _JOINED.fullmatch("".join(words))
    return bool(is_joined) or _names_secret(words)


def _names_secret(words: list[str]) -> bool:
    before, last = words[:-1], words[-1]
    if words[0] in ("secret", "secrets"):
        return True
    if last in _OF_FIGURES:
        return False
    if not _ALWAYS.isdisjoint(words) or any(one in _ISSUED and two in ("key", "token") for one, two in pairwise(words)):
        return True
    if last in _CARRIERS and before and before[-1] in _AT_THE_END - {"key"}:
        return before[-1] != "token" or last in ("value", "string")
    if last == "token":
        return not before or before[-1] not in _PLAIN_TOKENS
    if last == "key":
        return not before or before[-1] not in _PLAIN_KEYS
    if last in ("keys", "tokens", "pass"):
        return bool(before) and (before[-1] in _PASS if last == "pass" else before[-1] in _ISSUED)
    return last in _AT_THE_END and (bool(before) or last not in _NOT_ALONE)


def known_secrets(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The values of environment variables named like keys, in all forms, longest first."""
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
    """A copy of the error without secrets in its message, attributes and notes."""
    shown = copy.copy(error)
    shown.args = tuple(hide(one, secrets) if isinstance(one, str) else one for one in error.args)
    hidden = {name: hide(one, secrets) if isinstance(one, str) else one for name, one in vars(error).items()}
    shown.__dict__.update(hidden)
    if hasattr(error, "__notes__"):
        shown.__notes__ = [hide(note, secrets) for note in error.__notes__]
    return shown


def hide(text: str, secrets: Sequence[str]) -> str:
    """The text without these secrets, what looks like one, and what is assigned to the name of one."""
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
    """Plain data with everything hidden that is named or looks like a secret."""
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
    """Whether a value with a secret's name can be one: `auth: true` and `password: null` cannot."""
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
