"""Where the time went: what rollouts waited for, one by one and all together."""

from typing import Any

from asyncrollout.journal.attempts import RolloutAttempt
from asyncrollout.journal.recorded_run import EvaluationRecord, RecordedRun
from asyncrollout.report.charts import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, Kind, axis, line, plot, table
from asyncrollout.report.groups import PlayedGroup
from asyncrollout.report.rollouts import Rollout
from asyncrollout.report.statistics import Span, at_once, distribution, every_nth, lanes, percentiles

_MOST_BARS = 500
_BINS = 200
_COLOURS = {
    "LLM": BLUE, "worker": SKY, "env": ORANGE, "reset": GREEN, "score": PURPLE, "lost": VERMILLION, "no end yet": GREY,
}  # fmt: skip
_NOTES = {
    "LLM": "waiting for the LLM",
    "worker": "waiting for the env",
    "env": "env working",
    "reset": "reset and other",
    "score": "waiting for the score",
    "lost": "failed or cancelled attempt",
    "no end yet": "unfinished, or before a resume",
}
_UNKNOWN = ("lost", "no end yet")

Spans = list[tuple[str, Span]]
"""Uids of rollouts, and their spans; one that was resumed or retried has several."""


def spans(history: RecordedRun, rollouts: list[Rollout], evaluation: EvaluationRecord | None = None) -> Spans:
    """All stretches of all attempts of training, or of an evaluation, in seconds of running, by start time."""
    records = {rollout.uid: rollout for rollout in rollouts}
    found: Spans = []
    for attempt in history.attempts_of(evaluation):
        *earlier, last = _stretches(history, attempt)
        what = "no end yet" if attempt.end in ("open", "finished") else "lost"
        found += [(attempt.uid, Span(*times, [(what, times[1] - times[0])])) for times in earlier]
        record = records.get(attempt.uid) if attempt.end == "finished" else None
        parts = [(what, last[1] - last[0])] if record is None else _parts(record, last[1] - last[0])
        found.append((attempt.uid, Span(*last, parts)))
    return sorted(found, key=lambda item: item[1].start)


def _stretches(history: RecordedRun, attempt: RolloutAttempt) -> list[tuple[float, float]]:
    return [
        (history.clock(began), history.clock(history.last if ended is None else ended))
        for began, ended in attempt.stretches
    ]


def _parts(rollout: Rollout, length: float) -> list[tuple[str, float]]:
    """What a stretch of so many seconds was spent on; the rest is that of the reset, or of the call that failed.

    Replies from the record took no time here.
    """
    turns = [
        part
        for policy, again, env, work in zip(
            rollout.policy_seconds, rollout.replayed, rollout.env_seconds, rollout.env_work_seconds, strict=True
        )
        for part in (("LLM", 0.0 if again else policy), ("worker", env - work), ("env", work))
        if part[1] > 0
    ]
    score = [("score", rollout.score_seconds)] if rollout.score_seconds > 0 else []
    known = sum(seconds for _, seconds in (*turns, *score))
    rest = ("reset", max(length - known, 0.0))
    parts = [*turns, rest, *score] if rollout.error else [rest, *turns, *score]
    if known <= length:
        return parts
    return [(what, seconds * length / known) for what, seconds in parts]  # killed before its end was written


def where_time_went(
    history: RecordedRun, groups: list[PlayedGroup], evaluation: EvaluationRecord | None = None
) -> dict[str, Any]:
    """The section: what limits the run, the rollouts in flight, a bar for each, and durations of calls."""
    found = spans(history, [member for group in groups for member in group.members], evaluation)
    end = history.clock(history.last)
    parts = [_in_flight(found, end), _bars(found, end)] if found else []
    text = _limit(found)
    if evaluation is None and history.evaluations:
        text += " Evaluations are left out."
    parts += [*_latencies(groups), *_nodes(history, found)]
    return {"id": "time", "title": "Where the time went", "text": text, "parts": parts}


def _limit(found: Spans) -> str:
    total = dict.fromkeys(_COLOURS, 0.0)
    for _, span in found:
        for what, seconds in span.parts:
            total[what] += seconds
    shown = [what for what in _COLOURS if what not in _UNKNOWN and (what != "score" or total[what])]
    known = sum(total[what] for what in shown)
    if known <= 0:
        return ""
    shares = ", ".join(f"{total[what] / known:.1%} {_NOTES[what]}" for what in shown)
    return f"Time of all finished rollouts: {shares}."


def _nodes(history: RecordedRun, found: Spans) -> list[dict[str, Any]]:
    """What the rollouts of each node waited for, if shards have played them."""
    spent: dict[str, dict[str, float]] = {}
    rollouts: dict[str, set[str]] = {}
    for uid, span in found:
        if (place := history.places.get(uid)) is not None:
            rollouts.setdefault(place.node, set()).add(uid)
            of_node = spent.setdefault(place.node, dict.fromkeys(_COLOURS, 0.0))
            for what, seconds in span.parts:
                of_node[what] += seconds
    if not spent:
        return []
    kinds = [what for what in _COLOURS if what != "no end yet"]
    columns: list[tuple[str, Kind]] = [("node", "text"), ("shards", "count"), ("rollouts", "count")]
    columns += [(_NOTES[what], "share") for what in kinds]
    rows = []
    for node, parts in sorted(spent.items()):
        shards = {history.places[uid].shard for uid in rollouts[node]}
        total = sum(parts.values()) or 1.0
        rows.append([node, len(shards), len(rollouts[node]), *(parts[what] / total for what in kinds)])
    return [table("Nodes", columns, rows, "Shares of the time of the rollouts that ended on each node.")]


def _in_flight(found: Spans, end: float) -> dict[str, Any]:
    edges: dict[str, tuple[list[float], list[float]]] = {what: ([], []) for what in _COLOURS}
    for _, span in found:
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


def _bars(found: Spans, end: float) -> dict[str, Any]:
    chosen = [found[place] for place in every_nth(len(found), _MOST_BARS)]
    rows = lanes([span for _, span in chosen])
    seen = {what for _, span in chosen for what, _ in span.parts}
    kinds = [what for what in _COLOURS if what in seen]
    bars = [
        [
            uid,
            lane,
            round(span.start, 4),
            [[kinds.index(what), round(seconds, 5)] for what, seconds in span.parts],
        ]
        for (uid, span), lane in zip(chosen, rows, strict=True)
    ]
    note = "Each bar is a rollout, or an attempt at one. Click one to open it."
    if len(chosen) < len(found):
        note += f" {len(chosen):,} of {len(found):,} are shown, evenly sampled by start time."
    legend = [{"name": _NOTES[what], "colour": _COLOURS[what]} for what in kinds]
    return {"type": "timeline", "title": "Timeline", "note": note, "end": end, "bars": bars, "legend": legend}


def llm_seconds(rollout: Rollout) -> list[float]:
    """How long each LLM call took; those from the record for which that is unknown are left out."""
    return [value for value, again in zip(rollout.policy_seconds, rollout.replayed, strict=True) if value or not again]


def _latencies(groups: list[PlayedGroup]) -> list[dict[str, Any]]:
    """How long calls took."""
    members = [member for group in groups for member in group.members]
    taken: dict[str, list[float]] = {
        "LLM call": [value for one in members for value in llm_seconds(one)],
        "env step": [value for one in members for value in one.env_seconds],
        "env working": [value for one in members for value in one.env_work_seconds],
        "rollout": [one.seconds for one in members],
        **({"score": scored} if (scored := [one.score_seconds for one in members if one.score_seconds]) else {}),
    }
    names = ("count", "mean", "p50", "p90", "p95", "p99", "max")
    rows = [[what, *(percentiles(values).get(name) for name in names)] for what, values in taken.items()]
    columns: list[tuple[str, Kind]] = [("", "text"), ("count", "count")]
    columns += [(name, "seconds") for name in names[1:]]
    series = [
        line(what, colour, [(max(value, 1e-6), share) for value, share in distribution(values)])
        for (what, values), colour in zip(taken.items(), (BLUE, SKY, ORANGE, GREEN, PURPLE), strict=False)
    ]
    return [
        table("Durations", columns, rows),
        plot("Durations: distribution", axis("duration", "seconds", log=True),
             axis("share", "share", low=0, high=1), series),
    ]  # fmt: skip
