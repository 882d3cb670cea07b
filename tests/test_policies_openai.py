"""`OpenAIPolicy` against a real HTTP server on loopback that plays faults."""

import email.utils
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import numpy as np
import pytest

from asyncrollout import BatchedPolicy, ClosedError, OpenAIPolicy, ProviderError, Request, Sampling, UsageError
from asyncrollout.policies.openai.bodies import MOST_BYTES
from asyncrollout.policies.openai.refusals import read_retry_after
from tests import llm_faults as faults
from tests.llm_faults import Answer, Cut, Edit, Hold, Reply, Trickle
from tests.llm_server import llm_server
from tests.playing import PATIENCE
from tests.waiting import all_tasks_blocked

KINDS: list[Any] = ["openai", "vllm", "sglang", "llamacpp"]


def ask(text: str = "Hello", **fields: Any) -> Request:
    return Request(messages=[{"role": "user", "content": text}], **fields)


def policy(*servers: Any, **options: Any) -> OpenAIPolicy:
    return OpenAIPolicy([server.url for server in servers], "m", **options)


async def ask_all(asked: OpenAIPolicy, requests: Iterable[Request]) -> list[Any]:
    requests = list(requests)
    answers: list[Any] = [None] * len(requests)

    async def one(place: int) -> None:
        try:
            answers[place] = await asked.generate(requests[place])
        except ProviderError as error:
            answers[place] = error

    async with anyio.create_task_group() as tasks:
        for place in range(len(requests)):
            tasks.start_soon(one, place)
    return answers


@pytest.mark.parametrize("kind", KINDS)
async def test_answer_of_every_kind_of_server(kind: Any) -> None:
    async with llm_server(kind=kind) as server, policy(server) as asked:
        generation = await asked.generate(ask(sampling=Sampling(max_tokens=100)))
    assert generation.text == "reply to Hello"
    assert generation.finish_reason == "stop"
    assert generation.logprobs is not None
    assert generation.usage.prompt > 0
    if kind != "openai":
        assert generation.token_ids is not None
        assert len(generation.token_ids) == len(generation.logprobs)
    if kind in ("vllm", "sglang"):
        assert generation.prompt_ids


async def test_kind_is_probed_once_for_many_calls() -> None:
    async with llm_server(kind="vllm") as server, policy(server) as asked:
        await ask_all(asked, [ask(str(number)) for number in range(20)])
        paths = Counter(request.path for request in server.requests)
    assert paths["/version"] == 1


async def test_many_calls_at_once_are_not_mixed_up() -> None:
    async with llm_server() as server, policy(server) as asked:
        answers = await ask_all(asked, [ask(f"number {number}") for number in range(300)])
    assert [answer.text for answer in answers] == [f"reply to number {number}" for number in range(300)]


async def test_fixed_concurrency_is_kept_to() -> None:
    async with llm_server() as server, policy(server, concurrency=5) as asked:
        await ask_all(asked, [ask(str(number)) for number in range(50)])
        assert server.most_in_flight <= 5


@pytest.mark.parametrize(
    "fault", [Answer(500), Answer(502), Answer(503), Cut(), Cut(sent=0.5), Cut(sent=0.5, reset=False)], ids=repr
)
async def test_trouble_that_passes_is_tried_again(fault: Any) -> None:
    async with llm_server(script=[fault, fault]) as server, policy(server) as asked:
        generation = await asked.generate(ask())
    assert generation.text == "reply to Hello"
    assert generation.timings.attempts == 3


async def test_trouble_that_does_not_pass_ends_after_so_many_attempts() -> None:
    async with llm_server(script=lambda *_: Answer(500, "on fire")) as server, policy(server, attempts=3) as asked:
        with pytest.raises(ProviderError, match=r"HTTP 500: on fire \(after 3 attempts\)"):
            await asked.generate(ask())
        assert len([request for request in server.requests if request.path.endswith("completions")]) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_permanent_errors_fail_at_once_with_what_the_server_says(status: int) -> None:
    async with llm_server(script=[Answer(status, "that is wrong")]) as server, policy(server) as asked:
        with pytest.raises(ProviderError, match=f"HTTP {status}: that is wrong"):
            await asked.generate(ask())


@pytest.mark.parametrize("after", ["0", "0.01", "Thu, 01 Jan 1970 00:00:00 GMT", "soon", "-3"])
async def test_refusals_lower_the_limit_and_are_tried_again(after: str) -> None:
    refusal = Answer(429, headers={"Retry-After": after})
    async with llm_server(script=[refusal]) as server, policy(server) as asked:
        before = asked.endpoints[0].limit.current
        assert (await asked.generate(ask())).text == "reply to Hello"
        assert asked.endpoints[0].limit.current < before
        assert asked.endpoints[0].limit.history


async def test_limit_finds_what_the_server_bears() -> None:
    async with llm_server(limit=8) as server, policy(server) as asked:
        answers = await ask_all(asked, [ask(str(number)) for number in range(200)])
    assert all(not isinstance(answer, ProviderError) for answer in answers)


@pytest.mark.parametrize("after", ["0.3", "date"])
async def test_no_call_is_made_before_its_time(after: str) -> None:
    """Twenty calls are refused; neither they nor new ones go out earlier than the server said."""
    if after == "date":  # of whole seconds, so that it must be a later one
        after = email.utils.formatdate(time.time() + 2, usegmt=True)
    refusal = Answer(429, headers={"Retry-After": after})
    async with llm_server(script=[refusal] * 20) as server, policy(server, concurrency=20, kind="openai") as asked:
        answers = await ask_all(asked, [ask(str(number)) for number in range(40)])
        assert not any(isinstance(answer, ProviderError) for answer in answers)
        refused = [request.came for request in calls(server) if request.status == 429]
        message = read_retry_after(after, now=time.time() - (time.monotonic() - max(refused)))
        granted = [request.came for request in calls(server) if request.status == 200]
        assert (len(refused), len(granted)) == (20, 40)
        assert min(granted) >= min(refused) + min(message or 0.0, 0.3)


@pytest.mark.parametrize("after", ["1e9", "Fri, 31 Dec 9999 23:59:59 GMT", "inf", "9" * 5000])
async def test_waits_beyond_all_reason_end_with_the_deadline(after: str) -> None:
    refusal = Answer(429, headers={"Retry-After": after})
    async with llm_server(script=lambda *_: refusal) as server, policy(server) as asked:
        with pytest.raises(ProviderError, match=r"no response within 0.1 s"):
            await asked.generate(ask(seconds=0.1))


MALFORMED = {
    "bad json": faults.BAD_JSON,
    "html": faults.WRONG_TYPE,
    "empty": Answer(body=b""),
    "null": Answer(body=b"null"),
    "empty choices": faults.EMPTY_CHOICES,
    "no logprobs": faults.NO_LOGPROBS,
    "two choices": Edit(lambda whole: whole["choices"].append(whole["choices"][0])),
    "no finish": Edit(lambda whole: whole["choices"][0].update(finish_reason=None)),
    "logprobs above 0": Edit(
        lambda whole: [token.update(logprob=1.0) for token in whole["choices"][0]["logprobs"]["content"]]
    ),
    "junk of 1 MB": Answer(body=b"x" * 2**20),
}


@pytest.mark.parametrize("fault", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_answers_are_errors(fault: Any) -> None:
    async with llm_server(script=[fault]) as server, policy(server) as asked:
        with pytest.raises(ProviderError, match="malformed response") as caught:
            await asked.generate(ask())
        assert len(str(caught.value)) < 1_000
        assert len(calls(server)) == 1
        assert (await asked.generate(ask())).text == "reply to Hello"


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("fault", [faults.SHORT_LOGPROBS, faults.SHORT_TOKEN_IDS], ids=["logprobs", "token ids"])
async def test_tokens_and_logprobs_that_do_not_match_are_errors(kind: Any, fault: Any) -> None:
    async with llm_server(kind=kind, script=[fault]) as server, policy(server) as asked:
        with pytest.raises(ProviderError, match="malformed response"):
            await asked.generate(ask())


async def test_stream_that_breaks_off_is_an_error() -> None:
    async with llm_server(kind="llamacpp", script=[faults.NO_DONE]) as server, policy(server) as asked:
        with pytest.raises(ProviderError, match="the stream was cut off"):
            await asked.generate(ask())


async def test_answer_without_end_is_given_up() -> None:
    huge = faults.huge(MOST_BYTES // 2**20 + 1)
    async with llm_server(script=lambda *_: huge) as server, policy(server) as asked:
        with pytest.raises(ProviderError, match="malformed response: it has more than 16777216 bytes"):
            await asked.generate(ask())


async def test_answer_in_small_pieces() -> None:
    async with llm_server(script=[Trickle(size=7)]) as server, policy(server) as asked:
        assert (await asked.generate(ask())).text == "reply to Hello"


async def test_retried_call_is_one_call() -> None:
    """An answer that was lost on its way is sampled again, and only the second one counts."""
    async with llm_server(script=[Cut(sent=0.5)]) as server, policy(server) as asked:
        generation = await asked.generate(ask())
        assert len(calls(server)) == 2
    assert generation.usage.completion == len(generation.logprobs or ())
    assert generation.timings.attempts == 2


async def test_reasoning_and_tool_calls_arrive() -> None:
    replies: list[Any] = [
        Reply(text="so", reasoning="hm"),
        Reply(tool_calls=(("f", "{}"),), finish_reason="tool_calls"),
    ]
    async with llm_server(script=replies) as server, policy(server, logprobs=False) as asked:
        assert (await asked.generate(ask())).reasoning == "hm"
        called = await asked.generate(ask())
    assert called.finish_reason == "tool_calls"
    assert called.tool_calls[0]["function"]["name"] == "f"


@pytest.mark.parametrize("kind", ["openai", "llamacpp"])
async def test_cancelled_call_hangs_up(kind: Any) -> None:
    async with llm_server(kind=kind, script=[Hold()]) as server, policy(server) as asked:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked.generate, ask())
            await server.until(lambda: server.in_flight == 1)
            tasks.cancel_scope.cancel()
        await server.until(lambda: server.cancelled == 1)
        assert (await asked.generate(ask())).text == "reply to Hello"
        assert asked.endpoints[0].in_flight == 0


async def test_deadline_of_a_request() -> None:
    async with llm_server(script=[Hold()]) as server, policy(server) as asked:
        with pytest.raises(ProviderError, match=r"no response within 0.05 s"):
            await asked.generate(ask(seconds=0.05))


async def test_longer_seconds_of_a_request() -> None:
    refusal = Answer(429, headers={"Retry-After": "0.2"})
    async with llm_server(script=[refusal, refusal]) as server, policy(server, seconds=0.05, kind="openai") as asked:
        with pytest.raises(ProviderError, match=r"no response within 0.05 s"):
            await asked.generate(ask())
        assert (await asked.generate(ask(seconds=PATIENCE))).text == "reply to Hello"


async def test_waits_between_attempts_begin_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    def backoff(number: int, _rng: Any) -> float:
        waited.append(number)
        return 0.0

    monkeypatch.setattr("asyncrollout.policies.openai.policy.backoff", backoff)
    async with llm_server(script=lambda *_: Answer(500)) as server, policy(server, attempts=4) as asked:
        with pytest.raises(ProviderError, match="after 4 attempts"):
            await asked.generate(ask())
        assert len(calls(server)) == 4
    assert waited == [1, 2, 3]


async def test_cancelled_waiters_leave_no_gap() -> None:
    go = anyio.Event()
    script: list[Any] = [Hold(until=go), None, None]
    async with llm_server(script=script) as server, policy(server, concurrency=1, kind="openai") as asked:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked.generate, ask("first"))
            await server.until(lambda: server.in_flight == 1)
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as waiters:
                    for number in range(5):
                        waiters.start_soon(asked.generate, ask(str(number)))
                    await all_tasks_blocked()
                    assert asked.endpoints[0].load == 6
                    scope.cancel()
            assert asked.endpoints[0].load == 1
            go.set()
        assert (await asked.generate(ask())).text == "reply to Hello"
    assert asked.endpoints[0].load == 0


async def test_sessions_stay_with_their_server() -> None:
    async with llm_server() as one, llm_server() as other, policy(one, other) as asked:
        await ask_all(asked, [ask(f"s{number} 0", session=f"s{number}") for number in range(20)])
        for turn in range(1, 4):
            await ask_all(asked, [ask(f"s{number} {turn}", session=f"s{number}", turn=turn) for number in range(20)])
        seen = [{said(request).split()[0] for request in calls(server)} for server in (one, other)]
    assert not seen[0] & seen[1]
    assert all(seen)


def calls(server: Any) -> list[Any]:
    return [request for request in server.requests if request.path.endswith("completions")]


def said(request: Any) -> str:
    text: str = request.body["messages"][-1]["content"]
    return text


async def test_server_that_is_gone_costs_no_call_and_comes_back() -> None:
    async with llm_server() as stays, AsyncExitStack() as first:
        goes = await first.enter_async_context(llm_server())
        async with policy(stays, goes) as asked:
            await ask_all(asked, [ask(str(number), session=str(number)) for number in range(20)])
            await first.aclose()
            answers = await ask_all(asked, [ask(str(number), session=str(number), turn=1) for number in range(20)])
            assert [answer.text for answer in answers] == [f"reply to {number}" for number in range(20)]
            assert [endpoint.up for endpoint in asked.endpoints] == [True, False]
            async with llm_server(port=int(goes.root.rpartition(":")[2])) as back:
                with anyio.fail_after(PATIENCE):
                    while not calls(back):
                        await ask_all(asked, [ask(str(number)) for number in range(4)])


async def test_server_in_trouble_is_left_for_another_one() -> None:
    async with llm_server(script=lambda *_: Answer(503, "no")) as ill, llm_server() as well, policy(ill, well) as asked:
        requests = [ask(str(number), session=f"s{number}") for number in range(10)]
        answers = await ask_all(asked, requests)
        assert [answer.text for answer in answers] == [f"reply to {number}" for number in range(10)]
        assert max(answer.timings.attempts for answer in answers) == 2
        asked_before = len(calls(ill))
        await ask_all(asked, requests)
        assert len(calls(ill)) == asked_before  # the sessions have moved


async def test_calls_that_wait_for_a_lost_server_go_to_another_one() -> None:
    go = anyio.Event()
    async with (
        llm_server(script=[Hold(until=go, then=Cut())]) as lost,
        llm_server() as other,
        policy(lost, other, concurrency=1, kind="openai") as asked,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked.generate, ask("first", session="a"))
            await lost.until(lambda: lost.in_flight == 1)
            tasks.start_soon(asked.generate, ask("second", session="a"))
            await all_tasks_blocked()
            asked.endpoints[0].up = False
            go.set()
        assert [said(request) for request in calls(lost)] == ["first"]
        assert {said(request) for request in calls(other)} == {"first", "second"}


async def test_error_of_the_body_passes_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with OpenAIPolicy("http://127.0.0.1:9/v1", "m"), BatchedPolicy(lambda _: []):
            raise KeyError("mine")


async def test_pause_waits_for_calls_under_way_and_holds_new_ones_back() -> None:
    go, paused = anyio.Event(), anyio.Event()
    versions: dict[str, int] = {}

    async def one(name: str) -> None:
        versions[name] = (await asked.generate(ask(name))).version

    async def pause() -> None:
        await asked.pause()
        paused.set()

    async with llm_server(script=[Hold(until=go)]) as server, policy(server, version=1) as asked:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one, "before")
                await server.until(lambda: server.in_flight == 1)
                tasks.start_soon(pause)
                await all_tasks_blocked()
                tasks.start_soon(one, "after")
                await all_tasks_blocked()
                assert not paused.is_set()
                go.set()
                await paused.wait()
                assert len(calls(server)) == 1
                await asked.resume(2)
    assert versions == {"before": 1, "after": 2}


async def test_pause_may_stop_calls_which_are_made_again_with_the_new_weights() -> None:
    async with llm_server(script=[Hold()]) as server, policy(server, version=1) as asked:
        answers: list[Any] = []

        async def one() -> None:
            answers.append(await asked.generate(ask()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            await server.until(lambda: server.in_flight == 1)
            await asked.pause("abort")
            await asked.resume(2)
    assert answers[0].version == 2
    assert answers[0].timings.attempts == 1


async def test_pause_holds_back_calls_that_wait_for_a_place() -> None:
    go = anyio.Event()
    async with (
        llm_server(script=[Hold(until=go)]) as server,
        policy(server, concurrency=1, kind="openai") as asked,
        anyio.create_task_group() as tasks,
    ):
        for number in range(3):
            tasks.start_soon(asked.generate, ask(str(number)))
        await server.until(lambda: server.in_flight == 1)
        async with anyio.create_task_group() as pausing:
            pausing.start_soon(asked.pause)
            pausing.start_soon(asked.pause)
            await all_tasks_blocked()
            go.set()
        await all_tasks_blocked()
        assert len(calls(server)) == 1
        await asked.resume()
    assert len(calls(server)) == 3


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("mode", ["wait", "abort", "continue"])
async def test_pause_of_a_server_at_work(kind: Any, mode: Any) -> None:
    go = anyio.Event()
    answers: list[Any] = []

    async def one() -> None:
        answers.append(await asked.generate(ask()))

    async with llm_server(kind=kind, script=[Hold(until=go)]) as server, policy(server, kind=kind) as asked:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one)
                await server.until(lambda: server.in_flight == 1)
                tasks.start_soon(asked.pause, mode)
                await all_tasks_blocked()
                go.set()
                await server.until(lambda: server.paused)
                await asked.resume(1)
    assert answers[0].text == "reply to Hello"
    assert answers[0].version == (1 if mode == "abort" else 0)


async def test_calls_that_the_server_itself_stops_for_new_weights_are_made_again() -> None:
    async with llm_server(kind="vllm", script=[Hold()]) as server, policy(server, kind="vllm") as asked:
        answers: list[Any] = []

        async def one() -> None:
            answers.append(await asked.generate(ask()))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one)
                await server.until(lambda: server.in_flight == 1)
                tasks.start_soon(asked.pause)
                await all_tasks_blocked()
                async with aiohttp.ClientSession() as client, client.post(f"{server.root}/abort_requests"):
                    await server.until(lambda: server.paused)
                assert not answers
                await asked.resume(1)
    assert (answers[0].finish_reason, answers[0].version) == ("stop", 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_reply_that_a_server_aborts_by_itself_is_asked_for_again(kind: Any) -> None:
    async with llm_server(kind=kind, script=[faults.ABORTED, faults.ABORTED]) as server, policy(server) as asked:
        generation = await asked.generate(ask())
        assert (generation.text, generation.finish_reason) == ("reply to Hello", "stop")
        assert generation.timings.attempts == 3
        assert asked.endpoints[0].up
    async with llm_server(script=lambda *_: faults.ABORTED) as server, policy(server, attempts=2) as asked:
        with pytest.raises(ProviderError, match=r"the server aborted the reply \(after 2 attempts\)"):
            await asked.generate(ask())


@pytest.mark.parametrize("kind", KINDS)
async def test_no_text_with_logprobs_of_another_one_is_malformed(kind: Any) -> None:
    def drop_text(whole: dict[str, Any]) -> None:
        whole["choices"][0]["message"]["content"] = None

    async with llm_server(kind=kind, script=[Edit(drop_text)]) as server, policy(server) as asked:
        with pytest.raises(ProviderError, match="malformed response: its logprobs are those of another text"):
            await asked.generate(ask())
        assert (await asked.generate(ask())).text == "reply to Hello"


@pytest.mark.parametrize(
    ("kind", "pages"),
    [("vllm", ["/pause", "/resume"]), ("sglang", ["/pause_generation", "/continue_generation"])],
)
async def test_servers_that_can_pause_are_notified(kind: Any, pages: list[str]) -> None:
    async with llm_server(kind=kind) as server, policy(server) as asked:
        await asked.generate(ask())
        await asked.pause("wait")
        await asked.resume()
        assert [request.path for request in server.requests if request.path in pages] == pages


async def test_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    async with llm_server(script=[Answer(401, "no")]) as server, policy(server) as asked:
        with pytest.raises(ProviderError) as caught:
            await asked.generate(ask())
        assert calls(server)[0].headers["Authorization"] == "Bearer sk-canary"
        assert "canary" not in f"{asked!r} {caught.value!r} {caught.value}"


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("localhost:8000", {}, "base_url='localhost:8000'"),
        ([], {}, "base_url="),
        ("http://x/v1", {"mode": "talk"}, "mode='talk'"),
        ("http://x/v1", {"concurrency": 0}, "concurrency=0"),
        ("http://x/v1", {"on_back": "push"}, "on_back='push'"),
    ],
)
def test_wrong_options(url: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        OpenAIPolicy(url, "m", **options)


async def test_closing_with_a_lost_server_and_nobody_waiting() -> None:
    async with OpenAIPolicy("http://127.0.0.1:9/v1", "m", attempts=1) as asked:
        with pytest.raises(ProviderError, match="after 1 attempts"):
            await asked.generate(ask())


async def test_closed_policy_says_so() -> None:
    asked = OpenAIPolicy("http://127.0.0.1:9/v1", "m")
    with pytest.raises(ClosedError, match="async with"):
        await asked.generate(ask())


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.slow)])
async def test_random_cancellations_leave_a_policy_that_serves(rounds: int) -> None:
    """Fifty calls a round, each given up after a random number of steps of the loop."""
    rng = np.random.default_rng(5)

    async def give_up(scope: anyio.CancelScope, steps: int) -> None:
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    async def one(steps: int) -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(give_up, scope, steps)
                await asked.generate(ask())

    async with llm_server() as server, policy(server, concurrency=20) as asked:
        for _ in range(rounds):
            async with anyio.create_task_group() as tasks:
                for steps in rng.integers(40, size=50):
                    tasks.start_soon(one, int(steps))
        assert asked.endpoints[0].load == 0
        answers = await ask_all(asked, [ask(str(number)) for number in range(50)])
        assert [answer.text for answer in answers] == [f"reply to {number}" for number in range(50)]
        await server.until(lambda: server.in_flight == 0)
