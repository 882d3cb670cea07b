"""Models of LLM servers in virtual time, which drive the very `ConcurrencyLimit` that real calls go by.

Every server computes at most `slots` calls at once, each at `base + per_call * n` seconds per token if there are n,
and queues the rest, or refuses them. Callers are many: whenever the limit admits a call, there is one.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from asyncrollout.policies.openai.concurrency_limit import ConcurrencyLimit, work_of

_REFUSED_AFTER = 0.005  # seconds; a refusal is quick
_PREFILL = 1 / 40  # tokens of a reply that a token of a prompt costs this server; `work_of` believes something else

Sizes = Callable[[np.random.Generator, int], tuple[float, float]]
"""Tokens of prompt and reply, of the call with this number."""


def lognormal(median: float, sigma: float, prompt: float = 500.0) -> Sizes:
    return lambda rng, _: (prompt, median * math.exp(sigma * rng.standard_normal()))


_USUAL = lognormal(100, 0.5)


def mixed(rng: np.random.Generator, _number: int) -> tuple[float, float]:
    return (500.0, 20.0) if rng.random() < 0.7 else (4_000.0, 600.0)


def growing(rng: np.random.Generator, number: int) -> tuple[float, float]:
    """Prompts grow as episodes go on."""
    return 500.0 + 0.5 * number, 100.0 * math.exp(0.5 * rng.standard_normal())


def cached(rng: np.random.Generator, number: int) -> tuple[float, float]:
    return (0.0, 0.01) if rng.random() < 0.3 else _USUAL(rng, number)


def quick_first(rng: np.random.Generator, number: int) -> tuple[float, float]:
    return (0.0, 0.05) if number < 20 else _USUAL(rng, number)


@dataclass(frozen=True)
class Server:
    slots: float = math.inf
    base: float = 0.02  # seconds per token
    per_call: float = 0.0
    thrashes: float = math.inf  # calls beyond which each costs all others time
    most_in_flight: float = math.inf
    most_per_second: float = math.inf
    retry_after: float | None = None

    def seconds_per_token(self, active: int) -> float:
        pace = self.base + self.per_call * active
        return pace if active <= self.thrashes else pace * (active / self.thrashes) ** 2


@dataclass(frozen=True)
class Model:
    name: str
    phases: tuple[tuple[float, Server], ...]
    sizes: Sizes = _USUAL
    noise: float = 0.2  # sigma of what a call takes beyond its tokens
    faults: Callable[[int], int] = lambda _: 0  # by the call's number: the status that it gets, whatever the load
    seconds: float = 600.0


@dataclass
class Outcome:
    work: float = 0.0
    answers: int = 0
    refusals: int = 0
    highest: int = 0
    limits: list[float] = field(default_factory=list)


@dataclass(order=True)
class _Call:
    ends_at: float  # on the clock of tokens
    number: int
    began: float = field(compare=False, default=0.0)
    cost: float = field(compare=False, default=0.0)
    work: float = field(compare=False, default=0.0)


class Simulation:
    """One server under one limit."""

    def __init__(self, model: Model, limit: ConcurrencyLimit, seed: int = 0) -> None:
        self.outcome = Outcome()
        self._model, self._limit = model, limit
        self._rng = np.random.default_rng(seed)
        self._now = 0.0
        self._tokens = 0.0  # that each active call has had computed since the beginning
        self._server = model.phases[0][1]
        self._changes = deque(model.phases[1:])
        self._active: list[_Call] = []
        self._queue: deque[_Call] = deque()
        self._refused: list[tuple[float, int, float, int]] = []
        self._in_flight = 0
        self._numbers = count()
        self._budget = 1.0
        self._budget_at = 0.0

    def run(self) -> Outcome:
        self._dispatch()
        while self._now < self._model.seconds:
            finish = self._next_finish()
            refusal = self._refused[0][0] if self._refused else math.inf
            change = self._changes[0][0] if self._changes else math.inf
            wake = self._limit.not_before if self._limit.not_before > self._now else math.inf
            at = min(finish, refusal, change, wake)
            if at > self._model.seconds:
                break
            self._advance(at)
            if at == finish:
                self._finish()
            elif at == refusal:
                _, _, began, status = heapq.heappop(self._refused)
                self._in_flight -= 1
                self.outcome.refusals += 1
                if status == 429:
                    self._limit.refused(began, at, self._server.retry_after)
                else:
                    self._limit.failed(at)
            elif at == change:
                self._server = self._changes.popleft()[1]
                self._fill()
            self._dispatch()
        return self.outcome

    def _next_finish(self) -> float:
        if not self._active:
            return math.inf
        left = max(self._active[0].ends_at - self._tokens, 0.0)
        return self._now + left * self._server.seconds_per_token(len(self._active))

    def _advance(self, at: float) -> None:
        if self._active:
            self._tokens += (at - self._now) / self._server.seconds_per_token(len(self._active))
        self._now = at

    def _finish(self) -> None:
        call = heapq.heappop(self._active)
        self._tokens = max(self._tokens, call.ends_at)
        self._limit.succeeded(call.began, self._now, work=call.work, in_flight=self._in_flight)
        self._in_flight -= 1
        self.outcome.work += call.cost
        self.outcome.answers += 1
        self._fill()

    def _fill(self) -> None:
        while self._queue and len(self._active) < self._server.slots:
            self._activate(self._queue.popleft())

    def _activate(self, call: _Call) -> None:
        noise = math.exp(self._model.noise * self._rng.standard_normal()) if self._model.noise else 1.0
        call.ends_at = self._tokens + call.cost * noise
        heapq.heappush(self._active, call)

    def _dispatch(self) -> None:
        while self._limit.admit(self._in_flight, self._now):
            self._in_flight += 1
            self.outcome.highest = max(self.outcome.highest, self._in_flight)
            number = next(self._numbers)
            status = self._model.faults(number) or (429 if self._is_refused() else 0)
            if status:
                heapq.heappush(self._refused, (self._now + _REFUSED_AFTER, number, self._now, status))
                continue
            prompt, reply = self._model.sizes(self._rng, number)
            call = _Call(0.0, number, self._now, reply + prompt * _PREFILL, work_of(prompt, reply))
            if len(self._active) < self._server.slots:
                self._activate(call)
            else:
                self._queue.append(call)

    def _is_refused(self) -> bool:
        server = self._server
        if len(self._active) + len(self._queue) >= server.most_in_flight:
            return True
        if server.most_per_second < math.inf:
            rate = server.most_per_second
            self._budget = min(self._budget + (self._now - self._budget_at) * rate, rate)
            self._budget_at = self._now
            if self._budget < 1.0:
                return True
            self._budget -= 1.0
        return False


def always(server: Server) -> tuple[tuple[float, Server], ...]:
    return ((0.0, server),)


def _then(first: Server, second: Server) -> tuple[tuple[float, Server], ...]:
    return (0.0, first), (300.0, second)


def _slots(slots: int) -> Server:
    return Server(slots=slots)


def _refuses(above: int, retry_after: float | None = None) -> Server:
    return Server(most_in_flight=above, retry_after=retry_after)


_BATCHING = Server(base=0.01, per_call=0.0002)
_WARM = Server(slots=256)

MODELS = [
    Model("8 slots, the rest queues", always(_slots(8)), seconds=1_200),
    Model("200 slots, the rest queues", always(_slots(200))),
    Model("1,000 slots, the rest queues", always(_slots(1_000)), seconds=300),
    Model("200 slots, times hardly explained by tokens", always(_slots(200)), noise=0.8),
    Model("batching: throughput saturates", always(_BATCHING)),
    Model("batching, 256 at once", always(replace(_BATCHING, slots=256))),
    Model("thrashing beyond 100", always(Server(base=0.01, per_call=0.0002, thrashes=100))),
    Model("429 above 32 in flight", always(_refuses(32))),
    Model("429 above 300 in flight", always(_refuses(300))),
    Model("429 above 32 in flight, Retry-After 1", always(_refuses(32, 1.0))),
    Model("429 above 20 a second", always(Server(most_per_second=20))),
    Model("429 above 20 a second, Retry-After 1", always(Server(most_per_second=20, retry_after=1.0))),
    Model("64 slots, 256 from half-time on", _then(_slots(64), _slots(256))),
    Model("256 slots, 64 from half-time on", _then(_slots(256), _slots(64))),
    Model("429 above 256 in flight, then above 64", _then(_refuses(256), _refuses(64))),
    Model("429 above 64 in flight, then above 256", _then(_refuses(64), _refuses(256))),
    Model("a second tenant for a third of the time", ((0.0, _slots(128)), (200.0, _slots(64)), (400.0, _slots(128)))),
    Model("a slow first minute", ((0.0, replace(_WARM, base=0.1)), (30.0, replace(_WARM, base=0.05)), (60.0, _WARM))),
    Model("20 quick calls first", always(_slots(400)), quick_first),
    Model("one 429 at the first call", always(_slots(400)), faults=lambda number: 429 if number == 0 else 0),
    Model("a 429 in a thousand calls", always(_slots(400)), faults=lambda number: 429 if number % 1_000 == 999 else 0),
    Model("a 503 in a hundred calls", always(_slots(400)), faults=lambda number: 503 if number % 100 == 99 else 0),
    Model("short and long calls", always(_slots(200)), mixed),
    Model("short and long calls, batching", always(_BATCHING), mixed, seconds=3_000),
    Model("prompts that grow", always(_slots(200)), growing),
    Model("3 of 10 replies from a cache, at once", always(_slots(200)), cached),
]

FIXED = [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 80, 100, 128, 160, 200, 256, 300, 400, 512, 1024, 2048, 4096]


def throughput(model: Model, fixed: int | None = None, seed: int = 0) -> Outcome:
    """Of the adaptive limit, or of a fixed one."""
    return Simulation(
        model, ConcurrencyLimit(4096) if fixed is None else ConcurrencyLimit(fixed, adaptive=False), seed
    ).run()


def best_fixed(model: Model, candidates: list[int] = FIXED) -> tuple[int, float]:
    """The limit under which most work gets done, and how much."""
    done = {fixed: throughput(model, fixed).work for fixed in candidates}
    best = max(done, key=lambda fixed: done[fixed])
    return best, done[best]
