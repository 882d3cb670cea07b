"""A pool whose envs live at a server: the same as here, whatever happens to the connection or the server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import msgspec
import numpy as np
import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from anyio.abc import TaskStatus

from asyncrollout import (
    ChatAgent,
    EnvCrashed,
    EnvDiverged,
    EnvError,
    EnvPool,
    PoolError,
    RemoteEnvPool,
    Rollouts,
    ScriptedPolicy,
    SolverPolicy,
    UnknownEnvError,
    UsageError,
    registry,
    run_group,
)
from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.messages import Op
from asyncrollout.service import channel, connection, remote_host
from asyncrollout.service.access import AccessToken, read_token
from asyncrollout.service.allowed_envs import Admission
from asyncrollout.service.messages import (
    CLIENT_HEADER,
    PATH,
    PROTOCOL,
    Hello,
    Outbox,
    RemoteCall,
    RemoteReply,
    decode,
    encode,
    read_frame,
)
from asyncrollout.service.remote import RemoteBackend
from asyncrollout.service.server import Caps, EnvServer
from asyncrollout.testing import same
from asyncrollout.video import VideoRecorder
from tests.cable import Cable
from tests.envs.service import KNOWN
from tests.envs.tiny import Point
from tests.odd_values import Frame, Pair, Table, Text, Whole
from tests.playing import ACTIONS, PATIENCE, REPLIES, Gate, expected, play
from tests.test_service_http import CANARY, serve, started

SPECS = {spec.name: spec for spec in KNOWN}
EPISODES: list[tuple[str, list[Any]]] = [
    ("counter", ACTIONS),
    ("snapshot", ACTIONS),
    ("echo", ["a", (1, [2.5, None]), {"x": np.arange(3)}, {1, 2}, 2**80, "\ud800", {(1, 2): 3}, float("nan")]),
    ("big", [0, 0]),
    ("bigs", [0, 0]),
    ("growing", [0, 0, 0]),
    ("gymnasium:CartPole-v1", [0, 1, 0, 1]),
]


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in KNOWN:
        monkeypatch.setitem(registry._registered, spec.name, spec)
    monkeypatch.delenv("ASYNCROLLOUT_TOKEN", raising=False)


@asynccontextmanager
async def remote(**options: Any) -> AsyncIterator[tuple[EnvServer, RemoteEnvPool]]:
    async with started(**options) as server, RemoteEnvPool(server.url) as pool:
        yield server, pool


@asynccontextmanager
async def cabled() -> AsyncIterator[tuple[EnvServer, Cable, RemoteEnvPool]]:
    async with (
        started(workers=1) as server,
        Cable(server.url).laid() as cable,
        RemoteEnvPool(cable.url, patience=0.5) as pool,
    ):
        yield server, cable, pool


class Leaving:
    """A server that can be stopped while others continue."""

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._told, self._gone = anyio.Event(), anyio.Event()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        async with started(port=self._port) as server:
            self.url = server.url
            task_status.started()
            await self._told.wait()
        self._gone.set()

    async def stop(self) -> None:
        self._told.set()
        await self._gone.wait()


# The same as here


async def test_same_transcripts() -> None:
    async with remote() as (_, pool), EnvPool(backend="inline") as here:
        for name, actions in EPISODES:
            spec = registry.find_env(name)
            async with pool.open(name) as env:
                for seed in (3, 2**100):
                    if name in ("counter", "echo") or seed == 3:
                        assert same(await play(env, seed, actions), expected(spec, seed, actions)), name
        for name in ("text", "gallery"):
            async with pool.open(name, expert=True) as env, here.open(name, expert=True) as local:
                seen = await play(env, 5, REPLIES)
                assert same(seen, await play(local, 5, REPLIES))
                assert seen[1].info["expert"] == "add 9"
                assert env.worked > 0
        async with pool.open("counter") as env:
            assert same(await play(env, 5, ACTIONS, task=40), expected(SPECS["counter"], 5, ACTIONS, task=40))
        async with pool.open("dice") as env, here.open("dice") as local:
            for member in (0, 3):
                for one in (env, local):
                    await one.reset(seed=1, member=member)
                assert same(await env.step(0), await local.step(0))


async def test_same_rollouts() -> None:
    """Sokoban with groups of four, and videos, whose observations are pictures."""

    async def collect(pool: EnvPool) -> list[Any]:
        envs: Any = [{"env": "sokoban"}, {"env": "video", "env_kwargs": {"frame_size": 32}}]
        async with Rollouts(envs, policy=SolverPolicy(0.3), pool=pool, group_size=2, order="start", seed=4) as rollouts:
            batch = await rollouts.collect(groups=4)
        played = [trajectory for group in batch.groups for trajectory in group.trajectories]
        assert {one.env for one in played} == {"sokoban", "video"}
        assert all(turn.env_work_seconds for one in played for turn in one.turns)
        unlike = ("seconds", "turns")
        fields = [{k: v for k, v in msgspec.structs.asdict(one).items() if k not in unlike} for one in played]
        turns = [[_timeless(turn) for turn in one.turns] for one in played]
        return [fields, turns]

    async with remote(workers=1) as (_, pool), EnvPool(workers=1) as here:
        assert same(await collect(pool), await collect(here))


def _timeless(turn: Any) -> dict[str, Any]:
    fields = msgspec.structs.asdict(turn)
    return {name: value for name, value in fields.items() if not name.endswith("_seconds") and name != "timings"}


async def test_an_env_that_only_the_server_knows() -> None:
    admission = Admission(find={"maze": SPECS["text"]}.__getitem__)
    async with remote(admission=admission) as (_, pool):
        async with Rollouts("maze", policy=ScriptedPolicy(["add 1"] * 9), pool=pool, group_size=2, seed=4) as rollouts:
            batch = await rollouts.collect(groups=1)
        group = await run_group(pool, "maze", ChatAgent(ScriptedPolicy(["add 1"] * 9)), seed=4, size=1)
    played = [*batch.groups[0].trajectories, *group.trajectories]
    assert [(one.env, one.error, len(one.turns) > 0) for one in played] == [("maze", None, True)] * 3


async def test_calls_forks_snapshots() -> None:
    async with remote() as (_, pool):
        async with pool.open("text") as env:
            assert await env.call("set_bonus", bonus=0.5) == 0.5
            await env.reset(seed=1)
            assert await env.call("add", 5) == 5
            assert await env.call("anchor") == ("total", 5)
            assert (await env.render()).tolist() == np.full((4, 4, 3), 5, dtype=np.uint8).tolist()
            kept = await env.snapshot()
            twin = await env.fork()
            first = await env.step("add 3")
            assert same(await twin.step("add 3"), first)
            await env.restore(kept)
            assert same(await env.step("add 3"), first)
            outcomes = await pool.step_many([env, twin], ["add 1", "add 1"])
            assert same(*outcomes)
            stats = pool.stats()
            assert (stats.envs, stats.workers[0].envs, stats.restarts) == (2, 2, 0)
            assert stats.calls > 5
        async with pool.open("snapshot") as env, EnvPool(backend="inline") as here, here.open("snapshot") as local:
            await local.reset(seed=1)
            with pytest.raises(UsageError, match="not made by a remote pool"):
                await env.restore(await local.snapshot())


async def test_steps_of_one_moment_travel_together(monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[int] = []

    def count(frame: bytes, kind: Any) -> list[Any]:
        parts = read_frame(frame, kind)
        frames.append(len(parts))
        return parts

    async with remote() as (_, pool):
        envs = [await pool.open("light_text") for _ in range(32)]
        await pool.reset_many(envs, range(32))
        for end in (channel, remote_host):
            monkeypatch.setattr(end, "read_frame", count)
        await pool.step_many(envs, ["add 1"] * 32)
        assert frames[0] == 32
        assert sum(frames[1:]) == 32
        assert len(frames) < 8


async def test_many_pools_at_once() -> None:
    seen: dict[int, Any] = {}

    async def run(server: EnvServer, number: int) -> None:
        async with RemoteEnvPool(server.url) as pool, pool.open("light_text") as env:
            seen[number] = await play(env, number % 8, ["add 1", f"add {number % 8}"])

    async with started() as server, anyio.create_task_group() as tasks:
        for number in range(64):
            tasks.start_soon(run, server, number)
    assert len(seen) == 64
    assert all(same(seen[number], seen[number % 8]) for number in seen)


# Errors


async def test_errors_are_those_of_a_pool_here(tmp_path: Path) -> None:
    async with remote(workers=1) as (server, pool), EnvPool(workers=1) as here:
        message = []
        for one in (pool, here):
            async with one.open("crasher", at=1, how="raise") as env:
                await env.reset(seed=3)
                with pytest.raises(EnvError, match="the env's own mistake") as caught:
                    await env.step(1)
                message.append((str(caught.value), caught.value.remote_type, caught.value.seed, caught.value.turn))
                assert 'raise ValueError("the env\'s own mistake")' in (caught.value.remote_traceback or "")
                with pytest.raises(UsageError, match="its episode failed"):
                    await env.step(1)
                assert (await env.reset(seed=3)).reward == 0
        assert message[0] == message[1]
        async with pool.open("crasher", at=2, how="kill", once=str(tmp_path / "once")) as env:
            assert same(await play(env, 3, ACTIONS), expected(SPECS["counter"], 3, ACTIONS))
        assert (await _stats(server))["workers"]["restarts"] == 1
        for name, kwargs, kind, reason in (
            ("sokobn", {}, UnknownEnvError, "did you mean 'sokoban'"),
            ("tests.envs.tiny:Counter", {}, UsageError, "opens registered envs only"),
            ("refuses", {}, EnvError, "no licence for this simulator"),
            ("counter", {"limt": 3}, UsageError, "did you mean 'limit'"),
            ("counter", {"data_path": "/etc/passwd"}, UsageError, "reads no files for clients"),
        ):
            with pytest.raises(kind, match=reason):
                await pool.open(name, **kwargs)
        with pytest.raises(UsageError, match="worker=1 is not a rank"):
            await pool.open("counter", worker=1)
        assert (await _stats(server))["environments"] == 0


async def _stats(server: EnvServer) -> Any:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/stats") as response:
        return await response.json()


async def test_what_only_pickle_can_carry_stays() -> None:
    async with remote() as (_, pool):
        async with pool.open("echo") as env:
            with pytest.raises(UsageError, match=r"Point cannot be sent over a network"):
                await env.reset(seed=1, task=Point(1, "x"))
            await env.reset(seed=1)
            with pytest.raises(UsageError, match=r"Point cannot be sent over a network"):
                await env.step({"x": Point(1, "x")})
            assert (await env.step("a")).observation == "a"
            for value in (Pair(1, 2), {"x": [Whole(1)]}, Table(a=1), np.array([1]).view(Frame), Text("a")):
                with pytest.raises(UsageError, match=r"(Pair|Whole|Table|Frame of int64|Text) cannot be sent over"):
                    await env.step(value)  # it would come as another type, and be another episode than here
            image = pytest.importorskip("PIL.Image")
            with pytest.raises(UsageError, match="size 0x0 cannot be sent"):
                await env.step(image.new("RGB", (0, 0)))
            assert (await env.step(image.new("RGB", (1, 1)))).observation.startswith(b"\x89PNG")
        async with pool.open("informed") as env:
            assert (await env.reset(seed=1)).info["pair"] == (1, 2)  # in info it may
        async with pool.open("bag") as env:
            with pytest.raises(EnvError, match="what it returned cannot be sent over a network"):
                await env.reset(seed=1)
        async with pool.open("text") as env:
            await env.reset(seed=1)
            with pytest.raises(UsageError, match="import path"):
                await env.call("add", "os:system")
        async with pool.open("snapshot") as env:
            await env.reset(seed=1)
            with pytest.raises(UsageError, match="takes its state from a network"):
                await env.call("restore", b"")


async def test_what_is_too_large_stays() -> None:
    async with remote(caps=Caps(body_bytes=1 << 20)) as (_, pool), pool.open("echo") as env:
        await env.reset(seed=1)
        with pytest.raises(UsageError, match="more than half of what http"):
            await env.step(bytes(1 << 20))
        seen = await env.step(bytes(400_000))
        assert len(seen.observation) == 400_000  # and as much in its info: an answer may be larger


async def test_caps() -> None:
    async with remote(caps=Caps(envs=2)) as (_, pool):
        first, _second = await pool.open("counter"), await pool.open("counter")
        with pytest.raises(PoolError, match="this server allows 2 open environments"):
            await pool.open("counter")
        await first.close()
        await pool.open("counter")
    async with remote(caps=Caps(requests=1)) as (server, _):
        with pytest.raises(PoolError, match=f"{server.url} refused the connection: status 503, 1 remote pools"):
            async with RemoteEnvPool(server.url):
                pass


async def test_tokens() -> None:
    async with started(tokens=[read_token(CANARY, where="")]) as server:
        for token, reason in (
            (None, "status 401, a token is required"),
            ("wrong-" + CANARY, "status 401, this token is not"),
        ):
            with pytest.raises(UsageError, match=reason) as caught:
                async with RemoteEnvPool(server.url, token=token):
                    pass
            assert CANARY not in "".join([repr(caught.value), repr(caught.value.__context__), str(vars(caught.value))])
        async with RemoteEnvPool(server.url, token=CANARY) as pool, pool.open("counter") as env:
            await env.reset(seed=1)
        tokens = [read_token(CANARY, where="")]
    async with (
        started(tokens=tokens) as server,
        RemoteEnvPool(server.url, token=CANARY) as pool,
        pool.open("counter") as env,
    ):
        await env.reset(seed=1)
        await server.close_expired()
        await env.step(1)
        assert pool.stats().workers[0].restarts == 0
        tokens[0] = AccessToken(CANARY.encode(), expires=0)
        await server.close_expired()
        with anyio.fail_after(PATIENCE), pytest.raises(PoolError, match="401, this token expired at 1970") as lost:
            await env.step(1)
        assert CANARY not in str(lost.value)
    addresses: list[Any] = [f"http://{CANARY}@127.0.0.1:1", f"http://127.0.0.1:1?token={CANARY}", "127.0.0.1:1", 3, []]
    for bad in addresses:
        with pytest.raises(UsageError, match=r"host and port|address of") as caught:
            RemoteEnvPool(bad)
        assert CANARY not in str(caught.value)


# Lost connections


async def test_a_cut_connection_is_taken_up_again(tmp_path: Path) -> None:
    """Calls under way when it is cut are made once, and answered."""
    gate = Gate(tmp_path)
    async with cabled() as (_, cable, pool):
        async with pool.open("gated", pipe=gate.pipe) as env, pool.open("counter") as other:
            await env.reset(seed=3)
            await other.reset(seed=3)
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    seen: list[Any] = []

                    async def step() -> None:
                        seen.append(await env.step("wait"))

                    tasks.start_soon(step)
                    await gate.begun()
                    await cable.cut()
                    await gate.open()
                assert same(seen, expected(SPECS["counter"], 3, [0])[1:])
                assert same(await other.step(4), expected(SPECS["counter"], 3, [4])[1])
        assert (cable.connections, pool.stats().restarts) == (2, 1)
        assert pool.stats().restored == 0


async def test_an_answer_that_was_lost_is_given_again() -> None:
    async with cabled() as (server, cable, pool):
        async with pool.open("light_text") as env:
            await env.reset(seed=3)
            cable.muted = True
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    seen: list[Any] = []

                    async def step() -> None:
                        seen.append(await env.step("add 3"))

                    tasks.start_soon(step)
                    await cable.swallowed.wait()  # it was made, and nobody heard of it
                    cable.muted = False
                    await cable.cut()
                seen.append(await env.step("add 4"))
        assert (await _stats(server))["calls"]["begun"] == 5  # open, reset, two steps, close
    async with EnvPool(backend="inline") as here, here.open("light_text") as local:
        assert same(seen, (await play(local, 3, ["add 3", "add 4"]))[1:])


async def test_a_cancelled_step_needs_a_reset(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    async with remote(workers=1) as (_, pool), pool.open("gated", pipe=gate.pipe) as env:
        await env.reset(seed=3)
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(env.step, "wait")
                await gate.begun()
                tasks.cancel_scope.cancel()
            with pytest.raises(UsageError, match="its last call was cancelled half-way"):
                await env.step(1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(gate.open)
                assert same(await play(env, 3, ACTIONS), expected(SPECS["counter"], 3, ACTIONS))


# Lost servers


async def test_a_server_that_starts_anew() -> None:
    """Envs are played again to where they were; what cannot be is an error."""
    first = Leaving()
    async with anyio.create_task_group() as tasks:
        await tasks.start(first.run)
        async with RemoteEnvPool(first.url) as pool:
            envs = {name: await pool.open(name) for name in ("counter", "once_only", "nondeterministic", "snapshot")}
            fresh = await pool.open("counter")
            assert await fresh.call("set_bonus", 0.5) == 0.5
            for env in envs.values():
                await play(env, 3, ACTIONS[:3])
            await first.stop()
            second = Leaving(int(first.url.rpartition(":")[2]))
            await tasks.start(second.run)
            for name in ("counter", "snapshot"):
                outcomes = [await envs[name].step(action) for action in ACTIONS[3:]]
                assert same(outcomes, expected(SPECS[name], 3, ACTIONS)[4:])
            assert (await play(fresh, 3, [1]))[1].reward == expected(SPECS["counter"], 3, [1])[1].reward + 0.5
            with pytest.raises(EnvCrashed, match="not replayable"):
                await envs["once_only"].step(1)
            with pytest.raises(EnvDiverged):
                await envs["nondeterministic"].step(1)
            assert pool.stats().restored >= 4
        await second.stop()


async def test_idle_sessions_are_closed_and_come_back() -> None:
    async with remote(caps=Caps(idle_seconds=1000)) as (server, pool), pool.open("counter") as env:
        await play(env, 3, ACTIONS[:3])
        await server.close_idle(anyio.current_time() + 500)
        assert (await _stats(server))["environments"] == 1
        await server.close_idle(anyio.current_time() + 2000)
        assert (await _stats(server))["environments"] == 0
        assert same(await env.step(ACTIONS[3]), expected(SPECS["counter"], 3, ACTIONS)[4])
        assert pool.stats().restored == 1


async def test_envs_of_a_pool_that_is_gone_are_closed() -> None:
    async with started() as server:
        async with RemoteEnvPool(server.url) as pool:
            await pool.open("counter")
            assert (await _stats(server))["environments"] == 1
        assert (await _stats(server))["environments"] == 0
    async with cabled() as (server, cable, pool):
        await pool.open("counter")
        await cable.sever()
        with anyio.fail_after(PATIENCE):
            while (await _stats(server))["environments"]:
                await server.close_idle(anyio.current_time() + 61)


async def test_a_server_that_stops_leaves_no_envs() -> None:
    opened, stopped = anyio.Event(), anyio.Event()

    async def hold(url: str) -> None:
        async with RemoteEnvPool(url, patience=0.1) as pool:
            await pool.open("counter")
            opened.set()
            await stopped.wait()

    async with EnvPool(backend="inline") as behind, anyio.create_task_group() as tasks:
        async with EnvServer(behind, port=0) as server:
            tasks.start_soon(hold, server.url)
            await opened.wait()
            assert behind.stats().envs == 1
        assert behind.stats().envs == 0
        stopped.set()


async def test_a_dead_server_is_named() -> None:
    with serve() as (process, url):
        with pytest.raises(PoolError, match=r"http://127.0.0.1:9 cannot be reached"):
            async with RemoteEnvPool("http://127.0.0.1:9"):
                pass
        with anyio.fail_after(PATIENCE):
            async with RemoteEnvPool(url, patience=0.1) as pool, pool.open("frozen_lake") as env:
                await env.reset(seed=1)
                process.kill()
                with pytest.raises(PoolError, match=f"{url} cannot be reached"):
                    await env.step("<answer>Right</answer>")
                with pytest.raises(PoolError, match=f"no server is left: {url}"):
                    await pool.open("frozen_lake")


async def test_a_server_that_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing closes the connection: a heartbeat finds out. What is on its way then is asked for again."""
    monkeypatch.setattr(connection, "_HEARTBEAT", 0.1)
    with anyio.fail_after(PATIENCE):
        async with cabled() as (_, cable, pool), pool.open("counter") as env:
            await play(env, 3, ACTIONS[:3])
            cable.muted = True
            seen = await env.step(ACTIONS[3])
            assert same(seen, expected(SPECS["counter"], 3, ACTIONS)[4])
            assert pool.stats().workers[0].restarts == 1
            assert pool.stats().restored == 0


@pytest.mark.parametrize(
    ("reply", "trouble"),
    [
        (None, "closed the connection 6 times without an answer"),
        (b"\xc1", "is not an asyncrollout server: this is not a valid frame"),
    ],
)
async def test_a_server_that_never_answers_is_given_up(reply: bytes | None, trouble: str) -> None:
    connections = 0

    async def talk(request: web.Request) -> web.WebSocketResponse:
        nonlocal connections
        connections += 1
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_bytes(msgspec.msgpack.encode(Hello(PROTOCOL, 1 << 20)))
        await socket.receive()
        if reply is not None:
            await socket.send_bytes(reply)
        await socket.close()
        return socket

    app = web.Application()
    app.add_routes([web.get(PATH, talk)])
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        with anyio.fail_after(PATIENCE), pytest.raises(PoolError, match=f"no server is left: {url} {trouble}"):
            async with RemoteEnvPool(url, patience=0.1) as pool:
                await pool.open("counter")
    assert connections == (6 if reply is None else 1)


async def test_envs_of_a_dead_server_continue_at_another() -> None:
    leaving = Leaving()
    async with started() as staying, anyio.create_task_group() as tasks:
        await tasks.start(leaving.run)
        async with RemoteEnvPool([leaving.url, staying.url], patience=0.1) as pool:
            envs = [await pool.open("counter") for _ in range(4)]
            assert {env.worker for env in envs} == {0, 1}
            for env in envs:
                await play(env, 3, ACTIONS[:3])
            await leaving.stop()
            for env in envs:
                outcomes = [await env.step(action) for action in ACTIONS[3:]]
                assert same(outcomes, expected(SPECS["counter"], 3, ACTIONS)[4:])
            assert {env.worker for env in envs} == {1}
            assert pool.stats().restored == 2


async def test_nothing_is_left_of_envs_that_were_closed() -> None:
    """By either way, and by pools that leave without closing theirs."""
    with serve() as (process, url), anyio.fail_after(PATIENCE):
        server = psutil.Process(process.pid)

        async def cycle(times: int) -> tuple[int, int, int]:
            async with aiohttp.ClientSession() as session:
                for number in range(times):
                    configs = {f"{number}": {"env_name": "bandit"}, f"{number}b": {"env_name": "sokoban"}}
                    async with session.post(url + "/environments", json={"ids2configs": configs}) as response:
                        assert (await response.json())["errors"] == {}
                    async with session.post(url + "/batch/close", json={"env_ids": [*configs]}) as response:
                        assert response.status == 200
                    async with RemoteEnvPool(url) as pool:
                        await (await pool.open("bandit")).reset(seed=number)
            async with aiohttp.ClientSession() as session, session.get(f"{url}/stats") as response:
                message = await response.json()
            assert (message["environments"], message["pools"], message["workers"]["envs"]) == (0, 0, 0)
            return server.num_fds(), len(server.children(recursive=True)), server.memory_info().rss

        fds, children, rss = await cycle(5)
        fds_after, children_after, rss_after = await cycle(25)
        assert children_after == children
        assert fds_after < fds + 10  # connections that are just being closed
        assert rss_after - rss < 5 << 20


# What strangers send


async def test_nonsense_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_MOST_UNSENT", 100)
    evil = msgspec.msgpack.encode(msgspec.msgpack.Ext(codec.Code.PICKLE, codec.to_pickle(Point(1, "x"))))
    async with remote() as (server, pool), aiohttp.ClientSession() as session:
        headers = {CLIENT_HEADER: "0" * 32}
        for name in ("", "0" * 31, "G" * 32):
            async with session.get(server.url + PATH, headers={CLIENT_HEADER: name}) as response:
                assert response.status == 400
        async with session.ws_connect(server.url + PATH, headers=headers) as socket:
            await socket.receive_bytes()
            calls = [
                RemoteCall(1, 1, Op.OPEN, encode(["counter", {}])),
                RemoteCall(1, 2, Op.RESET, encode([1, None])),
                RemoteCall(1, 3, Op.RESET, encode([1, None, 0, 0])),
                RemoteCall(1, 4, Op.STEP, msgspec.Raw(evil)),
                RemoteCall(1, 5, Op.STEP, msgspec.Raw(msgspec.msgpack.encode(msgspec.msgpack.Ext(2, b"xx")))),
                RemoteCall(1, 6, Op.CALL, encode(["_show", (), {}, None])),
                RemoteCall(1, 7, Op.CALL, encode([3, (), {}, None])),
                RemoteCall(1, 8, 99, encode(None)),
                RemoteCall(1, 9, Op.REPLAY, encode([[], [1, None, 0, None, 0, 7, [], None], False])),
                RemoteCall(1, 10, Op.SNAPSHOT, encode(True)),
                RemoteCall(2, 1, Op.OPEN, encode([["counter"], {}])),
                RemoteCall(3, 1, Op.STEP, encode(1)),
            ]
            message: dict[tuple[int, int], RemoteReply] = {}
            for call in calls:
                await socket.send_bytes(msgspec.msgpack.encode([call]))
                (answer,) = read_frame(await socket.receive_bytes(), RemoteReply)
                message[answer.env, answer.number] = answer
            assert [key for key, answer in message.items() if answer.failure is None] == [
                (1, 1),
                (1, 3),
                (1, 10),
                (3, 1),
            ]
            assert message[3, 1].gone
            assert "unknown extension 5" in str(message[1, 4].failure)
            await socket.send_bytes(
                msgspec.msgpack.encode([RemoteCall(3, 1, Op.STEP)] * 400)
            )  # more answers than may wait
            while (await socket.receive()).type is aiohttp.WSMsgType.BINARY:
                pass
            assert socket.close_code == aiohttp.WSCloseCode.POLICY_VIOLATION
        async with session.ws_connect(server.url + PATH, headers=headers) as socket:
            await socket.receive_bytes()
            await socket.send_bytes(b"\xc1 nonsense")
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        async with session.ws_connect(server.url + PATH, headers=headers) as socket:
            await socket.receive_bytes()
            await socket.send_str("text")
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        async with pool.open("counter") as env:  # nobody else noticed
            assert same(await play(env, 3, ACTIONS), expected(SPECS["counter"], 3, ACTIONS))


def _extension(code: int, content: Any) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, msgspec.msgpack.encode(content)))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\xc7\x00\x05",
        b"\xc7\x02\x02\x92\xa1",
        b"\xc7\x02\x64\xc1\xc0",
        b"\xc7\x03\x64\x81\xa1$",
        _extension(codec.Code.SCALAR, ["<i4", b""]),
        _extension(codec.Code.ARRAY, ["(1,", [1], b"a"]),
    ],
)
def test_values_of_strangers_are_refused(raw: bytes) -> None:
    with pytest.raises(UsageError):
        decode(msgspec.Raw(raw))


def test_deep_values_of_strangers_are_refused() -> None:
    raw = b"\x90"
    for _ in range(20_000):
        raw = msgspec.msgpack.encode(msgspec.msgpack.Ext(codec.Code.TUPLE, b"\x91" + raw)) if len(raw) < 60_000 else raw
    with pytest.raises(UsageError):
        decode(msgspec.Raw(raw))


async def test_frames_are_cut_to_size() -> None:
    sent: list[bytes] = []

    async def send(frame: bytes) -> None:
        sent.append(frame)

    outbox = Outbox()
    for number in range(10):
        outbox.put(RemoteCall(1, number, Op.STEP, encode(bytes(300))))
    await outbox.flush(send, 1000)
    assert all(len(frame) <= 1000 for frame in sent)
    assert [call.number for frame in sent for call in read_frame(frame, RemoteCall)] == [*range(10)]
    await outbox.flush(send, 1000)
    assert len(sent) == 5


async def test_what_lives_at_a_server_is_not_recorded(tmp_path: Path) -> None:
    async with remote() as (_, pool), VideoRecorder(tmp_path) as recorder:
        with pytest.raises(UsageError, match="lives at a server"):
            pool.open("counter", record=recorder.record("counter"))


async def test_nobody_waits_for_a_server_to_be_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a pool of its own to see to that; to look again and again would block the loop."""

    async def never(_self: RemoteBackend) -> None:
        raise AssertionError("somebody waits")

    monkeypatch.setattr(RemoteBackend, "wait_idle", never)
    async with remote(workers=1) as (_, pool), anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(pool.open("counter").__aenter__)
