"""Room for the pictures at every window size, long names, signs of work, notices that end, caches that runs made."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamcache.tests.browser.cache_tab import PANEL, CacheTab, find
from streamcache.tests.browser.folder_page import BAR, DIALOG, FIELD, GRID, FolderPage
from streamcache.tests.browser.gallery import write_landscapes
from streamcache.tests.browser.intake import row, write_files
from streamcache.tests.browser.test_cache_upkeep import JOB, TELL, remove
from streamcache.tests.browser.training_page import TrainingPage
from streamcache.tests.host.server import Server

pytestmark = [pytest.mark.browser, pytest.mark.both_front_ends]
LONG = "a_name_of_a_dataset_that_is_much_longer_than_any_sidebar_is_wide_version_%04d"
# Window → the least height of the visible part of the grid. The last ones are windows at a zoom of 200%.
SIZES = {
    (960, 540): 200,
    (1280, 720): 300,
    (1920, 1080): 400,
    (3840, 2160): 1400,
    (960, 500): 200,
    (640, 360): 200,
    (480, 270): 160,
}
VISIBLE = """(() => {
  const grid = document.querySelector('.sc-grid');
  grid.scrollIntoView({block: 'nearest'});
  const [a, b] = [grid, document.querySelector('.sc-stage')].map((each) => each.getBoundingClientRect());
  return Math.min(a.bottom, b.bottom, innerHeight) - Math.max(a.top, b.top, 0);
})()"""
WIDTH = "parseFloat(getComputedStyle(%s, '::%s').width)"
FRAMES = "new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
# Elements in one that could be scrolled sideways.
WIDE = """[...document.querySelectorAll('%s')].flatMap((each) => [each, ...each.querySelectorAll('*')]).filter(
  (each) => each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0 && each.checkVisibility() &&
    ['auto', 'scroll'].includes(getComputedStyle(each).overflowX)
).map((each) => each.className)"""
INSIDE = """(({left, right, top, bottom}) => left >= 0 && top >= 0 && right <= innerWidth + 1 &&
  bottom <= innerHeight + 1 && right > left && bottom > top)(%s.getBoundingClientRect())"""
SHOWS_WORK = "getComputedStyle(document.querySelector('.sc-panel'), '::after').content !== 'none'"
LISTED = "app.rootGraph.nodes[0].widgets.find((each) => each.name === 'name').options.values"


@pytest.mark.parametrize("palette", ["dark", "light"])
def test_k5_there_are_pictures_at_every_window_size(tab: CacheTab, palette: str):
    page = tab.page
    page.run(f"app.extensionManager.setting.set('Comfy.ColorPalette', '{palette}')")
    try:
        for (width, height), least in SIZES.items():
            page.resize(width, height)
            tab.reopen()
            tab.open()
            tab.show("landscapes")
            # Jobs of other tests need room too.
            page.run("document.querySelectorAll('.sc-job .pi-times').forEach((sign) => sign.parentElement.click())")
            page.run(FRAMES)
            assert page.run(VISIBLE) >= least, f"{width}×{height}"
            tab.shot(f"space_{palette}_{width}x{height}")
            wide = "(({scrollWidth, clientWidth}) => scrollWidth <= clientWidth)"
            assert page.run(f"{wide}(document.querySelector('.sc-panel'))")
    finally:
        page.resize(1500, 950)
        page.run("app.extensionManager.setting.set('Comfy.ColorPalette', 'dark')")


def test_long_names_are_cut_in_the_middle(tab: CacheTab, root: Path):
    names = [LONG % number for number in (1, 2)]
    for name in names:
        write_landscapes(root / name, 2)
    tab.refresh()
    for name in names:
        tab.wait_for_card(name)
        shown = f"{tab.card(name)}.querySelector('.sc-card-name')"
        assert tab.page.run(f"[{shown}.textContent, {shown}.title]") == [name, name]
        assert tab.page.run(f"{shown}.dataset.start + {shown}.dataset.end") == name
        assert tab.page.run(f"{shown}.dataset.end") == name[-10:]
        start, end = (tab.page.run(WIDTH % (shown, part)) for part in ("before", "after"))
        assert start > 20 and end > 20 and start + end <= tab.page.run(f"{shown}.clientWidth") + 1, "both ends are seen"
    for name in names:
        remove(root / name)
    tab.refresh()
    tab.wait_for_card(names[0], there=False)


@pytest.fixture
def long_names(tab: CacheTab, server: Server) -> Iterator[FolderPage]:
    """A folder of images with long names, in the list."""
    folder = write_files(server.base / "input" / (LONG % 3), 12, stem=LONG % 4)
    tab.refresh()
    yield FolderPage(tab)
    tab.page.resize(1500, 950)
    tab.open()
    shutil.rmtree(folder)


def test_k5_an_image_folder_is_usable_at_every_window_size(tab: CacheTab, long_names: FolderPage):
    page, view = tab.page, long_names
    for (width, height), least in SIZES.items():
        page.resize(width, height)
        size = f"{width}×{height}"
        tab.open()
        view.open(f"input/{LONG % 3}")
        page.run("document.querySelectorAll('.sc-job .pi-times').forEach((sign) => sign.parentElement.click())")
        page.run(FRAMES)
        assert page.run(VISIBLE) >= min(least, 400), size
        assert page.run(WIDE % ".sc-panel") == [], size
        page.run("document.querySelector('.sc-charts').open = true")
        page.wait_for("document.querySelector('[data-chart=lengths]')")
        assert page.run(WIDE % ".sc-panel") == [], f"{size}: charts"
        page.run("document.querySelector('.sc-charts').open = false")
        page.run("document.querySelector('.sc-curate .sc-tools .pi-filter').parentElement.click()")
        assert page.run(INSIDE % "document.querySelector('.sc-menu')"), f"{size}: the menu"
        page.press("Escape")
        page.run(f"{GRID}.focus()")
        page.press("Control+a")
        page.wait_for(f"!{BAR}.hidden")
        page.run(FRAMES)
        assert page.run(INSIDE % BAR), f"{size}: what can be done with a selection"
        tab.shot(f"curation_space_{width}x{height}")
        page.run(f"{BAR}.querySelector('[data-act=edit_captions]').click()")
        page.type("picture")
        view.wait_for_preview("12 captions change")
        assert page.run(INSIDE % find(".sc-dialog .primary", "Apply")), f"{size}: Apply"
        assert page.run(WIDE % "dialog.sc") == [], f"{size}: many captions"
        tab.shot(f"curation_space_bulk_{width}x{height}")
        page.press("Escape")
        page.run(f"{GRID}.focus()")
        page.press("Escape", "Home", "Enter")
        page.wait_for(f"{FIELD} && document.querySelector('.sc-picture-large').naturalWidth > 0")
        assert page.run(INSIDE % "document.querySelector('.sc-picture-large')"), f"{size}: the picture"
        assert page.run("document.querySelector('.sc-picture-large').clientHeight") >= 60, size
        assert page.run(WIDE % "dialog.sc") == [], f"{size}: an image"
        tab.shot(f"curation_space_image_{width}x{height}")
        view.close()


def test_k5_long_names_in_an_image_folder_are_cut_in_the_middle(tab: CacheTab, long_names: FolderPage):
    page, view, name = tab.page, long_names, LONG % 3

    def assert_cut(shown: str, name: str) -> None:
        assert page.run(f"{shown}.textContent") == name
        start, end = (page.run(WIDTH % (shown, part)) for part in ("before", "after"))
        assert start > 20 and end > 20 and start + end <= page.run(f"{shown}.clientWidth") + 1, "both ends are seen"

    view.open(f"input/{name}")
    assert_cut("document.querySelector('.sc-curate h2')", name)
    page.resize(640, 480)
    page.run(f"{GRID}.focus()")
    page.press("Control+a")
    page.wait_for(f"!{BAR}.hidden")
    page.run(f"{BAR}.querySelector('[data-act=edit_captions]').click()")
    page.type("picture")
    view.wait_for_preview("12 captions change")
    page.resize(480, 480)
    assert_cut("document.querySelector('.sc-changes .sc-middle')", f"{LONG % 4}00000.png")
    page.press("Escape")
    page.run(f"{GRID}.focus()")
    page.press("Escape", "Home", "Enter")
    page.wait_for(FIELD)
    assert_cut(f"{DIALOG}.querySelector('h2')", f"{LONG % 4}00000.png")
    view.close()
    page.resize(1500, 950)
    tab.open()
    page.wait_for(row(f"input/{name}"))
    assert_cut(f"{row(f'input/{name}')}.querySelector('.sc-card-name')", name)


def test_what_takes_long_shows_that_it_works(tab: CacheTab):
    tab.wait_for_card("landscapes")
    for address, act in {
        "**/streamcache/caches": tab.refresh,
        "**/streamcache/cache?**": lambda: tab.page.click(f"{tab.card('landscapes')}.querySelector('.sc-card-open')"),
        "**/streamcache/cache/samples?**": lambda: tab.search(".sc-samples input", "moon"),
    }.items():
        with tab.page.held(address):
            act()
            tab.page.wait_for(SHOWS_WORK, 30)
        tab.page.wait_for(f"!({SHOWS_WORK})", 30)


def test_a_job_that_went_well_ends_by_itself_and_a_problem_stays(tab: CacheTab):
    bad = {**JOB, "id": "bad", "name": "torn", "state": "done", "problem_count": 1, "counts": {}}
    bad["problems"] = [{"kind": "debris", "place": "x.tmp", "words": "12 bytes that nothing needs"}]
    for job in (bad, {**JOB, "id": "good", "name": "whole", "state": "done", "counts": {}}):
        tab.page.run(TELL % ("streamcache.job", json.dumps(job)))
    tab.wait_for_text(".sc-job.good", "whole: no problems found")
    tab.page.move_mouse(1200, 500)
    tab.page.wait_for("!document.querySelector('.sc-job.good')", 60)
    tab.wait_for_text(".sc-job.bad", "torn: 1 problem found")
    tab.page.click("document.querySelector('.sc-job.bad .pi-times').parentElement")


def test_caches_that_runs_made_are_grouped_and_not_offered_for_loading(tab: CacheTab, root: Path, server: Server):
    page = tab.page
    write_landscapes(root / "of_a_run", 2, **{"made for": "training of_a_run"})
    write_landscapes(root / "of_a_user", 2)
    server.client.get("/object_info/StreamCacheCacheLoad")
    tab.refresh()
    tab.wait_for_card("of_a_user")
    assert not page.run(f"Boolean({tab.card('of_a_run')})")
    page.click(find(".sc-run-caches summary"))
    tab.wait_for_card("of_a_run")
    page.click(find(".sc-run-caches summary"))
    tab.wait_for_card("of_a_run", there=False)
    page.run("app.rootGraph.clear(); void app.rootGraph.add(LiteGraph.createNode('StreamCacheCacheLoad'))")
    page.run("app.api.dispatchEvent(new CustomEvent('streamcache.caches'))")
    page.wait_for(f"{LISTED}.includes('of_a_user') && !{LISTED}.includes('of_a_run')")
    workflow = page.run("app.rootGraph.serialize()")
    workflow["nodes"][0]["widgets_values"] = ["of_a_run"]
    page.run(f"app.loadGraphData({json.dumps(workflow)}, true, true, null)")
    page.wait_for(f"{LISTED}.includes('of_a_run')")
    assert page.run("app.rootGraph.nodes[0].widgets.find((each) => each.name === 'name').value") == "of_a_run"
    page.run("app.rootGraph.clear()")
    for name in ("of_a_run", "of_a_user"):
        remove(root / name)
    tab.refresh()
    tab.wait_for_card("of_a_user", there=False)
    assert page.run(f"Boolean(document.querySelector('{PANEL}'))")


@pytest.mark.parametrize("vue", [False, True], ids=["classic", "vue"])
def test_a_summary_stays_after_a_switch_of_workflows_and_is_whole(training: TrainingPage, vue: bool):
    page, name = training.page, f"summed_{vue}".lower()
    training.close_tab()
    training.set(vue=vue)
    page.run("app.rootGraph.clear(); void app.rootGraph.add(LiteGraph.createNode('StreamCacheCacheSave'))")
    page.run(f"app.rootGraph.nodes[0].widgets[0].value = '{name}'")
    buckets = {f"{512 + 64 * n}×512": 40 - n for n in range(5)}
    facts = {"name": name, "samples": 182_340, "bytes": 12_345_678, "buckets": buckets}
    facts |= {"encoded": {"latent": 123_456}, "reused": {"latent": 58_884}}
    facts["excluded"] = [{"source": "broken.png", "reason": "the file ends too early"}]
    page.run(f"app.rootGraph.nodes[0].onExecuted({{streamcache: [{json.dumps(facts)}]}})")
    first = page.run("app.rootGraph.serialize()")
    for _ in range(2):
        page.wait_for("document.querySelector('.sc-summary')?.innerText.includes('123,456')")
        whole = "(({scrollHeight, clientHeight}) => scrollHeight <= clientHeight)"
        page.wait_for(f"{whole}(document.querySelector('.sc-summary').parentElement)", 30)
        low = "document.querySelector('.sc-summary').getBoundingClientRect().bottom"
        page.wait_for(
            f"{low} <= document.querySelector('.sc-summary').parentElement.getBoundingClientRect().bottom", 30
        )
        other = {**first, "nodes": [], "links": []}
        page.run(f"app.loadGraphData({json.dumps(other)}, true, true, null)")
        page.wait_for("!document.querySelector('.sc-summary')?.checkVisibility()")
        page.run(f"app.loadGraphData({json.dumps(first)}, true, true, null)")
    page.wait_for("document.querySelector('.sc-summary')?.innerText.includes('123,456')")


@pytest.mark.parametrize("vue", [False, True], ids=["classic", "vue"])
def test_a_summary_never_appears_on_the_node_of_another_workflow(training: TrainingPage, vue: bool):
    """A job ends while another workflow is open, whose node has the same id."""
    page, name = training.page, f"own_{vue}".lower()
    training.close_tab()
    training.set(vue=vue)
    page.run("app.rootGraph.clear(); void app.rootGraph.add(LiteGraph.createNode('StreamCacheCacheSave'))")
    page.run(f"app.rootGraph.nodes[0].widgets[0].value = '{name}'")
    page.wait_for("!document.querySelector('.sc-summary')?.checkVisibility()")
    first = page.run("app.rootGraph.serialize()")
    page.run("app.rootGraph.nodes[0].widgets[0].value = 'foreign'")
    second = page.run("app.rootGraph.serialize()")
    assert first["nodes"][0]["id"] == second["nodes"][0]["id"]
    facts = {"name": name, "samples": 182_340, "bytes": 12_345_678, "buckets": {"512×512": 182_340}}
    page.run(f"app.rootGraph.nodes[0].onExecuted({{streamcache: [{json.dumps(facts)}]}})")
    for _ in range(2):
        page.run(FRAMES)
        assert not page.run("Boolean(document.querySelector('.sc-summary')?.checkVisibility())")
        page.run(f"app.loadGraphData({json.dumps(first)}, true, true, null)")
        page.wait_for("document.querySelector('.sc-summary')?.innerText.includes('182,340')")
        page.run(f"app.loadGraphData({json.dumps(second)}, true, true, null)")
        page.wait_for("!document.querySelector('.sc-summary')?.checkVisibility()")
    page.run("app.rootGraph.clear()")
