"""The page for tests of trainings: a workflow on the canvas, the Training tab, screenshots."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamcache.tests.browser.chromium import READY, Page, tab_button
from streamcache.tests.host.families import FAMILIES
from streamcache.tests.host.server import Server
from streamcache.tests.host.trainings import LONG, SETTINGS, ready_dataset

TAB = "streamcache-training"
PANEL = "document.querySelector('.sc-training')"
NODE = "document.querySelector('.sc-run-panel')"
CARD = "document.querySelector('.sc-run-card')"
RUNS = "[...document.querySelectorAll('.sc-run')].map((run) => run.dataset.run)"
IDLE = "app.api.fetchApi('/queue').then((answer) => answer.json()).then((queue) => queue.queue_running.length === 0)"
TICK = "document.querySelector('[data-run=\"%s\"] input')"
# The losses that a chart draws as its smoothed line, in points.
DRAWN = (
    "(%s?.querySelector('.sc-chart path.series:not(.faint):not(.dashed)')?.getAttribute('d') ?? '').split('L').length"
)
BUILD = """((wanted) => {
  app.rootGraph.clear();
  const make = (type, x, y, values) => {
    const node = LiteGraph.createNode(type);
    node.pos = [x, y];
    app.rootGraph.add(node);
    for (const [name, value] of Object.entries(values)) node.widgets.find((each) => each.name === name).value = value;
    return node;
  };
  const load = make('StreamCacheCacheLoad', 40, 90, {name: wanted.dataset});
  const model = make('UNETLoader', 40, 420, {unet_name: wanted.model});
  const train = make('StreamCacheTrain', 420, 60, wanted.train);
  const link = (node, name) => node.connect(0, train, train.inputs.findIndex((input) => input.name === name));
  link(load, 'dataset');
  link(model, 'model');
  if (wanted.vae) link(make('VAELoader', 40, 560, {vae_name: wanted.vae}), 'vae');
  app.canvas.ds.scale = 1;
  app.canvas.ds.offset = [440, 30];
  app.canvas.setDirty(true, true);
  return train.id;
})(%s)"""

# The front end opens the workflow again in the new language, as its tracker knows it, which sees only what users do.
SET_LOCALE = """(async (name, value) => {
  if (app.extensionManager.setting.get(name) === value) return;
  const opened = new Promise((go) => {
    const own = app.loadGraphData;
    app.loadGraphData = function (...values) {
      app.loadGraphData = own;
      return own.apply(this, values).finally(go);
    };
  });
  const tracker = app.extensionManager.workflow.activeWorkflow?.changeTracker;
  (tracker?.captureCanvasState ?? tracker?.checkState)?.call(tracker);
  await app.extensionManager.setting.set(name, value);
  await opened;
})('%s', %s)"""


class TrainingPage:
    """`open_tab`, `build` a workflow, `queue` it; `shot` saves a screenshot."""

    def __init__(self, page: Page, server: Server, folder: Path) -> None:
        self.page, self.server, self.folder = page, server, folder

    def set(self, **settings: Any) -> None:
        """Change settings of ComfyUI."""
        names = {"vue": "VueNodes.Enabled", "locale": "Locale", "palette": "ColorPalette", "sidebar": "Sidebar.Size"}
        for name, value in settings.items():
            change = SET_LOCALE if name == "locale" else "app.extensionManager.setting.set('%s', %s)"
            self.page.run(change % (f"Comfy.{names[name]}", json.dumps(value)))

    def reload(self) -> None:
        """Reload the page. Errors of the front end itself at its start are ignored."""
        self.page.reload()
        self.page.wait_for(f"{READY} && LiteGraph.registered_node_types['StreamCacheSelect']")
        self.page.wait_for(tab_button(TAB))
        self.page.errors.clear()

    def open_tab(self) -> None:
        tabs = "app.extensionManager.sidebarTab"
        self.page.run(f"{tabs}.activeSidebarTabId === '{TAB}' || {tabs}.toggleSidebarTab('{TAB}')")
        self.page.wait_for(PANEL)

    def close_tab(self) -> None:
        tabs = "app.extensionManager.sidebarTab"
        self.page.run(f"{tabs}.activeSidebarTabId && {tabs}.toggleSidebarTab({tabs}.activeSidebarTabId)")

    def build(self, name: str, steps: int = LONG, samples: bool = False, **changes: Any) -> int:
        """Put Load → Train LoRA on the canvas; return the id of the training node."""
        train = {**SETTINGS, "name": name, "steps": steps, "mode": "overwrite", "validation_every": 25}
        # The front end keeps the values of an earlier node with the same id.
        train |= {"sample_every": 0, **changes}
        wanted = {"dataset": ready_dataset(self.server), "model": FAMILIES["flow"].model, "train": train}
        wanted |= {"vae": FAMILIES["flow"].vae} if samples else {}
        return self.page.run(BUILD % json.dumps(wanted))

    def queue(self) -> None:
        self.page.run("app.queuePrompt(0).then(() => true)")

    def refresh(self) -> None:
        self.page.click(f"{PANEL}.parentElement.querySelector('.pi-refresh').parentElement")

    def choose(self, *names: str) -> None:
        """Tick these runs in the list, and no others."""
        for name in names:
            self.page.wait_for(f"{RUNS}.includes('{name}')", 20)
        for name in self.page.run(RUNS):
            if self.page.run(f"{TICK % name}.checked") != (name in names):
                # Not with the mouse: images that appear meanwhile may move the box.
                self.page.run(f"{TICK % name}.click()")

    def send_event(self, **facts: Any) -> None:
        """Dispatch an event as the server sends it during training."""
        self.page.run(
            f"app.api.dispatchEvent(new CustomEvent('streamcache.training', {{detail: {json.dumps(facts)}}}))"
        )

    def kept(self, name: str, what: str) -> Any:
        """What the page has stored of a run, such as `loss`."""
        found = f"store.curves.get({json.dumps(name)})?.{what}"
        return self.page.run(f"import('/extensions/streamcache/training/runs.js').then(({{store}}) => {found})")

    def drawn(self, within: str) -> int:
        return self.page.run(DRAWN % within)

    def text(self, element: str) -> str:
        return self.page.run(f"({element}?.innerText ?? '')")

    def shot(self, name: str) -> None:
        self.page.screenshot(self.folder / f"training_{name}.png")


def write_run(server: Server, name: str, losses: Sequence[float], /, **config: Any) -> Path:
    """Write a finished run to disk, replacing one of the same name. Returns its folder of sample images."""
    folder = server.base / "output" / "streamcache_runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "samples").mkdir(parents=True)
    described = {"status": "done", "step": len(losses), "steps": len(losses), "config": config}
    (folder / "run.json").write_text(json.dumps(described))
    rows = [{"step": step, "epoch": 0, "loss": loss, "learning_rate": 0.001} for step, loss in enumerate(losses, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "samples"
