"""A catalogue of our own, made of word lists: about 1,300 products and 3,900 goals, the same ones everywhere."""

import string
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from asyncrollout_envs import seeding
from asyncrollout_envs.webshop import words
from asyncrollout_envs.webshop.catalogue import CATEGORY_SEPARATOR, Goal, Product
from asyncrollout_envs.webshop.original import draw_price_limit
from asyncrollout_envs.webshop.words import Family

T = TypeVar("T")

_PER_KIND = 32
_GOALS_PER_PRODUCT = 3
_LETTERS = string.digits + string.ascii_uppercase


class Generated:
    """The source of the catalogue that is used without data files."""

    def key(self) -> str:
        return "generated"

    def stock(self) -> Iterator[tuple[Product, list[Goal]]]:
        draw = seeding.generator(0, "train")
        names = [(brand, series) for brand in words.BRANDS for series in words.SERIES]
        unused = iter(_some(draw, names, len(names)))
        told: set[str] = set()
        for family in words.FAMILIES:
            for kind in family.kinds:
                for _ in range(_PER_KIND):
                    product = _product(draw, family, kind, *next(unused))
                    goals = [_goal(draw, family, product) for _ in range(_GOALS_PER_PRODUCT)]
                    new = {goal.instruction: goal for goal in goals if goal.instruction not in told}
                    told.update(new)  # no two goals are told in the same words, and none is in two splits
                    yield product, list(new.values())


def _product(draw: np.random.Generator, family: Family, kind: str, brand: str, series: str) -> Product:
    """Three traits and two parts; the title tells two and one of them, the features all."""
    traits, parts = _some(draw, family.traits, 3), _some(draw, family.parts, 2)
    title = f"{brand} {series} {traits[0]} {kind} with {parts[0]}, {traits[1]}"
    low, high = family.kinds[kind]
    price = int(draw.integers(low, high)) + (0.49, 0.99)[int(draw.integers(2))]
    use, other = _some(draw, family.uses, 2)
    attributes = traits + parts
    return Product(
        asin="B0" + "".join(_LETTERS[place] for place in draw.integers(len(_LETTERS), size=8)),
        title=string.capwords(title),
        query=kind,
        category=f" {CATEGORY_SEPARATOR} ".join([*family.categories, kind]),
        price=price,
        price_tag=f"${price:.2f}",
        description=_one(draw, words.DESCRIPTIONS).format(brand=brand, series=series, kind=kind, use=use, other=other),
        features=[
            f"{attribute.capitalize()}: {_one(draw, words.PRAISES)}"
            for attribute in _some(draw, attributes, len(attributes))
        ],
        reviews=_some(draw, words.REVIEWS, 2),
        attributes=attributes,
        options={
            name: _some_in_order(draw, values, max(2, len(values) * 2 // 3)) for name, values in family.options.items()
        },
    )


def _goal(draw: np.random.Generator, family: Family, product: Product) -> Goal:
    """Two or three attributes, at least one of which the title does not tell, and a value of each option."""
    title = product.title.lower()
    hidden = _one(draw, [attribute for attribute in product.attributes if attribute not in title])
    others = [attribute for attribute in product.attributes if attribute != hidden]
    wanted = [hidden, *_some(draw, others, int(draw.integers(1, 3)))]
    options = {name: _one(draw, values) for name, values in product.options.items()}
    price_upper, price_text = draw_price_limit(draw, product.price)
    traits = ", ".join(attribute for attribute in wanted if attribute in family.traits)
    parts = " and ".join(attribute for attribute in wanted if attribute in family.parts)
    thing = f"{traits} {product.query}".strip() + (f" with {parts}" if parts else "")
    phrases = [words.OPTION_PHRASES[name].format(value) for name, value in options.items()]
    return Goal(
        asin=product.asin,
        title=product.title,
        query=product.query,
        category=product.category,
        instruction=", ".join([_one(draw, words.OPENINGS).format(thing), *phrases]) + price_text,
        attributes=wanted,
        options=list(options.values()),
        price_upper=price_upper,
    )


def _one(draw: np.random.Generator, values: Sequence[T]) -> T:
    return values[int(draw.integers(len(values)))]


def _some(draw: np.random.Generator, values: Sequence[T], count: int) -> list[T]:
    return [values[place] for place in draw.permutation(len(values))[:count]]


def _some_in_order(draw: np.random.Generator, values: Sequence[T], count: int) -> list[T]:
    return [values[place] for place in sorted(draw.permutation(len(values))[:count])]
