"""How a grid world is shown to a language model: its symbols, coordinates of what is in it, or a picture."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout_envs.kwargs import check_bool, check_one_of

Format = Literal["grid", "coord", "grid_coord"]
Place = tuple[int, int]


class GridView(msgspec.Struct, frozen=True):
    """`symbols` and `meanings` are those of the cells' codes, from 0; with `images`, pictures are shown instead."""

    symbols: tuple[str, ...]
    meanings: tuple[str, ...]
    observation_format: Format = "grid"
    images: bool = False

    @property
    def legend(self) -> str:
        return ", ".join(f"{symbol} {meaning}" for symbol, meaning in zip(self.symbols, self.meanings, strict=True))


def make_view(env: str, usual: GridView, **given: Any) -> GridView:
    """The usual view with other `symbols`, `meanings`, `observation_format` or `images`, where they are not None."""
    given = {key: value for key, value in given.items() if value is not None}
    for key in ("symbols", "meanings"):
        if key in given:
            given[key] = _checked(env, key, given[key], len(usual.symbols))
    if wrong := [symbol for symbol in given.get("symbols", ()) if len(symbol) != 1 or symbol in "\r\n"]:
        raise UsageError(f"{env}: symbols={given['symbols']!r}: {wrong[0]!r} is not a single character")
    view = msgspec.structs.replace(usual, **given)
    check_one_of(env, "observation_format", view.observation_format, get_args(Format))
    check_bool(env, images=view.images)
    return view


def list_places(height: int, width: int, places: Iterable[tuple[str, Sequence[Place]]]) -> str:
    """The size of a grid, and where everything is; what is nowhere is left out."""
    lines = [f"Size: {height} rows, {width} columns; places are (row, column), counted from (0, 0) at the top left."]
    lines += [f"{name}: {', '.join(map(str, found))}" for name, found in places if found]
    return "\n".join(lines)


def _checked(env: str, key: str, given: Any, count: int) -> tuple[str, ...]:
    is_list = isinstance(given, str | list | tuple) and all(isinstance(one, str) and one for one in given)
    if not is_list or len(given) != count or len(set(given)) != count:
        raise UsageError(f"{env}: {key}={given!r:.200} are not {count} different texts, one for each kind of cell")
    return tuple(given)
