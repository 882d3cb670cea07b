"""`asyncrollout serve` under attack: floods, silent connections, foreign names, options that are not for clients."""

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.abc
import anyio.lowlevel
import msgspec
import pytest

from asyncrollout import EnvError, EnvPool, PoolError, RemoteEnvPool, registry
from asyncrollout.pool.wire.messages import Op
from asyncrollout.service import bodies, channel, connection_limits, server
from asyncrollout.service.access import read_token
from asyncrollout.service.allowed_envs import Admission
from asyncrollout.service.clients import Client
from asyncrollout.service.messages import CLIENT_HEADER, MOST_PARTS, PATH, RemoteCall, RemoteReply, encode, read_frame
from asyncrollout.service.server import Caps
from asyncrollout.service.sessions import Sessions
from tests.envs.service import KNOWN, AsyncRounds
from tests.playing import PATIENCE, Gate
from tests.test_service_http import CANARY, serving, started

FOLDER = re.compile(r"/\w+/")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in KNOWN:
        monkeypatch.setitem(registry._registered, spec.name, spec)
    monkeypatch.delenv("ASYNCROLLOUT_TOKEN", raising=False)


@asynccontextmanager
async def connected(url: str, number: int = 0) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    headers = {CLIENT_HEADER: f"{number:032x}"}
    async with aiohttp.ClientSession() as session, session.ws_connect(url + PATH, headers=headers) as stranger:
        await stranger.receive_bytes()
        yield stranger


# Floods


async def test_a_frame_of_many_calls_is_refused_before_it_is_read() -> None:
    async with started() as served, connected(served.url) as stranger, RemoteEnvPool(served.url) as pool:
        async with pool.open("counter") as env:
            await env.reset(seed=1)
            await stranger.send_bytes(msgspec.msgpack.encode([RemoteCall(1, 1, Op.STEP)] * 50_000))
            closed = await stranger.receive()
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.PROTOCOL_ERROR)
            assert f"at most {MOST_PARTS} parts" in str(closed.extra)
            assert (await env.step(1)).reward is not None
        for size in (b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff"):
            async with connected(served.url) as other:
                await other.send_bytes(size)
                assert (await other.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_calls_are_begun_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get their turn in between: no more than a slice is begun in one round of the event loop."""
    rounds = 0
    begun: list[int] = []
    begin = Sessions.begin

    def noted(self: Sessions, client: Client, call: RemoteCall) -> None:
        begun.append(rounds)
        begin(self, client, call)

    monkeypatch.setattr(Sessions, "begin", noted)
    monkeypatch.setattr(channel, "_SLICE", 10)
    async with started() as served, connected(served.url) as stranger, anyio.create_task_group() as tasks:

        async def tick() -> None:
            nonlocal rounds
            while True:
                await anyio.lowlevel.checkpoint()
                rounds += 1

        tasks.start_soon(tick)
        for _ in range(3):
            await stranger.send_bytes(msgspec.msgpack.encode([RemoteCall(1, 1, Op.STEP)] * 100))
        answers: list[RemoteReply] = []
        with anyio.fail_after(PATIENCE):
            while len(answers) < 300:
                answers += read_frame(await stranger.receive_bytes(), RemoteReply)
        tasks.cancel_scope.cancel()
    assert all(answer.gone for answer in answers)
    assert len(begun) == 300
    assert max(begun.count(number) for number in {*begun}) == 10


async def test_a_pool_with_more_envs_than_a_frame_takes_sends_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrollout.service.messages.MOST_PARTS", 3)
    async with started() as served, RemoteEnvPool(served.url) as pool:
        envs = [await pool.open("counter") for _ in range(20)]
        async with anyio.create_task_group() as tasks:
            for env in envs:
                tasks.start_soon(partial(env.reset, seed=1))
        assert {env.outcome.observation for env in envs} == {envs[0].outcome.observation}


@pytest.mark.parametrize(("requests", "most"), [(1, 1), (8, 4)])
async def test_calls_of_remote_pools_count_against_the_requests(requests: int, most: int) -> None:
    AsyncRounds.at_work = AsyncRounds.most = 0
    async with started(caps=Caps(requests=requests)) as served, RemoteEnvPool(served.url) as pool:
        envs = [await pool.open("async_rounds") for _ in range(4)]
        async with anyio.create_task_group() as tasks:
            for env in envs:
                tasks.start_soon(partial(env.reset, seed=1))
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for env in envs:
                    tasks.start_soon(env.step, most)
    assert AsyncRounds.most == most


async def test_calls_that_are_too_many_are_refused() -> None:
    class Heard:
        def __init__(self) -> None:
            self.answers: list[RemoteReply] = []

        def send(self, answer: RemoteReply) -> None:
            self.answers.append(answer)

        def leave(self) -> None:
            raise AssertionError

    async with (
        EnvPool(backend="inline") as pool,
        Sessions(pool, Admission(), lambda: None, 1000, at_once=1, most_waiting=1) as sessions,
    ):
        heard = Heard()
        client = sessions.attach("0" * 32, heard)
        for env in range(4):
            sessions.begin(client, RemoteCall(env, 1, Op.OPEN, encode(["counter", {}])))
        assert [(answer.env, "2 calls are in flight" in str(answer.failure)) for answer in heard.answers] == [
            (2, True),
            (3, True),
        ]
        with anyio.fail_after(PATIENCE):
            while len(heard.answers) < 4:
                await anyio.lowlevel.checkpoint()
        assert sorted(client.sessions) == [0, 1]


async def test_a_body_of_many_envs_is_refused() -> None:
    async with serving(caps=Caps(envs=1)) as browser:
        ids = [str(number) for number in range(MOST_PARTS + 5)]
        for path, body in (
            ("/environments", {"ids2configs": {key: {} for key in ids}}),
            ("/batch/step", {"ids2actions": dict.fromkeys(ids)}),
            ("/batch/close", {"env_ids": ids}),
        ):
            status, message = await browser.post(path, body)
            assert (status, "envs in a request: at most 1,004" in message["error"]) == (413, True)
            assert (await browser.ask("GET", "/stats"))[0] == 200


# Connections


async def dialled(url: str) -> anyio.abc.SocketStream:
    host, port = url.removeprefix("http://").split(":")
    return await anyio.connect_tcp(host, int(port))


async def ended(stream: anyio.abc.SocketStream) -> bool:
    """Whether the other side has closed it, after all that it had to say."""
    try:
        with anyio.fail_after(PATIENCE):
            while True:
                await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return True


REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def test_connections_that_send_no_request_are_closed() -> None:
    async with started() as served:
        silent, slow, asking = [await dialled(served.url) for _ in range(3)]
        await slow.send(REQUEST[:30])
        await asking.send(REQUEST)
        assert b"200 OK" in await asking.receive()
        now = time.monotonic()
        assert served._connections.close_silent(now + connection_limits.FIRST_SECONDS - 1) == 0
        assert served._connections.close_silent(now + connection_limits.FIRST_SECONDS + 1) == 2
        assert await ended(silent)
        assert await ended(slow)
        await asking.send(REQUEST)
        assert b"200 OK" in await asking.receive()
        assert served._connections.close_silent(time.monotonic() + connection_limits.KEEP_SECONDS + 1) == 1
        assert await ended(asking)
        for stream in (silent, slow, asking):
            await stream.aclose()


async def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_BODY_SECONDS", 0.05)
    async with started() as served, await dialled(served.url) as slow:
        lines = [
            b"POST /batch/step HTTP/1.1",
            b"Host: localhost",
            b"Content-Type: application/json",
            b"Content-Length: 99",
        ]
        await slow.send(b"\r\n".join([*lines, b"", b"{"]))
        with anyio.fail_after(PATIENCE):
            assert b"408" in await slow.receive()


async def test_a_server_looks_for_silent_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LOOK_EVERY", 0.01)
    monkeypatch.setattr(connection_limits, "FIRST_SECONDS", 0.0)
    async with started() as served, await dialled(served.url) as slow:
        await slow.send(REQUEST[:30])
        assert await ended(slow)


async def test_so_many_connections_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that never asked for anything make room first; those with a request under way never do."""
    monkeypatch.setattr(server, "_SPARE_CONNECTIONS", 0)
    monkeypatch.setattr(connection_limits, "FIRST_SECONDS", 1e9)
    gate = Gate(tmp_path)
    async with serving(workers=1, caps=Caps(requests=1)) as browser:
        await browser.create("a", name="gated", pipe=gate.pipe, at="step")
        await browser.post("/reset/a", {"seed": 1})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(browser.post, "/step/a", {"action": "wait"})
            await gate.begun()
            async with await dialled(browser.server.url) as first:
                await first.send(REQUEST[:30])
                async with await dialled(browser.server.url) as second:
                    await second.send(REQUEST)
                    assert b"503" in await second.receive()  # its request is one too many
                    assert await ended(first)
            await gate.open()
        assert (await browser.ask("GET", "/health"))[0] == 200


# Names


HOSTS = ["evil.example.org", "127.0.0.1.evil.org:80", "localhost.evil.org", "10.0.0.1", "0.0.0.0:8200", "evil.org.", ""]
OWN_HOSTS = ["localhost", "LOCALHOST:8200", "localhost.", "127.0.0.1:1", "127.3.2.1", "[::1]:8200", "[::1]"]


async def test_requests_for_other_names_are_refused() -> None:
    async with serving(allow_hosts=["trainer.local"]) as browser:
        for path in ("/health", "/stats", PATH):
            for host in HOSTS:
                status, message = await browser.ask("GET", path, headers={"Host": host})
                assert (status, "--allow-host" in message["error"]) == (403, True), host
        for host in [*OWN_HOSTS, "trainer.local:8200", "Trainer.Local"]:
            assert (await browser.ask("GET", "/stats", headers={"Host": host}))[0] == 200, host
        headers = {"Host": "evil.org", CLIENT_HEADER: "0" * 32}
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await browser.session.ws_connect(browser.server.url + PATH, headers=headers)
        assert caught.value.status == 403
        for site in ("cross-site", "same-site"):
            assert (await browser.ask("GET", "/stats", headers={"Sec-Fetch-Site": site}))[0] == 403
    async with serving(tokens=[read_token(CANARY, where="")]) as browser:  # which no page knows
        headers = {"Host": "gpu-7.lab", "Authorization": f"Bearer {CANARY}"}
        assert (await browser.ask("GET", "/stats", headers=headers))[0] == 200


async def test_two_names_at_once_are_refused() -> None:
    async with started() as served, await dialled(served.url) as stranger:
        await stranger.send(b"GET /stats HTTP/1.1\r\nHost: localhost\r\nHost: evil.org\r\n\r\n")
        assert re.match(rb"HTTP/1\.[01] 40[03] ", await stranger.receive())


# Options that are not for clients, and what clients get to know


async def test_options_of_the_pool_are_refused_for_their_env_alone(tmp_path: Path) -> None:
    odd: dict[str, Any] = {"beside": "x", "worker": 0, "record": {}, "text": "x", "expert": [1]}
    async with serving() as browser:
        configs = {key: {"env_name": "light_text", "env_config": {key: value}} for key, value in odd.items()}
        configs["good"] = {"env_name": "light_text"}
        status, message = await browser.post("/environments", {"ids2configs": configs})
        assert (status, message["success"], sorted(message["errors"])) == (200, True, sorted(odd))
        for key, reason in message["errors"].items():
            assert f"{key} is not for clients" in reason or f"{key}={odd[key]!r} is neither true nor" in reason
        status, message = await browser.post("/environments", {"ids2configs": {"x": configs["beside"]}})
        assert (status, FOLDER.search(str(message))) == (400, None)
        assert (await browser.post("/reset/good", {"seed": 1}))[0] == 200
        async with connected(browser.server.url) as stranger:
            calls = [RemoteCall(env, 1, Op.OPEN, encode(["counter", {key: odd[key]}])) for env, key in enumerate(odd)]
            await stranger.send_bytes(msgspec.msgpack.encode(calls))
            answers: list[RemoteReply] = []
            while len(answers) < len(odd):
                answers += read_frame(await stranger.receive_bytes(), RemoteReply)
            assert {answer.failure.raises for answer in answers if answer.failure} == {"UsageError"}


async def test_no_folder_of_the_server_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PWD", "CANARY-0123456789")
    async with serving() as browser, RemoteEnvPool(browser.server.url) as pool:
        await browser.create("a", "b", name="talkative")
        await browser.post("/batch/reset", {"ids2seeds": {"a": 1, "b": 1}})
        _, message = await browser.post("/batch/step", {"ids2actions": {"a": 1}})
        error = message["results"]["a"][3]["error"]
        assert ("cannot read service.py" in error, FOLDER.search(error)) == (True, None)
        status, message = await browser.post("/step/b", {"action": 1})
        assert (status, "cannot read service.py" in message["error"]) == (422, True)
        assert FOLDER.search(message["error"]) is None
        env = await pool.open("talkative")
        await env.reset(seed=1)
        with pytest.raises(EnvError, match=r"cannot read service\.py") as caught:
            await env.step(1)
        trace = caught.value.remote_traceback or ""
        assert ("raise OSError" in trace, FOLDER.search(trace), "CANARY" in trace + str(caught.value)) == (
            True,
            None,
            False,
        )


@pytest.mark.parametrize("end", ["\0\r\n", "\nX\r\n"])
async def test_a_malformed_request_is_logged_without_its_bytes(
    end: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO")
    async with started(tokens=[read_token(CANARY, where="")]) as served:
        stream = await dialled(served.url)
        await stream.send(f"GET /stats HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {CANARY}{end}\r\n".encode())
        assert b" 400 " in await stream.receive()
        await stream.aclose()
    message = caplog.text + "".join(capsys.readouterr())
    assert "request_malformed" in message
    assert CANARY not in message
    assert "Traceback" not in message


async def test_a_bug_of_the_server_is_reported_without_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> Any:
        raise ZeroDivisionError("at /home/me/secret")

    async with started() as served, RemoteEnvPool(served.url) as pool:
        env = await pool.open("counter")
        with monkeypatch.context() as patched:
            patched.setattr(Sessions, "_made", broken)
            with pytest.raises(PoolError, match="the server has a bug: its log has the traceback") as caught:
                await env.reset(seed=1)
        assert "secret" not in repr(caught.value) + str(getattr(caught.value, "remote_traceback", ""))
        assert (await env.reset(seed=1)).observation is not None


async def test_a_seed_in_the_configuration_is_that_of_resets() -> None:
    """Also for envs that have no such option."""
    async with serving() as browser:
        await browser.create("a", seed=7)
        await browser.create("b", name="gymnasium:CartPole-v1", seed=7)
        await browser.create("c", name="gymnasium:CartPole-v1")
        for env_id, seed in (("a", None), ("b", None), ("c", 7)):
            assert (await browser.post(f"/reset/{env_id}", {"seed": seed}))[0] == 200
        message = {env_id: (await browser.post(f"/reset/{env_id}", {"seed": None}))[1] for env_id in "ab"}
        assert message["a"]["info"]["seed"] == 7
        assert message["b"]["observation"] == (await browser.post("/reset/c", {"seed": 7}))[1]["observation"]
