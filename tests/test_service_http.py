"""`asyncrollout serve`: VAGEN's addresses and bodies, who is let in, what is refused and how, and the end of it."""

import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import msgspec
import psutil
import pytest
import structlog

from asyncrollout import EnvPool, UsageError, registry
from asyncrollout.cli.app import main
from asyncrollout.service.access import gather_tokens, read_token
from asyncrollout.service.allowed_envs import Admission
from asyncrollout.service.observations import from_json
from asyncrollout.service.server import Caps, EnvServer
from tests.envs.service import KNOWN
from tests.playing import PATIENCE, Gate

CANARY = "canary-token-0123456789"
OLD = "an-older-token-987654321"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in KNOWN:
        monkeypatch.setitem(registry._registered, spec.name, spec)
    monkeypatch.delenv("ASYNCROLLOUT_TOKEN", raising=False)


class Browser:
    """A client that shows status and body."""

    def __init__(self, server: EnvServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        async with self.session.request(method, self.server.url + path, json=body, **options) as response:
            return response.status, json.loads(await response.read())

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        return await self.ask("POST", path, body, **options)

    async def create(self, *ids: str, name: str = "light_text", **kwargs: Any) -> None:
        configs = {env_id: {"env_name": name, "env_config": kwargs} for env_id in ids}
        assert await self.post("/environments", {"ids2configs": configs}) == (200, {"success": True, "errors": {}})


@asynccontextmanager
async def started(*, workers: int = 0, **options: Any) -> AsyncIterator[EnvServer]:
    """A server whose envs live in workers, or on the event loop."""
    pool = EnvPool(workers) if workers else EnvPool(backend="inline")
    async with pool, EnvServer(pool, port=options.pop("port", 0), **options) as server:
        yield server


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Browser]:
    async with aiohttp.ClientSession() as session, started(**options) as server:
        yield Browser(server, session)


# VAGEN's client


async def test_the_addresses_and_bodies_of_vagen() -> None:
    async with serving() as browser:
        status, health = await browser.ask("GET", "/health")
        assert (status, health["status"], health["active_environments"]) == (200, "ok", 0)
        assert "sokoban" in health["registered_envs"]
        await browser.create("a", "b", name="gallery")
        seeds = {"a": 5, "b": {"seed": 5, "extra_info": {"split": "test"}}, "x": 1}
        status, message = await browser.post("/batch/reset", {"ids2seeds": seeds})
        (first, info), (second, _) = message["results"]["a"], message["results"]["b"]
        assert (status, first, info["split"]) == (200, second, "train")
        assert message["results"]["x"] == [{}, {"error": "Environment x not found"}]
        assert from_json(first)["multi_modal_data"]["<image>"][1].size == (4, 4)
        actions = {"a": "add 2", "b": {"llm_raw_response": "add 2"}, "x": ""}
        status, message = await browser.post("/batch/step", {"ids2actions": actions})
        assert message["results"]["a"][:3] == message["results"]["b"][:3]
        assert message["results"]["x"] == [{}, 0.0, True, {"error": "Environment x not found"}]
        ids = {"env_ids": ["a", "x"]}
        gained = message["results"]["a"][1]
        assert await browser.post("/batch/reward", ids) == (200, {"rewards": {"a": gained, "x": 0.0}})
        assert await browser.post("/batch/system_prompt", ids) == (
            200,
            {"system_prompts": {"a": "Add numbers.", "x": ""}},
        )
        sizes = (200, {"split_sizes": {"a": 3, "x": 0}})
        assert await browser.post("/batch/split_size", {**ids, "split": "test"}) == sizes
        status, message = await browser.post("/batch/embedder", {**ids, "service_url": "http://localhost:5000"})
        assert (status, message["statuses"]["a"]["ok"], message["statuses"]["x"]["ok"]) == (200, True, False)
        assert await browser.post("/batch/close", {"env_ids": ["a", "x"]}) == (200, {"status": "success"})
        assert (await browser.ask("GET", "/health"))[1]["active_environments"] == 1
        assert await browser.post("/batch/close", {"env_ids": None}) == (200, {"status": "success"})
        assert (await browser.ask("GET", "/stats"))[1]["environments"] == 0


async def test_one_env_at_a_time() -> None:
    async with serving() as browser:
        await browser.create("a")
        status, message = await browser.post("/reset/a", {"seed": 5})
        assert (status, message["info"]["seed"]) == (200, 5)
        assert (await browser.session.post(browser.server.url + "/reset/a")).status == 200
        status, message = await browser.post("/step/a", {"action": "add 2"})
        assert (status, message["done"], set(message)) == (200, False, {"observation", "reward", "done", "info"})
        assert await browser.ask("GET", "/reward/a") == (200, {"reward": message["reward"]})
        assert await browser.ask("GET", "/system_prompt/a") == (200, {"system_prompt": "Add numbers."})
        assert await browser.ask("DELETE", "/close/a") == (200, {"status": "success"})
        for method, path, body in (
            ("POST", "/reset/a", {"seed": 1}),
            ("POST", "/step/a", {"action": "add 1"}),
            ("GET", "/reward/a", None),
            ("GET", "/system_prompt/a", None),
            ("DELETE", "/close/a", None),
        ):
            assert await browser.ask(method, path, body) == (404, {"error": "Environment a not found"})


async def test_msgpack_both_ways() -> None:
    async with serving() as browser:
        await browser.create("a")
        url = browser.server.url + "/batch/reset"
        body = msgspec.msgpack.encode({"ids2seeds": {"a": 3}})
        as_json = (await browser.post("/batch/reset", {"ids2seeds": {"a": 3}}))[1]
        for accept, decode in (
            ("*/*", msgspec.msgpack.decode),
            ("application/x-msgpack", msgspec.msgpack.decode),
            ("application/json", msgspec.json.decode),
        ):
            headers = {"Content-Type": "application/msgpack", "Accept": accept}
            async with browser.session.post(url, data=body, headers=headers) as response:
                assert decode(await response.read()) == as_json
        headers = {"Content-Type": "application/msgpack"}
        async with browser.session.post(url, data=b"\xc1", headers=headers) as response:
            assert response.status == 400
            assert "the body is not valid" in msgspec.msgpack.decode(await response.read())["error"]


async def test_an_env_may_tell_an_error_and_large_numbers_itself() -> None:
    async with serving() as browser:
        await browser.create("a", name="frank")
        await browser.post("/reset/a", {"seed": 1})
        for kind, encode, decode in (
            ("json", msgspec.json.encode, msgspec.json.decode),
            ("msgpack", msgspec.msgpack.encode, msgspec.msgpack.decode),
        ):
            headers = {"Content-Type": f"application/{kind}"}
            url, body = browser.server.url + "/step/a", encode({"action": 1})
            async with browser.session.post(url, data=body, headers=headers) as response:
                info = decode(await response.read())["info"]
            assert (response.status, info["error"], info["large"]) == (200, "that was not wise", str(2**70))


async def test_two_clients_with_one_id(tmp_path: Path) -> None:
    """The env of the first one takes long to make: the second one does not get its place."""
    gate = Gate(tmp_path)
    async with serving(workers=1) as browser, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: browser.create("a", name="gated", pipe=gate.pipe, at="build"))
        await gate.begun()
        status, message = await browser.post("/environments", {"ids2configs": {"a": {"env_name": "light_text"}}})
        assert (status, "exists already" in message["error"]) == (400, True)
        await gate.open()


@pytest.mark.parametrize("clients", [64])
async def test_many_clients_at_once(clients: int) -> None:
    """Each plays its own episodes; nothing is lost or mixed up."""
    played: dict[int, Any] = {}

    async def play(server: EnvServer, number: int) -> None:
        async with aiohttp.ClientSession() as session:
            browser, env_id = Browser(server, session), f"env-{number}"
            await browser.create(env_id)
            message = [(await browser.post("/batch/reset", {"ids2seeds": {env_id: number % 8}}))[1]["results"]]
            for step in range(3):
                reply = f"add {step + number % 8}"
                message.append((await browser.post("/batch/step", {"ids2actions": {env_id: reply}}))[1]["results"])
            assert all([*results] == [env_id] for results in message)
            played[number] = [results[env_id] for results in message]

    async with started() as server, anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(play, server, number)
    assert len(played) == clients
    for number, message in played.items():
        assert message == played[number % 8]
    assert len({json.dumps(played[number]) for number in range(8)}) == 8


# Who is let in


async def test_tokens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# for the lab\n{OLD}@{int(time.time()) - 5}\n\n{OLD}x@{int(time.time()) + 1000}\n")
    with structlog.testing.capture_logs() as events:
        async with serving(tokens=gather_tokens(CANARY, file)) as browser:

            async def status(header: str | None, path: str = "/stats") -> tuple[int, str]:
                headers = {} if header is None else {"Authorization": header}
                code, message = await browser.ask("GET", path, headers=headers)
                return code, message.get("error", "")

            assert (await status(f"Bearer {CANARY}"))[0] == (await status(f"Bearer {OLD}x"))[0] == 200
            for header, reason in (
                (None, "a token is required, as a bearer token in the header 'Authorization'"),
                (f"Basic {CANARY}", "a token is required"),
                ("Bearer wrong-" + CANARY, "this token is not valid here"),
                ("Bearer \xfcber-alles", "this token is not valid here"),
                (f"Bearer {OLD}", "this token expired at 20"),
            ):
                code, message = await status(header)
                assert (code, reason in message) == (401, True), (header, message)
            assert await status(None, "/health") == (200, "")
            assert "registered_envs" not in (await browser.ask("GET", "/health"))[1]
            for path in ("/environments", "/batch/step", "/nowhere"):
                assert (await browser.post(path, {}))[0] == 401
            assert (await browser.ask("GET", f"/{CANARY}", headers={"Authorization": f"Bearer {CANARY}"}))[0] == 404
    assert events
    assert CANARY not in repr(events)


def test_tokens_are_read_with_care(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for bad in ("short", "has a space in it, here", "ümlaut-0123456789abc", "", "short@1999999999"):
        with pytest.raises(UsageError, match="is not a token") as caught:
            read_token(bad, where="--token")
        assert not bad or bad not in str(caught.value)
    assert CANARY not in repr(read_token(CANARY, where=""))
    with_sign = read_token("someone@example-0123456789", where="")
    assert with_sign.secret == b"someone@example-0123456789"
    with pytest.raises(UsageError, match="cannot be read"):
        gather_tokens(None, tmp_path / "nowhere")
    (tmp_path / "none").write_text("# for the lab\n\n")
    with pytest.raises(UsageError, match="contains no token"):
        gather_tokens(None, tmp_path / "none")
    monkeypatch.setenv("ASYNCROLLOUT_TOKEN", CANARY)
    assert [token.secret.decode() for token in gather_tokens(None, None)] == [CANARY]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_wider_bind_demands_a_token(host: str) -> None:
    with pytest.raises(UsageError, match="can be reached from other machines"):
        EnvServer(EnvPool(backend="inline"), host)
    EnvServer(EnvPool(backend="inline"), host, tokens=[read_token(CANARY, where="")])


async def test_web_pages_are_kept_out() -> None:
    async with serving() as browser:
        for path in ("/stats", "/pool"):
            code, message = await browser.ask("GET", path, headers={"Origin": "http://127.0.0.1"})
            assert (code, message) == (403, {"error": "web pages may not use this server"})
        plain = {"Content-Type": "text/plain"}  # what a page may send without asking
        async with browser.session.post(browser.server.url + "/batch/close", data="{}", headers=plain) as response:
            assert response.status == 415


# What is refused


BAD_BODIES = [
    ("/environments", {}, "missing required field `ids2configs`"),
    ("/environments", {"ids2configs": {"a": 1}}, "Expected `object`, got `int` - at `$.ids2configs[...]`"),
    ("/environments", {"ids2configs": {"a": {}}}, "a: the name of an env must be a text, not None"),
    ("/environments", {"ids2configs": {"a": {"env_name": "tekst"}}}, "did you mean 'text'"),
    ("/environments", {"ids2configs": {"a": {"env_name": "os:system"}}}, "opens registered envs only"),
    ("/environments", {"ids2configs": {"a": {"env_name": "gymnasium:os:X"}}}, "opens registered envs only"),
    ("/environments", {"ids2configs": {"a": {"env_name": "text", "env_config": [1]}}}, "are not a dict"),
    ("/environments", {"ids2configs": {"a": {"env_name": "text", "env_config": {"limt": 1}}}}, "'limit'"),
    ("/environments", {"ids2configs": {"a": {"env_name": "text", "env_config": {"spec_or_name": 1}}}}, "spec_or_name"),
    ("/environments", {"ids2configs": {"a": {"env_name": "text", "env_config": {"self": 1}}}}, "self"),
    ("/environments", {"ids2configs": {"a": {"env_name": "video", "env_config": {"embedder": "os:system"}}}}, "import"),
    (
        "/environments",
        {"ids2configs": {"a": {"env_name": "countdown", "env_config": {"data_path": "x"}}}},
        "--data-dir",
    ),
    (
        "/environments",
        {"ids2configs": {"a": {"env_name": "gymnasium:CartPole-v1", "env_config": {"id": "this:Foo-v0"}}}},
        "id='this:Foo-v0' is an import path",
    ),
    (
        "/environments",
        {"ids2configs": {"a": {"env_name": "text", "env_config": {"made_by": [{"x": "a-b.c:d/E-v0"}]}}}},
        "is an import path",
    ),
    (
        "/environments",
        {"ids2configs": {"a": {"env_name": "text", "env_config": {"record": {}}}}},
        "record is not for clients",
    ),
    ("/batch/reset", {"ids2seeds": [1]}, "Expected `object`, got `array`"),
    ("/batch/reset", [], "Expected `object`, got `array`"),
    ("/batch/step", {"ids2seeds": {}}, "missing required field `ids2actions`"),
    ("/batch/reward", {"env_ids": [["a"]]}, "Expected `str`, got `array`"),
    ("/batch/reward", {"env_ids": None}, "Expected `array`, got `null`"),
    ("/batch/close", {}, "missing required field `env_ids`"),
    ("/batch/split_size", {"env_ids": [], "split": 3}, "Expected `str`, got `int`"),
    ("/batch/embedder", {"env_ids": [], "service_url": "os:system"}, "is an import path"),
]


async def test_bad_bodies() -> None:
    async with serving() as browser:
        for path, body, reason in BAD_BODIES:
            status, message = await browser.post(path, body)
            assert (status, reason in message["error"]) == (400, True), (path, body, message)
        for raw in (b"", b"{", b"[" * 100_000, b"\xff", b'{"ids2seeds": {"a": 1e999}}'):
            headers = {"Content-Type": "application/json"}
            async with browser.session.post(browser.server.url + "/batch/reset", data=raw, headers=headers) as response:
                assert response.status == 400
        assert (await browser.ask("GET", "/nowhere"))[0] == 404
        assert (await browser.ask("GET", "/batch/reset"))[0] == 405


async def test_odd_values_reach_nobody_but_their_env() -> None:
    async with serving() as browser:
        await browser.create("a")
        seeds: list[Any] = [-1, 1.5, "x", True, [], {"sed": 1}, {"seed": "x"}]
        for seed in seeds:
            status, message = await browser.post("/batch/reset", {"ids2seeds": {"a": seed}})
            assert (status, "error" in message["results"]["a"][1]) == (200, True), seed
            if not isinstance(seed, dict):
                assert (await browser.post("/reset/a", {"seed": seed}))[0] == 422
        assert (await browser.post("/step/a", {"action": "add 1"}))[0] == 422  # it was not reset
        await browser.post("/batch/reset", {"ids2seeds": {"a": 2**200}})
        for action in (None, {}, {"verbose": True}, [1], {"action": {"x": 1}}):
            status, message = await browser.post("/batch/step", {"ids2actions": {"a": action}})
            assert (status, "error" in message["results"]["a"][3]) == (200, True), action
            await browser.post("/batch/reset", {"ids2seeds": {"a": 1}})
        assert "error" not in (await browser.post("/batch/step", {"ids2actions": {"a": "add 1"}}))[1]["results"]["a"][3]


async def test_some_good_some_bad() -> None:
    async with serving() as browser:
        configs = {"good": {"env_name": "light_text"}, "bad": {"env_name": "refuses"}}
        status, message = await browser.post("/environments", {"ids2configs": configs})
        assert (status, message["success"], [*message["errors"]]) == (200, True, ["bad"])
        assert "no licence for this simulator" in message["errors"]["bad"]
        status, message = await browser.post("/environments", {"ids2configs": {"good": {"env_name": "light_text"}}})
        assert (status, message["errors"]["good"]) == (
            400,
            "Environment good exists already: close it first, or choose another id",
        )


async def test_an_id_that_exists_is_no_reason_why_it_is_missing() -> None:
    async with serving() as browser:
        await browser.create("a")
        assert (await browser.post("/environments", {"ids2configs": {"a": {"env_name": "light_text"}}}))[0] == 400
        await browser.ask("DELETE", "/close/a")
        assert (await browser.post("/reset/a", {}))[1] == {"error": "Environment a not found"}


async def test_an_episode_that_a_failed_reset_ends() -> None:
    async with serving() as browser:
        await browser.create("a", name="gallery")
        await browser.post("/reset/a", {"seed": 1})
        status, message = await browser.post("/step/a", {"action": "add 2"})
        assert (status, (await browser.ask("GET", "/reward/a"))[1]["reward"]) == (200, message["reward"])
        assert (await browser.post("/reset/a", {"seed": 1, "extra_info": {"no": "split"}}))[0] == 422
        assert (await browser.ask("GET", "/reward/a"))[1] == {"reward": 0.0}
        assert (await browser.post("/step/a", {"action": "add 2"}))[0] == 422


async def test_numbers_that_json_has_not() -> None:
    async with serving() as browser:
        await browser.create("a", name="boundless")
        await browser.post("/reset/a", {"seed": 1})
        _, message = await browser.post("/step/a", {"action": 1})
        assert (message["reward"], message["info"]["up"]) == (sys.float_info.max, "Infinity")
        assert message["info"]["none"] == ["NaN"]
        await browser.post("/batch/step", {"ids2actions": {"a": 2}})
        assert (await browser.post("/batch/reward", {"env_ids": ["a"]}))[1] == {"rewards": {"a": "Infinity"}}
        assert (await browser.ask("GET", "/reward/a"))[1] == {"reward": "Infinity"}


async def test_paths_stay_in_the_data_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "out").symlink_to(tmp_path)
    (tmp_path / "secret.yaml").write_text(f"dataset: {CANARY}")
    (data / "empty.yaml").write_text("{}")
    async with serving(admission=Admission(data_dir=data)) as browser:

        async def error(path: Any, key: str = "video_data_config_path") -> str:
            configs = {"v": {"env_name": "video", "env_config": {key: path}}}
            status, message = await browser.post("/environments", {"ids2configs": configs})
            assert status == 400
            return str(message["error"])

        for outside in ("../secret.yaml", str(tmp_path / "secret.yaml"), "out/secret.yaml", "/etc/passwd", "a/../../x"):
            message = await error(outside)
            assert "outside the data directory" in message
            assert CANARY not in message
        assert "outside" in await error({"train": "../secret.json"}, "data_path")
        assert "outside" in await error("..", "data_root")
        for odd in ("a\0b", "x" * 300):
            assert "is not a path" in await error(odd)
        assert "no such file" in await error("missing.yaml")
        assert "dataset" in await error("empty.yaml")
    with pytest.raises(UsageError, match="is not a path: write it as a text"):
        Admission(data_dir=data).admit("video", {"data_path": {"train": (b"/etc/passwd",)}})
    with pytest.raises(UsageError, match="is not a directory"):
        Admission(data_dir=tmp_path / "nowhere")


async def test_large_bodies() -> None:
    async with serving(caps=Caps(body_bytes=1 << 20)) as browser:
        url, headers = browser.server.url + "/batch/step", {"Content-Type": "application/json"}

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(32):
                yield bytes(1 << 16)

        for data in (io.BytesIO(bytes(100_000_000)), chunks()):
            async with aiohttp.ClientSession() as session, session.post(url, data=data, headers=headers) as response:
                assert response.status == 413
                assert "larger than the 1,048,576 bytes" in (await response.json())["error"]
        assert (await browser.ask("GET", "/health"))[0] == 200


async def test_caps(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    async with serving(workers=1, caps=Caps(envs=2, requests=1)) as browser:
        await browser.create("a", name="gated", pipe=gate.pipe, at="step")
        configs = {env_id: {"env_name": "text"} for env_id in "bc"}
        status, message = await browser.post("/environments", {"ids2configs": configs})
        assert (status, "this server allows 2 open environments, and has 1" in message["error"]) == (429, True)
        await browser.post("/batch/reset", {"ids2seeds": {"a": 1}})
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(browser.post, "/batch/step", {"ids2actions": {"a": "wait"}})
                await gate.begun()
                status, message = await browser.ask("GET", "/stats")
                assert (status, "1 requests are in flight" in message["error"]) == (503, True)
                await gate.open()
        assert (await browser.ask("GET", "/stats"))[0] == 200


async def test_idle_envs_are_closed() -> None:
    async with serving(caps=Caps(idle_seconds=1000)) as browser:
        await browser.create("a")
        await browser.server.close_idle(time.monotonic() + 999)
        assert (await browser.post("/reset/a", {}))[0] == 200
        await browser.server.close_idle(time.monotonic() + 1001)
        status, message = await browser.post("/reset/a", {})
        assert (status, "nobody used it for long" in message["error"]) == (404, True)
        assert (await browser.ask("GET", "/stats"))[1]["environments"] == 0


async def test_a_port_that_is_taken() -> None:
    async with serving() as browser:
        port = int(browser.server.url.rpartition(":")[2])
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with started(port=port):
                pass


# The end of it


async def test_what_is_under_way_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrollout.service.server._LEAVE_SECONDS", 0.01)
    gate = Gate(tmp_path)
    message: list[Any] = []
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks, serving(workers=1) as browser:
            await browser.create("a", name="gated", pipe=gate.pipe)
            await browser.post("/batch/reset", {"ids2seeds": {"a": 1}})

            async def step() -> None:
                message.append(await browser.post("/batch/step", {"ids2actions": {"a": "wait"}}))

            async def finish() -> None:
                while (await browser.ask("GET", "/health"))[0] != 503:  # until nothing more is taken
                    await anyio.lowlevel.checkpoint()
                await gate.open()

            tasks.start_soon(step)
            await gate.begun()
            tasks.start_soon(finish)
    ((status, body),) = message
    assert (status, body["results"]["a"][2]) == (200, False)


async def test_hurry_ends_the_wait(tmp_path: Path, short_grace: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrollout.service.server._LEAVE_SECONDS", 0.01)
    gate = Gate(tmp_path)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks, serving(workers=1, grace=10 * PATIENCE) as browser:
            await browser.create("a", name="gated", pipe=gate.pipe)
            await browser.post("/batch/reset", {"ids2seeds": {"a": 1}})

            async def step() -> None:
                with pytest.raises(aiohttp.ClientError):
                    await browser.post("/batch/step", {"ids2actions": {"a": "wait"}})

            tasks.start_soon(step)
            await gate.begun()
            browser.server.hurry()
        assert gate._file is not None
        gate._file.close()


@contextmanager
def serve(*options: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, in a process of its own, and its address."""
    command = [sys.executable, "-m", "asyncrollout", "serve", "--json", "--port", "0", "--workers", "1", *options]
    env = {**os.environ, **environ}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            if process.poll() is None:
                process.kill()


def fetch(url: str, body: Any = None, token: str = CANARY) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=PATIENCE) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command(number: signal.Signals, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with serve("--log-dir", str(logs), "--allow-import", ASYNCROLLOUT_TOKEN=f"{CANARY}@4000000000") as (process, url):
        configs = {"a": {"env_name": "tests.envs.tiny:Counter"}, "b": {"env_name": "frozen_lake"}}
        assert fetch(f"{url}/environments", {"ids2configs": configs}) == (200, {"success": True, "errors": {}})
        assert fetch(f"{url}/batch/reset", {"ids2seeds": {"a": 1, "b": 2}})[0] == 200
        assert fetch(f"{url}/stats", token="nobody-knows-this-one")[0] == 401
        assert fetch(f"{url}/environments", {"ids2configs": {CANARY: {"env_name": CANARY}}})[0] == 400
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert err.startswith("warning: env_failed env_id=[hidden] error=\"no env is called '[hidden]'")
    assert err.count("\n") == 1
    assert json.loads(out) == {"event": "ended", "state": "stopped"}
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    events = (logs / "events.jsonl").read_text()
    assert {"serving", "request_refused", "stopping"} <= {json.loads(line)["event"] for line in events.splitlines()}
    assert CANARY not in events + out + err


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    for options, reason in (
        (["--host", "0.0.0.0"], "give a token"),
        (["--token", "short"], "--token is not a token"),
        (["--data-dir", "nowhere"], "is not a directory"),
        (["--port", "70000"], "port=70000"),
        (["--max-envs", "0"], "envs=0 is not a whole number from 1"),
        (["--idle-seconds", "0"], "idle_seconds=0.0 is not a number of seconds above 0"),
    ):
        assert main(["serve", *options]) == 2
        assert reason in capsys.readouterr().err
