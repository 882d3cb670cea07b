"""Rows of text as a table with aligned columns."""

from collections.abc import Sequence


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """The first line is the head, the first column stands left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *rows = lines
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in (head, ["-" * width for width in widths], *rows)
    )
