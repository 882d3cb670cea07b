"""Which servers may get calls: those that respond, and that have the current weights."""

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
_SUSPENSION, _LONGEST_SUSPENSION = 30.0, 600.0  # seconds without calls; longer each time
_MOST_SUSPENSIONS = 10
_STAGGER = (
    1.0  # seconds between two lifelines, so that a server that closes idle connections does not close both at once
)
_SETTLES = 0.05  # seconds in which the end of a lifeline arrives, if its server was gone before the next was made


class Lifeline:
    """An idle TCP connection: while it is alive, the server at the other end is the same process.

    A restarted server answers /health as before, but with the weights that it was started with. HTTP has no way to ask
    which process responds; the kernel closes the connections of a process that ends, so an idle one reveals it.
    """

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self._scope = anyio.CancelScope()
        self.is_alive = True

    async def watch(self) -> None:
        """Wait until it ends."""
        try:
            with self._scope, suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while True:
                    await self._stream.receive()
        finally:
            self.is_alive = False
            with anyio.CancelScope(shield=True):
                await self._stream.aclose()

    def close(self) -> None:
        self._scope.cancel()


class Health:
    """Marks servers that do not respond as lost, and restores them.

    A server that is back may have been restarted, with the weights that it was started with. So after the first weight
    update, it gets calls again only if it is known to be the same process (a `Lifeline` is alive), or once it has the
    current weights: by an update that found it healthy from beginning to end, or by `on_back`. There are two lifelines
    to each server: when one ends and the other is alive, the server merely closed an idle connection.
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
        self._lifelines: dict[Endpoint, list[Lifeline]] = {}
        self._in_doubt = 0
        self._reached: set[Endpoint] = set()  # lost ones that the current update can reach
        self._update_lifelines: dict[Endpoint, list[Lifeline]] = {}  # to those, from the beginning of the update
        self._awaited: set[Endpoint] = set()  # never seen: they will be started with the current weights
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
        """It does not respond: no calls until it is healthy again, and for longer each time in a row."""
        self._reached.discard(endpoint)
        if not endpoint.up:
            return
        endpoint.up = False
        endpoint.context = None  # it may come back with another one
        endpoint.losses += 1
        if self._may_differ and endpoint not in self._awaited:
            endpoint.has_weights = False
        log.warning("endpoint_lost", endpoint=endpoint.name, losses=endpoint.losses)
        self._tasks.start_soon(self._wait_until_back, endpoint)
        self._on_change()

    def suspend(self, endpoint: Endpoint, said: str) -> None:
        """It rejected what another server accepted: no calls until a single one tries again later."""
        now = time.monotonic()
        if endpoint.is_suspended(now):
            return
        seconds = min(_SUSPENSION * 2.0**endpoint.suspensions, _LONGEST_SUSPENSION)
        endpoint.limit.pause(now + seconds)
        endpoint.suspensions = min(endpoint.suspensions + 1, _MOST_SUSPENSIONS)
        if endpoint.suspended is None:
            log.warning("endpoint_out", endpoint=endpoint.name, reason=said, seconds=seconds)
        endpoint.suspended = said
        self._on_change()

    def note_success(self, endpoint: Endpoint) -> None:
        """A call succeeded there."""
        if endpoint.suspended is not None and endpoint.wait_before(time.monotonic()) <= 0:
            endpoint.suspended, endpoint.suspensions = None, 0
            log.info("endpoint_back", endpoint=endpoint.name)
        endpoint.note_success()

    async def wait_until_usable(self, endpoints: Sequence[Endpoint]) -> None:
        """Wait until one of them may have the current weights; `ProviderError` if only an update can bring that."""
        while not any(endpoint.has_weights for endpoint in endpoints):
            if self._on_back is None and not any(self._is_same_process(endpoint) for endpoint in endpoints):
                names = ", ".join(endpoint.name for endpoint in endpoints)
                raise ProviderError(
                    f"{names} did not respond and may have been restarted with other weights than those of the last "
                    "update: push the current ones in a weight_update, or pass on_back= to OpenAIPolicy"
                )
            await self._changed.wait()

    async def begin_update(self) -> None:
        """Note which lost servers new weights can reach, and watch the others for restarts."""
        self._is_updating = True
        self._end_update_lifelines()
        self._reached = {endpoint for endpoint in self._endpoints if not endpoint.up}
        await self._keep_healthy()
        async with anyio.create_task_group() as connecting:
            for endpoint in self._reached:
                connecting.start_soon(self._reach, endpoint)
        await self._watch_all_for_restart()

    def cancel_update(self) -> None:
        """Weights have not changed; until the first update, restarts do not matter."""
        self._is_updating = False
        self._end_update_lifelines()
        for endpoint in [] if self._had_update else self._endpoints:
            self._drop_lifelines(endpoint)
            if not endpoint.has_weights:
                endpoint.has_weights = True
                self._tasks.start_soon(self._wait_until_back, endpoint)
        self._notify()

    async def start(self) -> None:
        """All servers have other weights from now on; one that has never responded will be started with them."""
        await self.end_update({endpoint for endpoint in self._endpoints if not endpoint.has_responded})

    async def end_update(self, awaited: Iterable[Endpoint] = ()) -> None:
        """All servers have the new weights, except lost ones that were neither reached nor are `awaited`."""
        self._awaited = set(awaited)
        self._had_update, self._is_updating = True, False
        self._update += 1
        await self._keep_healthy()
        while self._in_doubt:
            await self._changed.wait()
        for endpoint in self._endpoints:
            if endpoint in self._reached and any(
                lifeline.is_alive for lifeline in self._update_lifelines.get(endpoint, ())
            ):
                self._adopt(endpoint, self._update_lifelines.pop(endpoint))
                self._restore(endpoint)
            elif not endpoint.up and endpoint not in self._awaited:
                endpoint.has_weights = False
                self._drop_lifelines(endpoint)  # it may be the same process, but with old weights
        self._end_update_lifelines()
        self._notify()
        await self._watch_all_for_restart()

    async def _reach(self, endpoint: Endpoint) -> None:
        """Notice if a lost server that new weights can reach is restarted before it is restored."""
        if (lifeline := await _connect(endpoint)) is not None:
            lifelines = self._update_lifelines[endpoint] = [lifeline]
            self._tasks.start_soon(self._guard, endpoint, lifeline, lifelines)

    def _adopt(self, endpoint: Endpoint, lifelines: list[Lifeline]) -> None:
        self._drop_lifelines(endpoint)
        self._lifelines[endpoint] = lifelines
        self._tasks.start_soon(self._add_second_lifeline, endpoint, lifelines)

    def _end_update_lifelines(self) -> None:
        """Close those to lost servers that were reached, but not restored."""
        self._reached.clear()
        for lifelines in self._update_lifelines.values():
            _close_all(lifelines)
        self._update_lifelines.clear()

    async def _watch_all_for_restart(self) -> None:
        async with anyio.create_task_group() as connecting:
            for endpoint in self._endpoints:
                if endpoint.up and not self._is_same_process(endpoint):
                    connecting.start_soon(self._watch_for_restart, endpoint)

    async def _keep_healthy(self) -> None:
        async def keep(endpoint: Endpoint) -> None:
            if not await self._is_healthy(endpoint):
                self._reached.discard(endpoint)

        async with anyio.create_task_group() as checking:
            for endpoint in [*self._reached]:
                checking.start_soon(keep, endpoint)

    async def _wait_until_back(self, endpoint: Endpoint) -> None:
        if endpoint.losses > 1:
            await anyio.sleep(min(_BETWEEN_CHECKS * 2.0**endpoint.losses, _LONGEST_BETWEEN_CHECKS))
        pause = _BETWEEN_CHECKS
        while not endpoint.up:
            if not await self._is_healthy(endpoint):
                await anyio.sleep(_BETWEEN_CHECKS)
            elif self._is_same_process(endpoint) or (endpoint.has_weights and not self._had_update):
                self._restore(endpoint)
            elif endpoint.has_weights:  # it was awaited
                await self._watch_for_restart(endpoint)
            elif self._on_back is None:
                log.warning("endpoint_waits_for_weights", endpoint=endpoint.name)
                self._notify()
                return  # the next update restores it
            elif not await self._push(endpoint, self._on_back):
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_BETWEEN_CHECKS)

    async def _push(self, endpoint: Endpoint, on_back: OnBack) -> bool:
        """Have the current weights loaded; False if that failed, or an update came in between."""
        await self._gate.wait()
        update = self._update
        try:
            await on_back(endpoint)
        except Exception as error:  # noqa: BLE001 (a trainer's function may raise anything; it is tried again)
            log.warning("on_back_failed", endpoint=endpoint.name, error=f"{type(error).__name__}: {error}")
            return False
        await self._watch_for_restart(endpoint)
        if endpoint.up:
            return True  # an update restored it
        if self._is_same_process(endpoint) and self._gate.is_open and update == self._update:
            self._restore(endpoint)
            return True
        self._drop_lifelines(endpoint)
        return False

    def _restore(self, endpoint: Endpoint) -> None:
        endpoint.up = endpoint.has_weights = True
        log.info("endpoint_back", endpoint=endpoint.name)
        self._notify()

    async def _watch_for_restart(self, endpoint: Endpoint) -> None:
        """Open lifelines, so that a restart is noticed from now on."""
        self._drop_lifelines(endpoint)
        lifelines = self._lifelines[endpoint] = []
        lifeline = await _connect(endpoint)
        if lifeline is None:
            self.lose(endpoint)
            return
        self._awaited.discard(endpoint)
        lifelines.append(lifeline)
        self._tasks.start_soon(self._guard, endpoint, lifeline, lifelines)
        self._tasks.start_soon(self._add_second_lifeline, endpoint, lifelines)

    async def _add_second_lifeline(self, endpoint: Endpoint, lifelines: list[Lifeline]) -> None:
        await anyio.sleep(_STAGGER)
        await self._add_lifeline(endpoint, lifelines)

    async def _add_lifeline(self, endpoint: Endpoint, lifelines: list[Lifeline]) -> bool:
        """Open another lifeline, to the same process: an earlier one must still be alive afterwards."""
        lifeline = await _connect(endpoint)
        if lifeline is None:
            return False
        self._tasks.start_soon(self._guard, endpoint, lifeline, lifelines)
        await anyio.sleep(_SETTLES)
        if lifeline.is_alive and any(other.is_alive for other in lifelines):
            lifelines.append(lifeline)
            return True
        lifeline.close()
        return False

    async def _guard(self, endpoint: Endpoint, lifeline: Lifeline, lifelines: list[Lifeline]) -> None:
        """When a lifeline ends, the server is lost, unless another one shows that only this connection was closed."""
        await lifeline.watch()
        if lifeline not in lifelines:
            return
        lifelines.remove(lifeline)
        was_up, endpoint.up = endpoint.up, False  # until that is clear
        had_weights, endpoint.has_weights = endpoint.has_weights, False
        self._in_doubt += 1
        try:
            is_same = bool(lifelines) and await self._add_lifeline(endpoint, lifelines)
        finally:
            self._in_doubt -= 1
        endpoint.up |= was_up  # it may have been restored meanwhile
        if is_same or not self._may_differ:
            endpoint.has_weights |= had_weights
        if endpoint.up and not is_same:
            self.lose(endpoint)
        self._notify()

    def _drop_lifelines(self, endpoint: Endpoint) -> None:
        _close_all(self._lifelines.pop(endpoint, []))

    def _is_same_process(self, endpoint: Endpoint) -> bool:
        return any(lifeline.is_alive for lifeline in self._lifelines.get(endpoint, ()))

    async def _is_healthy(self, endpoint: Endpoint) -> bool:
        assert self._client is not None
        return await is_healthy(self._client, endpoint, self._headers)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
        self._on_change()


def _close_all(lifelines: list[Lifeline]) -> None:
    for lifeline in lifelines:
        lifeline.close()
    lifelines.clear()


async def _connect(endpoint: Endpoint) -> Lifeline | None:
    try:
        with anyio.fail_after(_CONNECT_SECONDS):
            return Lifeline(await anyio.connect_tcp(*endpoint.address))
    except (OSError, TimeoutError):
        return None
