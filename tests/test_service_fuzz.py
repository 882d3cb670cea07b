"""Anything at all, sent to each address of a server and over its WebSocket: it is answered or refused."""

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
import structlog
import structlog.testing
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncrollout import RemoteEnvPool, registry
from asyncrollout.service.messages import CLIENT_HEADER, PATH, encode
from asyncrollout.service.server import Caps, EnvServer
from tests.envs.service import KNOWN
from tests.playing import PATIENCE
from tests.test_service_http import started

FEW = settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
MANY = settings(FEW, max_examples=3_000)

BODIES = [
    "/environments", "/batch/reset", "/batch/step", "/batch/reward", "/batch/system_prompt", "/batch/split_size",
    "/batch/embedder", "/batch/close", "/reset/a", "/step/a", "/reset/x", "/step/%00",
]  # fmt: skip
PLAIN = ["/health", "/stats", "/pool", "/reward/a", "/system_prompt/a", "/reward/%F0%9F", "/close/x", "/nowhere", "/"]
NAMES = [
    "ids2configs", "ids2seeds", "ids2actions", "env_ids", "split", "service_url", "seed", "extra_info", "action",
    "env_name", "env_config", "llm_raw_response", "verbose", "beside", "worker", "record", "text", "expert", "a", "b",
    "data_path", "self", "spec_or_name", "limit",
]  # fmt: skip
TEXTS = [
    "light_text",
    "echo",
    "counter",
    "sokoban",
    "os:system",
    "gymnasium:CartPole-v1",
    "add 1",
    "../../etc",
    "\0",
    "",
]

names = st.sampled_from(NAMES) | st.text(max_size=3)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(TEXTS)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)
configs = st.fixed_dictionaries(
    {}, optional={"env_name": st.sampled_from(TEXTS) | values, "env_config": st.dictionaries(names, values) | values}
)
by_id = st.dictionaries(st.sampled_from(["a", "b", "x"]) | names, configs | values, max_size=3)
bodies = values | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("ids2configs", "ids2seeds", "ids2actions"), by_id | values) | {"env_ids": values}
)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()  # with NaN and lone surrogates, as others may send them


def as_msgpack(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return b"\xdb\xff\xff\xff\xff"


FORMS: list[tuple[str, Callable[[Any], bytes]]] = [
    ("application/json", as_json),
    ("application/msgpack", as_msgpack),
    ("application/json", as_msgpack),
    ("application/x-msgpack", as_json),
]


class Victim:
    """A server in a thread of its own, and another client of it."""

    def __init__(self, portal: BlockingPortal, server: EnvServer, pool: RemoteEnvPool) -> None:
        self.portal = portal
        self.server = server
        self.pool = pool
        self.port = int(server.url.rpartition(":")[2])
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, method: str, path: str, body: bytes | None, kind: str) -> None:
        headers = {"Content-Type": kind} if body is not None else {}
        self.connection.request(method, path, body, headers)
        response = self.connection.getresponse()
        content = response.read()
        assert response.status < 500, (path, body, content)
        assert b"Traceback" not in content
        assert b".py" not in content

    def check(self) -> None:
        """The other client's env lives."""

        async def played() -> float:
            async with self.pool.open("light_text") as env:
                await env.reset(seed=1)
                return (await env.step("add 1")).reward

        assert isinstance(self.portal.call(played), float)

    def send(self, frames: list[bytes]) -> None:
        async def sent() -> None:
            headers = {CLIENT_HEADER: "0" * 32}
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(self.server.url + PATH, headers=headers) as ws,
            ):
                for frame in frames:
                    if ws.closed:
                        break
                    await ws.send_bytes(frame)
                await ws.close()

        self.portal.call(sent)


@contextmanager
def attacked() -> Iterator[Victim]:
    with ExitStack() as stack:
        events = stack.enter_context(structlog.testing.capture_logs())
        portal = stack.enter_context(start_blocking_portal())
        serving = started(caps=Caps(envs=64, body_bytes=1 << 20))
        server = stack.enter_context(portal.wrap_async_context_manager(serving))
        pool = stack.enter_context(portal.wrap_async_context_manager(RemoteEnvPool(server.url)))
        victim = Victim(portal, server, pool)
        stack.callback(victim.connection.close)
        yield victim
        victim.check()
    bugs = [event for event in events if event["event"] in ("request_failed", "call_failed")]
    assert not bugs


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in KNOWN:
        monkeypatch.setitem(registry._registered, spec.name, spec)
    monkeypatch.delenv("ASYNCROLLOUT_TOKEN", raising=False)


LONG = [pytest.param(FEW, id="short"), pytest.param(MANY, id="long", marks=pytest.mark.slow)]


@pytest.mark.parametrize("how_long", LONG)
def test_bodies_of_any_kind(how_long: settings) -> None:
    with attacked() as victim:
        victim.ask("POST", "/environments", as_json({"ids2configs": {"a": {"env_name": "light_text"}}}), FORMS[0][0])

        @how_long
        @given(path=st.sampled_from(BODIES), body=bodies, form=st.sampled_from(FORMS))
        def values_of_any_kind(path: str, body: Any, form: tuple[str, Callable[[Any], bytes]]) -> None:
            victim.ask("POST", path, form[1](body), form[0])

        @how_long
        @given(
            path=st.sampled_from(BODIES), body=st.binary(max_size=60), kind=st.sampled_from([*dict(FORMS), "text/x"])
        )
        def bytes_of_any_kind(path: str, body: bytes, kind: str) -> None:
            victim.ask("POST", path, body, kind)

        @how_long
        @given(method=st.sampled_from(["GET", "DELETE", "PUT", "OPTIONS"]), path=st.sampled_from([*PLAIN, *BODIES]))
        def methods_of_any_kind(method: str, path: str) -> None:
            victim.ask(method, path, None, "")

        for attack in (values_of_any_kind, bytes_of_any_kind, methods_of_any_kind):
            attack()
            victim.check()


numbers = st.integers(-2, 3) | st.integers()
payloads = st.binary(max_size=20) | bodies.map(as_msgpack)
openings = st.tuples(st.sampled_from(TEXTS) | values, st.dictionaries(names, leaves) | values)


def as_payload(value: Any) -> bytes:
    try:
        return bytes(encode(value))
    except Exception:
        return b"\xc0"


calls = st.tuples(
    numbers, numbers, st.integers(-1, 12) | st.sampled_from([100, 101]), payloads | openings.map(as_payload)
).map(lambda call: b"\x94" + b"".join(as_msgpack(part) for part in call[:3]) + (call[3] or b"\xc0"))
frames = st.binary(max_size=40) | st.lists(calls, max_size=5).map(
    lambda some: bytes([0x90 + len(some)]) + b"".join(some)
)


@pytest.mark.parametrize("how_long", LONG)
def test_frames_of_any_kind(how_long: settings) -> None:
    with attacked() as victim:

        @how_long
        @given(st.lists(frames, min_size=1, max_size=4))
        def attack(some: list[bytes]) -> None:
            victim.send(some)

        attack()
        victim.ask("GET", "/stats", None, "")
