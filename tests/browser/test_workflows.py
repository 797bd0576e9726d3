"""The example workflows in the real front end: they load, and are queued like their headless form."""

import json
import os
import time
from typing import Any

import pytest

from streamcache.tests.browser.chromium import Page
from streamcache.tests.host.examples import BLUEPRINT, EXAMPLES
from streamcache.tests.host.published import ROOT
from streamcache.tests.host.server import Server, read_json
from streamcache.tests.host.snapshot import UPDATE

pytestmark = pytest.mark.browser
FOLDER = ROOT / "example_workflows"
FIRST = next(iter(EXAMPLES))
# Only the canvas and what lies on it; not the menus around it.
BARE = (
    "body * {visibility: hidden !important} #graph-canvas, .dom-widget, .dom-widget * {visibility: visible !important}"
)
FIT = """(() => {
  const boxes = app.rootGraph.nodes.map((node) => node.boundingRect);
  const left = Math.min(...boxes.map((b) => b[0])), top = Math.min(...boxes.map((b) => b[1]));
  const width = Math.max(...boxes.map((b) => b[0] + b[2])) - left + 60;
  const height = Math.max(...boxes.map((b) => b[1] + b[3])) - top + 60;
  const scale = Math.min(1740 / width, 1040 / height, 1);
  app.canvas.ds.scale = scale;
  app.canvas.ds.offset = [30 - left, 30 - top];
  app.canvas.setDirty(true, true);
  return [width * scale, height * scale];
})()"""


def load(page: Page, workflow: dict[str, Any]) -> None:
    page.run(f"app.loadGraphData({json.dumps(workflow)}, true, true, null)")
    page.wait_for(f"app.rootGraph.nodes.length == {len(workflow['nodes'])}")


def queued(page: Page) -> dict[str, Any]:
    """What the front end would send to the server."""
    return page.run("app.graphToPrompt().then((found) => found.output)")


def test_examples_are_queued_from_the_canvas_as_headless(page: Page):
    for name in EXAMPLES:
        load(page, read_json(FOLDER / f"{name}.json"))
        found, expected = queued(page), read_json(FOLDER / "api" / f"{name}.json")
        for number, node in expected.items():
            assert found[number]["class_type"] == node["class_type"]
            assert found[number]["inputs"] == node["inputs"], f"{name}: node {number}"
        assert len(found) == len(expected)


def test_the_blueprint_expands_to_its_nodes(page: Page):
    load(page, read_json(ROOT / "subgraphs" / f"{BLUEPRINT}.json"))
    found = {node["class_type"]: node["inputs"] for node in queued(page).values()}
    assert sorted(found) == ["StreamCacheEncode", "StreamCacheImageFolder", "StreamCacheTrain"]
    assert found["StreamCacheImageFolder"]["folder"] == "input/my_images"
    assert found["StreamCacheTrain"]["name"] == "my_lora"
    shown = page.run("app.rootGraph.nodes[0].widgets.map((widget) => widget.name)")
    assert shown == ["folder", "trigger", "resolution", "name", "steps", "rank"]


def test_a_saved_workflow_keeps_the_dataset_that_it_names(page: Page, server: Server):
    """Even if the cache is not in the list."""
    load(page, read_json(FOLDER / "09 Train from a shared cache.json"))
    time.sleep(2)
    assert queued(page)["1"]["inputs"]["name"] == "shared/their_dataset"


def test_advanced_inputs_are_hidden_on_the_classic_canvas_until_shown(page: Page):
    create = (
        "(() => {const node = LiteGraph.createNode('StreamCacheTrain'); app.rootGraph.add(node); return node.id})()"
    )
    node = f"app.rootGraph.getNodeById({page.run(create)})"
    control = f"{node}.widgets.find((widget) => widget.name === 'seed').linkedWidgets[0].value"
    assert page.run(control) == "fixed"  # or every run would train again, with another seed
    seen = f"{node}.widgets.filter((widget) => {node}.isWidgetVisible(widget)).map((widget) => widget.name)"
    time.sleep(1)
    before, height = page.run(seen), page.run(f"{node}.size[1]")
    assert "rank" in before and "beta1" not in before
    assert height < 700
    page.run(f"{node}.toggleAdvanced()")
    shown = page.run(seen)
    assert "alpha" in shown and "beta1" not in shown, "one group at a time"


@pytest.mark.skipif(not os.environ.get(UPDATE), reason=f"takes the screenshots of the examples again with {UPDATE}=1")
def test_images_of_the_examples(page: Page, server: Server):
    names = {"vae": ["sdxl_vae"], "text_encoders": ["clip_l", "clip_g"], "diffusion_models": ["sd_xl_base_1.0"]}
    files = [(folder, f"{file}.safetensors") for folder, found in names.items() for file in found]
    workflows = {name: read_json(FOLDER / f"{name}.json") for name in EXAMPLES}
    offered = [node["properties"].get("models", []) for workflow in workflows.values() for node in workflow["nodes"]]
    for folder, file in [*files, *((entry["directory"], entry["name"]) for entries in offered for entry in entries)]:
        place = server.base / "models" / folder / file
        place.parent.mkdir(exist_ok=True)
        place.touch()  # so that nothing is marked as missing
    page.run("app.refreshComboInNodes()")
    style = (
        f"(() => {{const s = document.createElement('style'); s.textContent = '{BARE}'; document.head.append(s)}})()"
    )
    page.run(style)
    for name in [name for name in EXAMPLES if name != FIRST]:  # that one is taken after a Run
        load(page, workflows[name])
        time.sleep(1)
        size = page.run(FIT)
        time.sleep(1.5)
        (FOLDER / f"{name}.jpg").write_bytes(page.jpeg(*size))
