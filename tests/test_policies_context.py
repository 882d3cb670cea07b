"""Replies that fit the model's context, and what is too long in the words of the servers."""

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from asyncrollout import (
    ChatAgent,
    ContextError,
    EnvError,
    EnvPool,
    Generation,
    Limits,
    OpenAIPolicy,
    Outcome,
    ProviderError,
    Request,
    Sampling,
    StopReason,
    Trajectory,
    run_rollout,
)
from asyncrollout.policies.openai.refusals import read_overflow, refusal
from tests.envs.rollout import WALK
from tests.llm_answers import token_id, words
from tests.llm_faults import Answer, Reply
from tests.llm_server import LLMServer, llm_server
from tests.playing import PATIENCE
from tests.waiting import all_tasks_blocked

ENGINES: list[Any] = ["vllm", "sglang"]


def ask(text: str = "Hello", **fields: Any) -> Request:
    return Request(messages=[{"role": "user", "content": text}], **fields)


def caps(server: LLMServer) -> list[Any]:
    return [
        request.body.get("max_tokens", "unsaid") for request in server.requests if request.path.endswith("completions")
    ]


async def play(policy: OpenAIPolicy, limits: Limits, **options: Any) -> Trajectory:
    async with EnvPool(backend="inline") as pool, pool.open(WALK, text=True, turns=4) as env:
        return await run_rollout(env, ChatAgent(policy, **options), seed=7, limits=limits)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("limit", [30, 40, 100])
async def test_limit_on_tokens_beside_a_small_context(kind: Any, limit: int) -> None:
    """It plays as without the limit; what is asked for is what the context leaves."""
    script = [Reply("go 1")] * 4
    async with llm_server(kind, [*script, *script], context=40) as server, OpenAIPolicy(server.url, "m") as policy:
        free = await play(policy, Limits())
        bound = await play(policy, Limits(tokens=limit))
    assert (bound.stop_reason, bound.reward, len(bound.turns)) == (free.stop_reason, free.reward, len(free.turns))
    assert (bound.stop_reason, bound.reward) == (StopReason.TERMINATED, 4.0)


@pytest.mark.parametrize("kind", ENGINES)
async def test_reply_ends_with_the_context_and_then_the_episode_does(kind: Any) -> None:
    endless = Reply("go " + "on and " * 50)
    async with (
        llm_server(kind, [Reply("go 1"), endless], context=30) as server,
        OpenAIPolicy(server.url, "m") as policy,
    ):
        trajectory = await play(policy, Limits(tokens=1_000))
    assert [turn.finish_reason for turn in trajectory.turns] == ["stop", "length"]
    last = trajectory.turns[-1]
    assert last.usage.prompt + last.usage.completion == 30
    assert (trajectory.stop_reason, trajectory.valid) == (StopReason.TOKENS, True)


@pytest.mark.parametrize("kind", ENGINES)
async def test_prompt_that_never_fitted_is_a_failure(kind: Any) -> None:
    async with llm_server(kind, context=5) as server, OpenAIPolicy(server.url, "m") as policy:
        for limits in (Limits(), Limits(tokens=3)):
            trajectory = await play(policy, limits)
            assert trajectory.stop_reason is StopReason.POLICY_ERROR
            assert isinstance(trajectory.error, ContextError)
            assert " 5 tokens" in str(trajectory.error) or "(5 tokens)" in str(trajectory.error)


async def test_episode_that_is_over_at_its_reset_is_a_failure() -> None:
    class Over:
        name = "over"
        worked = None

        async def reset(self, **_: Any) -> Outcome:
            return Outcome("the end", terminated=True)

        async def step(self, action: Any) -> Outcome:
            raise AssertionError

    trajectory = await run_rollout(Over(), ChatAgent(Scripted()), seed=3)
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert isinstance(trajectory.error, EnvError)
    assert "over at its reset" in str(trajectory.error)


class Scripted:
    async def generate(self, request: Request) -> Generation:
        raise AssertionError


@pytest.mark.parametrize(
    ("own", "agents", "limit", "sent"),
    [(100, None, 400, 100), (400, None, 100, 100), (100, 200, 400, 200), (100, 200, 150, 100), (None, None, 400, 400)],
)
async def test_least_of_limit_and_caps_is_asked_for(own: Any, agents: Any, limit: int, sent: int) -> None:
    async with (
        llm_server("openai", lambda *_: Reply("go 1")) as server,
        OpenAIPolicy(server.url, "m", sampling=Sampling(max_tokens=own)) as policy,
    ):
        await play(policy, Limits(tokens=limit, turns=1), sampling=Sampling(max_tokens=agents))
    assert caps(server) == [sent]


async def test_cap_by_another_name_is_kept_to_beside_a_limit() -> None:
    """Newer models of OpenAI take `max_completion_tokens` and refuse `max_tokens`."""
    own = Sampling(extra={"max_completion_tokens": 50})
    async with llm_server("openai") as server, OpenAIPolicy(server.url, "m", sampling=own) as policy:
        for left in (None, 20, 80):
            await policy.generate(ask(tokens_left=left, sampling=Sampling(max_tokens=left)))
        bodies = [request.body for request in server.requests if request.path.endswith("completions")]
    assert [(body.get("max_tokens"), body["max_completion_tokens"]) for body in bodies] == [
        (None, 50),
        (None, 20),
        (None, 50),
    ]


async def test_context_is_remembered() -> None:
    prompt = [token_id(word) for word in words("a b c d")]
    asked = Request(prompt_ids=prompt, sampling=Sampling(max_tokens=60))
    async with llm_server("vllm", context=50) as server, OpenAIPolicy(server.url, "m", mode="completions") as policy:
        first, second = await policy.generate(asked), await policy.generate(asked)
    assert first.timings.attempts == 1  # to be asked for less is no failure
    assert first.token_ids == second.token_ids
    assert caps(server) == [60, None, 46]
    async with llm_server("sglang", context=50) as server, OpenAIPolicy(server.url, "m", mode="completions") as policy:
        await policy.generate(asked)
        await policy.generate(asked)
    assert caps(server) == [60, 46, 46]


async def test_context_is_forgotten_with_a_server_that_is_lost() -> None:
    asked = Request(prompt_ids=[token_id(word) for word in words("a b c d")], sampling=Sampling(max_tokens=60))
    async with llm_server("sglang", context=50) as before:
        policy = OpenAIPolicy(before.url, "m", mode="completions", kind="sglang", attempts=100)
        port = int(before.root.rpartition(":")[2])
        async with policy, anyio.create_task_group() as tasks:
            await policy.generate(asked)
            await policy.generate(asked)
            assert caps(before) == [60, 46, 46]
            await before.stop()
            tasks.start_soon(policy.generate, asked)
            with anyio.fail_after(PATIENCE):
                while policy.endpoints[0].up:
                    await all_tasks_blocked()
            async with llm_server("sglang", context=200, port=port) as after:
                await policy.generate(asked)
                await after.until(lambda: len(caps(after)) == 2)
    assert caps(after) == [60, 60]


async def test_reply_that_is_too_long_for_any_prompt() -> None:
    said = "max_tokens is too large: 500. This model supports at most 40 completion tokens, whereas you provided 500."
    async with llm_server("openai", [Answer(400, said)]) as server, OpenAIPolicy(server.url, "m") as policy:
        await policy.generate(ask(sampling=Sampling(max_tokens=500)))
    assert caps(server) == [500, 40]


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("Please reduce the length of the messages or completion to fit the context window.", 1),
        (
            "maximum context length is 10 tokens. However, you requested 9 tokens (3 in the messages, 6 in the",
            3,
        ),
    ],
)
async def test_refusal_of_max_tokens_that_cannot_be_met_is_no_outcome(said: str, asked: int) -> None:
    """The second server refuses whatever is asked for."""
    script = lambda *_: Answer(400, said)  # noqa: E731
    async with llm_server("openai", script) as server, OpenAIPolicy(server.url, "m") as policy:
        with pytest.raises(ProviderError, match="max_tokens=") as caught:
            await policy.generate(ask(sampling=Sampling(max_tokens=8)))
        assert not isinstance(caught.value, ContextError)
        assert len(caps(server)) <= asked
        if "reduce" in said:
            with pytest.raises(ContextError):
                await policy.generate(ask())


TOO_LONG = """
The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no
The decoder prompt (length 9) plus the number of requested output tokens (at least 1) is longer than the maximum model length of 9.
Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 289650 tokens.
Your input exceeds the context window of this model. Please adjust your input and try again.
The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).
prompt is too long: 205668 tokens > 200000 maximum
Input length (5000) exceeds model's maximum context length (4096).
The input (5000 tokens) is longer than the model's context length (4096 tokens).
This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.
maximum context length is 8192 tokens. However, you requested 9512 tokens (9000 in the messages, 512 in the completion).
This model's maximum prompt length is 131072 but the request contains 150000 tokens.
the request exceeds the available context size, try increasing it
""".strip().splitlines()  # noqa: E501


@pytest.mark.parametrize("said", TOO_LONG)
async def test_prompt_that_is_too_long_in_the_words_of_each_server(said: str) -> None:
    async with llm_server("openai", [None, Answer(400, said)]) as server, OpenAIPolicy(server.url, "m") as policy:
        await policy.generate(ask())
        with pytest.raises(ContextError):
            await policy.generate(ask(sampling=Sampling(max_tokens=100)))


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b'{"error": {"message": "no", "code": "context_length_exceeded"}}'),
        (400, b'{"message": "no", "code": "context_length_exceeded"}'),
        (
            400,
            b'[{"error": {"code": 400, "message": "The input token count exceeds the maximum number of tokens"}}]',
        ),
        (500, b'{"error": {"code": 500, "message": "the request exceeds the available context size."}}'),
    ],
)
async def test_prompt_that_is_too_long_by_its_code(status: int, body: bytes) -> None:
    async with llm_server("openai", [Answer(status, body=body)]) as server, OpenAIPolicy(server.url, "m") as policy:
        with pytest.raises(ContextError):
            await policy.generate(ask())


LENGTH = "This model's maximum context length is 100 tokens"
NUMBERS = {
    f"{LENGTH}. However, you requested 130 tokens (30 in the messages, 100 in the completion)": 70,
    f"{LENGTH}. However, you requested 135 tokens (30 in the messages, 5 in the functions, 100 in the completion)": 65,
    f"{LENGTH}, however you requested 130 tokens (30 in your prompt; 100 for the completion)": 70,
    f"'max_tokens' or 'max_completion_tokens' is too large: 90. {LENGTH} and your request has 30 input tokens": 70,
    f"{LENGTH}. However, you requested 90 output tokens and your prompt contains 30 input tokens, for a total": 70,
    "maximum context length of 100 tokens. You requested a total of 130 tokens: 30 tokens from the input messages": 70,
    "input length and `max_tokens` exceed context limit: 30 + 90 > 100, decrease input length or `max_tokens`": 70,
    "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens": 64_000,
    f"{LENGTH}. However, you requested 90 output tokens and your prompt contains at least 11 input tokens": None,
}


@pytest.mark.parametrize(("said", "room"), NUMBERS.items())
def test_numbers_of_a_refusal(said: str, room: int | None) -> None:
    overflow = read_overflow(said)
    assert overflow is not None
    assert overflow.room == room
    assert overflow.is_of_reply
    assert overflow.is_vague == (room is None)


@pytest.mark.parametrize("said", ["context length is {} tokens", "max_tokens: 5 > {}", "at most {} completion tokens"])
def test_numbers_of_a_refusal_that_no_model_has(said: str) -> None:
    """Python reads no number of so many digits."""
    assert read_overflow(said.format("9" * 5_000)) is not None


@pytest.mark.parametrize("said", ["no such model", "invalid temperature", "Rate limit: 100 tokens per minute"])
def test_other_refusals_are_not_about_length(said: str) -> None:
    assert read_overflow(said) is None


@pytest.mark.parametrize("status", [429, 403, 401, 400, 302])
@pytest.mark.parametrize("kind", ENGINES)
async def test_refused_probe_says_nothing_of_the_kind(status: int, kind: Any) -> None:
    """It is the call that is refused, once; a 429 is waited for."""
    async with llm_server(kind) as server, OpenAIPolicy(server.url, "m") as policy:
        server.refused_pages["/version"] = [Answer(status, "not now")]
        if status != 429:
            with pytest.raises(ProviderError, match=rf"HTTP {status}: GET /version .*kind=.*: not now") as caught:
                await policy.generate(ask())
            assert not isinstance(caught.value, ContextError)
        assert (await policy.generate(ask())).token_ids is not None
        assert policy.endpoints[0].kind == kind


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_pages_that_are_not_there(status: int) -> None:
    async with llm_server("sglang") as server, OpenAIPolicy(server.url, "m") as policy:
        server.refused_pages["/version"] = [Answer(status, "not now")]
        await policy.generate(ask())
        assert policy.endpoints[0].kind == "sglang"


@pytest.fixture
def warnings() -> Iterator[list[Any]]:
    with capture_logs() as logs:
        yield logs


@pytest.mark.parametrize(("temperature", "reported"), [(0.7, 1), (1.0, 0), (None, 0), (0.0, 0)])
async def test_logprobs_before_temperature_are_reported_once(
    warnings: list[Any], temperature: Any, reported: int
) -> None:
    async with llm_server("vllm") as server, OpenAIPolicy(server.url, "m") as policy:
        for _ in range(2):
            await policy.generate(ask(sampling=Sampling(temperature=temperature)))
    found = [entry for entry in warnings if entry["event"] == "logprobs_before_temperature"]
    assert len(found) == reported
    assert all("--logprobs-mode processed_logprobs" in entry["hint"] for entry in found)


@pytest.mark.parametrize("kind", ENGINES)
async def test_token_ids_come_without_logprobs(kind: Any) -> None:
    async with llm_server(kind) as server, OpenAIPolicy(server.url, "m", logprobs=False) as policy:
        generation = await policy.generate(ask())
    assert generation.token_ids
    assert generation.prompt_ids
    assert generation.logprobs is None


@pytest.mark.parametrize("key", ["sk-canary-of-some-length", "sk-'\"\\canary-of-some-length"])
@pytest.mark.parametrize("before", range(270, 310, 4))
async def test_no_part_of_a_key_is_shown(key: str, before: int) -> None:
    said = "x" * before + key
    refused = [Answer(401, said), Answer(401, body=said.encode()), Answer(200, body=said.encode())]
    async with llm_server("openai", [*refused]) as server, OpenAIPolicy(server.url, "m", api_key=key) as policy:
        for _ in refused:
            with pytest.raises(ProviderError) as caught:
                await policy.generate(ask())
            assert "sk-" not in str(caught.value)
    async with llm_server("vllm") as server, OpenAIPolicy(server.url, "m", api_key=key) as policy:
        server.refused_pages["/version"] = [Answer(403, said), Answer(403, body=said.encode())]
        for _ in range(2):
            with pytest.raises(ProviderError) as caught:
                await policy.generate(ask())
            assert "sk-" not in str(caught.value)


def test_code_of_a_refusal_is_shown_if_it_is_a_word() -> None:
    assert refusal(b'{"error": {"message": "no", "code": "invalid_api_key"}}') == "no (invalid_api_key)"
    assert refusal(b'{"error": {"message": "no", "code": 400}}') == "no"
