"""A local web server: a list of runs, the report of each, and their metrics."""

import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from aiohttp import web
from anyio.from_thread import check_cancelled

from asyncrollout.concurrency import run_to_end
from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.report.compared_run import decide, read_side, which_k
from asyncrollout.report.comparison import MOST_SIDES, comparison_page
from asyncrollout.report.page import LiveUpdates, write_report
from asyncrollout.report.single_file import whole_page
from asyncrollout.report.videos import videos_of
from asyncrollout.telemetry import prometheus_text
from asyncrollout.telemetry.prometheus import CONTENT_TYPE
from asyncrollout.viewer.run_index import RunIndex, RunStatus, status_of, version_of

HOST = "127.0.0.1"
_INDEX, _FOLLOW = "asyncrollout.viewer:index.js", "asyncrollout.viewer:follow.js"

_OURS = ("127.0.0.1", "localhost")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_CLOSING_SECONDS = 1.0
_LAST_PORT = 65_535  # uvloop would take the rest of a division by one more

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Viewer:
    """Answers requests; reports are written to its own directory, and again when a run has new data."""

    def __init__(self, runs: RunIndex, own: Path) -> None:
        self._run_index = runs
        self._own = own
        self._written: dict[Path, str] = {}
        self._writing: dict[Path, anyio.Lock] = {}
        self._answering: set[anyio.CancelScope] = set()

    def close(self) -> None:
        """Cancel all reads and writes for responses."""
        for scope in self._answering:
            scope.cancel()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[_for_this_machine_only, self._until_closed, _with_errors_as_text])
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/runs.json", self._runs),
                web.get("/runs/{name:[^/]+}/", self._report),
                web.get("/runs/{name:[^/]+}/state.json", self._state),
                web.get("/runs/{name:[^/]+}/videos/{file:[^/]+}", self._video),
                web.get("/compare", self._compare),
                web.get("/metrics", self._metrics),
            ]
        )
        return app

    @web.middleware
    async def _until_closed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """In a cancel scope, because a thread does not notice that the task awaiting it is cancelled."""
        with anyio.CancelScope() as scope:
            self._answering.add(scope)
            try:
                return await handler(request)
            finally:
                self._answering.discard(scope)
        return web.Response(status=503, text="The viewer was stopped.")

    async def _index(self, _: web.Request) -> web.Response:
        carried = {"runs": await self._statuses(), "most": MOST_SIDES}
        page = await anyio.to_thread.run_sync(partial(whole_page, "Runs", [_INDEX], carried, asks_server=True))
        return web.Response(text=page, content_type="text/html")

    async def _runs(self, _: web.Request) -> web.Response:
        return _as_json(await self._statuses())

    async def _statuses(self) -> Any:
        return msgspec.to_builtins(await anyio.to_thread.run_sync(self._run_index.statuses))

    async def _report(self, request: web.Request) -> web.FileResponse:
        directory = await self._run(request)
        path = await self._fresh_report(request.match_info["name"], directory)
        return web.FileResponse(path, headers={"Content-Type": "text/html; charset=utf-8"})

    async def _state(self, request: web.Request) -> web.Response:
        directory = await self._run(request)
        version, found = await anyio.to_thread.run_sync(_read_state, request.match_info["name"], directory)
        return _as_json({"version": version, **msgspec.to_builtins(found)})

    async def _video(self, request: web.Request) -> web.FileResponse:
        found = await anyio.to_thread.run_sync(videos_of, await self._run(request))
        if (path := found.get(request.match_info["file"])) is None:
            raise web.HTTPNotFound(text="There is no such video.")
        return web.FileResponse(path)

    async def _compare(self, request: web.Request) -> web.Response:
        """`/compare?run=one&run=other`."""
        runs, names = await anyio.to_thread.run_sync(self._run_index.runs), request.query.getall("run", [])
        if unknown := [name for name in names if name not in runs]:
            raise web.HTTPNotFound(text=f"There is no such run here: {', '.join(unknown)}")
        if not 1 <= len(names) <= MOST_SIDES:
            raise web.HTTPBadRequest(text=f"Choose up to {MOST_SIDES} runs: /compare?run=NAME&run=OTHER")
        page = await anyio.to_thread.run_sync(_comparison, {name: runs[name] for name in names})
        return web.Response(text=page, content_type="text/html")

    async def _metrics(self, _: web.Request) -> web.Response:
        """Of those that are played: a run that has ended is no longer watched."""
        playing = {one["name"]: one["figures"] for one in await self._statuses() if one["state"] == "playing"}
        return web.Response(body=prometheus_text(playing).encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _run(self, request: web.Request) -> Path:
        runs = await anyio.to_thread.run_sync(self._run_index.runs)
        if (directory := runs.get(request.match_info["name"])) is None:
            raise web.HTTPNotFound(text="There is no such run here.")
        return directory

    async def _fresh_report(self, name: str, directory: Path) -> Path:
        """Written once at a time for each run: requests that come meanwhile wait for it."""
        path = self._own / f"{hashlib.sha256(os.fsencode(directory)).hexdigest()}.html"
        async with self._writing.setdefault(directory, anyio.Lock()):
            version = await anyio.to_thread.run_sync(version_of, directory)
            if self._written.get(directory) != version:
                served = LiveUpdates(_FOLLOW, {"run": name, "version": version})
                write = partial(write_report, directory, path, lambda _done, _all: check_cancelled(), served=served)
                await anyio.to_thread.run_sync(write)
                self._written[directory] = version
        return path


def _read_state(name: str, directory: Path) -> tuple[str, RunStatus]:
    return version_of(directory), status_of(name, directory)


def _comparison(runs: dict[str, Path]) -> str:
    sides = [read_side(directory, name, check_cancelled) for name, directory in runs.items()]
    decide(sides)
    return comparison_page(sides, which_k(sides))


@asynccontextmanager
async def serving(runs: RunIndex, port: int | None) -> AsyncIterator[str]:
    """Serve the runs, on a free port unless one is given; yields the address."""
    if port is not None and not 1 <= port <= _LAST_PORT:
        raise UsageError(f"--port {port}: it must be a whole number from 1 to {_LAST_PORT}")
    async with AsyncExitStack() as parts:
        own = parts.enter_context(TemporaryDirectory(prefix="asyncrollout-view-"))
        viewer = Viewer(runs, Path(own))
        runner = web.AppRunner(viewer.app(), access_log=None, shutdown_timeout=_CLOSING_SECONDS)
        await runner.setup()
        parts.push_async_callback(run_to_end, _close, viewer, runner)
        site = web.TCPSite(runner, HOST, port or 0)
        try:
            await site.start()
        except OSError as error:
            raise UsageError(f"port {port} cannot be used: {error.strerror or error}; try another --port") from error
        yield f"http://{HOST}:{runner.addresses[0][1]}/"


async def _close(viewer: Viewer, runner: web.AppRunner) -> None:
    with anyio.move_on_after(2 * _CLOSING_SECONDS):
        viewer.close()
        await runner.cleanup()


@web.middleware
async def _for_this_machine_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse pages of other hosts whose names resolve to this address (DNS rebinding)."""
    if request.url.host not in _OURS:
        return web.Response(status=403, text="This server answers to localhost only.")
    response = await handler(request)
    response.headers.update({name: value for name, value in _HEADERS.items() if name not in response.headers})
    return response


@web.middleware
async def _with_errors_as_text(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as answer:
        return web.Response(status=answer.status, text=answer.text)
    except RolloutError as error:
        return web.Response(status=422, text=f"This run cannot be shown: {error}")


def _as_json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
