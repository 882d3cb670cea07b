"""Rollouts, from the episode to the batch: time, CPU and memory, and what dynamic sampling wastes.

    python benchmarks/bench_rollouts.py [--part makespan memory sampling growth] [--json]

All latencies are seeded: a turn of a rollout takes as long for every contender. The LLM server runs in a process of its
own. What is measured several times is shown as the median. A missed goal is printed, and is not an error.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `benchmarks.rollout_envs`, in workers, too

if __name__ == "__main__":
    import gc
    import json
    import operator
    import statistics
    import subprocess
    import time
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from functools import partial

    import uvloop

    import asyncrollout as ar
    from asyncrollout.seeding import sampling_seed
    from benchmarks import rollout_growth as growth_of
    from benchmarks import rollout_rivals as rivals
    from benchmarks import rollout_sampling as sampling
    from benchmarks.harness import Row, chosen_parts, show, tell
    from benchmarks.rollout_envs import TURNS
    from benchmarks.rollout_server import latency

HERE = Path(__file__).resolve().parent
REPETITIONS = 7
SEED = 0
GROUPS, GROUP_SIZE = 32, 8
IN_FLIGHT = GROUPS * GROUP_SIZE
BATCHES, BATCHES_IN_ORDER = 100, 20


def seeds_of_turns() -> list[list[int]]:
    """What a `ChatAgent` sends as the seed of each turn, for each rollout."""
    groups = [sampling_seed(SEED, f"g{group}") for group in range(GROUPS)]
    members = [sampling_seed(group, member) for group in groups for member in range(GROUP_SIZE)]
    return [[sampling_seed(member, turn) for turn in range(TURNS)] for member in members]


@contextmanager
def server_process() -> Iterator[str]:
    command = [sys.executable, str(HERE / "rollout_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


async def spend(play: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Seconds, and CPU microseconds for each turn."""
    gc.collect()
    began, cpu = time.perf_counter(), time.process_time()
    await play()
    return time.perf_counter() - began, (time.process_time() - cpu) / (IN_FLIGHT * TURNS) * 1e6


async def ours(policy: ar.Policy, least: Sequence[float]) -> None:
    """All rollouts as one batch; `least` is how long each turn has to take."""
    spec = ar.EnvSpec(name="talk", factory="benchmarks.rollout_envs:Talk", runs="light")
    async with ar.Rollouts(spec, policy=policy, group_size=GROUP_SIZE, seed=SEED, max_in_flight=IN_FLIGHT) as rollouts:
        batch = await rollouts.collect(groups=GROUPS)
    took = [turn.policy_seconds for group in batch.groups for member in group.completed for turn in member.turns]
    assert len(took) == len(least), "these rollouts are not all complete"
    assert all(map(operator.ge, took, least)), "these are not the latencies of the other contenders"


def makespan() -> list[Row]:
    return uvloop.run(_makespan())


async def _makespan() -> list[Row]:
    seeds = seeds_of_turns()
    latencies = [[latency(seed) for seed in turns] for turns in seeds]
    bound = max(map(sum, latencies))
    least = [seconds for turns in latencies for seconds in turns]
    tell("makespan: without HTTP ...")
    scripted = partial(ours, ar.ScriptedPolicy(["go on"]), [0.0] * len(least))
    alone = statistics.median([(await spend(scripted))[1] for _ in range(REPETITIONS)])
    pairs = []
    with server_process() as url:
        bare = partial(rivals.with_server, url, seeds)
        for _ in range(REPETITIONS):
            policy = ar.OpenAIPolicy(url, "m", concurrency=IN_FLIGHT, kind="openai")
            pairs.append((*await spend(partial(ours, policy, least)), *await spend(partial(bare, rivals.play_alone))))
            tell("makespan: {:.2f} s, {:.0f} us per turn; bare aiohttp {:.2f} s, {:.0f} us".format(*pairs[-1]))
        tell("makespan: with a limit of calls that has to be found out, then in lock-step ...")
        adaptive, _ = await spend(partial(ours, ar.OpenAIPolicy(url, "m", kind="openai"), least))
        in_step, _ = await spend(partial(bare, rivals.play_in_step))
    seconds, cpu, bare_seconds, bare_cpu = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(mine / other for _, mine, _, other in pairs)
    what = f"{IN_FLIGHT} rollouts of {TURNS} turns"
    return [
        Row(f"{what} vs the critical path", seconds, "s", bound, seconds / bound, "<= 1.1x", seconds <= 1.1 * bound),
        Row(f"{what} vs the critical path, concurrency='adaptive'", adaptive, "s", bound, adaptive / bound),
        Row(f"{what} vs bare aiohttp", seconds, "s", bare_seconds, seconds / bare_seconds),
        Row(f"{what} vs lock-step", seconds, "s", in_step, in_step / seconds, ">= 2.5x", in_step >= 2.5 * seconds),
        Row("CPU per turn vs bare aiohttp", cpu, "us", bare_cpu, ratio, "<= 1.5x", ratio <= 1.5),
        Row("CPU per turn without HTTP", alone, "us", goal="< 200 us", met=alone < 200),
    ]


def memory() -> list[Row]:
    tell("memory: a minute of rollouts in a process of its own ...")
    command = [sys.executable, str(HERE / "rollout_memory.py")]
    reported = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    rollouts, kilobytes, late = reported["rollouts"], reported["kb_per_rollout"], reported["lag_p99_ms"]
    what = f"{rollouts:,} rollouts of {reported['turns']} turns of 10 s"
    all_at_once = reported["finished"] == reported["most_in_flight"] == rollouts
    return [
        Row(f"{what}: in flight at once, and finished", reported["most_in_flight"], "", rollouts, met=all_at_once),
        Row(f"{what}: memory each", kilobytes, "KB", goal="< 40 KB", met=kilobytes < 40),
        Row(f"{what}: the loop's lag, p99", late, "ms", goal="< 100 ms", met=late < 100),
        Row(f"{what}: the loop's lag, at most", reported["lag_max_ms"], "ms"),
        Row(f"{what}: CPU per turn", reported["cpu_us_per_turn"], "us"),
    ]


def sample() -> list[Row]:
    return uvloop.run(_sample())


async def _sample() -> list[Row]:
    rows = []
    for new_weights in (False, True):
        what = "new weights after each" if new_weights else "finish order"
        tell(f"sampling: {BATCHES} batches, {what} ...")
        seen = await sampling.in_finish_order(BATCHES, new_weights=new_weights)
        what = f"{BATCHES} batches of {sampling.GROUPS} groups, {what}"
        waste, bias = 100 * seen.waste, 100 * seen.bias
        rows += [
            Row(f"{what}: groups, none twice", seen.distinct, "", seen.asked, goal="exact", met=seen.exact),
            Row(f"{what}: waste", waste, "%", goal="<= 5 %", met=waste <= 5),
            Row(f"{what}: bias of lengths", bias, "%", goal="within 3 %", met=abs(bias) <= 3),
        ]
    runs = []
    for workers, latency_seed in ((None, 0), (None, 1), (1, 0), (2, 1)):
        tell(f"sampling: start order, workers={workers}, latencies {latency_seed} ...")
        runs.append(await sampling.in_start_order(BATCHES_IN_ORDER, workers, latency_seed))
    alike = sum(run == runs[0] for run in runs)
    what = f"{BATCHES_IN_ORDER} batches in start order: runs that are alike (on the loop twice, 1 and 2 workers)"
    return [*rows, Row(what, alike, "", len(runs), goal="all", met=alike == len(runs))]


def growth() -> list[Row]:
    return uvloop.run(_growth())


async def _growth() -> list[Row]:
    rows = []
    few, many = growth_of.IN_FLIGHT
    for max_lag in (None, 1):
        tell(f"growth: {few:,} and {many:,} in flight, max_lag={max_lag} ...")
        least, most = await growth_of.cpu_per_rollout(few, max_lag), await growth_of.cpu_per_rollout(many, max_lag)
        what = f"CPU per rollout, {many:,} in flight vs {few:,}, max_lag={max_lag}"
        rows.append(Row(what, most, "us", least, most / least, "<= 1.3x", most <= 1.3 * least))
    few, many = growth_of.TURNS
    for history in (2, None):
        tell(f"growth: {few:,} and {many:,} turns, history={history} ...")
        least = await growth_of.cpu_per_turn(few, history=history)
        most = await growth_of.cpu_per_turn(many, history=history)
        what = f"CPU per turn, {many:,} turns vs {few:,}, history={history}"
        is_met = None if history is None else most <= 1.3 * least  # all messages are handed to the policy each time
        rows.append(Row(what, most, "us", least, most / least, "-" if history is None else "<= 1.3x", is_met))
    for how in ("groups of 8", "one group", "evaluation"):
        tell(f"growth: {growth_of.STARTS:,} starts, {how} ...")
        held = await growth_of.longest_hold(how)
        rows.append(
            Row(f"{growth_of.STARTS:,} starts, {how}: the loop is held", held, "ms", None, None, "< 50 ms", held < 50)
        )
    return rows


PARTS = {"makespan": makespan, "memory": memory, "sampling": sample, "growth": growth} if __name__ == "__main__" else {}


def main() -> None:
    chosen = chosen_parts(__doc__, PARTS)
    show([row for name in chosen.parts for row in PARTS[name]()], as_json=chosen.json)


if __name__ == "__main__":
    main()
