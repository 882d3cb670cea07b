"""The headline figures of a run, and its rewards."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from asyncrollout.journal.recorded_run import RecordedRun
from asyncrollout.report.charts import Kind, axis, line, plot, table
from asyncrollout.report.compared_run import ComparedRun, which_k
from asyncrollout.report.costs import costs_of, costs_of_rollouts
from asyncrollout.report.groups import PlayedGroup, mean_reward, pass_rate
from asyncrollout.report.precision import mean_and_interval
from asyncrollout.report.rollouts import Rollout
from asyncrollout.report.statistics import Point, estimates_over
from asyncrollout.stats import Estimate, RunFigures, summarize
from asyncrollout.trajectories import StopReason

_MOST_BINS = 30
_MOST_ENVS = 6


class Totals(msgspec.Struct, frozen=True):
    """A run over all of its processes: `docs/figures.md` has the definitions.

    `rollouts` are those on record, `failed` those of them with an error; `errors` counts failed attempts, by blame.
    """

    seconds: float
    rollouts: int
    failed: int
    retries: int
    turns: int
    invalid: int
    tokens: int
    errors: dict[str, int]
    reward: Estimate
    pass_rate: Estimate


def totals(side: ComparedRun, groups: Iterable[PlayedGroup]) -> Totals:
    """Totals over the groups; reward and pass rate are those of the side, as in `compare`."""
    history, members = side.history, [member for group in groups for member in group.members]
    found, costs, counted = summarize(side.played, [1]), costs_of(history, side.evaluation), history.counters
    failed = Counter(_blamed(one) for one in members if one.error)
    return Totals(
        seconds=history.clock(history.last),
        rollouts=len(members),
        failed=failed.total(),
        retries=sum(one.end == "failed" for one in history.attempts_of(side.evaluation)),
        turns=costs.turns,
        invalid=sum(one.invalid for one in members) if side.evaluation else counted.invalid,
        tokens=costs.tokens,
        errors=dict(failed if side.evaluation else counted.errors),
        reward=found.reward,
        pass_rate=found.pass_at[1],
    )


def _blamed(one: Rollout) -> str:
    try:
        return StopReason(one.stop).blame or "other"
    except ValueError:  # the file may hold anything
        return "other"


def tiles(side: ComparedRun, groups: list[PlayedGroup], wanted: int | None) -> list[dict[str, Any]]:
    """The headline figures: label, value, kind, and a note below."""
    history, whole = side.history, totals(side, groups)
    first = [
        _estimated_tile("Reward", whole.reward, "number", "over complete groups"),
        _estimated_tile("Pass rate", whole.pass_rate, "share", "pass@1"),
    ]
    turns, tokens, pace = whole.turns, whole.tokens, max(whole.seconds, 1e-9)
    last = [
        _tile("Rollouts", whole.rollouts, "count", _failures(whole)),
        _tile("Turns", turns, "count", f"{turns / pace:,.1f}/s"),
        _tile("Tokens", tokens, "count", f"{tokens / pace:,.0f}/s" if tokens else "none counted"),
        _tile("Time", whole.seconds, "seconds", _attempts(history)),
    ]
    if side.evaluation is not None:
        return [*first, *_evaluation_tiles(side), *last]
    judged = [group for group in groups if group.id in history.verdicts]
    kept = sum(history.verdicts[group.id].keep for group in judged)
    delivered = [one.uid for group in groups if group.fate.kind == "delivered" for one in group.members]
    used = costs_of_rollouts(history, delivered).spent(in_tokens=tokens > 0)
    unit, played = ("tokens", tokens) if tokens else ("turns", turns)
    return [
        *first,
        _tile("Groups kept", kept / len(judged) if judged else None, "share", f"{kept:,} of {len(judged):,} judged"),
        _tile("Batches", len(history.batches), "count", "delivered" if wanted is None else f"of {wanted:,} delivered"),
        *last,
        _tile(
            "Not delivered",
            1 - used / played if played else None,
            "share",
            f"of all {unit} sampled" if tokens else f"of all {unit} played",
        ),
    ]


def _tile(label: str, value: float | None, kind: Kind, note: str) -> dict[str, Any]:
    return {"label": label, "value": value, "kind": kind, "note": note}


def _estimated_tile(label: str, found: Estimate, kind: Kind, what: str) -> dict[str, Any]:
    """The page gives the value as many digits as the interval in the note has."""
    _, between = mean_and_interval(found, share=kind == "share")
    return {**_tile(label, found.mean, kind, f"{between} {what}".lstrip()), "interval": [found.low, found.high]}


def _evaluation_tiles(side: ComparedRun) -> list[dict[str, Any]]:
    evaluation = side.evaluation
    assert evaluation is not None
    of = "complete" if evaluation.tasks is None else f"of {evaluation.tasks:,}, each played {evaluation.k} times"
    tasks = _tile("Tasks", len(side.groups), "count", of)
    if side.group_size == 1:
        return [tasks]
    passed = summarize(side.played, [side.group_size]).pass_at[side.group_size]
    name = f"pass@{side.group_size}"
    return [_estimated_tile(name, passed, "share", "over tasks"), tasks]


def _attempts(history: RecordedRun) -> str:
    count = len(history.attempts)
    return "one attempt" if count == 1 else f"{count} attempts, without pauses"


def _failures(whole: Totals) -> str:
    return f"{whole.failed:,} failed" + (f", {whole.retries:,} retried" if whole.retries else "")


def rewards(side: ComparedRun) -> dict[str, Any]:
    """Rewards and pass rates over time, by batch and by env."""
    history, groups = side.history, side.groups
    played = [group for group in groups if group.counts]
    envs = colours(played)
    parts = [
        *_rewards_over_time(history, played),
        plot(
            "Pass rate over time", _time(history), axis("pass rate", "share", low=0, high=1),
            [line(env, colour, _estimates_over(history, played, env, pass_rate))
             for env, colour in envs.items()],
        ),
        _by_env(side),
    ]  # fmt: skip
    kind = "judged" if side.evaluation is None else "finished"
    text = f"Means over the groups {kind} in each time bin, with 95% confidence intervals."
    if len({group.env for group in played}) > len(envs):
        text += f" Only the {len(envs)} most played envs are shown."
    return {"id": "rewards", "title": "Rewards", "text": text, "parts": parts}


def colours(groups: list[PlayedGroup]) -> dict[str, int]:
    """The envs to show, most played first, each with a colour."""
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.env] = counts.get(group.env, 0) + 1
    return {env: place for place, env in enumerate(sorted(counts, key=lambda env: -counts[env])[:_MOST_ENVS])}


def _time(history: RecordedRun) -> dict[str, Any]:
    return axis("time", "seconds", low=0, high=history.clock(history.last))


def _rewards_over_time(history: RecordedRun, played: list[PlayedGroup]) -> list[dict[str, Any]]:
    """A plot for each env: their rewards are on different scales."""
    envs = colours(played)
    return [
        {
            **plot(f"Reward over time: {env}" if len(envs) > 1 else "Reward over time", _time(history),
                   axis("mean reward"), [line(env, colour, _estimates_over(history, played, env, mean_reward))]),
            "small": len(envs) > 2,
        }
        for env, colour in envs.items()
    ]  # fmt: skip


def _estimates_over(
    history: RecordedRun, played: list[PlayedGroup], env: str, estimate: Callable[[list[PlayedGroup]], Estimate]
) -> list[Point]:
    """Of the env's groups, over time; at least four groups to a point, on average."""
    of_env = [(group.at, group) for group in played if group.env == env and group.at is not None]
    bins = min(max(len(of_env) // 4, 1), _MOST_BINS)
    return estimates_over(of_env, history.clock(history.last), bins, estimate)


def _by_env(side: ComparedRun) -> dict[str, Any]:
    """The same figures as in `compare`."""
    names, ks = side.envs, which_k([side])
    rows = []
    for name in names if len(names) == 1 else [*names, ""]:
        played = [group for group in side.played if name in ("", group.tag)]
        found = summarize(played, ks)
        delivered = [one for one, group in zip(side.played, side.groups, strict=True)
                     if name in ("", one.tag) and group.fate.kind == "delivered"]  # fmt: skip
        rows.append([name or "all", found.groups, found.rollouts, *_estimates(found, summarize(delivered, ks), side)])
    columns: list[tuple[str, Kind]] = [("env", "text"), ("groups", "count"), ("rollouts", "count")]
    columns += _columns(ks, side)
    note = (
        "95% confidence intervals are over complete groups, because members of a group share a seed. A rollout passes "
        "if its env reports success or, for envs that never report it, if its reward is above 0. Turns and tokens are "
        "those of rollouts with an outcome."
    )
    return table("By environment", columns, rows, note)


def _columns(ks: list[int], side: ComparedRun) -> list[tuple[str, Kind]]:
    rates: list[tuple[str, Kind]] = [(f"pass@{k}", "share") for k in ks]
    lengths: list[tuple[str, Kind]] = [("turns", "number"), ("tokens", "number"), ("failed", "count")]
    if side.evaluation is not None:
        return [("reward", "number"), *rates, *lengths]
    return [("reward, all", "number"), ("reward, delivered", "number"), *rates, ("kept", "share"), *lengths]


def _estimates(found: RunFigures, delivered: RunFigures, side: ComparedRun) -> list[Any]:
    rates = [_cell(rate) for rate in found.pass_at.values()]
    lengths = [_cell(found.turns), _cell(found.tokens) if found.tokens.mean else None, found.failed]
    if side.evaluation is not None:
        return [_cell(found.reward), *rates, *lengths]
    return [_cell(found.reward), _cell(delivered.reward), *rates, found.keep_rate.mean, *lengths]


def _cell(found: Estimate) -> list[float | None] | None:
    return None if found.mean is None else [found.mean, found.low, found.high]


def evaluations(sides: list[ComparedRun]) -> dict[str, Any]:
    """A row per evaluation during training; they are not part of any other figure."""
    rows = []
    for side in sides:
        assert side.evaluation is not None
        found, k = summarize(side.played, which_k([side])), side.group_size
        state = "complete" if side.evaluation.is_complete else "not complete"
        rates = [_cell(found.pass_at[1]), _cell(found.pass_at[k])]
        costs = costs_of(side.history, side.evaluation)
        rows.append([
            side.evaluation.name, state, found.groups, k, _cell(found.reward), *rates, found.failed, costs.attempts,
            costs.turns, costs.tokens or None,
        ])  # fmt: skip
    columns: list[tuple[str, Kind]] = [
        ("evaluation", "text"), ("state", "text"), ("tasks", "count"), ("k", "count"), ("reward", "number"),
        ("pass@1", "share"), ("pass@k", "share"), ("failed", "count"), ("attempts", "count"), ("turns", "count"),
        ("tokens", "count"),
    ]  # fmt: skip
    note = (
        "95% confidence intervals are over tasks of which all k rollouts are over. Attempts, turns and tokens are all "
        "that was played. Evaluations are not part of any figure of the training."
    )
    return {
        "id": "evaluations", "title": "Evaluations", "text": "",
        "parts": [table("Evaluations", columns, rows, note)],
    }  # fmt: skip
