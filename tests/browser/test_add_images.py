"""Adding images from the page: real files, folders and zips, dropped onto the tab or a node, or chosen."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamcache.tests.browser.cache_tab import BUTTON, CacheTab, find
from streamcache.tests.browser.chromium import Chromium
from streamcache.tests.browser.intake import ADDED, DIALOG, FIELD, accept, dismiss, row, wait_until_added, write_files
from streamcache.tests.dataset_cache.intake.zips import picture, write_zip
from streamcache.tests.host.asking import get
from streamcache.tests.host.server import Server

pytestmark = pytest.mark.browser
NODES = "app.rootGraph.nodes.filter((node) => node.type === 'StreamCacheImageFolder')"
FOLDERS = f"{NODES}.map((node) => node.widgets[0].value)"
ROWS = "[...document.querySelectorAll('.sc-folder')].map((each) => each.dataset.name)"
BOX = "(({x, y, width, height}) => [x, y, width, height])(%s.getBoundingClientRect())"
PAUSE = "new Promise((go) => setTimeout(go, 50))"
ADD_NODE = """(() => {
  app.rootGraph.clear();
  const node = LiteGraph.createNode('StreamCacheImageFolder');
  node.pos = [200, 200];
  app.rootGraph.add(node);
  app.canvas.ds.scale = 1;
  app.canvas.ds.offset = [500, 100];
  app.canvas.setDirty(true, true);
})()"""
SCRIPT = "<img src=x onerror=window.hacked=1>"


@pytest.fixture
def datasets(tab: CacheTab, server: Server) -> Iterator[Path]:
    folder = server.base / "input" / "datasets"
    shutil.rmtree(folder, ignore_errors=True)
    dismiss(tab)
    tab.refresh()
    tab.page.wait_for(f"!{ROWS}.some((name) => name.includes('datasets'))")
    yield folder
    dismiss(tab)


def panel_place(tab: CacheTab) -> tuple[float, float]:
    box = tab.page.run(BOX % "document.querySelector('.sc-panel')")
    return box[0] + box[2] / 2, box[1] + box[3] - 120


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def wait_until_gone(tab: CacheTab, datasets: Path) -> None:
    """Nothing of an upload may stay. The request that removes it is still on its way."""
    for _ in range(400):
        if os.listdir(datasets) == []:
            return
        tab.page.run(PAUSE)
    raise AssertionError(names(datasets))


@pytest.mark.both_front_ends
def test_k2_a_folder_dropped_onto_the_tab_becomes_a_folder_with_captions(tab: CacheTab, datasets: Path, tmp_path: Path):
    source = write_files(tmp_path / "my cats", 30)
    write_files(source / "sub", 2, start=90)
    (source / "notes.docx").write_bytes(b"x")
    (source / ".DS_Store").write_bytes(b"x")
    tab.page.drop_files(*panel_place(tab), source)
    tab.page.wait_for(f"{FIELD}?.value === 'my cats'")
    text = tab.page.run(f"{DIALOG}.textContent")
    assert "32 images · 32 captions" in text and "1 other file is left out: notes.docx" in text
    assert "A new folder: input/datasets/my cats" in text
    tab.shot("add_images_dialog")
    accept(tab)
    wait_until_added(tab, "input/datasets/my cats: 32 images · 32 captions")
    tab.page.wait_for(f"{ADDED}.textContent.includes('notes.docx')")
    assert len(names(datasets / "my cats")) == 64 and os.listdir(datasets) == ["my cats"]
    assert (datasets / "my cats" / "sub" / "00090.txt").read_text() == "picture 90"
    tab.page.wait_for(f"{row('input/datasets/my cats')}?.textContent.includes('32 images · 32 with captions')")
    images = f"[...{row('input/datasets/my cats')}.querySelectorAll('img')]"
    tab.page.wait_for(f"{images}.length === 4 && {images}.every((each) => each.naturalWidth > 0)")
    tab.shot("add_images_done")
    tab.page.run("app.rootGraph.clear()")
    tab.press_button("Use it on the canvas")
    tab.page.wait_for(f"{FOLDERS}.join() === 'input/datasets/my cats'")


@pytest.mark.both_front_ends
@pytest.mark.parametrize("vue", [False, True], ids=["classic", "nodes_2"])
def test_k2_files_dropped_onto_the_node_set_its_folder(tab: CacheTab, datasets: Path, tmp_path: Path, vue: bool):
    page = tab.page
    page.run(f"app.extensionManager.setting.set('Comfy.VueNodes.Enabled', {json.dumps(vue)})")
    page.run(ADD_NODE)
    source = write_files(tmp_path / "files", 3)
    if vue:
        page.wait_for("document.querySelector('[data-node-id]')?.checkVisibility()")
        box = "document.querySelector('[data-node-id]').getBoundingClientRect()"
        x, y = page.run(f"(() => {{ const b = {box}; return [b.x + b.width / 2, b.y + 12] }})()")
    else:
        page.wait_for("!document.querySelector('[data-node-id]')")
        x, y = page.run("app.canvasPosToClientPos([300, 190])")
    page.drop_files(x, y, *sorted(source.iterdir()))
    page.wait_for(f"{FIELD}?.value")
    accept(tab, f"node set {vue}")
    wait_until_added(tab, "3 images · 3 captions")
    page.wait_for(f"{FOLDERS}.join() === 'input/datasets/node set {vue}'")
    assert page.run("app.rootGraph.nodes.length") == 1, "ComfyUI has not opened the images as well"
    values = "app.rootGraph.nodes[0].widgets[0].options.values"
    page.wait_for(f"{values}.includes('input/datasets/node set {vue}')")
    tab.shot(f"add_images_node_{vue}")
    page.run("app.extensionManager.setting.set('Comfy.VueNodes.Enabled', false)")
    page.run("app.rootGraph.clear()")


def test_k2_a_zip_is_added_and_bad_files_are_named(tab: CacheTab, datasets: Path, tmp_path: Path):
    files = {f"birds/{n}.png": picture(n) for n in range(5)} | {"birds/1.txt": b"one", "birds/bad.png": b"text"}
    files |= {"birds/empty.jpg": b"", "../evil.png": picture(1), f"birds/{'x' * 10}{SCRIPT[:4]}.exe": b"x"}
    tab.page.drop_files(*panel_place(tab), write_zip(tmp_path / "birds.zip", files))
    tab.page.wait_for(f"{FIELD}?.value === 'birds'")
    accept(tab)
    wait_until_added(tab, "5 images · 1 caption")
    text = tab.page.run(f"{ADDED}.textContent")
    assert "4 files were not added" in text
    assert "bad.png not an image that Pillow can read" in text and "empty.jpg the file is empty" in text
    assert "../evil.png" in text
    assert names(datasets) == sorted([*(f"birds/{n}.png" for n in range(5)), "birds/1.txt"])
    tab.shot("add_images_zip")


def test_names_with_markup_are_shown_as_text(tab: CacheTab, datasets: Path, tmp_path: Path):
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "good &amp; <b>.txt").write_text("x")
    (odd / f"{SCRIPT.replace('/', '')}.exe").write_bytes(b"x")
    (odd / f"{SCRIPT}.png").write_bytes(picture(1))
    (odd / "'&quot;.png").write_bytes(picture(2))
    write_zip(tmp_path / "odd.zip", {f"{SCRIPT}.bin": b"x", "ok.png": picture(1)})
    tab.page.drop_files(*panel_place(tab), *sorted(odd.iterdir()), tmp_path / "odd.zip")
    tab.page.wait_for(f"{DIALOG}?.textContent.includes('onerror')")
    accept(tab, "odd & <i>")
    tab.page.wait_for(f"{DIALOG}.querySelector('.sc-notice.bad')")
    assert "contains a character that not every system allows" in tab.page.run(f"{DIALOG}.textContent")
    tab.page.errors.clear()  # the browser logs the refusal
    accept(tab, "odd & set")
    wait_until_added(tab, "2 images")
    assert "onerror" in tab.page.run(f"{ADDED}.textContent")
    assert tab.page.run("window.hacked") is None
    assert names(datasets) == ["odd & set/'&quot;.png", "odd & set/ok.png"]


def test_k2_images_are_chosen_with_the_button_and_added_to_a_folder_that_exists(
    tab: CacheTab, datasets: Path, tmp_path: Path
):
    write_files(datasets / "pets", 2)
    tab.refresh()
    tab.page.wait_for(row("input/datasets/pets"))
    source = write_files(tmp_path / "more", 3, start=1)
    (source / "00001.png").write_bytes(picture(9, size=(20, 20)))
    (source / "00001.txt").write_text("another picture")
    tab.page.click(f"{row('input/datasets/pets')}.querySelector('.pi-upload').parentElement")
    tab.page.choose_files(find(".sc-menu-item", "Files or zips…"), *sorted(source.iterdir()))
    tab.page.wait_for(f"{FIELD}?.value === 'pets' && {DIALOG}.textContent.includes('input/datasets/pets exists')")
    accept(tab)
    wait_until_added(tab, "3 images · 3 captions · 1 under a new name")
    assert (datasets / "pets" / "00001 (2).txt").read_text() == "another picture"
    assert (datasets / "pets" / "00001.txt").read_text() == "picture 1"
    dismiss(tab)
    tab.page.click("document.querySelector('.sc-head .pi-upload').parentElement")
    tab.page.choose_files(find(".sc-menu-item", "A folder…"), source)
    tab.page.wait_for(f"{FIELD}?.value === 'more'")
    accept(tab, "pets")
    wait_until_added(tab, "4 there already")


def test_an_upload_can_be_canceled_and_leaves_nothing(tab: CacheTab, datasets: Path, tmp_path: Path):
    source = write_files(tmp_path / "many", 40)
    with tab.page.held("**/upload/image"):
        tab.page.drop_files(*panel_place(tab), source)
        accept(tab, "never")
        tab.page.wait_for("document.querySelector('.sc-job[data-job=upload][data-state=running]')")
        tab.shot("add_images_running")
        tab.page.click("document.querySelector('.sc-job[data-job=upload] .pi-times').parentElement")
        tab.page.wait_for("document.querySelector('.sc-job[data-job=upload][data-state=cancelled]')")
    wait_until_gone(tab, datasets)


def test_a_server_that_cannot_store_files_is_reported(tab: CacheTab, datasets: Path, tmp_path: Path):
    source = write_files(tmp_path / "few", 3)
    with tab.page.failing("**/upload/image", 500):
        tab.page.drop_files(*panel_place(tab), source)
        accept(tab, "full")
        tab.wait_for_text(".sc-job[data-state=failed]", "could not be stored. Is the disk full")
    assert names(datasets) == []
    tab.page.errors.clear()  # the browser logs the status


def test_files_that_are_too_large_are_named_and_the_others_added(tab: CacheTab, datasets: Path, tmp_path: Path):
    source = write_files(tmp_path / "sizes", 2)
    with (source / "huge.png").open("wb") as file:
        file.truncate(101 << 20)
    with tab.page.late("**/folder/add"):  # the event that the job is done overtakes the answer to the request
        tab.page.drop_files(*panel_place(tab), source)
        accept(tab)
        wait_until_added(tab, "2 images · 2 captions")
    wait_until_added(tab, "huge.png larger than")


def test_closing_the_page_in_the_middle_leaves_nothing(
    chromium: Chromium, server: Server, tab: CacheTab, datasets: Path, tmp_path: Path
):
    source = write_files(tmp_path / "closing", 20)
    with chromium.new_page() as second:
        second.resize(1500, 950)
        second.open(server.address)
        other = CacheTab(second, tab.shots)
        second.wait_for(BUTTON)
        other.open()
        with second.held("**/upload/image"):
            second.drop_files(*panel_place(other), source)
            accept(other, "closed")
            second.wait_for("document.querySelector('.sc-job[data-job=upload][data-state=running]')")
            second.open("about:blank")
    wait_until_gone(tab, datasets)


@pytest.mark.slow
def test_ten_thousand_files_are_dropped_at_once(tab: CacheTab, datasets: Path, tmp_path: Path):
    source = write_files(tmp_path / "thousands", 5000)
    tab.page.drop_files(*panel_place(tab), source)
    tab.page.wait_for(f"{DIALOG}?.textContent.includes('5,000 images · 5,000 captions')", 120)
    accept(tab)
    tab.page.wait_for(f"{ADDED}?.textContent.includes('5,000 images · 5,000 captions')", 600)
    assert len(names(datasets)) == 10_000


def test_files_without_any_image_are_refused_with_the_reason(tab: CacheTab, datasets: Path, tmp_path: Path):
    (tmp_path / "a.docx").write_bytes(b"x")
    tab.page.drop_files(*panel_place(tab), tmp_path / "a.docx")
    tab.wait_for_text(".sc-dialog", "There is no image, caption or zip among these files.")
    tab.wait_for_text(".sc-dialog", "a.docx")
    tab.page.click(find(".sc-dialog .sc-button", "Close"))
    tab.page.wait_for(f"!{DIALOG}")


def test_a_folder_is_used_on_the_canvas_by_click_and_by_drag(tab: CacheTab, datasets: Path):
    write_files(datasets / "one", 1)
    write_files(datasets / "two", 1)
    tab.refresh()
    tab.page.run("app.rootGraph.clear()")
    tab.page.click(f"{row('input/datasets/one')}?.querySelector('.pi-plus-circle').parentElement")
    tab.page.wait_for(f"{FOLDERS}.join() === 'input/datasets/one'")
    tab.page.run("app.canvas.selectItems(app.rootGraph.nodes)")
    tab.page.click(f"{row('input/datasets/two')}.querySelector('.pi-plus-circle').parentElement")
    tab.page.wait_for(f"{FOLDERS}.join() === 'input/datasets/two'")
    tab.page.run("app.rootGraph.clear()")
    tab.page.drag(f"{row('input/datasets/one')}.querySelector('.sc-folder-open')", 900, 500)
    tab.page.wait_for(f"{FOLDERS}.join() === 'input/datasets/one'")
    tab.page.run("app.rootGraph.clear()")


def test_an_empty_tab_offers_to_add_images_and_an_example(
    chromium: Chromium, tab: CacheTab, server: Server, datasets: Path, root: Path
):
    hidden = root.with_name("streamcache_hidden")
    os.rename(root, hidden)
    try:
        tab.refresh()
        tab.wait_for_text(".sc-empty", "No dataset caches yet")
        tab.page.wait_for(find(".sc-empty .sc-button", "Add images"))
        tab.shot("empty_tab")
        tab.press_button("Add an example dataset")
        wait_until_added(tab, "input/datasets/example_zogglewump: 12 images · 12 captions")
        tab.page.wait_for(f"{row('input/datasets/example_zogglewump')}")
        tab.shot("example_added")
    finally:
        if root.exists():
            shutil.rmtree(root)
        os.rename(hidden, root)
        tab.refresh()
        tab.wait_for_card("landscapes")
    assert any(
        folder["name"] == "input/datasets/example_zogglewump" for folder in get(server, "/folders").json["folders"]
    )
