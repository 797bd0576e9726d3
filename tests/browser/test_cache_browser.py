"""The Datasets tab in the real front end: what it shows, and how it is used."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.tests.browser.cache_tab import BUTTON, PANEL, TILES, CacheTab, find
from streamcache.tests.browser.chromium import Page, brightness
from streamcache.tests.browser.conftest import MANY
from streamcache.tests.host.graph import Graph, save_folder
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.server import Server

pytestmark = pytest.mark.browser
LOADED = (
    "app.rootGraph.nodes.filter((node) => node.type === 'StreamCacheCacheLoad').map((node) => node.widgets[0].value)"
)
FOUND = "document.querySelector('.sc-countline').textContent"


def test_a_cache_saved_by_a_workflow_appears_with_its_thumbnail_and_counts(tab: CacheTab, server: Server):
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


def test_a_long_list_is_drawn_in_part_until_the_user_asks_for_more(tab: CacheTab, root: Path):
    for number in range(61):
        with CacheWriter(root / "long" / str(number)) as writer:
            writer.add(latent={"samples": torch.zeros(1, 4, 8, 8)})
    tab.refresh()
    cards = "document.querySelectorAll('.sc-card').length"
    tab.page.wait_for(f"{cards} === 60")
    every = tab.page.run("Number(document.querySelector('.sc-foot').textContent.match(/[0-9]+/)[0])")
    assert every > 61
    tab.press_button(f"Show all {every}")
    tab.page.wait_for(f"{cards} === {every}")
    tab.wait_for_covers()  # or thumbnails of removed caches would be requested
    shutil.rmtree(root / "long")
    tab.refresh()
    tab.page.wait_for(f"{cards} < 60")


def test_thumbnails_captions_and_details_of_a_cache(tab: CacheTab):
    tab.show("landscapes")
    shown = tab.wait_for_labels()
    x, y = tab.page.run(
        f"(() => {{ const box = {TILES}[1].getBoundingClientRect(); return [box.x + 9, box.y + 9] }})()"
    )
    tab.page.move_mouse(x, y)
    tab.wait_for_text(".sc-caption", shown[1].removeprefix("2: "))
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
    tab.wait_for_text(".sc-about", "Storing repeated data once saves")
    tab.wait_for_text(".sc-about", "Latents")
    tab.wait_for_text(".sc-about", "clip_l + clip_g")
    tab.shot("details")
    tab.page.click("document.querySelector('#sc-tab-excluded')")
    tab.wait_for_text(".sc-excluded", "coast/broken.pngthe file ends too early")
    tab.page.click("document.querySelector('#sc-tab-samples')")


@pytest.mark.both_front_ends
def test_the_list_can_be_used_before_it_is_loaded(tab: CacheTab):
    """On a slow connection, a search is typed and an order chosen while the list is on its way."""
    tab.page.run("app.extensionManager.sidebarTab.toggleSidebarTab('streamcache-caches')")
    with tab.page.held("**/streamcache/caches"):
        tab.page.click(BUTTON)
        tab.search(".sc-search input", "dunes")
        tab.page.run(f"{find('.sc-order')}.value = 'name'; {find('.sc-order')}.dispatchEvent(new Event('change'))")
        tab.page.run("new Promise((go) => setTimeout(go, 500))")
        assert tab.page.run("document.querySelectorAll('.sc-card').length") == 0
    tab.wait_for_card("shelf/dunes")
    tab.wait_for_card("landscapes", there=False)
    tab.search(".sc-search input", "")
    tab.wait_for_card("landscapes")
    # The trash too: it offers nothing to remove before it is known.
    tab.page.run("app.extensionManager.sidebarTab.toggleSidebarTab('streamcache-caches')")
    tab.page.run(
        "import('/extensions/streamcache/caches/panel.js').then(({CachesPanel}) => (window.Panel = CachesPanel))"
    )
    with tab.page.held("**/streamcache/caches"):
        tab.page.run("window.apart = document.body.appendChild(document.createElement('div'))")
        tab.page.run("window.panel = new Panel(window.apart); panel.show('trash')")
        assert tab.page.run("[...window.apart.querySelectorAll('.danger')].every((each) => !each.checkVisibility())")
    tab.page.run("panel.show('list'); panel.destroy(); window.apart.remove()")
    tab.open()


def test_searches_and_buckets_filter_samples(tab: CacheTab, root: Path):
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
    assert tab.wait_for_labels()[0] == "1: sample number 0"
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
    assert tab.page.run(asked) <= 8
    tab.page.run("document.querySelector('.sc-grid').focus()")
    tab.page.press("End")
    tab.page.wait_for(f"{TILES}.some((tile) => tile.dataset.label === 'sample number {MANY - 1}')")
    active = "document.getElementById(document.querySelector('.sc-grid').getAttribute('aria-activedescendant'))"
    assert tab.page.run(f"{active}.getAttribute('aria-label')") == f"{MANY:,}: sample number {MANY - 1}"
    assert tab.page.run(f"document.querySelectorAll('{PANEL} *').length") <= 2000
    tab.page.wait_for(f"{TILES}.every((tile) => tile.firstChild.naturalWidth > 0)")
    tab.shot("many")


def test_thumbnails_load_while_scrolling_slowly(tab: CacheTab):
    tab.show("many")
    script = """(async () => {
      const grid = document.querySelector('.sc-grid');
      for (let step = 0; step < 60; step += 1) {
        grid.scrollTop += 20;
        await new Promise(requestAnimationFrame);
      }
      const tiles = [...document.querySelectorAll('.sc-tile:not([hidden])')];
      return tiles.filter((tile) => tile.firstChild.hasAttribute('src')).length / tiles.length;
    })()"""
    assert tab.page.run(script) > 0.8


def test_the_scroll_bar_reaches_ten_million_samples(tab: CacheTab):
    """Taller than browsers can lay out: both ends are reached, a large jump is scaled, a small step is not."""
    script = """import('/extensions/streamcache/caches/samples/tall_scroll.js').then(({TallScroll, LIMIT}) => {
      const scroll = new TallScroll();
      scroll.resize(1e9, 1000);
      const at = (bar) => (scroll.move(bar), scroll.top);
      return [scroll.barHeight <= LIMIT, at(LIMIT / 2), at(LIMIT / 2 + 30) - at(LIMIT / 2), at(LIMIT - 1000), at(0)];
    })"""
    within, middle, step, end, top = tab.page.run(script)
    assert within and abs(middle / 1e9 - 0.5) < 0.001 and step == 30 and end == 1e9 - 1000 and top == 0


def test_settings_of_units_and_thumbnails_apply_at_once(tab: CacheTab):
    setting = "app.extensionManager.setting.set('StreamCache.%s', %s)"
    size = f"{tab.card('landscapes')}.textContent"
    tab.page.wait_for(f"{size}.includes('21.3 MB')")
    width = f"{TILES}[0]?.getBoundingClientRect().width"
    try:
        tab.page.run(setting % ("Units", "'MiB'"))
        tab.page.wait_for(f"{size}.includes('20.3 MiB')")
        tab.show("landscapes")
        assert 88 <= tab.page.run(width) < 130
        tab.page.run(setting % ("ThumbnailSize", 136))
        tab.page.wait_for(f"{width} >= 136")
    finally:
        tab.page.run(setting % ("Units", "'MB'"))
        tab.page.run(setting % ("ThumbnailSize", 88))


@pytest.mark.parametrize("modern", [False, True], ids=["classic", "nodes 2.0"])
def test_a_cache_dropped_onto_the_canvas_becomes_a_load_node(tab: CacheTab, modern: bool):
    tab.page.run(f"app.extensionManager.setting.set('Comfy.VueNodes.Enabled', {json.dumps(modern)})")
    tab.page.run("app.rootGraph.clear()")
    tab.wait_for_card("shelf/dunes")
    tab.page.drag(tab.card("shelf/dunes"), 1000, 500)
    tab.page.wait_for(f"{LOADED}.join() === 'shelf/dunes'", 10)
    x, y = tab.page.run("app.canvasPosToClientPos([...app.rootGraph.nodes[0].pos])")
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
    tab.page.run("app.rootGraph.clear()")
    tab.page.run("app.extensionManager.setting.set('Comfy.VueNodes.Enabled', false)")


def test_a_node_is_added_at_a_free_place(tab: CacheTab):
    tab.page.run("app.rootGraph.clear()")
    tab.wait_for_card("landscapes")
    for _ in range(4):
        tab.page.click(f"{tab.card('landscapes')}.querySelector('.pi-plus-circle').parentElement")
    tab.page.wait_for("app.rootGraph.nodes.length === 4")
    boxes = tab.page.run("app.rootGraph.nodes.map((node) => [...node.pos, ...node.size])")
    for one, (x, y, width, height) in enumerate(boxes):
        for left, top, wide, high in boxes[:one]:
            apart = x >= left + wide or left >= x + width
            assert apart or y - 30 >= top + high or top - 30 >= y + height
    tab.page.run("app.rootGraph.clear()")


def test_two_lines_of_a_long_caption_are_fully_visible(tab: CacheTab):
    tab.show("landscapes")
    tab.page.run("document.querySelector('.sc-grid').focus()")
    tab.page.wait_for("document.querySelector('.sc-caption-text')")
    tab.page.run("document.querySelector('.sc-caption-text').textContent = 'a long caption '.repeat(40)")
    edge = "document.querySelector('%s').getBoundingClientRect().bottom"
    assert tab.page.run(f"{edge % '.sc-caption'} - {edge % '.sc-caption-text'}") >= 4
    height = tab.page.run("document.querySelector('.sc-caption-text').clientHeight")
    assert 28 <= height <= 40, "just two lines"


def test_details_of_a_wide_tab_scroll_downwards_only(tab: CacheTab):
    tab.show("landscapes")
    tab.page.click("document.querySelector('#sc-tab-about')")
    tab.wait_for_text(".sc-about", "Latents")
    panel = f"document.querySelector('{PANEL}')"
    wide = "document.querySelector('.sc-about')"
    stage = "document.querySelector('.sc-stage')"  # of a low panel, all below the title scrolls
    try:
        tab.page.run(f"Object.assign({panel}.style, {{width: '1040px', height: '420px'}})")
        tab.page.wait_for(f"getComputedStyle({wide}.firstChild).columnCount === '2'", 10)
        tab.page.wait_for(f"{stage}.scrollHeight > {stage}.clientHeight", 10)
        for element in (wide, stage):
            assert tab.page.run(f"{element}.scrollWidth <= {element}.clientWidth")
    finally:
        tab.page.run(f"{panel}.removeAttribute('style')")
        tab.page.click("document.querySelector('#sc-tab-samples')")


def test_everything_works_with_the_keyboard_alone(tab: CacheTab):
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


def test_without_caches_the_tab_explains_how_to_make_one(tab: CacheTab, root: Path):
    aside = root.rename(root.with_name("aside"))
    try:
        tab.refresh()
        tab.wait_for_text(".sc-empty", "No dataset caches yet")
        tab.shot("empty")
        tab.press_button("Open the example workflow")
        tab.page.wait_for("app.rootGraph.nodes.some((node) => node.type === 'StreamCacheCacheSave')")
    finally:
        shutil.rmtree(root, ignore_errors=True)
        aside.rename(root)
    tab.refresh()
    tab.wait_for_card("landscapes")
