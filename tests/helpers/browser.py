"""Headless Chromium, spoken to over its DevTools pipe: what a page looks like, logs and asks the network for.

The protocol is https://chromedevtools.github.io/devtools-protocol/: JSON messages with a zero byte behind each, read by
the browser from descriptor 3 and written by it to descriptor 4.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FIRST_FREE = 10  # descriptors from here on cannot be the 3 and 4 that the child is given
_TIMEOUT_S = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # inside containers there is none to be had
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


def chromium() -> str:
    """The browser's path; skips the test where there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("no headless browser here: install the Debian package chromium")
    return found


def axe() -> str:
    """Return the script of axe-core, which looks for what keeps people out; skips the test where there is none."""
    usual = [f"/usr/{folder}/node_modules/axe-core/axe.min.js" for folder in ("local/lib", "lib")]
    named = filter(None, [os.environ.get("EDGERT_AXE"), *usual])
    script = next((path for path in map(Path, named) if path.is_file()), None)
    if script is None:
        pytest.skip("no axe-core here: npm install -g axe-core, or EDGERT_AXE=axe.min.js")
    return script.read_text(encoding="utf-8")


class Page:
    """One tab, with what its console complained of and every address that was asked for."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._number, self._pending, self._session = 0, b"", ""
        self.errors: list[str] = []
        self.requests: list[str] = []

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(
        self, path: Path | str, width_px: int, height_px: int = 900, *, dark: bool = False, scripts: bool = True
    ) -> None:
        """Shows a file, or an address, in a window of this size, whole when it returns."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width_px, height=height_px, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.errors.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        self._receive(lambda message: message.get("method") == "Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def obstacles(self, path: Path | str, script: str, ready: Callable[[], object] = lambda: None) -> list[str]:
        """What axe-core (its ``script``) objects to on phones, tablets and desks, light and dark, with all unfolded."""
        found = []
        for width_px in (390, 768, 1440):
            for dark in (False, True):
                self.open("about:blank", width_px)  # an address that differs by what is behind # would not be loaded
                self.open(path, width_px, dark=dark)
                ready()
                self.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
                self.evaluate(f"{script};0")
                wrong = "axe.run().then(r => r.violations.map(v => `${v.id}: ${v.nodes[0].html.slice(0, 200)}`))"
                found += [f"{width_px} px, dark {dark}: {one}" for one in self.evaluate(wrong)]
                if self.evaluate("document.documentElement.scrollWidth") != width_px:
                    found.append(f"{width_px} px, dark {dark}: the page scrolls sideways")
        return found

    def image(self, top_px: int = 0, height_px: int | None = None) -> bytes:
        """PNG of a part of the page; of what the window shows if no height is named."""
        clip: dict[str, Any] = {}
        if height_px is not None:
            width = self.evaluate("innerWidth")
            clip = {"clip": {"x": 0, "y": top_px, "width": width, "height": height_px, "scale": 1}}
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=bool(clip), **clip)["data"])

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def print(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        number = self._number
        answer = self._receive(lambda one: one.get("id") == number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _receive(self, wanted: Any) -> Any:
        end = time.monotonic() + _TIMEOUT_S
        while True:
            while b"\0" not in self._pending:
                ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0))
                assert ready, "the browser does not answer"
                chunk = os.read(self._read, 1 << 20)
                assert chunk, "the browser is gone"
                self._pending += chunk
            text, _, self._pending = self._pending.partition(b"\0")
            message = json.loads(text)
            self._note(message)
            if wanted(message):
                return message

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with its profile in ``folder``, gone afterwards."""
    command = [chromium(), *_FLAGS, f"--user-data-dir={folder}"]
    to_child, to_browser = _pipe()
    from_browser, from_child = _pipe()

    def connect() -> None:
        os.dup2(to_child, 3)
        os.dup2(from_child, 4)

    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=connect, close_fds=False)
    os.close(to_child)
    os.close(from_child)
    page = Page(to_browser, from_browser)
    try:
        page.attach()
        yield page
    finally:
        os.close(to_browser)  # the browser ends when nobody speaks to it
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_browser)


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for end in (read, write))
    os.close(read)
    os.close(write)
    return high[0], high[1]
