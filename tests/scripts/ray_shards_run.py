"""Takes a batch from two shards, for a test that kills it meanwhile.

`python -m tests.scripts.ray_shards_run ADDRESS SERVER RUN_DIR`."""

import asyncio
import sys

from asyncrollout import OpenAIPolicy, RayShards, Rollouts
from tests.envs.rollout import WALK


async def main(address: str, server: str, run_dir: str) -> None:
    policy = OpenAIPolicy(server, "test-model", api_key="key", kind="vllm")
    shards = RayShards(2, address=address, num_cpus=0.5, wait=60)
    async with Rollouts(
        WALK, policy=policy, group_size=2, seed=3, max_lag=0, shards=shards, run_dir=run_dir
    ) as rollouts:
        await anext(rollouts.batches(groups=3))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
