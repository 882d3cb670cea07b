"""How many calls an endpoint gets, and what is done about failed ones: pure rules."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout.policies.openai.concurrency_limit import ConcurrencyLimit, work_of
from asyncrollout.policies.openai.refusals import LONGEST_WAIT, backoff, failure_of, read_retry_after
from tests.server_models import MODELS, Model, Simulation, best_fixed, throughput


def grown(limit: ConcurrencyLimit, rounds: int, *, at: float = 0.0, latency: float = 1.0) -> float:
    """Let full rounds of calls succeed; the time at the end."""
    for _ in range(rounds):
        for _ in range(limit.current):
            limit.succeeded(at, at + latency)
        at += latency
    return at


def test_limit_doubles_at_first() -> None:
    limit = ConcurrencyLimit(1_000, start=16)
    grown(limit, 6)
    assert limit.current >= 128


def test_limit_stays_within_its_bounds() -> None:
    limit = ConcurrencyLimit(20, start=4)
    at = grown(limit, 20)
    assert limit.current in (14, 20)  # where fewer are tried now and then
    for _ in range(40):
        limit.refused(at, at + 1, None)
        at += 2
    assert limit.current == 1


def test_refusals_of_one_round_cut_once() -> None:
    limit = ConcurrencyLimit(1_000, start=64)
    for _ in range(10):
        limit.refused(0.0, 1.0, None)
    assert limit.current == 32
    limit.refused(1.0, 2.0, None)
    assert limit.current == 16


def test_calls_from_before_a_cut_do_not_grow_it() -> None:
    limit = ConcurrencyLimit(1_000, start=16)
    limit.refused(0.0, 1.0, None)
    for _ in range(100):
        limit.succeeded(0.5, 1.5)
    assert limit.current == 8


def test_growth_that_more_calls_do_not_pay_for_is_taken_back() -> None:
    limit = ConcurrencyLimit(10_000, start=16)
    at = grown(limit, 1)
    reached = limit.current
    assert reached == 32
    for _ in range(20):
        for _ in range(limit.current):
            limit.succeeded(at, at + limit.current / 16)  # as many per second as sixteen
        at += limit.current / 16
    assert max(size for _, size in limit.history) == 32


def test_limit_doubles_again_after_a_refusal() -> None:
    limit = ConcurrencyLimit(10_000, start=16)
    limit.refused(0.0, 1.0, None)
    grown(limit, 20, at=2.0)
    assert limit.current >= 128


def test_refusal_by_chance_costs_a_good_limit_nothing() -> None:
    limit = ConcurrencyLimit(10_000, start=16)
    at = grown(limit, 5)
    before = limit.current
    limit.refused(at, at, None)
    assert limit.current == before
    limit.refused(at, at, None)
    assert limit.current < before


def test_server_errors_pause_the_growth_for_a_while_only() -> None:
    limit = ConcurrencyLimit(1_000, start=8)
    limit.failed(10.0)
    grown(limit, 3, at=10.0, latency=0.1)
    assert limit.current == 8
    grown(limit, 4, at=13.0, latency=0.1)
    assert limit.current > 16


def test_errors_now_and_then_do_not_end_the_growth() -> None:
    limit, at = ConcurrencyLimit(1_000, start=8), 0.0
    for _ in range(30):
        at = grown(limit, 1, at=at)
        limit.failed(at)
    assert limit.current > 256


def test_fixed_limit_stays() -> None:
    limit = ConcurrencyLimit(7, adaptive=False)
    grown(limit, 3)
    limit.refused(5.0, 6.0, 3.0)
    assert limit.current == 7
    assert limit.not_before == 9.0


def test_refusals_lower_what_a_fixed_limit_allows_for_a_while() -> None:
    limit = ConcurrencyLimit(128, adaptive=False)
    for _ in range(96):
        limit.refused(0.0, 0.01, None)
    assert limit.current == 128
    at = limit.not_before
    assert limit.admit(0, at)
    for number in range(400):
        limit.succeeded(at + number, at + number + 1)
    assert limit.slots == 128


def test_line_is_paused_as_a_whole_then_tried_by_one_call_and_opened_slowly() -> None:
    limit = ConcurrencyLimit(128, adaptive=False)
    for _ in range(96):
        limit.refused(0.0, 1.0, None)
    resumes = limit.not_before
    assert resumes == 1.25  # one pause for all
    assert not limit.admit(32, 1.2)
    assert [limit.admit(32 + number, resumes) for number in range(3)] == [True, False, False]
    limit.succeeded(0.5, 2.0)  # begun before: its place is free again, and no more
    assert not limit.admit(33, 2.0)
    limit.succeeded(resumes, 2.0)
    assert [limit.admit(33 + number, 2.0) for number in range(3)] == [True, False, False]


def test_refused_trial_of_the_line_doubles_its_pause() -> None:
    limit, at, pauses = ConcurrencyLimit(128, adaptive=False), 0.0, []
    for number in range(9):
        assert limit.admit(0, at)
        assert limit.refused(at, at, None) == (number > 0)
        pauses.append(limit.not_before - at)
        at = limit.not_before
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
    limit.admit(0, at)
    limit.succeeded(at, at + 1)
    limit.refused(at + 1, at + 1, None)
    assert limit.not_before == at + 1.25


@pytest.mark.parametrize(("wait", "least"), [(0.0, 0.25), (0.1, 0.25), (30.0, 30.0)])
def test_pause_is_at_least_what_the_server_says_and_never_none(wait: float, least: float) -> None:
    limit = ConcurrencyLimit(128)
    limit.refused(0.0, 0.0, wait)
    assert limit.not_before == least
    for _ in range(20):
        at = limit.not_before
        assert limit.admit(0, at)
        limit.refused(at, at, 0.0)
        assert 0.25 <= limit.not_before - at <= 1.0


def test_history_tells_every_change() -> None:
    limit = ConcurrencyLimit(1_000, start=4)
    limit.refused(1.0, 2.0, None)
    limit.refused(2.0, 3.0, None)
    assert list(limit.history) == [(2.0, 2.0), (3.0, 1.0)]


@given(
    st.lists(
        st.tuples(st.sampled_from(["succeeded", "refused", "failed"]), st.floats(0, 100), st.floats(0, 10)),
        max_size=200,
    )
)
def test_limit_is_always_a_sensible_number(events: list[tuple[str, float, float]]) -> None:
    limit = ConcurrencyLimit(64)
    for kind, began, took in events:
        if kind == "succeeded":
            limit.succeeded(began, began + took)
        elif kind == "refused":
            limit.refused(began, began + took, took)
        else:
            limit.failed(began)
        assert 1 <= limit.current <= 64


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "permanent"), (401, "permanent"), (404, "permanent"), (429, "refused"), (500, "passing"), (503, "passing")],
)
def test_kind_of_a_failure(status: int, kind: str) -> None:
    assert failure_of(status) == kind


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        (" 0.5 ", 0.5),
        ("-5", 0.0),
        ("999999999", LONGEST_WAIT),
        ("Thu, 01 Jan 1970 00:01:50 GMT", 10.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        (None, None),
        ("9" * 5_000, None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert read_retry_after(value, now=100.0) == seconds


@given(st.text())
def test_no_retry_after_raises(value: str) -> None:
    seconds = read_retry_after(value, now=100.0)
    assert seconds is None or 0 <= seconds <= LONGEST_WAIT


def test_backoff_doubles_and_is_bounded() -> None:
    rng = np.random.default_rng(0)
    waits = [[backoff(attempt, rng) for _ in range(200)] for attempt in range(1, 12)]
    for attempt, drawn in enumerate(waits, start=1):
        longest = min(0.25 * 2 ** (attempt - 1), LONGEST_WAIT)
        assert longest / 2 <= min(drawn) < max(drawn) <= longest


def serve(
    limit: ConcurrencyLimit,
    *,
    slots: int,
    rounds: int,
    callers: int = 10_000,
    tokens: Callable[[int], int] = lambda _: 1,
) -> None:
    """A server that does `slots` calls at a time, in as many seconds as they have tokens; the others wait."""
    now = 0.0
    for number in range(rounds):
        flying = min(limit.current, callers)
        work = tokens(number)
        latency = work * max(flying / slots, 1.0)
        for _ in range(flying):
            limit.succeeded(now, now + latency, work=work, in_flight=flying)
        now += latency


def test_limit_stops_where_more_calls_only_wait() -> None:
    limit = ConcurrencyLimit(4096, start=1)
    serve(limit, slots=8, rounds=200)
    assert 8 <= limit.current <= 32


def test_limit_does_not_mind_longer_replies() -> None:
    limit = ConcurrencyLimit(4096, start=1)
    serve(limit, slots=1_000, rounds=30, tokens=lambda number: 10 * (number + 1))
    assert limit.current >= 700


def test_limit_does_not_grow_while_nobody_needs_it() -> None:
    limit = ConcurrencyLimit(4096, start=16)
    serve(limit, slots=1_000, rounds=500, callers=4)
    assert limit.current == 16


def test_prompts_count_as_work() -> None:
    assert work_of(0, 100) < work_of(1_000, 100) < work_of(0, 1_100)


QUICK_MODELS = {
    "8 slots, the rest queues": 8,
    "200 slots, the rest queues": 300,
    "batching, 256 at once": 256,
    "thrashing beyond 100": 100,
    "429 above 32 in flight": 32,
    "429 above 32 in flight, Retry-After 1": 32,
    "429 above 20 a second": 64,
    "64 slots, 256 from half-time on": 256,
    "429 above 256 in flight, then above 64": 256,
    "short and long calls": 300,
}


@pytest.mark.parametrize("name", QUICK_MODELS)
def test_adaptive_limit_does_nine_tenths_of_the_work_of_a_good_fixed_one(name: str) -> None:
    (model,) = (model for model in MODELS if model.name == name)
    assert throughput(model).work >= 0.9 * throughput(model, QUICK_MODELS[name]).work


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_adaptive_limit_does_nine_tenths_of_the_work_of_the_best_fixed_one(model: Model) -> None:
    _, best = best_fixed(model)
    for seed in range(3):
        assert throughput(model, seed=seed).work >= 0.9 * best


@pytest.mark.parametrize("name", ["20 quick calls first", "one 429 at the first call", "a 503 in a hundred calls"])
def test_what_happens_at_first_does_not_hold_the_limit_down(name: str) -> None:
    (model,) = (replace(model, seconds=60.0) for model in MODELS if model.name == name)
    limit = ConcurrencyLimit(4096)
    Simulation(model, limit).run()
    assert limit.current >= 250


def test_limit_can_be_bounded_later() -> None:
    adaptive, fixed = ConcurrencyLimit(100, start=16), ConcurrencyLimit(100, adaptive=False)
    assert adaptive.bound(8)
    assert adaptive.current == 8
    assert not fixed.bound(8)
    assert fixed.current == 100
