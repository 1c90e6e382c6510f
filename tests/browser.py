"""A real browser, driven over its own debugging protocol: what a page looks like and does."""

import asyncio
import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

DRAWN = """[...document.querySelectorAll(".plot")].map(
    plot => plot.querySelectorAll(".main-svg").length > 0 && plot.clientHeight > 100)"""

WIDER_THAN_SHOWN = "document.documentElement.scrollWidth - document.documentElement.clientWidth"

SERIOUS = """axe.run().then(found => JSON.stringify(found.violations
    .filter(each => ["serious", "critical"].includes(each.impact))
    .map(each => [each.id, each.nodes.slice(0, 3).map(node => node.html.slice(0, 200))])))"""


@dataclass(kw_only=True)
class Visit:
    """What was seen of a page."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """But for the page itself and what it holds."""
    drawn: list[bool] = field(default_factory=list)
    """Whether each figure was."""
    wider: int = 0
    """By how many pixels the page is wider than the window."""
    violations: list[Any] = field(default_factory=list)
    """Serious findings of the accessibility check."""


def visit(page: Path, picture: Path, *, width: int, dark: bool = False) -> Visit:
    """Opens the page in a window of that width, and takes a picture of all of it."""
    with chromium(picture.parent) as address:
        return asyncio.run(_visit(address, page, picture, width, dark))


@contextmanager
def chromium(folder: Path) -> Iterator[str]:
    """The address of a browser of one's own."""
    assert CHROMIUM
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
        f"--user-data-dir={folder / 'profile'}", "about:blank",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = (re.search(r"listening on (ws://\S+)", line) for line in process.stderr)
            yield next(match[1] for match in lines if match)
        finally:
            process.kill()
            process.stderr.close()
    shutil.rmtree(folder / "profile", ignore_errors=True)


async def _visit(address: str, page: Path, picture: Path, width: int, dark: bool) -> Visit:
    seen = Visit()
    numbers = count(1)
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address, max_msg_size=0) as socket,
    ):
        tab: dict[str, str] = {}

        async def listen(until: str | int) -> Mapping[str, Any]:
            while True:
                message = json.loads((await socket.receive(timeout=120)).data)
                _note(seen, message, page)
                if until in (message.get("id"), message.get("method")):
                    assert "error" not in message, message
                    return message.get("result", {})

        async def call(method: str, **params: Any) -> Mapping[str, Any]:
            number = next(numbers)
            await socket.send_json({"id": number, "method": method, "params": params, **tab})
            return await listen(number)

        async def value(script: str) -> Any:
            found = await call(
                "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
            )
            assert "exceptionDetails" not in found, found
            return found["result"].get("value")

        target = await call("Target.createTarget", url="about:blank")
        attached = await call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        tab["sessionId"] = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            await call(f"{domain}.enable")
        await call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await call("Emulation.setEmulatedMedia", features=[scheme])
        await call("Page.navigate", url=page.as_uri())
        await listen("Page.loadEventFired")
        seen.drawn = await value(DRAWN)
        seen.wider = await value(WIDER_THAN_SHOWN)
        shot = await call("Page.captureScreenshot", captureBeyondViewport=True)
        picture.write_bytes(base64.b64decode(shot["data"]))
        await value((files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8") + ";1")
        seen.violations = json.loads(await value(SERIOUS))
    return seen


def _note(seen: Visit, message: Mapping[str, Any], page: Path) -> None:
    params = message.get("params", {})
    match message.get("method"):
        case "Runtime.exceptionThrown":
            seen.errors.append(str(params["exceptionDetails"]))
        case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
            seen.errors.append(str(params["args"]))
        case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
            seen.errors.append(str(params["entry"]))
        case "Network.requestWillBeSent":
            url = params["request"]["url"]
            if url != page.as_uri() and not url.startswith(("data:", "blob:")):
                seen.requests.append(url)
