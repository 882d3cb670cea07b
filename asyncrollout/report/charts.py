"""Plots and tables as plain data: Python computes, the page only draws."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

Kind = Literal["text", "count", "number", "share", "seconds", "bar"]
"""How a number is formatted; a bar is a share, drawn as one."""

BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, GREY = range(7)
"""Indices into the page's palette."""


def axis(label: str, kind: Kind = "number", **more: Any) -> dict[str, Any]:
    return {"label": label, "kind": kind, **more}


def plot(
    title: str, x: dict[str, Any], y: dict[str, Any], series: list[dict[str, Any]], note: str = ""
) -> dict[str, Any]:
    return {"type": "plot", "title": title, "note": note, "x": x, "y": y, "series": series}


def line(name: str, colour: int, points: Iterable[Sequence[float | None]], kind: str = "line") -> dict[str, Any]:
    return {"name": name, "colour": colour, "kind": kind, "points": [list(point) for point in points]}


def table(title: str, columns: list[tuple[str, Kind]], rows: list[list[Any]], note: str = "") -> dict[str, Any]:
    heads = [{"label": label, "kind": kind} for label, kind in columns]
    return {"type": "table", "title": title, "note": note, "columns": heads, "rows": rows}
