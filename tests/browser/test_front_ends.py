"""What depends on the front end: panels on nodes, room for inputs, the language, deprecated calls. Each is checked
on the oldest and the newest supported one."""

import json

import pytest

from streamcache.tests.browser.chromium import tab_button
from streamcache.tests.browser.training_page import CARD, IDLE, NODE, PANEL, TAB, TrainingPage, write_run
from streamcache.tests.host.examples import EXAMPLES
from streamcache.tests.host.published import ROOT
from streamcache.tests.host.server import Server, read_json
from streamcache.tests.host.trainings import run_row, until

pytestmark = [pytest.mark.browser, pytest.mark.both_front_ends]

RENDERERS = pytest.mark.parametrize("vue", [False, True], ids=["classic", "nodes_2"])
NEXT_FRAMES = "new Promise((go) => setTimeout(go, 500))"
# Elements of nodes, in both renderers, that show a text.
SHOWN = """[...document.querySelectorAll('.lg-node *, .dom-widget *')].filter((each) =>
  each.childElementCount === 0 && each.textContent.includes(%s) && each.checkVisibility()).length"""
OWN_TEXT = "app.rootGraph.getNodeById(%s).widgets.some((widget) => widget.name.startsWith('$$') && !widget.hidden)"
SAY = "app.api.dispatchEvent(new CustomEvent('progress_text', {detail: {nodeId: '%s', text: %s}}))"
# Pairs of nodes of which one covers the other.
COVERED = """(() => {
  const box = ({pos, size}) => [pos[0], pos[1] - LiteGraph.NODE_TITLE_HEIGHT, pos[0] + size[0], pos[1] + size[1]];
  const meet = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
  const nodes = app.rootGraph.nodes;
  const covered = (a, place) => nodes.slice(place + 1).filter((b) => meet(box(a), box(b)));
  return nodes.flatMap((a, place) => covered(a, place).map((b) => [a.type, b.type]));
})()"""


@RENDERERS
def test_a_panel_stays_when_its_job_ends_and_shows_the_next_run(training: TrainingPage, server: Server, vue: bool):
    page, name = training.page, f"twice_{vue}".lower()
    training.close_tab()
    training.set(vue=vue)
    node = training.build(name)
    for _ in range(2):
        training.queue()
        page.wait_for(f"{NODE}?.querySelector('[data-state=running]')")
        until(lambda: training.drawn(NODE) > 5)
        page.click(f"{NODE}.querySelector('.sc-stop')")
        until(lambda: run_row(server, name).get("status") == "stopped")
        until(lambda: page.run(IDLE))
        page.run(NEXT_FRAMES)
        assert page.run(f"{NODE}?.checkVisibility() ?? false"), "the panel is still there"
        page.wait_for(f"{NODE}.innerText.includes('Stopped at step')")
        assert not page.run(OWN_TEXT % node), "ComfyUI's own text is not shown as well"


@RENDERERS
def test_the_panel_shows_the_progress_text_of_its_node(training: TrainingPage, server: Server, vue: bool):
    page = training.page
    training.close_tab()
    training.set(vue=vue)
    write_run(server, "spoken", [0.5, 0.4])
    node = training.build("spoken")
    workflow = page.run("JSON.stringify(app.rootGraph.serialize())")
    page.run("import('/extensions/streamcache/training/runs.js').then(({store}) => store.load())")
    page.run(f"app.loadGraphData({workflow}, true, true, null)")
    page.wait_for(f"{NODE}?.innerText.includes('spoken')")
    # As during an execution, when the front end shows the text too.
    page.run("app.api.dispatchEvent(new CustomEvent('execution_start', {detail: {prompt_id: 'p'}}))")
    page.run(f"app.api.dispatchEvent(new CustomEvent('executing', {{detail: '{node}'}}))")
    for text in ("Encoding images: 3 of 62", "Encoding images: 4 of 62"):
        page.run(SAY % (node, json.dumps(text)))
        page.wait_for(f"{NODE}.querySelector('.sc-said').textContent === {json.dumps(text)}")
        page.run(NEXT_FRAMES)
        assert page.run(SHOWN % json.dumps(text)) == 1, "once, not also in ComfyUI's own widget"
        assert not page.run(OWN_TEXT % node)
    page.run("app.api.dispatchEvent(new CustomEvent('executing', {detail: null}))")


def test_hidden_advanced_inputs_take_no_room_on_the_classic_canvas(training: TrainingPage, server: Server):
    page = training.page
    training.close_tab()
    training.set(vue=False)
    node = f"app.rootGraph.getNodeById({training.build('roomy')})"
    rows = f"{node}.widgets.filter((widget) => {node}.isWidgetVisible(widget)).length"
    page.run(NEXT_FRAMES)
    few, low = page.run(rows), page.run(f"{node}.size[1]")
    assert low < 40 * few + 200, f"{few} inputs are visible"
    page.run(f"{node}.toggleAdvanced()")
    page.run(NEXT_FRAMES)
    many, high = page.run(rows), page.run(f"{node}.size[1]")
    assert many > few + 8 and high > low + 20 * (many - few)
    page.run(f"{node}.toggleAdvanced(); {node}.setSize([{node}.size[0], {node}.computeSize()[1]])")
    page.run(NEXT_FRAMES)
    assert page.run(f"{node}.size[1]") == low
    training.queue()
    page.wait_for(f"{NODE}?.querySelector('[data-state=running]')")
    page.run(NEXT_FRAMES)
    bottom = page.run(f"{NODE}.querySelector('.sc-stop').getBoundingClientRect().bottom")
    assert bottom < page.run("innerHeight"), "the button that stops the run is on screen"
    page.click(f"{NODE}.querySelector('.sc-stop')")
    until(lambda: run_row(server, "roomy").get("status") == "stopped")


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_node_of_an_example_covers_another(training: TrainingPage, name: str):
    page = training.page
    training.set(vue=False)
    workflow = read_json(ROOT / "example_workflows" / f"{name}.json")
    for node in workflow["nodes"]:
        if node["type"] == "StreamCacheTrain":
            node["widgets_values"][0] = "uncovered"  # the curve of a run that another test left would be drawn on it
    page.run(f"app.loadGraphData({json.dumps(workflow)}, true, true, null)")
    page.wait_for(f"app.rootGraph.nodes.length == {len(workflow['nodes'])}")
    page.run(NEXT_FRAMES)
    assert page.run(COVERED) == []
    # The front end asks for the sizes of missing models that it offers; ComfyUI's policy stops it.
    page.errors[:] = [error for error in page.errors if "missingModel" not in error and "huggingface.co" not in error]


def test_another_language_applies_at_once(training: TrainingPage, server: Server):
    page = training.page
    write_run(server, "translated", [0.5, 0.4])
    training.set(vue=False)
    training.build("translated")
    workflow = page.run("JSON.stringify(app.rootGraph.serialize())")
    page.run("import('/extensions/streamcache/training/runs.js').then(({store}) => store.load())")
    page.run(f"app.loadGraphData({workflow}, true, true, null)")
    page.wait_for(f"{NODE}?.innerText.includes('Loss')")
    training.open_tab()
    page.wait_for(f"{CARD}?.innerText.includes('Loss')")
    buttons = [tab_button(TAB), tab_button("streamcache-caches")]
    shown = f"[{', '.join(f'{button}?.innerText' for button in buttons)}].join()"
    named = f"[{', '.join(f'{button}?.ariaLabel' for button in buttons)}].join()"
    training.set(sidebar="normal")  # with labels
    page.wait_for(f"{shown} === 'Training,Datasets' && {named} === 'LoRA training,Dataset caches'")
    try:
        training.set(locale="zh")
        page.wait_for(f"{PANEL}?.innerText.includes('所有训练')")
        page.wait_for(f"!/[A-Z]/.test({shown}) && {named}.includes('数据集缓存')")
        page.wait_for(f"!{NODE}.innerText.includes('Loss')")
        training.set(locale="fr")  # which the pack does not speak
        page.wait_for(f"{PANEL}?.innerText.includes('All runs')")
        page.wait_for(f"{shown} === 'Training,Datasets'")
    finally:
        training.set(locale="en", sidebar="small")
    page.wait_for(f"{NODE}.innerText.includes('Loss')")
    assert page.run("document.querySelectorAll('.side-bar-panel .sc-panel').length") == 1


def test_a_reload_during_a_run_logs_no_warning_about_the_pack(training: TrainingPage, server: Server):
    page = training.page
    training.close_tab()
    training.set(vue=False)
    training.build("quiet")
    training.queue()
    page.wait_for(f"{NODE}?.querySelector('[data-state=running]')")
    page.warnings.clear()
    # Events arrive while the texts of the pack are still on their way.
    with page.held("**/i18n"):
        page.reload()
        page.run("new Promise((go) => setTimeout(go, 3000))")
    page.wait_for(tab_button(TAB))
    page.wait_for("app.rootGraph && LiteGraph.registered_node_types['StreamCacheSelect']")
    server.client.interrupt()
    until(lambda: run_row(server, "quiet").get("live") is False)
    page.run("void 0")
    assert [text for text in page.warnings + page.errors if "streamcache" in text.lower()] == []
    page.errors.clear()  # of the front end at its start


def test_no_deprecated_call_is_made(training: TrainingPage, server: Server):
    """The front end reports deprecated calls: here while it loads a workflow with a run and shows notices."""
    page = training.page
    heard = "window.deprecated = []; LiteGraph.onDeprecationWarning.push((text) => window.deprecated.push(text))"
    page.run(f"LiteGraph.alwaysRepeatWarnings = true; {heard}")
    write_run(server, "modern", [0.5])
    training.set(vue=False)
    training.build("modern")
    workflow = page.run("JSON.stringify(app.rootGraph.serialize())")
    page.run("window.deprecated.length = 0")
    page.run("import('/extensions/streamcache/training/runs.js').then(({store}) => store.load())")
    page.run(f"app.loadGraphData({workflow}, true, true, null)")
    page.wait_for(f"{NODE}?.innerText.includes('modern')")
    notice = "import('/extensions/streamcache/lib/host.js').then(({notify}) => notify('%s', 'noticed', 'in detail'))"
    for kind in ("success", "error"):
        page.run(notice % kind)
        page.wait_for("document.body.innerText.includes('in detail')")
    page.run("LiteGraph.alwaysRepeatWarnings = false")
    assert page.run("window.deprecated") == []
