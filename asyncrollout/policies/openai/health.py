"""Which servers may be asked: those that answer, and that have the weights which they should have."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import aiohttp
import anyio
import anyio.abc

from asyncrollout.concurrency import Background
from asyncrollout.errors import ProviderError
from asyncrollout.logs import get_logger
from asyncrollout.policies.gate import Gate
from asyncrollout.policies.openai.endpoint import Endpoint
from asyncrollout.policies.openai.first_contact import is_healthy

log = get_logger(__name__)

OnBack = Callable[[Endpoint], Awaitable[None]]

_BETWEEN_CHECKS = 0.25  # seconds; after losses in a row, longer
_LONGEST_BETWEEN_CHECKS = 30.0
_CONNECT_SECONDS = 5.0
_OUT, _LONGEST_OUT = 30.0, 600.0  # seconds without calls; longer each time
_MOST_OUTS = 10
_STAGGER = 1.0  # seconds between two lifelines, so that a server which ends silent ones does not end both at a time
_SETTLES = 0.05  # seconds in which the end of a line arrives, if its server was gone before another one was made


class Lifeline:
    """A silent connection: as long as it stands, the server at its other end is the same process."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self._scope = anyio.CancelScope()
        self.stands = True

    async def watch(self) -> None:
        """Until it ends."""
        try:
            with self._scope, suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while True:
                    await self._stream.receive()
        finally:
            self.stands = False
            with anyio.CancelScope(shield=True):
                await self._stream.aclose()

    def end(self) -> None:
        self._scope.cancel()


class Health:
    """Loses servers that do not answer, and brings them back.

    A server that comes back may have been restarted, with the weights that it was started with. So once weights were
    updated, it is asked again only if it is known to be the same process (its `Lifeline` stands), or when it got the
    present weights: by an update that found it healthy from beginning to end, or by `on_back`.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        gate: Gate,
        headers: Mapping[str, str],
        on_back: OnBack | None,
        on_change: Callable[[], None],
    ) -> None:
        self._endpoints = endpoints
        self._gate = gate
        self._headers = headers
        self._on_back = on_back
        self._on_change = on_change
        self._tasks = Background()
        self._client: aiohttp.ClientSession | None = None
        self._had_update = self._is_updating = False
        self._update = 0
        self._lines: dict[Endpoint, list[Lifeline]] = {}
        self._in_doubt = 0
        self._reached: set[Endpoint] = set()  # lost ones that the update under way can reach
        self._reaching: dict[Endpoint, list[Lifeline]] = {}  # to those, since the update began
        self._awaited: set[Endpoint] = set()  # those that are to be started with the present weights
        self._changed = anyio.Event()

    async def open(self, client: aiohttp.ClientSession) -> None:
        self._client = client
        await self._tasks.open()

    async def close(self, error: BaseException | None = None) -> None:
        await self._tasks.close(error)

    @property
    def _may_differ(self) -> bool:
        """Whether a restarted server may have other weights than it should."""
        return self._had_update or self._is_updating

    def lose(self, endpoint: Endpoint) -> None:
        """No answer: others are asked until it is healthy again, and for longer if that did not last."""
        self._reached.discard(endpoint)
        if not endpoint.up:
            return
        endpoint.up = False
        endpoint.context = None  # it may come back with another one
        endpoint.losses += 1
        if self._may_differ and endpoint not in self._awaited:
            endpoint.has_weights = False
        log.warning("endpoint_lost", endpoint=endpoint.name, losses=endpoint.losses)
        self._tasks.start_soon(self._bring_back, endpoint)
        self._on_change()

    def take_out(self, endpoint: Endpoint, said: str) -> None:
        """It refused for good what another server answered: no calls, until one tries again after a while."""
        now = time.monotonic()
        if endpoint.is_out(now):
            return
        seconds = min(_OUT * 2.0**endpoint.outs, _LONGEST_OUT)
        endpoint.limit.pause(now + seconds)
        endpoint.outs = min(endpoint.outs + 1, _MOST_OUTS)
        if endpoint.out is None:
            log.warning("endpoint_out", endpoint=endpoint.name, reason=said, seconds=seconds)
        endpoint.out = said
        self._on_change()

    def is_well(self, endpoint: Endpoint) -> None:
        """It has answered."""
        if endpoint.out is not None and endpoint.wait_before(time.monotonic()) <= 0:
            endpoint.out, endpoint.outs = None, 0
            log.info("endpoint_back", endpoint=endpoint.name)
        endpoint.is_well()

    async def usable(self, endpoints: Sequence[Endpoint]) -> None:
        """Wait until one of them may have the present weights; an error if that cannot be before the next update."""
        while not any(endpoint.has_weights for endpoint in endpoints):
            if self._on_back is None and not any(self._is_same(endpoint) for endpoint in endpoints):
                names = ", ".join(endpoint.name for endpoint in endpoints)
                raise ProviderError(
                    f"{names} did not answer and may have been restarted, with other weights than those of the last "
                    "update: push the present ones in a weight_update, or give OpenAIPolicy an on_back= that does"
                )
            await self._changed.wait()

    async def begin_update(self) -> None:
        """Note which of the lost servers new weights can reach, and from now on which of the others are restarted."""
        self._is_updating = True
        self._let_go()
        self._reached = {endpoint for endpoint in self._endpoints if not endpoint.up}
        await self._keep_healthy()
        async with anyio.create_task_group() as connecting:
            for endpoint in self._reached:
                connecting.start_soon(self._reach, endpoint)
        await self._hold_on_to_all()

    def cancel_update(self) -> None:
        """Weights have not changed; while they never have, a server may be restarted."""
        self._is_updating = False
        self._let_go()
        for endpoint in [] if self._had_update else self._endpoints:
            self._drop_lines(endpoint)
            if not endpoint.has_weights:
                endpoint.has_weights = True
                self._tasks.start_soon(self._bring_back, endpoint)
        self._notify()

    async def start(self) -> None:
        """All servers have other weights from now on; one that has never answered will be started with them."""
        await self.end_update({endpoint for endpoint in self._endpoints if not endpoint.has_answered})

    async def end_update(self, awaited: Iterable[Endpoint] = ()) -> None:
        """All servers have new weights, but for those that are lost and were neither reached nor are `awaited`."""
        self._awaited = set(awaited)
        self._had_update, self._is_updating = True, False
        self._update += 1
        await self._keep_healthy()
        while self._in_doubt:
            await self._changed.wait()
        for endpoint in self._endpoints:
            if endpoint in self._reached and any(line.stands for line in self._reaching.get(endpoint, ())):
                self._adopt(endpoint, self._reaching.pop(endpoint))
                self._take_back(endpoint)
            elif not endpoint.up and endpoint not in self._awaited:
                endpoint.has_weights = False
                self._drop_lines(endpoint)  # it may be the same process, but with old weights
        self._let_go()
        self._notify()
        await self._hold_on_to_all()

    async def _reach(self, endpoint: Endpoint) -> None:
        """Notice if a lost server that new weights can reach is restarted before it is taken back."""
        if (line := await _connect(endpoint)) is not None:
            lines = self._reaching[endpoint] = [line]
            self._tasks.start_soon(self._guard, endpoint, line, lines)

    def _adopt(self, endpoint: Endpoint, lines: list[Lifeline]) -> None:
        self._drop_lines(endpoint)
        self._lines[endpoint] = lines
        self._tasks.start_soon(self._add_second, endpoint, lines)

    def _let_go(self) -> None:
        """Of lost servers that were reached, and not taken back."""
        self._reached.clear()
        for lines in self._reaching.values():
            _end(lines)
        self._reaching.clear()

    async def _hold_on_to_all(self) -> None:
        async with anyio.create_task_group() as connecting:
            for endpoint in self._endpoints:
                if endpoint.up and not self._is_same(endpoint):
                    connecting.start_soon(self._hold_on_to, endpoint)

    async def _keep_healthy(self) -> None:
        async def keep(endpoint: Endpoint) -> None:
            if not await self._is_healthy(endpoint):
                self._reached.discard(endpoint)

        async with anyio.create_task_group() as checking:
            for endpoint in [*self._reached]:
                checking.start_soon(keep, endpoint)

    async def _bring_back(self, endpoint: Endpoint) -> None:
        if endpoint.losses > 1:
            await anyio.sleep(min(_BETWEEN_CHECKS * 2.0**endpoint.losses, _LONGEST_BETWEEN_CHECKS))
        pause = _BETWEEN_CHECKS
        while not endpoint.up:
            if not await self._is_healthy(endpoint):
                await anyio.sleep(_BETWEEN_CHECKS)
            elif self._is_same(endpoint) or (endpoint.has_weights and not self._had_update):
                self._take_back(endpoint)
            elif endpoint.has_weights:  # it was awaited; from now on, a restart is noticed
                await self._hold_on_to(endpoint)
            elif self._on_back is None:
                log.warning("endpoint_waits_for_weights", endpoint=endpoint.name)
                self._notify()
                return  # the next update takes it back
            elif not await self._push(endpoint, self._on_back):
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_BETWEEN_CHECKS)

    async def _push(self, endpoint: Endpoint, on_back: OnBack) -> bool:
        """Have the present weights loaded, if no update comes in between."""
        await self._gate.wait()
        update = self._update
        try:
            await on_back(endpoint)
        except Exception as error:  # noqa: BLE001 (whatever a trainer's function raises; it is tried again)
            log.warning("on_back_failed", endpoint=endpoint.name, error=f"{type(error).__name__}: {error}")
            return False
        await self._hold_on_to(endpoint)
        if endpoint.up:
            return True  # an update took it back
        if self._is_same(endpoint) and self._gate.is_open and update == self._update:
            self._take_back(endpoint)
            return True
        self._drop_lines(endpoint)
        return False

    def _take_back(self, endpoint: Endpoint) -> None:
        endpoint.up = endpoint.has_weights = True
        log.info("endpoint_back", endpoint=endpoint.name)
        self._notify()

    async def _hold_on_to(self, endpoint: Endpoint) -> None:
        """From now on, notice if the server is restarted."""
        self._drop_lines(endpoint)
        lines = self._lines[endpoint] = []
        line = await _connect(endpoint)
        if line is None:
            self.lose(endpoint)
            return
        self._awaited.discard(endpoint)
        lines.append(line)
        self._tasks.start_soon(self._guard, endpoint, line, lines)
        self._tasks.start_soon(self._add_second, endpoint, lines)

    async def _add_second(self, endpoint: Endpoint, lines: list[Lifeline]) -> None:
        await anyio.sleep(_STAGGER)
        await self._add_line(endpoint, lines)

    async def _add_line(self, endpoint: Endpoint, lines: list[Lifeline]) -> bool:
        """Another line, if it leads to the same process: an earlier one outlives its making."""
        line = await _connect(endpoint)
        if line is None:
            return False
        self._tasks.start_soon(self._guard, endpoint, line, lines)
        await anyio.sleep(_SETTLES)
        if line.stands and any(other.stands for other in lines):
            lines.append(line)
            return True
        line.end()
        return False

    async def _guard(self, endpoint: Endpoint, line: Lifeline, lines: list[Lifeline]) -> None:
        """When a line ends, the server is lost, unless another line shows that it ended no more than that one."""
        await line.watch()
        if line not in lines:
            return
        lines.remove(line)
        was_up, endpoint.up = endpoint.up, False  # until it is clear
        had_weights, endpoint.has_weights = endpoint.has_weights, False
        self._in_doubt += 1
        try:
            is_same = bool(lines) and await self._add_line(endpoint, lines)
        finally:
            self._in_doubt -= 1
        endpoint.up |= was_up  # it may have been brought back meanwhile
        if is_same or not self._may_differ:
            endpoint.has_weights |= had_weights
        if endpoint.up and not is_same:
            self.lose(endpoint)
        self._notify()

    def _drop_lines(self, endpoint: Endpoint) -> None:
        _end(self._lines.pop(endpoint, []))

    def _is_same(self, endpoint: Endpoint) -> bool:
        return any(line.stands for line in self._lines.get(endpoint, ()))

    async def _is_healthy(self, endpoint: Endpoint) -> bool:
        assert self._client is not None
        return await is_healthy(self._client, endpoint, self._headers)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
        self._on_change()


def _end(lines: list[Lifeline]) -> None:
    for line in lines:
        line.end()
    lines.clear()


async def _connect(endpoint: Endpoint) -> Lifeline | None:
    try:
        with anyio.fail_after(_CONNECT_SECONDS):
            return Lifeline(await anyio.connect_tcp(*endpoint.address))
    except (OSError, TimeoutError):
        return None
