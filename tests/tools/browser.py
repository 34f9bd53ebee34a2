"""Headless Chromium, driven by the DevTools protocol: one page with a microphone that plays a WAV.

In: expressions and input. Out: values, pictures. For tests; `why_not` says why there is no browser.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_STEP_S = 0.1
TIMEOUT_S = 120.0
"""Time limit for what the page does: the machine may have other work."""
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # which root cannot have
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-port=0",
    "--use-fake-device-for-media-stream",
)


def why_not() -> str | None:
    """Why there is no browser; None if there is."""
    return None if _program() is not None else "chromium is not installed"


def _program() -> str | None:
    return next((found for name in _PROGRAMS if (found := shutil.which(name)) is not None), None)


class Page:
    """One page of the browser."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = count(1)
        self._session: str | None = None
        self.problems: list[str] = []
        """What the console reports: errors, and what the content security policy has refused."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Carry out a command of the protocol."""
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._connection.send(json.dumps(message))
        while True:
            answer = json.loads(self._connection.recv(TIMEOUT_S))
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))

    def open(self, url: str, before: str = "") -> None:
        """Open a page; `before` is a script that runs before its own."""
        if before:
            self.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """The value of an expression, as JSON; a promise is awaited."""
        answer = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true; returns its value."""
        end_s = time.monotonic() + TIMEOUT_S
        while not (value := self.value(expression)):
            assert time.monotonic() < end_s, (
                expression,
                self.value("document.body.innerText"),
                self.problems,
            )
            time.sleep(_STEP_S)
        return value

    def click(self, selector: str) -> None:
        """Click an element."""
        self.value(f"document.querySelector({selector!r}).click()")

    def key(self, kind: str, key: str, code: str) -> None:
        """Press a key ("keyDown") or let go of it ("keyUp")."""
        text = {"text": key} if kind == "keyDown" and len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code, **text)

    def show(self, width: int, height: int, scheme: str, *, is_phone: bool = False) -> None:
        """Set the size of the page, and the colour scheme of the desktop: light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, file: Path, *, is_whole: bool = False) -> None:
        """Write a PNG of what is seen, or of the whole page."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        file.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def browser(folder: Path, microphone: Path | None = None, *options: str) -> Iterator[Page]:
    """A page of a browser with an empty profile in `folder`. Its microphone plays the WAV once, from when it
    is opened, and may be used; without one the browser is asked, and refuses."""
    program = _program()
    assert program is not None, why_not()
    given = [*_OPTIONS, f"--user-data-dir={folder / 'profile'}", *options]
    if microphone is not None:
        given += ["--use-fake-ui-for-media-stream", f"--use-file-for-fake-audio-capture={microphone}%noloop"]
    process = subprocess.Popen(
        [program, *given, "about:blank"], stderr=subprocess.PIPE, text=True, errors="replace"
    )
    assert process.stderr is not None
    try:
        address = ""
        for line in process.stderr:
            if "DevTools listening on " in line:
                address = line.partition("listening on ")[2].strip()
                break
        assert address, "the browser ended"
        with connect(address, max_size=None) as connection:
            page = Page(connection)
            yield page
            page.call("Browser.close")
            process.wait(60)
    finally:
        process.kill()
        process.stderr.close()
