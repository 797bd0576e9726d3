"""The screenshots of the tab in README and docs, taken again on request."""

import os
import shutil
import time
from pathlib import Path

import pytest

from streamcache.tests.browser.cache_tab import TILES, CacheTab
from streamcache.tests.browser.conftest import READY
from streamcache.tests.browser.gallery import MADE, write_landscapes
from streamcache.tests.host.published import ROOT
from streamcache.tests.host.server import Server
from streamcache.tests.host.snapshot import UPDATE

pytestmark = pytest.mark.browser
# What a cache is for: a node that loads it, and one that trains on it.
WORKFLOW = """(() => {
  app.rootGraph.clear();
  const add = (type, x, y) => {
    const node = LiteGraph.createNode(type);
    node.pos = [x, y];
    app.rootGraph.add(node);
    return node;
  };
  const train = add('StreamCacheTrain', 890, 200);
  const into = (name) => train.inputs.findIndex((input) => input.name === name);
  const load = add('StreamCacheCacheLoad', 490, 200);
  load.widgets[0].value = 'landscapes';
  load.size = [310, load.size[1]];
  load.connect(0, train, into('dataset'));
  const model = add('UNETLoader', 490, 390);
  model.widgets[0].value = 'sd_xl_base_1.0.safetensors';
  model.size = [310, model.size[1]];
  model.connect(0, train, into('model'));
  app.canvas.ds.scale = 1;
  app.canvas.ds.offset = [0, 0];
  app.canvas.setDirty(true, true);
})()"""
AGES = {"landscapes": 2 * 3600, "shared/evening_set": 26 * 3600, "hills": 6 * 86400, "small_test": 40 * 86400}


@pytest.mark.skipif(not os.environ.get(UPDATE), reason=f"takes the screenshots of the docs again with {UPDATE}=1")
def test_images_of_the_documentation(tab: CacheTab, root: Path, server: Server):
    for folder in root.iterdir():
        shutil.rmtree(folder)
    write_landscapes(root / "small_test", 12, seed=23)
    write_landscapes(root / "hills", 32, seed=15, encode={"encoders": {"image": "flux_ae", "text": "t5xxl"}})
    write_landscapes(root / "shared" / "evening_set", 64, seed=12, encode={"encoders": MADE["encoders"]})
    write_landscapes(root / "landscapes", 180, seed=4, encode=MADE)
    for name, age in AGES.items():
        os.utime(root / name / "dataset.json", (time.time() - age,) * 2)
    # So that it is not marked as missing.
    (server.base / "models" / "diffusion_models" / "sd_xl_base_1.0.safetensors").touch()
    page = tab.page
    page.resize(1360, 880)
    page.open(server.address)
    page.wait_for(f"{READY} && LiteGraph.registered_node_types['StreamCacheSelect']")
    tab.open()
    page.drag("document.querySelector('.p-splitter-gutter')", 432, 400)
    page.run(WORKFLOW)
    for file, palette in (("cache_browser_light", "light"), ("cache_browser", "dark")):
        page.run(f"app.extensionManager.setting.set('Comfy.ColorPalette', '{palette}')")
        tab.wait_for_card("small_test")
        page.wait_for("[...document.querySelectorAll('.sc-cover img')].every((picture) => picture.naturalWidth > 0)")
        page.move_mouse(900, 800)
        if palette == "dark":
            tab.show("landscapes")
            page.point_at(f"{TILES}[4]")
        time.sleep(1)
        page.screenshot(ROOT / "docs" / f"{file}.png")
    page.run("void 0")
    page.errors.clear()  # the host's own at its start
