"""Curating a folder of images in the page: captions edited alone and together, images excluded, the cache updated."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from streamcache import dev
from streamcache.tests.browser.cache_tab import BUTTON, TILES, CacheTab, find
from streamcache.tests.browser.chromium import READY, Chromium, screenshot_folder
from streamcache.tests.browser.conftest import SETTINGS, serious_errors
from streamcache.tests.browser.folder_page import BAR, COUNT, DIALOG, FIELD, GRID, SAVED, FolderPage, read_captions
from streamcache.tests.browser.gallery import EXTRAS, HILLS, SHARES, SIZES, SKIES, landscape
from streamcache.tests.browser.intake import accept, dismiss, row, wait_until_added, write_files
from streamcache.tests.browser.test_add_images import ROWS, panel_place
from streamcache.tests.browser.test_first_steps import reduce_colors
from streamcache.tests.dataset_cache.intake.zips import picture
from streamcache.tests.host.published import ROOT
from streamcache.tests.host.server import Server, install_pack, start_server
from streamcache.tests.host.snapshot import UPDATE

pytestmark = pytest.mark.browser
MODELS = "huggingface.co"  # the front end's first workflow asks there for its models
SCRIPT = "<img src=x onerror=window.hacked=1>"
ARABIC = "قطة برتقالية، خارج المنزل"
NOTICE_UNDO = "document.querySelector('.sc-notices .sc-undo')"
FILTERED = {"Without a caption": "00003.png", "With a mask": "00005.png", "With a problem": "00007.png"}
# Image Folder Dataset → Encode Dataset → Streamable Cache Save, with the models of Tiny Models.
CHAIN = """(async (folder, name) => {
  app.rootGraph.clear();
  const make = (type, x, values) => {
    const node = LiteGraph.createNode(type);
    node.pos = [x, 200];
    app.rootGraph.add(node);
    for (const [key, value] of Object.entries(values)) {
      const widget = node.widgets.find((each) => each.name === key);
      if (Array.isArray(widget.options?.values)) widget.options.values.push(value);
      widget.value = value;
    }
    return node;
  };
  const slot = (node, name) => node.inputs.findIndex((input) => input.name === name);
  const out = (node, type) => node.outputs.findIndex((output) => output.type === type);
  const models = make('StreamCacheTinyModels', 600, {});
  const source = make('StreamCacheImageFolder', 600, {folder});
  const encode = make('StreamCacheEncode', 1000, {resolution: 64});
  const save = make('StreamCacheCacheSave', 1400, {name});
  models.pos = [600, 600];
  models.connect(out(models, 'VAE'), encode, slot(encode, 'vae'));
  models.connect(out(models, 'CLIP'), encode, slot(encode, 'clip'));
  source.connect(0, encode, encode.inputs.findIndex((input) => input.type === 'STREAMCACHE_SOURCE'));
  encode.connect(0, save, slot(save, 'dataset'));
  return save.id;
})(%s, %s)"""


@pytest.fixture(scope="module")
def curator(host: dev.Host, front_end: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own: some tests restart it."""
    base = tmp_path_factory.mktemp("curator")
    install_pack(base)
    running = start_server(host, base, *front_end)
    running.client.post("/settings", SETTINGS)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def settled_tab(chromium: Chromium, curator: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CacheTab]:
    with chromium.new_page() as page:
        page.resize(1500, 950)
        page.open(curator.address)
        page.wait_for(f"{READY} && LiteGraph.registered_node_types['StreamCacheTinyModels']")
        page.wait_for(BUTTON)
        yield CacheTab(page, screenshot_folder(tmp_path_factory.getbasetemp() / "screenshots"))


@pytest.fixture
def tab(settled_tab: CacheTab) -> Iterator[CacheTab]:
    """The list. No test may cause errors in the console."""
    settled_tab.page.run("void 0")
    settled_tab.page.errors.clear()
    settled_tab.open()
    dismiss(settled_tab)
    yield settled_tab
    settled_tab.page.run("void 0")
    own = serious_errors(settled_tab.page)
    assert [error for error in own if MODELS not in error] == []


@pytest.fixture
def datasets(tab: CacheTab, curator: Server) -> Path:
    folder = curator.base / "input" / "datasets"
    shutil.rmtree(folder, ignore_errors=True)
    tab.refresh()
    tab.page.wait_for(f"!{ROWS}.some((name) => name.includes('datasets'))")
    return folder


@pytest.fixture
def cats(tab: CacheTab, datasets: Path) -> Path:
    """A folder of 30 images with captions, open in the page."""
    folder = write_files(datasets / "cats", 30)
    tab.refresh()
    FolderPage(tab).open("input/datasets/cats")
    return folder


@pytest.mark.both_front_ends
def test_a3_exactly_the_captions_that_were_edited_in_the_page_are_encoded(
    tab: CacheTab, datasets: Path, tmp_path: Path, curator: Server
):
    """The film: drop 30 images, edit three captions and a bulk replace of twelve, exclude two, update, undo. The empty
    caption, for dropout, is encoded once."""
    source = write_files(tmp_path / "thirty", 30)
    for number in range(12):
        (source / f"{number:05}.txt").write_text(f"an old word, picture {number}")
    shutil.rmtree(curator.base / "output" / "streamcache", ignore_errors=True)
    tab.page.drop_files(*panel_place(tab), source)
    accept(tab)
    wait_until_added(tab, "30 images · 30 captions")
    name, folder, page = "input/datasets/thirty", datasets / "thirty", FolderPage(tab)
    tab.page.run(CHAIN % (json.dumps(name), json.dumps("thirty")))
    page.open(name)
    assert "captions: 31 encoded, 0 reused · images: 30 encoded, 0 reused · 30 samples" in page.update_cache()
    for number in (20, 21, 22):
        page.edit(f"{number:05}.png")
        page.write(f"edited by hand {number}")
        page.save()
        page.close()
    page.select(*(f"{number:05}.png" for number in range(12)))
    page.act("edit_captions")
    page.fill("find", "old")
    page.fill("by", "new")
    page.wait_for_preview("12 captions change")
    assert tab.page.run("document.querySelector('.sc-changes del').textContent") == "old"
    assert tab.page.run("document.querySelector('.sc-changes ins').textContent") == "new"
    tab.shot("curation_bulk")
    page.apply("12 captions changed.")
    tab.page.press("Escape")
    page.select("00028.png", "00029.png")
    page.act("exclude")
    page.wait_for_notice("2 images excluded.")
    page.wait_for_label("00029.png", "Excluded")
    tab.shot("curation_excluded")
    assert "captions: 15 encoded, 14 reused · images: 0 encoded, 28 reused · 28 samples" in page.update_cache()
    assert read_captions(folder)["00021"] == "edited by hand 21" and read_captions(folder)["00003"].startswith("an new")
    tab.page.click("document.querySelector('.sc-curate .sc-head .pi-undo').parentElement")
    page.wait_for_notice("Undone: 2 images are as before.")
    tab.page.click("document.querySelector('.sc-curate .sc-head .pi-undo').parentElement")
    page.wait_for_notice("Undone: 12 images are as before.")
    assert read_captions(folder)["00003"] == "an old word, picture 3"
    assert not (folder / "streamcache.json").exists()
    assert "captions: 0 encoded, 31 reused · images: 0 encoded, 30 reused · 30 samples" in page.update_cache()
    assert "nothing to encode" in page.update_cache(), "ComfyUI shows its last result again"
    assert len([path for path in folder.iterdir() if path.suffix == ".png"]) == 30, "no image was deleted"


def test_a_workflow_without_a_save_node_is_told_what_to_do(tab: CacheTab, cats: Path):
    tab.page.run("app.rootGraph.clear()")
    tab.page.click("document.querySelector('.sc-update')")
    tab.wait_for_text(".sc-dialog", "no Streamable Cache Save node that input/datasets/cats leads to")
    tab.page.click(find(".sc-dialog .sc-button.primary", "Open the template"))
    folders = "app.rootGraph.nodes.filter((node) => node.type === 'StreamCacheImageFolder')"
    tab.page.wait_for(f"{folders}.map((node) => node.widgets[0].value).join() === 'input/datasets/cats'", 60)
    tab.page.run("app.rootGraph.clear()")


def test_k3_a_caption_is_edited_and_saved_by_going_on(tab: CacheTab, cats: Path):
    page = FolderPage(tab)
    page.edit("00004.png")
    tab.page.wait_for(f"{DIALOG}.querySelector('.sc-picture-large').naturalWidth === 48")
    page.write("one line\nanother line")
    tab.page.press("PageDown")
    tab.page.wait_for(f"{DIALOG}.querySelector('h2').title === '00005.png' && {FIELD}.value === 'picture 5'", 60)
    assert (cats / "00004.txt").read_text() == "one line\nanother line"
    tab.page.click(f"{DIALOG}.querySelector('.sc-tags + .sc-row input')")
    tab.page.type("outdoors")
    tab.page.press("Enter")
    assert tab.page.run(f"{FIELD}.value") == "picture 5, outdoors"
    tab.page.click(f"{DIALOG}.querySelector('.sc-tag button[aria-label=\"Remove the tag picture 5\"]')")
    assert tab.page.run(f"{FIELD}.value") == "outdoors"
    page.save()
    tab.page.click(f"{DIALOG}.querySelector('.pi-undo').parentElement")
    tab.page.wait_for(f"{FIELD}.value === 'picture 5'", 60)
    assert (cats / "00005.txt").read_text() == "picture 5"
    page.close()
    page.wait_for_label("00004.png", "one line")


def test_an_image_is_opened_as_it_is_on_disk_and_ctrl_z_takes_the_last_edit_back(tab: CacheTab, cats: Path):
    page = FolderPage(tab)
    (cats / "00003.txt").write_text("changed by another program")
    page.edit("00003.png")
    tab.page.wait_for(f"{FIELD}.value === 'changed by another program'")
    page.write("typed")
    tab.page.press("Control+Enter")
    tab.page.wait_for(SAVED, 60)
    page.close()
    tab.page.run(f"{GRID}.focus()")
    tab.page.press("Control+z")
    page.wait_for_notice("Undone: 1 image is as before.")
    assert (cats / "00003.txt").read_text() == "changed by another program"


def test_k3_a_caption_that_changed_on_disk_is_a_conflict(tab: CacheTab, cats: Path):
    page = FolderPage(tab)
    page.edit("00001.png")
    page.write("my text")
    (cats / "00001.txt").write_text("their text")
    tab.page.press("Control+Enter")
    tab.wait_for_text(".sc-image .sc-versions", "their text")
    tab.wait_for_text(".sc-image .sc-versions", "my text")
    assert (cats / "00001.txt").read_text() == "their text"
    tab.shot("curation_conflict")
    tab.page.press("PageDown")
    assert tab.page.run(f"{DIALOG}.querySelector('h2').title") == "00001.png", "the user has to choose first"
    tab.page.click(f"{DIALOG}.querySelector('.sc-take-theirs')")
    tab.page.wait_for(f"{FIELD}.value === 'their text'")
    page.write("my second text")
    (cats / "00001.txt").write_text("their second text")
    tab.page.press("Control+Enter")
    tab.page.click(f"{DIALOG}.querySelector('.sc-keep-mine')")
    tab.page.wait_for(SAVED, 60)
    assert (cats / "00001.txt").read_text() == "my second text"
    page.close()


def test_a_reload_in_the_middle_of_an_edit_loses_nothing(tab: CacheTab, cats: Path):
    page = FolderPage(tab)
    page.edit("00002.png")
    page.write("not saved yet")
    tab.page.reload()
    tab.page.wait_for(BUTTON)
    tab.open()
    page.open("input/datasets/cats")
    tab.wait_for_text(".sc-state .sc-notice", "The caption of 00002.png was edited, but not saved.")
    tab.page.click(find(".sc-state .sc-button", "Open"))
    tab.page.wait_for(f"{FIELD}?.value === 'not saved yet'")
    assert (cats / "00002.txt").read_text() == "picture 2"
    page.save()
    assert (cats / "00002.txt").read_text() == "not saved yet"
    page.close()
    tab.page.wait_for("!document.querySelector('.sc-state .sc-notice')")
    tab.page.run("void 0")
    tab.page.errors.clear()  # the front end's own at its start


def test_a_second_tab_sees_edits_and_makes_conflicts(tab: CacheTab, cats: Path, chromium: Chromium, curator: Server):
    page = FolderPage(tab)
    page.edit("00006.png")
    page.write("typed in the first tab")
    with chromium.new_page() as second:
        second.resize(1500, 950)
        second.open(curator.address)
        second.wait_for(BUTTON)
        other = FolderPage(CacheTab(second, tab.shots))
        other.tab.open()
        other.open("input/datasets/cats")
        for name in ("00006.png", "00007.png"):
            other.edit(name)
            other.write("saved in the second tab")
            other.save()
            other.close()
    page.wait_for_label("00007.png", "saved in the second tab")
    assert tab.page.run(f"{FIELD}.value") == "typed in the first tab"
    tab.page.press("Control+Enter")
    tab.wait_for_text(".sc-image .sc-versions", "saved in the second tab")
    tab.page.click(f"{DIALOG}.querySelector('.sc-keep-mine')")
    tab.page.wait_for(SAVED, 60)
    assert (cats / "00006.txt").read_text() == "typed in the first tab"
    page.close()


def test_k3_a_server_restart_in_the_middle_of_an_edit_loses_nothing(
    tab: CacheTab, cats: Path, curator: Server, host: dev.Host, front_end: list[str]
):
    page = FolderPage(tab)
    page.edit("00003.png")
    page.write("typed before the restart")
    curator.stop()
    tab.page.press("Control+Enter")
    tab.wait_for_text(".sc-image .sc-notice", "Not saved; the text is kept here.")
    port = curator.address.rpartition(":")[2]
    again = start_server(host, curator.base, *front_end, port=int(port))
    curator.process = again.process
    tab.page.wait_for("fetch('/system_stats').then((answer) => answer.ok)", 60)
    tab.page.click(FIELD)
    page.save()
    assert (cats / "00003.txt").read_text() == "typed before the restart"
    page.close()
    tab.page.click("document.querySelector('.sc-curate .sc-head .pi-undo').parentElement")
    page.wait_for_notice("Undone: 1 image is as before.")
    assert (cats / "00003.txt").read_text() == "picture 3"
    tab.page.run("void 0")
    tab.page.errors.clear()  # requests while the server was away


def test_script_and_right_to_left_captions_are_shown_as_text(tab: CacheTab, datasets: Path):
    folder = write_files(datasets / "odd", 3)
    (folder / "00000.txt").write_text(f"{SCRIPT}, tag", encoding="utf-8")
    (folder / "00001.txt").write_text(ARABIC, encoding="utf-8")
    tab.refresh()
    page = FolderPage(tab)
    page.open("input/datasets/odd")
    tab.page.click("document.querySelector('.sc-charts summary')")
    tab.wait_for_text(".sc-charts", SCRIPT)
    page.edit("00000.png")
    assert tab.page.run(f"{FIELD}.value") == f"{SCRIPT}, tag"
    tab.wait_for_text(".sc-image .sc-tag", SCRIPT)
    tab.page.press("PageDown")
    tab.page.wait_for(f"{FIELD}.value === {json.dumps(ARABIC)}")
    assert tab.page.run(f"getComputedStyle({FIELD}).direction") == "rtl"
    tab.shot("curation_right_to_left")
    page.close()
    tab.page.run(f"{GRID}.focus()")
    tab.page.press("Control+a")
    page.act("edit_captions")
    page.fill("suffix", f" {SCRIPT}")
    page.wait_for_preview("3 captions change")
    tab.page.press("Escape")
    tab.page.click("document.querySelector('.sc-charts summary')")
    assert tab.page.run("window.hacked") is None


@pytest.mark.both_front_ends
def test_k4_delete_in_the_grid_excludes_and_never_reaches_the_canvas(tab: CacheTab, cats: Path):
    page = FolderPage(tab)
    tab.page.run(CHAIN % (json.dumps("input/datasets/cats"), json.dumps("x")))
    tab.page.run("app.canvas.selectItems(app.rootGraph.nodes)")
    tab.page.run(f"{GRID}.focus()")
    tab.page.press("Delete", "Backspace")
    assert not (cats / "streamcache.json").exists(), "nothing is selected"
    tab.page.press("Home", " ", "ArrowRight", " ", "Delete")
    page.wait_for_notice("2 images excluded.")
    page.wait_for_label("00001.png", "Excluded")
    assert json.loads((cats / "streamcache.json").read_text())["images"] == {
        "00000.png": {"excluded": True},
        "00001.png": {"excluded": True},
    }
    for place in (f"{BAR}.querySelector('button')", "document.querySelector('.sc-curate .sc-head button')"):
        tab.page.run(f"{place}.focus()")
        tab.page.press("Delete", "Backspace")
    page.edit("00002.png")
    tab.page.run(f"{DIALOG}.querySelector('.sc-head button').focus()")
    tab.page.press("Delete", "Backspace")
    page.close()
    assert tab.page.run("app.rootGraph.nodes.length") == 4
    tab.page.click(NOTICE_UNDO)
    page.wait_for_notice("Undone: 2 images are as before.")
    assert not (cats / "streamcache.json").exists()
    tab.page.press("Escape", "Delete")
    assert tab.page.run("app.rootGraph.nodes.length") == 4, "the button that had the focus is gone"
    tab.page.run("app.rootGraph.clear()")


def test_k5_everything_works_with_keys_alone(tab: CacheTab, cats: Path):
    page = FolderPage(tab)
    tab.page.run(f"{GRID}.focus()")
    tab.page.press("Home", "ArrowRight", "Enter")
    tab.page.wait_for(f"document.activeElement === {FIELD} && {DIALOG}.querySelector('h2').title === '00001.png'")
    tab.page.press("Control+a")
    tab.page.type("typed with keys")
    page.save()
    tab.page.press("Escape")
    tab.page.wait_for(f"!{DIALOG} && document.activeElement === {GRID}")
    assert (cats / "00001.txt").read_text() == "typed with keys"
    tab.page.press("Home", "Shift+ArrowRight", "Shift+ArrowRight")
    tab.page.wait_for(f"{BAR}.textContent.includes('3 selected')")
    tab.page.press("Escape")
    tab.page.wait_for(f"{BAR}.hidden")
    tab.page.press("Control+a")
    tab.page.wait_for(f"{BAR}.textContent.includes('30 selected')")
    tab.page.press("Tab")
    tab.page.wait_for(f"document.activeElement === {BAR}.querySelector('[data-act=edit_captions]')")
    tab.page.press("Enter")
    tab.page.wait_for("document.activeElement?.dataset.edit === 'find'")
    for _ in range(4):
        tab.page.press("Tab")
    tab.page.wait_for("document.activeElement.dataset.edit === 'append_tag'")
    tab.page.type("tagged")
    page.wait_for_preview("30 captions change")
    tab.page.press("Enter")
    page.wait_for_notice("30 captions changed.")
    assert set(read_captions(cats).values()) == {"typed with keys, tagged"} | {
        f"picture {n}, tagged" for n in range(30) if n != 1
    }
    tab.page.run(f"{GRID}.focus()")
    tab.page.press("Escape", "Escape")
    tab.page.wait_for(f"document.activeElement === {row('input/datasets/cats')}?.querySelector('.sc-folder-open')")


def test_k4_filters_sort_repeats_and_charts(tab: CacheTab, datasets: Path):
    folder = write_files(datasets / "mixed", 8)
    (folder / "00003.txt").unlink()
    (folder / "00007.png").write_bytes(b"no picture")
    (folder / "00005-masklabel.png").write_bytes(picture(1, size=(48, 32)))
    (folder / "00006.png").write_bytes(picture(2, size=(32, 48)))
    (folder / "00001.txt").write_text("picture 1, red, a much longer caption than the others have")
    tab.refresh()
    page = FolderPage(tab)
    tab.page.wait_for(f"{row('input/datasets/mixed')}")
    tab.page.click(f"{row('input/datasets/mixed')}.querySelector('.sc-folder-open')")
    page.wait_for_count("8 images")
    for label, name in FILTERED.items():
        choose(tab, "filter", label)
        page.wait_for_count("1 of 8 images")
        tab.page.wait_for(f"{TILES}.length === 1 && Boolean({page.tile(name)})")
        tab.page.click("document.querySelector('.sc-filter-chips button')")
        page.wait_for_count("8 images")
    choose(tab, "sort-alt", "Caption length")
    choose(tab, "sort-alt", "Descending")
    tab.page.wait_for("document.getElementById('sc-sample-0')?.ariaLabel.startsWith('00001.png')")
    tab.page.click("document.querySelector('.sc-charts summary')")
    tab.page.click("document.querySelector('[data-chart=tags] [data-value=red]')")
    page.wait_for_count("1 of 8 images")
    tab.shot("curation_charts")
    tab.page.click("document.querySelector('[data-chart=tags] [data-value=red]')")
    page.wait_for_count("8 images")
    tab.wait_for_text("[data-chart=run]", "A run sees 7 samples per epoch")
    page.select("00001.png")
    page.act("set_repeats")
    tab.page.wait_for("document.activeElement.matches('.sc-dialog input')")
    tab.page.type("3")
    page.apply("1 image is now repeated 3 times.")
    tab.wait_for_text("[data-chart=run]", "A run sees 9 samples per epoch")
    page.edit("00005.png")
    tab.page.click(f"{DIALOG}.querySelector('[data-overlay=mask]')")
    tab.page.wait_for(f"{DIALOG}.querySelector('.sc-overlay-mask').naturalWidth > 0")
    tab.page.click(f"{DIALOG}.querySelector('[data-overlay=crop]')")
    tab.page.wait_for(f"{DIALOG}.querySelector('.sc-overlay-crop')")
    tab.shot("curation_overlays")
    for key in ("mask", "crop"):
        tab.page.click(f"{DIALOG}.querySelector('[data-overlay={key}]')")
    page.close()
    tab.page.click("document.querySelector('.sc-charts summary')")


def test_k4_look_alikes_are_found(tab: CacheTab, datasets: Path):
    folder = datasets / "alike"
    folder.mkdir(parents=True)
    for name, seed in {"a": 1, "b": 2, "c": 3, "again": 1}.items():
        noise = Image.frombytes("RGB", (16, 16), random.Random(seed).randbytes(768))
        noise.resize((160, 160), Image.Resampling.BICUBIC).save(folder / f"{name}.png")
    tab.refresh()
    page = FolderPage(tab)
    page.open("input/datasets/alike")
    choose(tab, "filter", "Look-alikes")
    page.wait_for_count("2 of 4 images")
    tab.page.wait_for(f"Boolean({page.tile('a.png')} && {page.tile('again.png')})")
    choose(tab, "sort-alt", "Similarity")
    choose(tab, "filter", "Show all images")
    page.wait_for_count("4 images")
    tab.page.wait_for("document.getElementById('sc-sample-1')?.ariaLabel.startsWith('a')")


def test_the_caption_of_a_sample_is_edited_where_it_came_from(tab: CacheTab, cats: Path, curator: Server):
    page = FolderPage(tab)
    tab.page.run(CHAIN % (json.dumps("input/datasets/cats"), json.dumps("from_cats")))
    assert "30 samples" in page.update_cache()
    tab.open()
    tab.show("from_cats")
    tab.page.click(f"{TILES}[2]")
    tab.page.click(find(".sc-sample .sc-button", "Edit caption"))
    tab.page.wait_for(f"{FIELD}?.value === 'picture 2'", 60)
    page.write("edited from the sample")
    page.save()
    assert (cats / "00002.txt").read_text() == "edited from the sample"
    page.close()
    tab.page.press("Escape")
    os.rename(cats, cats.with_name("elsewhere"))
    tab.page.click(f"{TILES}[3]")
    tab.page.click(find(".sc-sample .sc-button", "Edit caption"))
    tab.page.wait_for("document.querySelector('.sc-sample .sc-notice.warn')", 60)
    tab.shot("curation_source_away")
    tab.page.press("Escape")
    tab.page.run("app.rootGraph.clear()")


def test_the_grid_keeps_its_height_in_a_small_window(tab: CacheTab, cats: Path):
    page = FolderPage(tab)
    try:
        for size in ((960, 540), (1280, 720)):
            tab.page.resize(*size)
            page.wait_for_pictures()
            tab.page.run(f"{GRID}.focus()")
            tab.page.press("Control+a")
            tab.page.wait_for(f"!{BAR}.hidden")
            tab.page.wait_for(f"{GRID}.getBoundingClientRect().height >= 200")
            tab.page.wait_for(f"{BAR}.getBoundingClientRect().bottom <= innerHeight + 1")
            tab.shot(f"curation_{size[0]}")
            page.edit("00001.png")
            tab.page.wait_for(f"{FIELD}.getBoundingClientRect().bottom <= innerHeight")
            tab.shot(f"curation_dialog_{size[0]}")
            page.close()
            tab.page.press("Escape")
    finally:
        tab.page.resize(1500, 950)


WATCH_READING = """(() => {
  window.readingLines = [];
  new MutationObserver(() => {
    const line = document.querySelector('.sc-job[data-job=read][data-state=running]');
    if (line) window.readingLines.push(line.textContent);
  }).observe(document.body, { childList: true, subtree: true });
})()"""


@pytest.mark.slow
def test_a_hundred_thousand_images_open_and_scroll(tab: CacheTab, datasets: Path, record_property):
    folder = datasets / "many"
    folder.mkdir(parents=True)
    for number in range(10):
        (folder / f"{number:06}.png").write_bytes(picture(number * 6000, size=(24, 16)))
    for number in range(10, 100_000):
        os.link(folder / f"{number % 10:06}.png", folder / f"{number:06}.png")
    tab.refresh()
    page = FolderPage(tab)
    tab.page.wait_for(row("input/datasets/many"), 300)
    tab.page.run(WATCH_READING)
    tab.page.click(f"{row('input/datasets/many')}.querySelector('.sc-folder-open')")
    tab.page.wait_for("window.readingLines.length", 300)
    tab.shot("curation_reading")
    tab.page.wait_for(f"{COUNT} === '100,000 images'", 300)
    page.wait_for_pictures()
    tab.page.wait_for("window.readingLines.length && !document.querySelector('.sc-job[data-job=read]')", 600)
    lines = tab.page.run("window.readingLines")
    assert all("input/datasets/many: " in line and " of 100,000 files" in line for line in lines), lines
    tab.open()
    page.open("input/datasets/many")
    found = tab.page.run(SCROLL % GRID)
    record_property("frames", found)
    print(json.dumps(found), flush=True)
    page.wait_for_pictures()
    assert found["frames"] > 10
    tab.page.run(f"{GRID}.focus()")
    tab.page.press("End")
    tab.page.wait_for(page.tile("099999.png"), 60)
    tab.page.press("Control+a")
    tab.page.wait_for(f"{BAR}.textContent.includes('100,000 selected')")


@pytest.mark.skipif(not os.environ.get(UPDATE), reason=f"takes the screenshots of the docs again with {UPDATE}=1")
def test_images_of_the_documentation(tab: CacheTab, datasets: Path):
    folder, draw = datasets / "landscapes", random.Random(4)
    folder.mkdir(parents=True)
    for number in range(40):
        width, height = draw.choices(SIZES, SHARES)[0]
        sky, hill, extra = (draw.choice(list(each)) for each in (SKIES, HILLS, EXTRAS))
        jpeg = landscape(width, height, 900, sky, hill, extra, draw).numpy().tobytes()
        (folder / f"landscape {number:02}.jpg").write_bytes(jpeg)
        (folder / f"landscape {number:02}.txt").write_text(f"a photo of {hill}, {sky}, {extra.removeprefix('and ')}")
    page = FolderPage(tab)
    tab.page.resize(1360, 880)
    tab.page.run(CHAIN % (json.dumps("input/datasets/landscapes"), json.dumps("landscapes")))
    tab.page.run("app.rootGraph.nodes.find((node) => node.type === 'StreamCacheEncode').widgets[0].value = 1024")
    tab.page.drag("document.querySelector('.p-splitter-gutter')", 432, 400)
    tab.refresh()
    page.open("input/datasets/landscapes")
    page.select("landscape 03.jpg", "landscape 07.jpg")
    page.act("exclude")
    page.wait_for_notice("2 images excluded.")
    tab.page.click("document.querySelector('.sc-notices .pi-times').parentElement")
    tab.page.run(f"{GRID}.focus()")
    tab.page.press("Control+a")
    page.act("edit_captions")
    page.fill("find", "a photo of")
    page.fill("by", "a painting of")
    page.wait_for_preview("40 captions change")
    page_shot(tab, "curation_many")
    tab.page.press("Escape", "Escape")
    page.edit("landscape 09.jpg")
    tab.page.wait_for(f"{DIALOG}.querySelector('.sc-picture-large').naturalWidth > 0")
    tab.page.click(f"{DIALOG}.querySelector('[data-overlay=crop]')")
    page_shot(tab, "curation_image")
    tab.page.click(f"{DIALOG}.querySelector('[data-overlay=crop]')")
    page.close()
    tab.page.resize(1500, 950)
    tab.page.run("app.rootGraph.clear()")


def page_shot(tab: CacheTab, name: str) -> None:
    tab.page.run("new Promise((done) => setTimeout(done, 1200))")  # animations are over
    tab.page.screenshot(ROOT / "docs" / f"{name}.png")
    reduce_colors(ROOT / "docs" / f"{name}.png")


SCROLL = """(async (grid) => {
  const times = [];
  let last = performance.now();
  for (let step = 0; step < 200; step += 1) {
    grid.scrollTop += 300;
    await new Promise((go) => requestAnimationFrame(go));
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  times.sort((a, b) => a - b);
  return {frames: times.length, p50: times[100], p95: times[190], most: times[199]};
})(%s)"""


def choose(tab: CacheTab, sign: str, label: str) -> None:
    """Choose an entry of the menu of filters or of orders."""
    tab.page.click(f"document.querySelector('.sc-curate .sc-tools .pi-{sign}').parentElement")
    tab.page.click(find(".sc-menu-item", label))
