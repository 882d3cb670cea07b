"""WebShop's own data files: products, their attributes, and goals that people wrote or that are put together."""

import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from asyncrollout.errors import UsageError
from asyncrollout_envs import seeding
from asyncrollout_envs.webshop.catalogue import Goal, Product

T = TypeVar("T")

_PRODUCTS, _ATTRIBUTES, _HUMAN_GOALS = "items_shuffle", "items_ins_v2", "items_human_ins.json"
_PRICE_LIMITS = [10.0 * tens for tens in range(1, 100)]
_NO_LIMIT = 1_000_000.0
_UNPRICED = 100.0
_LONGEST_ASIN = 10
_AMOUNT = re.compile(r"\$\s*([\d,]*\.?\d+)")


class _Choice(msgspec.Struct):
    value: str


class _Item(msgspec.Struct):
    """A product in `items_shuffle*.json`; what is empty may be "" there, whatever its type."""

    asin: str
    name: str
    query: str
    product_category: str
    full_description: str | None = None
    small_description: list[str] | str | None = None
    pricing: str | None = None
    customization_options: dict[str, list[_Choice] | str | None] | list[Any] | str | None = None


class _Annotation(msgspec.Struct):
    """What `items_ins_v2*.json` holds for an asin."""

    attributes: list[str] = []
    instruction: str | None = None
    instruction_attributes: list[str] | None = None


class _HumanGoal(msgspec.Struct):
    """One of those that `items_human_ins.json` holds for an asin."""

    instruction: str
    instruction_attributes: list[str] = []
    instruction_options: list[str] | dict[str, str] = []


class Original:
    """The source for a `data_path`: the directory of the files, or the file of products among them."""

    def __init__(self, data_path: str | os.PathLike[str], *, human_goals: bool) -> None:
        self._products = _find_products(Path(data_path).expanduser())
        suffix = self._products.name.removeprefix(_PRODUCTS)
        self._attributes = _present(self._products.with_name(_ATTRIBUTES + suffix), "the products' attributes")
        self._human_goals = (
            _present(self._products.with_name(_HUMAN_GOALS), "the goals that people wrote (human_goals=True)")
            if human_goals
            else None
        )

    def key(self) -> str:
        paths = [self._products, self._attributes, *([self._human_goals] if self._human_goals else [])]
        stats = [(path, path.stat()) for path in paths]
        return json.dumps([(str(path.absolute()), stat.st_mtime_ns, stat.st_size) for path, stat in stats])

    def stock(self) -> Iterator[tuple[Product, list[Goal]]]:
        draw = seeding.generator(0, "train")
        annotations = _read(self._attributes, dict[str, _Annotation])
        human = _read(self._human_goals, dict[str, list[_HumanGoal]]) if self._human_goals else None
        seen: set[str] = set()
        for place, raw in enumerate(_read(self._products, list[msgspec.Raw])):
            item = _convert(self._products, raw, _Item, f"product {place}: ")
            if item.asin in seen or item.asin == "nan" or len(item.asin) > _LONGEST_ASIN:
                continue
            seen.add(item.asin)
            annotation = annotations.get(item.asin, _Annotation())
            product = _product(draw, item, annotation)
            if human is None:
                yield product, _synthetic_goals(draw, product, annotation)
            else:
                yield product, _human_goals(draw, product, human.get(item.asin, []))


def draw_price_limit(draw: np.random.Generator, price: float) -> tuple[float, str]:
    """WebShop's bound on a goal's price: one of the next tens of dollars above it, and how it is told."""
    limits = [limit for limit in _PRICE_LIMITS if limit > price][:4]
    if len(limits) < 2:
        return _NO_LIMIT, ""
    limit = limits[max(draw.permutation(len(limits))[:2])]
    return limit, f", and price lower than {limit:.2f} dollars"


def _product(draw: np.random.Generator, item: _Item, annotation: _Annotation) -> Product:
    amounts = [float(amount.replace(",", "")) for amount in _AMOUNT.findall(item.pricing or "")][:2] or [_UNPRICED]
    features = item.small_description or []
    options = item.customization_options
    return Product(
        asin=item.asin,
        title=item.name,
        query=item.query.lower().strip(),
        category=item.product_category,
        price=draw.uniform(amounts[0], amounts[1]) if len(amounts) == 2 else amounts[0],
        price_tag=" to ".join(f"${amount}" for amount in amounts),
        description=item.full_description or "",
        features=[features] if isinstance(features, str) else features,
        attributes=annotation.attributes,
        options={
            name.lower(): [value for choice in choices if (value := _option(choice.value))]
            for name, choices in (options.items() if isinstance(options, dict) else ())
            if isinstance(choices, list)
        },
    )


def _option(value: str) -> str:
    """A value as WebShop shows it; never with "||", which separates actions."""
    return " ".join(value.replace("/", "|").replace("|", " | ").lower().split())


def _human_goals(draw: np.random.Generator, product: Product, written: list[_HumanGoal]) -> list[Goal]:
    goals = []
    for one in written:
        if one.instruction_attributes:
            options = one.instruction_options
            values = list(options.values()) if isinstance(options, dict) else options
            limit = draw_price_limit(draw, product.price)
            goals.append(_goal(product, one.instruction.strip("."), one.instruction_attributes, values, limit))
    return goals


def _synthetic_goals(draw: np.random.Generator, product: Product, annotation: _Annotation) -> list[Goal]:
    """One for each combination of the product's options."""
    if not annotation.instruction or not annotation.instruction_attributes:
        return []
    limit = draw_price_limit(draw, product.price)
    names = sorted(product.options)
    goals = []
    for values in itertools.product(*(product.options[name] for name in names)):
        told = ", and ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))
        instruction = annotation.instruction + (f" with {told}" if told else "")
        goals.append(_goal(product, instruction, annotation.instruction_attributes, list(values), limit))
    return goals


def _goal(
    product: Product, instruction: str, attributes: list[str], options: list[str], limit: tuple[float, str]
) -> Goal:
    price_upper, price_text = limit
    return Goal(
        asin=product.asin,
        title=product.title,
        query=product.query,
        category=product.category,
        instruction=instruction + price_text,
        attributes=attributes,
        options=options,
        price_upper=price_upper,
    )


def _find_products(path: Path) -> Path:
    if not path.is_dir():
        what = f"WebShop's products, as {_PRODUCTS}*.json, or be the directory of its files"
        if not path.name.startswith(_PRODUCTS):
            raise UsageError(f"webshop: data_path={str(path)!r} should hold {what}")
        return _present(path, what)
    found = sorted(path.glob(f"{_PRODUCTS}*.json"))
    if len(found) > 1:
        names = " and ".join(file.name for file in found)
        raise UsageError(f"webshop: data_path={str(path)!r} has {names}: give the path of the one to use")
    return found[0] if found else _present(path / f"{_PRODUCTS}.json", "the products")


def _present(path: Path, what: str) -> Path:
    if not path.is_file():
        raise UsageError(f"webshop: there is no file {str(path)!r}, which should hold {what}")
    return path


def _read(path: Path, kind: type[T]) -> T:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"webshop: {str(path)!r} cannot be read: {error.strerror}") from error
    try:
        return _convert(path, content, kind)
    except msgspec.DecodeError:
        try:  # Python's own reader takes the NaN that Python writes, and says in which line something is wrong
            content = msgspec.json.encode(json.loads(content))
        except ValueError as error:
            raise UsageError(f"webshop: {str(path)!r} is not JSON: {error}") from error
    return _convert(path, content, kind)


def _convert(path: Path, content: Any, kind: type[T], place: str = "") -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"webshop: {str(path)!r}: {place}{error}") from error
