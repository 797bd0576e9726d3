"""A browser on the real server. Without ComfyUI, Playwright or Chromium the tests are skipped with a hint on how to
install them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamcache.tests.browser.cache_tab import CacheTab
from streamcache.tests.browser.chromium import (
    NO_CHROMIUM,
    NO_PLAYWRIGHT,
    READY,
    Chromium,
    Page,
    find_chromium,
    screenshot_folder,
)
from streamcache.tests.browser.gallery import MADE, write_landscapes, write_many
from streamcache.tests.browser.training_page import TrainingPage
from streamcache.tests.host.conftest import base, host, server  # noqa: F401  the same server as in tests/host
from streamcache.tests.host.server import Server

MANY = 100_000
HOSTS_OWN = re.compile(
    "status of 404.*(/api/userdata|user.css)"
)  # the front end asks for files that a new user does not have
SETTINGS = {
    "Comfy.TutorialCompleted": True,
    "Comfy.Workflow.Persist": False,  # or the workflow of the previous page would be restored a moment after the start
    "Comfy.Minimap.Visible": False,
    "Comfy.Graph.CanvasInfo": False,
}


# Per module: while Playwright runs, its event loop is that of the thread, and other tests could not use their own.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT)
    program = find_chromium()
    if program is None:
        pytest.skip(NO_CHROMIUM)
    with Chromium(program) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(chromium: Chromium, server: Server) -> Iterator[Page]:  # noqa: F811
    """The front end, loaded."""
    server.client.post("/settings", SETTINGS)
    with chromium.new_page() as tab:
        tab.resize(1800, 1100)
        tab.open(server.address)
        tab.wait_for(READY)
        # Only then are the definitions of all nodes there.
        tab.wait_for("LiteGraph.registered_node_types['StreamCacheSelect']")
        yield tab


@pytest.fixture(scope="session")
def root(server: Server) -> Path:  # noqa: F811
    """The folder of the caches. Some exist before the page is opened."""
    folder = server.base / "output" / "streamcache"
    write_landscapes(folder / "landscapes", 40, encode=MADE)
    write_landscapes(folder / "shelf" / "dunes", 6, seed=2)
    write_many(folder / "many", MANY)
    return folder


@pytest.fixture(scope="module")
def settled(page: Page, root: Path) -> Page:
    """The page after the front end's own errors at its start."""
    page.resize(1500, 950)
    page.wait_for("document.querySelector('.streamcache-caches-tab-button')")
    return page


@pytest.fixture
def tab(settled: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CacheTab]:
    """The list of caches. No test may cause errors in the console."""
    settled.run("void 0")
    settled.errors.clear()
    found = CacheTab(settled, screenshot_folder(tmp_path_factory.getbasetemp() / "screenshots"))
    found.open()
    yield found
    settled.run("void 0")  # events that came meanwhile arrive with the result
    assert [error for error in settled.errors if not HOSTS_OWN.search(error)] == []


@pytest.fixture(scope="module")
def ready(page: Page, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingPage]:  # noqa: F811
    folder = screenshot_folder(tmp_path_factory.getbasetemp() / "screenshots")
    found = TrainingPage(page, server, folder)
    page.resize(1500, 1000)
    page.wait_for("document.querySelector('.streamcache-training-tab-button')")
    yield found
    found.close_tab()
    found.set(vue=False, locale="en", palette="dark")


@pytest.fixture
def training(ready: TrainingPage) -> Iterator[TrainingPage]:
    """No test may cause errors in the console."""
    ready.page.run("void 0")
    ready.page.errors.clear()
    yield ready
    ready.page.run("void 0")  # events that came meanwhile arrive with the result
    ready.server.client.interrupt()  # a failed test leaves no training behind
    assert ready.page.errors == []
