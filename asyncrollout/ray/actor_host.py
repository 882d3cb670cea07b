"""The pool's end of a worker whose page it cannot map: what its actor reports stands for the page."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import msgspec

from asyncrollout.pool.hosts import HostLost
from asyncrollout.pool.process.observed_time import CpuUsage
from asyncrollout.pool.process.worker_host import WorkerHost
from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.status_page import MOST_WITHDRAWN
from asyncrollout.ray import orders


class ReportedPage:
    """What a worker is at, as last reported; starts of calls are by the clock of this machine."""

    def __init__(self) -> None:
        self.report: orders.WorkerReport | None = None
        self.offset = 0.0  # of this clock from that of the worker's node
        self.send: Callable[[orders.Told], None] = _drop
        self._withdrawn = 0

    def running(self) -> list[tuple[int, float]]:
        report = self.report
        return [] if report is None else [(call, start + self.offset) for call, start in report.running]

    def main_call(self) -> tuple[int, float]:
        if self.report is None:
            return 0, 0.0
        call, start = self.report.main
        return call, start + self.offset

    def last_begun(self) -> int:
        return 0 if self.report is None else self.report.begun

    @property
    def room(self) -> int:
        return max(MOST_WITHDRAWN - self._withdrawn, 0)

    def withdraw(self, call_ids: list[int]) -> None:
        if call_ids:
            self._withdrawn += len(call_ids)
            self.send(orders.Withdraw(call_ids))

    def withdraw_all(self) -> None:
        self.send(orders.WithdrawAll())

    def forget_withdrawn(self) -> None:
        self._withdrawn = 0
        self.send(orders.ForgetWithdrawn())


def _drop(_message: orders.Told) -> None:
    """The connection is closed, or not yet made."""


class ActorHost(WorkerHost):
    """The host of a worker below an actor. A call that is withdrawn is given up once the actor has looked."""

    def __init__(self, *args: Any, reported: ReportedPage, node: str, **kwargs: Any) -> None:
        super().__init__(*args, page=reported, **kwargs)
        self.node = node
        self._reported = reported
        self._reasons: dict[int, str] = {}  # of withdrawals that the actor has not answered

    def withdraw(self, call_ids: list[int], reason: str = "moved") -> None:
        self._reasons.update(dict.fromkeys(self._have_skipped(call_ids), reason))

    def give_up_withdrawn(self, not_begun: list[int]) -> None:
        """The worker will skip these calls."""
        reasons = {call: self._reasons.pop(call, "moved") for call in not_begun}
        self.give_up([call for call in not_begun if call in self.pending], lambda call: HostLost(reasons[call]))
        self._reasons = {call: reason for call, reason in self._reasons.items() if call in self.pending}

    def usage(self) -> CpuUsage:
        report = self._reported.report
        return CpuUsage("?", 0.0) if report is None else CpuUsage(report.state, report.cpu)

    def resident_bytes(self) -> int:
        report = self._reported.report
        return 0 if report is None else report.memory


class ActorLink(asyncio.Protocol):
    """The connection to the actor that watches a worker; `heard` is when it last said something."""

    def __init__(self, page: ReportedPage, on_said: Callable[[orders.Said], None]) -> None:
        self.node: str | None = None
        self.heard = time.monotonic()
        self._page = page
        self._on_said = on_said
        self._frames = codec.FrameReader()
        self._transport: asyncio.Transport | None = None
        page.send = self.send

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class, of the same shape

    def data_received(self, data: bytes) -> None:
        self.heard = time.monotonic()
        try:
            messages = [orders.read_said(frame) for frame in self._frames.feed(data)]
        except msgspec.MsgspecError:  # not of ours, or of another version
            self.close()
            return
        for message in messages:
            if isinstance(message, orders.ActorHello):
                self.node, self._page.offset = message.node, self.heard - message.now
            elif isinstance(message, orders.WorkerReport):
                self._page.report = message
            self._on_said(message)

    def send(self, message: orders.Told) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(orders.to_frame(message))

    def close(self) -> None:
        self._page.send = _drop
        if self._transport is not None:
            self._transport.abort()
