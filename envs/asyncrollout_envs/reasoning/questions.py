"""Entries of the package's datasets, each from a number, the same in every process."""

import dataclasses
import importlib
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from asyncrollout.errors import MissingExtraError, UsageError
from asyncrollout.validation import did_you_mean
from asyncrollout_envs.reasoning.scoring import Score, safe_score

ENV = "reasoning_gym"
INSTALL = "pip install 'asyncrollout[reasoning-gym]'"
MOST_ENTRIES = 2**32
"""Some datasets seed numpy with the number, which must be smaller."""

_BY_HASH = frozenset(
    (
        "intermediate_integration",
        "isomorphic_strings",
        "knight_swap",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    )
)
"""Those whose questions depend on the order of a set of texts."""

_NOT_OFFERED = {
    "codeio": "it runs programs to make its entries, and one in a hundred of them reads the clock",
    "composite": "open its parts as envs of their own",
}
_OWN_KEYS = frozenset({"seed", "size"})
_MOST_OPEN = 16

_opened: dict[str, "Questions"] = {}
"""The last used ones; the latest stands last."""


class Questions:
    """One dataset with its configuration: any number gives an entry, and answers to it a score."""

    def __init__(self, package: Any, name: str, config: Mapping[str, Any]) -> None:
        self._package = package
        self._name = name
        self._config = config
        self._dataset = self._create(seed=0)
        self.score: Score = safe_score(name, self._dataset)

    def entry(self, number: int) -> dict[str, Any]:
        with _random_state(number):
            try:
                found: dict[str, Any] = self._dataset[number]
            except IndexError:  # a few make all their entries at once, and have no more
                found = self._create(seed=number, size=1)[0]
        return found

    def _create(self, **numbers: int) -> Any:
        try:
            return self._package.create_dataset(self._name, **numbers, **self._config)
        except (AssertionError, TypeError, ValueError) as error:  # what their checks raise
            given = ", ".join(f"{key}={value!r}" for key, value in self._config.items())
            raise UsageError(f"{ENV}: dataset {self._name!r} cannot be made with {given}: {error}") from error


def open_questions(name: str, config: Mapping[str, Any]) -> Questions:
    """The questions of a dataset; kept for the next env that asks for them, as some read large files."""
    key = repr((name, sorted(config.items())))
    questions = _opened.pop(key, None)
    if questions is None:
        package = _load()
        _check(name, config, package.factory.DATASETS)
        questions = Questions(package, name, config)
    _opened[key] = questions
    if len(_opened) > _MOST_OPEN:
        _opened.pop(next(iter(_opened)), None)
    return questions


def _load() -> Any:
    try:
        return importlib.import_module("reasoning_gym")  # takes a second or more
    except ImportError as error:
        raise MissingExtraError(f"{ENV}: the package reasoning-gym is not installed: {INSTALL}") from error


def _check(name: str, config: Mapping[str, Any], datasets: Mapping[str, tuple[Any, type[Any]]]) -> None:
    if not isinstance(name, str):
        raise UsageError(f"{ENV}: dataset={name!r:.100} is not the name of a dataset")
    if name in _NOT_OFFERED:
        raise UsageError(f"{ENV}: dataset {name!r} is not offered: {_NOT_OFFERED[name]}")
    if name not in datasets:
        offered = sorted({*datasets} - {*_NOT_OFFERED})
        raise UsageError(f"{ENV}: no dataset is called {name!r}{did_you_mean(name, offered)}")
    if name in _BY_HASH and os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise UsageError(
            f"{ENV}: the questions of dataset {name!r} depend on the hashes of texts, and so differ from process to "
            "process: set the environment variable PYTHONHASHSEED=0 before Python starts"
        )
    known = [field.name for field in dataclasses.fields(datasets[name][1]) if field.name not in _OWN_KEYS]
    for key in config:
        if key in _OWN_KEYS:
            raise UsageError(f"{ENV}: {key!r} is not for you to give: questions come from the seed of each reset")
        if key not in known:
            raise UsageError(f"{ENV}: dataset {name!r} takes no {key!r}{did_you_mean(key, known)}")


@contextmanager
def _random_state(number: int) -> Iterator[None]:
    """The global generators in a state that comes from the number: some datasets draw from them."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
