"""The grid in the Training tab: drawn on request through ComfyUI's queue, kept with the run."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from streamcache.lora_train import KeptPicture, KeptPictures
from streamcache.tests.browser.training_page import PANEL, TrainingPage, write_run
from streamcache.tests.host.server import Server
from streamcache.tests.host.tiny_models import TEXT_ENCODER

pytestmark = pytest.mark.browser

LAYER = "diffusion_model.joint_blocks.0.x_block.attn.qkv"
GRID = f"{PANEL}.querySelector('.sc-grid')"
IMAGES = f"[...{GRID}.querySelectorAll('td img')]"
DRAW = f"{GRID}.querySelector('.sc-button:not(.plain)')"
DIALOG = "document.querySelector('.sc-dialog[open]')"
NODES = "app.rootGraph.nodes.filter((node) => node.comfyClass === 'StreamCacheLoraGrid')"
FILL = "((name, value) => { document.querySelector(`.sc-dialog[open] [name=${name}]`).value = value; })('%s', %s)"
# A text encoder for the grid; small pictures, so that the test takes seconds.
PREPARE = """((clip, sizes) => {
  const load = LiteGraph.createNode('CLIPLoader');
  load.pos = [40, 700];
  app.rootGraph.add(load);
  load.widgets[0].value = clip;
  load.widgets[1].value = 'sd3';
  const grid = LiteGraph.createNode('StreamCacheLoraGrid');
  grid.pos = [900, 60];
  app.rootGraph.add(grid);
  for (const [name, value] of Object.entries(sizes)) grid.widgets.find((each) => each.name === name).value = value;
})(%s, %s)"""


def write_exports(server: Server, name: str) -> None:
    """A finished run with the LoRAs of two steps."""
    folder = write_run(server, name, [0.5, 0.4, 0.3], rank=2).parent
    loras = server.base / "output" / "loras"
    loras.mkdir(exist_ok=True)
    files = {f"{name}-000500.safetensors": 500, f"{name}.safetensors": 1000}
    for file, step in files.items():
        random = torch.Generator().manual_seed(step)
        tensors = {
            f"{LAYER}.lora_up.weight": torch.randn(384, 2, generator=random) * 0.3,
            f"{LAYER}.lora_down.weight": torch.randn(2, 128, generator=random) * 0.3,
        }
        save_file(tensors, loras / file)
    described = json.loads((folder / "run.json").read_text())
    described["exports"] = [{"file": file, "step": step, "epoch": 1} for file, step in files.items()]
    described |= {"lora": str(loras / f"{name}.safetensors"), "prompts": ["a cat on a wall", "a dog"]}
    (folder / "run.json").write_text(json.dumps(described))


def ask(training: TrainingPage, **values: str) -> None:
    """Open the dialog, change fields, and press its main button."""
    training.page.click(DRAW)
    training.page.wait_for(DIALOG, 10)
    for name, value in values.items():
        training.page.run(FILL % (name, json.dumps(value)))
    training.page.click(f"{DIALOG}.querySelector('[type=submit]')")


@pytest.mark.both_front_ends
def test_i2_a_grid_of_a_run_is_drawn_on_request_and_grows(training: TrainingPage, server: Server):
    page = training.page
    write_exports(server, "gridded")
    training.build("gridded", samples=True)
    sizes = {"run": "gridded", "steps": 1, "width": 64, "height": 64, "cfg": 2}
    page.run(PREPARE % (json.dumps(TEXT_ENCODER), json.dumps(sizes)))
    training.open_tab()
    training.refresh()
    training.choose("gridded")
    page.wait_for(f"{GRID} && !{GRID}.hidden", 10)
    assert page.run(f"{IMAGES}.length") == 0

    page.click(DRAW)
    page.wait_for(DIALOG, 10)
    page.wait_for(f"{DIALOG}.querySelector('[name=prompts]').value.trim() === 'a cat on a wall\\na dog'", 10)
    training.shot("grid_dialog")
    page.run(FILL % ("strengths", json.dumps("0.6, 1")))
    page.click(f"{DIALOG}.querySelector('[type=submit]')")
    page.wait_for(f"!{DIALOG}", 20)
    page.wait_for(f"{IMAGES}.length === 2 * 5", 120)
    page.wait_for(f"{IMAGES}.slice(0, 3).every((each) => each.naturalWidth === 64)", 20)
    heads = page.run(f"[...{GRID}.querySelectorAll('thead th')].map((each) => each.textContent)")
    assert heads == [
        "without LoRA", "gridded · step 500 · × 0.6", "gridded · step 500 · × 1",
        "gridded · step 1,000 · × 0.6", "gridded · step 1,000 · × 1",
    ]  # fmt: skip
    assert page.run(f"{NODES}.length") == 1
    index = server.base / "output" / "streamcache_runs" / "gridded" / "grid" / "index.json"
    before = json.loads(index.read_text())["pictures"]
    training.shot("grid")

    ask(training, prompts="a cat on a wall\na house by the sea")
    page.wait_for(f"{IMAGES}.length === 13", 120)
    after = json.loads(index.read_text())["pictures"]
    assert after[: len(before)] == before and len(after) == 13, "no picture is drawn twice"
    images = [Path(index.parent / row["file"]).read_bytes() for row in after]
    assert len(set(images)) == 13


def test_i2_a_picture_is_enlarged_and_arrow_keys_move_along_the_grid(training: TrainingPage):
    page = training.page
    training.open_tab()
    training.choose("gridded")
    page.wait_for(f"{IMAGES}.length === 13", 20)
    page.click(f"{IMAGES}[0].parentElement")
    page.wait_for("document.querySelector('.sc-grid-stage img')?.alt === 'a cat on a wall · without LoRA'", 10)
    page.press("ArrowRight")
    shown = "document.querySelector('.sc-grid-stage img').alt"
    assert page.run(shown) == "a cat on a wall · gridded · step 500 · × 0.6"
    page.press("ArrowDown")
    assert page.run(shown) == "a dog · gridded · step 500 · × 0.6"
    training.shot("grid_large")
    page.press("Escape")
    page.wait_for("!document.querySelector('.sc-grid-stage')", 10)
    page.click(f"{GRID}.querySelector('.pi-window-maximize').parentElement")
    page.wait_for("document.querySelectorAll('.sc-grid-whole td img').length === 13", 10)
    training.shot("grid_whole")
    page.press("Escape")
    page.wait_for("!document.querySelector('.sc-grid-whole')", 10)


def test_i2_pictures_of_different_models_are_in_different_columns(training: TrainingPage, server: Server):
    write_exports(server, "two_models")
    kept = KeptPictures(server.base / "output" / "streamcache_runs" / "two_models" / "grid")
    for number, base in enumerate(("aaaa1111", "bbbb2222")):
        key = f"{number:032x}"
        row = KeptPicture(key, f"{key}.png", "a cat", "", 1, "", "", None, 0.0, {"steps": 2}, base)
        kept.keep(row, torch.zeros(1, 4, 2, 2), torch.full((1, 16, 16, 3), number / 2))
    training.open_tab()
    training.refresh()
    training.choose("two_models")
    training.page.wait_for(f"{IMAGES}.length === 2", 20)
    heads = training.page.run(f"[...{GRID}.querySelectorAll('thead th')].map((each) => each.textContent)")
    assert heads == ["without LoRA · model aaaa1111", "without LoRA · model bbbb2222"]


def test_i2_without_models_on_the_canvas_the_node_is_added_and_the_page_says_what_to_connect(training: TrainingPage):
    page = training.page
    page.run("app.rootGraph.clear()")
    training.open_tab()
    training.choose("gridded")
    ask(training, prompts="")
    page.wait_for(f"{DIALOG}.innerText.includes('Write at least one prompt')", 10)
    page.run(FILL % ("prompts", json.dumps("a cat")))
    page.click(f"{DIALOG}.querySelector('[type=submit]')")
    page.wait_for(f"{DIALOG}.innerText.includes('Connect MODEL, VAE, CLIP to it')", 10)
    assert page.run(f"{NODES}.map((node) => node.widgets.find((each) => each.name === 'run').value)") == ["gridded"]
    page.press("Escape")
    page.wait_for(f"!{DIALOG}", 10)


@pytest.mark.parametrize(("vue", "palette"), [(False, "light"), (True, "dark")])
def test_i2_the_grid_and_its_node_are_readable_in_both_renderers_and_themes(
    training: TrainingPage, vue: bool, palette: str
):
    page = training.page
    training.set(vue=vue, palette=palette)
    page.run("app.rootGraph.clear()")
    page.run(PREPARE % (json.dumps(TEXT_ENCODER), "{}"))
    training.open_tab()
    training.choose("gridded")
    page.wait_for(f"{IMAGES}.length === 13", 20)
    page.run(f"{GRID}.scrollIntoView()")
    page.run("app.canvas.ds.scale = 0.9; app.canvas.ds.offset = [-300, 60]; app.canvas.setDirty(true, true)")
    page.run("new Promise((go) => setTimeout(go, 700))")
    training.shot(f"grid_{'vue' if vue else 'canvas'}_{palette}")
    names = page.run(f"{NODES}[0].widgets.map((each) => each.name)")
    assert {"prompts", "negative", "loras", "run", "strengths", "sampler"} <= set(names)
