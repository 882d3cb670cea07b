"""Meta-RL with networks of torch: `collect_rollouts_parallel` against one env, and each of its ways by itself.

    python benchmarks/seeds_metarl_torch.py [--rounds 7] [--workers 2] [--env AntDir-v0] [--json]

All contenders play the same rollouts, in every round in another order; ratios are taken within a round, and their
median counts. The first rounds are not counted: packages are loaded, and ways are tried. How much faster two
processes compute than one says what the machine had to give meanwhile.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `benchmarks.meta_torch`, in workers, too

if __name__ != "__mp_main__":
    import multiprocessing
    import time
    from functools import partial
    from statistics import median

    import numpy as np

    from asyncrollout.dropin.metarl import AGENT_ARCHS, Learner, SeqReplayBuffer, make_env, make_parallel_env
    from benchmarks.harness import Row, new_parser, show, tell
    from benchmarks.meta_torch import Gru, Mlp

TASKS = {"num_train_tasks": 50, "num_eval_tasks": 20}
ROLLOUTS = {"AntDir-v0": 12, "PointRobotSparse-v0": 24}
WARM_UP = 3  # rounds
WAYS = {
    "chosen": {},
    "workers": {"acts_in_workers": True},
    "here": {"acts_in_workers": False},
    "in batches": {"acts_in_batches": True},
}


def collect(agent, arch, rollouts, env, pool, **attributes):
    """A learner that begins anew: its steps, and what it stored."""
    learner = Learner()
    sizes = env.observation_space.shape[0], env.action_space.shape[0]
    learner.policy_storage = SeqReplayBuffer(rollouts * env.horizon_bamdp, *sizes, env.horizon_bamdp)
    learner.agent, learner.agent_arch, learner.train_env, learner.train_tasks = agent, arch, env, range(50)
    vars(learner).update(attributes)
    steps = learner.collect_rollouts_parallel(rollouts, parallel_env=pool)
    return steps, learner.policy_storage._columns["act"], learner.last_collection.way


def compute(count):
    """Plain arithmetic, to see what the machine has to give."""
    total = 0
    for number in range(count):
        total += number * number
    return total


def capacity(count=3_000_000):
    """How many times as fast two processes compute as one."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(compute, [1000, 1000])
        began = time.perf_counter()
        pool.apply(compute, (count,))
        one = time.perf_counter() - began
        began = time.perf_counter()
        pool.map(compute, [count, count], chunksize=1)
        return 2 * one / (time.perf_counter() - began)


def rows_of(env_id, network, arch, rounds, workers, rollouts):
    env, pool = make_env(env_id, 1, seed=0, **TASKS), make_parallel_env(env_id, 1, workers, seed=0, **TASKS)
    agent = network(env.observation_space.shape[0], env.action_space.shape[0])
    play = partial(collect, agent, arch, rollouts, env)
    contenders = {"one env": partial(play, None), **{name: partial(play, pool, **way) for name, way in WAYS.items()}}
    speeds = {name: [] for name in contenders}
    stored, ways, room = {}, [], []
    for number in range(WARM_UP + rounds):
        names = list(contenders)
        for at in range(len(names)):
            name = names[(at + number) % len(names)]
            began = time.perf_counter()
            steps, stored[name], way = contenders[name]()
            seconds = time.perf_counter() - began
            if number >= WARM_UP:
                speeds[name].append(steps / seconds)
                ways += [way] if name == "chosen" else []
        for name in ("chosen", "workers", "here"):
            assert np.array_equal(stored[name], stored["one env"]), f"{name} played something else"
        room.append(capacity())
    pool.close()
    what = f"{env_id}, {network.__name__}, {workers} workers"
    for name in WAYS:
        ratios = [ours / alone for ours, alone in zip(speeds[name], speeds["one env"], strict=True)]
        goal = {"goal": ">= 1x", "met": median(ratios) >= 1} if name == "chosen" else {}
        seen = f" ({'/'.join(sorted({*ways}))}; {min(ratios):.2f}-{max(ratios):.2f}x)" if name == "chosen" else ""
        yield Row(
            f"{what}, {name}{seen}, vs one env",
            median(speeds[name]),
            "steps/s",
            median(speeds["one env"]),
            median(ratios),
            **goal,
        )
    yield Row(f"{what}: two processes vs one, meanwhile", f"{median(room):.2f}x")


def main():
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="how often each contender plays")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--env", nargs="+", choices=[*ROLLOUTS], default=[*ROLLOUTS])
    chosen = parser.parse_args()
    rows = []
    for env_id in chosen.env:
        for network, arch in ((Mlp, AGENT_ARCHS.Memory_Markov), (Gru, AGENT_ARCHS.Memory)):
            tell(f"meta-RL with torch: {env_id}, {network.__name__} ...")
            rows += rows_of(env_id, network, arch, chosen.rounds, chosen.workers, ROLLOUTS[env_id])
    show(rows, as_json=chosen.json)


if __name__ == "__main__":
    main()
