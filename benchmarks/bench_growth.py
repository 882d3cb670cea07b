"""What sizes that people have cost: each shape at three sizes or more, its cost per unit as a ratio, the loop's holds.

    python benchmarks/bench_growth.py [--rows NAME ...] [--save FILE] [--json]

Each point is measured in a process of its own. `held` is the longest time for which the event loop was held, in
milliseconds of its thread's CPU, so that other programs on the machine do not count. `--save` appends the results with
machine, load and commit to a file of JSON lines. To add a row, add a `Shape` to a module's `SHAPES`, and a new module
to `MODULES` here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `benchmarks.*`, in workers, too

from benchmarks import growth_loop, growth_places
from benchmarks.growth_rows import Point, Shape, circumstances, measure, measure_here
from benchmarks.harness import answer, new_parser, show, tell

MODULES = (growth_places, growth_loop)
SHAPES: dict[str, Shape] = {shape.name: shape for module in MODULES for shape in module.SHAPES}

HEAD = ("row", "size", "cost", "ratio", "held", "share", "goal", "met")


class Line:
    """One size of one row."""

    def __init__(self, shape: Shape, size: int, point: Point, least: Point) -> None:
        self.shape, self.size, self.point = shape, size, point
        self.ratio = point.cost / least.cost if least.cost else 1.0
        bounds = [
            ("ratio <= {:g}", shape.most_ratio, self.ratio, False),
            ("held <= {:g} ms", shape.most_held, point.held, False),
            ("share >= {:g}", shape.least_share, point.share, True),
            ("cost <= {:g}", shape.most_cost, point.cost, False),
        ]
        known = [(text, goal, value, least) for text, goal, value, least in bounds if None not in (goal, value)]
        self.goal = ", ".join(text.format(goal) for text, goal, _, _ in known) or "-"
        self.met = all(value >= goal if is_least else value <= goal for _, goal, value, is_least in known)

    def cells(self) -> list[str]:
        point, share = self.point, self.point.share
        return [
            self.shape.name,
            f"{self.size:,} {self.shape.grows}",
            f"{point.cost:.4g} {self.shape.unit}",
            f"{self.ratio:.2f}x",
            f"{point.held:.0f} ms",
            "-" if share is None else f"{share:.2f}",
            self.goal,
            answer(self.met if self.goal != "-" else None),
        ]

    def values(self) -> dict[str, object]:
        named = {"row": self.shape.name, "size": self.size, "grows": self.shape.grows, "unit": self.shape.unit}
        return {**named, **self.point._asdict(), "ratio": self.ratio, "goal": self.goal, "met": self.met}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument(
        "--rows", nargs="+", choices=[*SHAPES], default=[*SHAPES], metavar="NAME", help=", ".join(SHAPES)
    )
    parser.add_argument("--save", type=Path, help="append the results to this file of JSON lines")
    parser.add_argument("--point", nargs=2, metavar=("NAME", "SIZE"), help="measure one point in this process")
    options = parser.parse_args()
    if options.point is not None:
        name, size = options.point
        print(json.dumps(measure_here(SHAPES[name], int(size))._asdict()))
        return
    lines = []
    for name in options.rows:
        shape, points = SHAPES[name], list[Point]()
        for size in shape.sizes:
            tell(f"{name}: {size:,} {shape.grows} ...")
            points.append(measure(shape, size))
            lines.append(Line(shape, size, points[-1], points[0]))
    show(lines, as_json=options.json, head=HEAD, cells=Line.cells, values=Line.values)
    if options.save is not None:
        with options.save.open("a") as file:
            file.write(json.dumps({**circumstances(), "rows": [line.values() for line in lines]}) + "\n")


if __name__ == "__main__":
    main()
