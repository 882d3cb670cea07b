"""One environment as its user sees it: reset, step, ask, fork, close; restored by itself when its worker dies."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Self

import anyio

from asyncrollout.errors import UsageError
from asyncrollout.logs import get_logger
from asyncrollout.pool.binding import EnvBinding
from asyncrollout.pool.env_calls import SHUT, EnvCalls, Phase
from asyncrollout.pool.hosts import CLOSE_GRACE, HostLost
from asyncrollout.pool.state_transfer import adopt_log, export_log
from asyncrollout.pool.wire.codec import Undecodable
from asyncrollout.pool.wire.messages import Op
from asyncrollout.pool.wire.replay_log import RecordedCall, dump_log, load_log
from asyncrollout.protocols import EnvRecording
from asyncrollout.types import Outcome

if TYPE_CHECKING:
    from asyncrollout.pool.pool import EnvPool

log = get_logger(__name__)

_STEP = Op.STEP  # an enum's attribute is slow to look up


class EnvHandle:
    """Made by `EnvPool.open`. For one caller at a time."""

    def __init__(self, pool: "EnvPool", binding: EnvBinding, record: EnvRecording | None = None) -> None:
        self.name = binding.opening.spec.name
        self._pool = pool
        self._record = record
        self._calls = EnvCalls(binding, pool.loop, pool.thread, takes_states=pool.takes_states)
        if record is not None:
            record.opened(binding.end_video)

    @property
    def outcome(self) -> Outcome:
        """The last outcome of the episode; there is none once a reset or a restore has begun, until it succeeds."""
        return self._calls.outcome

    @property
    def has_episode(self) -> bool:
        """Whether an episode runs, or came to its end: then there is a state to snapshot or fork."""
        return self._calls.has_episode

    @property
    def seed(self) -> int | None:
        """The seed of the episode, also where the pool drew it."""
        return self._calls.history.seed

    @property
    def worker(self) -> int | None:
        """The rank of the worker where the env lives now; -1 is the event loop's thread."""
        return self._calls.binding.rank

    @property
    def worked(self) -> float:
        """Seconds that the env itself took for its last step, without the way there and back."""
        return self._calls.binding.last_seconds

    async def __aenter__(self) -> Self:
        calls = self._calls
        if calls.phase is not Phase.UNOPENED:
            raise calls.misuse("be opened again")
        try:
            await calls.invoke(Op.OPEN, None)
            calls.phase = Phase.NEW
        finally:
            if calls.phase is not Phase.NEW:
                calls.phase = Phase.UNSURE
                await self.close()
        return self

    def __await__(self) -> Generator[Any, Any, Self]:
        return self.__aenter__().__await__()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def reset(self, *, seed: int | None = None, task: Any = None, member: int = 0) -> Outcome:
        """Start an episode. Without a seed one is drawn, so that the episode can be replayed.

        Members of a group start from the same seed; in an env that plays by chance, `member` gives each its own luck.
        """
        return await self._calls.begin_reset(seed=seed, task=task, member=member).outcome()

    async def step(self, action: Any) -> Outcome:
        """Play an action; for a text env, a reply."""
        calls = self._calls  # not `begin_step(...).outcome()`: one more coroutine costs a tenth of a light step
        action = calls.check_action(action)
        phase, sent = calls.send(_STEP, action)
        return calls.finish(_STEP, action, await calls.wait_reply(_STEP, action, phase, sent))

    async def render(self) -> Any:
        """The env's image of its state."""
        image = (await self._calls.ask(Op.RENDER, None, "render")).value
        if type(image) is Undecodable:
            raise self._calls.unreadable(image)
        return image

    async def call(self, method: str, /, *args: Any, keep: bool | None = None, **kwargs: Any) -> Any:
        """Anything else that the env or its text interface offers: a method's result, or an attribute.

        `keep` says whether the call outlives its episode: True has it repeated whenever the env is rebuilt, False
        (a read, say) promises that nothing of it is left after the episode. By default, the episode is remembered too.
        """
        args, kwargs = self._calls.own((args, kwargs), f"call {method}()")
        return (await self._calls.call_method(RecordedCall(method, args, kwargs, keep)))[0]

    async def snapshot(self) -> bytes:
        """The state of an episode, to keep and to `restore`: the env's own snapshot, or its seed and actions."""
        return dump_log(self.name, await export_log(self._calls, "take a snapshot", for_file=True))

    async def restore(self, snapshot: bytes) -> Outcome:
        """Continue from a snapshot of an env of the same name, instead of from a reset."""
        if self._calls.phase in SHUT:
            raise self._calls.misuse("restore")
        await adopt_log(self._calls, load_log(self.name, snapshot))
        return self.outcome

    async def fork(self, pool: "EnvPool | None" = None) -> "EnvHandle":
        """A second env in the same state, in this pool or another one, to be closed by its user or with the pool."""
        target = self._pool if pool is None else pool
        if not hasattr(target, "reopen"):
            raise UsageError(f"env {self.name!r} cannot fork: {target!r:.100} is not a pool")
        replay_log = await export_log(self._calls, "fork", for_file=False, with_state=target.takes_states)
        twin = await target.reopen(self._pool.describe(self._calls.binding))
        is_there = False
        try:
            await adopt_log(calls_of(twin), replay_log)
            is_there = True
        finally:
            if not is_there:
                await twin.close()
        return twin

    async def close(self) -> None:
        """Close the env; a second time does nothing. Never waits long: an env that hangs is left to its worker."""
        calls = self._calls
        if calls.phase is Phase.CLOSED:
            return
        if calls.binding.host is not None and calls.binding.host.usable:
            calls.check_loop()
        unsure, calls.phase = calls.phase is Phase.UNSURE, Phase.CLOSED
        footage = None
        try:
            footage = await self._close_at_host(unsure=unsure)
        finally:
            if self._record is not None:
                self._record.ended(footage)

    async def _close_at_host(self, *, unsure: bool) -> Any:
        """What the camera has, if there is one, and the env is where it can be asked."""
        binding = self._calls.binding
        host = binding.leave()
        if host is None or not host.usable:
            return None
        if unsure:
            host.drop(binding.id)
            return None
        with anyio.move_on_after(CLOSE_GRACE, shield=True):
            try:
                reply = await host.call(binding.id, Op.CLOSE, None)
            except HostLost:
                return None
            if reply.failure is not None:
                log.warning("env_close_failed", env=self.name, error=reply.failure.text)
            return reply.value
        return None


def calls_of(handle: EnvHandle) -> EnvCalls:
    """The one way into a handle from the rest of the package: for batches of calls, and for envs behind a server."""
    return handle._calls  # noqa: SLF001
