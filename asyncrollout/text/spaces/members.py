"""Members of an action space, to and from what a model writes."""

import enum
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from asyncrollout.text.spaces.kinds import bounds_of, ends_of, kind_of, parts_of, short

_MOST_NAMES = 100
_SEARCHED = 8_192  # characters, of the end of an answer
# A whole number token or nothing (hence the atomic group): 0.5m is not 0, nor 1.5e 1. A detached sign may be meant,
# a comma may be a decimal point, and a percentage is not a number.
_BEGIN, _END = r"(?<![\w.,+-])(?<![+-] )[+-]?", r"(?![\w%-]|[.,][0-9])"
_INTEGER = re.compile(_BEGIN + r"[0-9]{1,19}" + _END)
_NUMBER = re.compile(_BEGIN + r"(?>(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?)" + _END)
_LIST = re.compile(r"(?<![+-])\[[^\[\]]{1,2000}\]")
_BRACKETS = str.maketrans(dict.fromkeys("[]()`*", " "))
_PUNCTUATION = _BRACKETS | str.maketrans(dict.fromkeys(",;", " "))
_DASHES = str.maketrans(
    dict.fromkeys("\N{MINUS SIGN}\N{EN DASH}\N{NON-BREAKING HYPHEN}\N{FULLWIDTH HYPHEN-MINUS}", "-")
)


def read(space: Any, text: str, *, strict: bool = False) -> Any:
    """The member that a text stands for, or None. `strict` allows nothing else in the text."""
    try:
        member = _member(space, _value(space, text, strict))
        return member if space.contains(member) else None
    except Exception:  # noqa: BLE001 (a custom space may raise anything, and parse() must not)
        return None


def write(space: Any, member: Any) -> Any:
    """The plain value (numbers, text, lists and dicts of them) that stands for a member."""
    match kind_of(space):
        case "Discrete":
            return int(member)
        case "Dict":
            return {str(key): write(part, member[key]) for key, part in parts_of(space).items()}
        case "Tuple":
            return [write(part, item) for part, item in zip(space.spaces, member, strict=True)]
        case "Box" | "MultiDiscrete" | "MultiBinary":
            array = np.asarray(member, space.dtype).ravel()
            # a float32's own digits: 0.1, not 0.10000000149011612
            numbers = [float(str(number)) if array.dtype.kind == "f" else int(number) for number in array]
            return numbers[0] if len(numbers) == 1 else numbers
    return member if isinstance(member, str) else short(member)


def default(space: Any) -> Any:
    """The neutral member: the first number, zeros, the shortest text."""
    match kind_of(space):
        case None:
            return ""
        case "Discrete":
            return ends_of(space)[0]
        case "Text":
            return min(space.character_set, default="") * space.min_length
        case "Dict":
            return {key: default(part) for key, part in parts_of(space).items()}
        case "Tuple":
            return tuple(map(default, space.spaces))
    low, high = bounds_of(space)
    return np.asarray(
        np.clip(np.zeros(space.shape, space.dtype), low, high), space.dtype
    )  # clip turns a shape of () into a scalar


def names_of(space: Any, env: Any) -> dict[int, str]:
    """An env's names for the actions of its Discrete space, as in ALE, Crafter or MiniGrid."""
    if kind_of(space) != "Discrete" or int(space.n) > _MOST_NAMES:
        return {}
    numbers = range(ends_of(space)[0], ends_of(space)[1] + 1)
    for source in ("get_action_meanings", "action_names", "actions"):
        with suppress(Exception):  # the env's own code may raise anything, and names are optional
            offered = getattr(env, source)
            names = _numbered(offered() if source == "get_action_meanings" else offered, numbers)
            if all(names.values()) and len({*names.values()}) == len(numbers):
                return names
    return {}


def _numbered(offered: Any, numbers: range) -> dict[int, str]:
    if isinstance(offered, type) and issubclass(offered, enum.Enum):
        offered = {action.value: action for action in offered}
    elif isinstance(offered, list | tuple):
        offered = dict(zip(numbers, offered, strict=True))
    return {number: _name(offered[number]) for number in numbers}


def _name(offered: Any) -> str:
    name = offered.name if isinstance(offered, enum.Enum) else offered
    return " ".join(name.lower().split()) if isinstance(name, str) and not name.isdigit() else ""


def _value(space: Any, text: str, strict: bool) -> Any:
    """The plain value that a text says, for `_member`."""
    match kind_of(space):
        case "Text":
            return text
        case "Dict":
            return msgspec.json.decode(text if strict else text[text.index("{") : text.rindex("}") + 1])
        case "Tuple":
            return msgspec.json.decode(text if strict else text[text.index("[") : text.rindex("]") + 1])
    if len(text) > _SEARCHED:
        if strict:
            raise ValueError("too long for a number")
        text = text[-_SEARCHED:].partition(" ")[2]  # without a number cut in half
    text = text.translate(_DASHES)
    if kind_of(space) == "Discrete":
        return int(_only_number(_INTEGER, text, strict))
    size = int(np.prod(space.shape))
    tokens = text.translate(_PUNCTUATION).split()
    if not strict and not (len(tokens) == size and all(map(_NUMBER.fullmatch, tokens))):
        one = size == 1 and not _LIST.search(text)
        tokens = [_only_number(_NUMBER, text, strict)] if one else _only(_LIST, text).translate(_PUNCTUATION).split()
    return [_number(token) for token in tokens[: size + 1]]


def _only_number(pattern: re.Pattern[str], text: str, strict: bool) -> str:
    if strict:
        return text if pattern.fullmatch(text) else ""
    return _only(pattern, " ".join(text.translate(_BRACKETS).split()))


def _only(pattern: re.Pattern[str], text: str) -> str:
    """The one match in a text; ValueError if there is none, or several that differ."""
    (found,) = {*pattern.findall(text)}
    return str(found)


def _number(token: str) -> int | float:
    if not _NUMBER.fullmatch(token):
        raise ValueError(token[:100])
    return int(token) if token.lstrip("+-").isdigit() else float(token)


def _member(space: Any, value: Any) -> Any:
    """A plain value as a member of a space; raises if it cannot be one."""
    match kind_of(space):
        case "Discrete":
            return _whole(value)
        case "Text":
            return value
        case "Dict":
            parts = {str(key): (key, part) for key, part in parts_of(space).items()}
            if value.keys() != parts.keys():
                raise ValueError(f"not the keys {', '.join(parts)}")
            return {key: _member(part, value[text]) for text, (key, part) in parts.items()}
        case "Tuple":
            return tuple(_member(part, item) for part, item in zip(space.spaces, value, strict=True))
    low, high = bounds_of(space)
    numbers = list(_flat(value))
    if low.dtype.kind != "f":
        numbers = [_whole(number) for number in numbers]
        if not all(least <= number <= most for least, number, most in zip(low.flat, numbers, high.flat, strict=True)):
            raise ValueError("out of bounds")  # a cast to its type might wrap around
    with np.errstate(over="ignore"):
        member = np.array(numbers).astype(space.dtype).reshape(space.shape)
    if not np.isfinite(member).all():
        raise ValueError("not finite")
    return member


def _whole(value: Any) -> int:
    whole = int(value)
    if isinstance(value, str) or whole != value:
        raise ValueError("not a whole number")
    return whole


def _flat(value: Any) -> Iterable[int | float]:
    if isinstance(value, list):
        return [number for item in value for number in _flat(item)]
    if not isinstance(value, int | float):
        raise TypeError("not a number")
    return [value]
