"""Watching a training in the real front end: its curve appears, it is stopped and saved, a reload loses nothing."""

import io
import os
import random
import shutil
from pathlib import Path

import pytest
from PIL import Image, ImageFilter
from safetensors import safe_open

from streamcache.lora_train.samples import sample_file_name
from streamcache.tests.browser.chromium import brightness
from streamcache.tests.browser.gallery import landscape
from streamcache.tests.browser.training_page import CARD, NODE, PANEL, RUNS, TICK, TrainingPage
from streamcache.tests.host.graph import Graph, save_folder
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.published import ROOT
from streamcache.tests.host.server import Server
from streamcache.tests.host.snapshot import UPDATE
from streamcache.tests.host.trainings import run_row, train_graph, until

pytestmark = pytest.mark.browser
SUMMARY = "document.querySelector('.sc-summary .sc-line').textContent"
BARS = "[...document.querySelectorAll('.sc-summary li')].map((bar) => bar.innerText.split(/\\s+/))"


def lora_steps(server: Server, name: str) -> int:
    with safe_open(server.base / "output" / "loras" / f"{name}.safetensors", framework="pt") as file:
        return int(file.metadata()["ss_steps"])


def wait_until_stopped(training: TrainingPage, server: Server, name: str) -> int:
    until(lambda: run_row(server, name)["status"] == "stopped")
    return run_row(server, name)["step"]


@pytest.fixture(scope="module", autouse=True)
def no_runs(server: Server) -> None:
    """Remove runs that other tests left on this server, before the page is loaded."""
    shutil.rmtree(server.base / "output" / "streamcache_runs", ignore_errors=True)


def test_without_a_run_the_tab_explains_how_to_start_one(training: TrainingPage):
    training.open_tab()
    training.page.wait_for(f"{PANEL}.querySelector('.sc-empty')")
    assert "Train LoRA" in training.text(PANEL)


def test_a_training_draws_its_curve_and_stopping_it_saves_the_lora(training: TrainingPage, server: Server):
    page = training.page
    training.build("watched_run", samples=True, sample_every=30)
    training.open_tab()
    training.queue()
    page.wait_for(f"{CARD}?.querySelector('[data-state=running]')")
    page.wait_for(f"{PANEL}.querySelectorAll('.sc-chart .series').length >= 3")
    first = until(lambda: training.drawn(PANEL) > 5 and training.drawn(PANEL))
    until(lambda: training.drawn(PANEL) > first + 10)
    page.wait_for(f"{PANEL}.querySelector('.sc-picture img')?.naturalWidth > 0")
    shown = training.text(CARD)
    for words in ("Loss", "Validation", "Learning rate", "Samples/s", "Data wait", "Memory", "left"):
        assert words in shown
    training.shot("live")
    page.click(f"{CARD}.querySelector('.sc-stop')")
    step = wait_until_stopped(training, server, "watched_run")
    page.wait_for(f"{CARD}.innerText.includes('saved as watched_run-step{step:08}.safetensors')")
    assert f"Stopped at step {step:,} of 100,000" in training.text(CARD)
    assert lora_steps(server, f"watched_run-step{step:08}") == step
    # Its last point is the last step's.
    page.wait_for(f"{CARD}.querySelector('[data-state=stopped]')")
    assert page.run(f"{CARD}.querySelector('.sc-stop').checkVisibility()") is False
    training.shot("stopped")


def test_i1_the_files_of_a_live_run_appear_as_they_are_written(training: TrainingPage, server: Server):
    page = training.page
    files = f"[...{CARD}.querySelectorAll('.sc-files li')].filter((each) => each.checkVisibility())"
    training.build("exporting", export_every=40)
    training.open_tab()
    training.queue()
    page.wait_for(f"{CARD}?.innerText.includes('exporting') && {files}.length >= 2", 120)
    assert run_row(server, "exporting")["live"] and page.run(f"{files}[1].dataset.step") == "80"
    page.click(f"{CARD}.querySelector('.sc-stop')")
    wait_until_stopped(training, server, "exporting")


def test_a_reload_during_a_run_restores_the_chart_on_tab_and_node(training: TrainingPage, server: Server):
    page = training.page
    node = training.build("reloaded")
    training.queue()
    page.wait_for(NODE)
    until(lambda: training.drawn(NODE) > 20)
    workflow = page.run("JSON.stringify(app.rootGraph.serialize())")
    before = training.drawn(NODE)
    training.reload()
    assert page.run(NODE) is None
    page.run(f"app.loadGraphData({workflow}, true, true, null)")
    page.wait_for(NODE)
    page.wait_for(f"{NODE}.querySelector('[data-state=running]')")
    restored = until(lambda: training.drawn(NODE) >= before and training.drawn(NODE))
    training.open_tab()
    page.wait_for(f"{CARD}.innerText.includes('reloaded')")
    until(lambda: training.drawn(PANEL) >= before and training.drawn(NODE) > restored + 5)
    # Every step is there: those before the reload from disk, those after it from events.
    from_disk = training.kept("reloaded", "loss.at(-1)[0]")
    until(lambda: training.kept("reloaded", "loss.at(-1)[0]") > from_disk + 40)
    heard = [step for step, _ in training.kept("reloaded", "loss") if step >= from_disk]
    assert heard == list(range(from_disk, heard[-1] + 1))
    on_this_node = f"app.rootGraph.getNodeById({node}).widgets.some((widget) => widget.element === {NODE})"
    assert page.run(on_this_node)
    page.click(f"{NODE}.querySelector('.sc-stop')")
    step = wait_until_stopped(training, server, "reloaded")
    page.wait_for(f"{NODE}.innerText.includes('Stopped at step {step:,}')")
    curves = server.client.get("/streamcache/run?name=reloaded&points=5000")["curves"]
    assert [step for step, _ in curves["loss"]] == list(range(1, step + 1))
    shown = server.client.get("/streamcache/run?name=reloaded&points=1200&smoothing=900")["curves"]["smooth"]
    until(lambda: training.drawn(NODE) == len(shown))


def test_runs_are_compared_on_one_chart_and_read_with_keys(training: TrainingPage, server: Server):
    page = training.page
    server.succeed(train_graph(server, "compared", 40, learning_rate=0.03, validation_every=20).prompt)
    training.open_tab()
    training.choose("compared", "reloaded")
    rows = "[...document.querySelectorAll('.sc-table thead th')].map((each) => each.innerText.trim())"
    page.wait_for(f"{rows}.sort().join() === 'compared,reloaded'")
    colors = page.run(
        "[...new Set([...document.querySelectorAll('.sc-table .sc-swatch')].map((s) => s.style.cssText))]"
    )
    assert len(colors) == 2, "each run has its own color"
    before = page.run("document.querySelector('.sc-chart path.series').getAttribute('d')")
    page.click("document.querySelector('.sc-chart-tools input[name=log]')")
    page.wait_for(f"document.querySelector('.sc-chart path.series').getAttribute('d') !== {before!r}")
    page.run("document.querySelector('.sc-training .sc-chart').focus()")
    page.press("Home", "ArrowRight")
    spoken = page.run("document.querySelector('.sc-training .sc-chart [aria-live]').textContent")
    assert spoken.startswith("step 1, ") and "compared: " in spoken and "reloaded: " in spoken
    assert page.run("document.querySelector('.sc-chart-tip').checkVisibility()")
    training.shot("compared")
    page.press("Escape")
    page.click("document.querySelector('.sc-chart-tools input[name=log]')")


def test_a_run_is_moved_to_the_trash_and_restored(training: TrainingPage, server: Server):
    page = training.page
    training.open_tab()
    page.wait_for(f"{RUNS}.includes('compared')")
    page.click("document.querySelector('[data-run=compared] .sc-sign')")
    page.wait_for(f"!{RUNS}.includes('compared')")
    assert not run_row(server, "compared")
    page.click(f"{PANEL}.querySelector('.sc-notice button')")
    page.wait_for(f"{RUNS}.includes('compared')")
    assert run_row(server, "compared")["status"] == "done"


def test_a_sample_image_is_enlarged_and_steps_are_compared(training: TrainingPage):
    page = training.page
    training.open_tab()
    page.wait_for(f"{RUNS}.includes('watched_run')")
    if not page.run(f"{TICK % 'watched_run'}.checked"):
        page.click(TICK % "watched_run")
    page.wait_for(f"{CARD}.innerText.includes('watched_run') && {PANEL}.querySelector('.sc-picture img')")
    page.click(f"{PANEL}.querySelector('.sc-picture')")
    page.wait_for("document.querySelector('.sc-large[open] figure img')?.naturalWidth > 0")
    page.click("document.querySelector('.sc-large label')")
    captions = "[...document.querySelectorAll('.sc-large figcaption')].map((each) => each.textContent)"
    page.wait_for(f"{captions}.length === 2 && {captions}[0] === 'step 0'")
    shown = page.run(captions)[1]
    page.press("ArrowLeft")
    page.wait_for(f"{captions}[1] !== {shown!r}")
    training.shot("enlarged")
    page.press("Escape")
    page.wait_for("!document.querySelector('.sc-large')")


@pytest.mark.parametrize("vue", [False, True], ids=["classic", "nodes_2"])
def test_the_node_shows_its_run_once_in_each_renderer(training: TrainingPage, server: Server, vue: bool):
    page, name = training.page, f"on_node_{vue}".lower()
    training.close_tab()
    training.set(vue=vue)
    node = training.build(name, samples=True, sample_every=30)
    saved = page.run(f"app.rootGraph.getNodeById({node}).serialize().widgets_values.length")
    training.queue()
    page.wait_for(f"{NODE} && {NODE}.closest('{'.lg-node' if vue else '.dom-widget'}')")
    until(lambda: training.drawn(NODE) > 20)
    page.wait_for(f"{NODE}.querySelector('.sc-picture img')?.naturalWidth > 0")
    box = page.run(
        f"(({{width, height}}) => [width, height])({NODE}.querySelector('.sc-chart').getBoundingClientRect())"
    )
    assert box[0] > 200 and box[1] > 80
    training.shot(f"node_{'nodes_2' if vue else 'classic'}")
    page.click(f"{NODE}.querySelector('.sc-stop')")
    wait_until_stopped(training, server, name)
    page.wait_for(f"{NODE}.innerText.includes('Stopped at step')")
    # ComfyUI's own image of the curve and its own text are not shown as well.
    widgets = f"app.rootGraph.getNodeById({node}).widgets.filter((widget) => !widget.hidden)"
    assert not page.run(f"{widgets}.some((widget) => widget.name.startsWith('$$'))")
    pictures = f"[...document.querySelectorAll('[data-testid=\"node-body-{node}\"] img')]"
    assert page.run(f"{pictures}.filter((i) => i.checkVisibility() && !i.closest('.sc-run-panel')).length") == 0
    assert page.run(f"app.rootGraph.getNodeById({node}).serialize().widgets_values.length") == saved, (
        "it is saved nowhere"
    )


@pytest.mark.parametrize("vue", [False, True], ids=["classic", "nodes_2"])
def test_save_and_load_show_a_summary_and_new_caches_are_listed(training: TrainingPage, server: Server, vue: bool):
    page, name = training.page, f"summarized_{vue}".lower()
    training.close_tab()
    training.set(vue=vue)
    page.run("app.rootGraph.clear()")
    load = page.run(
        "(() => {const node = LiteGraph.createNode('StreamCacheCacheLoad'); node.pos = [40, 60]; "
        "app.rootGraph.add(node); node.widgets[0].value = 'watched'; return node.id})()"
    )
    listed = f"app.rootGraph.getNodeById({load}).widgets[0].options.values"
    assert name not in page.run(listed)
    write_pictures(server.base / "input" / name)
    graph = Graph(server)
    save_folder(graph, f"input/{name}", name, texts=False)
    server.succeed(graph.prompt)
    page.wait_for(f"{listed}.includes('{name}')")
    assert page.run(f"app.rootGraph.getNodeById({load}).widgets[0].value") == "watched", "what is chosen stays chosen"
    page.run(f"app.rootGraph.getNodeById({load}).widgets[0].value = '{name}'")
    page.run(
        f"(() => {{const load = app.rootGraph.getNodeById({load}); "
        "const save = LiteGraph.createNode('StreamCacheCacheSave'); save.pos = [420, 60]; app.rootGraph.add(save); "
        f"save.widgets.find((widget) => widget.name === 'name').value = '{name}_copy'; "
        "load.connect(0, save, save.inputs.findIndex((input) => input.name === 'dataset')); "
        "app.canvas.ds.scale = 1; app.canvas.ds.offset = [440, 100]})()"
    )
    training.queue()
    page.wait_for("document.querySelectorAll('.sc-summary li').length === 6")
    assert page.run(SUMMARY).startswith("5 samples · 3 buckets · ")
    assert sorted(int(bar[-1]) for bar in page.run(BARS)) == [1, 1, 1, 1, 3, 3]
    training.shot(f"summary_{'nodes_2' if vue else 'classic'}")


def test_chinese_and_the_light_theme_of_the_training_tab(training: TrainingPage):
    page = training.page
    training.set(vue=False, locale="zh", palette="light")
    training.reload()
    training.open_tab()
    page.wait_for("!document.body.classList.contains('dark-theme')")
    page.wait_for(f"{CARD}?.innerText.includes('数据集') || {CARD}?.innerText.includes('损失')")
    assert "所有训练" in training.text(PANEL)
    assert not page.run(f"/training\\.|nodes\\./.test({PANEL}.innerText)"), "every text is translated"
    colors = (
        f"(({{color, backgroundColor}}) => [color, backgroundColor])(getComputedStyle({PANEL}.closest('.sc-panel')))"
    )
    text, back = page.run(colors)
    assert brightness(back) - brightness(text) > 150
    training.shot("chinese_light")
    training.set(locale="en", palette="dark")
    training.reload()


def write_samples(folder: Path, steps: range, last: int) -> None:
    """Drawn images that emerge from noise: the tiny model of these tests cannot produce presentable ones."""
    folder.mkdir(exist_ok=True)
    scenes = [("at dusk", "red dunes", "and a low sun"), ("at dawn", "blue mountains", "and a pale moon")]
    scenes += [("at noon", "green hills", "and a low sun")]
    for prompt, scene in enumerate(scenes):
        drawn = landscape(1024, 1024, 384, *scene, random.Random(prompt))
        whole = Image.open(io.BytesIO(bytes(drawn.flatten().tolist()))).convert("RGB")
        noise = Image.effect_noise(whole.size, 90).convert("RGB")
        for step in steps:
            share = 0.15 + 0.85 * min(step / last, 1) ** 0.6
            soft = whole.filter(ImageFilter.GaussianBlur(14 * (1 - share)))
            Image.blend(noise, soft, share).save(folder / sample_file_name(step, prompt))


@pytest.mark.skipif(not os.environ.get(UPDATE), reason=f"takes the screenshots of the docs again with {UPDATE}=1")
def test_images_of_the_documentation(training: TrainingPage, server: Server):
    page, runs = training.page, server.base / "output" / "streamcache_runs"
    shutil.rmtree(runs, ignore_errors=True)
    settings = {"lr_schedule": "cosine", "warmup_steps": 60, "rank": 16, "validation_every": 45, "save_every": 0}
    server.succeed(
        train_graph(server, "landscapes_rank_4", 600, **{**settings, "rank": 4, "learning_rate": 8e-4}).prompt
    )
    training.set(vue=True)
    node = training.build("landscapes_rank_16", 900, learning_rate=1e-3, **settings)
    training.queue()
    until(lambda: run_row(server, "landscapes_rank_16").get("step", 0) > 450)
    write_samples(runs / "landscapes_rank_16" / "samples", range(0, 451, 90), 450)
    workflow = page.run("JSON.stringify(app.rootGraph.serialize())")
    training.reload()
    page.resize(1360, 1180)
    page.run(f"app.loadGraphData({workflow}, true, true, null)")
    page.run("app.canvas.ds.scale = 0.9; app.canvas.ds.offset = [600, 90]; app.canvas.setDirty(true, true)")
    training.open_tab()
    page.drag("document.querySelector('.p-splitter-gutter')", 520, 400)
    page.click(TICK % "landscapes_rank_4")
    page.wait_for(f"{NODE}?.querySelector('.sc-picture img')?.naturalWidth > 0")
    page.wait_for("document.querySelectorAll('.sc-training .sc-chart .dashed').length === 2")
    page.run("document.querySelector('.sc-chart').focus()")
    page.press("End", *["ArrowLeft"] * 9, shift=True)
    page.screenshot(ROOT / "docs" / "training_monitor.png")
    box = page.run(
        f"(({{x, y, width, height}}) => [x, y, width, height])({NODE}.closest('.lg-node').getBoundingClientRect())"
    )
    drawn = page.png(box[0] - 12, box[1] - 40, box[2] + 24, box[3] + 52, scale=1.5)
    (ROOT / "docs" / "train_node.png").write_bytes(drawn)
    assert node and run_row(server, "landscapes_rank_16")["live"], "the images show a run that trains"
