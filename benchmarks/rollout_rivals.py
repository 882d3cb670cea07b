"""The rollouts of `bench_rollouts.py` without a framework: aiohttp, msgspec, and each env as a plain object."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import aiohttp
import msgspec

from benchmarks.rollout_envs import TURNS, Talk

Message = dict[str, Any]
Seeds = Sequence[Sequence[int]]
Ask = Callable[[list[Message], int], Coroutine[Any, Any, str]]

_HEADERS = {"Content-Type": "application/json"}


class Conversation:
    """An env and what was said so far."""

    def __init__(self) -> None:
        self.env = Talk()
        self.messages: list[Message] = [{"role": "user", "content": self.env.reset()[0]}]

    def answer(self, reply: str) -> None:
        observation = self.env.step(reply)[0]
        self.messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": observation}]


async def with_server(url: str, seeds: Seeds, play: Callable[[Ask, Seeds], Awaitable[None]]) -> None:
    """Play all; `seeds` has a row for each rollout, and in it a seed for each turn."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def ask(messages: list[Message], seed: int) -> str:
            body = msgspec.json.encode({"model": "m", "messages": messages, "seed": seed, "logprobs": True})
            async with client.post(f"{url}/chat/completions", data=body, headers=_HEADERS) as response:
                reply: str = msgspec.json.decode(await response.read())["choices"][0]["message"]["content"]
                return reply

        await play(ask, seeds)


async def play_alone(ask: Ask, seeds: Seeds) -> None:
    """A coroutine for each rollout."""

    async def rollout(turns: Sequence[int]) -> None:
        talk = Conversation()
        for seed in turns:
            talk.answer(await ask(talk.messages, seed))

    async with asyncio.TaskGroup() as tasks:
        for turns in seeds:
            tasks.create_task(rollout(turns))


async def play_in_step(ask: Ask, seeds: Seeds) -> None:
    """Turn by turn: all envs wait for the slowest reply, then all are stepped."""
    talks = [Conversation() for _ in seeds]
    for turn in range(TURNS):
        async with asyncio.TaskGroup() as tasks:
            replies = [
                tasks.create_task(ask(talk.messages, turns[turn])) for talk, turns in zip(talks, seeds, strict=True)
            ]
        for talk, reply in zip(talks, replies, strict=True):
            talk.answer(reply.result())
