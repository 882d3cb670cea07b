"""A batch of video environments behind a service: created, reset, stepped and closed by id, then the same over HTTP.

    python examples/service_example.py

The clips are generated on first use. One id of each batch does not exist, to show that its error stays with it.
"""

import asyncio
from typing import Any

import aiohttp

from asyncrollout import BaseServiceConfig, EnvPool, RemoteEnvPool, VideoEnvService
from asyncrollout.service.server import EnvServer

CONFIGS = {f"env_{number}": {"env_name": "video", "env_config": {"seed": number}} for number in range(3)}
REPLIES = {
    "env_0": "I need to watch the video. <watch>0-5</watch>",
    "env_1": {"llm_raw_response": "Let me analyze this scene. <watch>0-10</watch>", "verbose": False},
    "env_2": "<think>I know.</think><answer>A</answer>",
    "nobody": "<watch>0-5</watch>",
}


def tell(results: dict[str, Any]) -> None:
    for env_id, (observation, reward, done, info) in results.items():
        if "error" in info:
            print(f"  {env_id}: {info['error']}")
        else:
            pictures = len(observation["multi_modal_data"]["<image>"])
            print(f"  {env_id}: reward {reward:+.1f}, {pictures} pictures{', the episode is over' * done}")


async def in_this_process() -> None:
    async with VideoEnvService(BaseServiceConfig(max_workers=2)) as service:
        await service.create_environments_batch(CONFIGS)
        sizes = await service.get_split_size_batch(["env_0"], split="train")
        print(f"In this process, {service.max_workers} workers, {sizes['env_0']} questions:")
        resets = await service.reset_batch(
            {"env_0": 0, "env_1": {"seed": 1, "extra_info": {"split": "test"}}, "env_2": 2}
        )
        print("\n".join(f"  | {line}" for line in resets["env_0"][0]["obs_str"].splitlines()[-7:]))
        tell(await service.step_batch(REPLIES))
        print("  in all:", await service.compute_reward_batch([*CONFIGS]))
        await service.close_batch()


async def over_http() -> None:
    """What `asyncrollout serve` does, with a client of VAGEN's kind and with a pool of ours."""
    async with EnvPool(workers=2) as workers, EnvServer(workers, port=0) as server:
        print(f"Over HTTP, at {server.url}:")
        async with aiohttp.ClientSession(server.url) as session:
            await session.post("/environments", json={"ids2configs": CONFIGS})
            await session.post("/batch/reset", json={"ids2seeds": {"env_0": 0, "env_1": 1, "env_2": 2}})
            async with session.post("/batch/step", json={"ids2actions": REPLIES}) as response:
                tell((await response.json())["results"])
        async with RemoteEnvPool(server.url) as pool, pool.open("video", expert=True) as env:
            outcome = await env.reset(seed=0)
            while not outcome.done:
                outcome = await env.step(outcome.info["expert"])
                print(f"  a pool there: reward {outcome.reward:+.1f}, {env.worked * 1e3:.0f} ms at work")


async def main() -> None:
    await in_this_process()
    await over_http()


if __name__ == "__main__":
    asyncio.run(main())
