"""A remote pool whose server or connection goes away: it is used again, nothing is left behind, nothing is too long."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import msgspec
import pytest
import structlog
from anyio.abc import TaskStatus

from asyncrollout import ClosedError, EnvHandle, EnvPool, PoolError, RemoteEnvPool, UsageError, registry
from asyncrollout.pool.wire.messages import Op
from asyncrollout.service import connection, server
from asyncrollout.service.access import AccessToken, read_token
from asyncrollout.service.clients import Session
from asyncrollout.service.messages import CLIENT_HEADER, LIVE, PATH, PIECE, RemoteCall, RemoteReply, encode, read_frame
from asyncrollout.service.server import Caps, EnvServer
from asyncrollout.testing import same
from tests.cable import Cable
from tests.envs.service import KNOWN, Meeting
from tests.playing import ACTIONS, PATIENCE, expected, play
from tests.test_remote_pool import SPECS, Leaving, _stats, cabled, remote
from tests.test_service_http import CANARY, started

HEADERS = {CLIENT_HEADER: "0" * 32}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in KNOWN:
        monkeypatch.setitem(registry._registered, spec.name, spec)
    monkeypatch.delenv("ASYNCROLLOUT_TOKEN", raising=False)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("_FIRST_PAUSE", "_FIRST_PAUSE_AWAY", "_LONGEST_PAUSE_AWAY"):
        monkeypatch.setattr(connection, pause, 0.01)


@asynccontextmanager
async def two_servers() -> AsyncIterator[tuple[RemoteEnvPool, Cable, EnvServer, EnvServer]]:
    """The first is reached by a cable."""
    async with (
        started() as first,
        started() as second,
        Cable(first.url).laid() as cable,
        RemoteEnvPool([cable.url, second.url], patience=0.1) as pool,
    ):
        yield pool, cable, first, second


async def opened(pool: RemoteEnvPool, name: str = "counter", **options: Any) -> EnvHandle:
    """An env, as soon as there is a server for it."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                return await pool.open(name, **options)
            except PoolError:
                await anyio.lowlevel.checkpoint()


async def cancelled_step(env: EnvHandle) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(env.step, 1)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


# Servers that come back


async def test_a_server_that_was_given_up_is_used_again() -> None:
    first = Leaving()
    with structlog.testing.capture_logs() as logs, anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            await tasks.start(first.run)
            async with RemoteEnvPool(first.url, patience=0.1) as pool:
                env, idle = await pool.open("counter"), await pool.open("counter")
                await play(idle, 3, ACTIONS[:3])
                await env.reset(seed=3)
                await first.stop()
                for _ in range(2):
                    with pytest.raises(PoolError, match=f"no server is left: {first.url} cannot be reached"):
                        await env.step(1) if env.has_episode else await env.reset(seed=3)
                second = Leaving(int(first.url.rpartition(":")[2]))
                await tasks.start(second.run)
                assert same(await play(await opened(pool), 3, ACTIONS), expected(SPECS["counter"], 3, ACTIONS))
                assert same(await play(env, 3, ACTIONS), expected(SPECS["counter"], 3, ACTIONS))
                outcomes = [await idle.step(action) for action in ACTIONS[3:]]  # nobody asked for it meanwhile
                assert same(outcomes, expected(SPECS["counter"], 3, ACTIONS)[4:])
            await second.stop()
    assert [one["event"] for one in logs if one["event"].startswith("host_")] == ["host_lost", "host_back"]


async def test_one_of_several_servers_comes_back() -> None:
    with anyio.fail_after(PATIENCE):
        async with two_servers() as (pool, cable, first, second):
            pinned, free = await pool.open("counter", worker=0), await pool.open("counter", worker=None)
            await play(pinned, 3, ACTIONS[:3])
            await play(free, 3, ACTIONS[:3])
            await cable.sever()
            with pytest.raises(
                PoolError, match=rf"its server, {cable.url} \(worker=0\), is away: .* cannot be reached"
            ):
                await pinned.step(1)
            with pytest.raises(PoolError, match=r"\(worker=0\), is away"):
                await pool.open("counter", worker=0)
            assert {(await pool.open("counter")).worker for _ in range(3)} == {1}
            assert same(await free.step(ACTIONS[3]), expected(SPECS["counter"], 3, ACTIONS)[4])
            cable.severed = False
            assert (await opened(pool, worker=0)).worker == 0
            assert (await pool.open("counter")).worker == 0  # the least loaded
            assert same(await play(pinned, 3, ACTIONS), expected(SPECS["counter"], 3, ACTIONS))
            assert ((await _stats(first))["environments"], (await _stats(second))["environments"]) == (3, 4)


async def test_a_server_that_refuses_for_a_while() -> None:
    tokens = [read_token(CANARY, where="")]
    with anyio.fail_after(PATIENCE):
        async with (
            started(tokens=tokens) as server,
            RemoteEnvPool(server.url, token=CANARY, patience=0.1) as pool,
            pool.open("counter") as env,
        ):
            await env.reset(seed=3)
            valid, tokens[0] = tokens[0], AccessToken(CANARY.encode(), expires=0)
            await server.close_expired()
            for _ in range(3):
                with pytest.raises(PoolError, match="401, this token expired at 1970"):
                    await env.reset(seed=3)
            tokens[0] = valid
            await opened(pool)
            assert same(await play(env, 3, ACTIONS), expected(SPECS["counter"], 3, ACTIONS))


async def test_a_call_waits_for_a_server_as_long_as_the_patience_lasts() -> None:
    """Of two that are made while the server is away, one is served when it is back; a closed one gets an error."""
    tokens = [read_token(CANARY, where="")]
    seen: list[Any] = []

    async def wait(pool: RemoteEnvPool) -> None:
        try:
            seen.append(await pool.open("counter"))
        except ClosedError as error:
            seen.append(error)

    with anyio.fail_after(PATIENCE):
        async with (
            started(tokens=tokens) as server,
            anyio.create_task_group() as tasks,
            RemoteEnvPool(server.url, token=CANARY, patience=10 * PATIENCE) as pool,
        ):
            host: Any = pool._backend._hosts[0]  # type: ignore[union-attr]
            valid, expired = tokens[0], AccessToken(CANARY.encode(), expires=0)
            for token in (valid, expired):
                tokens[0] = expired
                await server.close_expired()
                while host.usable or host.just_lost:
                    await anyio.lowlevel.checkpoint()
                tasks.start_soon(wait, pool)
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
                tokens[0] = token
                while token is valid and not seen:
                    await anyio.lowlevel.checkpoint()
    assert [type(one) for one in seen] == [EnvHandle, ClosedError]


# Envs that were dropped meanwhile


async def test_an_env_dropped_while_the_connection_is_lost_is_closed() -> None:
    with anyio.fail_after(PATIENCE):
        async with cabled() as (server, cable, pool):
            dropped, kept = await pool.open("counter"), await pool.open("counter")
            await dropped.reset(seed=3)
            await kept.reset(seed=3)
            await cable.sever()
            await cancelled_step(dropped)
            await dropped.close()
            cable.severed = False
            assert same(await kept.step(1), expected(SPECS["counter"], 3, [1])[1])
            assert (await _stats(server))["environments"] == 1
            assert pool.stats().restored == 0


async def test_an_env_whose_drop_is_lost_with_the_connection_is_closed() -> None:
    with anyio.fail_after(PATIENCE):
        async with cabled() as (server, cable, pool):
            dropped, kept = await pool.open("counter"), await pool.open("counter")
            await dropped.reset(seed=3)
            await kept.reset(seed=3)
            cable.deaf = True
            await cancelled_step(dropped)
            await dropped.close()
            await cable.swallowed.wait()
            await cable.cut()
            assert same(await kept.step(1), expected(SPECS["counter"], 3, [1])[1])
            assert (await _stats(server))["environments"] == 1


async def test_an_opening_that_was_given_up_is_not_asked_for_again() -> None:
    with anyio.fail_after(PATIENCE):
        async with cabled() as (server, cable, pool):
            kept = await pool.open("counter")
            await kept.reset(seed=3)
            cable.muted = True
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pool.open("counter").__aenter__)
                await cable.swallowed.wait()
                tasks.cancel_scope.cancel()
            await cable.cut()
            assert same(await kept.step(1), expected(SPECS["counter"], 3, [1])[1])
            assert (await _stats(server))["environments"] == 1


async def test_nothing_stale_is_left_at_a_server_that_was_given_up() -> None:
    """Of its envs that went elsewhere, were closed, or wait for their next call, only the last ones stay."""
    with anyio.fail_after(PATIENCE):
        async with two_servers() as (pool, cable, first, _):
            gone, closed, idle = [await pool.open("counter", worker=0) for _ in range(3)]
            moved = await pool.open("counter", worker=None, beside=gone)
            for env in (gone, closed, idle, moved):
                await play(env, 3, ACTIONS[:3])
            assert (await _stats(first))["environments"] == 4
            await cable.sever()
            with pytest.raises(PoolError, match="is away"):
                await gone.step(1)
            assert same(await moved.step(ACTIONS[3]), expected(SPECS["counter"], 3, ACTIONS)[4])
            assert moved.worker == 1
            await closed.close()
            restored = pool.stats().restored
            cable.severed = False
            new = await opened(pool, worker=0)
            assert same(await idle.step(ACTIONS[3]), expected(SPECS["counter"], 3, ACTIONS)[4])
            assert (idle.worker, new.worker, pool.stats().restored) == (0, 0, restored)
            assert (await _stats(first))["environments"] == 2


async def test_an_env_closed_during_a_call_whose_answer_is_lost() -> None:
    """Whoever waits gets an error; the env is not made again."""
    with anyio.fail_after(PATIENCE):
        async with cabled() as (server, cable, pool):
            env, kept = await pool.open("counter"), await pool.open("counter")
            await env.reset(seed=3)
            await kept.reset(seed=3)
            await cable.sever()

            async def step() -> None:
                with pytest.raises(ClosedError):
                    await env.step(1)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(step)
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
                await env.close()
                cable.severed = False
                await kept.step(1)
            assert (await _stats(server))["environments"] == 1
            assert pool.stats().envs == 1


async def test_a_pool_that_is_here_again_while_its_old_connection_hangs() -> None:
    with anyio.fail_after(PATIENCE):
        async with (
            started(caps=Caps(requests=1)) as server,
            aiohttp.ClientSession(headers=HEADERS) as session,
            session.ws_connect(server.url + PATH) as old,
        ):
            await old.receive_bytes()
            for env in (1, 2):
                await old.send_bytes(msgspec.msgpack.encode([RemoteCall(env, 1, Op.OPEN, encode(["counter", {}]))]))
                await old.receive_bytes()
            async with session.ws_connect(server.url + PATH) as new:
                await new.receive_bytes()
                assert (await old.receive()).type is aiohttp.WSMsgType.CLOSE
                calls = [RemoteCall(0, 0, LIVE, encode([2])), RemoteCall(1, 2, Op.RENDER), RemoteCall(2, 2, Op.RENDER)]
                await new.send_bytes(msgspec.msgpack.encode(calls))
                reported: dict[int, RemoteReply] = {}
                while len(reported) < 2:
                    reported |= {one.env: one for one in read_frame(await new.receive_bytes(), RemoteReply)}
                assert (reported[1].gone, reported[2].gone) == (True, False)
                assert (await _stats(server))["environments"] == 1


@pytest.mark.parametrize("nonsense", [[[1]], 7, ["1"]])
async def test_names_of_envs_that_make_no_sense(nonsense: Any) -> None:
    with anyio.fail_after(PATIENCE):
        async with (
            started() as server,
            aiohttp.ClientSession(headers=HEADERS) as session,
            session.ws_connect(server.url + PATH) as socket,
        ):
            await socket.receive_bytes()
            await socket.send_bytes(msgspec.msgpack.encode([RemoteCall(0, 0, LIVE, encode(nonsense))]))
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE


# Episodes of any length


async def test_a_long_episode_is_restored_and_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was played takes many messages; each piece arrives once, though the connection is cut in between."""
    starts: list[int] = []
    third = anyio.Event()
    add = Session.add_piece

    def note(session: Session, start: int, content: bytes, largest: int) -> None:
        starts.append(start)
        add(session, start, content, largest)
        if len(starts) == 3:
            third.set()

    monkeypatch.setattr(Session, "add_piece", note)
    actions = [bytes([number]) * 10_000 for number in range(100)]

    async def cut(cable: Cable) -> None:
        await third.wait()
        await cable.cut()

    with anyio.fail_after(PATIENCE):
        async with (
            started(caps=Caps(body_bytes=100_000)) as server,
            Cable(server.url).laid() as cable,
            RemoteEnvPool(cable.url) as pool,
            anyio.create_task_group() as tasks,
        ):
            env = await pool.open("echo")
            await play(env, 3, actions)
            await server.close_idle(anyio.current_time() + 10_000)
            tasks.start_soon(cut, cable)
            assert (await env.step("a")).observation == "a"
            assert (pool.stats().restored, cable.connections) == (1, 2)
            assert starts == sorted(set(starts))
            assert len(starts) == 21
            twin = await env.fork()
            assert (await twin.step("b")).observation == "b"
            assert len(starts) == 42
            with pytest.raises(UsageError, match="more than half of what"):
                await twin.step(bytes(100_000))


async def test_a_past_has_a_bound_at_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MESSAGES_OF_A_LOG", 2)
    async with remote(caps=Caps(body_bytes=100_000)) as (_, pool), pool.open("echo") as env:
        await play(env, 3, [bytes(10_000)] * 30)
        with pytest.raises(
            UsageError, match="its replay log takes more than the 200,000 bytes that this server replays"
        ):
            await env.fork()
        assert (await env.step("a")).observation == "a"


async def test_pieces_that_make_no_sense() -> None:
    with anyio.fail_after(PATIENCE):
        async with (
            started() as server,
            aiohttp.ClientSession(headers=HEADERS) as session,
            session.ws_connect(server.url + PATH) as socket,
        ):
            await socket.receive_bytes()

            async def ask(number: int, op: int, payload: Any) -> RemoteReply:
                await socket.send_bytes(msgspec.msgpack.encode([RemoteCall(1, number, op, encode(payload))]))
                (answer,) = read_frame(await socket.receive_bytes(), RemoteReply)
                return answer

            assert (await ask(1, Op.OPEN, ["counter", {}])).failure is None
            for number, piece in enumerate(([5, b"x"], [0, "text"], [0], None, [[], b""]), start=2):
                assert (await ask(number, PIECE, piece)).failure is not None
            assert (await ask(10, Op.REPLAY, None)).failure is not None
            assert (await ask(11, PIECE, [0, b"\xc1"])).failure is None
            assert (await ask(12, Op.REPLAY, None)).failure is not None
            assert (await ask(13, Op.RESET, [1, None, 0, 0])).failure is None


# The end of it


async def test_a_server_that_stops_closes_all_envs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for all others; one by one, none would come to its end."""
    monkeypatch.setattr("asyncrollout.pool.handle.CLOSE_GRACE", 1.0)
    monkeypatch.setattr(Meeting, "closed", 0)
    stopped = anyio.Event()

    async def hold(url: str, *, task_status: TaskStatus[None]) -> None:
        async with RemoteEnvPool(url, patience=0.1) as pool:
            for _ in range(2):
                await pool.open("meeting", size=4)
            task_status.started()
            await stopped.wait()

    async with EnvPool(backend="inline") as behind, anyio.create_task_group() as tasks:
        async with EnvServer(behind, port=0) as server:
            await tasks.start(hold, server.url)
            await tasks.start(hold, server.url)
        stopped.set()
        assert (Meeting.closed, behind.stats().envs) == (4, 0)


async def test_a_connection_that_nobody_used_is_closed() -> None:
    async with EnvPool(backend="inline") as behind, EnvServer(behind, port=0) as server:
        async with connection.Connection(server.url, {CLIENT_HEADER: "0" * 32}, PATIENCE) as unused:
            await unused.make()
        assert unused.socket is not None
        assert unused.socket.closed
