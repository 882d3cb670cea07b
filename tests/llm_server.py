"""A real HTTP server on loopback that answers as OpenAI, vLLM, SGLang or llama.cpp do, and plays a script of faults.

Alone, for benchmarks: `python tests/llm_server.py --kind vllm --latency 0.05` prints its URL.
"""

import argparse
import asyncio
import json
import logging
import random
import signal
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import get_args

import anyio
from aiohttp import web
from aiohttp.typedefs import Handler

from tests.llm_answers import MODEL, Kind, complete, error, generate, overflow, refusal, stream_events
from tests.llm_faults import ABORTED, Answer, Cut, Edit, Ending, Fault, Hold, Json, Reply, Script, Trickle


@dataclass(eq=False)
class Seen:
    """A request as it came, and how it ended."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]  # whatever the case
    body: Json = field(default_factory=dict)
    status: int | None = None  # of the answer, once begun
    hung_up: bool = False  # the client left before the answer was complete
    done: bool = False
    came: float = field(default_factory=time.monotonic)


_SEEN = web.RequestKey("seen", Seen)
_SHORTENED = web.RequestKey("shortened", dict)


class LLMServer:
    """Made by `llm_server`; what it has seen and is doing now."""

    url: str  # ends in /v1
    root: str  # for /health and what each kind adds

    def __init__(
        self,
        kind: Kind,
        script: Script | None,
        latency: float | Callable[[random.Random], float],
        seed: int,
        limit: int | None,
        loading: int,
        context: int | None,
        retry_after: str | None,
    ) -> None:
        self.kind = kind
        self.script: Script = [] if script is None else script
        self.requests: list[Seen] = []
        self.most_in_flight = 0
        self.limit = limit
        self._refusal = Answer(429, "Too many requests", {} if retry_after is None else {"Retry-After": retry_after})
        self.weight_version = "default"
        self.paused = False
        self.refused_pages: dict[str, list[Answer]] = {}  # the next answers, by path
        self._latency, self._seed, self._loading, self._context = latency, seed, loading, context
        self.healthy = True
        self._closing = False
        self._runner: web.AppRunner | None = None
        self._generations = 0
        self._waits: dict[Seen, anyio.CancelScope] = {}
        self._frozen = False
        self._changed = anyio.Event()

    @property
    def in_flight(self) -> int:
        """Generations accepted and not yet answered."""
        return len(self._waits)

    @property
    def cancelled(self) -> int:
        return sum(seen.hung_up for seen in self.requests)

    async def until(self, condition: Callable[[], bool], patience: float = 30.0) -> None:
        """Wait for something about the requests to become true: `until(lambda: server.in_flight == 3)`."""
        with anyio.fail_after(patience):
            await self._until(condition)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _notice(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._record], client_max_size=1 << 28)
        get, post = app.router.add_get, app.router.add_post
        post("/v1/chat/completions", self._generate)
        post("/v1/completions", self._generate)
        get("/v1/models", self._models)
        get("/health", self._health)
        if self.kind == "vllm":
            get("/version", self._say(lambda: {"version": "0.0.0"}))
            get("/is_paused", self._say(lambda: {"is_paused": self.paused}))
            get("/weight_info", self._say(lambda: {"weight_version": self.weight_version}))
            post("/pause", self._pause)
            post("/resume", self._resume)
            post("/abort_requests", self._abort)
        elif self.kind == "sglang":
            for path in ("/server_info", "/get_server_info"):
                get(path, self._say(lambda: {"version": "0.0.0", "model_path": MODEL, "internal_states": []}))
            for path in ("/model_info", "/get_model_info"):
                get(path, self._say(lambda: {"model_path": MODEL, "weight_version": self.weight_version}))
            get("/weight_version", self._say(lambda: {"weight_version": self.weight_version}))
            post("/generate", self._generate)
            post("/pause_generation", self._pause)
            post("/continue_generation", self._resume)
            post("/abort_request", self._abort)
        elif self.kind == "llamacpp":
            settings = {"n_ctx": 4096, "params": {}}
            props = {
                "default_generation_settings": settings,
                "total_slots": 4,
                "model_alias": MODEL,
                "build_info": "b0",
            }
            get("/props", self._say(lambda: props))
        return app

    async def stop(self) -> None:
        """As by a crash: all connections end, and no other is taken."""
        self._closing = True
        runner, self._runner = self._runner, None
        if runner is not None:
            with anyio.move_on_after(5, shield=True):
                await runner.cleanup()

    async def _health(self, _request: web.Request) -> web.Response:
        if not self.healthy:
            return web.Response(status=503)
        return web.json_response({"status": "ok"}) if self.kind == "llamacpp" else web.Response()

    def _say(self, content: Callable[[], Json | None]) -> Handler:
        async def handler(_request: web.Request) -> web.Response:
            said = content()
            return web.Response() if said is None else web.json_response(said)

        return handler

    @web.middleware
    async def _record(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        seen = Seen(request.method, request.path, dict(request.query), request.headers)
        self.requests.append(seen)
        request[_SEEN] = seen
        try:
            raw = await request.read()
            try:
                seen.body = json.loads(raw or b"{}")
            except ValueError as wrong:
                return await self._answer(request, Answer(400, f"the body is not JSON: {wrong}"))
            if len(self.requests) <= self._loading:
                return await self._answer(request, Answer(503, "Loading model"))
            self._notice()
            if refusals := self.refused_pages.get(request.path):
                return await self._answer(request, refusals.pop(0))
            response = await handler(request)
            seen.status = response.status
        except (asyncio.CancelledError, ConnectionError):
            seen.hung_up = not self._closing
            raise
        else:
            return response
        finally:
            seen.done = True
            self._notice()

    async def _models(self, _request: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": self.kind}
        if self.kind in ("vllm", "sglang"):
            model |= {"root": MODEL, "max_model_len": 4096}
        return web.json_response({"object": "list", "data": [model]})

    async def _pause(self, request: web.Request) -> web.Response:
        seen = request[_SEEN]
        mode = seen.query.get("mode", seen.body.get("mode", "abort"))
        self.paused = True
        running = [*self._waits]
        if mode == "abort":
            self._abort_all()
        if mode in ("abort", "wait"):
            await self._until(lambda: not any(one in self._waits for one in running))
        else:
            self._frozen = True
        ok = {"message": "Generation paused successfully.", "status": "ok"}
        return web.json_response({"status": "paused"} if self.kind == "vllm" else ok)

    async def _resume(self, _request: web.Request) -> web.Response:
        self.paused = self._frozen = False
        self._notice()
        ok = {"message": "Generation continued successfully.", "status": "ok"}
        return web.json_response({"status": "resumed"} if self.kind == "vllm" else ok)

    async def _abort(self, _request: web.Request) -> web.Response:
        aborted = self._abort_all()
        return web.json_response({"status": "aborted", "aborted": aborted}) if self.kind == "vllm" else web.Response()

    def _abort_all(self) -> int:
        for scope in self._waits.values():
            scope.cancel()
        return len(self._waits)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        seen = request[_SEEN]
        if self.limit is not None and self.in_flight >= self.limit:
            return await self._answer(request, self._refusal)
        if (reason := refusal(self.kind, seen.body, seen.path)) is not None:
            return await self._answer(request, Answer(400, reason))
        if self._context is not None:
            body = {**seen.body}
            if (reason := overflow(self.kind, body, seen.path, self._context)) is not None:
                return await self._answer(request, Answer(400, reason))
            request[_SHORTENED] = body
        number, self._generations = self._generations, self._generations + 1
        script = self.script
        fault = script(number, seen.body) if callable(script) else script.pop(0) if script else None
        self._waits[seen] = scope = anyio.CancelScope()
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self._notice()
        try:
            with scope:
                await self._until(lambda: not self.paused)
                rng = random.Random(f"{self._seed}-{number}")
                await anyio.sleep(self._latency(rng) if callable(self._latency) else self._latency)
                while isinstance(fault, Hold) and not fault.sent:
                    await _held(fault)
                    fault = fault.then
                await self._until(lambda: not self._frozen)
            if scope.cancelled_caught:
                fault = ABORTED
            if isinstance(fault, Answer):
                return await self._answer(request, fault)
            return await self._complete(request, number, fault)
        finally:
            del self._waits[seen]

    async def _answer(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        body = answer.body
        if body is None:
            body = json.dumps(error(self.kind, answer.status, answer.message)).encode()
        headers = {"Content-Type": answer.content_type, **answer.headers}
        return await self._send(request, web.StreamResponse(status=answer.status, headers=headers), [body], None)

    async def _complete(self, request: web.Request, number: int, fault: Fault | None) -> web.StreamResponse:
        body = request.get(_SHORTENED, request[_SEEN].body)
        reply = fault if isinstance(fault, Reply) else Reply()
        if request.path == "/generate":
            whole = generate(number, body, reply, self.weight_version)
        else:
            whole = complete(self.kind, number, body, reply, self.weight_version)
        if isinstance(fault, Edit):
            fault.change(whole)
        if not body.get("stream"):
            raw = json.dumps(whole).encode()
            pieces = [raw[: len(raw) // 2], raw[len(raw) // 2 :]]
            return await self._send(
                request, web.StreamResponse(headers={"Content-Type": "application/json"}), pieces, fault
            )
        lines = [json.dumps(event) for event in stream_events(self.kind, body, whole)]
        if not isinstance(fault, Ending):
            lines.append("[DONE]")
        elif fault.event is not None:
            lines.append(json.dumps(fault.event))
        pieces = [f"data: {line}\n\n".encode() for line in lines]
        return await self._send(
            request, web.StreamResponse(headers={"Content-Type": "text/event-stream"}), pieces, fault
        )

    async def _send(
        self, request: web.Request, response: web.StreamResponse, pieces: list[bytes], fault: Fault | None
    ) -> web.StreamResponse:
        """Everything is written here, so that a client that leaves meanwhile is noticed."""
        if isinstance(fault, Cut) and not fault.sent:
            _lose(request, fault)
            return response
        if isinstance(fault, Trickle):
            whole = b"".join(pieces)
            pieces = [whole[start : start + fault.size] for start in range(0, len(whole), fault.size)]
        if response.content_type != "text/event-stream":
            response.content_length = sum(map(len, pieces))
        request[_SEEN].status = response.status
        await response.prepare(request)
        turn = int(len(pieces) * fault.sent) if isinstance(fault, Cut | Hold) else len(pieces)
        for place, piece in enumerate(pieces):
            if place == turn and isinstance(fault, Cut):
                _lose(request, fault)
                return response
            if place == turn and isinstance(fault, Hold):
                await _held(fault)
            await response.write(piece)
            if isinstance(fault, Trickle):
                await anyio.sleep(fault.delay)
        await response.write_eof()
        return response


async def _held(fault: Hold) -> None:
    await (anyio.sleep_forever() if fault.until is None else fault.until.wait())


def _lose(request: web.Request, fault: Cut) -> None:
    assert request.transport is not None
    if not fault.reset:
        request.transport.close()
        return
    at_once = struct.pack("ii", 1, 0)  # without lingering, the kernel sends a reset
    request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    request.transport.abort()


@asynccontextmanager
async def llm_server(
    kind: Kind = "openai",
    script: Script | None = None,
    *,
    latency: float | Callable[[random.Random], float] = 0.0,
    seed: int = 0,
    limit: int | None = None,
    loading: int = 0,
    context: int | None = None,
    port: int = 0,
    retry_after: str | None = "1",
) -> AsyncIterator[LLMServer]:
    """A server while the block runs.

    A fault of the script is played for each generation, then none; a function gets the generation's number and body.
    More than `limit` generations at once get a 429 with `retry_after`, and the first `loading` requests a 503. Prompts
    with their replies may have `context` tokens.
    """
    server = LLMServer(kind, script, latency, seed, limit, loading, context, retry_after)
    runner = web.AppRunner(server._app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
    await runner.setup()
    server._runner = runner
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        server.root = f"http://127.0.0.1:{runner.addresses[0][1]}"
        server.url = f"{server.root}/v1"
        yield server
    finally:
        await server.stop()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=get_args(Kind), default="openai")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds; the median if there is a spread")
    parser.add_argument("--spread", type=float, default=0.0, help="sigma of a lognormal latency")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="more at once get a 429")
    given = parser.parse_args()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # clients that hang up are no news

    def latency(rng: random.Random) -> float:
        return float(given.latency * rng.lognormvariate(0.0, given.spread))

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with llm_server(
            given.kind, latency=latency, seed=given.seed, limit=given.limit, port=given.port
        ) as server:
            print(server.url, flush=True)
            async for _ in signals:
                break


if __name__ == "__main__":
    anyio.run(main, backend_options={"use_uvloop": True})
