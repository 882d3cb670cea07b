"""What makes the shop playable by a language model, and an expert customer."""

import re
from functools import cache

from asyncrollout.text import replies
from asyncrollout.text.stated import undress
from asyncrollout.types import Parsed, TextOptions
from asyncrollout_envs.webshop.catalogue import MOST_WORDS, Goal, Product
from asyncrollout_envs.webshop.env import WebShop, parse_action
from asyncrollout_envs.webshop.pages import (
    BACK_TO_SEARCH,
    BUY,
    NEXT,
    PER_PAGE,
    PREV,
    BoughtPage,
    DetailPage,
    ItemPage,
    ResultsPage,
)
from asyncrollout_envs.webshop.reward import options_match

_BEGUN = re.compile(r"\b(?:search|click) ?\[", re.IGNORECASE)
_WHOLE = re.compile(_BEGUN.pattern + r"[^\[\]\n]+\]", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")
_BUTTONS = {"buy": BUY, "back": BACK_TO_SEARCH, "next": NEXT, "prev": PREV} | {
    button: button for button in (BUY, BACK_TO_SEARCH, NEXT, PREV)
}
_EXAMPLE = "search[red running shoes]"
_RULES = f"""You are shopping in a web shop. Each page shows an instruction that says what to buy. The actions are:
search[words]: find products. It works on the search page only.
click[button]: click on what the page offers.
- The number of a product opens it. The value of an option, such as a color or a size, chooses it.
- click[description], click[features] and click[reviews] tell more about a product.
- click[{NEXT}] and click[{PREV}] turn pages; click[{BACK_TO_SEARCH}] starts a new search.
- click[{BUY}] buys the product with the chosen options, and ends the episode.
The score is highest if the kind of product, its attributes, every option and the price are as the instruction says.
Example: {_EXAMPLE}, then click[b0a1b2c3d4], then click[red], then click[{BUY}]."""


_ADVICE = f"""\
Buy something within 10 actions; it need not fit the description in everything, and what is close enough will do.
Search without details such as size or color, and twice at most.
Rather click a product on this page than go to the next one.
Use click[{NEXT}] twice at most, and click[{PREV}] only if you are sure that the product is on an earlier page.
With less than 3 actions left, buy the first product that you see.
Where a size and a color fit, choose the size, then the color, one at a time, before click[{BUY}]; but with a single
action left, just buy. Do not click the description."""


class WebShopText(replies.Projecting[WebShop]):
    """Replies are actions of `WebShop`; the buttons for buying and for turning pages may stand without `click[]`."""

    default_action = f"click[{BACK_TO_SEARCH}]"
    """It buys nothing, and from it all can still be done; on the search page it does nothing."""

    @classmethod
    def project(cls, reply: str, options: TextOptions) -> Parsed:
        @cache
        def is_tagged() -> bool:
            return replies.find_answer(reply).tagged

        def read(text: str) -> str | None:
            return _read(text) or (None if options.strict or not is_tagged() else _find_only(text))

        return replies.read_reply(reply, options, read, _find_only)

    def describe(self, observation: str) -> str:
        actions = self._env.available_actions()
        if self._env.style == "ragen" and actions:
            return f"{observation}\n\n{_ADVICE}\nYou must choose one of these actions: {', '.join(actions)}"
        return "\n".join([observation, "", "Available actions:", *actions]) if actions else observation

    def system_prompt(self) -> str:
        return f"{_RULES}\n\n{replies.turn_format(self._options, _EXAMPLE)}"

    def anchor(self) -> tuple[object, ...]:
        """What the page shows, for which goal; the way there does not count."""
        return self._env.state_key()

    def tell(self, action: str) -> str:
        return action

    def solve(self) -> str:
        thought, action = self._advise()
        return f"<think>{thought}</think><answer>{action}</answer>"

    def _advise(self) -> tuple[str, str]:
        """A thought and an action: on to the product that the goal was made from, its options, and the purchase."""
        goal, page = self._env.goal, self._env.page
        match page:
            case DetailPage():
                return "I have read enough here.", f"click[{PREV}]"
            case ItemPage():
                return self._advise_on_item(page, goal)
            case ResultsPage():
                return self._advise_on_results(page, goal)
            case BoughtPage():
                return "It is bought.", self.default_action
        return (
            "I look for it by its words.",
            f"search[{self._find_search(goal) or _searchable(goal.query) or 'anything'}]",
        )

    def _advise_on_results(self, page: ResultsPage, goal: Goal) -> tuple[str, str]:
        place = _place(page, goal)
        if place is not None:
            ahead = place // PER_PAGE + 1 - page.number
            if ahead:
                return "What I want is on another page.", f"click[{NEXT if ahead > 0 else PREV}]"
            return "This fits.", f"click[{goal.asin.lower()}]"
        if page.shown and not self._find_search(goal):
            return "What I want cannot be found, but this may do.", f"click[{page.shown[0].asin.lower()}]"
        return "What I want is not among these.", f"click[{BACK_TO_SEARCH}]"

    def _advise_on_item(self, page: ItemPage, goal: Goal) -> tuple[str, str]:
        if page.product.asin != goal.asin:
            if _place(page.results, goal) is not None:
                return "This is not what I want.", f"click[{PREV}]"
            if self._find_search(goal):
                return "This is not what I want.", f"click[{BACK_TO_SEARCH}]"
        for name, value in _wanted_options(page.product, goal).items():
            if page.chosen.get(name) != value:
                return f"The {name} must be {value}.", f"click[{value}]"
        return "All is as it should be.", f"click[{BUY}]"

    def _find_search(self, goal: Goal) -> str | None:
        """Words that find the product: those of the goal if they bring it to the first page, else its title's."""
        asked = " ".join([goal.query, *goal.attributes, *goal.options])
        for text, most in ((asked, PER_PAGE), (goal.title, None)):
            words = _searchable(text)
            if any(one.asin == goal.asin for one in self._env.catalogue.search(words)[:most]):
                return words
        return None


def _read(text: str) -> str | None:
    action = parse_action(text)
    if action is not None:
        return "{}[{}]".format(*action)
    button = _BUTTONS.get(" ".join(undress(text).lower().split()))
    return f"click[{button}]" if button else None


def _find_only(text: str) -> str | None:
    """The action that is all that words around it can mean: no other one is named, or begun, among them."""
    found = _WHOLE.findall(text)
    actions = {*map(_read, {*found})}
    return actions.pop() if len(actions) == 1 and len(found) == len(_BEGUN.findall(text)) else None


def _searchable(text: str) -> str:
    return " ".join(_WORD.findall(text.lower())[:MOST_WORDS])


def _place(page: ResultsPage, goal: Goal) -> int | None:
    return next((place for place, one in enumerate(page.found) if one.asin == goal.asin), None)


def _wanted_options(product: Product, goal: Goal) -> dict[str, str]:
    """For each option that the goal has a wish for, the value to choose: the same if there is one, or one alike."""
    wanted = {}
    values = [value for values in product.options.values() for value in values]
    for wish in goal.options:
        fitting = [value for value in values if options_match(value, wish)]
        if fitting:
            value = wish if wish in fitting else fitting[0]
            name = product.option_of(value)
            assert name is not None
            wanted[name] = value
    return wanted
