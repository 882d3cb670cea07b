"""WebShop's score of a purchase, as pure functions.

The rules are those of WebShop's `goal.py`, with its quirks: "navy blue" is as good as "blue", "x-large" as "large".
One differs: WebShop asks a spaCy model which words of a title are nouns; here they are the words that are neither in
a short list nor end like an adjective. Goal options that WebShop holds as name and value are compared by value.
"""

import re
from collections.abc import Iterable

from asyncrollout_envs.webshop.catalogue import CATEGORY_SEPARATOR, Goal, Product

_ALIKE = 85
_WORD = re.compile(r"(?<!\w)[^\W\d_]+(?!\w)")
_NO_WORD = re.compile(r"\W")
_NO_NOUNS = frozenset(
    "a an and are as at by for from in is it of off on or per s the this to up with without your "  # noqa: SIM905
    "best big compatible easy extra free full great heavy high large long low medium mini more natural new non only "
    "portable pure short slim small soft super thick top ultra unisex wide".split()
)
_ADJECTIVE = re.compile(r"\w{2,}(?:able|ible|ful|less|ous)|\w{4,}ed")
_COLORS = (  # noqa: SIM905 (WebShop's, in its order, which decides between two of them in one name)
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo "
    "caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream "
    "crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather "
    "indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha "
    "multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal "
    "rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise "
    "violet walnut wheat white wine yellow"
).split()


def score(product: Product, chosen: Iterable[str], goal: Goal) -> float:
    """From 0 to 1: how well a product, bought with the chosen option values, is what the goal asks for."""
    chosen = list(chosen)
    attributes = sum(_has_attribute(product, wanted) for wanted in goal.attributes)
    options = sum(any(options_match(value, wanted) for value in chosen) for wanted in goal.options)
    affordable = product.price <= goal.price_upper
    wishes = len(goal.attributes) + len(goal.options) + 1
    return type_score(product, goal) * (attributes + options + affordable) / wishes


def type_score(product: Product, goal: Goal) -> float:
    """1 for a product of the kind that is wanted, less for others: 0.5, 0.1 or 0."""
    same_query = product.query == goal.query
    same_category = len(_categories(product.category) & _categories(goal.category)) >= 2
    wanted = _nouns(goal.title)
    in_title = len(set(wanted) & set(_nouns(product.title))) / len(wanted) if wanted else 0.2
    if in_title == 0:
        return 0.0
    if in_title < 0.1:
        return 0.1
    return 1.0 if same_query or same_category or in_title > 0.2 else 0.5


def options_match(chosen: str, wanted: str) -> bool:
    return alike(_plain_color(chosen), _plain_color(wanted))


def alike(one: str, other: str) -> bool:
    return one == other or token_set_ratio(one, other) > _ALIKE


def token_set_ratio(one: str, other: str) -> int:
    """thefuzz's measure, 0 to 100: 100 if all words of one text are in the other, else by the letters they share."""
    mine, others = _words(one), _words(other)
    if not mine or not others:
        return 0
    shared = len(" ".join(mine & others))
    left, right = " ".join(sorted(mine - others)), " ".join(sorted(others - mine))
    if shared and not (left and right):
        return 100
    gap = 1 if shared else 0
    length = 2 * (shared + gap) + len(left) + len(right)
    ratios = [2 * (shared + gap + _common_letters(left, right)) / length]
    if shared:
        ratios += [2 * shared / (2 * shared + gap + len(rest)) for rest in (left, right)]
    return round(100 * max(ratios))


def _has_attribute(product: Product, wanted: str) -> bool:
    if any(alike(own, wanted) for own in product.attributes):
        return True
    told = (product.title, " ".join(product.features), product.description)
    return any(wanted in text.lower() for text in told)


def _categories(path: str) -> set[str]:
    return {part.strip() for part in path.split(CATEGORY_SEPARATOR)}


def _nouns(title: str) -> list[str]:
    words = _WORD.findall(title.lower())
    return [word for word in words if word not in _NO_NOUNS and not _ADJECTIVE.fullmatch(word)]


def _plain_color(option: str) -> str:
    return next((color for color in _COLORS if color in option), option)


def _words(text: str) -> set[str]:
    return set(_NO_WORD.sub(" ", text).lower().split())


def _common_letters(one: str, other: str) -> int:
    """The length of the longest common subsequence, a row of the table at a time as the bits of a number."""
    places: dict[str, int] = {}
    for place, letter in enumerate(one):
        places[letter] = places.get(letter, 0) | 1 << place
    everywhere = (1 << len(one)) - 1
    row = everywhere
    for letter in other:
        hits = row & places.get(letter, 0)
        row = ((row + hits) | (row - hits)) & everywhere
    return len(one) - row.bit_count()
