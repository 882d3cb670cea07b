"""Several runs on one page: how they differ, how certain that is, and their plots side by side."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from asyncrollout.report.charts import Kind, axis, line, plot, table
from asyncrollout.report.compared_run import ComparedRun
from asyncrollout.report.costs import costs_of
from asyncrollout.report.groups import PlayedGroup, mean_reward, pass_rate
from asyncrollout.report.precision import as_estimate
from asyncrollout.report.rollouts import Rollout
from asyncrollout.report.single_file import whole_page
from asyncrollout.report.statistics import edges, estimates_over, percentiles, shares
from asyncrollout.report.timeline import llm_seconds
from asyncrollout.stats import Difference, Estimate, RunFigures, difference, summarize

_ALL = ""
_MOST_BINS = 30
MOST_SIDES = 7
"""As many as there are colours."""


class RunComparison:
    """All envs or one: the figures of each run, and the differences of the others from the first."""

    def __init__(self, env: str, sides: Sequence[ComparedRun], ks: Sequence[int]) -> None:
        self.env = env
        self.names = [side.name for side in sides]
        played = [[group for group in side.played if env in (_ALL, group.tag)] for side in sides]
        self.figures: list[RunFigures] = [summarize(groups, ks) for groups in played]
        self.differences: list[Difference] = [difference(played[0], groups, ks) for groups in played[1:]]
        self.ks = ks


def compared(sides: Sequence[ComparedRun], ks: Sequence[int]) -> list[RunComparison]:
    """All envs together, and if there are several, each of them."""
    envs = _envs(sides)
    return [RunComparison(env, sides, ks) for env in ([_ALL, *envs] if len(envs) > 1 else [_ALL])]


def comparison_page(
    sides: Sequence[ComparedRun], ks: Sequence[int], found: Sequence[RunComparison] | None = None
) -> str:
    """One HTML file; at most `MOST_SIDES` runs."""
    found = compared(sides, ks) if found is None else found
    sections = [_outcomes(found)] if any(side.groups for side in sides) else []
    sections += [_over_time(sides), _lengths(sides), _costs(sides)] if sections else []
    names = [side.name for side in sides]
    summary = {
        "name": ", ".join(names),
        "what": f"{len(sides)} runs, {sum(len(side.members) for side in sides):,} rollouts",
        "state": "" if sections else "No groups have been judged yet. Compare again later.",
        "tiles": [],
        "note": "",
        "sections": sections,
    }
    return whole_page(f"{', '.join(names)}: compared", ["asyncrollout.report:comparing.js"], {"summary": summary})


def _envs(sides: Sequence[ComparedRun]) -> list[str]:
    return list(dict.fromkeys(env for side in sides for env in side.envs))


def _outcomes(found: Sequence[RunComparison]) -> dict[str, Any]:
    """Rewards of each env on their own scale; pass rates of all on one."""
    parts = [_intervals(f"Reward: {one.env}" if one.env else "Reward", "mean reward", "number", _rewards(one))
             for one in found]  # fmt: skip
    parts += [
        _intervals(f"pass@{k}", "pass rate", "share", [row for one in found for row in _rates(one, k)])
        for k in found[0].ks
    ]
    parts += [_differences(found)] if found[0].differences else []
    text = (
        "Means with 95% confidence intervals over groups, because members of a group share a task and a seed. All "
        "judged groups count, including dropped ones. Failed rollouts are left out."
    )
    return {"id": "outcomes", "title": "Rewards and pass rates", "text": text, "parts": parts}


def _rewards(one: RunComparison) -> list[list[Any]]:
    return [_row(name, place, of.reward) for place, (name, of) in enumerate(zip(one.names, one.figures, strict=True))]


def _rates(one: RunComparison, k: int) -> list[list[Any]]:
    runs = enumerate(zip(one.names, one.figures, strict=True))
    return [_row(f"{one.env}, {name}" if one.env else name, place, of.pass_at[k]) for place, (name, of) in runs]


def _row(name: str, colour: int, estimate: Estimate) -> list[Any]:
    return [name, colour, estimate.mean, estimate.low, estimate.high]


def _intervals(title: str, label: str, kind: Kind, rows: list[list[Any]]) -> dict[str, Any]:
    return {"type": "intervals", "title": title, "note": "", "x": axis(label, kind), "rows": rows}


def _differences(found: Sequence[RunComparison]) -> dict[str, Any]:
    ks, first = found[0].ks, found[0].names[0]
    columns: list[tuple[str, Kind]] = [("env", "text"), ("run", "text"), ("compared by", "text")]
    columns += [(name, "text") for name in ("reward", *(f"pass@{k}" for k in ks))]
    rows = []
    for one in found:
        for name, differs in zip(one.names[1:], one.differences, strict=True):
            how = "all groups" if differs.pairs is None else f"{differs.pairs} pairs"
            values = [differs.reward, *(differs.pass_at[k] for k in ks)]
            rows.append([one.env or "all", name, how, *(as_estimate(value, "+") for value in values)])
    note = (
        "Groups that both runs played, from the same seed and task, are compared as pairs. "
        "A difference whose interval contains 0 may be due to chance."
    )
    return table(f"Difference from {first}", columns, rows, note)


def _over_time(sides: Sequence[ComparedRun]) -> dict[str, Any]:
    envs = _envs(sides)
    parts = [_progress(sides)]
    for env in envs:
        where = f": {env}" if len(envs) > 1 else ""
        parts.append(_curves(f"Reward over the run{where}", axis("mean reward"), sides, env, mean_reward))
        rate = axis("pass rate", "share", low=0, high=1)
        parts.append(_curves(f"Pass rate over the run{where}", rate, sides, env, pass_rate))
    text = "By number of judged groups, so that fast and slow runs can be compared."
    return {"id": "time", "title": "Over the run", "text": text, "parts": parts}


def _curves(
    title: str,
    y: dict[str, Any],
    sides: Sequence[ComparedRun],
    env: str,
    estimate: Callable[[list[PlayedGroup]], Estimate],
) -> dict[str, Any]:
    """At least four groups to a point, on average."""
    of_sides = [[group for group in side.groups if group.env == env and group.valid] for side in sides]
    longest = max(map(len, of_sides))
    bins = min(max(longest // 4, 1), _MOST_BINS)
    series = [
        line(side.name, colour, estimates_over(enumerate(groups), longest, bins, estimate))
        for colour, (side, groups) in enumerate(zip(sides, of_sides, strict=True))
    ]
    return plot(title, axis("groups judged", "count", low=0, high=longest), y, series)


def _progress(sides: Sequence[ComparedRun]) -> dict[str, Any]:
    series = [
        line(side.name, colour, _sparse([(group.at, place + 1) for place, group in enumerate(side.groups) if group.at]))
        for colour, side in enumerate(sides)
    ]
    return plot("Groups judged", axis("time", "seconds", low=0), axis("groups", "count", low=0), series)


def _sparse(points: list[tuple[float, int]]) -> list[tuple[float, int]]:
    points.sort()
    return [*points[:: max(len(points) // 100, 1)], *points[-1:]]


def _lengths(sides: Sequence[ComparedRun]) -> dict[str, Any]:
    parts = [
        _histogram("Length of a rollout", "turns", sides, lambda one: one.turns),
        _histogram("Sampled tokens of a rollout", "tokens", sides, lambda one: one.tokens),
    ]
    return {"id": "lengths", "title": "Lengths", "text": "", "parts": [part for part in parts if part]}


def _histogram(
    title: str, label: str, sides: Sequence[ComparedRun], value: Callable[[Rollout], int]
) -> dict[str, Any] | None:
    of_sides = [[*map(value, side.members)] for side in sides]
    everything = [one for values in of_sides for one in values]
    if not any(everything):
        return None
    at = edges(everything, whole=True)
    series = [
        line(side.name, colour, zip(at, at[1:], shares(values, at), strict=False), "steps")
        for colour, (side, values) in enumerate(zip(sides, of_sides, strict=True))
    ]
    return plot(title, axis(label, "count"), axis("share of rollouts", "share", low=0), series)


def _costs(sides: Sequence[ComparedRun]) -> dict[str, Any]:
    columns: list[tuple[str, Kind]] = [
        ("run", "text"), ("groups", "count"), ("rollouts", "count"), ("failed", "count"), ("kept", "share"),
        ("time", "seconds"), ("turns/s", "number"), ("tokens/s", "number"), ("LLM p50", "seconds"),
        ("LLM p95", "seconds"), ("env p50", "seconds"), ("env p95", "seconds"),
    ]  # fmt: skip
    rows = [_cost(side) for side in sides]
    return {"id": "costs", "title": "Costs", "text": "", "parts": [table("Cost of each run", columns, rows)]}


def _cost(side: ComparedRun) -> list[Any]:
    members, seconds = side.members, max(side.history.clock(side.history.last), 1e-9)
    kept, costs = [group.kept for group in side.played], costs_of(side.history, side.evaluation)
    return [
        side.name, len(side.groups), len(members), sum(bool(one.error) for one in members),
        sum(kept) / len(kept) if kept else None, seconds, costs.turns / seconds,
        costs.tokens / seconds if costs.tokens else None,
        *_taken(second for one in members for second in llm_seconds(one)),
        *_taken(second for one in members for second in one.env_seconds),
    ]  # fmt: skip


def _taken(seconds: Iterable[float]) -> tuple[float | None, float | None]:
    found = percentiles([*seconds])
    return found.get("p50"), found.get("p95")
