"""Where the time went: what rollouts waited for, one by one and all together."""

from collections import Counter
from typing import Any

from asyncrollout.journal.recorded_run import RecordedRun
from asyncrollout.report.charts import BLUE, GREEN, GREY, ORANGE, SKY, Kind, axis, line, plot, table
from asyncrollout.report.groups import PlayedGroup
from asyncrollout.report.rollouts import Rollout
from asyncrollout.report.statistics import Span, at_once, distribution, every_nth, lanes, percentiles

_MOST_BARS = 500
_BINS = 200
_COLOURS = {"LLM": BLUE, "worker": SKY, "env": ORANGE, "reset": GREEN, "no end yet": GREY}
_NOTES = {
    "LLM": "waiting for the LLM",
    "worker": "waiting for the env",
    "env": "env working",
    "reset": "reset and other",
    "no end yet": "unfinished",
}


def spans(history: RecordedRun, rollouts: list[Rollout]) -> dict[str, Span]:
    """Each rollout's span in seconds of running, by start time."""
    found: dict[str, Span] = {}
    for rollout in rollouts:
        at = history.finished.get(rollout.uid)
        if at is not None:
            end = history.clock(at)
            found[rollout.uid] = Span(max(end - rollout.seconds, 0.0), end, _parts(rollout))
    for uid, open_one in history.in_flight.items():
        start, end = history.clock(open_one.began), history.clock(history.last)
        found[uid] = Span(start, end, [("no end yet", end - start)])
    return dict(sorted(found.items(), key=lambda item: item[1].start))


def _parts(rollout: Rollout) -> list[tuple[str, float]]:
    """Time outside of turns is that of the reset, or of the call that failed."""
    turns = [
        part
        for policy, env, work in zip(rollout.policy_seconds, rollout.env_seconds, rollout.env_work_seconds, strict=True)
        for part in (("LLM", policy), ("worker", env - work), ("env", work))
        if part[1] > 0
    ]
    rest = ("reset", max(rollout.seconds - sum(seconds for _, seconds in turns), 0.0))
    return [*turns, rest] if rollout.error else [rest, *turns]


def where_time_went(history: RecordedRun, groups: list[PlayedGroup]) -> dict[str, Any]:
    """The section: what limits the run, the rollouts in flight, a bar for each, and durations of calls."""
    found = spans(history, [member for group in groups for member in group.members])
    end = history.clock(history.last)
    parts = [_in_flight(found, end), _bars(found, end)] if found else []
    parts += [*_latencies(groups), *_nodes(history, found)]
    return {"id": "time", "title": "Where the time went", "text": _limit(found), "parts": parts}


def _limit(found: dict[str, Span]) -> str:
    total = dict.fromkeys(_COLOURS, 0.0)
    for span in found.values():
        for what, seconds in span.parts:
            total[what] += seconds
    known = sum(total.values()) - total["no end yet"]
    if known <= 0:
        return ""
    shares = ", ".join(f"{total[what] / known:.1%} {_NOTES[what]}" for what in _COLOURS if what != "no end yet")
    return f"Time of all finished rollouts: {shares}."


def _nodes(history: RecordedRun, found: dict[str, Span]) -> list[dict[str, Any]]:
    """What the rollouts of each node waited for, if shards have played them."""
    spent: dict[str, dict[str, float]] = {}
    shards: dict[str, set[str]] = {}
    counts = Counter[str]()
    for uid, (shard, node) in history.places.items():
        if uid in found:
            counts[node] += 1
            shards.setdefault(node, set()).add(shard)
            of_node = spent.setdefault(node, dict.fromkeys(_COLOURS, 0.0))
            for what, seconds in found[uid].parts:
                of_node[what] += seconds
    if not spent:
        return []
    kinds = [what for what in _COLOURS if what != "no end yet"]
    columns: list[tuple[str, Kind]] = [("node", "text"), ("shards", "count"), ("rollouts", "count")]
    columns += [(_NOTES[what], "share") for what in kinds]
    rows = [
        [node, len(shards[node]), counts[node], *(parts[what] / (sum(parts.values()) or 1.0) for what in kinds)]
        for node, parts in sorted(spent.items())
    ]
    return [table("Nodes", columns, rows, "Shares of the time of the rollouts that ended on each node.")]


def _in_flight(found: dict[str, Span], end: float) -> dict[str, Any]:
    edges: dict[str, tuple[list[float], list[float]]] = {what: ([], []) for what in _COLOURS}
    for span in found.values():
        now = span.start
        for what, seconds in span.parts:
            edges[what][0].append(now)
            edges[what][1].append(now := now + seconds)
    middles = [(place + 0.5) * end / _BINS for place in range(_BINS)]
    series, below = [], [0.0] * _BINS
    for what, colour in _COLOURS.items():
        if not edges[what][0]:
            continue
        above = [low + more for low, more in zip(below, at_once(*edges[what], end, _BINS), strict=True)]
        series.append(line(_NOTES[what], colour, zip(middles, below, above, strict=True), "area"))
        below = above
    note = "What the rollouts in flight were doing, averaged over each time bin."
    time = axis("time", "seconds", low=0, high=end)
    return plot("Rollouts in flight", time, axis("rollouts", "number", low=0), series, note)


def _bars(found: dict[str, Span], end: float) -> dict[str, Any]:
    uids = list(found)
    chosen = [uids[place] for place in every_nth(len(uids), _MOST_BARS)]
    rows = lanes([found[uid] for uid in chosen])
    seen = {what for uid in chosen for what, _ in found[uid].parts}
    kinds = [what for what in _COLOURS if what in seen]
    bars = [
        [
            uid,
            lane,
            round(found[uid].start, 4),
            [[kinds.index(what), round(seconds, 5)] for what, seconds in found[uid].parts],
        ]
        for uid, lane in zip(chosen, rows, strict=True)
    ]
    note = "Each bar is a rollout. Click one to open it."
    if len(chosen) < len(uids):
        note += f" {len(chosen):,} of {len(uids):,} are shown, evenly sampled by start time."
    legend = [{"name": _NOTES[what], "colour": _COLOURS[what]} for what in kinds]
    return {"type": "timeline", "title": "Timeline", "note": note, "end": end, "bars": bars, "legend": legend}


def _latencies(groups: list[PlayedGroup]) -> list[dict[str, Any]]:
    """How long calls took."""
    members = [member for group in groups for member in group.members]
    taken: dict[str, list[float]] = {
        "LLM call": [value for one in members for value in one.policy_seconds],
        "env step": [value for one in members for value in one.env_seconds],
        "env working": [value for one in members for value in one.env_work_seconds],
        "rollout": [one.seconds for one in members],
    }
    names = ("count", "mean", "p50", "p90", "p95", "p99", "max")
    rows = [[what, *(percentiles(values).get(name) for name in names)] for what, values in taken.items()]
    columns: list[tuple[str, Kind]] = [("", "text"), ("count", "count")]
    columns += [(name, "seconds") for name in names[1:]]
    series = [
        line(what, colour, [(max(value, 1e-6), share) for value, share in distribution(values)])
        for (what, values), colour in zip(taken.items(), (BLUE, SKY, ORANGE, GREEN), strict=True)
    ]
    return [
        table("Durations", columns, rows),
        plot("Durations: distribution", axis("duration", "seconds", log=True),
             axis("share", "share", low=0, high=1), series),
    ]  # fmt: skip
