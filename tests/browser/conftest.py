"""A browser on the real server. Without a host or a Chromium the tests say how to get them."""

from collections.abc import Iterator

import pytest

from streamcache.tests.browser.chrome import HOW_TO_GET, Chromium, Page, find_chromium
from streamcache.tests.host.conftest import base, host, server  # noqa: F401  the same server as in tests/host
from streamcache.tests.host.server import Server

SETTINGS = {
    "Comfy.TutorialCompleted": True,
    "Comfy.Workflow.Persist": False,  # or the workflow of the page before would come back, a moment after the start
    "Comfy.Minimap.Visible": False,
    "Comfy.Graph.CanvasInfo": False,
}
READY = "window.app?.graph && window.app?.extensionManager && document.querySelector('#graph-canvas')"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip(HOW_TO_GET)
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
