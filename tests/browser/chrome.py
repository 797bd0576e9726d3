"""A headless Chromium, driven over its debugging protocol with the standard library alone."""

import base64
import json
import os
import shutil
import struct
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from streamcache.cli.websocket import WebSocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
HOW_TO_GET = "no Chromium found. Get one: sudo apt install chromium, or name its program in CHROMIUM"
_TEXT = 1


def find_chromium() -> str | None:
    named = os.environ.get("CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class Page(WebSocket):
    """One tab. `run` evaluates JavaScript in it and returns what that comes to."""

    def __init__(self, url: str) -> None:
        super().__init__(url, timeout=60)
        self._number = 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._send_text(json.dumps({"id": self._number, "method": method, "params": parameters}))
        for message in self:
            answer = json.loads(message)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
        raise ConnectionError("Chromium closed the page")

    def open(self, address: str) -> None:
        self.call("Page.enable")
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of an expression; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        failure = answer.get("exceptionDetails")
        assert failure is None, (failure.get("exception") or {}).get("description") or failure["text"]
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds: float = 120) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.run(f"(() => {{ try {{ return Boolean({script}) }} catch (e) {{ return false }} }})()"):
                return
            time.sleep(0.2)
        raise AssertionError(f"{script} did not come true within {seconds:g} s")

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, width: float, height: float) -> bytes:
        """A JPEG of the page's upper left corner."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        return base64.b64decode(self.call("Page.captureScreenshot", format="jpeg", quality=80, clip=clip)["data"])

    def _send_text(self, text: str) -> None:
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        length = struct.pack("!B", 128 | size) if size < 126 else struct.pack("!BQ", 128 | 127, size)
        repeated = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big") if size else b""
        self._socket.sendall(bytes([128 | _TEXT]) + length + mask + masked)


class Chromium:
    """Use it in `with`; `new_page` gives an empty tab."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="streamcache-chromium-", ignore_cleanup_errors=True)
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run"]
        options += [f"--user-data-dir={self._folder.name}", "--window-size=1600,1000", "--disable-dev-shm-usage"]
        options += ["--disable-background-networking", "--mute-audio", "about:blank"]
        self._process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def new_page(self) -> Page:
        request = urllib.request.Request(f"http://127.0.0.1:{self._port()}/json/new", method="PUT")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return Page(json.load(answer)["webSocketDebuggerUrl"])

    def _port(self) -> int:
        """Chromium writes the port that it chose into its folder."""
        file = Path(self._folder.name) / "DevToolsActivePort"
        end = time.monotonic() + 120
        while time.monotonic() < end:
            assert self._process.poll() is None, "Chromium stopped"
            if file.exists() and file.read_text().strip():
                return int(file.read_text().split()[0])
            time.sleep(0.1)
        raise AssertionError("Chromium did not start")
