"""GiGPO on small Sokoban rooms, in numpy alone: `python examples/train_gigpo.py`.

The env is played without its text interface: the policy sees the cells and gives the number of an action. GiGPO tells
good steps from bad ones within an episode, by comparing steps that members of a group took from the same state.
"""

import argparse
import time
from contextlib import suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
from small_policy import SmallPolicy, print_gain, print_step

import asyncrollout as ar

ROOMS = [ar.Task(seed=room) for room in range(8)]
SIDE, CELLS, ACTIONS = 5, 7, 4  # the side of a room, kinds of cells, directions
GROUPS, GROUP_SIZE = 8, 8  # of a batch


async def train(
    steps: int, seed: int, keep: ar.filters.GroupFilter | None = ar.filters.reward_varies, **options: Any
) -> list[float]:
    """The mean reward of each step, over all that was played, kept or not. `options` are more for `Rollouts`."""
    policy = SmallPolicy(SIDE * SIDE, CELLS, ACTIONS, seed)

    def act(requests: list[ar.Request]) -> list[ar.Generation]:
        seen = np.stack([request.data.ravel() for request in requests])
        actions, logprobs = policy.choose(seen, [request.sampling.seed for request in requests])
        return [
            ar.Generation("", action=action + 1, logprobs=[logprob])  # the env counts from 1
            for action, logprob in zip(actions, logprobs, strict=True)
        ]

    rewards: list[float] = []
    async with ar.Rollouts(
        "sokoban",
        env_kwargs={"dim_room": (SIDE, SIDE), "text": False},
        tasks=cycle(ROOMS),
        limits=ar.Limits(turns=20),
        agent=ar.MarkovAgent(ar.BatchedPolicy(act)),
        group_size=GROUP_SIZE,
        keep=keep,
        on_exhausted="short",
        seed=seed,
        order="start",  # with max_lag=0: strictly on-policy; without these, rollouts run while the trainer learns
        max_lag=0,
        **options,
    ) as rollouts:
        before = await rollouts.evaluate(ROOMS, k=4)
        began = time.monotonic()
        with suppress(ar.ExhaustedError):  # no group varies any more: nothing is left to learn from
            async for batch in rollouts.batches(groups=GROUPS):
                arrays = batch.to_arrays(advantage="gigpo", gamma=0.95, normalize="mean_std")
                seen = arrays["observations"].reshape(-1, SIDE * SIDE)
                taken = arrays["actions"] - 1, arrays["advantages"], arrays["old_logprobs"]
                weights = await anyio.to_thread.run_sync(policy.learn, seen, *taken)
                async with rollouts.weight_update(version=batch.index + 1):
                    policy.weights = weights
                rewards.append(batch.stats["mean_reward"])
                print_step(batch, began)
                if len(rewards) >= steps:
                    break
        after = await rollouts.evaluate(ROOMS, k=4)
    print(f"rooms solved: {before.success_rate:.0%} before, {after.success_rate:.0%} after")
    return rewards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-dir", type=Path, help="keep the run here; `asyncrollout report` shows its curve")
    chosen = parser.parse_args()
    rewards = anyio.run(partial(train, chosen.steps, chosen.seed, run_dir=chosen.run_dir))
    print_gain(rewards)


if __name__ == "__main__":
    main()
