"""`check_env`: every point of the contract, one after the other, and one report or one error for all."""

import traceback
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec

from asyncrollout.errors import (
    EnvCheckError,
    EnvCrashed,
    EnvError,
    EnvResourceError,
    EnvTimeout,
    RolloutError,
    UsageError,
)
from asyncrollout.pool.pool import EnvPool
from asyncrollout.registry import EnvRef, find_env
from asyncrollout.testing import anchors, closing, direct, pooled, text
from asyncrollout.testing.cases import Actions, Backend, Case, find_actions
from asyncrollout.testing.compare import shown
from asyncrollout.testing.points import Point, Skipped

POINTS = (
    pooled.plays,
    pooled.same_when_fresh,
    pooled.same_when_used,
    pooled.same_after_end,
    pooled.same_beside_others,
    pooled.same_on_workers,
    pooled.fork,
    pooled.snapshots,
    direct.own_randomness,
    direct.leaves_arguments,
    direct.observation_space,
    direct.render,
    text.parse_never_raises,
    text.describes,
    text.anchors,
    anchors.whole_anchors,
    text.invalid_changes_nothing,
    text.solver,
    pooled.killed_worker,
)
_WORKERS = 2
_SHOWN = 3
_DANGEROUS = (EnvCrashed, EnvTimeout, EnvResourceError)


class EnvReport(msgspec.Struct, frozen=True):
    """What was checked on an env that keeps the contract. `skipped` gives the reason for each point left out."""

    env: str
    backends: tuple[str, ...]
    ran_on: tuple[str, ...]
    episodes: int
    steps: int
    checked: tuple[str, ...]
    skipped: dict[str, str]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        where = " and ".join(self.ran_on)
        lines = [f"env {self.env!r} keeps the contract: {self.episodes} episodes, {self.steps} steps, on {where}"]
        lines += [f"  checked: {point}" for point in self.checked]
        lines += [f"  skipped: {point}: {reason}" for point, reason in self.skipped.items()]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@dataclass
class Findings:
    """What came of the points so far."""

    kept: list[str] = field(default_factory=list)
    broken: dict[Point, list[str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    trace: str = ""


async def check_env(
    spec: EnvRef,
    *,
    backends: Sequence[Backend] = ("inline", "process"),
    seeds: Sequence[int] = (0, 1, 2),
    max_steps: int = 50,
    actions: Actions | None = None,
    task: Any = None,
    **env_kwargs: Any,
) -> EnvReport:
    """Put an env through the contract; raises one EnvCheckError that lists every point it breaks.

    `env_kwargs` are as for `EnvPool.open`, `task` as for `reset`. Without `actions`, those of `solve()` or of
    `action_space` are played. A `MethodCall` among the actions is a call of another method.
    """
    found = find_env(spec)
    if not backends or not seeds:
        raise UsageError("check_env needs at least one backend and one seed")
    findings = Findings()
    notes: list[str] = []
    async with AsyncExitStack() as stack:
        # A worker survives what an env may do to its process, so it is the first to play.
        names = sorted(set(backends), reverse=True)
        pools = {name: await stack.enter_async_context(_pool(name)) for name in names}
        case = Case(found, env_kwargs, pools, task)
        await _check(case, findings, closing.closes)
        if not case.hangs and await _record(case, findings, seeds, max_steps, actions):
            for point in POINTS:
                await _check(case, findings, point)
            notes = await _notes(case) if not findings.broken else []
    if findings.broken:
        raise _error(found.name, findings)
    return EnvReport(
        env=found.name,
        backends=tuple(names),
        ran_on=tuple(sorted(case.places)),
        episodes=case.played,
        steps=case.steps,
        checked=tuple(findings.kept),
        skipped=findings.skipped,
        notes=tuple(notes),
    )


def _pool(backend: Backend) -> EnvPool:
    return EnvPool(backend=backend) if backend == "inline" else EnvPool(_WORKERS, backend)


async def _notes(case: Case) -> list[str]:
    return [*await pooled.notes_on_seeds(case), *await direct.notes_on_observations(case)]


async def _record(
    case: Case, findings: Findings, seeds: Sequence[int], max_steps: int, actions: Actions | None
) -> bool:
    """Play one episode for each seed, to compare all others with; False if nothing is left to check."""
    backend = next(iter(case.pools))
    try:
        choose, options = await find_actions(case, backend, actions)
        for seed in seeds:
            case.episodes.append(await case.record(backend, seed, choose, max_steps, **options))
    except EnvError as error:  # not even a reset
        findings.broken[pooled.plays] = [str(error)]
        findings.trace = error.remote_traceback or ""
        return False
    if not any(episode.actions or episode.error for episode in case.episodes):
        raise UsageError(f"env {case.spec.name!r}: no action was played, as `actions` or `max_steps` holds none")
    failed = [episode.error for episode in case.episodes if episode.error]
    if failed:
        findings.trace = failed[0].remote_traceback or ""
    fatal = [str(error) for error in failed if isinstance(error, _DANGEROUS)]
    if fatal:
        findings.broken[pooled.plays] = fatal
    return not fatal


async def _check(case: Case, findings: Findings, point: Point) -> None:
    try:
        seen = await point.check(case)
    except Skipped as skipped:
        findings.skipped[point.says] = str(skipped)
        return
    except RolloutError as error:
        seen = [str(error)]
    except Exception as error:  # noqa: BLE001 (an env's own, from a call outside the pool)
        last = traceback.extract_tb(error.__traceback__)[-1]
        seen = [f"{type(error).__name__}: {shown(str(error))} ({last.filename}, line {last.lineno})"]
    if seen:
        findings.broken[point] = seen
    else:
        findings.kept.append(point.says)


def _error(name: str, findings: Findings) -> EnvCheckError:
    listed = "\n".join(
        f"- {point.says}.\n" + "".join(f"    seen: {text}\n" for text in seen[:_SHOWN]) + f"    do: {point.remedy}."
        for point, seen in findings.broken.items()
    )
    count = len(findings.broken)
    message = f"env {name!r} breaks the contract at {count} point{'s' * (count != 1)}:\n{listed}"
    return EnvCheckError.at(message, env=name, notes=findings.trace)
