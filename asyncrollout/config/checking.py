"""Checks values against the schema: every problem with its path, what was found and what is expected."""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec
from msgspec import inspect

from asyncrollout.config.document import Path, Place, Unclear
from asyncrollout.config.suggestions import shown, suggest
from asyncrollout.config.type_info import bare, choices, describe, fits, is_hidden, options, structs
from asyncrollout.redaction import HIDDEN, hide_looks, is_secret, may_be_secret
from asyncrollout.validation import did_you_mean

MOST_PROBLEMS = 20

_NO_SECRETS = "a key is never written into a file: "
_BY_VARIABLE = "set an environment variable, and give its name as policy.api_key_env (the default is OPENAI_API_KEY)"
_OF_ENVS = "env_kwargs"
_WITHOUT_POINT = re.compile(r"([-+]?\d+)(e[-+]?\d+)", re.IGNORECASE)


class Problem(msgspec.Struct, frozen=True):
    """What is wrong at a path; `names_key` if the text says of which key it is, `beside` another that it names."""

    path: Path
    text: str
    names_key: bool = False
    beside: Path = ()


class Checker:
    """Checks values against a struct. `places` say where they were written; `others` are more top-level names."""

    def __init__(self, root: type[msgspec.Struct], places: Mapping[Path, Place], others: list[str]) -> None:
        self._root = inspect.type_info(root)
        self._places = places
        self._others = others

    def problems(self, value: Any) -> list[Problem]:
        """The first problems: a file of another kind would have thousands."""
        return [*islice(self._check(value, self._root, ()), MOST_PROBLEMS)]

    def _check(self, value: Any, kind: inspect.Type, path: Path) -> Iterator[Problem]:
        if isinstance(value, Unclear):
            yield _unclear(value, path)
            return
        fitting = [option for option in options(kind) if fits(value, option)]
        if not fitting:
            yield self._misfit(value, kind, path)
            return
        match bare(fitting[0]):
            case inspect.StructType():
                yield from self._check_variants(value, structs(kind), path)
            case inspect.DictType():
                yield from self._check_free(value, path, has_names=True)
            case inspect.AnyType():
                yield from self._check_free(value, path)
            case inspect.StrType():
                yield from self._check_text(value, path)
            case inspect.ListType(item_type=item_type) | inspect.VarTupleType(item_type=item_type):
                for index, item in enumerate(value):
                    yield from self._check(item, item_type, (*path, index))

    def _check_variants(
        self, value: dict[Any, Any], variants: list[inspect.StructType], path: Path
    ) -> Iterator[Problem]:
        """A mapping that is a struct, or that of several which it names itself."""
        field = variants[0].tag_field
        if field is None:
            yield from self._check_struct(value, variants[0], path)
            return
        chosen = [struct for struct in variants if struct.tag == value.get(field)]
        if chosen:
            yield from self._check_struct(value, chosen[0], path)
            return
        names = [str(struct.tag) for struct in variants]
        if field in value:
            yield Problem((*path, field), f"found {found(value[field])}{did_you_mean(str(value[field]), names)}")
        else:
            yield Problem((*path, field), f"missing: expected one of {', '.join(names)}")

    def _check_struct(self, value: dict[Any, Any], struct: inspect.StructType, path: Path) -> Iterator[Problem]:
        is_fine = True
        for problem in self._check_fields(value, struct, path):
            is_fine = False
            yield problem
        if is_fine:
            yield from _check_together(value, struct, path)

    def _check_fields(self, value: dict[Any, Any], struct: inspect.StructType, path: Path) -> Iterator[Problem]:
        fields = {field.encode_name: field for field in struct.fields}
        for key, item in value.items():
            if is_secret(key):
                yield _secret((*path, key))
            elif not isinstance(key, str):
                yield _bad_key(key, path)
            elif key in fields:
                yield from self._check(item, fields[key].type, (*path, key))
            elif key != struct.tag_field:
                text = suggest(self._root, (*path, key), item, struct, self._others)
                yield Problem((*path, key), text, names_key=True)
        for name, field in fields.items():
            if field.required and name not in value:
                yield Problem((*path, name), f"missing: expected {describe(field.type)}")

    def _check_free(self, value: Any, path: Path, *, has_names: bool = False) -> Iterator[Problem]:
        """What is passed on as it is: texts, numbers, lists and mappings, at any depth."""
        if isinstance(value, Unclear):
            yield _unclear(value, path)
        elif isinstance(value, float) and math.isnan(value):
            yield Problem(path, "found .nan, which is not a number")
        elif isinstance(value, str):
            yield from self._check_text(value, path)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from self._check_free(item, (*path, index))
        elif isinstance(value, dict):
            for key, item in value.items():
                below = (*path, str(key))
                if is_secret(key) and may_be_secret(item) and item != HIDDEN and not self._may_be_secret(below):
                    yield _secret(below)
                elif isinstance(key, str) or (type(key) is int and not has_names):
                    yield from self._check_free(item, below)
                else:
                    yield _bad_key(key, path)

    def _check_text(self, text: str, path: Path) -> Iterator[Problem]:
        if HIDDEN in text:
            again = f"give it again on the command line, as {shown(path)}=VALUE"
            yield Problem(path, f"found {HIDDEN}, which stands for a secret that is not kept in files: {again}")
        elif hide_looks(text, ()) != text and not self._may_be_secret(path):
            yield _secret(path, "this looks like a key, or an address with a password in it, and ")

    def _may_be_secret(self, path: Path) -> bool:
        """An env may be given a secret on the command line, which is then written nowhere."""
        place = self._places.get(path)
        return _OF_ENVS in path and place is not None and place.where.startswith("override ")

    def _misfit(self, value: Any, kind: inspect.Type, path: Path) -> Problem:
        valid = describe(kind)
        if is_hidden(kind):
            return Problem(path, f"found another value (not shown, since it may be a secret), expected {valid}")
        if value is None and path:
            return Problem(path, f"found null, expected {valid}: for its default, leave the key out")
        if isinstance(value, str) and (texts := choices(kind)):
            return Problem(path, f"found {found(value)}{did_you_mean(value, texts)}")
        if isinstance(value, str) and (number := _as_number(value, kind)):
            return Problem(path, f"found the text {found(value)}, expected {valid}: write {number}, without quotes")
        takes_text = any(isinstance(bare(option), inspect.StrType) for option in options(kind))
        if isinstance(value, bool | int | float) and takes_text:
            place = self._places.get(path)
            written = found(value) if place is None or place.written is None else place.written
            reading = f"the bool {found(value)}" if isinstance(value, bool) else f"the number {found(value)}"
            return Problem(path, f'found {written}, which YAML reads as {reading}: in quotes, "{written}" is a text')
        return Problem(path, f"found {found(value)}, expected {valid}")


def found(value: Any) -> str:
    """A value, briefly, as YAML has it."""
    if isinstance(value, Unclear):
        return value.written
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, dict | list):
        size = f"{len(value)} {'keys' if isinstance(value, dict) else 'items'}"
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {size}"
    text = repr(hide_looks(value, ()) if isinstance(value, str) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _unclear(value: Unclear, path: Path) -> Problem:
    reading = value.reading if value.number is None else f"the number {value.number!r:.40}"
    instead = "" if value.number is None else f"write {value.number!r:.40}, or "
    text = f"found {value.written}, which YAML 1.1 reads as {reading}"
    return Problem(path, f'{text}: {instead}put it in quotes, "{value.written}"')


def _check_together(value: dict[Any, Any], struct: inspect.StructType, path: Path) -> Iterator[Problem]:
    """What the struct itself says of values that are valid each by itself; it names the field first, or nothing."""
    try:
        msgspec.convert(value, struct.cls)
    except msgspec.ValidationError as error:
        name, colon, text = str(error).partition(": ")
        is_name = bool(colon) and name in struct.cls.__struct_fields__
        yield Problem((*path, name), text) if is_name else Problem(path, str(error))


def _secret(path: Path, what: str = "") -> Problem:
    of_env = f"let the env read an environment variable, or give it on the command line, as {shown(path)}=VALUE"
    return Problem(path, f"{what}{_NO_SECRETS}{of_env if _OF_ENVS in path else _BY_VARIABLE}")


def _bad_key(key: Any, path: Path) -> Problem:
    return Problem(path, f"the key {found(key)} is not a text, as YAML reads it: write it in quotes")


def _as_number(text: str, kind: inspect.Type) -> str | None:
    """How to write a number that YAML takes for a text."""
    if not any(isinstance(bare(option), inspect.IntType | inspect.FloatType) for option in options(kind)):
        return None
    if scientific := _WITHOUT_POINT.fullmatch(text):
        number = f"{scientific[1]}.0{scientific[2]}"
        return number if re.search("e[-+]", number, re.IGNORECASE) else re.sub("(?i)e", "e+", number)
    return text if re.fullmatch(r"[-+]?\d+(\.\d*)?", text) else None
