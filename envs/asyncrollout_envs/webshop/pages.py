"""The pages of the shop: what each shows, what can be clicked on it, and where a click leads."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Protocol

from asyncrollout_envs.webshop.catalogue import Catalogue, Listing, Product

BACK_TO_SEARCH, NEXT, PREV, BUY = "back to search", "next >", "< prev", "buy now"
PER_PAGE = 10

_DETAILS = ("description", "features", "reviews")
_LONGEST_TITLE = 200
_LONGEST_DETAIL = 1_000


class Page(Protocol):
    """Frozen, and equal to another one that shows the same."""

    def text(self) -> str: ...

    def buttons(self) -> list[str]:
        """What can be clicked, in lower case."""

    def click(self, button: str, catalogue: Catalogue) -> "Page":
        """The page behind one of its buttons; `BUY` leads to no page."""

    def key(self) -> tuple[Hashable, ...]:
        """What the page shows, in short."""


@dataclass(frozen=True)
class SearchPage:
    def text(self) -> str:
        return "[Search]"

    def buttons(self) -> list[str]:
        return []

    def click(self, button: str, catalogue: Catalogue) -> Page:  # noqa: ARG002 (it has no buttons)
        return self

    def key(self) -> tuple[Hashable, ...]:
        return ("search",)


@dataclass(frozen=True)
class ResultsPage:
    found: tuple[Listing, ...]
    number: int = 1

    @property
    def shown(self) -> tuple[Listing, ...]:
        return self.found[(self.number - 1) * PER_PAGE : self.number * PER_PAGE]

    def text(self) -> str:
        lines = [f"Page {self.number} (Total results: {len(self.found)})"]
        lines += [f"[{one.asin}] {_cut(one.title, _LONGEST_TITLE)} | {one.price_tag}" for one in self.shown]
        return "\n".join(lines)

    def buttons(self) -> list[str]:
        turns = [PREV] if self.number > 1 else []
        if self.number * PER_PAGE < len(self.found):
            turns.append(NEXT)
        return [BACK_TO_SEARCH, *turns, *(one.asin.lower() for one in self.shown)]

    def click(self, button: str, catalogue: Catalogue) -> Page:
        if button == BACK_TO_SEARCH:
            return SearchPage()
        if button in (PREV, NEXT):
            return replace(self, number=self.number + (1 if button == NEXT else -1))
        asin = next(one.asin for one in self.shown if one.asin.lower() == button)
        return ItemPage(catalogue.product(asin), self)

    def key(self) -> tuple[Hashable, ...]:
        return ("results", self.number, *(one.asin for one in self.shown))


@dataclass(frozen=True)
class ItemPage:
    product: Product
    results: ResultsPage
    chosen: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        lines = [_cut(self.product.title, _LONGEST_TITLE), f"Price: {self.product.price_tag}"]
        for name, values in self.product.options.items():
            chosen = f" (chosen: {self.chosen[name]})" if name in self.chosen else ""
            lines.append(f"{name}{chosen}: {' '.join(f'[{value}]' for value in values)}")
        return "\n".join(lines)

    def buttons(self) -> list[str]:
        values = [value for values in self.product.options.values() for value in values]
        return list(dict.fromkeys([BACK_TO_SEARCH, PREV, *_DETAILS, *values, BUY]))

    def click(self, button: str, catalogue: Catalogue) -> Page:  # noqa: ARG002 (as of any page)
        if button == BACK_TO_SEARCH:
            return SearchPage()
        if button == PREV:
            return self.results
        if button in _DETAILS:
            return DetailPage(self, button)
        name = self.product.option_of(button)
        assert name is not None, f"{button!r} is not on the page"
        return replace(self, chosen={**self.chosen, name: button})

    def key(self) -> tuple[Hashable, ...]:
        return ("item", self.product.asin, self.results.number, *sorted(self.chosen.items()))


@dataclass(frozen=True)
class DetailPage:
    item: ItemPage
    detail: str

    def text(self) -> str:
        product = self.item.product
        if self.detail == "description":
            told = product.description
        else:
            told = "\n".join(product.features if self.detail == "features" else product.reviews)
        return f"{self.detail.capitalize()}:\n{_cut(told, _LONGEST_DETAIL) or 'none'}"

    def buttons(self) -> list[str]:
        return [BACK_TO_SEARCH, PREV]

    def click(self, button: str, catalogue: Catalogue) -> Page:  # noqa: ARG002 (as of any page)
        return self.item if button == PREV else SearchPage()

    def key(self) -> tuple[Hashable, ...]:
        return (self.detail, *self.item.key())


@dataclass(frozen=True)
class BoughtPage:
    item: ItemPage
    score: float

    def text(self) -> str:
        chosen = "".join(f", {name}: {value}" for name, value in self.item.chosen.items())
        title = _cut(self.item.product.title, _LONGEST_TITLE)
        return f"Thank you for buying {title}{chosen}.\nYour score (min 0.0, max 1.0): {self.score:.3f}"

    def buttons(self) -> list[str]:
        return []

    def click(self, button: str, catalogue: Catalogue) -> Page:  # noqa: ARG002 (it has no buttons)
        return self

    def key(self) -> tuple[Hashable, ...]:
        return ("bought", *self.item.key())


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."
