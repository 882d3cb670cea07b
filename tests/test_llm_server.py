"""The scripted server answers as the servers it stands for, and each fault arrives as it is described."""

import errno
import json
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, get_args

import aiohttp
import anyio
import pytest

from tests import llm_server as module
from tests.llm_answers import EOS, MODEL, Kind, logprob, token_id, words
from tests.llm_faults import (
    ABORTED,
    BAD_JSON,
    DROPPED,
    EMPTY_CHOICES,
    HANG,
    NO_DONE,
    NO_LOGPROBS,
    RESET,
    SHORT_LOGPROBS,
    SHORT_TOKEN_IDS,
    TRUNCATED,
    WRONG_TYPE,
    Answer,
    Cut,
    Ending,
    Fault,
    Hold,
    Json,
    Reply,
    Trickle,
    huge,
)
from tests.llm_server import LLMServer, llm_server
from tests.waiting import all_tasks_blocked

KINDS = get_args(Kind)
ENGINES = ("vllm", "sglang")
ASKED: Json = {"model": "m", "messages": [{"role": "user", "content": "hello there"}]}
TEXT = "reply to hello there"
IDS = [token_id(word) for word in words(TEXT)]


@asynccontextmanager
async def serving(
    kind: Kind, *faults: Fault | None, **options: Any
) -> AsyncIterator[tuple[LLMServer, aiohttp.ClientSession]]:
    async with llm_server(kind, [*faults], **options) as server, aiohttp.ClientSession() as client:
        yield server, client


async def post(client: aiohttp.ClientSession, url: str, **body: Any) -> Any:
    async with client.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def chat(client: aiohttp.ClientSession, server: LLMServer, **more: Any) -> Any:
    return await post(client, f"{server.url}/chat/completions", **ASKED, **more)


async def stream(client: aiohttp.ClientSession, server: LLMServer, **more: Any) -> list[str]:
    async with client.post(f"{server.url}/chat/completions", json={**ASKED, "stream": True, **more}) as response:
        assert response.content_type == "text/event-stream"
        return [line.decode().removeprefix("data: ").strip() async for line in response.content if line.strip()]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_usual_reply_is_made_from_the_request(kind: Kind) -> None:
    async with serving(kind) as (server, client):
        first, second = await chat(client, server), await chat(client, server, max_tokens=2, logprobs=True)
    ended = kind != "openai"
    (choice,) = first["choices"]
    assert choice["message"] == {"role": "assistant", "content": TEXT}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    assert first["usage"]["completion_tokens"] == len(IDS) + ended
    (choice,) = second["choices"]
    assert choice["message"]["content"] == "reply to"
    assert choice["finish_reason"] == "length"
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["reply", " to"]
    assert [entry["logprob"] for entry in entries] == [logprob(one) for one in IDS[:2]]
    assert [entry.get("id") for entry in entries] == (IDS[:2] if kind == "llamacpp" else [None, None])


async def test_openai_refuses_what_it_does_not_know() -> None:
    async with serving("openai", RESET) as (server, client):
        async with client.post(f"{server.url}/chat/completions", json={**ASKED, "return_token_ids": True}) as response:
            assert response.status == 400
            message = "Unrecognized request argument supplied: return_token_ids"
            reported = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
            assert await response.json() == {"error": reported}
        assert server.script == [RESET]


async def test_a_body_that_is_not_json_is_refused() -> None:
    async with serving("vllm") as (server, client):
        response = await client.post(f"{server.url}/completions", data=b"{")
        assert response.status == 400
        assert "not JSON" in (await response.json())["error"]["message"]


async def test_several_choices_differ() -> None:
    async with serving("openai") as (server, client):
        choices = (await chat(client, server, n=2))["choices"]
    assert [choice["message"]["content"] for choice in choices] == [TEXT, f"{TEXT} (1)"]


async def test_parts_of_a_message_are_read_as_its_text() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "what is this"}]
    async with serving("vllm") as (server, client):
        answer = await post(client, f"{server.url}/chat/completions", messages=[{"role": "user", "content": parts}])
    assert answer["choices"][0]["message"]["content"] == "reply to what is this"


async def test_vllm_returns_token_ids() -> None:
    async with serving("vllm") as (server, client):
        answer = await chat(client, server, return_token_ids=True, logprobs=True, return_tokens_as_token_ids=True)
        other = await post(client, f"{server.url}/completions", prompt=[1, 2], return_token_ids=True, logprobs=0)
    (choice,) = answer["choices"]
    assert choice["token_ids"] == [*IDS, EOS]
    assert choice["logprobs"]["content"][0]["token"] == f"token_id:{IDS[0]}"
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    (choice,) = other["choices"]
    assert choice["text"] == "reply to 2 tokens"
    assert choice["prompt_token_ids"] == [1, 2]
    assert choice["logprobs"]["tokens"] == ["reply", " to", " 2", " tokens", ""]
    assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"])


async def test_sglang_returns_token_ids_under_its_own_names() -> None:
    async with serving("sglang") as (server, client):
        answer = await chat(client, server, return_token_ids=True)
        native = await post(client, f"{server.root}/generate", input_ids=[1], return_logprob=True)
        body = {**ASKED, "return_token_ids": True, "stream": True}
        async with client.post(f"{server.url}/chat/completions", json=body) as response:
            assert response.status == 400
            assert (await response.json())["object"] == "error"
    (choice,) = answer["choices"]
    assert choice["response_token_ids"] == [*IDS, EOS]
    assert len(choice["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    assert answer["metadata"] == {"weight_version": "default"}
    assert [entry[1] for entry in native["meta_info"]["output_token_logprobs"]] == native["output_ids"]
    assert native["meta_info"]["finish_reason"] == {"type": "stop"}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_is_the_same_answer_in_chunks(kind: Kind) -> None:
    ids = {"return_token_ids": True} if kind == "vllm" else {}
    async with serving(kind) as (server, client):
        whole = await chat(client, server, logprobs=True, **ids)
        *lines, last = await stream(client, server, logprobs=True, stream_options={"include_usage": True}, **ids)
    assert last == "[DONE]"
    *events, usage = map(json.loads, lines)
    assert usage["usage"] == whole["usage"]
    assert usage["choices"] == []
    (expected,) = whole["choices"]
    choices = [event["choices"][0] for event in events]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == TEXT
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    entries = [entry for choice in choices for entry in (choice.get("logprobs") or {}).get("content", ())]
    assert entries == expected["logprobs"]["content"]
    assert [one for choice in choices for one in choice.get("token_ids", ())] == expected.get("token_ids", [])
    assert events[0].get("prompt_token_ids") == whole.get("prompt_token_ids")


ROUTES = {
    "openai": {},
    "vllm": {"/version": "version", "/is_paused": "is_paused", "/weight_info": "weight_version"},
    "sglang": {"/server_info": "version", "/get_server_info": "version", "/weight_version": "weight_version"},
    "llamacpp": {"/props": "default_generation_settings", "/health": "status"},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_can_be_distinguished_from_the_others(kind: Kind) -> None:
    async with serving(kind) as (server, client):
        for other in KINDS:
            for path, key in ROUTES[other].items():
                async with client.get(server.root + path) as response:
                    if other == kind:
                        assert key in await response.json()
                    elif path != "/health":
                        assert response.status == 404
        async with client.get(f"{server.url}/models") as response:
            assert (await response.json())["data"][0]["id"] == MODEL
        async with client.get(f"{server.root}/health") as response:
            assert response.status == 200


async def test_a_server_may_still_be_loading() -> None:
    async with serving("llamacpp", loading=2) as (server, client):
        for path, status in [("/health", 503), ("/v1/models", 503), ("/health", 200)]:
            async with client.get(server.root + path) as response:
                assert response.status == status
        assert [seen.status for seen in server.requests] == [503, 503, 200]


@pytest.mark.parametrize(
    "after", ["2", "0", "-1", "soon", str(10**30), format_datetime(datetime(2030, 1, 1, tzinfo=UTC), usegmt=True)]
)
async def test_retry_after_arrives_as_it_was_scripted(after: str) -> None:
    async with serving("openai", Answer(429, "slow down", {"Retry-After": after})) as (server, client):
        async with client.post(f"{server.url}/chat/completions", json=ASKED) as response:
            assert response.status == 429
            assert response.headers["Retry-After"] == after
            assert (await response.json())["error"]["code"] == "rate_limit_exceeded"
        assert (await chat(client, server))["choices"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [400, 401, 404, 500, 502, 503])
async def test_errors_carry_the_error_object_of_their_kind(kind: Kind, status: int) -> None:
    async with serving(kind, Answer(status, "no")) as (server, client):
        response = await client.post(f"{server.url}/chat/completions", json=ASKED)
        assert response.status == status
        reported = await response.json()
    assert (reported if kind == "sglang" else reported["error"])["message"] == "no"


async def test_a_reset_is_not_an_orderly_close() -> None:
    async with serving("openai", RESET, DROPPED) as (server, client):
        with pytest.raises(aiohttp.ClientOSError) as reset:
            await chat(client, server)
        assert reset.value.errno == errno.ECONNRESET
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await chat(client, server)
        assert (await chat(client, server))["choices"]
        assert server.cancelled == 0


@pytest.mark.parametrize("fault", [TRUNCATED, Cut(0.5)])
async def test_an_answer_cut_short(fault: Fault) -> None:
    async with serving("openai", fault, fault) as (server, client):
        with pytest.raises(aiohttp.ClientError):
            await chat(client, server)
        with pytest.raises(aiohttp.ClientError):
            await stream(client, server)
        assert server.cancelled == 0


async def test_bodies_that_are_no_completion() -> None:
    async with serving("openai", BAD_JSON, WRONG_TYPE, huge(3)) as (server, client):
        with pytest.raises(json.JSONDecodeError):
            await chat(client, server)
        with pytest.raises(aiohttp.ContentTypeError):
            await chat(client, server)
        async with client.post(f"{server.url}/chat/completions", json=ASKED) as response:
            assert len(await response.read()) == (3 << 20) + 2


async def test_completions_that_contradict_themselves() -> None:
    asked = {"logprobs": True, "return_token_ids": True}
    faults = (EMPTY_CHOICES, NO_LOGPROBS, SHORT_LOGPROBS, SHORT_TOKEN_IDS)
    async with serving("vllm", *faults) as (server, client):
        assert (await chat(client, server, **asked))["choices"] == []
        assert (await chat(client, server, **asked))["choices"][0]["logprobs"] is None
        (short,) = (await chat(client, server, **asked))["choices"]
        assert len(short["logprobs"]["content"]) == len(short["token_ids"]) - 1
        (short,) = (await chat(client, server, **asked))["choices"]
        assert len(short["logprobs"]["content"]) == len(short["token_ids"]) + 1


@pytest.mark.parametrize("kind", KINDS)
async def test_replies_may_be_scripted(kind: Kind) -> None:
    calls = Reply(tool_calls=(("move", '{"to": "left"}'),))
    async with serving(kind, Reply("left", reasoning="the box is there"), calls, ABORTED, calls) as (server, client):
        thought = (await chat(client, server, logprobs=True))["choices"][0]
        called = (await chat(client, server))["choices"][0]
        aborted = (await chat(client, server))["choices"][0]
        opening = json.loads((await stream(client, server))[0])["choices"][0]
    assert thought["message"]["content"] == "left"
    assert thought["message"]["reasoning" if kind == "vllm" else "reasoning_content"] == "the box is there"
    tokens = [entry["token"] for entry in thought["logprobs"]["content"]]
    assert tokens == ["left"] if kind == "openai" else "".join(tokens) == "<think> the box is there </think>left"
    assert called["finish_reason"] == "tool_calls"
    assert called["message"]["tool_calls"][0]["function"] == {"name": "move", "arguments": '{"to": "left"}'}
    assert (aborted["message"]["content"], aborted["finish_reason"]) == ("reply to", "abort")
    assert opening["delta"]["tool_calls"][0]["index"] == 0


async def test_streams_that_end_otherwise() -> None:
    async with serving("vllm", NO_DONE, Ending({"error": {"message": "engine died"}})) as (server, client):
        assert json.loads((await stream(client, server))[-1])["choices"][0]["finish_reason"] == "stop"
        assert json.loads((await stream(client, server))[-1]) == {"error": {"message": "engine died"}}


async def test_a_trickle_is_the_whole_answer() -> None:
    async with serving("openai", Trickle(), Trickle(7)) as (server, client):
        assert (await chat(client, server))["choices"][0]["message"]["content"] == TEXT
        assert (await stream(client, server))[-1] == "[DONE]"


@pytest.mark.parametrize("fault", [HANG, Hold(sent=0.5), Trickle(delay=3600)])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_is_noticed(fault: Fault, streamed: bool) -> None:
    async with serving("openai", fault) as (server, client):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: chat(client, server, stream=streamed))
            await server.until(lambda: server.in_flight == 1)
            tasks.cancel_scope.cancel()
        await server.until(lambda: server.cancelled == 1)
        (seen,) = server.requests
        assert seen.hung_up
        assert seen.done
        assert seen.headers["content-type"] == "application/json"
        assert seen.body["messages"] == ASKED["messages"]
        assert server.in_flight == 0


async def test_a_server_closes_while_it_hangs() -> None:
    async with anyio.create_task_group() as tasks, aiohttp.ClientSession() as client:
        async with llm_server(script=lambda number, body: HANG) as server:

            async def ask() -> None:
                with pytest.raises(aiohttp.ClientError):
                    await chat(client, server)

            tasks.start_soon(ask)
            await server.until(lambda: server.in_flight == 1)
        assert server.cancelled == 0


async def test_an_answer_waits_for_an_event() -> None:
    gate = anyio.Event()
    texts: list[str] = []
    async with serving("openai", Hold(gate, then=Answer(500)), Hold(gate), Hold(gate, sent=0.5)) as (server, client):

        async def ask(number: int) -> None:
            async with client.post(f"{server.url}/chat/completions", json=ASKED) as response:
                texts.append(f"{response.status} {'choices' in await response.json()}")

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(ask, number)
            await server.until(lambda: server.in_flight == 3)
            assert texts == []
            gate.set()
        assert sorted(texts) == ["200 True", "200 True", "500 False"]
        assert server.most_in_flight == 3


async def test_above_its_limit_a_server_refuses() -> None:
    gate = anyio.Event()
    async with serving("vllm", Hold(gate), Hold(gate), limit=2) as (server, client):
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(chat, client, server)
            await server.until(lambda: server.in_flight == 2)
            async with client.post(f"{server.url}/chat/completions", json=ASKED) as response:
                assert response.status == 429
            gate.set()
        assert server.most_in_flight == 2
        assert [seen.status for seen in server.requests] == [200, 200, 429]


async def test_a_script_may_be_a_function() -> None:
    def script(number: int, body: Json) -> Fault | None:
        return Reply(f"{number} {body['model']}") if number % 2 else None

    async with llm_server(script=script) as server, aiohttp.ClientSession() as client:
        texts = [(await chat(client, server))["choices"][0]["message"]["content"] for _ in range(3)]
    assert texts == [TEXT, "1 m", TEXT]


async def test_latency_is_drawn_from_the_seed() -> None:
    async def drawn(seed: int) -> list[float]:
        draws: list[float] = []

        def latency(rng: random.Random) -> float:
            draws.append(rng.random())
            return 0.0

        async with serving("openai", latency=latency, seed=seed) as (server, client):
            for _ in range(3):
                await chat(client, server)
        return draws

    assert await drawn(1) == await drawn(1) != await drawn(2)


PAUSES = {
    "vllm": ("/pause?mode={}", "/resume", "/abort_requests"),
    "sglang": ("/pause_generation", "/continue_generation", "/abort_request"),
}


@pytest.mark.parametrize("kind", ENGINES)
async def test_a_pause_aborts_what_runs_and_holds_what_comes(kind: Kind) -> None:
    pause, resume, _ = (server_path.format("abort") for server_path in PAUSES[kind])
    finishes: list[str] = []
    async with serving(kind, HANG) as (server, client):

        async def ask() -> None:
            finishes.append((await chat(client, server))["choices"][0]["finish_reason"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await server.until(lambda: server.in_flight == 1)
            await post(client, server.root + pause, mode="abort")
            tasks.start_soon(ask)
            await server.until(lambda: len(server.requests) == 3 and server.in_flight == 1)
            await all_tasks_blocked()
            assert server.in_flight == 1
            await post(client, server.root + resume)
        assert sorted(finishes) == ["abort", "stop"]


@pytest.mark.parametrize(("kind", "mode"), [("vllm", "keep"), ("sglang", "in_place"), ("sglang", "retract")])
async def test_a_pause_may_keep_what_runs(kind: Kind, mode: str) -> None:
    gate = anyio.Event()
    pause, resume, abort = (path.format(mode) for path in PAUSES[kind])
    finishes: list[str] = []
    async with serving(kind, Hold(gate)) as (server, client):

        async def ask() -> None:
            finishes.append((await chat(client, server))["choices"][0]["finish_reason"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await server.until(lambda: server.in_flight == 1)
            await post(client, server.root + pause, mode=mode)
            gate.set()
            await all_tasks_blocked()
            assert server.in_flight == 1
            await post(client, server.root + resume)
        assert finishes == ["stop"]
        async with client.post(server.root + abort, json={"abort_all": True}) as response:
            assert response.status == 200


async def test_it_runs_in_a_process_of_its_own() -> None:
    async with await anyio.open_process(
        [sys.executable, module.__file__, "--kind", "vllm", "--spread", "0.5"]
    ) as process:
        assert process.stdout is not None
        url = (await process.stdout.receive()).decode().strip()
        async with aiohttp.ClientSession() as client:
            answer = await post(client, f"{url}/chat/completions", **ASKED)
        assert answer["choices"][0]["message"]["content"] == TEXT
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
