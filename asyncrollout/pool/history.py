"""What was done with an env since its last reset: enough to bring another env to the same state."""

from typing import Any

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.pool import wire
from asyncrollout.pool.hosted import Called, Past

_FORMAT = 1


class History:
    """The log of one episode. Calls made while no episode runs are setup: they are repeated before every reset."""

    def __init__(self) -> None:
        self.seed: int | None = None
        self.task: Any = None
        self.member = 0
        self.running = False
        self.episode = -1  # counts those that were begun
        self._turns_before = 0  # those that a snapshot stands for
        self._setup: dict[bytes, Called] = {}
        self._state: bytes | None = None
        self._done: list[Any] = []
        self._digests: list[int | None] = []

    @property
    def turn(self) -> int:
        """The steps so far."""
        return self._turns_before + sum(type(entry) is not Called for entry in self._done)

    @property
    def length(self) -> int:
        """How much there is to replay."""
        return len(self._done)

    @property
    def setup(self) -> list[Called]:
        return list(self._setup.values())

    def end(self, next_seed: int) -> None:
        """The episode is over, and the next one is about to be tried."""
        self.seed, self._turns_before, self._done, self.running = next_seed, 0, [], False
        self.episode += 1

    def begin(self, seed: int, task: Any, member: int, digest: int | None) -> None:
        self.seed, self.task, self.member, self._state, self.running = seed, task, member, None, True
        self._done, self._digests = [], [digest]

    def add_step(self, action: Any, digest: int | None) -> None:
        self._done.append(action)
        self._digests.append(digest)

    def add_call(self, called: Called) -> None:
        self._done.append(wire.detach(called))
        self._digests.append(None)

    def add_setup(self, called: Called) -> None:
        key = wire.encode([called.method, called.args, called.kwargs])
        self._setup.pop(key, None)  # said again, it counts where it was said last
        self._setup[key] = wire.detach(called)

    def rebase(self, state: bytes) -> None:
        """From here on, a snapshot stands for all that was done before."""
        self._turns_before = self.turn
        self._state, self._done, self._digests = state, [], []

    def past(self, final: int | None = None) -> Past | None:
        """The way back, if there is anything to go back to; `final` is the last digest where none were taken."""
        if not self.running:
            return self.setup_alone()
        digests = list(self._digests)
        if final is not None and digests and digests[-1] is None:
            digests[-1] = final
        return self._past(self._state, list(self._done), digests, self._turns_before)

    def past_by_snapshot(self, state: bytes) -> Past:
        return self._past(state, [], [], self.turn)

    def _past(self, state: bytes | None, done: list[Any], digests: list[int | None], turns: int) -> Past:
        return Past(
            self.setup, self.seed, self.task, state, done, digests, turns, member=self.member, episode=self.episode
        )

    def setup_alone(self) -> Past | None:
        return Past(self.setup, None, None, None, [], []) if self._setup else None

    def adopt(self, past: Past) -> None:
        """Go on from where another env's history ends."""
        self.seed, self.task, self.member = past.seed, past.task, past.member
        self._state, self.running = past.state, True
        self._done, self._digests = list(past.done), list(past.digests)
        self._turns_before = past.turns
        self._setup = {}
        for called in past.setup:
            self.add_setup(called)


def dump_past(env: str, past: Past, outcome: tuple[Any, ...]) -> bytes:
    """A snapshot that can be kept in a file: no pickles, so that loading it runs nobody's code."""
    done = [[1, _fields(entry)] if isinstance(entry, Called) else [0, entry] for entry in past.done]
    setup = [_fields(called) for called in past.setup]
    start = [past.seed, past.task, past.member]
    record = [_FORMAT, env, setup, start, past.state, past.turns, done, past.digests, list(outcome)]
    try:
        return wire.encode_exact(record)
    except wire.INEXACT as error:
        raise UsageError(f"env {env!r}: its task, actions or observations have no safe file form: {error}") from error


def load_past(env: str, snapshot: bytes) -> tuple[Past, tuple[Any, ...]]:
    try:
        record = wire.Unpacker(trusted=False).decode(snapshot)
        version, name, setup, (seed, task, member), state, turns, done, digests, outcome = record
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"env {env!r}: this is no snapshot of ours: {error}") from error
    if version != _FORMAT or name != env:
        raise UsageError(f"env {env!r}: this snapshot is of env {name!r}, format {version}")
    entries = [Called(*entry) if called else entry for called, entry in done]
    calls = [Called(*called) for called in setup]
    past = Past(calls, seed, task, state, entries, digests, turns, trusted=False, member=member)
    return past, tuple(outcome)


def _fields(called: Called) -> list[Any]:
    return [called.method, called.args, called.kwargs]
