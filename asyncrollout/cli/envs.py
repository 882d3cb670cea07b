"""`envs` and `check-env`: which environments there are, and whether one keeps the contract."""

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import yaml
from cyclopts import Parameter

from asyncrollout.cli.terminal.logs import logging_to
from asyncrollout.cli.terminal.output import Output, OutputParam, printable
from asyncrollout.errors import EnvCheckError, UsageError
from asyncrollout.registry import allowed_env, env_names, find_env, load_factory, missing_packages

if TYPE_CHECKING:
    from asyncrollout.testing import EnvReport

_OTHERS = """
Open any Gymnasium env as gymnasium:<id>, and your own class as module:Class.
Check an env: asyncrollout check-env frozen_lake
Write an env: asyncrollout new-env maze"""


class Card(msgspec.Struct, frozen=True):
    """One env of the listing; `missing` says why it cannot be opened yet."""

    name: str
    runs: str = ""
    plays: str = ""
    actions: str = ""
    task: str = ""
    missing: str = ""


def envs(*, output: OutputParam) -> None:
    """List the available environments.

    Example: asyncrollout envs
    """
    cards = [_card(name) for name in env_names()]
    for card in cards:
        output.record(msgspec.structs.asdict(card))
    if not output.json:
        output.show(_table(cards))
        if unavailable := _unavailable(cards):
            output.show(f"\nNot available yet:{unavailable}")
        output.say(_OTHERS)


async def check_env(
    name: Annotated[str, Parameter(help="A name from `asyncrollout envs`, gymnasium:<id>, or module:Class.")],
    /,
    *options: Annotated[str, Parameter(help="Options of the environment, such as size=8.")],
    action: Annotated[
        list[str] | None,
        Parameter(help="Action to play, for an env without solve() and action_space. Repeatable."),
    ] = None,
    allow_import: Annotated[bool, Parameter(help="Allow importing NAME, also from the current directory.")] = False,
    output: OutputParam,
) -> None:
    """Check that an environment keeps the contract that rollouts rely on.

    Give options of the environment as key=value, with values as in YAML.

    Example: asyncrollout check-env sokoban num_boxes=2 "dim_room=[8, 8]"

    Example: asyncrollout check-env gymnasium:CartPole-v1 text=true

    Example: asyncrollout check-env my_module:MyEnv --allow-import
    """
    from asyncrollout import testing  # noqa: PLC0415 (its pool is not needed to list envs)

    spec = allowed_env(name, allow_import=allow_import)
    kwargs = env_kwargs(options)
    # The env's own option of a name that check_env takes for itself, as max_steps, goes by way of the spec.
    own = {key: kwargs.pop(key) for key in inspect.signature(testing.check_env).parameters if key in kwargs}
    actions = [option_value(text) for text in action] if action else None
    try:
        with _working(f"Checking {name}: playing its episodes several times ...", output):
            report = await testing.check_env(spec.with_kwargs(**own), actions=actions, **kwargs)
    except EnvCheckError as error:
        output.record({"env": name, "ok": False, "error": str(error)})
        raise EnvCheckError("\n".join([str(error), *getattr(error, "__notes__", ())])) from error
    output.record({**msgspec.structs.asdict(report), "ok": True})
    if not output.json:
        output.show(_drawn(report))


def env_kwargs(options: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts as keyword arguments, the values read as YAML."""
    kwargs: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"{option!r} is not an option: write key=value, such as size=8")
        if key in kwargs:
            raise UsageError(f"option {key!r} is given twice")
        kwargs[key] = option_value(value)
    return kwargs


def option_value(text: str) -> Any:
    """What a text on the command line means, as in YAML."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{text!r} is not valid YAML: quote texts with special characters") from error


def _card(name: str) -> Card:
    try:
        spec = find_env(name)
        factory = load_factory(spec.factory)
    except Exception as error:  # noqa: BLE001 (a package of anybody's, which may be broken in any way)
        return Card(name, missing=f"failed to load: {type(error).__name__}: {error}")
    task = spec.summary or (inspect.getdoc(factory) or "").partition("\n")[0]
    missing = ", ".join(dict.fromkeys(missing_packages(spec).values()))
    return Card(name, spec.runs, "text" if spec.text else "raw", spec.actions, task, missing)


def _table(cards: Sequence[Card]) -> Any:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415 (no markup in what others wrote)

    table = Table("env", "runs", "plays", "actions", "task", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for card in cards:
        cells = card.name, card.runs, card.plays, card.actions, card.task
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _unavailable(cards: Sequence[Card]) -> str:
    """What is missing, and the envs that miss it: below the table, where a command is not broken into pieces."""
    by_reason: dict[str, list[str]] = {}
    for card in cards:
        if card.missing:
            by_reason.setdefault(card.missing, []).append(card.name)
    return "".join(f"\n{', '.join(names)}: {reason}" for reason, names in by_reason.items())


def _drawn(report: "EnvReport") -> Any:
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    where = " and ".join(report.ran_on)
    first = f"{report.env} keeps the contract: {report.episodes} episodes, {report.steps} steps, on {where}"
    rows = [("ok", point) for point in report.checked]
    rows += [("skipped", f"{point}: {reason}") for point, reason in report.skipped.items()]
    rows += [("note", note) for note in report.notes]
    points = Table.grid(padding=(0, 2))
    for state, text in rows:
        points.add_row(state, Text(printable(text)))
    return Group(Text(printable(first)), points)


@contextmanager
def _working(message: str, output: Output) -> Iterator[None]:
    """Announce slow work, with a spinner on a terminal. Dying workers are part of a check, and are not logged."""
    with logging_to(None, console=False):
        if not sys.stderr.isatty() or output.json or output.quiet:
            output.say(message)
            yield
            return
        from rich.console import Console  # noqa: PLC0415

        with Console(stderr=True).status(printable(message)):
            yield
