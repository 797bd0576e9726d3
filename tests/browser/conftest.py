"""A browser on the real server. Without ComfyUI, Playwright or Chromium the tests are skipped with a hint on how to
install them.

Tests marked `both_front_ends` run on ComfyUI's own front end and on the newest supported one, which `python dev.py
test` downloads; the others on ComfyUI's own. If STREAMCACHE_FRONTEND names a folder with a front end, all tests run on
that one.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamcache import dev
from streamcache.tests.browser.cache_tab import BUTTON, CacheTab
from streamcache.tests.browser.chromium import (
    NO_CHROMIUM,
    NO_PLAYWRIGHT,
    READY,
    Chromium,
    Page,
    find_chromium,
    screenshot_folder,
    tab_button,
)
from streamcache.tests.browser.gallery import MADE, write_landscapes, write_many
from streamcache.tests.browser.training_page import IDLE, TAB, TrainingPage
from streamcache.tests.host.conftest import host  # noqa: F401
from streamcache.tests.host.server import Server, install_pack, start_server
from streamcache.tests.host.tiny_models import write_models
from streamcache.tests.host.trainings import until

FRONT_END = "STREAMCACHE_FRONTEND"
OWN, NEWEST = "own", "newest"
MANY = 100_000
# The front end asks for files that a new user does not have; a list shows thumbnails of files that were just removed.
# Files that users may have, and pictures of what a test removed or replaced while they were loaded.
_HARMLESS = re.compile("status of 40[049].*(/api/userdata|user.css|/streamcache/(folder/image|cache/thumbnail))")
SETTINGS = {
    "Comfy.TutorialCompleted": True,
    "Comfy.Workflow.Persist": False,  # or the workflow of the previous page would be restored a moment after the start
    "Comfy.Minimap.Visible": False,
    "Comfy.Graph.CanvasInfo": False,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "front_end" not in metafunc.fixturenames:
        return
    named = os.environ.get(FRONT_END)
    both = [OWN, NEWEST] if metafunc.definition.get_closest_marker("both_front_ends") else [OWN]
    metafunc.parametrize("front_end", [named] if named else both, indirect=True, scope="session")


@pytest.fixture(scope="session")
def front_end(request: pytest.FixtureRequest) -> list[str]:
    """The options with which ComfyUI serves a front end."""
    if request.param == OWN:
        return []
    version, folder = dev.newest_front_end()
    if request.param != NEWEST:
        folder = Path(request.param)
    elif not folder.exists():
        pytest.skip(f"front end {version} is missing; run `python dev.py test` once with a network to download it")
    if not (folder / "index.html").is_file():
        pytest.fail(f"{FRONT_END} is {folder}, which contains no index.html", pytrace=False)
    return ["--front-end-root", str(folder)]


@pytest.fixture(scope="session")
def server(
    host: dev.Host,  # noqa: F811
    front_end: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """One server per front end, with the published pack and the tiny models."""
    base = tmp_path_factory.mktemp("base")
    write_models(base / "models")
    install_pack(base)
    running = start_server(host, base, *front_end)
    yield running
    running.stop()


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
def page(chromium: Chromium, server: Server) -> Iterator[Page]:
    """The front end, loaded."""
    server.client.post("/settings", SETTINGS)
    seen = json.dumps([job["id"] for job in server.client.get("/streamcache/jobs")["jobs"]])
    with chromium.new_page() as tab:
        tab.before_each_load(f"sessionStorage['streamcache.dismissed'] ??= {seen!r}")  # the jobs of other files
        tab.resize(1800, 1100)
        tab.open(server.address)
        tab.wait_for(READY)
        # Only then are the definitions of all nodes there.
        tab.wait_for("LiteGraph.registered_node_types['StreamCacheSelect']")
        yield tab


@pytest.fixture(scope="session")
def root(server: Server) -> Path:
    """The folder of the caches. Some exist before the page is opened."""
    folder = server.base / "output" / "streamcache"
    write_landscapes(folder / "landscapes", 40, encode=MADE)
    write_landscapes(folder / "shelf" / "dunes", 6, seed=2)
    write_many(folder / "many", MANY)
    return folder


def serious_errors(page: Page) -> list[str]:
    """Errors in the console that no test may cause."""
    return [error for error in page.errors if not _HARMLESS.search(error)]


@pytest.fixture(scope="module")
def settled(page: Page, root: Path) -> Page:
    """The page after the front end's own errors at its start."""
    page.resize(1500, 950)
    page.wait_for(BUTTON)
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
    assert serious_errors(settled) == []


@pytest.fixture(scope="module")
def ready(page: Page, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingPage]:
    folder = screenshot_folder(tmp_path_factory.getbasetemp() / "screenshots")
    found = TrainingPage(page, server, folder)
    page.resize(1500, 1000)
    page.wait_for(tab_button(TAB))
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
    # Or the images of a job that still ends appear on that node of the next test which has the same id.
    until(lambda: ready.page.run(IDLE))
    assert serious_errors(ready.page) == []
