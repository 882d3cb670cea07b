"""Servers that refuse calls: others take over, nobody waits in vain, and nobody is overtaken for long."""

import math
import time
from collections import Counter
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from structlog.testing import capture_logs

from asyncrollout import OpenAIPolicy, ProviderError
from asyncrollout.policies.holding import HeldTime, rollout_clock
from asyncrollout.policies.openai.concurrency_limit import ConcurrencyLimit
from asyncrollout.policies.openai.endpoint import Endpoint
from asyncrollout.policies.openai.routing import QueuedRequest, RequestQueue, Router
from tests.llm_faults import Answer, Hold
from tests.llm_server import llm_server
from tests.playing import PATIENCE
from tests.scripts.processes import until
from tests.test_policies_openai import ask, ask_all, calls, policy
from tests.waiting import all_tasks_blocked

SESSIONS, TURNS = 64, 4


async def play(asked: OpenAIPolicy, sessions: int = SESSIONS, turns: int = TURNS) -> list[ProviderError]:
    """Sessions of several turns each; the errors."""
    errors: list[ProviderError] = []

    async def session(number: int) -> None:
        try:
            for turn in range(turns):
                await asked.generate(ask(f"{number} {turn}", session=f"s{number}", turn=turn))
        except ProviderError as error:
            errors.append(error)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for number in range(sessions):
                tasks.start_soon(session, number)
    return errors


def logged(events: Any, name: str) -> list[Any]:
    return [event for event in events if event["event"] == name]


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "0"}, {"Retry-After": "0.01"}, {"Retry-After": "60"}], ids=str)
@pytest.mark.parametrize("concurrency", ["adaptive", SESSIONS])
async def test_server_that_refuses_at_once_draws_no_sessions(headers: dict[str, str], concurrency: Any) -> None:
    refusal = Answer(429, headers=headers)
    async with (
        llm_server(script=lambda *_: refusal) as busy,
        llm_server() as idle,
        policy(busy, idle, kind="openai", concurrency=concurrency) as asked,
    ):
        assert await play(asked) == []
        assert len(calls(idle)) == SESSIONS * TURNS
        assert len(calls(busy)) <= SESSIONS


async def test_concurrency_is_that_of_each_server() -> None:
    go = anyio.Event()
    async with (
        llm_server(script=lambda *_: Hold(until=go)) as one,
        llm_server(script=lambda *_: Hold(until=go)) as other,
        policy(one, other, kind="openai", concurrency=3) as asked,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(ask_all, asked, [ask(str(number), session=f"s{number}") for number in range(10)])
        with anyio.fail_after(PATIENCE):
            await one.until(lambda: one.in_flight == 3)
            await other.until(lambda: other.in_flight == 3)
        go.set()
    assert (one.most_in_flight, other.most_in_flight) == (3, 3)


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_server_that_rejects_what_another_answers_is_taken_out(status: int) -> None:
    rejection = Answer(status, "no such model")
    with capture_logs() as events:
        async with (
            llm_server(script=lambda *_: rejection) as wrong,
            llm_server() as right,
            policy(wrong, right, kind="openai") as asked,
        ):
            assert await play(asked) == []
            rejected = len(calls(wrong))
            assert rejected <= SESSIONS
            assert await play(asked, sessions=8) == []
            assert len(calls(wrong)) == rejected
            (warning,) = logged(events, "endpoint_out")
            assert f"HTTP {status}: no such model" in warning["reason"]
            assert warning["endpoint"] == wrong.url


async def test_server_that_was_taken_out_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrollout.policies.openai.health._SUSPENSION", 0.01)
    is_wrong = True
    with capture_logs() as events:
        async with (
            llm_server(script=lambda *_: Answer(404, "not loaded") if is_wrong else None) as first,
            llm_server() as other,
            policy(first, other, kind="openai") as asked,
        ):
            with anyio.fail_after(PATIENCE):
                while not logged(events, "endpoint_out"):
                    await asked.generate(ask())
                is_wrong = False
                while not logged(events, "endpoint_back"):
                    await asked.generate(ask())
            assert len(logged(events, "endpoint_out")) == 1
            assert any(request.status == 200 for request in calls(first))


async def test_call_that_all_servers_reject_fails_and_takes_none_out() -> None:
    def reject(_number: int, body: Any) -> Answer | None:
        return Answer(403, "forbidden words") if "bad" in body["messages"][-1]["content"] else None

    with capture_logs() as events:
        async with (
            llm_server(script=reject) as one,
            llm_server(script=reject) as other,
            policy(one, other, kind="openai") as asked,
        ):
            with pytest.raises(
                ProviderError, match=r"HTTP 403: forbidden words.*; .*HTTP 403: forbidden words"
            ) as caught:
                await asked.generate(ask("bad"))
            assert one.url in str(caught.value)
            assert other.url in str(caught.value)
            assert await play(asked) == []
            assert all(endpoint.suspended is None for endpoint in asked.endpoints)
    assert not logged(events, "endpoint_out")


async def test_rejection_waits_for_a_server_that_is_lost() -> None:
    """The only other server does not answer: the error tells of both within the attempts."""
    async with llm_server(script=lambda *_: Answer(404, "no such model")) as wrong:
        urls = [wrong.url, "http://127.0.0.1:9/v1"]
        async with OpenAIPolicy(urls, "m", kind="openai", attempts=2) as asked:
            with (
                anyio.fail_after(PATIENCE),
                pytest.raises(ProviderError, match=r"127.0.0.1:9/v1.*after 2 attempts.*no such model"),
            ):
                await asked.generate(ask())


async def test_rejection_does_not_wait_for_a_server_that_was_taken_out() -> None:
    """It might be out for minutes, and has said already why it would not answer."""
    async with (
        llm_server(script=lambda *_: Answer(404, "no such model")) as wrong,
        llm_server(script=[None, Answer(401, "the key has expired")]) as other,
        policy(wrong, other, kind="openai") as asked,
    ):
        await asked.generate(ask())
        assert asked.endpoints[0].suspended is not None
        with (
            anyio.fail_after(PATIENCE),
            pytest.raises(ProviderError, match=r"has expired.*; .*no such model.*suspended"),
        ):
            await asked.generate(ask())


async def test_calls_in_the_line_of_a_server_that_wants_none_go_to_another() -> None:
    go = anyio.Event()
    refusal = Answer(429, headers={"Retry-After": "60"})
    async with (
        llm_server(script=[Hold(until=go, then=refusal)]) as busy,
        llm_server(script=[Hold(until=go)]) as other,
        policy(busy, other, kind="openai", concurrency=1) as asked,
        anyio.create_task_group() as tasks,
    ):
        with anyio.fail_after(PATIENCE):
            for number in range(2):
                tasks.start_soon(asked.generate, ask(f"first {number}", session=str(number)))
                await all_tasks_blocked()
            for number in range(8):  # both are full
                tasks.start_soon(asked.generate, ask(f"then {number}", session=str(number)))
            await all_tasks_blocked()
            assert [endpoint.waiting > 0 for endpoint in asked.endpoints] == [True, True]
            go.set()
            await other.until(lambda: sum(request.status == 200 for request in calls(other)) == 10)
        assert len(calls(busy)) == 1


async def test_server_with_room_takes_calls_from_the_line_of_a_full_one() -> None:
    go = anyio.Event()
    async with (
        llm_server(script=[Hold(until=go)]) as full,
        llm_server() as free,
        policy(full, free, kind="openai", concurrency=1) as asked,
        anyio.create_task_group() as tasks,
    ):
        with anyio.fail_after(PATIENCE):
            tasks.start_soon(asked.generate, ask("first", session="a"))
            await full.until(lambda: full.in_flight == 1)
            for number in range(3):
                await asked.generate(ask(f"then {number}", session="a"))
            go.set()
        assert len(calls(free)) == 3


async def test_server_with_room_takes_calls_as_soon_as_its_trouble_is_over() -> None:
    go = anyio.Event()
    async with (
        llm_server(script=[Answer(500)]) as troubled,
        llm_server(script=[None, Hold(until=go)]) as full,
        policy(troubled, full, kind="openai", concurrency=1) as asked,
        anyio.create_task_group() as tasks,
    ):
        with anyio.fail_after(PATIENCE):
            await asked.generate(ask("first"))
            tasks.start_soon(asked.generate, ask("second"))
            await full.until(lambda: full.in_flight == 1)
            await asked.generate(ask("third"))
            assert full.in_flight == 1
            go.set()
        assert [request.status for request in calls(troubled)] == [500, 200]


async def test_place_that_came_just_before_a_refusal_is_not_used_before_its_time() -> None:
    async with llm_server() as server, policy(server, kind="openai", concurrency=1) as asked:
        (only,) = asked.endpoints
        assert asked._queue.enter_now(only)
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(asked.generate, ask())
                await all_tasks_blocked()
                asked._queue.leave(only)
                assert only.in_flight == 1  # the place is given, and its call does not run yet
                until = time.monotonic() + 0.3
                only.limit.pause(until)
        assert [request.came >= until for request in calls(server)] == [True]
        assert only.load == 0


async def test_call_that_is_refused_whenever_it_comes_does_not_hold_up_the_others() -> None:
    """As one that has more tokens than a minute allows: only its own deadline ends it."""

    def refuse(_: int, body: dict[str, Any]) -> Answer | None:
        return Answer(429, "too large") if "large" in body["messages"][0]["content"] else None

    async with llm_server(script=refuse) as server, policy(server, kind="openai") as asked:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(asked.generate, ask("large"))
                await server.until(lambda: len(calls(server)) == 1)
                answers = await ask_all(asked, [ask(str(number)) for number in range(20)])
                tasks.cancel_scope.cancel()
    assert [answer.text for answer in answers] == [f"reply to {number}" for number in range(20)]


@pytest.mark.parametrize("retry_after", [None, "0.05"])
async def test_nobody_starves_where_the_server_has_fewer_places_than_callers(retry_after: str | None) -> None:
    """As many calls as callers at a time, a quarter of which the server takes: all callers get on alike."""
    callers, turns = 128, 8
    done: Counter[int] = Counter()
    furthest = tried = 0

    async def caller(number: int) -> None:
        nonlocal furthest, tried
        for _ in range(turns):
            generation = await asked.generate(ask(str(number)))
            done[number] += 1
            tried = max(tried, generation.timings.attempts)
            furthest = max(furthest, done[number] - min(done[other] for other in range(callers)))

    async with (
        llm_server(limit=32, retry_after=retry_after, latency=0.002) as server,
        policy(server, kind="openai", concurrency=callers, attempts=3) as asked,
    ):
        with anyio.fail_after(PATIENCE):
            await ask_all(asked, [ask(str(number)) for number in range(callers)])  # all have a connection
            async with anyio.create_task_group() as tasks:
                for number in range(callers):
                    tasks.start_soon(caller, number)
        refused = sum(request.status == 429 for request in calls(server))
    assert furthest <= turns // 2
    assert tried <= 12
    assert refused <= callers * turns


def is_holding(held: HeldTime) -> bool:
    before = time.monotonic()
    return held.last() >= before


async def test_waiting_for_a_refused_place_is_not_charged_to_the_rollout() -> None:
    async with llm_server(script=[Answer(429, headers={"Retry-After": "0.3"})]) as server, policy(server) as asked:
        with rollout_clock() as held:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(asked.generate, ask())
                await until(lambda: calls(server))
                await until(lambda: is_holding(held))
                assert len(calls(server)) == 1
        refused, accepted = calls(server)
        assert accepted.came - refused.came >= 0.3
        assert not is_holding(held)


async def test_a_wait_in_the_queue_ends_with_the_deadline() -> None:
    """Of calls that are made once both servers have refused one, so that no call depends on how quick they are."""
    refusal = Answer(429, "quota exceeded", {"Retry-After": "60"})
    async with (
        llm_server(script=lambda *_: refusal) as one,
        llm_server(script=lambda *_: refusal) as other,
        policy(one, other, kind="openai") as asked,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked.generate, ask("first", seconds=PATIENCE))
            await until(lambda: all(endpoint.last_error for endpoint in asked.endpoints), PATIENCE)
            answers = await ask_all(asked, [ask(str(number), seconds=0.1) for number in range(40)])
            tasks.cancel_scope.cancel()
        assert all("no response within 0.1 s" in str(answer) for answer in answers)
        assert all("quota exceeded" in str(answer) for answer in answers)
        assert (len(calls(one)), len(calls(other))) == (1, 1)
        assert [endpoint.load for endpoint in asked.endpoints] == [0, 0]


def endpoint(name: str, most: int = 10) -> Endpoint:
    return Endpoint(f"http://{name}/v1", ConcurrencyLimit(most, adaptive=False), "openai")


def test_session_is_a_guest_after_one_refusal_and_leaves_after_two() -> None:
    one, other = endpoint("one"), endpoint("other")
    router = Router([one, other])
    assert router.find("s") is one
    one.wait_before = lambda now: 0.5  # type: ignore[method-assign]
    router.note_refusal("s", one)
    assert router.find("s") is other
    assert (one.sessions, other.sessions) == (1, 0)
    router.note_refusal("s", one)
    assert router.find("s") is other
    assert (one.sessions, other.sessions) == (0, 1)


def test_refusals_that_a_success_follows_are_forgotten() -> None:
    one, other = endpoint("one"), endpoint("other")
    router = Router([one, other])
    assert router.find("s") is one
    for _ in range(5):
        router.note_refusal("s", one)
        router.note_success("s", one)
    one.wait_before = lambda now: 0.5  # type: ignore[method-assign]
    assert router.find("s") is other
    assert (one.sessions, other.sessions) == (1, 0)


def test_new_sessions_avoid_servers_in_trouble_or_without_room() -> None:
    one, other = endpoint("one", 2), endpoint("other", 100)
    router = Router([one, other])
    other.in_flight = 50
    assert router.find("a") is one
    one.note_failure(math.inf)
    one.backoff_until = math.inf
    assert router.find("b") is other
    one.note_success()
    one.in_flight = 2
    other.in_flight = 99
    assert router.find("c") is other


@pytest.mark.parametrize("seed", range(20))
async def test_line_keeps_to_its_limits_and_loses_nobody(seed: int) -> None:
    """Random calls, refusals, losses and cancellations against three servers."""
    rng = np.random.default_rng(seed)
    endpoints = [endpoint(str(number), most=int(rng.integers(1, 5))) for number in range(3)]
    router = Router(endpoints)
    line = RequestQueue(endpoints, router)
    served: list[int] = []

    async def call(number: int) -> None:
        with anyio.CancelScope() as scope:
            if rng.random() < 0.3:
                scopes.append(scope)
            found = router.find(str(number % 7))
            assert found is not None
            waiter = QueuedRequest(number, str(number % 7), None, ())
            place = found if line.enter_now(found) else await line.enter(waiter, found)
            try:
                assert all(one.in_flight <= one.limit.current for one in endpoints)
                for _ in range(int(rng.integers(5))):
                    await anyio.lowlevel.checkpoint()
                if rng.random() < 0.2:
                    place.limit.pause(0.0)
                served.append(number)
            finally:
                line.leave(place)

    scopes: list[anyio.CancelScope] = []
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(call, number)
                if rng.random() < 0.2:
                    await anyio.lowlevel.checkpoint()
                if scopes and rng.random() < 0.3:
                    scopes.pop().cancel()
                one = endpoints[int(rng.integers(3))]
                one.up = not one.up if rng.random() < 0.1 else one.up
                line.update_all()
            for one in endpoints:
                one.up = True
            line.update_all()
    assert len(served) >= 200 * 0.7
    assert [one.load for one in endpoints] == [0, 0, 0]
    line.close()


async def test_oldest_call_goes_first_however_late_it_joins_the_line() -> None:
    one = endpoint("one", most=1)
    line = RequestQueue([one], Router([one]))
    assert line.enter_now(one)
    order: list[int] = []

    async def wait(number: int) -> None:
        place = await line.enter(QueuedRequest(number, "", None, ()), one)
        order.append(number)
        line.leave(place)

    async with anyio.create_task_group() as tasks:
        for number in (5, 3, 9, 1):
            tasks.start_soon(wait, number)
        await all_tasks_blocked()
        line.leave(one)
    assert order == [1, 3, 5, 9]
