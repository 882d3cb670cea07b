"""The WebShop environment: search a shop, click through its pages, buy what was asked for."""

import math
import os
import re
from collections.abc import Hashable, Mapping
from typing import Any, Literal

from asyncrollout.errors import UsageError
from asyncrollout.splits import SPLITS
from asyncrollout_envs.datafiles import choose_row
from asyncrollout_envs.kwargs import Style, check_bool, check_one_of, check_style, check_whole
from asyncrollout_envs.seeding import Split, check_split
from asyncrollout_envs.webshop.cache import open_catalogue
from asyncrollout_envs.webshop.catalogue import Catalogue, Goal, Source
from asyncrollout_envs.webshop.generate import Generated
from asyncrollout_envs.webshop.original import Original
from asyncrollout_envs.webshop.pages import (
    BACK_TO_SEARCH,
    BUY,
    PREV,
    BoughtPage,
    ItemPage,
    Page,
    ResultsPage,
    SearchPage,
)
from asyncrollout_envs.webshop.reward import score

_ACTION = re.compile(r"(search|click)\s*\[(.*)\]", re.DOTALL | re.IGNORECASE)


class WebShop:
    """An action is `search[words]` or `click[button]`, in any case; the observation is the page as text.

    The reward, at buying, is WebShop's score, or with `reward="binary"` 1.0 for a score of 1 and else 0. Without a
    `data_path` the shop sells generated products; with one, those of WebShop's own files: the path is that of their
    directory, or of the `items_shuffle*.json` in it. Their goals are those that people wrote, or without `human_goals`
    those put together from the products' options.

    In the style "ragen" infos tell more, for RAGEN's metrics, and an action that the page does not offer is not valid.

    `options["task"]` is a goal's place in the split, from 0; `info["goal_index"]` tells it.
    """

    def __init__(
        self,
        *,
        split: Split = "train",
        max_steps: int = 15,
        reward: Literal["score", "binary"] = "score",
        data_path: str | os.PathLike[str] | None = None,
        human_goals: bool = True,
        style: Style = "plain",
    ) -> None:
        check_split("webshop", split)
        check_style("webshop", style)
        check_whole("webshop", max_steps=max_steps)
        check_one_of("webshop", "reward", reward, ("score", "binary"))
        check_bool("webshop", human_goals=human_goals)
        if data_path is not None and not isinstance(data_path, str | os.PathLike):
            raise UsageError(f"webshop: data_path={data_path!r} is not a path")
        source: Source = Generated() if data_path is None else Original(data_path, human_goals=human_goals)
        self._catalogue: Catalogue | None = open_catalogue(source)
        self._goals = split_range(split, self._catalogue.goals)
        if not self._goals:
            raise UsageError(
                f"webshop: data_path={str(data_path)!r} has {self._catalogue.goals} goals in all, and none for "
                f"split={split!r}"
            )
        self._split = split
        self._max_steps = max_steps
        self.style = style
        self._binary = reward == "binary"
        self._steps = 0
        self._goal: Goal | None = None
        self._goal_index = 0
        self.page: Page = SearchPage()

    @property
    def catalogue(self) -> Catalogue:
        if self._catalogue is None:
            raise UsageError("webshop: the env is closed")
        return self._catalogue

    @property
    def goal(self) -> Goal:
        if self._goal is None:
            raise UsageError("webshop: reset() comes first")
        return self._goal

    def get_split_size(self, split: str = "train") -> int:
        """How many goals a split has; 0 for one that there is not."""
        goals = self.catalogue.goals
        return len(split_range(split, goals)) if split in SPLITS else 0

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        task = (options or {}).get("task")
        self._goal_index = choose_row("webshop", len(self._goals), self._split, seed, task)
        self._goal = self.catalogue.goal(self._goals[self._goal_index])
        self._steps = 0
        self.page = SearchPage()
        return self._show(), {"goal_index": self._goal_index}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if not isinstance(action, str):
            raise UsageError(f"webshop: an action is a string such as 'search[red shoes]', not {action!r}")
        if isinstance(self.page, BoughtPage) or self._steps >= self._max_steps:
            raise UsageError("webshop: the episode is over; reset() comes first")
        offered = self._offers(action)
        page = self._next_page(action)
        effective = page != self.page
        self.page = page
        self._steps += 1
        bought = isinstance(page, BoughtPage)
        points = page.score if isinstance(page, BoughtPage) else 0.0
        truncated = not bought and self._steps >= self._max_steps
        success = math.isclose(points, 1.0)
        info: dict[str, Any] = {"action_is_effective": effective, "success": success}
        if bought or truncated:
            info["score"] = points
        notice = "" if effective else "That has no effect on this page.\n\n"
        reward = float(success) if self._binary else points
        if self.style == "ragen":
            info |= {
                "action_is_valid": offered,
                "reward": reward,
                "raw_reward": points,
                "success_purchase": bought,
                "success_find": success,
                "end_of_page": self.available_actions() == [f"click[{BACK_TO_SEARCH}]", f"click[{PREV}]"],
            }
        return notice + self._show(), reward, bought, truncated, info

    def available_actions(self) -> list[str]:
        """What has an effect on this page; `<words>` stands for any."""
        if isinstance(self.page, SearchPage):
            return ["search[<words>]"]
        return [f"click[{button}]" for button in self.page.buttons()]

    def state_key(self) -> tuple[Hashable, ...]:
        return (self._split, self._goal_index, *self.page.key())

    def render(self) -> str:
        return self._show()

    def close(self) -> None:
        self._catalogue = None

    def _offers(self, action: str) -> bool:
        """Whether the page has a search bar, or the button, that the action is for."""
        verb, argument = parse_action(action) or ("", "")
        if verb == "search":
            return isinstance(self.page, SearchPage)
        return verb == "click" and argument in self.page.buttons()

    def _next_page(self, action: str) -> Page:
        """The page that the action leads to, or the same one."""
        verb, argument = parse_action(action) or ("", "")
        page = self.page
        if verb == "search" and isinstance(page, SearchPage):
            return ResultsPage(self.catalogue.search(argument))
        if verb == "click" and argument in page.buttons():
            if argument == BUY and isinstance(page, ItemPage):
                return BoughtPage(page, score(page.product, page.chosen.values(), self.goal))
            return page.click(argument, self.catalogue)
        return page

    def _show(self) -> str:
        return f"Instruction: {self.goal.instruction}\n\n{self.page.text()}"


def parse_action(text: str) -> tuple[str, str] | None:
    """The verb and what is in the brackets, in lower case, of a text that is one action and nothing else."""
    match = _ACTION.fullmatch(text.strip())
    if match is None:
        return None
    verb, argument = match[1].lower(), " ".join(match[2].lower().split())
    return None if not argument or "search[" in argument or "click[" in argument else (verb, argument)


def split_range(split: str, goals: int) -> range:
    """The goals of a split, as WebShop divides them: the first 500 for tests, the next 1,000 for validation."""
    test, val = min(500, goals // 6), min(1_500, goals // 2)
    return {"test": range(test), "val": range(test, val), "train": range(val, goals)}[split]
