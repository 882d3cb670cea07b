"""The envs of remote pools, on the server: each call is made once, however often it is asked for."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

import anyio
import structlog

from asyncrollout.errors import EnvCrashed, EnvError, RolloutError, UsageError
from asyncrollout.pool import wire
from asyncrollout.pool.failure import failure
from asyncrollout.pool.handle import EnvHandle
from asyncrollout.pool.hosted import Called, Past
from asyncrollout.pool.pool import EnvPool
from asyncrollout.pool.wire import Op
from asyncrollout.service.admission import Admission
from asyncrollout.service.exchange import Answer, Call, as_failure, decode, encode, encode_outcome
from asyncrollout.service.underway import UnderWay
from asyncrollout.types import Outcome

log = structlog.get_logger(__name__)

_MOST_WAITING = 2  # calls of an env: one at work, and one after it was given up


class Session:
    """One env of a remote pool: the number of its latest call, and the answer once there is one."""

    def __init__(self) -> None:
        self.handle: EnvHandle | None = None
        self.number = 0
        self.answer: Answer | None = None
        self.waiting = 0
        self.idle_since = time.monotonic()
        self.turn = asyncio.Lock()  # of anyio's, each acquisition goes round the event loop


class Channel(Protocol):
    """Where answers go."""

    def send(self, answer: Answer) -> None: ...


class Client:
    """One remote pool: its envs, and the channel by which it is reached, if it is."""

    def __init__(self, client_id: str) -> None:
        self.id = client_id
        self.sessions: dict[int, Session] = {}
        self.channel: Channel | None = None
        self.left_at = time.monotonic()

    def tell(self, answer: Answer) -> None:
        if self.channel is not None:  # else it asks again when it is back
            self.channel.send(answer)


class Sessions:
    """All remote pools and their envs. `check_room` raises if no more env may be opened."""

    def __init__(self, pool: EnvPool, admission: Admission, check_room: Callable[[], None]) -> None:
        self.clients: dict[str, Client] = {}
        self.calls = 0
        self.under_way = UnderWay()
        self._pool = pool
        self._admission = admission
        self._check_room = check_room
        self._tasks = asyncio.TaskGroup()  # measured: a third of the cost of anyio's, and `_answer` never fails
        self._running: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        return sum(len(client.sessions) for client in self.clients.values())

    async def open(self) -> None:
        await self._tasks.__aenter__()

    async def close(self) -> None:
        """Give up what is under way, and close all envs."""
        for task in self._running:
            task.cancel()
        with anyio.CancelScope(shield=True):  # to close an env never takes long
            await self._tasks.__aexit__(None, None, None)
            for client in [*self.clients.values()]:
                await self.close_client(client)

    def attach(self, client_id: str, channel: Channel) -> Client:
        """A pool that is new here, or is back; its newest channel is the one that counts."""
        client = self.clients.setdefault(client_id, Client(client_id))
        client.channel = channel
        return client

    def detach(self, client: Client, channel: Channel) -> None:
        if client.channel is channel:
            client.channel, client.left_at = None, time.monotonic()

    def begin(self, client: Client, call: Call) -> None:
        """Make a call, unless it was made before: then its answer is given again."""
        session = client.sessions.get(call.env)
        if session is None:
            if call.op != Op.OPEN:
                client.tell(Answer(call.env, call.number, gone=True))
                return
            session = client.sessions[call.env] = Session()
        if call.number <= session.number:
            if session.answer is not None and session.answer.number == call.number:
                client.tell(session.answer)
            return  # it is at work, or nobody waits for it any more
        session.number, session.answer = call.number, None
        session.waiting += 1
        self.calls += 1
        task = self._tasks.create_task(self._answer(client, session, call))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, client: Client, session: Session, call: Call) -> None:
        try:
            with self.under_way:
                if session.waiting > _MOST_WAITING:
                    raise UsageError("it is still at work on earlier calls")
                async with session.turn:
                    answer = await self._made(session, call)
        except RolloutError as error:
            answer = Answer(call.env, call.number, failure=as_failure(error))
        except Exception as error:
            log.exception("call_failed", op=call.op)
            answer = Answer(call.env, call.number, failure=failure(error))
        finally:
            session.waiting -= 1
        session.idle_since = time.monotonic()
        is_kept = client.sessions.get(call.env) is session
        if session.handle is not None and not is_kept:  # its pool left while it was opened
            await session.handle.close()
        elif session.handle is None and is_kept:  # it could not be opened, or is closed
            del client.sessions[call.env]
        if session.number == call.number:
            session.answer = answer
        client.tell(answer)

    async def _made(self, session: Session, call: Call) -> Answer:
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
            seed, task, member, _ = _parts(payload, 4)  # which episode it is matters to films alone
            outcome = await handle.reset(seed=seed, task=task, member=member)
        elif call.op == Op.CALL:
            called = self._called(payload)
            value = await handle.call(called.method, *called.args, **called.kwargs)
        elif call.op == Op.RENDER:
            value = await handle.render()
        elif call.op == Op.REPLAY:
            await self._replay(handle, payload)
        elif call.op == Op.CLOSE:
            session.handle = None
            await handle.close()
        else:
            raise UsageError(f"an env at this server knows no call {call.op}")
        seconds = handle.worked if handle is not None and call.op == Op.STEP else time.monotonic() - began
        try:
            return _with_value(call, outcome, value, seconds)
        except wire.UnsendableError as error:
            raise EnvError(f"what it returned cannot be sent over a network: {error}") from error

    async def _open(self, payload: Any) -> EnvHandle:
        name, kwargs = _parts(payload, 2)
        spec, options = self._admission.admit(name, kwargs)
        self._check_room()
        return await self._pool.open(spec, **options)

    async def _replay(self, handle: EnvHandle, payload: Any) -> None:
        """Bring an env to where it was on a server that is lost; every outcome is checked on the way."""
        setup, seed, task, member, done, digests = _parts(payload, 6)
        calls = [self._called(one) for one in _listed(setup)]
        if seed is None:
            for called in calls:
                await handle.call(called.method, *called.args, **called.kwargs)
            return
        if not handle.seat.opening.spec.replayable:
            raise EnvCrashed("the server lost it within an episode, and it is not replayable")
        played = [_parts(entry, 2) for entry in _listed(done)]
        entries = [self._called(entry) if is_call else entry for is_call, entry in played]
        past = Past(calls, seed, task, None, entries, _listed(digests), trusted=False, member=member)
        await handle.become(past, Outcome(None))

    def _called(self, payload: Any) -> Called:
        method, args, kwargs = _parts(payload, 3)
        is_right = isinstance(method, str) and isinstance(args, list | tuple) and isinstance(kwargs, dict)
        if not is_right or not all(isinstance(key, str) for key in kwargs):
            raise UsageError("a call has a method's name, a list of arguments and a dict of those with names")
        if method == "restore":
            raise UsageError("no env here takes its state from a network: an env may read it with pickle")
        admit = self._admission.admit_value
        return Called(
            method, tuple(admit("", one) for one in args), {key: admit(key, one) for key, one in kwargs.items()}
        )

    async def close_client(self, client: Client) -> None:
        """A pool that is closed, or has been away for too long."""
        self.clients.pop(client.id, None)
        await self._close(client, [*client.sessions])

    async def close_idle(self, since: float, left_since: float) -> int:
        """Close envs that nobody used since a time, and all those of pools that have been away since another."""
        closed = 0
        for client in [*self.clients.values()]:
            if client.channel is None and client.left_at < left_since:
                closed += len(client.sessions)
                await self.close_client(client)
                continue
            sessions = client.sessions.items()
            idle = [env for env, session in sessions if not session.waiting and session.idle_since < since]
            closed += len(idle)
            await self._close(client, idle)
        return closed

    async def _close(self, client: Client, envs: list[int]) -> None:
        for env in envs:
            session = client.sessions.pop(env, None)
            if session is not None and session.handle is not None:  # else it left while others were closed
                handle, session.handle = session.handle, None
                await handle.close()


def _with_value(call: Call, outcome: Outcome | None, value: Any, seconds: float) -> Answer:
    if outcome is None:
        return Answer(call.env, call.number, value=encode(value), seconds=seconds)
    fields = [outcome.observation, outcome.reward, outcome.terminated, outcome.truncated]
    body, digest = encode_outcome(fields)
    info = encode(outcome.info or None)
    return Answer(call.env, call.number, value=body, info=info, digest=digest, seconds=seconds)


def _parts(payload: Any, count: int) -> list[Any]:
    if not isinstance(payload, list | tuple) or len(payload) != count:
        raise UsageError(f"this call has {count} parts, and not {payload!r:.100}")
    return list(payload)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"a list is needed here, and not {value!r:.100}")
    return list(value)
