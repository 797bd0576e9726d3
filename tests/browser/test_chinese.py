"""The pack in Chinese on a real page: notes of templates, choices, errors of nodes and routes, help pages. Also the
notice on Encode Dataset, in both languages."""

import json
import re
import shutil
from collections.abc import Iterator

import pytest

from streamcache.tests.browser.cache_tab import CacheTab
from streamcache.tests.browser.folder_page import BAR, FIELD, GRID, FolderPage
from streamcache.tests.browser.intake import write_files
from streamcache.tests.browser.test_cache_upkeep import TELL
from streamcache.tests.browser.training_page import TrainingPage, write_run
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.published import ROOT
from streamcache.tests.host.server import Server, read_json
from streamcache.tests.host.trainings import until

pytestmark = pytest.mark.browser

RENDERERS = pytest.mark.parametrize("vue", [False, True], ids=["classic", "nodes_2"])
MESSAGES = "import('/extensions/streamcache/lib/messages.js')"
LOADED = f"{MESSAGES}.then((found) => found.translate('the file is empty') === '文件是空的')"
NEXT_FRAMES = "new Promise((go) => setTimeout(go, 800))"
ADD = """((type, x, y) => {
  const node = LiteGraph.createNode(type);
  app.graph.add(node);
  node.pos = [x, y];
  return node.id;
})(%s, %d, %d)"""
CONNECT = """((from, to, input) => {
  const [source, target] = [from, to].map((id) => app.rootGraph.getNodeById(id));
  source.connect(0, target, target.inputs.findIndex((each) => each.name === input));
})(%s, %s, %s)"""
DISCONNECT = """((id, input) => {
  const node = app.rootGraph.getNodeById(id);
  node.disconnectInput(node.inputs.findIndex((each) => each.name === input));
})(%s, %s)"""
NOTICE = "[...document.querySelectorAll('.sc-node .sc-warned')].find((each) => each.checkVisibility())"
TO_FIT = "app.canvas.ds.scale = 0.7, app.canvas.ds.offset = [120, 90], app.canvas.setDirty(true, true)"


# Every text, label and tooltip that is on the page within a selector, except those of users.
TEXTS = """((selector) => [...document.querySelectorAll(selector)].flatMap((root) => {
  const shown = [root, ...root.querySelectorAll('*')].filter((each) => each.checkVisibility());
  const own = (each) => [...each.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
  const named = (each) => ['title', 'aria-label', 'placeholder'].map((name) => each.getAttribute(name));
  return shown.flatMap((each) => [...own(each).map((node) => node.textContent), ...named(each)]);
}).filter(Boolean))(%s)"""
# Keys, kinds of files, and the program that reads images.
SAME_IN_CHINESE = {"Ctrl", "Enter", "Esc", "Delete", "Page", "Up", "Down", "png", "input", "Pillow"}


@pytest.fixture
def chinese(training: TrainingPage) -> Iterator[TrainingPage]:
    training.close_tab()
    training.set(vue=False, locale="zh")
    until(lambda: training.page.run(LOADED))
    yield training
    training.set(locale="en", vue=False)
    training.page.run("app.rootGraph.clear()")


def add(training: TrainingPage, kind: str, x: int = 40, y: int = 80) -> str:
    """The id of the new node, as JavaScript."""
    return json.dumps(training.page.run(ADD % (json.dumps(kind), x, y)))


def connect(training: TrainingPage, source: str, target: str, name: str) -> None:
    training.page.run(CONNECT % (source, target, json.dumps(name)))


def disconnect(training: TrainingPage, target: str, name: str) -> None:
    training.page.run(DISCONNECT % (target, json.dumps(name)))


@RENDERERS
def test_the_notes_and_choices_of_a_template_are_chinese_and_its_values_stay(chinese: TrainingPage, vue: bool):
    page = chinese.page
    chinese.set(vue=vue)
    workflow = read_json(ROOT / "example_workflows" / "01 First steps, no model files.json")
    page.run(f"app.loadGraphData({json.dumps(workflow)}, true, true, null)")
    note = "app.rootGraph.nodes.find((node) => node.type === 'MarkdownNote').widgets[0].value"
    page.wait_for(f"{note}.startsWith('# 第一步')")
    assert "不用 LoRA 绘制" in page.run("app.rootGraph.nodes.map((node) => node.title)")
    crop = (
        "app.rootGraph.nodes.find((node) => node.type === 'StreamCacheEncode').widgets.find((w) => w.name === 'crop')"
    )
    assert page.run(f"[{crop}.value, {crop}.options.getOptionLabel({crop}.value)]") == ["centre", "居中"]
    prompt = page.run("app.graphToPrompt().then(({output}) => Object.values(output))")
    assert [node["inputs"]["crop"] for node in prompt if node["class_type"] == "StreamCacheEncode"] == ["centre"]
    page.run(TO_FIT)
    page.run(NEXT_FRAMES)
    page.screenshot(chinese.folder / f"chinese_template_{'nodes_2' if vue else 'classic'}.png")


def test_a_note_that_the_user_changed_stays(chinese: TrainingPage):
    page = chinese.page
    workflow = read_json(ROOT / "example_workflows" / "01 First steps, no model files.json")
    note = next(node for node in workflow["nodes"] if node["type"] == "MarkdownNote")
    note["widgets_values"][0] += "\n\nMy own remark."
    page.run(f"app.loadGraphData({json.dumps(workflow)}, true, true, null)")
    shown = "app.rootGraph.nodes.find((node) => node.type === 'MarkdownNote')?.widgets[0].value"
    page.wait_for(f"{shown}?.includes('My own remark.')")
    page.run(NEXT_FRAMES)
    assert page.run(shown).startswith("# First steps")


def test_what_a_node_refuses_is_chinese(chinese: TrainingPage):
    page = chinese.page
    page.run("app.rootGraph.clear()")
    train, model = add(chinese, "StreamCacheTrain", 420), add(chinese, "UNETLoader")
    connect(chinese, model, train, "model")
    page.run("app.queuePrompt(0)")
    page.wait_for("Object.keys(app.lastNodeErrors ?? {}).length > 0")
    (refused,) = page.run("Object.values(app.lastNodeErrors)")
    assert refused["errors"][0]["details"].startswith("name - 没有可训练的内容：请连接数据集")
    page.run(NEXT_FRAMES)
    page.screenshot(chinese.folder / "chinese_refused.png")
    page.errors.clear()  # ComfyUI logs what it refuses


def test_an_error_of_a_node_is_chinese(chinese: TrainingPage):
    page = chinese.page
    page.run("app.rootGraph.clear()")
    add(chinese, "StreamCacheCacheSave")
    page.run("app.queuePrompt(0)")
    page.wait_for("app.lastExecutionError?.exception_message?.startsWith('没有可保存的内容：请连接数据集')")
    page.run(NEXT_FRAMES)
    page.screenshot(chinese.folder / "chinese_error.png")
    page.press("Escape")


def test_what_a_route_refuses_is_chinese(chinese: TrainingPage):
    page = chinese.page
    ask = "import('/extensions/streamcache/lib/server.js').then((server) => server.get('/cache', {name: 'no where'}))"
    message = page.run(f"{ask}.catch((error) => error.message)")
    assert message.startswith("找不到缓存 'no where'；请先保存它")
    page.errors[:] = [error for error in page.errors if "404" not in error]


def test_texts_of_users_stay_and_a_message_of_many_parts_is_no_work(chinese: TrainingPage):
    page = chinese.page
    counted = {"words": [["the file is empty", 3]], "refused": {"the file is empty": "the file is empty"}}
    translated = page.run(f"{MESSAGES}.then((found) => found.translateIn({json.dumps(counted)}))")
    assert translated == {"words": [["the file is empty", 3]], "refused": {"the file is empty": "文件是空的"}}
    line = "; ".join(f"part {number}, and: another" for number in range(40))
    page.run(f"{MESSAGES}.then((found) => void found.translate({json.dumps(line)}))")


def test_help_pages_are_chinese(chinese: TrainingPage):
    page = chinese.page
    for name, title in (("StreamCacheEncode", "编码数据集"), ("StreamCacheTrain", "训练 LoRA（StreamCache）")):
        text = page.run(f"fetch('/extensions/streamcache/docs/{name}/zh.md').then((answer) => answer.text())")
        assert text.startswith(f"# {title}\n")


@RENDERERS
def test_encode_dataset_says_what_the_dataset_will_lack(training: TrainingPage, server: Server, vue: bool):
    page = training.page
    write_pictures(server.base / "input" / "noticed", count=1)
    training.close_tab()
    training.set(vue=vue)
    page.run("app.rootGraph.clear()")
    encode = add(training, "StreamCacheEncode", 480)
    source, vae = add(training, "StreamCacheImageFolder"), add(training, "VAELoader", 40, 400)
    clip = add(training, "CLIPLoader", 40, 550)
    page.run(TO_FIT)
    connect(training, source, encode, "source")
    page.run(NEXT_FRAMES)
    assert page.run(f"!{NOTICE}"), "nothing yet: neither encoder is connected"
    connect(training, vae, encode, "vae")
    page.wait_for(f"{NOTICE}?.textContent.startsWith('No CLIP: captions are not encoded.')")
    connect(training, clip, encode, "clip")
    page.wait_for(f"!{NOTICE}")
    disconnect(training, encode, "vae")
    page.wait_for(f"{NOTICE}?.textContent.startsWith('No VAE: images are not encoded.')")
    connect(training, vae, encode, "vae")
    page.wait_for(f"!{NOTICE}")
    disconnect(training, encode, "source")
    disconnect(training, encode, "clip")
    page.run(NEXT_FRAMES)
    assert page.run(f"!{NOTICE}"), "without images there is nothing to say"
    connect(training, source, encode, "source")
    page.wait_for(f"{NOTICE}?.textContent.startsWith('No CLIP')")
    training.set(locale="zh")
    page.wait_for(f"{NOTICE}?.textContent.startsWith('未连接 CLIP')")
    page.run(TO_FIT)
    page.run(NEXT_FRAMES)
    page.screenshot(training.folder / f"encode_notice_{'nodes_2' if vue else 'classic'}.png")
    training.set(locale="en")
    page.run("app.rootGraph.clear()")


def test_the_tabs_in_chinese_for_the_eye(chinese: TrainingPage, server: Server, tab: CacheTab):
    page = chinese.page
    tab.show("landscapes")
    page.run(NEXT_FRAMES)
    page.screenshot(chinese.folder / "chinese_cache.png")
    tab.wait_for_text(".sc-tabs", "样本")
    write_run(server, "chinese_run", [0.5, 0.4, 0.3])
    page.run("import('/extensions/streamcache/training/runs.js').then(({store}) => store.load())")
    chinese.open_tab()
    page.wait_for("document.querySelector('.sc-panel')?.innerText.includes('chinese_run')")
    page.run(NEXT_FRAMES)
    page.screenshot(chinese.folder / "chinese_training.png")


def test_k5_an_image_folder_is_chinese(chinese: TrainingPage, server: Server, tab: CacheTab):
    page, view = chinese.page, FolderPage(tab)
    folder = write_files(server.base / "input" / "照片", 6)
    for path in folder.glob("*.txt"):
        path.write_text("一只猫，沙发", encoding="utf-8")

    def assert_chinese(selector: str) -> None:
        texts = page.run(TEXTS % json.dumps(selector))
        assert len(texts) > 3
        assert [text for text in texts if set(re.findall("[A-Za-z]{2,}", text)) - SAME_IN_CHINESE] == [], selector

    tab.refresh()
    view.open("input/照片")
    (folder / "损坏.png").write_bytes(b"no image")
    page.run(TELL % ("streamcache.folders", "{}"))
    view.wait_for_count("7 张图像")
    page.run("document.querySelector('.sc-charts').open = true")
    page.wait_for("document.querySelector('[data-chart=lengths]')")
    assert_chinese(".sc-curate")
    tab.shot("chinese_folder")
    page.run("document.querySelector('.sc-charts').open = false")
    for sign in ("filter", "sort-alt"):
        page.click(f"document.querySelector('.sc-curate .sc-tools .pi-{sign}').parentElement")
        page.wait_for("document.querySelector('.sc-menu')")
        assert_chinese(".sc-menu")
        page.press("Escape")
    page.run(f"{GRID}.focus()")
    page.press("Home", " ")
    page.wait_for(f"!{BAR}.hidden")
    assert_chinese(".sc-selection")
    page.press("Delete")
    page.wait_for("document.querySelector('.sc-notices .sc-undo, .sc-notices .sc-notice')")
    page.wait_for("document.querySelector('.sc-curate .pi-undo').parentElement.title.includes('排除')")
    assert_chinese(".sc-panel")
    page.press("Control+a")
    view.act("edit_captions")
    view.fill("find", "猫")
    page.wait_for("document.querySelector('.sc-changes')")
    assert_chinese("dialog.sc")
    tab.shot("chinese_bulk")
    page.press("Escape")
    page.run(f"{GRID}.focus()")
    page.press("Escape")
    for place in ("Home", "End"):
        page.press(place, "Enter")
        page.wait_for(FIELD)
        page.run(NEXT_FRAMES)
        assert_chinese("dialog.sc")
        tab.shot(f"chinese_image_{place}")
        view.close()
    tab.open()
    shutil.rmtree(folder)
