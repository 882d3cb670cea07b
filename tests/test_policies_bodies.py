"""Answers that are packed, huge, endless or cut off: what is read of them is bounded, and counted unpacked."""

import gzip
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import anyio
import anyio.to_thread
import pytest
from aiohttp import web
from anyio.abc import SocketAttribute, SocketStream

from asyncrollout import OpenAIPolicy, PoolError, ProviderError, RemoteEnvPool, Request, UsageError
from asyncrollout.dropin.vagen import BatchEnvClient
from asyncrollout.policies.openai import bodies
from asyncrollout.policies.openai.bodies import LARGE, MOST_BYTES, MOST_OF_AN_ERROR, unpack
from asyncrollout.policies.openai.codec import decode
from tests.llm_faults import Answer
from tests.llm_server import llm_server
from tests.playing import PATIENCE
from tests.test_policies_openai import ask, calls, policy

GZIP, ZLIB, RAW = 31, 15, -15
GIGABYTE = 2**30


def packed(unit: bytes, size: int, window: int = GZIP, before: bytes = b"") -> bytes:
    """A stream that unpacks to `unit` over and over: a block that ends with a full flush can be repeated as it is."""
    packer = zlib.compressobj(9, zlib.DEFLATED, window)
    head = packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH)
    block = unit * (2**20 // len(unit))
    once = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + once * (size // len(block))


def whole(tokens: int) -> dict[str, Any]:
    entries = [{"token": f" {n}", "bytes": [*f" {n}".encode()], "logprob": -0.5} for n in range(tokens)]
    text = "".join(f" {n}" for n in range(tokens))
    choice = {"message": {"content": text}, "finish_reason": "stop", "logprobs": {"content": entries}}
    return {"choices": [choice]}


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all that was unpacked, piece by piece."""
    sizes: list[int] = []
    make = bodies._unpacker

    class Counting:
        def __init__(self, *arguments: Any) -> None:
            self._inner: Any = make(*arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def decompress(self, data: bytes, most: int) -> bytes:
            piece: bytes = self._inner.decompress(data, most)
            sizes.append(len(piece))
            return piece

    monkeypatch.setattr(bodies, "_unpacker", Counting)
    return sizes


BOMBS = {
    "gzip": ("gzip", packed(b"\0", GIGABYTE)),
    "a text": ("gzip", packed(b"a", GIGABYTE, before=b'{"choices": [{"message": {"content": "')),
    "events": ("x-gzip", packed(b'data: {"choices": []}\n\n', GIGABYTE)),
    "deflate": ("deflate", packed(b"\0", GIGABYTE, ZLIB)),
    "deflate without a header": ("Deflate", packed(b" ", GIGABYTE, RAW)),
}


@pytest.mark.parametrize(("encoding", "body"), BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize("kind", ["openai", "llamacpp"])
async def test_no_more_than_the_cap_is_unpacked(kind: Any, encoding: str, body: bytes, unpacked: list[int]) -> None:
    bomb = Answer(body=body, headers={"Content-Encoding": encoding})
    async with llm_server(kind, [bomb]) as server, policy(server) as asked:
        with pytest.raises(
            ProviderError, match=f"malformed response: it has more than {MOST_BYTES} bytes, decompressed"
        ):
            await asked.generate(ask())
        assert sum(unpacked) == MOST_BYTES + 1
        assert max(unpacked) <= 2**20
        assert len(calls(server)) == 1
        assert (await asked.generate(ask())).text == "reply to Hello"


@pytest.mark.parametrize("status", [400, 503])
async def test_little_is_unpacked_of_an_error(status: int, unpacked: list[int]) -> None:
    body = packed(b" ", GIGABYTE, before=b"the oven is on fire ")
    bomb = Answer(status, body=body, headers={"Content-Encoding": "gzip"})
    async with llm_server(script=lambda *_: bomb) as server, policy(server, attempts=1) as asked:
        with pytest.raises(ProviderError, match=f"HTTP {status}: 'the oven is on fire") as caught:
            await asked.generate(ask())
    assert len(str(caught.value)) < 600
    assert sum(unpacked) == MOST_OF_AN_ERROR


async def test_little_is_unpacked_of_the_pages_that_tell_the_kind_of_a_server(unpacked: list[int]) -> None:
    headers = {"Content-Encoding": "gzip"}
    async with llm_server("vllm") as server, policy(server) as asked:
        server.refused_pages["/version"] = [
            Answer(403, body=packed(b" ", GIGABYTE, before=b"not you "), headers=headers),
            Answer(200, body=packed(b"\0", GIGABYTE), headers=headers),
        ]
        with pytest.raises(ProviderError, match=r"HTTP 403: GET /version .*'not you"):
            await asked.generate(ask())
        assert sum(unpacked) == MOST_OF_AN_ERROR
        assert (await asked.generate(ask())).token_ids
        assert sum(unpacked) == MOST_OF_AN_ERROR


@pytest.mark.parametrize("encoding", ["gzip, gzip", "gzip,deflate", "br", "zstd", "identity, gzip", "x" * 5_000])
async def test_encodings_that_were_not_asked_for(encoding: str) -> None:
    odd = Answer(body=gzip.compress(b"{}", mtime=0), headers={"Content-Encoding": encoding})
    async with llm_server(script=[odd]) as server, policy(server) as asked:
        with pytest.raises(
            ProviderError, match=r"malformed response: its Content-Encoding is .* gzip, deflate"
        ) as caught:
            await asked.generate(ask())
        assert len(str(caught.value)) < 300
        assert (await asked.generate(ask())).text == "reply to Hello"
        assert {seen.headers["Accept-Encoding"] for seen in server.requests} == {"gzip, deflate"}


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "not at all": ("identity", lambda body: body),
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate without a header": ("deflate", lambda body: zlib.compress(body)[2:-4]),
}


@pytest.mark.parametrize(("encoding", "pack"), PACKERS.values(), ids=PACKERS)
@pytest.mark.parametrize("tokens", [3, 30_000])
async def test_packed_answers_are_read(encoding: str, pack: Callable[[bytes], bytes], tokens: int) -> None:
    content = json.dumps(whole(tokens)).encode()
    assert (len(content) > LARGE) == (tokens > 3)
    answer = Answer(body=pack(content), headers={"Content-Encoding": encoding})
    async with llm_server(script=[answer]) as server, policy(server) as asked:
        generation = await asked.generate(ask())
    assert generation.text == whole(tokens)["choices"][0]["message"]["content"]
    assert len(generation.logprobs or ()) == tokens


CONTENT = gzip.compress(json.dumps(whole(30_000)).encode())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"not packed", "its Content-Encoding is 'gzip', but"),
        (CONTENT[:-9], "its gzip stream is truncated"),
        (CONTENT[: 2**17], "its gzip stream is truncated"),
        (CONTENT + b"x", "bytes after the end of its gzip stream"),
        (CONTENT + CONTENT, "bytes after the end of its gzip stream"),
        (gzip.compress(b"{}", mtime=0) + gzip.compress(b"{}", mtime=0), "bytes after the end of its gzip stream"),
        (CONTENT[:-8] + bytes(8), "its Content-Encoding is 'gzip', but"),
        (gzip.compress(b"", mtime=0), "malformed response"),
        (b"", "malformed response"),
    ],
)
async def test_packed_answers_that_make_no_sense(body: bytes, why: str) -> None:
    odd = Answer(body=body, headers={"Content-Encoding": "gzip"})
    async with llm_server(script=[odd]) as server, policy(server) as asked:
        with pytest.raises(ProviderError, match=why) as caught:
            await asked.generate(ask())
        assert str(caught.value).startswith("malformed response: ")


@pytest.mark.parametrize("size", [10, 2**16, 2**18, 2**18 + 1, 2**20, 2**22])
@pytest.mark.parametrize("over", [0, 1])
async def test_cap_counts_to_the_byte(size: int, over: int) -> None:
    raw = gzip.compress(bytes(size), compresslevel=1)
    if over:
        with pytest.raises(ProviderError, match=f"more than {size - 1} bytes"):
            await unpack(raw, "gzip", size - 1)
    else:
        assert await unpack(raw, "gzip", size) == bytes(size)


DENSE = {
    "choices": b'{"choices": [' + b"{}," * 500_000 + b"{}]}",
    "tool calls": b'{"choices": [{"message": {"tool_calls": [' + b"[]," * 1_000_001 + b"[]]}}]}",
    "token ids": b'{"choices": [{"token_ids": [' + b"9999," * 2_000_001 + b"1]}]}",
    "events": b"data:{}\n" * 400_001 + b"data: [DONE]\n",
    "lines": b"data:\n" * 500_001 + b"data: [DONE]\n",
}


@pytest.mark.parametrize("content", DENSE.values(), ids=DENSE)
def test_answers_that_would_take_many_times_their_size_are_not_decoded(content: bytes) -> None:
    with pytest.raises(ProviderError, match=r"malformed response: it.* has more than \d+ (values|lines)"):
        decode(content, logprobs=False)


@asynccontextmanager
async def raw_server(answer: Callable[[SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """Reads a request, and then does as it likes."""

    async def serve(stream: SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await stream.receive()
                await answer(stream)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v1"
        tasks.cancel_scope.cancel()


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


async def endless_chunks(stream: SocketStream) -> None:
    await stream.send(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        await stream.send(b"10000\r\n" + b" " * 2**16 + b"\r\n")


async def endless_headers(stream: SocketStream) -> None:
    await stream.send(OK)
    for number in count():
        await stream.send(b"X-%d: %s\r\n" % (number, b"y" * 2**12))


async def too_long_a_header(stream: SocketStream) -> None:
    await stream.send(OK + b"X: ")
    while True:
        await stream.send(b"y" * 2**16)


async def fewer_bytes_than_said(stream: SocketStream) -> None:
    await stream.send(OK + b"Content-Length: 1000\r\n\r\n{}")


async def as_many_bytes_as_nobody_has(stream: SocketStream) -> None:
    await stream.send(OK + b"Content-Length: 99999999999999999999\r\n\r\n{}")


async def slow_drip_of_a_bomb(stream: SocketStream) -> None:
    await stream.send(OK + b"Content-Encoding: gzip\r\nContent-Length: 1000000\r\n\r\n" + packed(b"\0", 2**22)[:2000])
    await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (endless_chunks, f"it has more than {MOST_BYTES} bytes"),
        (endless_headers, "after 1 attempts"),
        (too_long_a_header, "after 1 attempts"),
        (fewer_bytes_than_said, "after 1 attempts"),
        (as_many_bytes_as_nobody_has, "after 1 attempts"),
        (slow_drip_of_a_bomb, r"no response within 0.3 s"),
    ],
)
async def test_answers_that_do_not_end_as_they_should(answer: Any, why: str) -> None:
    seconds = 0.3 if answer is slow_drip_of_a_bomb else PATIENCE
    with anyio.fail_after(PATIENCE):
        async with raw_server(answer) as url, OpenAIPolicy(url, "m", kind="openai", attempts=1) as asked:
            with pytest.raises(ProviderError, match=why):
                await asked.generate(Request(messages=[{"role": "user", "content": "Hello"}], seconds=seconds))


async def test_large_answers_are_decoded_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run = bodies.in_thread

    async def noticed(work: Any, *arguments: Any) -> Any:
        ran.append(work.__name__)
        return await run(work, *arguments)

    monkeypatch.setattr("asyncrollout.policies.openai.attempt.in_thread", noticed)
    answers = [Answer(body=json.dumps(whole(tokens)).encode()) for tokens in (3, 30_000)]
    async with llm_server(script=[*answers]) as server, policy(server) as asked:
        await asked.generate(ask())
        assert not ran
        await asked.generate(ask())
        assert ran == ["_decode"]


@asynccontextmanager
async def env_server(status: int, body: bytes) -> AsyncIterator[str]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers={"Content-Encoding": "gzip"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_little_is_unpacked_of_the_refusal_of_an_env_server(unpacked: list[int]) -> None:
    async with env_server(403, packed(b" ", GIGABYTE, before=b'{"error": "no"')) as url:
        with pytest.raises(UsageError, match="status 403, which is not an answer of"):
            async with RemoteEnvPool(url):
                pass
    assert sum(unpacked) == MOST_OF_AN_ERROR
    async with env_server(403, gzip.compress(b'{"error": "not you"}')) as url:
        with pytest.raises(UsageError, match="status 403, not you"):
            async with RemoteEnvPool(url):
                pass


async def test_no_more_than_its_cap_is_unpacked_for_a_client_of_envs(
    unpacked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrollout.dropin.vagen.client._LARGEST_ANSWER", 2**21)
    async with env_server(200, packed(b" ", GIGABYTE)) as url:
        with pytest.raises(PoolError, match="it has more than 2097152 bytes, decompressed"):
            await anyio.to_thread.run_sync(BatchEnvClient(url).get_system_prompt, "a")
    assert sum(unpacked) == 2**21 + 1
    async with env_server(200, gzip.compress(b'{"system_prompts": {"a": "Play."}}')) as url:
        assert await anyio.to_thread.run_sync(BatchEnvClient(url).get_system_prompt, "a") == "Play."


async def test_stream_whose_last_bytes_zlib_keeps_back_is_whole() -> None:
    """Without a checksum at its end, all of it may have been read before all of it was unpacked."""
    for size in range(2**18, 2**18 + 520):
        packer = zlib.compressobj(6, zlib.DEFLATED, RAW)
        raw = packer.compress(b"a" * size) + packer.flush()
        assert await unpack(raw, "deflate") == b"a" * size
