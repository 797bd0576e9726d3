"""The film of a newcomer's first Run: start, the template without model files, Run, pictures."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from streamcache import dev
from streamcache.tests.browser.chromium import READY, Chromium, Page, screenshot_folder, tab_button
from streamcache.tests.browser.conftest import SETTINGS, serious_errors
from streamcache.tests.browser.test_workflows import BARE
from streamcache.tests.browser.test_workflows import FIT as FIT_ALL
from streamcache.tests.browser.training_page import TAB
from streamcache.tests.host.creature import shown_pictures, shows_creature
from streamcache.tests.host.first_steps import WITH, WITHOUT
from streamcache.tests.host.published import ROOT
from streamcache.tests.host.server import Server, install_pack, start_server
from streamcache.tests.host.snapshot import UPDATE

pytestmark = pytest.mark.browser
EXAMPLE = "01 First steps, no model files"
MINUTES = 15  # only stops waiting for what never ends
CARD = f"document.querySelector('[data-testid=\"template-workflow-{EXAMPLE}\"]')"
LEAVES = "[...document.querySelectorAll('[role=dialog] *')].filter((item) => !item.children.length)"
CATEGORY = f"{LEAVES}.find((item) => item.innerText?.trim() === 'streamcache')"
STEP = "Number(/Step (\\d+)/.exec(document.querySelector('.sc-run-panel')?.innerText)?.[1])"
TITLED = "app.rootGraph.nodes.find((node) => node.title === %s)"
FIT = """(() => {
  const boxes = app.rootGraph.nodes.filter((node) => (%s).includes(node.title)).map((node) => node.boundingRect);
  const left = Math.min(...boxes.map((b) => b[0])), top = Math.min(...boxes.map((b) => b[1]));
  const width = Math.max(...boxes.map((b) => b[0] + b[2])) - left;
  const height = Math.max(...boxes.map((b) => b[1] + b[3])) - top;
  const room = [innerWidth - 140, innerHeight - 160];
  app.canvas.ds.scale = Math.min(room[0] / width, room[1] / height, 1.2);
  app.canvas.ds.offset = [100 / app.canvas.ds.scale - left, 90 / app.canvas.ds.scale - top];
  app.canvas.setDirty(true, true);
  return [90, 20, width * app.canvas.ds.scale + 20, height * app.canvas.ds.scale + 80];
})()"""
SETTLED = "new Promise((done) => setTimeout(done, 1200))"  # for screenshots: animations are over
STYLE = "document.head.append(Object.assign(document.createElement('style'), {textContent: %s}))"
ONLY_CANVAS = f"({STYLE % json.dumps(BARE)}, true)"


@pytest.fixture(scope="module")
def newcomer(host: dev.Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """ComfyUI with the pack, without any model file or image."""
    base = tmp_path_factory.mktemp("newcomer")
    install_pack(base)
    running = start_server(host, base)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def film(chromium: Chromium, newcomer: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Film"]:
    newcomer.client.post("/settings", SETTINGS)
    with chromium.new_page() as page:
        page.resize(1600, 1000)
        page.open(newcomer.address)
        page.wait_for(f"{READY} && LiteGraph.registered_node_types['StreamCacheTinyModels']")
        page.wait_for(tab_button(TAB))
        yield Film(page, newcomer, screenshot_folder(tmp_path_factory.getbasetemp() / "screenshots"))


class Film:
    """The page, and its screenshots."""

    def __init__(self, page: Page, server: Server, folder: Path) -> None:
        self.page, self.server = page, server
        self.folder = ROOT / "docs" if os.environ.get(UPDATE) else folder

    def shot(self, name: str) -> None:
        self.page.run(SETTLED)
        file = self.folder / f"first_steps_{name}.png"
        self.page.screenshot(file)
        reduce_colors(file)

    def show(self, *titles: str) -> None:
        """Move the canvas so that the nodes with these titles fill it; all of them without titles."""
        named = json.dumps(list(titles)) if titles else "app.rootGraph.nodes.map((node) => node.title)"
        self.page.run(FIT % named)

    def show_pictures(self) -> None:
        """The pictures alone, for the documentation, and the whole workflow for the list of templates."""
        self.page.run(ONLY_CANVAS)
        left, top, width, height = self.page.run(FIT % json.dumps([WITHOUT, WITH]))
        self.page.run(SETTLED)
        (self.folder / "first_steps_pictures.png").write_bytes(self.page.png(left, top, width, height, 1))
        size = self.page.run(FIT_ALL)
        self.page.run(SETTLED)
        if os.environ.get(UPDATE):
            (ROOT / "example_workflows" / f"{EXAMPLE}.jpg").write_bytes(self.page.jpeg(*size))

    def open_template(self) -> None:
        self.page.run("app.extensionManager.command.execute('Comfy.BrowseTemplates')")
        self.page.click(CATEGORY)
        self.page.wait_for(CARD)
        self.shot("templates")
        self.page.click(CARD)
        self.page.wait_for("app.rootGraph.nodes.some((node) => node.type === 'StreamCacheTinyModels')")
        self.page.wait_for(f"!({CARD})")

    def pictures(self, title: str) -> list[dict]:
        """What the Preview Image node of this title shows."""
        return self.page.run(f"app.nodeOutputs?.[{TITLED % json.dumps(title)}?.id]?.images ?? []")


def reduce_colors(file: Path) -> None:
    """Screenshots are published with the pack: 256 colors are enough."""
    image = Image.open(file).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


def test_k1_the_first_run_needs_nothing_and_ends_in_pictures(film: Film):
    film.open_template()
    film.page.run("void 0")  # the front end's own errors at its start arrive with the result
    film.page.errors.clear()
    film.show()
    film.shot("template")
    film.page.run("app.queuePrompt(0).then(() => true)")
    film.page.wait_for(f"{STEP} >= 60", 60 * MINUTES)
    film.shot("training")
    film.page.wait_for(f"(app.nodeOutputs?.[{TITLED % json.dumps(WITH)}?.id]?.images ?? []).length === 4", 60 * MINUTES)
    before, after = (shown_pictures(film.server, {"images": film.pictures(title)}) for title in (WITHOUT, WITH))
    assert [shows_creature(picture) for picture in before] == [False] * 4
    assert sum(shows_creature(picture) for picture in after) >= 3
    film.show()
    film.shot("done")
    film.show_pictures()
    assert serious_errors(film.page) == []
