"""A real browser, driven over its own debugging protocol: what a page looks like and does."""

import asyncio
import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
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

OVERLAPS = """[...document.querySelectorAll(".plot")].flatMap(plot => {
    const level = [...plot.querySelectorAll(".annotation-text, [class*=xaxislayer] text")]
        .filter(text => !/rotate\\(-?[1-9]/.test(text.getAttribute("transform")))
        .map(text => [text.textContent, text.getBoundingClientRect()]);
    return level.flatMap(([one, a], at) => level.slice(at + 1)
        .filter(([_, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4)
        .map(([other, _]) => `${one} and ${other}`));
})"""

FIRST_SCREEN = """[...document.querySelectorAll(".first .plot, .first .cards")].map(
    part => Math.round(part.getBoundingClientRect().bottom + scrollY))"""

UNFOLD = """(async () => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
    // Figures are drawn when their folds tell that they were opened.
    await new Promise(done => setTimeout(() => requestAnimationFrame(done), 100));
})()"""

SERIOUS = """axe.run(asked).then(found => JSON.stringify(found.violations
    .filter(each => ["serious", "critical"].includes(each.impact))
    .map(each => [each.id, each.nodes.slice(0, 3).map(node => node.html.slice(0, 200))])))"""


@dataclass(frozen=True, kw_only=True)
class Look:
    """At which page, and how."""

    page: Path
    width: int
    height: int = 900
    address: str = ""
    """Where the page is served; as a file if empty."""
    dark: bool = False
    anchor: str = ""
    scripts: tuple[str, ...] = ()
    """To be run before anything is unfolded."""
    unfolded: bool = True
    """Whether all folds are opened; otherwise, it isn't looked at what they hold."""
    picture: Path | None = None
    checked: bool = True
    """For accessibility; a dark page for contrast only, since only its colors differ."""


@dataclass(kw_only=True)
class Visit:
    """What was seen of a page."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """But for the page itself and what it holds."""
    told: list[Any] = field(default_factory=list)
    """What the scripts came to."""
    first: list[int] = field(default_factory=list)
    """Where the main figure and the cards end, in pixels from the top."""
    drawn: list[bool] = field(default_factory=list)
    """Whether each figure was."""
    wider: int = 0
    """By how many pixels the page is wider than the window."""
    overlaps: list[str] = field(default_factory=list)
    """Titles of panels or ticks below them that stand on one another."""
    violations: list[Any] = field(default_factory=list)
    """Serious findings of the accessibility check."""


def visits(looks: Sequence[Look], folder: Path) -> list[Visit]:
    """Opens pages, one after the other in one browser, which keeps its files in `folder`."""

    async def all_of_them(address: str) -> list[Visit]:
        return [await _visit(address, look) for look in looks]

    with chromium(folder) as address:
        return asyncio.run(all_of_them(address))


@contextmanager
def chromium(folder: Path) -> Iterator[str]:
    """The address of a browser of one's own."""
    assert CHROMIUM
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader",
        "--remote-debugging-port=0", f"--user-data-dir={folder / 'profile'}", "about:blank",
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


async def _visit(address: str, look: Look) -> Visit:
    seen = Visit()
    numbers = count(1)
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address, max_msg_size=0) as socket,
    ):
        tab: dict[str, str] = {}

        async def listen(until: str | int) -> Mapping[str, Any]:
            while True:
                message = json.loads((await socket.receive(timeout=600)).data)
                _note(seen, message, look.page)
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
            width=look.width, height=look.height, deviceScaleFactor=1, mobile=look.width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if look.dark else "light"}
        await call("Emulation.setEmulatedMedia", features=[scheme])
        await call("Page.navigate", url=f"{look.address or look.page.as_uri()}{look.anchor}")
        await listen("Page.loadEventFired")
        seen.first = await value(FIRST_SCREEN)
        seen.told = [await value(script) for script in look.scripts]
        if look.unfolded:
            await value(UNFOLD)
            seen.drawn = await value(DRAWN)
            seen.overlaps = await value(OVERLAPS)
        seen.wider = await value(WIDER_THAN_SHOWN)
        if look.picture is not None:
            shot = await call("Page.captureScreenshot", captureBeyondViewport=look.unfolded)
            look.picture.write_bytes(base64.b64decode(shot["data"]))
        if look.checked:
            axe = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
            only = {"runOnly": ["color-contrast"]} if look.dark else {}
            # Without an account of what is right, it takes half the time.
            asked = json.dumps({"resultTypes": ["violations"], **only})
            await value(f"{axe};window.asked = {asked};1")
            seen.violations = json.loads(await value(SERIOUS))
        await call("Target.closeTarget", targetId=target["targetId"])
    return seen


def _note(seen: Visit, message: Mapping[str, Any], page: Path) -> None:
    params = message.get("params", {})
    match message.get("method"):
        case "Runtime.exceptionThrown":
            seen.errors.append(str(params["exceptionDetails"]))
        case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
            seen.errors.append(str(params["args"]))
        case "Log.entryAdded" if params["entry"]["source"] == "rendering":
            pass  # WebGL without a graphics card is slow
        case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
            seen.errors.append(str(params["entry"]))
        case "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(page.as_uri()) and not url.startswith(("data:", "blob:")):
                seen.requests.append(url)
