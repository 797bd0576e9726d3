"""The tab of dataset caches in the real front end: what it shows, and that it does just what it says."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.tests.browser.cache_tab import PANEL, TILES, CacheTab, find, screenshot_folder
from streamcache.tests.browser.chrome import Page
from streamcache.tests.browser.conftest import READY
from streamcache.tests.browser.gallery import write_landscapes, write_many
from streamcache.tests.host.graph import Graph, save_folder
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.published import ROOT
from streamcache.tests.host.server import Server
from streamcache.tests.host.snapshot import UPDATE

pytestmark = pytest.mark.browser
MANY = 100_000
LEFT_OUT = {"count": 1, "files": [{"source": "coast/broken.png", "reason": "the file ends too early"}]}
MADE = {"encoders": {"image": "sdxl_vae", "text": "clip_l + clip_g"}, "excluded": LEFT_OUT}
LOADED = "app.graph.nodes.filter((node) => node.type === 'StreamCacheCacheLoad').map((node) => node.widgets[0].value)"
FOUND = "document.querySelector('.sc-countline').textContent"
# What a cache is for: a node that loads it, and one that trains on it.
WORKFLOW = """(() => {
  app.graph.clear();
  const add = (type, x, y) => {
    const node = LiteGraph.createNode(type);
    node.pos = [x, y];
    app.graph.add(node);
    return node;
  };
  const train = add('StreamCacheTrain', 890, 200);
  const into = (name) => train.inputs.findIndex((input) => input.name === name);
  const load = add('StreamCacheCacheLoad', 500, 200);
  load.widgets[0].value = 'landscapes';
  load.connect(0, train, into('dataset'));
  const model = add('UNETLoader', 500, 390);
  model.widgets[0].value = 'sd_xl_base_1.0.safetensors';
  model.connect(0, train, into('model'));
  app.canvas.ds.scale = 1;
  app.canvas.ds.offset = [0, 0];
  app.canvas.setDirty(true, true);
})()"""
AGES = {"landscapes": 2 * 3600, "shared/evening_set": 26 * 3600, "hills": 6 * 86400, "small_test": 40 * 86400}


@pytest.fixture(scope="module")
def root(server: Server) -> Path:
    """Where the caches are. Some are there before the page looks."""
    folder = server.base / "output" / "streamcache"
    write_landscapes(folder / "landscapes", 40, encode=MADE)
    write_landscapes(folder / "shelf" / "dunes", 6, seed=2)
    write_many(folder / "many", MANY)
    return folder


@pytest.fixture(scope="module")
def settled(page: Page, root: Path) -> Page:
    """The page with the host's own complaints at its start behind it."""
    page.resize(1500, 950)
    page.wait_for("document.querySelector('.streamcache-caches-tab-button')")
    return page


@pytest.fixture
def tab(settled: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CacheTab]:
    """The list of caches. Nothing that a test does may make the console complain."""
    settled.run("void 0")
    settled.errors.clear()
    found = CacheTab(settled, screenshot_folder(tmp_path_factory.getbasetemp() / "screenshots"))
    found.open()
    yield found
    settled.run("void 0")  # what was said meanwhile is heard with the answer
    assert settled.errors == []


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and ".leases" not in file.parts)


def test_a_cache_made_by_a_workflow_appears_with_its_picture_and_facts(tab: CacheTab, server: Server):
    write_pictures(server.base / "input" / "browser_pictures")
    graph = Graph(server)
    save_folder(graph, "input/browser_pictures", "made_by_workflow", texts=False)
    server.succeed(graph.prompt)
    tab.wait_for_card("made_by_workflow")
    card = tab.card("made_by_workflow")
    text = tab.page.run(f"{card}.textContent")
    assert "5 samples · 3 buckets · " in text and "kB" in text and "just now · VAE " in text
    tab.page.wait_for(f"{card}.querySelector('.sc-cover img').naturalWidth > 0")
    tab.shot("list")


def test_a_list_is_searched_and_ordered(tab: CacheTab):
    names = "[...document.querySelectorAll('.sc-card')].map((card) => card.dataset.name)"
    tab.wait_for_card("many")
    tab.search(".sc-search input", "dun")
    tab.page.wait_for(f"{names}.join() === 'shelf/dunes'")
    tab.search(".sc-search input", "no such cache")
    tab.wait_for_text(".sc-empty", "No cache matches")
    tab.search(".sc-search input", "")
    tab.page.run(f"({find('.sc-order')}).value = 'samples'")
    tab.page.run(f"({find('.sc-order')}).dispatchEvent(new Event('change'))")
    tab.page.wait_for(f"{names}[0] === 'many' && {names}[1] === 'landscapes'")


def test_pictures_captions_and_facts_of_a_cache(tab: CacheTab):
    tab.show("landscapes")
    shown = tab.wait_for_labels()
    x, y = tab.page.run(
        f"(() => {{ const box = {TILES}[1].getBoundingClientRect(); return [box.x + 9, box.y + 9] }})()"
    )
    tab.page.mouse("mouseMoved", x, y)
    tab.wait_for_text(".sc-caption", shown[1].removeprefix("1: "))
    tab.shot("samples")
    tab.page.click(f"{TILES}[0]")
    tab.wait_for_text(".sc-sample h2", "Sample 1 of 40")
    tab.wait_for_text(".sc-sample-text", "2 captions")
    tab.wait_for_text(".sc-sample-text", "0000.png")
    tab.page.wait_for("document.querySelector('.sc-sample-picture').naturalWidth > 0")
    tab.shot("sample")
    tab.page.press("ArrowRight")
    tab.wait_for_text(".sc-sample h2", "Sample 2 of 40")
    tab.page.press("Escape")
    tab.page.wait_for("!document.querySelector('dialog')")
    tab.page.click("document.querySelector('#sc-tab-about')")
    tab.wait_for_text(".sc-about", "Sharing what repeats saves")
    tab.wait_for_text(".sc-about", "Latents")
    tab.wait_for_text(".sc-about", "clip_l + clip_g")
    tab.shot("details")
    tab.page.click("document.querySelector('#sc-tab-excluded')")
    tab.wait_for_text(".sc-excluded", "coast/broken.pngthe file ends too early")
    tab.page.click("document.querySelector('#sc-tab-samples')")


def test_searches_and_buckets_choose_samples(tab: CacheTab, root: Path):
    cache = open_cache(root / "landscapes")
    dunes = [sample for sample in cache if any("dunes" in caption for caption in sample.captions)]
    del cache
    tab.show("landscapes")
    tab.search(".sc-samples input", "DUNES")
    tab.page.wait_for(f"{FOUND} === '{len(dunes)} of 40 samples'")
    assert all("dunes" in label for label in tab.wait_for_labels())
    tab.search(".sc-samples input", "")
    tab.page.wait_for(f"{FOUND} === '40 samples'")
    bar = "document.querySelector('.sc-bar')"
    name, count = tab.page.run(f"[{bar}.dataset.bucket, {bar}.querySelector('.sc-bar-count').textContent]")
    assert name == "1024×1024"
    tab.page.click(bar)
    tab.page.wait_for(f"{FOUND} === '{count} of 40 samples' && {bar}.ariaPressed === 'true'")
    tab.page.click(bar)
    tab.page.wait_for(f"{FOUND} === '40 samples'")


def test_a_hundred_thousand_samples_scroll(tab: CacheTab):
    tab.page.run("performance.clearMarks()")
    tab.show("many")
    times = (
        "['streamcache:samples', 'streamcache:grid'].map((name) => performance.getEntriesByName(name)[0]?.startTime)"
    )
    tab.page.wait_for(f"{times}.every(Boolean)")
    answered, painted = tab.page.run(times)
    assert 0 <= painted - answered < 1000
    assert tab.wait_for_labels()[0] == "0: sample number 0"
    # Many steps in little time: no range that was only passed is asked for.
    fling = """(async () => {
      const grid = document.querySelector('.sc-grid');
      performance.clearResourceTimings();
      for (let step = 1; step <= 40; step += 1) {
        grid.scrollTop = (grid.scrollHeight / 2 / 40) * step;
        await new Promise(requestAnimationFrame);
      }
    })()"""
    tab.page.run(fling)
    middle = tab.wait_for_labels()
    numbers = sorted(int(label.split(":")[0].replace(",", "")) for label in middle)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and numbers[0] <= MANY / 2 <= numbers[-1] + 100
    asked = "performance.getEntriesByType('resource').filter((each) => each.name.includes('/cache/samples')).length"
    assert tab.page.run(asked) <= 5
    tab.page.run("document.querySelector('.sc-grid').focus()")
    tab.page.press("End")
    tab.page.wait_for(f"{TILES}.some((tile) => tile.dataset.label === 'sample number {MANY - 1}')")
    active = "document.getElementById(document.querySelector('.sc-grid').getAttribute('aria-activedescendant'))"
    assert tab.page.run(f"{active}.getAttribute('aria-label')") == f"{MANY - 1:,}: sample number {MANY - 1}"
    assert tab.page.run(f"document.querySelectorAll('{PANEL} *').length") <= 2000
    tab.page.wait_for(f"{TILES}.every((tile) => tile.firstChild.naturalWidth > 0)")
    tab.shot("many")


def test_ten_million_samples_are_within_reach_of_the_scroll_bar(tab: CacheTab):
    """No browser lays out so much: both ends are reached, a jump to the middle is one, and a small step stays small."""
    script = """import('/extensions/streamcache/caches/tall.js').then(({TallScroll, LIMIT}) => {
      const scroll = new TallScroll();
      scroll.resize(1e9, 1000);
      const at = (bar) => (scroll.move(bar), scroll.top);
      return [scroll.barHeight <= LIMIT, at(LIMIT / 2), at(LIMIT / 2 + 30) - at(LIMIT / 2), at(LIMIT - 1000), at(0)];
    })"""
    within, middle, step, end, top = tab.page.run(script)
    assert within and abs(middle / 1e9 - 0.5) < 0.001 and step == 30 and end == 1e9 - 1000 and top == 0


def test_cleaning_shows_what_would_go_and_removes_just_that(tab: CacheTab, root: Path, server: Server):
    folder = root / "wasteful"
    for count in (6, 2):  # the second save leaves entries and a generation behind
        with CacheWriter(folder) as writer:
            for number in range(count):
                latent = torch.full((1, 4, 32, 32), float(number))
                writer.add(latent={"samples": latent}, caption=f"picture {number}")
    open_cache(folder)  # a reader was here, so readers can be seen
    left = folder / ".dataset.json.99.tmp"
    left.write_bytes(bytes(12_345))
    plan = server.client.get("/streamcache/cache/clean?name=wasteful")
    removals = {each["category"]: each for each in plan["removals"]}
    assert removals["unused"]["count"] >= 4 and removals["debris"]["bytes"] >= 12_345
    before = folder_bytes(folder)
    tab.refresh()
    tab.choose("wasteful", "Clean…")
    tab.wait_for_text("dialog h2", "Clean wasteful")
    tab.wait_for_text("dialog", "entries that no sample uses")
    tab.shot("clean")
    assert folder_bytes(folder) == before
    tab.page.click("document.querySelector('dialog input[name=unused]')")
    tab.page.click("document.querySelector('dialog input[name=debris]')")
    chosen = tab.page.run("[...document.querySelectorAll('dialog input:checked')].map((box) => box.name)")
    assert "unused" in chosen and "debris" not in chosen
    tab.press_button("Remove")
    tab.wait_for_text(".sc-notices", "wasteful: freed")
    assert before - folder_bytes(folder) == sum(removals[name]["bytes"] for name in chosen)
    assert left.exists()
    assert len(open_cache(folder)) == 2


def test_rename_duplicate_delete_undo_and_trash(tab: CacheTab, root: Path):
    write_landscapes(root / "first", 3, seed=5)
    tab.refresh()
    tab.choose("first", "Rename…")
    rename(tab, "shelf/dunes", "Rename")
    tab.wait_for_text("dialog .sc-notice", "shelf/dunes")  # taken: told in the window, which stays
    tab.page.run("void 0")
    assert any("status of 4" in error for error in tab.page.errors)
    tab.page.errors.clear()
    rename(tab, "second", "Rename")
    tab.wait_for_card("second")
    tab.choose("second", "Duplicate…")
    rename(tab, "third", "Duplicate")
    tab.wait_for_card("third")
    tab.choose("third", "Move to the trash")
    tab.wait_for_card("third", there=False)
    tab.shot("undo")
    tab.press_button("Undo")
    tab.wait_for_card("third")
    for name in ("second", "third"):
        tab.choose(name, "Move to the trash")
        tab.wait_for_card(name, there=False)
    assert not (root / "second").exists()
    tab.press_button("Trash (2)")
    tab.wait_for_card("second")
    tab.shot("trash")
    tab.page.click(f"{tab.card('second')}.querySelector('.sc-button')")
    tab.wait_for_card("second", there=False)
    assert len(open_cache(root / "second")) == 3
    tab.press_button("Empty")
    tab.press_button("Remove for good")
    tab.wait_for_text(".sc-empty", "The trash is empty.")
    assert not (root / "third").exists()


def rename(tab: CacheTab, to: str, button: str) -> None:
    tab.search("dialog input", to)
    tab.press_button(button)


def test_verify_tells_whether_a_cache_is_sound(tab: CacheTab, root: Path):
    write_landscapes(root / "damaged", 3, seed=6)
    tab.refresh()
    tab.choose("damaged", "Verify")
    tab.wait_for_text(".sc-job", "damaged is sound")
    shard = next((root / "damaged").rglob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-100] ^= 255
    shard.write_bytes(data)
    tab.choose("damaged", "Verify")
    tab.page.wait_for("document.querySelector('.sc-job.bad .sc-problems li')", 30)
    tab.shot("verify")
    shutil.rmtree(root / "damaged")
    tab.page.run("document.querySelectorAll('.sc-job .pi-times').forEach((sign) => sign.parentElement.click())")


@pytest.mark.parametrize("modern", [False, True], ids=["classic", "nodes 2.0"])
def test_a_cache_dropped_onto_the_canvas_becomes_a_load_node(tab: CacheTab, modern: bool):
    tab.page.run(f"app.extensionManager.setting.set('Comfy.VueNodes.Enabled', {json.dumps(modern)})")
    tab.page.run("app.graph.clear()")
    tab.wait_for_card("shelf/dunes")
    tab.page.drag(tab.card("shelf/dunes"), 1000, 500)
    tab.page.wait_for(f"{LOADED}.join() === 'shelf/dunes'", 10)
    x, y = tab.page.run("app.canvasPosToClientPos([...app.graph.nodes[0].pos])")
    assert abs(x - 1000) < 5 and 0 < y - 500 < 60
    # Not onto the list itself.
    tab.page.drag(tab.card("shelf/dunes"), 200, 700)
    tab.page.click(f"{tab.card('landscapes')}.querySelector('.pi-plus-circle').parentElement")
    tab.page.wait_for(f"{LOADED}.join() === 'shelf/dunes,landscapes'", 10)
    if modern:
        tab.page.wait_for("document.querySelectorAll('[data-node-id]').length === 2")
    tab.shot(f"canvas_{'modern' if modern else 'classic'}")
    prompt: dict[str, Any] = tab.page.run("app.graphToPrompt().then((found) => found.output)")
    assert sorted(node["inputs"]["name"] for node in prompt.values()) == ["landscapes", "shelf/dunes"]
    tab.page.run("app.graph.clear()")
    tab.page.run("app.extensionManager.setting.set('Comfy.VueNodes.Enabled', false)")


def test_everything_is_reached_by_keys_alone(tab: CacheTab):
    page = tab.page
    page.run("app.extensionManager.sidebarTab.toggleSidebarTab('streamcache-caches')")
    page.wait_for(f"!document.querySelector('{PANEL}')")
    page.run("document.activeElement.blur()")
    page.press("D", shift=True)
    tab.wait_for_card("landscapes")
    focused = "document.activeElement"
    page.wait_for(f"{focused}.closest('{PANEL}')")
    tab_to(page, "sc-card-open")
    for _ in range(20):
        if page.run(f"{focused}.closest('.sc-card').dataset.name") == "landscapes":
            break
        page.press("ArrowDown")
    page.press("Enter")
    page.wait_for("document.querySelector('[data-cache=landscapes] .sc-tile')")
    tab_to(page, "sc-grid")
    tab.wait_for_labels()
    page.press("ArrowRight", "ArrowRight", "Enter")
    tab.wait_for_text("dialog h2", "Sample 3 of 40")
    page.press("Escape")
    page.wait_for(f"{focused}.classList.contains('sc-grid')")
    page.press("Escape")
    page.wait_for(f"{focused}.closest('.sc-card')?.dataset.name === 'landscapes'")


def tab_to(page: Page, name: str) -> None:
    for _ in range(12):
        if page.run(f"document.activeElement.classList.contains('{name}')"):
            return
        page.press("Tab")
    raise AssertionError(f"Tab does not lead to {name}")


def test_chinese_and_the_light_theme(tab: CacheTab):
    page = tab.page
    page.run("app.extensionManager.setting.set('Comfy.Locale', 'zh')")
    page.run("app.extensionManager.setting.set('Comfy.ColorPalette', 'light')")
    try:
        for _ in range(2):
            page.run("app.extensionManager.sidebarTab.toggleSidebarTab('streamcache-caches')")
        tab.wait_for_card("landscapes")
        tab.wait_for_text(".sc-head h2", "数据集缓存")
        tab.wait_for_text(".sc-card", "个样本")
        tab.show("landscapes")
        tab.wait_for_text(".sc-tabs", "样本")
        page.wait_for("!document.body.classList.contains('dark-theme')")
        style = "getComputedStyle(document.querySelector('.sc-panel'))"
        light = f"(({{color, backgroundColor}}) => [color, backgroundColor])({style})"
        page.wait_for(f"/rgb\\((2[0-9][0-9], ){{2}}/.test({light}[1])")
        text, back = page.run(light)
        assert brightness(back) - brightness(text) > 150
        tab.shot("chinese_light")
    finally:
        page.run("app.extensionManager.setting.set('Comfy.Locale', 'en')")
        page.run("app.extensionManager.setting.set('Comfy.ColorPalette', 'dark')")
        for _ in range(2):
            page.run("app.extensionManager.sidebarTab.toggleSidebarTab('streamcache-caches')")


def brightness(colour: str) -> float:
    return sum(map(float, colour.removeprefix("rgb(").removesuffix(")").split(", ")[:3])) / 3


def test_without_caches_the_tab_tells_how_to_make_one(tab: CacheTab, root: Path):
    aside = root.rename(root.with_name("aside"))
    try:
        tab.refresh()
        tab.wait_for_text(".sc-empty", "No dataset caches yet")
        tab.shot("empty")
        tab.press_button("Open the example workflow")
        tab.page.wait_for("app.graph.nodes.some((node) => node.type === 'StreamCacheCacheSave')")
    finally:
        shutil.rmtree(root, ignore_errors=True)
        aside.rename(root)
    tab.refresh()
    tab.wait_for_card("landscapes")


def test_what_goes_wrong_is_told_in_a_sentence(tab: CacheTab, root: Path):
    write_landscapes(root / "vanishing", 3, seed=7)
    (root / "unreadable").mkdir()
    (root / "unreadable" / "dataset.json").write_text("{")
    tab.refresh()
    tab.wait_for_text(".sc-card[data-name=unreadable]", "is not JSON")
    tab.wait_for_card("vanishing")
    shutil.rmtree(root / "vanishing")
    shutil.rmtree(root / "unreadable")
    tab.choose("vanishing", "Verify")
    tab.wait_for_text(".sc-notices [role=alert]", "vanishing")
    tab.wait_for_text(".p-toast-message", "vanishing")
    tab.shot("refusal")
    tab.page.run("void 0")
    assert all("status of 404" in error for error in tab.page.errors)
    tab.page.errors.clear()


@pytest.mark.skipif(not os.environ.get(UPDATE), reason=f"draws the pictures of the documentation anew with {UPDATE}=1")
def test_pictures_of_the_documentation(tab: CacheTab, root: Path, server: Server):
    for folder in root.iterdir():
        shutil.rmtree(folder)
    write_landscapes(root / "small_test", 12, seed=23)
    write_landscapes(root / "hills", 32, seed=15, encode={"encoders": {"image": "flux_ae", "text": "t5xxl"}})
    write_landscapes(root / "shared" / "evening_set", 64, seed=12, encode={"encoders": MADE["encoders"]})
    write_landscapes(root / "landscapes", 180, seed=4, encode=MADE)
    for name, age in AGES.items():
        os.utime(root / name / "dataset.json", (time.time() - age,) * 2)
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
        page.mouse("mouseMoved", 900, 800)
        if palette == "dark":
            tab.show("landscapes")
            page.point_at(f"{TILES}[4]")
        time.sleep(1)
        page.screenshot(ROOT / "docs" / f"{file}.png")
    page.run("void 0")
    page.errors.clear()  # the host's own at its start
