"""The figures of a run that one looks at first, and its rewards."""

from collections.abc import Callable, Iterable
from typing import Any

from asyncrollout.comparison import pass_at
from asyncrollout.report.drawings import Kind, axis, line, plot, table
from asyncrollout.report.groups import PlayedGroup
from asyncrollout.report.history import History
from asyncrollout.report.rollouts import Rollout
from asyncrollout.report.statistics import Estimate, estimate, means_over

_MOST_BINS = 30
_MOST_ENVS = 6
_SPENT = ("delivered", "evaluation")


def tiles(history: History, groups: list[PlayedGroup], wanted: int | None) -> list[dict[str, Any]]:
    """The figures that one looks at first: label, value, kind, and a note below."""
    members = [member for group in groups for member in group.members]
    valid = [group for group in groups if group.counts]
    judged = [group for group in groups if group.id in history.verdicts]
    kept = sum(history.verdicts[group.id].keep for group in judged)
    seconds = history.clock(history.last)
    turns, tokens = sum(member.turns for member in members), sum(member.tokens for member in members)
    errors = sum(bool(member.error) for member in members)
    reward = estimate([group.reward for group in valid])
    passed = estimate([group.pass_rate for group in valid])
    lost = 1 - sum(
        _cost(member, tokens) for group in groups if group.fate.kind in _SPENT for member in group.members
    ) / (tokens or turns or 1)
    return [
        _tile("Reward", reward.mean, "number", _give_or_take(reward, "number", "over whole groups")),
        _tile("Pass rate", passed.mean, "share", _give_or_take(passed, "share", "pass@1")),
        _tile("Groups kept", kept / len(judged) if judged else None, "share", f"{kept:,} of {len(judged):,} judged"),
        _tile("Batches", len(history.batches), "count", "delivered" if wanted is None else f"of {wanted:,} delivered"),
        _tile("Rollouts", len(members), "count", f"{errors:,} with an error"),
        _tile("Turns", turns, "count", f"{turns / max(seconds, 1e-9):,.1f} a second"),
        _tile("Tokens", tokens, "count", f"{tokens / max(seconds, 1e-9):,.0f} a second" if tokens else "none counted"),
        _tile("Time", seconds, "seconds", _attempts(history)),
        _tile("Not delivered", lost if turns else None, "share", f"of all {'tokens' if tokens else 'turns'} played"),
    ]


def _tile(label: str, value: float | None, kind: Kind, note: str) -> dict[str, Any]:
    return {"label": label, "value": value, "kind": kind, "note": note}


def _give_or_take(found: Estimate, kind: Kind, what: str) -> str:
    if found.half is None:
        return what
    return f"± {found.half:.1%} {what}" if kind == "share" else f"± {found.half:.3g} {what}"


def _attempts(history: History) -> str:
    count = len(history.attempts)
    return "in one go" if count == 1 else f"in {count} attempts; pauses left out"


def _cost(member: Rollout, tokens: int) -> int:
    """In tokens; in turns if nobody counted tokens."""
    return member.tokens if tokens else member.turns


def rewards(history: History, groups: list[PlayedGroup]) -> dict[str, Any]:
    """Rewards and pass rates over time, by batch and by env."""
    played = [group for group in groups if group.counts]
    envs = colours(played)
    parts = [
        *_rewards_over_time(history, played),
        plot(
            "Pass rate over time", _time(history), axis("pass rate", "share", low=0, high=1),
            [line(env, colour, _means(history, played, env, lambda group: group.pass_rate))
             for env, colour in envs.items()],
        ),
        _by_env(history, groups),
    ]  # fmt: skip
    text = "Means of the groups that were judged in each stretch of time, with 95% intervals."
    if len({group.env for group in played}) > len(envs):
        text += f" The {len(envs)} envs that were played most are drawn."
    return {"id": "rewards", "title": "Rewards", "text": text, "parts": parts}


def colours(groups: list[PlayedGroup]) -> dict[str, int]:
    """The envs that are drawn, most played first, each with a colour."""
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.env] = counts.get(group.env, 0) + 1
    return {env: place for place, env in enumerate(sorted(counts, key=lambda env: -counts[env])[:_MOST_ENVS])}


def _time(history: History) -> dict[str, Any]:
    return axis("time", "seconds", low=0, high=history.clock(history.last))


def _rewards_over_time(history: History, played: list[PlayedGroup]) -> list[dict[str, Any]]:
    """A plot for each env: their rewards are on different scales."""
    envs = colours(played)
    return [
        {
            **plot(f"Reward over time: {env}" if len(envs) > 1 else "Reward over time", _time(history),
                   axis("mean reward"), [line(env, colour, _means(history, played, env, lambda group: group.reward))]),
            "small": len(envs) > 2,
        }
        for env, colour in envs.items()
    ]  # fmt: skip


def _means(
    history: History, played: list[PlayedGroup], env: str, value: Callable[[PlayedGroup], float]
) -> list[tuple[float, float, float | None]]:
    """Of the env's groups, over time; at least four groups to a point, on average."""
    of_env = [(group.at, value(group)) for group in played if group.env == env and group.at is not None]
    bins = min(max(len(of_env) // 4, 1), _MOST_BINS)
    return means_over([at for at, _ in of_env], [one for _, one in of_env], history.clock(history.last), bins)


def _by_env(history: History, groups: list[PlayedGroup]) -> dict[str, Any]:
    rows = []
    names = list(dict.fromkeys(group.env for group in groups))
    largest = max((len(group.valid) for group in groups), default=1) or 1
    for name in names if len(names) == 1 else [*names, ""]:
        chosen = [group for group in groups if name in ("", group.env)]
        valid = [group for group in chosen if group.counts]
        judged = [history.verdicts[group.id].keep for group in chosen if group.id in history.verdicts]
        members = [member for group in chosen for member in group.members]
        delivered = [group.reward for group in valid if group.fate.kind == "delivered"]
        whole = [group for group in valid if len(group.valid) >= largest]
        rows.append([
            name or "all", len(chosen), len(members),
            estimate([group.reward for group in valid]), estimate(delivered),
            estimate([group.pass_rate for group in valid]),
            _mean(pass_at(len(group.valid), sum(one.passed for one in group.valid), largest) for group in whole),
            sum(judged) / len(judged) if judged else None,
            _mean(member.turns for member in members), _mean(member.tokens for member in members) or None,
            sum(bool(member.error) for member in members),
        ])  # fmt: skip
    columns: list[tuple[str, Kind]] = [
        ("env", "text"), ("groups", "count"), ("rollouts", "count"), ("reward, all", "number"),
        ("reward, delivered", "number"), ("pass@1", "share"), (f"pass@{largest}", "share"), ("kept", "share"),
        ("turns", "number"), ("tokens", "number"), ("errors", "count"),
    ]  # fmt: skip
    note = (
        "With 95% intervals over groups that are whole, because members of a group share a seed. A rollout passes if "
        "its env reports success; if the env never does, if its reward is above 0."
    )
    return table("By environment", columns, rows, note)


def _mean(values: Iterable[float]) -> float | None:
    return estimate(list(values)).mean
