"""A headless Chromium driven over its DevTools protocol: enough to open a page, press keys, ask questions of it, and
take its picture. One websocket, no driver to install."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
VARIABLE = "AJET_CHROMIUM"
"""Path of the browser, where it is not on the PATH."""
_KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, "Tab": 9, "Enter": 13, "Escape": 27, " ": 32}


def find() -> str | None:
    """The browser's path, or None where there is none."""
    named = os.environ.get(VARIABLE)
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One open page.

    Attributes:
        requests: addresses it asked for, those of the page itself left out.
        problems: exceptions and console errors.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.url = ""

    async def listen(self) -> None:
        """Take what the browser says until it closes."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                waiting = self._answers.pop(said["id"])
                if not waiting.done():
                    waiting.set_result(said)
                continue
            method, values = said["method"], said["params"]
            if method == "Page.loadEventFired":
                self._loaded.set()
            elif method == "Network.requestWillBeSent":
                if values["request"]["url"] != self.url and not values["request"]["url"].startswith("data:"):
                    self.requests.append(values["request"]["url"])
            elif method == "Runtime.exceptionThrown":
                self.problems.append(values["exceptionDetails"].get("exception", {}).get("description", str(values)))
            elif method == "Log.entryAdded" and values["entry"]["level"] == "error":
                self.problems.append(values["entry"]["text"])

    async def ask(self, method: str, **values: Any) -> dict[str, Any]:
        """One command of the protocol."""
        self._number += 1
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[self._number] = answer
        await self._socket.send_json({"id": self._number, "method": method, "params": values})
        said = await asyncio.wait_for(answer, 30)
        assert "error" not in said, said
        return said["result"]

    async def open(self, address: str, fragment: str = "") -> None:
        """Open an address (of a file: ``Path.as_uri()``) and wait until it is loaded."""
        self._loaded.clear()
        # Another address first: a change of the fragment alone loads nothing.
        self.url = "about:blank"
        await self.ask("Page.navigate", url=self.url)
        await asyncio.wait_for(self._loaded.wait(), 30)
        self._loaded.clear()
        self.url = address
        await self.ask("Page.navigate", url=self.url + (f"#{fragment}" if fragment else ""))
        await asyncio.wait_for(self._loaded.wait(), 30)

    async def size(self, width: int, height: int, *, phone: bool = False, scale: float = 1) -> None:
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )

    async def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        said = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    async def until(self, expression: str, wanted: Any = True) -> None:
        """Wait until a JavaScript expression has this value."""
        deadline = asyncio.get_running_loop().time() + 15
        while (found := await self.value(expression)) != wanted:
            assert asyncio.get_running_loop().time() < deadline, f"{expression} is {found!r}, not {wanted!r}"
            await self.value("new Promise(requestAnimationFrame)")

    async def press(self, *keys: str) -> None:
        """Press keys as a person does."""
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            code = _KEYS.get(key, ord(key.upper()) if len(key) == 1 and key.isalnum() else 0)
            down: dict[str, Any] = {"type": "keyDown", "key": key, "windowsVirtualKeyCode": code}
            await self.ask("Input.dispatchKeyEvent", **down, **({"text": text} if text else {}))
            await self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def picture(self, *, whole: bool = False) -> bytes:
        """A PNG of the window, or of the whole page."""
        said = await self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(said["data"])


@asynccontextmanager
async def browse(browser: str) -> AsyncIterator[Page]:
    """A fresh browser with one empty page; it ends with the block, and its profile with it."""
    with tempfile.TemporaryDirectory(prefix="ajet-chromium-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
            "--no-proxy-server", "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            said = b""
            while b"DevTools listening on" not in said:
                said = await asyncio.wait_for(process.stderr.readline(), 60)
                assert said, "the browser ended before it listened"
            address = said.decode().split("DevTools listening on ")[1].split("/devtools")[0].replace("ws:", "http:")
            draining = asyncio.create_task(_drain(process.stderr))
            async with aiohttp.ClientSession(trust_env=False) as http:
                async with http.get(f"{address}/json/list") as answer:
                    target = next(t for t in await answer.json() if t["type"] == "page")
                async with http.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    listening = asyncio.create_task(page.listen())
                    for domain in ("Page", "Network", "Runtime", "Log"):
                        await page.ask(f"{domain}.enable")
                    yield page
                    await socket.close()
                    await listening
            draining.cancel()
        finally:
            if process.returncode is None:
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 10)
            except asyncio.TimeoutError:
                process.kill()
                await process.wait()


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.readline():
        pass
