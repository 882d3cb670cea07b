"""The envs of remote pools, on the server: each call is made once, however often it is requested."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

import anyio
import msgspec
from anyio.abc import TaskStatus

from asyncrollout.concurrency import Background, task_group
from asyncrollout.errors import EnvCrashed, EnvError, PoolError, RolloutError, UsageError
from asyncrollout.logs import get_logger
from asyncrollout.pool.handle import EnvHandle, calls_of
from asyncrollout.pool.pool import EnvPool
from asyncrollout.pool.state_transfer import adopt_log
from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.messages import Op
from asyncrollout.pool.wire.replay_log import RecordedCall, read_log
from asyncrollout.service.allowed_envs import Admission
from asyncrollout.service.clients import Channel, Client, Session
from asyncrollout.service.in_flight import InFlightCounter
from asyncrollout.service.messages import (
    LIVE,
    PIECE,
    RemoteCall,
    RemoteReply,
    as_failure,
    decode,
    encode,
    encode_outcome,
)
from asyncrollout.types import Outcome

log = get_logger(__name__)

_MOST_WAITING = 2  # calls of an env: one that was given up but still works, and the next
_MOST_READS = 100  # given up in a row
_READS = (Op.RENDER, Op.SNAPSHOT)


class Sessions:
    """All remote pools and their envs. `check_room` raises if no more env may be opened.

    `longest_log` bounds the bytes of one env's replay log, which is put together here before it is replayed. At most
    `at_once` calls run at a time; others wait, and those beyond `most_waiting` are refused.
    """

    def __init__(
        self,
        pool: EnvPool,
        admission: Admission,
        check_room: Callable[[], None],
        longest_log: int,
        *,
        at_once: int,
        most_waiting: int,
    ) -> None:
        self.clients: dict[str, Client] = {}
        self.calls = 0
        self.under_way = InFlightCounter()
        self._pool = pool
        self._admission = admission
        self._check_room = check_room
        self._longest_log = longest_log
        self._background = Background(self._give_up)
        self._at_once = at_once
        self._most_waiting = most_waiting
        self._slots = asyncio.Semaphore(at_once)  # anyio's yields to the event loop at each acquisition
        self._tasks = asyncio.TaskGroup()  # measured: a third of the cost of anyio's, and `_answer` never fails
        self._closing = anyio.Event()
        self._running: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        return sum(len(client.sessions) for client in self.clients.values())

    async def __aenter__(self) -> Self:
        async with self._background.opening():
            await self._background.start(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give up calls in flight, and close all envs."""
        await self._background.close(error, cancel=False)

    async def _give_up(self) -> None:
        for task in self._running:
            task.cancel()
        self._closing.set()

    async def _run(self, *, task_status: TaskStatus[None]) -> None:
        async with self._tasks:
            task_status.started()
            await self._closing.wait()
        clients, self.clients = self.clients, {}
        await _close([session for client in clients.values() for session in client.take()])

    def attach(self, client_id: str, channel: Channel) -> Client:
        """Connect a pool that is new, or is back; its newest channel counts."""
        client = self.clients.setdefault(client_id, Client(client_id))
        if client.channel is not None:  # it hangs: its pool gave it up and has reconnected
            client.channel.leave()
        client.channel = channel
        return client

    def is_connected(self, client_id: str) -> bool:
        client = self.clients.get(client_id)
        return client is not None and client.channel is not None

    def detach(self, client: Client, channel: Channel) -> None:
        if client.channel is channel:
            client.channel, client.left_at = None, time.monotonic()

    def begin(self, client: Client, call: RemoteCall) -> None:
        """Make a call, unless it was made before: then its answer is given again."""
        if call.op == LIVE:
            self._close_others(client, call)
            return
        session = client.sessions.get(call.env)
        if session is None and call.op != Op.OPEN:
            client.send(RemoteReply(call.env, call.number, gone=True))
            return
        if len(self._running) >= self._at_once + self._most_waiting and call.op != Op.CLOSE:
            busy = PoolError(f"{len(self._running)} calls are in flight, the most that this server accepts at a time")
            client.send(RemoteReply(call.env, call.number, failure=as_failure(busy)))
            return
        if session is None:
            session = client.sessions[call.env] = Session()
        if call.number <= session.number:
            if session.answer is not None and session.answer.number == call.number:
                client.send(session.answer)
            return  # it is in flight, or no longer awaited
        session.number, session.answer = call.number, None
        session.waiting += 1
        session.reads += call.op in _READS
        self.calls += 1
        task = self._tasks.create_task(self._answer(client, session, call))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _close_others(self, client: Client, call: RemoteCall) -> None:
        """Close the envs that the pool does not name: it dropped them while its connection was lost."""
        live = _listed(decode(call.payload))
        if not all(type(env) is int for env in live):
            raise UsageError("ids of envs must be whole numbers")
        stale = client.take(client.sessions.keys() - live)
        if stale:
            log.info("stale_envs_closed", pool=client.id[:8], count=len(stale))
            self._tasks.create_task(_close(stale))

    async def _answer(self, client: Client, session: Session, call: RemoteCall) -> None:
        try:
            with self.under_way:
                most = _MOST_WAITING + (call.op == Op.CLOSE)  # which is never repeated
                if session.waiting - session.reads > most or session.reads > _MOST_READS:
                    raise UsageError("earlier calls are still in flight")
                async with session.turn, self._slot(call):
                    if call.op in _READS and call.number != session.number:
                        raise UsageError("nobody awaits it any more")
                    answer = await self._made(session, call)
        except RolloutError as error:
            answer = RemoteReply(call.env, call.number, failure=as_failure(error))
        except Exception:
            log.exception("call_failed", op=call.op)
            bug = PoolError("the server has a bug: its log has the traceback")
            answer = RemoteReply(call.env, call.number, failure=as_failure(bug))
        finally:
            session.waiting -= 1
            session.reads -= call.op in _READS
        session.idle_since = time.monotonic()
        is_kept = client.sessions.get(call.env) is session
        if session.handle is not None and not is_kept:  # its pool left while it was opened
            await session.handle.close()
        elif session.handle is None and is_kept:  # it could not be opened, or is closed
            del client.sessions[call.env]
        if session.number == call.number:
            session.answer = answer
        client.send(answer)

    def _slot(self, call: RemoteCall) -> AbstractAsyncContextManager[Any]:
        """A slot for a running call; closing an env needs none."""
        return nullcontext() if call.op == Op.CLOSE else self._slots

    async def _made(self, session: Session, call: RemoteCall) -> RemoteReply:
        began = time.monotonic()
        payload = decode(call.payload)
        handle = session.handle
        outcome: Outcome | None = None
        value: Any = None
        if call.op == Op.OPEN:
            session.handle = await self._open(payload)
        elif handle is None:
            raise UsageError("it is closed")
        elif call.op == Op.STEP:
            outcome = await handle.step(payload)
        elif call.op == Op.RESET:
            seed, task, member, _ = _parts(payload, 4)  # the number of the episode only matters to videos
            session.forget_pieces()
            outcome = await handle.reset(seed=seed, task=task, member=member)
        elif call.op == Op.CALL:
            called = self._called(payload)
            value = list(await calls_of(handle).call_method(called))
        elif call.op == Op.RENDER:
            value = await handle.render()
        elif call.op == Op.REPLAY:
            outcome = await self._replay(handle, session.take_log() if payload is None else payload)
        elif call.op == PIECE:
            start, content = _parts(payload, 2)
            session.add_piece(start, content, self._longest_log)
        elif call.op == Op.SNAPSHOT:  # no env's own state is read from a network: its episode is played again instead
            value = [None, msgspec.structs.astuple(handle.outcome), "a server gives no snapshot() of an env's own"]
        elif call.op == Op.CLOSE:
            session.handle = None
            await handle.close()
        else:
            raise UsageError(f"this server does not know the op {call.op}")
        seconds = handle.worked if handle is not None and call.op == Op.STEP else time.monotonic() - began
        try:
            return _with_value(call, outcome, value, seconds)
        except codec.UnsendableError as error:
            unsendable = EnvError(f"what it returned cannot be sent over a network: {error}")
            unsendable.remote_type = type(error).__name__  # the call was made all the same
            raise unsendable from error

    async def _open(self, payload: Any) -> EnvHandle:
        name, kwargs = _parts(payload, 2)
        spec, options = self._admission.admit(name, kwargs)
        self._check_room()
        return await self._pool.open(spec, **options)

    async def _replay(self, handle: EnvHandle, payload: Any) -> Outcome | None:
        """Replay an env to its state on a server that is lost; every outcome is checked."""
        try:
            replay_log = read_log(payload, self._called)
        except (ValueError, TypeError) as error:
            raise UsageError(f"this is not a valid replay log: {error}") from error
        if replay_log.holds_states:
            raise UsageError("no env here takes its state from a network: an env may read it with pickle")
        if replay_log.episodes and not calls_of(handle).binding.opening.spec.replayable:
            raise EnvCrashed("the server lost it within an episode, and it is not replayable")
        return await adopt_log(calls_of(handle), replay_log)

    def _called(self, payload: Any) -> RecordedCall:
        parts = _listed(payload)
        method, args, kwargs, keep = _parts(parts[:4], 4)
        is_right = isinstance(method, str) and isinstance(args, list | tuple) and isinstance(kwargs, dict)
        if not is_right or not isinstance(keep, bool | None) or not all(isinstance(key, str) for key in kwargs):
            raise UsageError(
                "a call must have a method's name, a list of arguments, a dict of keyword arguments, and keep"
            )
        if method == "restore":
            raise UsageError("no env here takes its state from a network: an env may read it with pickle")
        admit = self._admission.admit_value
        own = {key: admit(key, one) for key, one in kwargs.items()}
        return RecordedCall(method, tuple(admit("", one) for one in args), own, keep, raised=parts[4:] == [True])

    async def close_client(self, client: Client) -> None:
        """Close the envs of a pool that is closed."""
        self.clients.pop(client.id, None)
        await _close(client.take())

    async def close_idle(self, since: float, left_since: float) -> int:
        """Close envs unused since a time, and all envs of pools that have been away since `left_since`."""
        closing: list[Session] = []
        for client in [*self.clients.values()]:
            if client.channel is None and client.left_at < left_since:
                del self.clients[client.id]
                closing += client.take()
            else:
                sessions = client.sessions.items()
                closing += client.take([env for env, one in sessions if not one.waiting and one.idle_since < since])
        await _close(closing)
        return len(closing)


async def _close(sessions: Iterable[Session]) -> None:
    """All at once: each takes a few seconds at most."""
    async with task_group() as tasks:
        for session in sessions:
            handle, session.handle = session.handle, None
            if handle is not None:  # otherwise it is being opened, and is closed then
                tasks.start_soon(handle.close)


def _with_value(call: RemoteCall, outcome: Outcome | None, value: Any, seconds: float) -> RemoteReply:
    if outcome is None:
        return RemoteReply(call.env, call.number, value=encode(value), seconds=seconds)
    fields = [outcome.observation, outcome.reward, outcome.terminated, outcome.truncated]
    body, digest = encode_outcome(fields)
    info = encode(outcome.info or None, exact=False)
    return RemoteReply(call.env, call.number, value=body, info=info, digest=digest, seconds=seconds)


def _parts(payload: Any, count: int) -> list[Any]:
    if not isinstance(payload, list | tuple) or len(payload) != count:
        raise UsageError(f"this call must have {count} parts, not {payload!r:.100}")
    return list(payload)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"a list is required here, not {value!r:.100}")
    return list(value)
