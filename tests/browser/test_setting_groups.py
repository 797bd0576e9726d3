"""The settings on Train LoRA and Train Options: by group, in both renderers, and none of an old workflow is lost."""

import json
from typing import Any
from uuid import uuid4

import pytest

from streamcache.tests.browser.chromium import Page, screenshot_folder
from streamcache.tests.browser.test_workflows import FOLDER, load, queued
from streamcache.tests.host.server import Server, read_json

pytestmark = [pytest.mark.browser, pytest.mark.both_front_ends]
LEAST = 900  # pixels of a node that nothing was changed on
NEXT_FRAMES = "new Promise((done) => setTimeout(done, 400))"
CREATE = "(() => {const node = LiteGraph.createNode('%s'); app.rootGraph.add(node); return node.id})()"
ADVANCED = {"adapter": "lokr", "lokr_factor": 4, "beta2": 0.95, "validation_share": 0.25, "sample_captions": "a|b"}


@pytest.fixture(params=[False, True], ids=["classic", "nodes2"])
def vue(request: pytest.FixtureRequest, page: Page, server: Server) -> bool:
    page.run(f"app.extensionManager.setting.set('Comfy.VueNodes.Enabled', {json.dumps(request.param)})")
    # Another graph each time: ComfyUI remembers the widgets of a node by the ids of graph and node.
    empty = {"id": str(uuid4()), "nodes": [], "links": [], "version": 0.4, "last_node_id": 0, "last_link_id": 0}
    page.run(f"app.loadGraphData({json.dumps(empty)}, true, true, null)")
    page.run(NEXT_FRAMES)
    return request.param


def create(page: Page, kind: str) -> str:
    node = f"app.rootGraph.getNodeById({page.run(CREATE % kind)})"
    page.run("app.canvas.ds.scale = 1; app.canvas.ds.offset = [60, 60]; app.canvas.setDirty(true, true)")
    page.run(NEXT_FRAMES)
    return node


def shown(page: Page, node: str, vue: bool) -> list[str]:
    """The names of the inputs with a widget that one can see."""
    page.run(NEXT_FRAMES)
    names = f"{node}.widgets.filter((widget) => {node}.isWidgetVisible(widget)).map((widget) => widget.name)"
    if not vue:
        return page.run(names)
    rows = f"[...document.querySelectorAll(`[data-node-id='${{{node}.id}}'] .lg-node-widget`)].length"
    found = page.run(f"{names}.filter((name) => !name.startsWith('$$'))")
    linked = 1 if "seed" in found else 0  # control_after_generate is part of the seed in Nodes 2.0
    assert page.run(rows) == len(found) - linked, found
    return found


def height(page: Page, node: str, vue: bool) -> float:
    if not vue:
        return page.run(f"{node}.size[1]")
    box = f"document.querySelector(`[data-node-id='${{{node}.id}}']`).getBoundingClientRect().height"
    return page.run(f"{box} / app.canvas.ds.scale")


def choose(page: Page, node: str, name: str, value: Any) -> None:
    widget = f"{node}.widgets.find((widget) => widget.name === '{name}')"
    page.run(f"{widget}.value = {json.dumps(value)}; {widget}.callback({json.dumps(value)}); 0")
    page.run(NEXT_FRAMES)


@pytest.mark.parametrize("kind", ["StreamCacheTrain", "StreamCacheTrainOptions"])
def test_a_new_node_is_no_tower(page: Page, vue: bool, kind: str, tmp_path_factory: pytest.TempPathFactory):
    node = create(page, kind)
    assert height(page, node, vue) < LEAST
    page.screenshot(screenshot_folder(tmp_path_factory.getbasetemp()) / f"{kind}-{'nodes2' if vue else 'classic'}.png")
    if kind == "StreamCacheTrain":
        assert "rank" in shown(page, node, vue) and "beta1" not in shown(page, node, vue)
        page.run(f"{node}.toggleAdvanced()" if not vue else f"{node}.showAdvanced = true")
    groups = page.run(f"{node}.widgets.find((widget) => widget.name === 'group').options.values")
    for group in groups:
        choose(page, node, "group", group)
        assert height(page, node, vue) < 1.7 * LEAST, group


def test_only_the_settings_of_the_group_that_apply_are_shown(page: Page, vue: bool):
    node = create(page, "StreamCacheTrainOptions")
    names = shown(page, node, vue)
    assert {"adapter", "alpha", "dora", "lora_plus"} - set(names) == {"lora_plus"}  # of the group Learning
    assert not {"lokr_factor", "dora_axis", "beta1", "huber_delta"} & set(names)
    choose(page, node, "adapter", "lokr")
    assert "lokr_factor" in shown(page, node, vue)
    choose(page, node, "adapter", "oft")
    assert not {"lokr_factor", "dora", "adapter_dropout"} & set(shown(page, node, vue))
    choose(page, node, "group", "objective")
    names = shown(page, node, vue)
    assert "loss" in names and "huber_delta" not in names and "alpha" not in names
    assert "adapter" in names, "what was changed is always shown"
    choose(page, node, "loss", "huber")
    assert "huber_delta" in shown(page, node, vue)
    choose(page, node, "group", "saving")
    assert not {"keep_exports", "keep_exports_by"} & set(shown(page, node, vue)), "nothing is exported"
    choose(page, node, "export_epochs", 1)
    assert "keep_exports" in shown(page, node, vue)


def test_the_chosen_group_is_saved_and_the_list_of_groups_is_not_queued(page: Page, vue: bool):
    node = create(page, "StreamCacheTrainOptions")
    choose(page, node, "group", "memory")
    saved = page.run("app.rootGraph.serialize()")
    load(page, saved)
    assert "precision" in shown(page, "app.rootGraph.nodes[0]", vue)
    train = create(page, "StreamCacheTrain")
    page.run(f"app.rootGraph.nodes[0].connect(0, {train}, 'options')")
    assert all("group" not in each["inputs"] for each in queued(page).values())


def test_a_workflow_of_an_earlier_version_keeps_every_setting_that_it_has(page: Page, vue: bool):
    """Values are saved by position: those of the first template, with some advanced ones changed."""
    workflow = read_json(FOLDER / "02 Train on SD 1.5.json")
    old = next(node for node in workflow["nodes"] if node["type"] == "StreamCacheTrain")
    old.pop("widgets_values_named", None)
    create(page, "StreamCacheTrain")
    order = page.run("app.rootGraph.nodes[0].widgets.filter((w) => w.serialize !== false).map((w) => w.name)")
    for name, value in ADVANCED.items():
        old["widgets_values"][order.index(name)] = value
    load(page, workflow)
    node = f"app.rootGraph.getNodeById({old['id']})"
    sent = queued(page)[str(old["id"])]["inputs"]
    assert {name: sent[name] for name in ADVANCED} == ADVANCED
    assert {*ADVANCED} <= set(shown(page, node, vue)), "although nothing advanced is shown"
    again = page.run(f"{node}.serialize().widgets_values")
    count = len(old["widgets_values"])
    assert again[:count] == old["widgets_values"]
