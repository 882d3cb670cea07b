"""Which names, of options, keys and variables, are those of secrets: judged by the words that they are made of."""

import re
from itertools import pairwise


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
