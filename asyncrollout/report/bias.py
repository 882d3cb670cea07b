"""Bias and waste: what became of everything that was played, and how what was delivered differs from it."""

from collections.abc import Sequence
from typing import Any

from asyncrollout.journal.recorded_run import FATES, RecordedRun
from asyncrollout.report.charts import BLUE, ORANGE, Kind, axis, line, plot, table
from asyncrollout.report.groups import PlayedGroup, mean_reward
from asyncrollout.report.statistics import Point, edges, point, shares
from asyncrollout.stats import average

_MOST_FATES = 24


def bias_and_waste(history: RecordedRun, groups: list[PlayedGroup]) -> dict[str, Any]:
    """The section: what became of everything that was played, and how what the trainer saw differs from it."""
    trained = [group for group in groups if history.evaluation_of(group.id) is None]
    members = [member for group in trained for member in group.members]
    delivered = [member for group in groups if group.fate.kind == "delivered" for member in group.members]
    parts = [
        _fates(history, groups),
        *_by_batch(history, {group.id: group for group in groups}),
        _compared("Reward of a rollout", "reward", [one.reward for one in members if one.valid],
                  [one.reward for one in delivered if one.valid]),
        _compared("Length of a rollout", "turns", [one.turns for one in members], [one.turns for one in delivered],
                  whole=True),
        _compared("Sampled tokens of a rollout", "tokens", [one.tokens for one in members],
                  [one.tokens for one in delivered], whole=True),
    ]  # fmt: skip
    open_now = list(history.in_flight.values())
    text = "Filtering changes what the trainer sees. Compare everything that was played with what was delivered."
    if open_now:
        mean = sum(one.turns for one in open_now) / len(open_now)
        text += (
            f" {len(open_now):,} rollouts are unfinished, after {mean:.1f} turns on average. The distributions "
            "leave them out, which favors short rollouts."
        )
    if not any(batch.weights for batch in history.batches.values()):
        text += " The weights never changed, so no batch lags behind."
    return {"id": "bias", "title": "Bias and waste", "text": text, "parts": [part for part in parts if part]}


def _fates(history: RecordedRun, groups: list[PlayedGroup]) -> dict[str, Any]:
    """A row per fate; a filter may give each group its own reason, so that the last row collects the rest."""
    by_fate: dict[str, list[PlayedGroup]] = {}
    for group in sorted(groups, key=lambda group: FATES.index(group.fate.kind)):
        name = str(group.fate)
        is_known = name in by_fate or len(by_fate) < _MOST_FATES
        by_fate.setdefault(name if is_known else "dropped for other reasons", []).append(group)
    rows: list[list[Any]] = []
    for fate, chosen in by_fate.items():
        members = [member for group in chosen for member in group.members]
        tokens = sum(one.tokens for one in members) or None
        rows.append([fate, len(chosen), len(members), sum(one.turns for one in members), tokens])
    if history.in_flight:
        turns = sum(one.turns for one in history.in_flight.values())
        rows.append(["unfinished", None, len(history.in_flight), turns, None])
    spent = 4 if any(row[4] for row in rows) else 3
    total = sum(row[spent] or 0 for row in rows) or 1
    unit = "tokens" if spent == 4 else "turns"
    rows = [[*row, (row[spent] or 0) / total] for row in rows]
    columns: list[tuple[str, Kind]] = [
        ("status", "text"), ("groups", "count"), ("rollouts", "count"), ("turns", "count"),
        ("tokens", "count"), (f"share of {unit}", "bar"),
    ]  # fmt: skip
    return table("Kept and dropped", columns, rows)


def _by_batch(history: RecordedRun, groups: dict[str, PlayedGroup]) -> list[dict[str, Any]]:
    """Reward with and without the filter, share of groups kept, and lag; one point for each batch."""
    filtered: list[Point] = []
    unfiltered: list[Point] = []
    keep, oldest, mean = [], [], []
    for batch in sorted(history.batches.values(), key=lambda batch: batch.index):
        kept, dropped = ([groups[name] for name in names if name in groups] for names in (batch.groups, batch.dropped))
        for points, chosen in ((filtered, kept), (unfiltered, kept + dropped)):
            if valid := [group for group in chosen if group.valid]:
                points.append(point(batch.index, mean_reward(valid)))
        keep.append((batch.index, len(batch.groups) / max(len(batch.groups) + len(batch.dropped), 1)))
        lags = [
            max(batch.weights - one.version, 0) for group in kept for one in group.members if one.version is not None
        ]
        if lags:
            oldest.append((batch.index, max(lags)))
            mean.append((batch.index, sum(lags) / len(lags)))
    if not keep:
        return []
    x = axis("batch", "count")
    lag = plot(
        "Lag by batch", x, axis("versions behind", "count", low=0),
        [line("oldest rollout", ORANGE, oldest), line("mean", BLUE, mean)],
        "How many versions its rollouts were behind the current weights at delivery.",
    )  # fmt: skip
    return [
        plot("Reward by batch", x, axis("mean reward"),
             [line("all groups", ORANGE, unfiltered), line("delivered", BLUE, filtered)],
             "All groups that were played for a batch, and those that were delivered."),
        plot("Groups kept by batch", x, axis("share kept", "share", low=0, high=1), [line("kept", BLUE, keep)],
             "Share of the groups that were played for the batch."),
        *([lag] if any(batch.weights for batch in history.batches.values()) else []),
    ]  # fmt: skip


def _compared(
    title: str, label: str, played: Sequence[float], delivered: Sequence[float], *, whole: bool = False
) -> dict[str, Any] | None:
    if not played or (whole and not max(played)):
        return None
    at = edges(played, whole=whole)
    series = [
        line(name, colour, zip(at, at[1:], shares(values, at), strict=False), "steps")
        for name, colour, values in (("all played", ORANGE, played), ("delivered", BLUE, delivered))
    ]
    means = [f"{name} {average(values):,.3f}" for name, values in (("all played", played), ("delivered", delivered))
             if values]  # fmt: skip
    return plot(
        title,
        axis(label, "count" if whole else "number"),
        axis("share of rollouts", "share", low=0),
        series,
        f"Mean: {', '.join(means)}.",
    )
