"""A server that has never answered, or refuses: the cause is reported, and what to do about it."""

import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web
from anyio.abc import SocketAttribute, SocketStream
from structlog.testing import capture_logs

from asyncrollout import OpenAIPolicy, ProviderError, UsageError
from asyncrollout.config.build import open_policy
from asyncrollout.config.schema import OpenAI
from tests.llm_answers import MODEL
from tests.llm_faults import Answer
from tests.llm_server import llm_server
from tests.playing import PATIENCE
from tests.test_policies_openai import ask, ask_all, calls, policy
from tests.waiting import all_tasks_blocked

NOBODY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg/f29YhlWD1whqXm9
0oGBO0Q22mDIxciOo9wXD/E023ehRANCAAQDO2/VhKl2hJbsgbAUhtkQ9m2lB8X9
f7osM/subsrQS5zbdup5QeAMBBcQatzvtDc+a225VG7sa7afIybM88fL
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBeDCCAR+gAwIBAgIUe4I6jEo5tGt/Fi481c4YXcrFEXEwCgYIKoZIzj0EAwIw
ETEPMA0GA1UEAwwGbm9ib2R5MCAXDTI2MTExODEwMzEzMloYDzIxMjYxMDI1MTAz
MTMyWjARMQ8wDQYDVQQDDAZub2JvZHkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AAQDO2/VhKl2hJbsgbAUhtkQ9m2lB8X9f7osM/subsrQS5zbdup5QeAMBBcQatzv
tDc+a225VG7sa7afIybM88fLo1MwUTAdBgNVHQ4EFgQUELbM5WSfr3543FmW0eSY
fRDhpI4wHwYDVR0jBBgwFoAUELbM5WSfr3543FmW0eSYfRDhpI4wDwYDVR0TAQH/
BAUwAwEB/zAKBggqhkjOPQQDAgNHADBEAiB0X+e+D7R/JlbLdu/2rB3rEkHEl9jW
w+kwdu5eja2tEgIgGp1mNn69E/F2W65T5bLVkPycJMMtv19aA0LNmwsSOV0=
-----END CERTIFICATE-----
"""  # a certificate for tests, signed by nobody, with its key

SOON = 0.05  # seconds; a wait that is over at the next look


@pytest.fixture
def events() -> Iterator[list[Any]]:
    with capture_logs() as logs:
        yield logs


async def free_port() -> int:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port: int = listener.extra(SocketAttribute.local_port)
    await listener.aclose()
    return port


async def fails(url: Any, calls_at_once: int = 20, **options: Any) -> str:
    """What calls at the same time fail with: the same."""
    with anyio.fail_after(PATIENCE):
        async with OpenAIPolicy(url, "m", **{"wait_for_server": SOON, **options}) as asked:
            found = await ask_all(asked, [ask(str(number)) for number in range(calls_at_once)])
    assert all(isinstance(error, ProviderError) for error in found)
    (said,) = {str(error) for error in found}
    return said


@pytest.mark.parametrize("kind", [None, "openai"])
async def test_nothing_listens(kind: Any, events: list[Any]) -> None:
    port = await free_port()
    said = await fails(f"http://127.0.0.1:{port}/v1", kind=kind)
    assert f"/v1: no response: connection refused: nothing listens at 127.0.0.1:{port} (waited 0.05 s" in said
    assert "wait_for_server=" in said
    (line,) = [event for event in events if event["event"] == "waiting_for_server"]
    assert "connection refused" in line["cause"]
    assert (line["log_level"], line["seconds"]) == ("warning", SOON)


async def test_name_that_is_nowhere() -> None:
    said = await fails("http://no-such-server.invalid:8000/v1")
    assert "the name 'no-such-server.invalid' cannot be resolved" in said


async def test_plain_server_that_is_asked_for_tls() -> None:
    async with llm_server() as server:
        said = await fails(server.url.replace("http:", "https:"))
    assert "the TLS handshake failed" in said
    assert "try http:// instead" in said


async def test_certificate_of_nobody(tmp_path: Path) -> None:
    certificate = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (tmp_path / "nobody.pem").write_text(NOBODY)
    certificate.load_cert_chain(tmp_path / "nobody.pem")
    app = web.Application()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate).start()
        said = await fails(f"https://127.0.0.1:{runner.addresses[0][1]}/v1")
    finally:
        await runner.cleanup()
    assert "its TLS certificate is not accepted" in said


@pytest.mark.parametrize("kind", [None, "openai"])
async def test_server_that_is_silent(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections, and never says a word; pages are waited for as long as the first answer is."""
    monkeypatch.setattr("asyncrollout.policies.openai.session._GET_SECONDS", SOON)

    asked: list[bytes] = []

    async def hold(stream: SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                asked.append(await stream.receive())
                await anyio.sleep_forever()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hold)
        said = await fails(f"http://127.0.0.1:{port}/v1", kind=kind)
        tasks.cancel_scope.cancel()
    assert f"127.0.0.1:{port} is silent" in said
    assert sum(request.startswith(b"GET /version") for request in asked) < 5  # one call asks for many


async def test_server_that_hangs_up() -> None:
    async def hang_up(stream: SocketStream) -> None:
        await stream.aclose()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hang_up)
        said = await fails(f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v1")
        tasks.cancel_scope.cancel()
    assert "no response: " in said


async def test_every_server_is_named_with_its_cause() -> None:
    port = await free_port()
    said = await fails([f"http://127.0.0.1:{port}/v1", "http://no-such-server.invalid/v1"])
    assert f"http://127.0.0.1:{port}/v1: no response: connection refused" in said
    assert "http://no-such-server.invalid/v1: no response: the name" in said


async def test_one_of_several_that_never_answered_is_reported_once(events: list[Any]) -> None:
    away = f"http://127.0.0.1:{await free_port()}/v1"
    async with llm_server() as server, OpenAIPolicy([away, server.url], "m", wait_for_server=SOON) as asked:
        for number in range(4):
            found = await ask_all(asked, [ask(session=f"{number} {one}") for one in range(4)])
            assert {answer.text for answer in found} == {"reply to Hello"}
    (line,) = [event for event in events if event["event"] == "server_never_answered"]
    assert line["endpoint"] == away
    assert "connection refused" in line["cause"]


@pytest.mark.parametrize("kind", [None, "vllm"])
async def test_server_that_comes_late_is_waited_for(kind: Any, events: list[Any]) -> None:
    port = await free_port()
    answers: list[Any] = []

    async def one() -> None:
        answers.append(await asked.generate(ask()))

    with anyio.fail_after(PATIENCE):
        async with (
            OpenAIPolicy(f"http://127.0.0.1:{port}/v1", "m", kind=kind, wait_for_server=PATIENCE) as asked,
            anyio.create_task_group() as tasks,
        ):
            for _ in range(20):
                tasks.start_soon(one)
            while not any(event["event"] == "waiting_for_server" for event in events):
                await all_tasks_blocked()
            await tasks.start(_serve_until_answered, port, answers)
    assert [answer.text for answer in answers] == ["reply to Hello"] * 20
    assert sum(event["event"] == "waiting_for_server" for event in events) == 1
    assert any(event["event"] == "server_answered" for event in events)


async def _serve_until_answered(port: int, answers: list[Any], *, task_status: Any) -> None:
    async with llm_server("vllm", port=port) as server:
        task_status.started()
        await server.until(lambda: sum(seen.done for seen in calls(server)) >= 20)
        while len(answers) < 20:
            await all_tasks_blocked()


@pytest.mark.parametrize("kind", [None, "llamacpp"])
async def test_server_that_is_loading_is_waited_for(kind: Any) -> None:
    """Its first four answers are 503, whatever it is asked: more than the attempts of a call."""
    async with (
        llm_server("llamacpp", loading=4) as server,
        policy(server, kind=kind, attempts=2, wait_for_server=PATIENCE) as asked,
    ):
        assert (await asked.generate(ask())).text == "reply to Hello"
    async with llm_server("llamacpp", loading=10**9) as server:
        said = await fails(server.url, kind=kind)
    assert "no response: HTTP 503: Loading model (waited 0.05 s" in said


async def test_deadline_of_a_request_holds_while_waiting() -> None:
    port = await free_port()
    async with OpenAIPolicy(f"http://127.0.0.1:{port}/v1", "m", wait_for_server=10**6) as asked:
        with pytest.raises(ProviderError, match=r"no response within 0.05 s.*connection refused"):
            await asked.generate(ask(seconds=0.05))


async def test_later_calls_fail_after_one_attempt_and_succeed_once_there_is_a_server() -> None:
    port = await free_port()
    async with OpenAIPolicy(f"http://127.0.0.1:{port}/v1", "m", wait_for_server=SOON) as asked:
        for _ in range(3):
            with anyio.fail_after(PATIENCE), pytest.raises(ProviderError, match="connection refused"):
                await asked.generate(ask())
        async with llm_server("vllm", port=port):
            assert (await asked.generate(ask())).token_ids


async def test_server_that_has_answered_before_gets_its_attempts() -> None:
    async with llm_server() as server:
        port = int(server.root.rpartition(":")[2])
        async with policy(server, wait_for_server=SOON, attempts=2) as asked:
            await asked.generate(ask())
            await server.stop()
            with pytest.raises(ProviderError, match=r"connection refused: nothing listens at .* \(after 2 attempts\)"):
                await asked.generate(ask())
            async with llm_server(port=port):
                assert (await asked.generate(ask())).text == "reply to Hello"


@pytest.mark.parametrize("path", ["", "/v1/chat/completions", "/v2"])
async def test_address_without_v1(path: str) -> None:
    async with llm_server("vllm") as server:
        said = await fails(f"{server.root}{path}")
        assert "HTTP 404" in said
        assert f"(a server responds at another address: set base_url='{server.url}')" in said
        assert sum(seen.path == "/v1/models" for seen in server.requests) == 1


@pytest.mark.parametrize("status", [400, 404])
async def test_model_that_is_not_there(status: int) -> None:
    refused = Answer(status, "The model `m` does not exist.")
    async with llm_server("vllm", lambda *_: refused) as server:
        said = await fails(server.url)
        assert f"HTTP {status}: The model `m` does not exist." in said
        assert f"(it has no model 'm'; available: '{MODEL}')" in said
        assert sum(seen.path == "/v1/models" for seen in server.requests) == 1
        async with OpenAIPolicy(server.url, MODEL) as asked:
            with pytest.raises(ProviderError) as caught:
                await asked.generate(ask())
        assert "available" not in str(caught.value)


async def test_advice_does_not_depend_on_a_list_of_models() -> None:
    async with llm_server("vllm", lambda *_: Answer(404, "no such model")) as server:
        server.refused_pages["/v1/models"] = [Answer(200, body=b"[[[")] * 10
        assert (await fails(server.url, 1)).endswith("HTTP 404: no such model")


@pytest.mark.parametrize("status", [401, 403])
async def test_where_the_key_came_from(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    monkeypatch.setenv("MY_KEY", "sk-other-canary")
    monkeypatch.delenv("NO_KEY", raising=False)
    async with llm_server(script=lambda *_: Answer(status, "not you")) as server:
        reported = [
            ({}, "(the key comes from $OPENAI_API_KEY)"),
            ({"api_key_env": "MY_KEY"}, "(the key comes from $MY_KEY)"),
            ({"api_key": "sk-third-canary"}, "(the key comes from api_key=)"),
            ({"api_key": ""}, "(no key was sent: set $OPENAI_API_KEY, or pass api_key=)"),
            ({"api_key_env": "NO_KEY"}, "(no key was sent: set $NO_KEY, or pass api_key=)"),
        ]
        for options, origin in reported:
            said = await fails(server.url, 1, **options)
            assert f"HTTP {status}: not you" in said
            assert said.endswith(origin)
            assert "canary" not in said
        configured = OpenAI(base_url=server.url, model="m", api_key_env="MY_KEY", wait_for_server=SOON)
        async with open_policy(configured) as asked:
            with pytest.raises(ProviderError, match=r"the key comes from \$MY_KEY"):
                await asked.generate(ask())
        assert calls(server)[-1].headers["Authorization"] == "Bearer sk-other-canary"


@pytest.mark.parametrize("before", [0, 290, 310])
async def test_no_part_of_a_key_is_shown_by_advice(before: int) -> None:
    key = "sk-canary-of-some-length"
    moved = Answer(307, "moved", headers={"Location": "x" * before + key})
    packed = Answer(200, headers={"Content-Encoding": "x" * before + key})
    async with llm_server(script=[moved, packed]) as server:
        for _ in range(2):
            assert "sk-" not in await fails(server.url, 1, api_key=key)


async def test_redirect_is_not_followed_and_told() -> None:
    moved = Answer(307, "moved", headers={"Location": "http://127.0.0.1:1/v1/chat/completions"})
    async with llm_server(script=[moved]) as server:
        said = await fails(server.url, 1)
    assert "it redirects to 'http://127.0.0.1:1/v1/chat/completions'" in said


@pytest.mark.parametrize("seconds", [0, -1, "long"])
def test_wrong_wait(seconds: Any) -> None:
    with pytest.raises(UsageError, match="wait_for_server="):
        OpenAIPolicy("http://x/v1", "m", wait_for_server=seconds)


async def test_closing_ends_the_wait() -> None:
    port = await free_port()
    with anyio.fail_after(PATIENCE):
        async with (
            anyio.create_task_group() as tasks,
            OpenAIPolicy(f"http://127.0.0.1:{port}/v1", "m", wait_for_server=10**6) as asked,
        ):
            tasks.start_soon(_is_closed, asked)
            await all_tasks_blocked()


async def _is_closed(asked: OpenAIPolicy) -> None:
    with pytest.raises(Exception, match="was closed"):
        await asked.generate(ask())
