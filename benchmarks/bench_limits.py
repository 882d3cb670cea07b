"""How much of the work that the best fixed limit would get done the adaptive one does, on many models of servers.

    python benchmarks/bench_limits.py [--seeds 5] [--json]

In virtual time (`tests/server_models.py`), so it is the same on every machine. The best fixed limit is found by a sweep
over each model; the adaptive one starts at 16 and knows nothing. Both include the way up to it.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.tables import aligned
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON lines")
    options = parser.parse_args()
    rows = []
    for model in MODELS:
        print(f"{model.name} ...", file=sys.stderr, flush=True)
        rows.append(measure(model, options.seeds))
    if options.json:
        print("\n".join(json.dumps(row._asdict()) for row in rows))
        return
    head = ("server", "best fixed limit", "adaptive, of its work", "least of all seeds", "refused")
    cells = [
        (row.server, str(row.best_fixed), f"{row.mean:.2f}", f"{row.least:.2f}", f"{row.refused:.1%}") for row in rows
    ]
    print(aligned([head, *cells]))


if __name__ == "__main__":
    main()
