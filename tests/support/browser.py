"""Open a page in headless Chromium and see what a person would see.

Chromium is driven over a pipe with the DevTools protocol: null-terminated JSON messages on its file
descriptors 3 and 4.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-pipe",
)
WITH_PIPES = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
FIRST_FREE_DESCRIPTOR = 10


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@dataclass
class Visit:
    """What happened while a page was open."""

    answer: Any = None
    """Value of the expression that was asked of the page."""
    screenshot: bytes = b""
    requests: list[str] = field(default_factory=list)
    """Every address asked for, the page's own included."""
    problems: list[str] = field(default_factory=list)
    """Failed loads, errors on the console, violations of the page's own policy."""

    def note(self, message: dict[str, Any]) -> None:
        event, details = message.get("method"), message.get("params", {})
        if event == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif event == "Network.loadingFailed":
            self.problems.append(f"failed to load: {details['errorText']}")
        elif event == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.problems.append(details["entry"]["text"])
        elif event == "Runtime.exceptionThrown":
            self.problems.append(details["exceptionDetails"]["text"])


def visit(
    page: Path, profile: Path, expression: str, width: int = 1000, dark: bool = False, seconds: float = 60
) -> Visit:
    """Open ``page``, evaluate ``expression`` once it has loaded, and take a picture of the whole page."""
    executable = find_chromium()
    assert executable is not None, "Chromium is not installed"
    seen = Visit()
    with _browser(executable, profile) as (into, out):
        browser = _Connection(into, out, seen, time.monotonic() + seconds)
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        browser.session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            browser.ask(f"{domain}.enable")
        browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.ask("Emulation.setEmulatedMedia", features=[scheme])
        browser.ask("Page.navigate", url=page.resolve().as_uri())
        browser.wait_for("Page.loadEventFired")
        result = browser.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        seen.answer = result["result"].get("value")
        picture = browser.ask("Page.captureScreenshot", captureBeyondViewport=True)
        seen.screenshot = base64.b64decode(picture["data"])
    return seen


@contextmanager
def _browser(executable: str, profile: Path) -> Iterator[tuple[int, int]]:
    """A running Chromium, as the descriptors to write to and to read from."""
    their_input, into = _high_pipe()
    out, their_output = _high_pipe()
    shim = [sys.executable, "-c", WITH_PIPES, str(their_input), str(their_output)]
    process = subprocess.Popen(
        [*shim, executable, *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(their_input, their_output),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_input)
    os.close(their_output)
    try:
        yield into, out
    finally:
        with contextlib.suppress(OSError):
            os.write(into, b'{"id": 0, "method": "Browser.close"}\0')
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(into)
        os.close(out)


def _high_pipe() -> tuple[int, int]:
    """A pipe whose descriptors cannot collide with 3 and 4 when they are put in place."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_DESCRIPTOR))
        os.close(end)
    return ends[0], ends[1]


class _Connection:
    def __init__(self, into: int, out: int, seen: Visit, deadline: float) -> None:
        self.session: str | None = None
        self._into, self._out, self._seen, self._deadline = into, out, seen, deadline
        self._last_id = 0
        self._pending = b""
        self._events: list[str] = []

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._into, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def wait_for(self, event: str) -> None:
        while event not in self._events:
            self._next()

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            left = self._deadline - time.monotonic()
            if left <= 0 or not select.select([self._out], [], [], left)[0]:
                raise TimeoutError("Chromium did not answer in time")
            part = os.read(self._out, 1 << 16)
            if not part:
                raise ConnectionError("Chromium ended before it answered")
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._events.append(message.get("method", ""))
        self._seen.note(message)
        return message
