"""How much of the work that the best fixed limit would get done the adaptive one does, on many models of servers.

    python benchmarks/bench_limits.py [--seeds 5] [--json]

In virtual time (`tests/server_models.py`), so it is the same on every machine. The best fixed limit is found by a sweep
over each model; the adaptive one starts at 16 and knows nothing. Both include the way up to it.
"""

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import new_parser, show, tell
from tests.server_models import MODELS, Model, best_fixed, throughput


class Row(NamedTuple):
    server: str
    best_fixed: int
    mean: float  # of the best fixed limit's work, over all seeds
    least: float
    refused: float  # of all calls


def measure(model: Model, seeds: int) -> Row:
    best, work = best_fixed(model)
    outcomes = [throughput(model, seed=seed) for seed in range(seeds)]
    ratios = [outcome.work / work for outcome in outcomes]
    refusals, answers = sum(one.refusals for one in outcomes), sum(one.answers for one in outcomes)
    return Row(model.name, best, sum(ratios) / seeds, min(ratios), refusals / (refusals + answers))


def cells(row: Row) -> tuple[str, ...]:
    return row.server, str(row.best_fixed), f"{row.mean:.2f}", f"{row.least:.2f}", f"{row.refused:.1%}"


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    chosen = parser.parse_args()
    rows = []
    for model in MODELS:
        tell(f"{model.name} ...")
        rows.append(measure(model, chosen.seeds))
    head = ("server", "best fixed limit", "adaptive, of its work", "least of all seeds", "refused")
    show(rows, as_json=chosen.json, head=head, cells=cells)


if __name__ == "__main__":
    main()
