"""Meta-RL: rollouts collected by envs in processes, against one env, bare loops, and a loop in lock-step.

    python benchmarks/seeds_metarl.py [--rounds 5] [--json]

All contenders play the same rollouts with the same agent. They take turns, and the best time of each counts: others
may use the machine. How much faster two plain processes are than one says what the machine had to give meanwhile. A
missed goal is printed, and is not an error.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `benchmarks.meta_envs`, in workers, too

if __name__ != "__mp_main__":
    import multiprocessing
    import time
    from concurrent.futures import ProcessPoolExecutor
    from functools import partial
    from importlib.util import find_spec

    import numpy as np

    from asyncrollout.dropin.metarl import Learner, ParallelEnvManager, SimpleReplayBuffer, make_env, make_parallel_env
    from asyncrollout.dropin.metarl.collecting import drawn_plays
    from benchmarks.harness import Row, new_parser, show, tell
    from benchmarks.meta_envs import ANT, TASKS, Agent, Paced, bare_loop, bare_loop_in_process

ENVS, PROCESSES, ROLLOUTS = 8, 2, 16
PACED_ENVS, PACED_ROLLOUTS = 4, 16


def collect(rollouts, manager, *, sizes, **attributes):
    """How many steps a learner of ours took, which begins anew each time."""
    learner = Learner()
    learner.policy_storage = SimpleReplayBuffer(rollouts * 200, *sizes)
    vars(learner).update(attributes)
    return learner.collect_rollouts_parallel(rollouts, parallel_env=manager)


def in_lock_step(manager, agent, plays, sizes):
    """As the guide shows it: every round waits for the slowest env of those that still play."""
    storage, steps = SimpleReplayBuffer(len(plays) * 200, *sizes), 0
    shares = [list(plays[rank :: manager.num_envs]) for rank in range(manager.num_envs)]
    seen = {}

    def begin(ranks):
        for rank in ranks:
            seed, task = shares[rank].pop(0)
            manager.remotes[rank].send(("reset", {"task": task, "seed": seed}))
        for rank in ranks:
            seen[rank] = manager.remotes[rank].recv()[1]

    begin([rank for rank, share in enumerate(shares) if share])
    while seen:
        actions = {rank: agent.act(obs[None].astype(np.float32))[0][0] for rank, obs in seen.items()}
        for rank, action in actions.items():
            manager.remotes[rank].send(("step", action))
        ended = []
        for rank, action in actions.items():
            then, reward, done, _ = manager.remotes[rank].recv()[1]
            storage.add_sample(seen[rank], action, reward, done, then)
            seen[rank] = then
            steps += 1
            ended += [rank] if done else []
        for rank in ended:
            del seen[rank]
        begin([rank for rank in ended if shares[rank]])
    return steps


def best_of(rounds, contenders):
    """The best steps per second of each, by name; they take turns, and must have played the same."""
    best = dict.fromkeys(contenders, 0.0)
    for number in range(rounds + 1):
        counts = set()
        for name, play in contenders.items():
            began = time.perf_counter()
            steps = play()
            seconds = time.perf_counter() - began
            counts.add(steps)
            if number:  # the first round is for all of them to get ready
                best[name] = max(best[name], steps / seconds)
        assert len(counts) == 1, f"these are not the same rollouts: {counts}"
    return best


def ant_rows(rounds):
    env, agent = make_env("AntDir-v0", 1, seed=0, **TASKS), Agent(*ANT)
    plays = [(play.seed, play.task) for play in drawn_plays(0, 0, ROLLOUTS, range(50))]
    ours = partial(collect, ROLLOUTS, sizes=ANT, agent=agent, train_env=env, train_tasks=range(50))
    manager = make_parallel_env("AntDir-v0", 1, ENVS, seed=0, processes=PROCESSES, **TASKS)
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as executor:
        halves = [plays[rank::PROCESSES] for rank in range(PROCESSES)]
        speeds = best_of(
            rounds,
            {
                "ours": lambda: ours(manager, acts_in_workers=True),
                "asked": lambda: ours(manager),
                "in batches": lambda: ours(manager, acts_in_batches=True),
                "one env": lambda: ours(None),
                "bare": lambda: bare_loop(env, agent, plays),
                "two bare": lambda: sum(executor.map(bare_loop_in_process, halves)),
                "lock-step": lambda: in_lock_step(manager, agent, plays, ANT),
            },
        )
    manager.close()
    what = f"AntDir, {ENVS} envs on {PROCESSES} processes, acts_in_workers"
    asked = f"AntDir, {ENVS} envs on {PROCESSES} processes, the agent asked here"

    def row(name, what, rival, **goal):
        return Row(what, speeds[name], "steps/s", speeds[rival], speeds[name] / speeds[rival], **goal)

    met = speeds["ours"] >= 1.6 * speeds["one env"]
    yield row("ours", f"{what}, vs one env", "one env", goal=">= 1.6x", met=met)
    yield row("ours", f"{what}, vs a bare loop", "bare")
    yield row("ours", f"{what}, vs bare loops in 2 processes, nothing brought back", "two bare")
    yield row("ours", f"{what}, vs lock-step over pipes", "lock-step")
    yield row("asked", f"{asked} at every step, vs one env", "one env")
    yield row("in batches", f"{asked} in batches, vs one env", "one env")
    ratio = speeds["two bare"] / speeds["bare"]
    yield Row("AntDir, bare loops in 2 processes vs in one", speeds["two bare"], "steps/s", speeds["bare"], ratio)


def paced_rows(rounds):
    agent, sizes = Agent(2, 1), (2, 1)
    plays = [(play.seed, play.task) for play in drawn_plays(0, 0, PACED_ROLLOUTS, ())]
    manager = ParallelEnvManager([Paced] * PACED_ENVS)
    speeds = best_of(
        rounds,
        {
            "ours": lambda: collect(PACED_ROLLOUTS, manager, agent=agent, sizes=sizes, acts_in_workers=True),
            "lock-step": lambda: in_lock_step(manager, agent, plays, sizes),
        },
    )
    manager.close()
    ours, rival = speeds["ours"], speeds["lock-step"]
    what = f"{PACED_ENVS} envs whose steps wait 1 ms, some 10 ms, episodes of 10 to 50, acts_in_workers"
    yield Row(f"{what}, vs lock-step over pipes", ours, "steps/s", rival, ours / rival, ">= 1.5x", ours >= 1.5 * rival)


def rows(rounds=5):
    """All rows, one after the other."""
    if find_spec("mujoco") is None:
        tell("meta-RL: AntDir is left out: pip install 'asyncrollout[mujoco]'")
    else:
        tell("meta-RL: AntDir ...")
        yield from ant_rows(rounds)
    tell("meta-RL: envs that wait ...")
    yield from paced_rows(rounds)


def main():
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each contender plays")
    chosen = parser.parse_args()
    show(list(rows(chosen.rounds)), as_json=chosen.json)


if __name__ == "__main__":
    main()
