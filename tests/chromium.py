"""Debian's Chromium, without a window, by its DevTools protocol."""

import asyncio
import base64
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from tests.playing import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip


class Page:
    """A tab. `events` are all that the browser reported: requests, messages of the console, exceptions."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        await self._socket.send_str(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = await self._next()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    async def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.loaded()

    async def loaded(self, times: int = 1) -> None:
        """So many pages have been loaded: the first one, and those that it went on to."""
        while len(self.seen("Page.loadEventFired")) < times:
            await self._next()

    async def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        found = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def wait_for(self, expression: str) -> Any:
        """The value of the expression, as soon as it is true."""
        return await self.run(
            f"new Promise((done) => {{ const look = () => {{ const value = ({expression});"
            " if (value) done(value); else requestAnimationFrame(look); }; look(); })"
        )

    async def press(self, key: str) -> None:
        text = {"Enter": "\r", " ": " "}.get(key, "")
        code = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        same = {"key": key, "code": key, "windowsVirtualKeyCode": code.get(key, 0)}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **same)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **same)

    async def resize(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def picture(self, *, whole: bool = False) -> bytes:
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])

    def seen(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event["method"] == method]

    async def _next(self) -> Any:
        message = await self._socket.receive(timeout=PATIENCE)
        assert message.type == aiohttp.WSMsgType.TEXT, message
        decoded = json.loads(message.data)
        if "method" in decoded:
            self.events.append(decoded)
        return decoded


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Page]:
    """A new browser that shows this page."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, env={**os.environ, "TMPDIR": profile},
        )  # fmt: skip
        try:
            with anyio.fail_after(PATIENCE):
                port = await _port(Path(profile))
                async with aiohttp.ClientSession() as session:
                    async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                        (tab,) = [one for one in await answer.json() if one["type"] == "page"]
                    async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                        page = Page(socket)
                        await page.open(url)
                        yield page
        finally:
            process.terminate()
            with anyio.CancelScope(shield=True):
                await process.wait()


async def _port(profile: Path) -> int:
    """The port that the browser has chosen; it writes it to a file."""
    while True:
        try:
            lines = (profile / "DevToolsActivePort").read_text().splitlines()
        except FileNotFoundError:
            lines = []
        if len(lines) >= 2:
            return int(lines[0])
        await anyio.sleep(0.02)
