"""An LLM server that costs next to nothing, so that `bench_rollouts.py` measures its clients.

    python benchmarks/rollout_server.py [--at-once]

Prints its URL. It answers chat completions with the last message, after a time that the request's seed decides, or at
once. The server of the tests takes four times the CPU for an answer, and 256 clients at once keep it busy.
"""

import asyncio
import math
import random
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

MEAN, SIGMA = 0.1, 1.0  # of a lognormal latency, in seconds
_CLIENTS = 4096
_HEAD = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


class Question(msgspec.Struct):
    seed: int
    messages: list[dict[str, Any]]


def latency(seed: int) -> float:
    return MEAN / math.exp(SIGMA**2 / 2) * random.Random(f"0-{seed}").lognormvariate(0.0, SIGMA)


def answer(question: Question) -> bytes:
    text = f"reply to {question.messages[-1]['content']}"
    words = re.findall(r"\s*\S+|\s+$", text)  # joined, they are the text again
    tokens = [{"token": word, "bytes": [*word.encode()], "logprob": -0.5, "top_logprobs": []} for word in words]
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": {"content": tokens}}
    usage = {"prompt_tokens": 1, "completion_tokens": len(tokens), "total_tokens": 1 + len(tokens)}
    whole = {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": "m", "usage": usage}
    body = msgspec.json.encode({**whole, "choices": [choice]})
    return _HEAD.format(len(body)).encode() + body


class Connection(asyncio.Protocol):
    """One request at a time, as a client sends them that awaits each answer."""

    def __init__(self, wait: Callable[[int], float]) -> None:
        self._wait = wait
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, _, body = self._received.partition(b"\r\n\r\n")
        _, reported, after = head.lower().partition(b"content-length:")
        if reported and len(body) >= int(after.partition(b"\r\n")[0]):
            self._received = b""
            question = msgspec.json.decode(body, type=Question)
            loop = asyncio.get_running_loop()
            loop.call_later(self._wait(question.seed), self._transport.write, answer(question))


async def main() -> None:
    wait = (lambda _: 0.0) if "--at-once" in sys.argv else latency
    server = await asyncio.get_running_loop().create_server(partial(Connection, wait), "127.0.0.1", 0, backlog=_CLIENTS)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())  # uvloop's clock stands still while it is at work, so that its timers come early
