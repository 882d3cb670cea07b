"""Several servers, the kinds of servers, and what happens when a policy is paused or closed in the middle of calls."""

import asyncio
from contextlib import suppress
from typing import Any

import aiohttp
import anyio
import pytest
from structlog.testing import capture_logs

from asyncrollout import ClosedError, ContextError, OpenAIPolicy, ProviderError, Request, Sampling, UsageError
from asyncrollout.policies.gate import Gate
from asyncrollout.policies.openai.concurrency_limit import ConcurrencyLimit
from asyncrollout.policies.openai.endpoint import Endpoint
from asyncrollout.policies.openai.routing import Router
from tests.llm_faults import Answer, Cut, Hold
from tests.llm_server import LLMServer, llm_server
from tests.playing import PATIENCE
from tests.test_policies_openai import ask, ask_all, calls, policy
from tests.waiting import all_tasks_blocked


def port_of(server: LLMServer) -> int:
    return int(server.root.rpartition(":")[2])


def endpoint(name: str) -> Endpoint:
    return Endpoint(f"http://{name}/v1", ConcurrencyLimit(10, adaptive=False), "openai")


async def test_kind_is_not_settled_while_the_server_is_away() -> None:
    async with llm_server(kind="vllm") as server:
        port = port_of(server)
    async with OpenAIPolicy(f"http://127.0.0.1:{port}/v1", "m", attempts=2, wait_for_server=0.05) as asked:
        with pytest.raises(ProviderError, match="no response"):
            await asked.generate(ask())
        async with llm_server(kind="vllm", port=port):
            assert (await asked.generate(ask())).token_ids


async def test_each_server_has_its_kind() -> None:
    async with llm_server(kind="openai") as one, llm_server(kind="vllm") as other, policy(one, other) as asked:
        answers = await ask_all(asked, [ask(str(number)) for number in range(20)])
    assert {answer.token_ids is None for answer in answers} == {True, False}
    assert [endpoint.kind for endpoint in asked.endpoints] == ["openai", "vllm"]


async def test_server_is_notified_of_a_pause_before_the_first_call() -> None:
    async with llm_server(kind="vllm") as server, policy(server) as asked:
        await asked.pause()
        assert server.paused
        await asked.resume(1)
        assert not server.paused


async def test_new_sessions_are_spread_and_known_ones_stay() -> None:
    async with llm_server() as one, llm_server() as other, policy(one, other, kind="openai") as asked:
        for number in range(20):  # one after the other, so that nobody is ever loaded
            await asked.generate(ask(session=str(number)))
        assert (len(calls(one)), len(calls(other))) == (10, 10)
        for number in range(20):
            await asked.generate(ask(session=str(number)))
        assert (len(calls(one)), len(calls(other))) == (20, 20)


def test_session_leaves_a_server_that_is_lost_or_refuses_for_long() -> None:
    one, other = endpoint("one"), endpoint("other")
    router = Router([one, other])
    assert router.find("s") is one
    one.limit.not_before = float("inf")
    assert router.find("s") is other
    other.up = False
    one.limit.not_before = 0.0
    assert router.find("s") is one
    other.up = True
    assert router.find("s") is one
    assert router.find("s", failed=one) is other
    assert (one.sessions, other.sessions) == (0, 1)
    one.up = other.up = False
    assert router.find("t") in (one, other)


def test_sessions_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrollout.policies.openai.routing._SESSIONS_KEPT", 5)
    one, other = endpoint("one"), endpoint("other")
    router = Router([one, other])
    for number in range(50):
        router.find(str(number))
    assert one.sessions + other.sessions == 5


async def test_calls_go_past_a_server_that_refuses() -> None:
    refusal = Answer(429, headers={"Retry-After": "60"})
    async with (
        llm_server(script=lambda *_: refusal) as busy,
        llm_server() as free,
        policy(busy, free, kind="openai") as asked,
    ):
        with anyio.fail_after(PATIENCE / 2):
            answers = await ask_all(asked, [ask(str(number), session=str(number)) for number in range(6)])
    assert [answer.text for answer in answers] == [f"reply to {number}" for number in range(6)]


async def test_server_that_hangs_is_left_after_the_seconds_of_an_attempt() -> None:
    async with llm_server(script=lambda *_: Hold()) as hung, llm_server() as well:
        async with policy(hung, well, kind="openai", attempt_seconds=0.5) as asked:
            answers = await ask_all(asked, [ask(str(number)) for number in range(4)])
            assert max(answer.timings.attempts for answer in answers) == 2
        await hung.until(lambda: hung.in_flight == 0)
    async with (
        llm_server(script=lambda *_: Hold()) as hung,
        policy(hung, kind="openai", attempt_seconds=0.02, attempts=2) as asked,
    ):
        with pytest.raises(ProviderError, match=r"no response within 0.02 s \(after 2 attempts\)"):
            await asked.generate(ask())


async def test_server_that_is_well_but_loses_calls_is_asked_less_and_less() -> None:
    with capture_logs() as events:
        async with (
            llm_server(script=lambda *_: Cut()) as ill,
            llm_server() as well,
            policy(ill, well, kind="openai") as asked,
        ):
            for number in range(30):
                await asked.generate(ask(session=str(number)))
            assert len(calls(ill)) < 10
    assert {"endpoint_lost"} <= {event["event"] for event in events}


async def test_connection_that_was_closed_meanwhile_costs_no_attempt() -> None:
    """The server ends each connection after its answer without saying so, as some do."""
    async with llm_server(script=[None, Cut(reset=False), None, Cut(reset=False)]) as server, policy(server) as asked:
        for _ in range(3):
            generation = await asked.generate(ask())
            assert generation.timings.attempts == 1
        assert asked.endpoints[0].up


async def test_retry_at_once_is_no_busy_loop() -> None:
    for after in ("0", "-5", "Thu, 01 Jan 1970 00:00:00 GMT"):
        refusal = Answer(429, "quota exceeded", {"Retry-After": after})
        async with llm_server(script=lambda *_, refusal=refusal: refusal) as server, policy(server) as asked:
            with pytest.raises(ProviderError, match=r"no response within 0.5 s.*quota exceeded"):
                await asked.generate(ask(seconds=0.5))
            assert len(calls(server)) < 10


async def test_retry_after_of_a_page_that_tells_the_kind_is_waited_for() -> None:
    async with llm_server() as server, policy(server) as asked:
        server.refused_pages["/version"] = [Answer(503, "loading", {"Retry-After": "0.5"})]
        await asked.generate(ask())
        first, second = (seen.came for seen in server.requests if seen.path == "/version")
    assert second - first >= 0.5


async def test_trouble_with_retry_after_is_waited_for() -> None:
    fault = Answer(503, "restarting", {"Retry-After": "0.6"})
    async with llm_server(script=[fault]) as server, policy(server) as asked:
        await asked.generate(ask())
        first, second = (request.came for request in calls(server))
        assert second - first >= 0.6


async def test_policy_that_is_closed_lets_everybody_go() -> None:
    async with llm_server(script=[Hold(), Answer(429, headers={"Retry-After": "60"})]) as server:
        errors: list[Exception] = []

        async def one(number: int) -> None:
            try:
                await asked.generate(ask(str(number)))
            except ClosedError as error:
                errors.append(error)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks, policy(server, concurrency=2, kind="openai") as asked:
                tasks.start_soon(one, 0)  # under way
                await server.until(lambda: server.in_flight == 1)
                tasks.start_soon(one, 1)  # refused for long
                await server.until(lambda: any(request.status == 429 for request in calls(server)))
                tasks.start_soon(one, 2)  # waits for a place
                await asked.pause("continue")
                tasks.start_soon(one, 3)  # held back
                await all_tasks_blocked()
    assert [str(error) for error in errors] == ["this OpenAIPolicy was closed"] * 4
    with pytest.raises(UsageError, match="opened before"):
        await asked.__aenter__()


async def test_resume_while_a_pause_waits_ends_it_without_telling_the_server() -> None:
    go = anyio.Event()
    async with llm_server(kind="vllm", script=[Hold(until=go)]) as server, policy(server, kind="vllm") as asked:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked.generate, ask())
            await server.until(lambda: server.in_flight == 1)
            tasks.start_soon(asked.pause)
            await all_tasks_blocked()
            await asked.resume(2)
            go.set()
        assert not server.paused
        assert (await asked.generate(ask())).version == 2


async def test_pause_that_is_cancelled_or_wrong_holds_nothing_back() -> None:
    go = anyio.Event()
    async with llm_server(script=[Hold(until=go)]) as server, policy(server, kind="openai") as asked:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked.generate, ask())
            await server.until(lambda: server.in_flight == 1)
            with anyio.move_on_after(0.01) as scope:
                await asked.pause()
            assert scope.cancelled_caught
            with pytest.raises(UsageError, match="mode='now'"):
                await asked.pause("now")  # type: ignore[arg-type]
            go.set()
        assert (await asked.generate(ask())).text == "reply to Hello"


async def test_gate_knows_what_passes() -> None:
    gate, timers = Gate(), list[asyncio.Timeout]()

    async def call() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as timer:
                with gate.passing(timer):
                    timers.append(timer)
                    await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(call)
        await all_tasks_blocked()
        await gate.shut("abort")
    assert [timer.expired() for timer in timers] == [True] * 3
    assert not gate.is_open
    await gate.shut("wait")
    gate.open()
    with anyio.fail_after(PATIENCE):
        await gate.wait()


async def test_key_that_a_server_repeats_is_hidden() -> None:
    said = "Incorrect API key provided: sk-canary"
    for fault in (Answer(401, said), Answer(body=said.encode())):
        async with llm_server(script=[fault]) as server, policy(server, api_key=" sk-canary\n") as asked:
            with pytest.raises(ProviderError) as caught:
                await asked.generate(ask())
            assert calls(server)[0].headers["Authorization"] == "Bearer sk-canary"
            assert "canary" not in f"{caught.value} {asked!r} {vars(asked)}"
            assert "<key>" in str(caught.value)


async def test_no_key_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    async with llm_server() as server, policy(server, api_key="") as asked:
        await asked.generate(ask())
        assert "Authorization" not in calls(server)[0].headers
    with pytest.raises(UsageError, match="API key"):
        OpenAIPolicy("http://x/v1", "m", api_key="a\nb")


async def test_name_and_password_in_an_address_are_not_shown() -> None:
    asked = OpenAIPolicy("http://user:canary@127.0.0.1:9/v1?key=canary", "m", attempts=1)
    async with asked:
        with pytest.raises(ProviderError) as caught:
            await asked.generate(ask())
    assert "canary" not in f"{asked!r} {caught.value}"


async def test_prompts_go_nowhere_else() -> None:
    async with llm_server() as other:
        away = Answer(307, headers={"Location": f"{other.url}/chat/completions"})
        async with llm_server(script=[away]) as server, policy(server) as asked:
            with pytest.raises(ProviderError, match="HTTP 307"):
                await asked.generate(ask())
        assert calls(other) == []


async def test_sampling_of_the_policy_holds_where_a_request_says_nothing() -> None:
    default = Sampling(temperature=0.7, max_tokens=100, stop=("x",), extra={"user": "a"})
    async with llm_server() as server, policy(server, sampling=default) as asked:
        await asked.generate(ask(sampling=Sampling(seed=5, max_tokens=7, extra={"top_logprobs": 1})))
        body = calls(server)[0].body
    assert {key: body.get(key) for key in ("temperature", "max_tokens", "stop", "seed", "user", "top_logprobs")} == {
        "temperature": 0.7,
        "max_tokens": 7,
        "stop": ["x"],
        "seed": 5,
        "user": "a",
        "top_logprobs": 1,
    }


async def test_conversation_that_is_too_long_is_reported_as_such() -> None:
    full = Answer(400, "the request exceeds the available context size")
    async with llm_server(script=[full]) as server, policy(server) as asked:
        with pytest.raises(ContextError):
            await asked.generate(ask())


@pytest.mark.parametrize(
    "request_",
    [
        Request(),
        Request(prompt_ids=[1, 2]),
        Request(messages="hi"),  # type: ignore[arg-type]
        Request(messages=["hi"]),  # type: ignore[list-item]
        Request(messages=[{"role": "user", "content": "\ud800"}]),
        Request(messages=[{"role": "user", "content": object()}]),
        ask(sampling=Sampling(extra={"x": object()})),
    ],
    ids=["nothing", "ids", "text", "texts", "surrogate", "object", "extra"],
)
async def test_requests_that_cannot_be_sent_are_mistakes_of_the_caller(request_: Any) -> None:
    async with llm_server() as server, policy(server) as asked:
        with pytest.raises(UsageError):
            await asked.generate(request_)
        assert calls(server) == []


@pytest.mark.parametrize(
    "options",
    [
        {"max_concurrency": 0},
        {"attempts": 0},
        {"attempt_seconds": 0},
        {"seconds": float("nan")},
        {"kind": "vLLM"},
        {"concurrency": "fast"},
        {"concurrency": True},
    ],
    ids=repr,
)
def test_wrong_options(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(UsageError, match=f"{name}="):
        OpenAIPolicy("http://x/v1", "m", **options)


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0}, {"max_tokens": 0}, {"stop": "x"}],
    ids=repr,
)
def test_sampling_that_makes_no_sense(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}="):
        Sampling(**options)


def test_too_few_file_descriptors_are_reported_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 256))

    async def opened(**options: Any) -> int:
        async with OpenAIPolicy(["http://127.0.0.1:9/v1"] * 2, "m", **options) as asked:
            limit = asked.endpoints[0].limit
            for call in range(1_000):
                limit.succeeded(call, call + 0.01)
            return limit.current

    assert anyio.run(opened) < 100
    with pytest.raises(UsageError, match=r"400 concurrent calls .* only 256 are allowed: .*ulimit -n"):
        anyio.run(lambda: opened(concurrency=200))


async def test_endpoints_are_clients_of_one_session_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    original = aiohttp.ClientSession

    def count(*args: Any, **kwargs: Any) -> Any:
        made.append(original(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr("asyncrollout.policies.openai.session.aiohttp.ClientSession", count)
    async with llm_server() as one, llm_server() as other, policy(one, other) as asked:
        await ask_all(asked, [ask(str(number)) for number in range(10)])
    assert len(made) == 1
    assert made[0].closed
