// The pack's second part of the page: the tab of training, and what Train, Save and Load nodes show after they ran.

import { app } from "../../scripts/app.js";
import { TRAINING_TAB } from "./lib/host.js";
import { listen } from "./lib/server.js";
import { useStyle } from "./lib/style.js";
import { TabSlot } from "./lib/tab.js";
import { loadWords, words } from "./lib/words.js";
import { keepListsFresh } from "./nodes/cache_list.js";
import { LOAD, SAVE, showSummary } from "./nodes/summary.js";
import { hidePictures, showLastRuns, showLiveRuns, showRun, tellNode, TRAIN } from "./training/node_chart.js";
import { TrainingPanel } from "./training/panel.js";
import { store } from "./training/runs.js";

const slot = new TabSlot((element) => {
  useStyle("../training/training");
  return new TrainingPanel(element);
});

function registerTab() {
  const title = words("training.title");
  app.extensionManager.registerSidebarTab({
    id: TRAINING_TAB,
    icon: "pi pi-chart-line",
    title,
    label: words("training.label"),
    tooltip: title,
    type: "custom",
    render: slot.render,
    destroy: slot.destroy,
  });
}

/** What the server says of a node that ran. */
function show(node, output) {
  const facts = output?.streamcache?.[0];
  if (!facts) return;
  if (node.comfyClass === TRAIN && facts.run) showRun(node, facts.run);
  if (node.comfyClass === SAVE || node.comfyClass === LOAD) showSummary(node, facts);
}

app.registerExtension({
  name: "StreamCache.Training",
  async setup() {
    await Promise.all([loadWords(), useStyle()]);
    registerTab();
    keepListsFresh();
    store.subscribe(showLiveRuns);
    listen("executing", (id) => tellNode(id, ""));
    listen("execution_error", (told) => tellNode(told.node_id, told.exception_message));
    listen("execution_interrupted", (told) => tellNode(told.node_id, undefined));
    await store.start();
  },
  nodeCreated(node) {
    if (![TRAIN, SAVE, LOAD].includes(node.comfyClass)) return;
    if (node.comfyClass === TRAIN) hidePictures(node);
    const before = node.onExecuted;
    node.onExecuted = function (output) {
      before?.call(this, output);
      show(this, output);
    };
  },
  // Another workflow, or the same after a reload.
  afterConfigureGraph() {
    showLiveRuns();
    for (const node of app.graph?.nodes ?? []) show(node, app.nodeOutputs?.[node.id]);
    showLastRuns();
  },
});
