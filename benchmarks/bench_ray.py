"""Environments and drivers on a Ray cluster: against worker processes, Ray calls for each step, and one process.

    python benchmarks/bench_ray.py [--part NAME ...] [--json]

The cluster is on this machine: a head for the program, and two nodes with an actor each. Steps per second and the CPU
time of the program (all of its threads) are measured in interleaved repetitions. Shares of CPU time are steadier than
rates: two busy cores make both sides slower. A missed goal is printed, and is not an error.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `benchmarks`, here and in the workers

import uvloop

import asyncrollout as ar
from asyncrollout.machine import usable_cpus
from asyncrollout.ray import orders
from asyncrollout.ray.cluster import ClusterLease
from benchmarks.harness import Row, chosen_parts, show, tell
from benchmarks.pool_envs import Frames, Trivial
from benchmarks.pool_rivals import ACTION, Tally, together
from benchmarks.rollout_envs import Talk
from tests.ray_cluster import joined

TEXT = "<think>the goal is on the right</think><answer>Right</answer>"
WORKERS = 2
REPETITIONS = 5
WARM_UP = 0.3  # seconds
SECONDS = 1.0


class Measured(NamedTuple):
    rate: float
    """Steps per second."""
    cpu: float
    """Microseconds of this program's CPU time for each step."""


Way = Callable[[float], Awaitable[Measured]]


class Stepped:
    """An actor of the rivals: it has envs, and steps one of them, or all."""

    def __init__(self, kind: type, count: int) -> None:
        self.envs = [kind() for _ in range(count)]
        for env in self.envs:
            env.reset(seed=0)

    def step(self, at: int, action: Any) -> Any:
        return self.envs[at].step(action)

    def step_all(self, action: Any) -> list[Any]:
        return [env.step(action) for env in self.envs]


async def measured(seconds: float, players: Sequence[Callable[[Tally], Awaitable[None]]]) -> Measured:
    tallies: list[Tally] = []

    async def noted(player: Callable[[Tally], Awaitable[None]], tally: Tally) -> None:
        tallies[:] = [tally]
        await player(tally)

    before = time.process_time()
    rate = await together(seconds, [partial(noted, player) for player in players])
    return Measured(rate, (time.process_time() - before) / max(tallies[0].steps, 1) * 1e6)


def pool_way(envs: Sequence[ar.EnvHandle]) -> Way:
    async def play(env: ar.EnvHandle, tally: Tally) -> None:
        while tally.running:
            await env.step(ACTION)
            tally.steps += 1

    return lambda seconds: measured(seconds, [partial(play, env) for env in envs])


def call_way(actors: Sequence[Any], count: int) -> Way:
    """A Ray call for each step."""

    async def play(actor: Any, at: int, tally: Tally) -> None:
        while tally.running:
            await actor.step.remote(at, ACTION)
            tally.steps += 1

    each = count // len(actors)
    return lambda seconds: measured(seconds, [partial(play, actor, at) for actor in actors for at in range(each)])


def turn_way(actors: Sequence[Any], count: int) -> Way:
    """A Ray call for each turn of all envs: nobody takes the next step before the last has taken this one."""

    async def play(tally: Tally) -> None:
        while tally.running:
            turns = [actor.step_all.remote(ACTION) for actor in actors]
            for turn in turns:
                await turn
            tally.steps += count

    return lambda seconds: measured(seconds, [play])


async def compare(ways: dict[str, Way]) -> dict[str, list[Measured]]:
    """All ways, one after the other, again and again."""
    for name, way in ways.items():
        tell(f"{name} ...")
        await way(WARM_UP)
    found: dict[str, list[Measured]] = {name: [] for name in ways}
    for _ in range(REPETITIONS):
        for name, way in ways.items():
            found[name].append(await way(SECONDS))
        tell(" ".join(f"{one[-1].rate:,.0f}/s ({one[-1].cpu:.1f} us)" for one in found.values()))
    return found


def rate_row(what: str, ours: list[Measured], rival: list[Measured], goal: float | None) -> Row:
    ratio = statistics.median(mine.rate / other.rate for mine, other in zip(ours, rival, strict=True))
    mine, other = (statistics.median(one.rate for one in side) for side in (ours, rival))
    met = None if goal is None else ratio >= goal
    return Row(what, mine, "steps/s", other, ratio, "-" if goal is None else f">= {goal:g}x", met)


def cpu_row(what: str, ours: list[Measured], rival: list[Measured], goal: float | None) -> Row:
    mine, other = (statistics.median(one.cpu for one in side) for side in (ours, rival))
    met = None if goal is None else mine / other <= goal
    return Row(what, mine, "us", other, mine / other, "-" if goal is None else f"<= {goal:g}x", met)


async def opened(pool: ar.EnvPool, kind: type, count: int) -> list[ar.EnvHandle]:
    name = f"benchmarks.pool_envs:{kind.__name__}"
    envs = [await pool.open(ar.EnvSpec(name=name, factory=name)) for _ in range(count)]
    await pool.reset_many(envs)
    return envs


async def text(address: str, count: int = 64) -> list[Row]:
    lease = await ClusterLease.take(address)
    try:
        rival = lease.ray.remote(num_cpus=0.5, scheduling_strategy="SPREAD")(Stepped)
        actors = [rival.remote(Trivial, count // WORKERS) for _ in range(WORKERS)]
        async with (
            ar.EnvPool(WORKERS) as processes,
            _on(address, num_cpus=0.5) as socket,
            _on(address, num_cpus=0.5, transport="ray") as calls,
        ):
            found = await compare(
                {
                    "worker processes": pool_way(await opened(processes, Trivial, count)),
                    "on Ray": pool_way(await opened(socket, Trivial, count)),
                    'on Ray, transport="ray"': pool_way(await opened(calls, Trivial, count)),
                    "a Ray call per step": call_way(actors, count),
                    "a Ray call per turn of all": turn_way(actors, count),
                }
            )
    finally:
        await lease.give_back()
    processes_, ours, frames_, per_step, per_turn = found.values()
    envs = f"{count} text envs on Ray"
    return [
        rate_row(f"{envs} vs worker processes", ours, processes_, 0.7),
        cpu_row(f"{envs}: CPU of the program per step, vs worker processes", ours, processes_, 1.5),
        rate_row(f"{envs} vs a Ray call per step", ours, per_step, 10),
        rate_row(f"{envs} vs a Ray call per turn of all", ours, per_turn, None),
        cpu_row(f"{envs}: CPU of the program per step, vs a Ray call per step", ours, per_step, None),
        cpu_row(f"{envs}: CPU of the program per step, vs a Ray call per turn", ours, per_turn, None),
        rate_row(f'{envs}, transport="ray", vs worker processes', frames_, processes_, None),
        cpu_row(f'{envs}, transport="ray": CPU of the program per step', frames_, processes_, None),
    ]


async def frames(address: str, count: int = 8) -> list[Row]:
    probe, orders.PROBE = orders.PROBE, "no file that an actor finds"
    try:
        async with (
            ar.EnvPool(WORKERS) as processes,
            _on(address, num_cpus=0.5) as inline,
        ):
            orders.PROBE = probe
            async with _on(address, num_cpus=0.5) as mapped:
                found = await compare(
                    {
                        "worker processes": pool_way(await opened(processes, Frames, count)),
                        "on Ray, from another machine": pool_way(await opened(inline, Frames, count)),
                        "on Ray, from this machine": pool_way(await opened(mapped, Frames, count)),
                    }
                )
    finally:
        orders.PROBE = probe
    processes_, inline_, mapped_ = found.values()
    envs = f"{count} envs of 1 MB frames on Ray"
    return [
        rate_row(f"{envs}, inline as between machines, vs worker processes", inline_, processes_, 0.5),
        rate_row(f"{envs}, mapped as on one machine, vs worker processes", mapped_, processes_, None),
    ]


class Driven(NamedTuple):
    rate: float
    """Groups per second."""
    cpu: float
    """Milliseconds of this program's CPU time for each group."""


async def drive(address: str, shards: int, groups: int = 60) -> Driven:
    """Groups of 8 rollouts of 4 turns, with an env and a policy that cost next to nothing: the rest is driving them."""
    talk = ar.EnvSpec(name="talk", factory=Talk, runs="light")
    where = ar.RayShards(shards, address=address, num_cpus=0.5, wait=120) if shards else None
    async with ar.Rollouts(
        talk, policy=ar.ScriptedPolicy([TEXT]), group_size=8, limits=ar.Limits(turns=4), max_lag=None, shards=where
    ) as rollouts:
        await anext(rollouts.batches(groups=groups))
        began, before = time.perf_counter(), time.process_time()
        for _ in range(3):
            await anext(rollouts.batches(groups=groups))
        spent, played = time.process_time() - before, rollouts.figures().groups - groups
        return Driven(played / (time.perf_counter() - began), spent / played * 1_000)


async def drivers(address: str) -> list[Row]:
    """Shards of `Rollouts`: what is left to the program that samples, and whether two play more than one."""
    found: dict[int, list[Driven]] = {0: [], 1: [], 2: []}
    for _ in range(3):
        for shards, so_far in found.items():
            so_far.append(await drive(address, shards))
            tell(f"{shards} shards: {so_far[-1].rate:.0f} groups/s, {so_far[-1].cpu:.2f} ms")
    cpu = {shards: statistics.median(one.cpu for one in measured) for shards, measured in found.items()}
    rate = {shards: statistics.median(one.rate for one in measured) for shards, measured in found.items()}
    load = f"load {os.getloadavg()[0]:.1f} on {usable_cpus()} cores"
    what = "groups of 8 x 4 turns"
    return [
        Row(f"{what}: CPU of the sampler per group, 2 shards vs none", cpu[2], "ms", cpu[0], cpu[2] / cpu[0], "<= 3 ms",
            cpu[2] <= 3),
        Row(f"{what}: 1 shard vs none ({load})", rate[1], "/s", rate[0], rate[1] / rate[0]),
        Row(f"{what}: 2 shards vs 1 ({load})", rate[2], "/s", rate[1], rate[2] / rate[1],
            ">= 1.6x on idle cores", rate[2] >= 1.6 * rate[1]),
    ]  # fmt: skip


def _on(address: str, **options: Any) -> ar.EnvPool:
    return ar.EnvPool(WORKERS, backend="ray", ray=ar.RayOptions(address=address, wait=120, **options))


PARTS = {part.__name__: part for part in (text, frames, drivers)}


async def measure(names: Sequence[str], address: str) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        rows += await PARTS[name](address)
    return rows


def main() -> None:
    chosen = chosen_parts(__doc__, PARTS)
    with tempfile.TemporaryDirectory() as directory, joined(Path(directory)) as cluster:
        show(uvloop.run(measure(chosen.parts, cluster.address)), as_json=chosen.json)


if __name__ == "__main__":
    main()
