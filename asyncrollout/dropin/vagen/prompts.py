"""What VAGEN's prompts tell, in our words and in its order: the rules, then how to reply, then an example."""

from collections.abc import Iterator
from typing import Any

import msgspec

from asyncrollout.dropin.vagen.replies import CURRENT, LEGACY, ReplyFormat

Relation = tuple[str, str, str]
"""An object, and where it is from the player's view: above, below or same, and left, right or same."""


class Example(msgspec.Struct, frozen=True):
    """A turn: what is seen, why, what is done, and what is seen after all of it, or after the first action."""

    before: tuple[Relation, ...]
    reason: str
    actions: tuple[str, ...]
    after: tuple[Relation, ...]
    halfway: tuple[Relation, ...] = ()

    def then(self, most: int) -> tuple[Relation, ...]:
        return self.after if most >= len(self.actions) else self.halfway


class ExampleStates(msgspec.Struct, frozen=True):
    """The states of the first example as symbols and as data: before it, and after each of its actions."""

    grids: tuple[str, ...]
    places: tuple[dict[str, tuple[int, int]], ...]


class Game(msgspec.Struct, frozen=True):
    """The words for a game. `seen` names what observations describe, with its look in an image."""

    title: str
    goal: str
    legend: str
    rules: tuple[str, ...]
    seen: tuple[tuple[str, str], ...]
    examples: tuple[Example, ...]
    picture: ExampleStates

    @property
    def objects(self) -> str:
        return " and each ".join(f"`{name}` ({look})" for name, look in self.seen)


SOKOBAN = Game(
    title="Sokoban",
    goal="every box must stand on a target",
    legend="# wall | _ floor | O target | X box | P you | √ box on a target | S you on a target",
    rules=("You can push boxes, never pull them.", "Do not run into walls."),
    seen=(("target", "red"), ("box", "brown")),
    examples=(
        Example(
            (("box", "below", "same"), ("target", "below", "same")),
            "The box is right below me, and the target below it: I push it down.",
            ("Down", "Down"),
            (("box", "below", "same"), ("target", "below", "same")),
            halfway=(("box", "below", "same"), ("target", "below", "same")),
        ),
        Example(
            (("box", "same", "right"), ("target", "same", "right")),
            "The box is to my right, and the target behind it: I push it there.",
            ("Right",),
            (("box", "same", "right"), ("target", "same", "right")),
        ),
        Example(
            (("box", "above", "left"), ("target", "above", "same")),
            "I must get beside the box first, so I go up to its row.",
            ("Up",),
            (("box", "same", "left"), ("target", "above", "same")),
        ),
    ),
    picture=ExampleStates(
        (
            "####\n#P_#\n#X_#\n#__#\n#O_#\n####",
            "####\n#__#\n#P_#\n#X_#\n#O_#\n####",
            "####\n#__#\n#__#\n#P_#\n#√_#\n####",
        ),
        tuple({"player": (row, 1), "box": (row + 1, 1), "target": (4, 1)} for row in (1, 2, 3)),
    ),
)

_LAKE_LEGEND = "_ ice | O hole | G goal | P you | X you in a hole | {won} you on the goal"
_LAKE = Game(
    title="FrozenLake",
    goal="reach the goal (G)",
    legend=_LAKE_LEGEND.format(won="√"),
    rules=("Do not fall into a hole.",),
    seen=(("target", "the goal, golden"), ("hole", "dark blue")),
    examples=(
        Example(
            (("target", "below", "left"), ("hole", "below", "same")),
            "The target is below and to the left, and there is a hole below me: I go left, then down.",
            ("Left", "Down"),
            (("target", "same", "same"), ("hole", "same", "right")),
            halfway=(("target", "below", "same"), ("hole", "below", "right")),
        ),
        Example(
            (("target", "same", "right"), ("hole", "below", "same")),
            "The target is to my right, and nothing is in the way.",
            ("Right",),
            (("target", "same", "right"), ("hole", "below", "left")),
        ),
        Example(
            (("target", "above", "left"), ("hole", "below", "right")),
            "The target is above and to the left: I go up first.",
            ("Up",),
            (("target", "same", "left"), ("hole", "below", "right")),
        ),
    ),
    picture=ExampleStates(
        ("_P__\nGO__\n____\n__O_", "P___\nGO__\n____\n__O_", "____\n√O__\n____\n__O_"),
        tuple({"player": place, "target": (1, 0)} for place in ((0, 1), (0, 0), (1, 0))),
    ),
)
_SLIPS = "The ice is slippery: you may move at right angles to where you want to go."
_HOLDS = "The ice is not slippery: you move where you want to go."


def frozen_lake(*, slippery: bool, won: str) -> Game:
    """The words for a lake; `won` is the symbol of a player on the goal."""
    rules = (*_LAKE.rules, _SLIPS if slippery else _HOLDS)
    return msgspec.structs.replace(_LAKE, rules=rules, legend=_LAKE_LEGEND.format(won=won))


def rules_text(game: Game) -> str:
    numbered = "\n".join(f"{number}. {rule}" for number, rule in enumerate(game.rules, start=1))
    return (
        f"You are playing {game.title}.\n"
        f"How {game.title} works\n"
        f"Goal: {game.goal}.\n"
        f"Symbols (an image has none): {game.legend}\n"
        f"Rules:\n{numbered}\n"
        "Your actions are: Left, Down, Right, Up."
    )


def first_text(shown: str) -> str:
    return f"[What you see at the start]:\n{shown}\nChoose what to do next."


def next_text(played: list[str], shown: str) -> str:
    return f"Of your answer, these valid actions were taken: {played}.\nNow you see:\n{shown}\nChoose what to do next."


# The formats of VAGEN's first version

_ORDER = {
    "observation": "describe what you see",
    "reasoning": "give your reasoning",
    "prediction": "predict the next state",
}


def legacy_format(game: Game, name: str, most: int, separator: str, *, example: bool) -> str:
    """How to reply; the example is for the system prompt alone."""
    form = LEGACY[name]
    style = next((style for style in ("symbolic", "structured") if name.endswith(style)), "words")
    lines = [
        f"You may take up to {most} action(s) in one turn, separated by {separator}.",
        _legacy_order(form, style),
        *_legacy_details(game, form, style),
        f"Reply in this form:\n{form.shape}",
    ]
    if example:
        lines.append(f"For example: {_legacy_example(game, form, style, most, separator)}")
    return "\n".join(lines)


def _legacy_order(form: ReplyFormat, style: str) -> str:
    if "think" not in form.tags:
        return "Give your answer only."
    steps = [_ORDER[tag] for tag in form.inside or ("reasoning",)]
    if style == "symbolic":
        steps = [f"{step} as a grid" if step != _ORDER["reasoning"] else step for step in steps]
    return f"First {', then '.join(steps)}, then give your answer."


def _states(form: ReplyFormat) -> list[str]:
    return [tag for tag in form.inside if tag != "reasoning"]


def _legacy_details(game: Game, form: ReplyFormat, style: str) -> Iterator[str]:
    states = _states(form)
    if not states:
        return
    tags = " and ".join(f"<{tag}>" for tag in states)
    if style == "symbolic":
        yield f"Draw what is in {tags} as a grid of these symbols: {game.legend}."
    elif style == "structured":
        yield f"Write what is in {tags} in this form: {_data(game, len(states), None)}"
    else:
        yield (
            f"In {tags}, say where the {game.objects} are relative to the player. Give both directions for each: a "
            "vertical one (`above`, `below` or `same`) and a horizontal one (`left`, `right` or `same`), and use no "
            "other terms."
        )


def _data(game: Game, states: int, at: int | None, relations: tuple[Relation, ...] = ()) -> str:
    """A state as data: places, or relations where Sokoban has both states; `at` is the example's, None the form."""
    if states > 1 and game.title == SOKOBAN.title:
        described = relations if at is not None else [(name, "...", "...") for name, _ in game.seen]
        return "[" + ", ".join(_relation_data(*relation) for relation in described) + "]"
    places = game.picture.places[at or 0]
    written = (f'"{name}": {place if at is not None else "(row, column)"}' for name, place in places.items())
    return "{" + ", ".join(written) + "}"


def _relation_data(name: str, vertical: str, across: str) -> str:
    return f'{{"object_id": "{name}", "vertical_relation": "{vertical}", "horizontal_relation": "{across}"}}'


def _legacy_example(game: Game, form: ReplyFormat, style: str, most: int, separator: str) -> str:
    example = game.examples[0]
    actions = example.actions[:most]

    def state(at: int, relations: tuple[Relation, ...]) -> str:
        if style == "symbolic":
            return game.picture.grids[at]
        if style == "structured":
            return _data(game, len(_states(form)), at, relations)
        return " ".join(f"The {name} is {vertical} and {across}." for name, vertical, across in relations)

    texts = {
        "observation": state(0, example.before),
        "reasoning": example.reason,
        "prediction": state(len(actions), example.then(most)),
        "answer": separator.join(actions),
    }
    inner = "".join(f"<{tag}>{texts[tag]}</{tag}>" for tag in form.inside) or texts["reasoning"]
    return "".join(f"<{tag}>{inner if tag == 'think' else texts[tag]}</{tag}>" for tag in form.tags)


# The formats of VAGEN as it is


def current_format(game: Game, name: str, most: int, separator: str, *, example: bool) -> str:
    form = CURRENT[name]
    lines = [f"You may take up to {most} action(s) in one turn, separated by {separator}."]
    if name == "free_think":
        lines.append("First give your reasoning, then your answer.")
    lines.append(f"Reply in this form:\n{form.shape}")
    if form.gaps:
        lines.append("Between the tags you may reason freely.")
    if "observation" in form.tags:
        lines.append(_current_details(game, most, separator))
    if example:
        lines += [
            f"Example {number}:\n{_current_example(one, form, most, separator)}"
            for number, one in enumerate(game.examples, start=1)
        ]
    return "\n".join(lines)


def _current_details(game: Game, most: int, separator: str) -> str:
    return (
        "In <observation> and <prediction>:\n"
        f"- Say where the {game.objects} that you see are relative to the player, and nothing else.\n"
        "- Give exactly one vertical relation of each (`above`, `below` or `same row`) and exactly one horizontal one "
        "(`left`, `right` or `same column`).\n"
        "- Use these terms only, and never `same` alone.\n"
        '- Write "X is <vertical> and <horizontal> of the player".\n'
        "In <answer>:\n"
        f"- Give 1 to {most} action(s), separated by `{separator}`.\n"
        "- Valid actions are Up, Down, Left and Right."
    )


def _current_example(example: Example, form: ReplyFormat, most: int, separator: str) -> str:
    texts: dict[str, Any] = {
        "observation": _positions(example.before, "is"),
        "think": example.reason,
        "answer": separator.join(example.actions[:most]),
        "prediction": _positions(example.then(most), "will be"),
    }
    tagged = [f"<{tag}>{texts[tag]}</{tag}>" for tag in form.tags]
    if form.gaps:
        tagged.insert(1, example.reason)
        tagged.insert(3, "This is what I expect to see then.")
    return "\n".join(tagged)


def _positions(relations: tuple[Relation, ...], verb: str) -> str:
    rows, columns = {"same": "same row"}, {"same": "same column"}
    return ", and ".join(
        f"the {name} {verb} {rows.get(vertical, vertical)} and {columns.get(across, across)} of the player"
        for name, vertical, across in relations
    )
