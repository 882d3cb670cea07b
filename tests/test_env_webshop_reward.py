"""The score of a purchase, with values worked out by hand from WebShop's rules."""

from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout_envs.webshop.catalogue import CATEGORY_SEPARATOR, Goal, Product
from asyncrollout_envs.webshop.reward import _common_letters, options_match, score, token_set_ratio, type_score

T = TypeVar("T", Product, Goal)

SHOES = Product(
    asin="B000000001",
    title="Norvik Trail Running Shoes",
    query="running shoes",
    category=f"Clothing {CATEGORY_SEPARATOR} Shoes {CATEGORY_SEPARATOR} Running",
    price=39.99,
    price_tag="$39.99",
    description="Made for WET ground.",
    features=["Comes with a rubber sole"],
    attributes=["breathable", "essential oil"],
)
GOAL = Goal(
    asin=SHOES.asin,
    title=SHOES.title,
    query=SHOES.query,
    category=SHOES.category,
    instruction="",
    attributes=["breathable", "rubber sole"],
    options=["navy", "9"],
    price_upper=40.0,
)


def change(what: T, **fields: Any) -> T:
    return msgspec.structs.replace(what, **fields)


def test_what_was_asked_for_scores_1() -> None:
    assert score(SHOES, ["9", "navy"], GOAL) == 1.0


@pytest.mark.parametrize(
    ("product", "chosen", "goal", "expected"),
    [
        (SHOES, ["navy"], GOAL, 4 / 5),
        (SHOES, [], GOAL, 3 / 5),
        (SHOES, ["navy", "10"], GOAL, 4 / 5),
        (change(SHOES, price=40.0), ["navy", "9"], GOAL, 1.0),
        (change(SHOES, price=40.01), ["navy", "9"], GOAL, 4 / 5),
        (change(SHOES, attributes=[]), ["navy", "9"], GOAL, 4 / 5),
        (SHOES, ["navy", "9"], change(GOAL, attributes=["breathable", "steel toe"]), 4 / 5),
        (SHOES, ["navy", "9"], change(GOAL, attributes=["essential oils", "wet"]), 1.0),
        (SHOES, [], change(GOAL, options=[]), 1.0),
    ],
)
def test_each_wish_counts_the_same(product: Product, chosen: list[str], goal: Goal, expected: float) -> None:
    assert score(product, chosen, goal) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("title", "query", "category", "expected"),
    [
        ("Norvik Trail Running Shoes", "other", "x", 1.0),  # the titles share more than a fifth of the nouns
        ("Oakley Shoes", "other", "x", 1.0),
        ("Oakley Lamp", "running shoes", SHOES.category, 0.0),  # no noun in common, whatever the query
        ("Lamp", "other", "x", 0.0),
    ],
)
def test_the_type_is_told_by_title_query_and_category(title: str, query: str, category: str, expected: float) -> None:
    assert type_score(change(SHOES, title=title, query=query, category=category), GOAL) == expected


LONG = "Power Cord Prong Bar Channel Soundbar Theater System Subwoofer Outlet Socket Cable"


@pytest.mark.parametrize(
    ("title", "query", "category", "expected"),
    [
        ("Cord Power Lamp", "other", "x", 0.5),  # 2 of 12 nouns are not enough by themselves
        ("Cord Power Lamp", "cords", "x", 1.0),
        ("Cord Power Lamp", "other", f"b{CATEGORY_SEPARATOR}a", 1.0),
        ("Cord Power Lamp", "other", f"a{CATEGORY_SEPARATOR}a", 0.5),  # two categories, not one twice
        ("Cord Lamp", "cords", "x", 0.1),  # 1 of 12
    ],
)
def test_few_nouns_in_common_need_the_query_or_the_category(
    title: str, query: str, category: str, expected: Any
) -> None:
    goal = change(GOAL, title=LONG, query="cords", category=f"a {CATEGORY_SEPARATOR} b")
    assert type_score(change(SHOES, title=title, query=query, category=category), goal) == expected


def test_numbers_and_adjectives_are_no_nouns() -> None:
    goal = change(GOAL, title="2 Washable, Padded and Colorful 4K for the 3.1")
    assert type_score(change(SHOES, title="Lamp", query="x", category="x"), goal) == 0.5  # as if a fifth were in common


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("powder snow", "cool powder snow", 100),
        ("Snow, powder!", "powder snow", 100),
        ("essential oil", "essential oils", 96),
        ("pack of 6", "pack of 12", 88),
        ("tea bag", "tea tree", 60),
        ("xl", "xxl", 80),
        ("abc", "xyz", 0),
        ("", "abc", 0),
        ("--", "abc", 0),
    ],
)
def test_token_set_ratio_is_that_of_thefuzz(one: str, other: str, expected: float) -> None:
    assert token_set_ratio(one, other) == token_set_ratio(other, one) == expected


@pytest.mark.parametrize(
    ("chosen", "wanted", "expected"),
    [
        ("navy blue", "blue", True),  # by their color
        ("light blue | white", "dark blue", True),
        ("navy", "gray", False),
        ("x-large", "large", True),
        ("medium", "large", False),
    ],
)
def test_options_are_compared_by_color_and_words(chosen: str, wanted: str, expected: float) -> None:
    assert options_match(chosen, wanted) is expected


letters = st.text(alphabet="abc d", max_size=12)


@given(letters, letters)
def test_common_letters_are_those_of_the_textbook(one: str, other: str) -> None:
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, mine in enumerate(one):
        for j, others in enumerate(other):
            table[i + 1][j + 1] = table[i][j] + 1 if mine == others else max(table[i][j + 1], table[i + 1][j])
    assert _common_letters(one, other) == table[-1][-1]


@given(letters, letters)
def test_ratios_are_symmetric_and_bounded(one: str, other: str) -> None:
    ratio = token_set_ratio(one, other)
    assert 0 <= ratio <= 100
    assert ratio == token_set_ratio(other, one)
    assert token_set_ratio(f"word {one}", f"{one} word") == 100
