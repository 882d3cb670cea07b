"""Bias and waste: what became of everything that was played, and how what was delivered differs from it."""

from collections.abc import Sequence
from typing import Any

from asyncrollout.journal.attempts import AttemptEnd
from asyncrollout.journal.recorded_run import FATES, BatchRecord, RecordedRun
from asyncrollout.report.charts import BLUE, ORANGE, Kind, axis, line, plot, table
from asyncrollout.report.costs import AttemptCosts, costs_of_rollouts
from asyncrollout.report.groups import PlayedGroup, mean_reward
from asyncrollout.report.statistics import Point, edges, point, shares
from asyncrollout.stats import average

_MOST_FATES = 24
_LOST: dict[str, AttemptEnd] = {
    "unfinished": "open",
    "failed attempts": "failed",
    "cancelled attempts": "cancelled",
}
_NOTE = (
    "Failed attempts were retried. Cancelled attempts were in groups that were given up and played again. What they "
    "sampled was lost."
)


def bias_and_waste(history: RecordedRun, groups: list[PlayedGroup]) -> dict[str, Any]:
    """The section: what became of all that was played for training, and how what the trainer saw differs from it."""
    members = [member for group in groups for member in group.members]
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
    open_now = [one for one in history.attempts_of(None) if one.end == "open"]
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
    """A row per fate, and one for each way in which attempts were lost; a filter may give each group its own reason, so
    that the last row of fates collects the rest.
    """
    by_fate: dict[str, list[PlayedGroup]] = {}
    for group in sorted(groups, key=lambda group: FATES.index(group.fate.kind)):
        name = str(group.fate)
        is_known = name in by_fate or len(by_fate) < _MOST_FATES
        by_fate.setdefault(name if is_known else "dropped for other reasons", []).append(group)
    found: list[tuple[str, int | None, AttemptCosts]] = []
    for fate, chosen in by_fate.items():
        uids = [member.uid for group in chosen for member in group.members]
        found.append((fate, len(chosen), costs_of_rollouts(history, uids)))
    attempts = [*history.attempts_of(None)]
    for name, end in _LOST.items():
        if lost := [one for one in attempts if one.end == end]:
            found.append((name, None, AttemptCosts.of(lost)))
    in_tokens = any(costs.tokens for *_, costs in found)
    total = sum(costs.spent(in_tokens=in_tokens) for *_, costs in found) or 1
    unit = "tokens" if in_tokens else "turns"
    rows: list[list[Any]] = [
        [name, count, costs.attempts, costs.turns, costs.tokens or None, costs.spent(in_tokens=in_tokens) / total]
        for name, count, costs in found
    ]
    columns: list[tuple[str, Kind]] = [
        ("status", "text"), ("groups", "count"), ("rollouts", "count"), ("turns", "count"),
        ("tokens", "count"), (f"share of {unit}", "bar"),
    ]  # fmt: skip
    return table("Kept and dropped", columns, rows, _NOTE if any(row[1] is None for row in rows) else "")


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
        keep.append((batch.index, _share_kept(history, batch)))
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
             "Share of the groups played for the batch that the filter kept."),
        *([lag] if any(batch.weights for batch in history.batches.values()) else []),
    ]  # fmt: skip


def _share_kept(history: RecordedRun, batch: BatchRecord) -> float:
    """By verdicts: rejected groups may have filled the batch."""
    judged = (history.verdicts.get(group) for group in batch.groups)
    kept = sum(verdict is None or verdict.keep for verdict in judged)
    return kept / max(len(batch.groups) + len(batch.dropped), 1)


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
