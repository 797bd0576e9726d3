"""A headless Chromium, driven over its debugging protocol."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamcache.cli.comfy_server import Messages

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
HOW_TO_GET = "no Chromium found. Get one: sudo apt install chromium, or name its program in CHROMIUM"
READY = "window.app?.graph && window.app?.extensionManager && document.querySelector('#graph-canvas')"
_KEY_CODES = {"Backspace": 8, "Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "PageUp": 33, "PageDown": 34}
_KEY_CODES |= {"End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
_KEY_TEXTS = {"Enter": "\r"}
# Where an element is, once it moves no more and nothing covers it.
_MIDDLE = """(async () => {
  let before = "";
  for (let frame = 0; frame < 300; frame += 1) {
    const element = %s;
    element?.scrollIntoView({block: "nearest"});
    const {left, top, width, height} = element?.getBoundingClientRect() ?? {};
    const [x, y] = [left + width / 2, top + height / 2];
    const now = [x, y, width, height].join();
    if (width > 0 && now === before && element.contains(document.elementFromPoint(x, y))) return [x, y];
    before = now;
    await new Promise((next) => setTimeout(next, 30));
  }
  throw new Error("cannot be clicked");
})()"""


def find_chromium() -> str | None:
    named = os.environ.get("CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


def brightness(colour: str) -> float:
    """Of a colour as a style tells it, from 0 to 255."""
    return sum(map(float, colour.removeprefix("rgb(").removesuffix(")").split(", ")[:3])) / 3


def screenshot_folder(otherwise: Path) -> Path:
    return Path(os.environ.get("STREAMCACHE_SCREENSHOTS") or otherwise)


class Page(Messages):
    """One tab. `run` evaluates JavaScript in it and returns what that comes to."""

    def __init__(self, url: str) -> None:
        super().__init__(url, timeout=60)
        self._number = 0
        self.errors: list[str] = []  # what the page wrote to its console as an error, and what it threw

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = self._send_call(method, parameters)
        answer = self._hear(lambda answer: answer.get("id") == number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, address: str) -> None:
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=address)

    def reload(self) -> None:
        """Load the page anew. To whether an unsaved workflow may go, the answer is yes."""
        self._send_call("Page.reload", {})
        self._hear(lambda answer: answer.get("method") == "Page.loadEventFired")

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

    def screenshot(self, path: Path) -> None:
        """A PNG of all that is seen."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def press(self, *keys: str, shift: bool = False) -> None:
        """Real key strokes: names as in KeyboardEvent.key, or single characters."""
        for key in keys:
            text = _KEY_TEXTS.get(key, key if len(key) == 1 else "")
            code = _KEY_CODES.get(key) or (ord(key.upper()) if len(key) == 1 else 0)
            about = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
            self.call("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text else {}))
            self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def point_at(self, element: str) -> tuple[float, float]:
        """Moves the mouse to the middle of what an expression finds."""
        x, y = self.run(_MIDDLE % element)
        self.mouse("mouseMoved", x, y)
        return x, y

    def click(self, element: str) -> None:
        x, y = self.point_at(element)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def drag(self, element: str, x: float, y: float) -> None:
        """Drags an element to a place and drops it there, with the mouse."""
        left, top = self.point_at(element)
        self.mouse("mousePressed", left, top, button="left", clickCount=1)
        for share in (0.1, 0.3, 0.6, 0.9, 1, 1):
            self.mouse("mouseMoved", left + (x - left) * share, top + (y - top) * share, button="left", buttons=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)

    def _hear(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for message in self:
            answer = json.loads(message)
            if "method" in answer:
                self.errors += _errors(answer["method"], answer["params"])
            if answer.get("method") == "Page.javascriptDialogOpening":
                self._send_call("Page.handleJavaScriptDialog", {"accept": True})
            if wanted(answer):
                return answer
        raise ConnectionError("Chromium closed the page")

    def _send_call(self, method: str, parameters: dict[str, Any]) -> int:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        return self._number


def _errors(method: str, event: dict[str, Any]) -> list[str]:
    if method == "Runtime.exceptionThrown":
        details = event["exceptionDetails"]
        return [(details.get("exception") or {}).get("description") or details["text"]]
    if method == "Runtime.consoleAPICalled" and event["type"] in ("error", "assert"):
        return [" ".join(str(each.get("value", each.get("description", ""))) for each in event["args"])]
    if method == "Log.entryAdded" and event["entry"]["level"] == "error":
        return [f"{event['entry']['text']} {event['entry'].get('url', '')}"]
    return []


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
