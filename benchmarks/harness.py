"""What all benchmarks share: options, rows that compare us with a rival, and tables."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A comparison; `met` is None where there is no goal."""

    what: str
    ours: float | str
    unit: str = ""
    rival: float | None = None
    ratio: float | None = None
    goal: str = "-"
    met: bool | None = None


HEAD = ("what", "ours", "rival", "ratio", "goal", "met")


def cells(row: Row) -> Sequence[str]:
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x"
    return row.what, figure(row.ours, row.unit), figure(row.rival, row.unit), ratio, row.goal, answer(row.met)


def figure(value: float | str | None, unit: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if not unit:
        return f"{value:,}"
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:,.2f} {unit}"


def answer(met: bool | None) -> str:
    return {True: "yes", False: "no", None: "-"}[met]


def new_parser(doc: str | None) -> argparse.ArgumentParser:
    """With the option that every benchmark has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON lines")
    return parser


def chosen_parts(doc: str | None, parts: Iterable[str], option: str = "--part") -> argparse.Namespace:
    """The command line of a benchmark whose parts can be chosen."""
    names, parser = list(parts), new_parser(doc)
    parser.add_argument(
        option, dest="parts", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    return parser.parse_args()


def show(
    rows: Iterable[Any],
    *,
    as_json: bool,
    head: Sequence[str] = HEAD,
    cells: Callable[[Any], Sequence[str]] = cells,
    values: Callable[[Any], dict[str, Any]] = lambda row: row._asdict(),
) -> None:
    """Print rows as a table, or as JSON lines of their `values`."""
    if as_json:
        print("\n".join(json.dumps(values(row)) for row in rows), flush=True)
    else:
        print(aligned([head, *map(cells, rows)]), flush=True)


def tell(progress: str, end: str = "\n") -> None:
    print(progress, end=end, file=sys.stderr, flush=True)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """A table; the first line is its head, the first column is aligned left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *rows = lines
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in (head, ["-" * width for width in widths], *rows)
    )
