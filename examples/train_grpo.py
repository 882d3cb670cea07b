"""GRPO with dynamic sampling on a text env, in numpy alone: `python examples/train_grpo.py --env frozen_lake`.

The policy stands for a language model: it reads the bytes of a message and replies with one token. What the trainer
takes from a batch, and how new weights get into the policy, is the same for a large one.
"""

import argparse
import time
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import numpy as np
from small_policy import SmallPolicy, print_gain, print_step

import asyncrollout as ar

GROUPS = 8  # of a batch
BYTES, ACTIONS = 128, 4


class Setting(NamedTuple):
    """An env, and how many bytes each of its messages has: this policy reads no more and no less."""

    length: int
    env_kwargs: dict[str, Any]
    group_size: int
    limits: ar.Limits = ar.Limits()
    tasks: tuple[ar.Task, ...] = (ar.Task(),)


SETTINGS = {
    # Which of four arms, in an order that changes, pays 1 half of the time, and not always 0.1? Groups are large enough
    # for somebody to have luck: where nobody has, GRPO divides by a small std, and makes much of the 0.1.
    "bandit": Setting(69, {"names": ["ant", "bee", "cat", "owl"], "high_probability": 0.5}, group_size=16),
    # Eight lakes; one step in ten slips, so that members of a group differ even when the policy is sure of its way.
    "frozen_lake": Setting(
        length=19,
        env_kwargs={"success_rate": 0.9},
        group_size=8,
        limits=ar.Limits(turns=12),
        tasks=tuple(ar.Task(seed=lake) for lake in range(8)),
    ),
}


async def train(
    env: str, steps: int, seed: int, keep: ar.filters.GroupFilter | None = ar.filters.reward_varies, **options: Any
) -> list[float]:
    """The mean reward of each step, over all that was played, kept or not. `options` are more for `Rollouts`."""
    setting = SETTINGS[env]
    policy = SmallPolicy(setting.length, BYTES, ACTIONS, seed)

    def reply(requests: list[ar.Request]) -> list[ar.Generation]:
        prompts = [list(request.messages[-1]["content"].encode()) for request in requests]
        tokens, logprobs = policy.choose(np.array(prompts), [request.sampling.seed for request in requests])
        return [
            ar.Generation(f"<answer>{token + 1}</answer>", prompt_ids=prompt, token_ids=[token], logprobs=[logprob])
            for prompt, token, logprob in zip(prompts, tokens, logprobs, strict=True)
        ]

    rewards: list[float] = []
    async with ar.Rollouts(
        env,
        env_kwargs=setting.env_kwargs,
        tasks=cycle(setting.tasks),
        limits=setting.limits,
        agent=ar.ChatAgent(ar.BatchedPolicy(reply), history=0),  # it sees the present message only
        group_size=setting.group_size,
        keep=keep,
        seed=seed,
        order="start",  # with max_lag=0: strictly on-policy; without these, rollouts run while the trainer learns
        max_lag=0,
        **options,
    ) as rollouts:
        began = time.monotonic()
        async for batch in rollouts.batches(groups=GROUPS):
            arrays = batch.to_arrays(advantage="grpo")
            prompts, tokens = np.split(arrays["input_ids"], [-1], axis=1)
            of_reply = tokens[:, 0], arrays["advantages"][:, -1], arrays["old_logprobs"][:, -1]
            weights = await anyio.to_thread.run_sync(policy.learn, prompts, *of_reply)
            async with rollouts.weight_update(version=batch.index + 1):
                policy.weights = weights
            rewards.append(batch.stats["mean_reward"])
            print_step(batch, began)
            if len(rewards) >= steps:
                break
    return rewards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=SETTINGS, default="bandit")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-dir", type=Path, help="keep the run here; `asyncrollout report` shows its curve")
    chosen = parser.parse_args()
    rewards = anyio.run(partial(train, chosen.env, chosen.steps, chosen.seed, run_dir=chosen.run_dir))
    print_gain(rewards)


if __name__ == "__main__":
    main()
