"""Reprs of batches, groups and trajectories: one line, and an escaped HTML table for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_MOST_ROWS = 20
_LONGEST = 300  # characters in a cell
_LONGEST_ERROR = 120


def batch_line(batch: Any) -> str:
    return f"<Batch {batch.index}: {counted(len(batch.groups), 'group')}, {_summary(batch.trajectories)}>"


def group_line(group: Any) -> str:
    named = sorted({trajectory.env for trajectory in group.trajectories})
    parts = [", ".join(named)] if named else []
    parts.append(_summary(group.trajectories))
    if group.verdict is not None:
        parts.append("kept" if group.verdict.keep else f"dropped: {clipped(group.verdict.reason, _LONGEST_ERROR)}")
    return f"<Group {group.id}: {', '.join(parts)}>"


def trajectory_line(trajectory: Any) -> str:
    turns = counted(len(trajectory.turns), "turn")
    line = f"{trajectory.env}, seed {trajectory.seed}, {turns}, reward {trajectory.reward:g}, {_end(trajectory)}"
    return f"<Trajectory {trajectory.uid}: {line}>"


def batch_html(batch: Any) -> str:
    columns = ("group", "env", "rollouts", "mean reward", "rewards", "mean turns", "failed")
    return _table(batch_line(batch), columns, map(_group_row, batch.groups), len(batch.groups))


def group_html(group: Any) -> str:
    rows = ((one.uid, one.seed, len(one.turns), f"{one.reward:g}", _end(one)) for one in group.trajectories)
    columns = ("rollout", "seed", "turns", "reward", "end")
    return _table(group_line(group), columns, rows, len(group.trajectories))


def trajectory_html(trajectory: Any) -> str:
    rows = (
        (number, _seen(turn.seen), _played(turn), f"{turn.reward:g}", "" if turn.valid else "invalid")
        for number, turn in enumerate(trajectory.turns, start=1)
    )
    columns = ("turn", "observation", "reply", "reward", "")
    return _table(trajectory_line(trajectory), columns, rows, len(trajectory.turns))


def clipped(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."


def _group_row(group: Any) -> tuple[Any, ...]:
    members = group.trajectories
    valid = [one for one in members if one.error is None]
    rewards = [one.reward for one in valid]
    return (
        group.id,
        ", ".join(sorted({one.env for one in members})),
        len(members),
        _mean(rewards),
        f"{min(rewards):g} to {max(rewards):g}" if rewards else "",
        _mean([len(one.turns) for one in valid]),
        len(members) - len(valid) or "",
    )


def _summary(trajectories: Sequence[Any]) -> str:
    valid = [one for one in trajectories if one.error is None]
    parts = [counted(len(trajectories), "rollout")]
    if valid:
        parts.append(f"mean reward {_mean([one.reward for one in valid])}")
    if len(valid) < len(trajectories):
        parts.append(f"{len(trajectories) - len(valid)} failed")
    return ", ".join(parts)


def _end(trajectory: Any) -> str:
    error = trajectory.error
    if error is None:
        return str(trajectory.stop_reason.value)
    return clipped(f"{type(error).__name__}: {error}".partition("\n")[0], _LONGEST_ERROR)


def _seen(observation: Any) -> str:
    text = getattr(observation, "text", observation)
    images = getattr(observation, "images", None) or ()
    shown = _shown(text)
    return f"{shown} [{counted(len(images), 'image')}]" if images else shown


def _played(turn: Any) -> str:
    return _shown(turn.reply if turn.action is None or turn.reply else turn.action)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return clipped(value, _LONGEST)
    try:
        return clipped(repr(value), _LONGEST)
    except Exception:  # noqa: BLE001 (the value's class may raise anything)
        return f"<{type(value).__name__}>"


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.4g}" if values else ""


def counted(count: int, what: str) -> str:
    """A number of things: 1 turn, 2 turns."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], count: int) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row, _ in zip(rows, range(_MOST_ROWS), strict=False))
    more = f"<p>... and {count - _MOST_ROWS} more</p>" if count > _MOST_ROWS else ""
    return f"<p>{escape(title.strip('<>'))}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cells(row: Sequence[Any]) -> str:
    return "".join(f'<td style="text-align:left;white-space:pre-wrap">{escape(str(cell))}</td>' for cell in row)
