"""The page after training: files, nodes on the canvas, settings, labels, search, and runs of other processes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from streamcache.tests.browser.axe import violations
from streamcache.tests.browser.finished_runs import SETTINGS, draw_samples, falling, write_finished
from streamcache.tests.browser.training_page import CARD, PANEL, RUNS, TrainingPage
from streamcache.tests.host.server import Server
from streamcache.tests.host.trainings import run_row, train_graph, until

pytestmark = [pytest.mark.browser, pytest.mark.both_front_ends]
BUTTON = f"[...{CARD}.querySelectorAll('.sc-button')].find((each) => each.textContent === '%s')"
NODES = "app.rootGraph.nodes.filter((node) => node.comfyClass === '%s')"
VALUES = "Object.fromEntries(%s.widgets.map((widget) => [widget.name, widget.value]))"
LINKED = "%s.inputs.filter((input) => input.link != null).map((input) => input.name).sort().join()"
ENCODER = """((train) => {
  const load = LiteGraph.createNode('CLIPLoader');
  app.rootGraph.add(load);
  load.connect(0, train, train.inputs.findIndex((input) => input.name === 'clip'));
})(app.rootGraph.getNodeById(%s))"""
DIALOG = "document.querySelector('dialog.sc')"
RENDERERS = pytest.mark.parametrize("vue", [False, True], ids=["classic", "nodes_2"])
EXPORTS = (100, 200, 300)


def show(training: TrainingPage, name: str) -> None:
    training.open_tab()
    training.refresh()
    training.choose(name)
    training.page.wait_for(f"{CARD}?.querySelector('h3').innerText.includes('{name}')", 20)
    training.page.wait_for(BUTTON % "Train again", 20)


def values(training: TrainingPage, kind: str) -> dict[str, Any]:
    return training.page.run(VALUES % f"{NODES % kind}.at(-1)")


@RENDERERS
def test_each_file_of_a_run_is_downloaded_or_put_on_the_canvas(training: TrainingPage, server: Server, vue: bool):
    page = training.page
    write_finished(server, "filed", falling(400), EXPORTS)
    training.set(vue=vue)
    page.run("app.rootGraph.clear()")
    show(training, "filed")
    rows = f"[...{CARD}.querySelectorAll('.sc-files li')]"
    steps = page.run(f"{rows}.map((row) => row.dataset.step)")
    assert steps == ["100", "200", "300", "400"]
    assert page.run(f"{rows}.filter((row) => row.innerText.includes('best')).length") == 1
    file, data = page.saved_file(f"{rows}[1].querySelector('a')")
    path = server.base / "output" / "loras" / "filed-000200.safetensors"
    assert (file, data) == (path.name, path.read_bytes())
    assert page.saved_file(BUTTON % "Download")[0] == "filed.safetensors"
    page.click(f"{rows}[0].querySelector('button')")
    assert values(training, "LoraLoader")["lora_name"] == "filed-000100.safetensors"
    page.click(BUTTON % "Add Load LoRA")
    assert values(training, "LoraLoader")["lora_name"] == "filed.safetensors"
    assert page.run(f"{NODES % 'LoraLoader'}.length") == 2
    training.shot(f"result_{'nodes_2' if vue else 'classic'}")
    training.set(vue=False)


@RENDERERS
def test_a_run_is_trained_again_with_its_settings_and_resumed(training: TrainingPage, server: Server, vue: bool):
    page, name = training.page, f"again_{vue}".lower()
    changes = {"rank": 3, "optimizer": "Adafactor", "caption_dropout": 0.25, "group_rates": "attention=0.5"}
    server.succeed(train_graph(server, name, 12, sample_cfg=2.5, **{**changes, "caption_dropout": 0.0}).prompt)
    first = run_config(server, name)
    training.set(vue=vue)
    training.build(name)  # another node, whose model the new one takes
    page.run(f"window.old = {NODES % 'StreamCacheTrain'}[0].id")
    show(training, name)
    page.click(BUTTON % "Train again")
    page.wait_for(f"{NODES % 'StreamCacheTrain'}.length === 2", 20)
    filled = values(training, "StreamCacheTrain")
    assert (filled["rank"], filled["optimizer"], filled["group_rates"]) == (3, "Adafactor", "attention=0.5")
    assert (filled["name"], filled["mode"], filled["sample_cfg"]) == (name, "new", 2.5)
    node = f"{NODES % 'StreamCacheTrain'}.find((node) => node.id !== window.old)"
    assert page.run(LINKED % node) == "dataset,model"
    page.run("app.rootGraph.remove(app.rootGraph.getNodeById(window.old))")
    training.queue()
    until(lambda: run_row(server, f"{name}-2").get("status") == "done", 120)
    again = run_config(server, f"{name}-2")
    assert again == {**first, "name": f"{name}-2"}
    assert same_lora(server, name, f"{name}-2"), "the same settings train the same LoRA"
    show(training, name)
    page.click(BUTTON % "Resume")
    filled = values(training, "StreamCacheTrain")
    assert (filled["name"], filled["mode"]) == (name, "resume") and page.run(
        f"{NODES % 'StreamCacheTrain'}.length"
    ) == 1
    page.run(f"{NODES % 'StreamCacheTrain'}[0].widgets.find((widget) => widget.name === 'steps').value = 15")
    training.queue()
    until(lambda: run_row(server, name)["step"] == 15, 120)
    training.set(vue=False)


def run_config(server: Server, name: str) -> dict[str, Any]:
    return json.loads((server.base / "output/streamcache_runs" / name / "run.json").read_text())["config"]


def same_lora(server: Server, *names: str) -> bool:
    found = []
    for name in names:
        with safe_open(server.base / "output" / "loras" / f"{name}.safetensors", framework="np") as file:
            found.append({key: file.get_tensor(key).tobytes() for key in file.keys()})  # noqa: SIM118
    return found[0] == found[1]


def test_a_run_without_a_node_on_the_canvas_is_resumed_by_a_new_one(training: TrainingPage, server: Server):
    page = training.page
    write_finished(server, "alone", falling(400), status="stopped", host={"guidance": 3.5}, dataset="/x/gone_set")
    page.run("app.rootGraph.clear()")
    show(training, "alone")
    page.click(BUTTON % "Resume")
    filled = values(training, "StreamCacheTrain")
    assert {key: filled[key] for key in ("name", "mode", "guidance")} == {
        "name": "alone",
        "mode": "resume",
        "guidance": 3.5,
    }
    assert {key: filled[key] for key in SETTINGS} == SETTINGS
    assert page.run(LINKED % f"{NODES % 'StreamCacheTrain'}[0]") == "dataset"
    assert values(training, "StreamCacheCacheLoad")["name"] == "gone_set"
    page.run("app.rootGraph.clear()")


def test_i3_a_renamed_run_is_trained_again_under_its_name_with_the_text_encoder(training: TrainingPage, server: Server):
    page = training.page
    write_finished(server, "renamed", falling(30), config={**SETTINGS, "name": "before"})
    node = training.build("other")
    page.run(ENCODER % node)
    show(training, "renamed")
    page.click(BUTTON % "Train again")
    page.wait_for(f"{NODES % 'StreamCacheTrain'}.length === 2", 20)
    assert values(training, "StreamCacheTrain")["name"] == "renamed"
    assert page.run(LINKED % f"{NODES % 'StreamCacheTrain'}.at(-1)") == "clip,model"
    page.run("app.rootGraph.clear()")


def test_a_run_is_renamed_tagged_and_found(training: TrainingPage, server: Server):
    page = training.page
    for number in range(5):
        write_finished(server, f"found_{number}", falling(30, number))
    show(training, "found_3")
    assert "r" in page.run(f"{CARD}.querySelector('.sc-settings').textContent")
    page.click(BUTTON % "Edit…")
    page.wait_for(DIALOG, 20)
    assert violations(page, "dialog.sc") == []
    fields = f"[...{DIALOG}.querySelectorAll('.sc-field')]"
    for place, text in enumerate(("hands", "best, for Anna", "sharp hands\\nat 0.8")):
        page.run(f"{fields}[{place}].value = '{text}'")
    page.click(f"[...{DIALOG}.querySelectorAll('button')].at(-1)")
    page.wait_for(f"!{DIALOG}", 20)
    page.wait_for(f"{RUNS}.includes('hands') && !{RUNS}.includes('found_3')", 20)
    page.wait_for(f"{CARD}.querySelector('h3').innerText.includes('hands')", 20)
    row = run_row(server, "hands")
    assert (row["tags"], row["comment"]) == (["best", "for Anna"], "sharp hands\nat 0.8")
    assert row["lora"] == "found_3.safetensors"
    search = f"{PANEL}.querySelector('.sc-search input')"
    type_in = "(({target, text}) => {target.value = text; target.dispatchEvent(new Event('input'))})"
    for text in ("anna BEST", "hands 0.8"):
        page.run(f"{type_in}({{target: {search}, text: '{text}'}})")
        page.wait_for(f"{RUNS}.join() === 'hands'", 10)
    training.shot("searched")
    page.run(f"{type_in}({{target: {search}, text: 'nothing like it'}})")
    page.wait_for(f"{RUNS}.length === 0 && {PANEL}.innerText.includes('No run fits')", 10)
    page.run(f"{type_in}({{target: {search}, text: ''}})")
    page.wait_for(f"{RUNS}.length >= 5", 10)
    page.click(BUTTON % "Edit…")
    page.wait_for(DIALOG, 20)
    page.run(f"{fields}[0].value = 'found_1'")
    page.click(f"[...{DIALOG}.querySelectorAll('button')].at(-1)")
    page.wait_for(f"{DIALOG}.querySelector('.sc-notice.bad')?.innerText.includes('another run named found_1')", 10)
    page.press("Escape")
    page.errors.clear()  # the console reports the refusal


def test_sample_images_have_their_captions(training: TrainingPage, server: Server):
    page = training.page
    prompts = ["a red cat on a sofa", "a blue dog, " * 30]
    folder = write_finished(server, "captioned", falling(400), EXPORTS, prompts=prompts, tags=["sofa"])
    draw_samples(folder, (100, 400), 2)
    show(training, "captioned")
    captions = f"[...{PANEL}.querySelectorAll('.sc-pictures figcaption')].map((each) => each.textContent)"
    page.wait_for(f"{captions}.length === 2", 20)
    assert page.run(captions) == prompts
    training.shot("captions")
    page.click(f"{PANEL}.querySelector('.sc-picture')")
    page.wait_for("document.querySelector('.sc-large h2')?.textContent.includes('a red cat on a sofa')", 20)
    page.press("Escape")


def test_runs_of_other_processes_appear_and_go_on_by_themselves(training: TrainingPage, server: Server):
    page = training.page
    write_finished(server, "mine", falling(30))
    show(training, "mine")
    questions = (
        "performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/streamcache/runs')).length"
    )
    page.run("performance.clearResourceTimings()")
    page.run("new Promise((go) => setTimeout(go, 11000))")
    assert page.run(questions) == 0, "the list is loaded again only if something changed"
    folder = write_finished(server, "elsewhere", falling(30))
    page.wait_for(f"{RUNS}.includes('elsewhere')", 20)
    training.choose("elsewhere")
    until(lambda: len(training.kept("elsewhere", "loss") or []) == 30, 20)
    with open(folder / "metrics.jsonl", "a") as file:
        row = {"step": 31, "epoch": 0, "loss": 0.125, "learning_rate": 1e-4, "time": 62.0, "gradient_norm": 1.0}
        file.write(json.dumps(row) + "\n")
    change(folder, step=31)
    until(lambda: training.kept("elsewhere", "loss.at(-1)") == [31, 0.125], 20)


def change(folder: Path, **facts: Any) -> None:
    path = folder / "run.json"
    described = json.loads(path.read_text())
    path.write_text(json.dumps({**described, **facts, "updated": os.stat(folder / "metrics.jsonl").st_mtime}))


def test_chinese_and_light_after_a_training(training: TrainingPage, server: Server):
    page = training.page
    folder = write_finished(server, "chinese", falling(400), EXPORTS, prompts=["一只猫", "a dog"], tags=["最好"])
    draw_samples(folder, (100, 400), 2)
    training.set(locale="zh", palette="light")
    training.reload()
    training.open_tab()
    training.choose("chinese")
    page.wait_for(f"{CARD}?.innerText.includes('再次训练')", 20)
    page.wait_for(f"{PANEL}.querySelectorAll('.sc-pictures figcaption').length === 2", 20)
    assert not page.run(f"/training\\.|nodes\\./.test({PANEL}.innerText)"), "every text is translated"
    training.shot("result_chinese_light")
    page.run("new Promise((go) => setTimeout(go, 700))")
    assert violations(page, ".sc-panel") == []
    training.set(locale="en", palette="dark")
    training.reload()
