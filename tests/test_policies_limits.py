"""How many calls an endpoint gets, and what is done about failed ones: pure rules."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout.policies.limits import Limit
from asyncrollout.policies.retries import LONGEST_WAIT, backoff, failure_of, read_retry_after


def grown(limit: Limit, rounds: int, *, at: float = 0.0, latency: float = 1.0) -> float:
    """Let full rounds of calls succeed; the time at the end."""
    for _ in range(rounds):
        for _ in range(limit.now):
            limit.succeeded(at, at + latency)
        at += latency
    return at


def test_limit_doubles_at_first() -> None:
    limit = Limit(1_000, start=4)
    grown(limit, 3)
    assert limit.now == 32


def test_limit_stays_within_its_bounds() -> None:
    limit = Limit(20, start=4)
    at = grown(limit, 10)
    assert limit.now == 20
    for _ in range(20):
        limit.refused(at, at + 1, None)
        at += 2
    assert limit.now == 1


def test_refusals_of_one_round_cut_once() -> None:
    limit = Limit(1_000, start=16)
    at = grown(limit, 2)
    before = limit.now
    for _ in range(10):
        limit.refused(at, at + 1, None)
    assert limit.now == before // 2
    limit.refused(at + 1, at + 2, None)
    assert limit.now == before // 4


def test_after_a_cut_it_grows_by_one_a_round() -> None:
    limit = Limit(1_000, start=16)
    limit.refused(0.0, 1.0, None)
    assert limit.now == 8
    grown(limit, 3, at=2.0)
    assert limit.now in (10, 11)


def test_calls_from_before_a_cut_do_not_grow_it() -> None:
    limit = Limit(1_000, start=16)
    limit.refused(0.0, 1.0, None)
    for _ in range(100):
        limit.succeeded(0.5, 1.5)
    assert limit.now == 8


def test_latency_that_rises_ends_the_growth() -> None:
    limit = Limit(10_000, start=8)
    at = grown(limit, 2)
    reached = limit.now
    for _ in range(50):
        limit.succeeded(at, at + 10)
    assert limit.now <= reached + 2


def test_server_errors_pause_the_growth() -> None:
    limit = Limit(1_000, start=8)
    limit.failed(10.0)
    limit.succeeded(10.0, 11.0)
    assert limit.now == 8
    grown(limit, 2, at=13.0)
    assert limit.now == 9


def test_fixed_limit_stays() -> None:
    limit = Limit(7, adaptive=False)
    grown(limit, 3)
    limit.refused(5.0, 6.0, 3.0)
    assert limit.now == 7
    assert limit.not_before == 9.0


def test_history_tells_every_change() -> None:
    limit = Limit(1_000, start=2)
    limit.succeeded(0.0, 1.0)
    limit.refused(1.0, 2.0, None)
    assert list(limit.history) == [(1.0, 3.0), (2.0, 1.5)]


@given(
    st.lists(
        st.tuples(st.sampled_from(["succeeded", "refused", "failed"]), st.floats(0, 100), st.floats(0, 10)),
        max_size=200,
    )
)
def test_limit_is_always_a_sensible_number(events: list[tuple[str, float, float]]) -> None:
    limit = Limit(64)
    for kind, began, took in events:
        if kind == "succeeded":
            limit.succeeded(began, began + took)
        elif kind == "refused":
            limit.refused(began, began + took, took)
        else:
            limit.failed(began)
        assert 1 <= limit.now <= 64


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
    limit: Limit, *, slots: int, rounds: int, callers: int = 10_000, tokens: Callable[[int], int] = lambda _: 1
) -> None:
    """A server that does `slots` calls at a time, in as many seconds as they have tokens; the others wait."""
    now = 0.0
    for number in range(rounds):
        flying = min(limit.now, callers)
        work = tokens(number)
        latency = work * max(flying / slots, 1.0)
        for _ in range(flying):
            limit.succeeded(now, now + latency, work=work, is_full=2 * flying >= limit.now)
        now += latency


def test_limit_stops_where_more_calls_only_wait() -> None:
    limit = Limit(4096, start=1)
    serve(limit, slots=8, rounds=200)
    assert 8 <= limit.now <= 32


def test_limit_does_not_mind_longer_replies() -> None:
    limit = Limit(4096, start=1)
    serve(limit, slots=1_000, rounds=12, tokens=lambda number: 10 * (number + 1))
    assert limit.now >= 1_000


def test_limit_does_not_grow_while_nobody_needs_it() -> None:
    limit = Limit(4096, start=16)
    serve(limit, slots=1_000, rounds=500, callers=4)
    assert limit.now == 16


def test_limit_comes_back_slowly_to_where_it_was_refused() -> None:
    limit = Limit(4096, start=64)
    limit.refused(0.0, 1.0, None)
    assert limit.now == 32
    now = 1.0
    for _ in range(40):
        for _ in range(limit.now):
            limit.succeeded(now, now + 0.1)
        now += 0.1
    assert 57 <= limit.now < 64


def test_limit_can_be_bounded_later() -> None:
    adaptive, fixed = Limit(100, start=16), Limit(100, adaptive=False)
    assert adaptive.bound(8)
    assert adaptive.now == 8
    assert not fixed.bound(8)
    assert fixed.now == 100
