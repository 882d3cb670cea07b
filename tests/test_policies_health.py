"""Servers that are lost after their weights were updated: none that comes back with others passes for up to date."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import chain, repeat
from typing import Any

import anyio
import msgspec
import pytest
from aiohttp import web
from anyio.abc import SocketAttribute, SocketStream

from asyncrollout import Generation, OpenAIPolicy, ProviderError, Request
from asyncrollout.policies.openai.endpoint import Endpoint
from tests.llm_faults import Cut
from tests.llm_server import LLMServer, llm_server
from tests.playing import PATIENCE
from tests.scripts.processes import until
from tests.waiting import all_tasks_blocked


def ask(session: str = "") -> Request:
    return Request(messages=[{"role": "user", "content": "Hello"}], session=session)


def policy(*servers: LLMServer, **options: Any) -> OpenAIPolicy:
    return OpenAIPolicy([server.url for server in servers], "m", kind="openai", **options)


async def update(asked: OpenAIPolicy, version: int) -> None:
    await asked.pause()
    await asked.resume(version)


def answered(server: LLMServer) -> int:
    return sum(seen.path.endswith("completions") for seen in server.requests)


def port_of(server: LLMServer) -> int:
    return int(server.root.rpartition(":")[2])


async def is_lost(endpoint: Endpoint) -> None:
    with anyio.fail_after(PATIENCE):
        while endpoint.up:
            await all_tasks_blocked()


async def is_asked_for_its_health(server: LLMServer) -> None:
    await server.until(lambda: any(seen.path == "/health" and seen.done for seen in server.requests), PATIENCE)
    await all_tasks_blocked()


@pytest.mark.parametrize("idle", [True, False])
async def test_restarted_server_gets_no_calls_before_the_next_update(idle: bool) -> None:
    async with llm_server() as stays, llm_server() as goes, policy(goes, stays) as asked:
        port = port_of(goes)
        await asked.generate(ask("a"))
        await asked.generate(ask("b"))
        assert (answered(goes), answered(stays)) == (1, 1)
        await update(asked, 3)
        await goes.stop()
        if idle:
            await is_lost(asked.endpoints[0])
        async with llm_server(port=port) as again:
            for number in range(8):
                assert (await asked.generate(ask(f"{number}"))).version == 3
            assert answered(again) == 0
            if not asked.endpoints[0].up:
                await is_asked_for_its_health(again)
            await asked.generate(ask("a"))
            assert answered(again) == 0
            await update(asked, 4)
            for number in range(8):
                assert (await asked.generate(ask(f"then {number}"))).version == 4
            assert answered(again) > 0


async def test_restarted_server_has_its_weights_pushed_first() -> None:
    pushed: list[tuple[str, int]] = []

    async def on_back(endpoint: Endpoint) -> None:
        pushed.append((endpoint.name, answered(again)))
        if len(pushed) == 1:
            raise RuntimeError("not yet")

    async with llm_server() as goes, policy(goes, on_back=on_back) as asked:
        await update(asked, 3)
        await goes.stop()
        await is_lost(asked.endpoints[0])
        async with llm_server(port=port_of(goes)) as again:
            with anyio.fail_after(PATIENCE):
                assert (await asked.generate(ask())).version == 3
            assert pushed == [(goes.url, 0)] * 2
            assert answered(again) == 1


async def test_push_that_an_update_overtakes_is_made_again() -> None:
    versions: list[int] = []
    begun, go = anyio.Event(), anyio.Event()

    async def on_back(endpoint: Endpoint) -> None:
        versions.append(asked.version)
        begun.set()
        if len(versions) == 1:
            again.healthy = False  # the update cannot tell that it reaches this one
            await go.wait()
            again.healthy = True

    async with llm_server() as stays, llm_server() as goes, policy(goes, stays, on_back=on_back) as asked:
        await update(asked, 1)
        await goes.stop()
        await is_lost(asked.endpoints[0])
        async with llm_server(port=port_of(goes)) as again:
            with anyio.fail_after(PATIENCE):
                await begun.wait()
                await update(asked, 2)
                go.set()
                while not asked.endpoints[0].up:
                    await again.until(lambda: True)
                    await all_tasks_blocked()
            assert versions == [1, 2]


async def test_no_server_left_with_the_weights_is_reported_at_once() -> None:
    async with llm_server() as goes, policy(goes) as asked:
        await update(asked, 1)
        await goes.stop()
        await is_lost(asked.endpoints[0])
        async with llm_server(port=port_of(goes)) as again:
            with anyio.fail_after(PATIENCE), pytest.raises(ProviderError, match=r"restarted.*weight_update.*on_back="):
                await asked.generate(ask())
            assert answered(again) == 0
            await update(asked, 2)
            assert (await asked.generate(ask())).version == 2


@pytest.mark.parametrize("reset", [True, False])
async def test_lost_connection_of_a_server_that_was_not_restarted_costs_nothing(reset: bool) -> None:
    async with llm_server(script=[Cut(reset=reset), Cut(reset=reset)]) as server, policy(server) as asked:
        await update(asked, 1)
        with anyio.fail_after(PATIENCE):
            assert (await asked.generate(ask())).version == 1
        assert asked.endpoints[0].up


async def test_server_that_comes_back_while_one_of_its_lifelines_is_made_anew() -> None:
    """It cuts a call off, and is asked for its health; before it answers, it ends one of two silent connections."""
    silent: list[SocketStream] = []
    cuts = chain([True, True], repeat(False))  # the first is taken for a connection that had been kept
    waits_for_health, is_ended, another_line = anyio.Event(), anyio.Event(), anyio.Event()

    async def serve(stream: SocketStream) -> None:
        silent.append(stream)
        if is_ended.is_set():
            another_line.set()
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                asked = await stream.receive()
                silent.remove(stream)
                if asked.startswith(b"GET /health"):
                    waits_for_health.set()
                    await another_line.wait()
                elif next(cuts):
                    return
                reply = msgspec.json.encode({"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]})
                head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(reply)}\r\n\r\n"
                await stream.send(head.encode() + reply)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v1"
    with anyio.fail_after(PATIENCE):
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            async with OpenAIPolicy(url, "m", kind="openai", logprobs=False) as asked:
                await update(asked, 1)
                (lines,) = asked._health._lifelines.values()
                await until(lambda: len(lines) == 2)
                replies: list[Generation] = []

                async def ask_once() -> None:
                    replies.append(await asked.generate(ask()))

                async with anyio.create_task_group() as asking:
                    asking.start_soon(ask_once)
                    await waits_for_health.wait()
                    is_ended.set()
                    await silent[0].aclose()
                assert [reply.version for reply in replies] == [1]
            tasks.cancel_scope.cancel()


async def test_server_that_missed_the_first_update_gets_no_calls() -> None:
    async with llm_server() as stays, llm_server() as goes, policy(goes, stays) as asked:
        await goes.stop()
        await asked.generate(ask("a"))
        await is_lost(asked.endpoints[0])
        await update(asked, 1)
        async with llm_server(port=port_of(goes)) as again:
            await is_asked_for_its_health(again)
            for number in range(4):
                await asked.generate(ask(f"{number}"))
            assert answered(again) == 0


@pytest.mark.parametrize("changed", [True, False])
async def test_server_that_is_restarted_during_the_first_update(changed: bool) -> None:
    """Its weights may have been pushed before, and be gone; if there are no new ones, any restart is harmless."""
    async with llm_server() as goes, policy(goes) as asked:
        await asked.generate(ask())
        await asked.pause()
        await goes.stop()
        async with llm_server(port=port_of(goes)) as again:
            await is_lost(asked.endpoints[0])
            await asked.resume(1 if changed else None)
            with anyio.fail_after(PATIENCE):
                if changed:
                    with pytest.raises(ProviderError, match="may have been restarted"):
                        await asked.generate(ask())
                    await update(asked, 2)
                assert (await asked.generate(ask())).version == (2 if changed else 0)
                while not asked.endpoints[0].up:
                    await all_tasks_blocked()
            assert answered(again) == 1


async def test_lost_server_that_is_restarted_once_more_while_weights_are_pushed() -> None:
    """It was healthy when the update began and when it ended, but not the same."""
    async with llm_server() as goes, policy(goes) as asked:
        await asked.generate(ask())
        await update(asked, 1)
        await goes.stop()
        await is_lost(asked.endpoints[0])
        async with llm_server(port=port_of(goes)) as between:
            await asked.pause()
            await between.stop()
            async with llm_server(port=port_of(goes)) as again:
                await asked.resume(2)
                with anyio.fail_after(PATIENCE):
                    with pytest.raises(ProviderError, match="may have been restarted"):
                        await asked.generate(ask())
                    await update(asked, 3)
                    assert (await asked.generate(ask())).version == 3
                assert answered(again) == 1


async def test_server_that_starts_after_a_resumed_run_is_waited_for() -> None:
    """It is started with the weights of that run; those that it may have after a restart are its own."""
    async with llm_server() as free:
        port = port_of(free)
    async with AsyncExitStack() as stack, policy(free, wait_for_server=PATIENCE) as asked:
        await asked.start_at(3)
        versions: list[int] = []

        async def one() -> None:
            versions.append((await asked.generate(ask())).version)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one)
                await all_tasks_blocked()
                server = await stack.enter_async_context(llm_server(port=port))
            while not asked.endpoints[0].up:
                await all_tasks_blocked()
            await server.stop()
            await is_lost(asked.endpoints[0])
            async with llm_server(port=port) as again:
                await is_asked_for_its_health(again)
                with pytest.raises(ProviderError, match="may have been restarted"):
                    await asked.generate(ask())
                assert answered(again) == 0
    assert versions == [3]


async def test_server_may_be_restarted_while_weights_were_never_updated() -> None:
    async with llm_server() as goes, policy(goes) as asked:
        await asked.generate(ask())
        await goes.stop()
        async with llm_server(port=port_of(goes)) as again:
            with anyio.fail_after(PATIENCE):
                await asked.generate(ask())
            assert answered(again) == 1


@asynccontextmanager
async def _elsewhere(target: str) -> AsyncIterator[str]:
    """A server that sends everybody to another one."""

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(f"{target}{request.path_qs}")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", redirect)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_pages_of_a_server_are_asked_of_no_other() -> None:
    async with llm_server("vllm") as other, _elsewhere(other.root) as root:
        async with OpenAIPolicy(f"{root}/v1", "m", kind="vllm", api_key="sk-canary") as asked:
            await update(asked, 1)
        assert not other.requests
