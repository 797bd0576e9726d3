"""Everybody can use the tabs, dialogs, menus and panels: axe-core finds no defect, the focus goes through in order, and
keys that are pressed in them do not reach the nodes on the canvas."""

import itertools
import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamcache.tests.browser.axe import violations
from streamcache.tests.browser.cache_tab import TILES, CacheTab, find
from streamcache.tests.browser.chromium import Page
from streamcache.tests.browser.folder_page import BAR, COUNT, FIELD, GRID, FolderPage
from streamcache.tests.browser.gallery import MADE, write_landscapes
from streamcache.tests.browser.intake import write_files
from streamcache.tests.browser.test_cache_upkeep import JOB, TELL, remove
from streamcache.tests.browser.training_page import NODE, TrainingPage, write_run
from streamcache.tests.host.server import Server

pytestmark = [pytest.mark.browser, pytest.mark.both_front_ends]
PALETTES = pytest.mark.parametrize("palette", ["dark", "light"])
SETTLED = "new Promise((go) => setTimeout(go, 700))"  # colors that fade would be measured half way
# What keys could change on the canvas: nodes, the selection, modes, groups, zoom, the lock.
CANVAS = """JSON.stringify([
  app.rootGraph.nodes.map((node) => [node.id, node.mode, node.flags]),
  app.canvas.selectedItems.size, app.rootGraph.groups.length,
  app.canvas.ds.scale, app.canvas.ds.offset, app.canvas.read_only
])"""
PRESSED = (
    *(
        "Delete",
        "Backspace",
        "Control+a",
        "Control+c",
        "Control+v",
        "Control+Shift+v",
        "Control+x",
        "Control+z",
        "Control+y",
    ),
    *("Control+b", "Control+m", "Control+g", "Control+Shift+e", "Alt+c", "Alt+=", ".", "p", "h", "v"),
)


@pytest.fixture(params=["dark", "light"])
def colored(request: pytest.FixtureRequest, tab: CacheTab) -> Iterator[CacheTab]:
    """The Datasets tab in a palette."""
    tab.page.run(f"app.extensionManager.setting.set('Comfy.ColorPalette', '{request.param}')")
    tab.page.run(SETTLED)
    yield tab
    tab.page.run("app.extensionManager.setting.set('Comfy.ColorPalette', 'dark')")


def test_k5_axe_finds_nothing_in_the_datasets_tab(colored: CacheTab, root: Path):
    tab, page = colored, colored.page
    write_landscapes(root / "seen", 8, encode=MADE)
    write_landscapes(root / "made", 2, **{"made for": "training made"})
    write_landscapes(root / "thrown_away", 2)
    tab.refresh()
    tab.wait_for_card("seen")
    page.click(find(".sc-run-caches summary"))
    tab.wait_for_card("made")
    assert violations(page, ".sc-panel") == [], "the list"
    page.click(find(".sc-run-caches summary"))
    page.click(f"{tab.card('seen')}.querySelector('.pi-ellipsis-v').parentElement")
    page.wait_for("document.querySelector('.sc-menu')")
    assert violations(page, ".sc-menu") == [], "the menu"
    page.press("Escape")
    for action in ("Rename…", "Duplicate…"):
        tab.choose("seen", action)
        page.wait_for("document.querySelector('dialog.sc')")
        assert violations(page, "dialog.sc") == [], action
        page.press("Escape")
    (root / "seen" / ".dataset.json.99.tmp").write_bytes(bytes(12_345))
    tab.choose("seen", "Clean…")
    page.wait_for("document.querySelector('dialog.sc .sc-removal')")
    assert violations(page, "dialog.sc") == [], "cleaning"
    page.press("Escape")
    tab.choose("thrown_away", "Move to the trash")
    tab.wait_for_card("thrown_away", there=False)
    assert violations(page, ".sc-panel") == [], "a notice with a button"
    page.click("[...document.querySelectorAll('.sc-foot .sc-button')].find((each) => each.checkVisibility())")
    tab.wait_for_card("thrown_away")
    assert violations(page, ".sc-panel") == [], "the trash"
    tab.open()
    # Not a job of the server: it would show it to the pages of other tests too.
    damage = [{"kind": "damaged", "place": "shards/s", "words": "sample 1 (a.png): its stored bytes are damaged"}]
    job = {**JOB, "id": secrets.token_hex(4), "name": "seen", "state": "done", "counts": {"dropped": 1}}
    page.run(TELL % ("streamcache.job", json.dumps({**job, "problems": damage, "problem_count": 1})))
    page.wait_for("document.querySelector('.sc-job.bad .sc-remedy')")
    assert violations(page, ".sc-panel") == [], "a job"
    tab.press_button("Repair…")
    page.wait_for("document.querySelector('dialog.sc li')")
    assert violations(page, "dialog.sc") == [], "repair"
    page.press("Escape")
    page.run("document.querySelectorAll('.sc-job .pi-times').forEach((sign) => sign.parentElement.click())")
    tab.show("seen")
    assert violations(page, ".sc-panel") == [], "samples"
    page.click("document.querySelector('.sc-tile')")
    page.wait_for("document.querySelector('dialog.sc-sample img').naturalWidth")
    assert violations(page, "dialog.sc") == [], "a sample"
    page.press("Escape")
    for name in ("about", "excluded"):
        page.click(f"document.querySelector('#sc-tab-{name}')")
        page.wait_for(f"document.querySelector('#sc-tab-{name}').ariaSelected === 'true'")
        page.run(SETTLED)
        assert violations(page, ".sc-panel") == [], name
    page.click("document.querySelector('#sc-tab-samples')")
    tab.open()
    for name in ("seen", "made"):
        remove(root / name)
    tab.refresh()
    tab.wait_for_card("seen", there=False)


@pytest.fixture
def pictured(tab: CacheTab, server: Server) -> Iterator[tuple[FolderPage, Path]]:
    """A folder of images, open in the page."""
    folder = write_files(server.base / "input" / "pictured", 12)
    tab.refresh()
    page = FolderPage(tab)
    page.open("input/pictured")
    yield page, folder
    tab.open()
    shutil.rmtree(folder)


def test_k5_axe_finds_nothing_in_an_image_folder(colored: CacheTab, pictured: tuple[FolderPage, Path]):
    tab, page, (view, folder) = colored, colored.page, pictured
    assert violations(page, ".sc-panel") == [], "the folder"
    page.run("document.querySelector('.sc-charts').open = true")
    page.wait_for("document.querySelector('[data-chart=tags]')?.checkVisibility()")
    assert violations(page, ".sc-panel") == [], "its charts"
    page.click("document.querySelector('.sc-charts [data-value=\"picture 3\"]')")
    view.wait_for_count("1 of 12 images")
    page.run(SETTLED)
    assert violations(page, ".sc-panel") == [], "a filter"
    page.click("document.querySelector('.sc-filter-chips button')")
    page.run("document.querySelector('.sc-charts').open = false")
    view.wait_for_count("12 images")
    for sign in ("filter", "sort-alt"):
        page.click(f"document.querySelector('.sc-curate .sc-tools .pi-{sign}').parentElement")
        page.wait_for("document.querySelector('.sc-menu')")
        assert violations(page, ".sc-menu") == [], sign
        page.press("Escape")
    (folder / "broken.png").write_bytes(b"no image")
    page.run(TELL % ("streamcache.folders", "{}"))
    page.wait_for(f"{COUNT} === '13 images'", 60)
    page.run(f"{GRID}.focus()")
    page.press("Control+a")
    page.wait_for(f"!{BAR}.hidden")
    page.run(SETTLED)
    assert violations(page, ".sc-panel") == [], "a selection"
    view.act("edit_captions")
    view.fill("find", "picture")
    view.fill("by", "photo")
    view.wait_for_preview("12 captions change")
    assert violations(page, "dialog.sc") == [], "many captions"
    page.press("Escape")
    view.act("set_repeats")
    page.wait_for("document.querySelector('dialog.sc input')")
    assert violations(page, "dialog.sc") == [], "repeats"
    page.press("Escape")
    page.run(f"{GRID}.focus()")
    page.press("Escape", "Home", "Enter")
    page.wait_for(FIELD)
    assert violations(page, "dialog.sc") == [], "an image"
    view.write("another caption")
    view.save()
    view.write("a third caption")
    (folder / "00000.txt").write_text("changed meanwhile\n" * 30)
    page.press("Control+Enter")
    page.wait_for("document.querySelector('.sc-versions')")
    page.run(SETTLED)
    assert violations(page, "dialog.sc") == [], "a conflict"
    page.click("document.querySelector('.sc-take-theirs')")
    view.close()
    page.wait_for("document.querySelector('.sc-update.primary')")
    page.run(SETTLED)
    assert violations(page, ".sc-panel") == [], "an edited folder"
    page.run(f"{GRID}.focus()")
    page.press("End", "Enter")
    page.wait_for("document.querySelector('.sc-image .sc-notice.bad')")
    assert violations(page, "dialog.sc") == [], "a broken image"
    view.close()
    tab.shot("curation_accessible")


@PALETTES
def test_k5_axe_finds_nothing_in_the_training_tab_and_on_nodes(training: TrainingPage, server: Server, palette: str):
    page = training.page
    for name in ("first_seen", "second_seen"):
        write_run(server, name, [0.5, 0.4, 0.3])
    training.set(vue=False, palette=palette)
    training.build("first_seen")
    workflow = page.run("JSON.stringify(app.rootGraph.serialize())")
    page.run("import('/extensions/streamcache/training/runs.js').then(({store}) => store.load())")
    page.run(f"app.loadGraphData({workflow}, true, true, null)")
    page.wait_for(f"{NODE}?.innerText.includes('first_seen')")
    training.open_tab()
    training.choose("first_seen", "second_seen")
    page.run(SETTLED)
    assert violations(page, ".sc-panel", ".sc-node") == []
    training.choose("first_seen")
    page.run(SETTLED)
    assert violations(page, ".sc-panel") == []
    training.set(vue=True)
    page.wait_for(f"{NODE}?.checkVisibility()")
    page.run(SETTLED)
    assert violations(page, ".sc-node") == []
    training.set(vue=False, palette="dark")


def test_keys_in_the_tabs_never_reach_the_canvas(tab: CacheTab):
    page = tab.page
    page.run("app.rootGraph.clear()")
    for _ in range(2):
        page.run("void app.rootGraph.add(LiteGraph.createNode('StreamCacheCacheLoad'))")
    tab.show("landscapes")
    page.run("app.canvas.selectItems([app.rootGraph.nodes[0]])")
    before = page.run(CANVAS)
    for focused in ("document.querySelector('.sc-grid')", "document.querySelector('#sc-tab-samples')"):
        for key in PRESSED:
            page.run(f"{focused}.focus()")
            page.press(key)
            page.run(
                "new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(go, 50))))"
            )
            assert page.run(CANVAS) == before, key
    page.run("app.canvas.canvas.focus?.(); document.activeElement.blur(); app.rootGraph.clear()")


def test_keys_in_an_image_folder_never_reach_the_canvas(pictured: tuple[FolderPage, Path]):
    page = pictured[0].page
    page.run("app.rootGraph.clear()")
    for _ in range(2):
        page.run("void app.rootGraph.add(LiteGraph.createNode('StreamCacheCacheLoad'))")
    page.run("app.canvas.selectItems([app.rootGraph.nodes[0]])")
    before = page.run(CANVAS)
    summary = "document.querySelector('.sc-charts summary')"
    for focused in (GRID, summary, "document.querySelector('.sc-update')"):
        for key in PRESSED:
            page.run(f"{focused}.focus()")
            page.press(key)
            page.run(
                "new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(go, 50))))"
            )
            assert page.run(CANVAS) == before, key
    page.run("document.activeElement.blur(); app.rootGraph.clear()")


def test_keys_on_the_panel_of_a_node_do_not_delete_it(training: TrainingPage, server: Server):
    page = training.page
    training.close_tab()
    training.set(vue=False)
    write_run(server, "kept_node", [0.5, 0.4])
    node = training.build("kept_node")
    workflow = page.run("JSON.stringify(app.rootGraph.serialize())")
    page.run("import('/extensions/streamcache/training/runs.js').then(({store}) => store.load())")
    page.run(f"app.loadGraphData({workflow}, true, true, null)")
    page.wait_for(f"{NODE}?.querySelector('.sc-chart')?.checkVisibility()")
    page.run(f"app.canvas.selectItems([app.rootGraph.getNodeById({node})])")
    for key in ("Delete", "Backspace", "Control+x"):
        page.run(f"{NODE}.querySelector('.sc-chart').focus()")
        page.press(key)
        page.run("new Promise((go) => setTimeout(go, 100))")
        assert page.run(f"Boolean(app.rootGraph.getNodeById({node}))"), key


def tab_to_the_pictures(page: Page, most: int) -> list[float]:
    """Press Tab from the head of the panel to the pictures, which are the last. Returns how high each stop is."""
    page.run("document.querySelector('.sc-head button').focus()")
    tops = []
    for _ in range(most):
        tops.append(page.run("document.activeElement.getBoundingClientRect().top"))
        assert page.run("Boolean(document.activeElement.closest('.sc-panel'))")
        if page.run("document.activeElement.matches('.sc-grid')"):
            break
        page.press("Tab")
    assert page.run("document.activeElement.matches('.sc-grid')"), "the pictures are the last"
    return tops


def test_the_focus_goes_through_a_cache_from_top_to_bottom(tab: CacheTab):
    page = tab.page
    tab.show("landscapes")
    tops = tab_to_the_pictures(page, 7)
    assert tops == sorted(tops) and len(tops) >= 5


def test_k5_the_focus_goes_through_an_image_folder_and_its_dialog_in_order(pictured: tuple[FolderPage, Path]):
    view, page = pictured[0], pictured[0].page
    tops = tab_to_the_pictures(page, 14)
    assert len(tops) >= 8 and all(after > before - 20 for before, after in itertools.pairwise(tops)), tops
    page.press("Home", "Enter")
    page.wait_for(f"document.activeElement === {FIELD}")
    order = []
    for _ in range(12):
        page.press("Tab")
        order.append(page.run("document.activeElement.closest('dialog.sc') ? document.activeElement.className : ''"))
    assert all(name == "" or name.startswith("sc-") for name in order)
    places = [next(at for at, name in enumerate(order) if kind in name) for kind in ("sc-exclude", "sc-repeats")]
    assert places == sorted(places), order
    view.close()
    assert page.run(f"document.activeElement === {GRID}"), "closing returns to the pictures"
    assert page.run(f"{TILES}.length") > 0
