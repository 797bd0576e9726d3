"""The node of a blueprint shows the curve of the training inside it."""

import json

import pytest
from PIL import Image

from streamcache.tests.browser.training_page import NODE, TrainingPage
from streamcache.tests.host.published import ROOT
from streamcache.tests.host.server import Server, read_json
from streamcache.tests.host.trainings import run_row, until

pytestmark = [pytest.mark.browser, pytest.mark.both_front_ends]
BLUEPRINT = ROOT / "subgraphs" / "Folder to LoRA.json"
OUTER = "app.rootGraph.nodes.find((node) => node.subgraph)"
FEED = """(() => {
  const outer = app.rootGraph.nodes[0];
  const tiny = LiteGraph.createNode('StreamCacheTinyModels');
  tiny.pos = [-400, 0];
  app.rootGraph.add(tiny);
  for (const [slot, name] of [[0, 'model'], [1, 'clip'], [2, 'vae']]) {
    tiny.connect(slot, outer, outer.inputs.findIndex((input) => input.name === name));
  }
  for (const [name, value] of Object.entries(%s)) outer.widgets.find((each) => each.name === name).value = value;
  app.canvas.ds.scale = 1;
  app.canvas.ds.offset = [700, 80];
})()"""


@pytest.mark.parametrize("vue", [False, True], ids=["classic", "vue"])
def test_a_blueprint_shows_the_curve_of_its_training(training: TrainingPage, server: Server, vue: bool):
    page, name = training.page, f"folded_{vue}".lower()
    training.close_tab()
    training.set(vue=vue)
    images = server.base / "input" / "folded"
    images.mkdir(exist_ok=True)
    Image.new("RGB", (64, 64), "red").save(images / "a.png")
    (images / "a.txt").write_text("a red circle on blue")
    blueprint = json.dumps(read_json(BLUEPRINT))
    page.run(f"app.loadGraphData({blueprint}, true, true, null)")
    page.wait_for("app.rootGraph.nodes[0]?.subgraph")
    values = {"folder": "input/folded", "resolution": 64, "name": name, "steps": 6, "rank": 2}
    page.run(FEED % json.dumps(values))
    training.queue()
    until(lambda: run_row(server, name).get("status") in ("done", "failed"))
    assert run_row(server, name)["status"] == "done", run_row(server, name)
    page.wait_for(f"{NODE}?.innerText.includes('{name}') && {NODE}.querySelector('[data-state=done]')")
    until(lambda: training.drawn(NODE) > 1)
    on_it = f"{OUTER}.widgets.some((widget) => widget.name === 'streamcache_panel')"
    assert page.run(on_it) and page.run(f"{NODE}.checkVisibility()")
    training.shot(f"blueprint_{vue}")
    workflow = page.run("JSON.stringify(app.rootGraph.serialize())")
    page.run("app.rootGraph.clear()")
    page.run(f"app.loadGraphData({workflow}, true, true, null)")
    page.wait_for(f"{on_it} && {NODE}?.checkVisibility() && {NODE}.innerText.includes('{name}')")
    page.run("app.rootGraph.clear()")
