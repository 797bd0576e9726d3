"""A headless Chromium, driven by Playwright: `Page` is one tab, as the tests use it."""

from __future__ import annotations

import base64
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import APIResponse, ConsoleMessage, ElementHandle, Route
    from playwright.sync_api import Page as Tab

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NO_PLAYWRIGHT = "Playwright is missing. Install it: pip install playwright"
NO_CHROMIUM = "no Chromium found. Install one: sudo apt install chromium, or set CHROMIUM to its program"
READY = "window.app?.canvas?.graph && window.app?.extensionManager && document.querySelector('#graph-canvas')"
OTHER_SITE = "evil.example"  # resolves to this machine
OPTIONS = (
    f"--host-resolver-rules=MAP {OTHER_SITE} 127.0.0.1",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--mute-audio",
)
SECONDS = 180
_POLL_MS = 100


def find_chromium() -> str | None:
    named = os.environ.get("CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


def tab_button(name: str) -> str:
    """The button of a sidebar tab, by its class as in older front ends or by its test id as in newer ones."""
    return f"document.querySelector('.{name}-tab-button, [data-testid=\"{name}-tab-button\"]')"


def brightness(color: str) -> float:
    """The brightness of a CSS color such as `rgb(1, 2, 3)`, from 0 to 255."""
    return sum(map(float, color.removeprefix("rgb(").removesuffix(")").split(", ")[:3])) / 3


def screenshot_folder(otherwise: Path) -> Path:
    return Path(os.environ.get("STREAMCACHE_SCREENSHOTS") or otherwise)


class Page:
    """One tab. Elements are named by JavaScript expressions, which are evaluated until they find one."""

    def __init__(self, tab: Tab) -> None:
        self._tab = tab
        self.errors: list[str] = []  # errors in the console, and uncaught exceptions
        self.warnings: list[str] = []  # in the console
        tab.set_default_timeout(SECONDS * 1000)
        tab.on("console", self._on_console)
        tab.on("pageerror", lambda error: self.errors.append(error.stack or error.message))
        # Leave an unsaved workflow without asking.
        tab.on("dialog", lambda dialog: dialog.accept())

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *exc: object) -> None:
        self._tab.close()

    def open(self, address: str) -> None:
        self._tab.goto(address)

    def before_each_load(self, script: str) -> None:
        """Run statements before those of the page."""
        self._tab.add_init_script(script)

    def reload(self) -> None:
        self._tab.reload()

    def run(self, script: str) -> Any:
        """Evaluate an expression and return its value; promises are awaited."""
        return self._tab.evaluate("script => (0, eval)(script)", script)  # Playwright would call a function

    def wait_for(self, script: str, seconds: float = 120) -> None:
        """Wait until an expression is true."""
        # As a boolean: Playwright would call a function.
        self._find(f"Boolean({script})", seconds, f"{script} did not become true within {seconds:g} s")

    @contextmanager
    def held(self, address: str) -> Iterator[None]:
        """Requests to this address, with ** for any text, reach the server only when the block ends."""
        waiting: list[Route] = []
        self._tab.route(address, lambda request: waiting.append(request))
        try:
            yield
        finally:
            for request in waiting:
                request.continue_()
            self._tab.unroute(address)

    @contextmanager
    def late(self, address: str) -> Iterator[None]:
        """The server answers requests to this address, but the page gets the answers only when the block ends."""
        answers: list[tuple[Route, APIResponse]] = []
        self._tab.route(address, lambda request: answers.append((request, request.fetch())))
        try:
            yield
        finally:
            for request, answer in answers:
                request.fulfill(response=answer)
            self._tab.unroute(address)

    def resize(self, width: int, height: int) -> None:
        self._tab.set_viewport_size({"width": width, "height": height})

    def screenshot(self, path: Path) -> None:
        """Save a PNG of the visible page."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._tab.screenshot(path=path)

    def png(self, x: float, y: float, width: float, height: float, scale: float) -> bytes:
        """A part of the page as PNG, drawn at this scale."""
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": scale}
        session = self._tab.context.new_cdp_session(self._tab)  # Playwright's own screenshots have no scale
        return base64.b64decode(session.send("Page.captureScreenshot", {"format": "png", "clip": clip})["data"])

    def jpeg(self, width: float, height: float) -> bytes:
        """The upper left corner of the page as JPEG."""
        return self._tab.screenshot(type="jpeg", quality=80, clip={"x": 0, "y": 0, "width": width, "height": height})

    def press(self, *keys: str, shift: bool = False) -> None:
        """Press keys: names as in KeyboardEvent.key, or single characters."""
        for key in keys:
            self._tab.keyboard.press(f"Shift+{key}" if shift else key)

    def type(self, text: str) -> None:
        self._tab.keyboard.insert_text(text)

    def move_mouse(self, x: float, y: float) -> None:
        self._tab.mouse.move(x, y)

    def point_at(self, element: str) -> tuple[float, float]:
        """Move the mouse to the middle of an element."""

        def hover(found: ElementHandle) -> tuple[float, float]:
            found.hover()
            box = found.bounding_box()
            assert box is not None
            return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

        return self._with_element(element, hover)

    def click(self, element: str) -> None:
        self._with_element(element, lambda found: found.click())

    def drag(self, element: str, x: float, y: float) -> None:
        """Drag an element to a place and drop it there, with the mouse."""
        left, top = self.point_at(element)
        mouse = self._tab.mouse
        mouse.down()
        for share in (0.1, 0.3, 0.6, 0.9, 1, 1):
            mouse.move(left + (x - left) * share, top + (y - top) * share)
        mouse.up()

    def sweep(self, element: str, begin: float, end: float) -> None:
        """Drag with the mouse across an element, between two shares of its width."""
        left, top, width, height = self._box(element)
        mouse = self._tab.mouse
        mouse.move(left + width * begin, top + height / 2)
        mouse.down()
        for share in (0.1, 0.5, 1):
            mouse.move(left + width * (begin + (end - begin) * share), top + height / 2)
        mouse.up()

    def turn_wheel(self, element: str, pixels: float, at: float = 0.5) -> None:
        """Turn the mouse wheel over an element, at a share of its width."""
        left, top, width, height = self._box(element)
        self._tab.mouse.move(left + width * at, top + height / 2)
        self._tab.mouse.wheel(0, pixels)

    def saved_file(self, element: str) -> tuple[str, bytes]:
        """Click an element that saves a file; returns its name and content."""
        with self._tab.expect_download() as download:
            self.click(element)
        return download.value.suggested_filename, Path(download.value.path()).read_bytes()

    def _box(self, element: str) -> tuple[float, float, float, float]:
        def measure(found: ElementHandle) -> tuple[float, float, float, float]:
            found.scroll_into_view_if_needed()
            box = found.bounding_box()
            assert box is not None
            return box["x"], box["y"], box["width"], box["height"]

        return self._with_element(element, measure)

    def drop_files(self, x: float, y: float, *paths: Path) -> None:
        """Drop files or folders of this machine at a place, as from a file manager."""
        session = self._tab.context.new_cdp_session(self._tab)
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "dragOver", "drop"):
            session.send("Input.dispatchDragEvent", {"type": kind, "x": x, "y": y, "data": data})

    def choose_files(self, element: str, *paths: Path) -> None:
        """Click an element that opens the browser's own dialog, and choose files or a folder there."""
        with self._tab.expect_file_chooser() as chooser:
            self.click(element)
        chooser.value.set_files([str(path) for path in paths] if len(paths) > 1 else str(paths[0]))

    @contextmanager
    def failing(self, address: str, status: int) -> Iterator[None]:
        """Requests to this address, with ** for any text, get this status; none reaches the server."""
        self._tab.route(address, lambda request: request.fulfill(status=status, body="refused"))
        try:
            yield
        finally:
            self._tab.unroute(address)

    def _find(self, script: str, seconds: float, problem: str) -> Any:
        from playwright.sync_api import TimeoutError as TookTooLong

        waiting = f"(() => {{ try {{ return {script} }} catch (e) {{ return false }} }})()"
        try:
            return self._tab.wait_for_function(waiting, timeout=seconds * 1000, polling=_POLL_MS)
        except TookTooLong:
            raise AssertionError(problem) from None

    def _with_element(self, script: str, use: Callable[[ElementHandle], Any]) -> Any:
        """Playwright waits until an element is visible, still and not covered. Pages also replace elements: if one is
        detached meanwhile, it is looked up again."""
        from playwright.sync_api import Error

        end = time.monotonic() + SECONDS
        while True:
            element = self._find(script, SECONDS, f"{script} found no element").as_element()
            assert element is not None, f"{script} is not an element"
            try:
                return use(element)
            except Error as error:
                if "not attached" not in str(error) or time.monotonic() > end:
                    raise

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "assert"):
            self.errors.append(f"{message.text} {message.location.get('url', '')}")
        elif message.type == "warning":
            self.warnings.append(message.text)


class Chromium:
    """Use it in `with`; `new_page` opens an empty tab."""

    def __init__(self, program: str) -> None:
        self._program = program

    def __enter__(self) -> Chromium:
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        try:
            self._browser = self._playwright.chromium.launch(executable_path=self._program, args=OPTIONS)
        except BaseException:
            self._playwright.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._browser.close()
        self._playwright.stop()

    def new_page(self) -> Page:
        return Page(self._browser.new_page(viewport={"width": 1600, "height": 1000}))
