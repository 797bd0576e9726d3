// Second entry point: the tab "Training", and the panels on Train, Save and Load nodes.

import { app } from "../../scripts/app.js";
import { allNodes } from "./lib/graph.js";
import { TRAINING_TAB } from "./lib/host.js";
import { loadMessages } from "./lib/messages.js";
import { listen } from "./lib/server.js";
import { useStyle } from "./lib/style.js";
import { registerTab, TabSlot } from "./lib/tab.js";
import { loadWords } from "./lib/words.js";
import { keepChosenCaches, keepListsFresh } from "./nodes/cache_list.js";
import { ENCODE, showMissingEncoder, watchEncoders } from "./nodes/encode_notice.js";
import { keepPanelsFresh } from "./nodes/node_panel.js";
import { speakInLists, speakInNotes, speakOnNodes } from "./nodes/node_words.js";
import { LOAD, SAVE, showLastSummary, showSummary } from "./nodes/summary.js";
import { TRAIN } from "./training/again.js";
import { hideImages, showLastRuns, showLiveRuns, showRun, setNodeMessage } from "./training/node_chart.js";
import { TrainingPanel } from "./training/panel.js";
import { store } from "./training/runs.js";

const slot = new TabSlot((element) => {
  useStyle("../training/training");
  return new TrainingPanel(element);
});

/** Shows the output of a node that has run. */
function show(node, output) {
  const facts = output?.streamcache?.[0];
  if (!facts) return;
  if (node.comfyClass === TRAIN && facts.run) showRun(node, facts.run);
  if (node.comfyClass === SAVE || node.comfyClass === LOAD) showSummary(node, facts);
}

app.registerExtension({
  name: "StreamCache.Training",
  async setup() {
    await Promise.all([loadWords().then(loadMessages), useStyle()]);
    speakOnNodes();
    registerTab(slot, { id: TRAINING_TAB, icon: "pi pi-chart-line", texts: "training" });
    keepListsFresh();
    keepPanelsFresh();
    store.subscribe(showLiveRuns);
    listen("executing", (id) => setNodeMessage(id, ""));
    listen("execution_error", (event) => setNodeMessage(event.node_id, event.exception_message));
    listen("execution_interrupted", (event) => setNodeMessage(event.node_id, undefined));
    await store.start();
  },
  nodeCreated(node) {
    speakInLists(node);
    if (node.comfyClass === ENCODE) watchEncoders(node);
    if (![TRAIN, SAVE, LOAD].includes(node.comfyClass)) return;
    if (node.comfyClass === TRAIN) hideImages(node);
    const before = node.onExecuted;
    node.onExecuted = function (output) {
      before?.call(this, output);
      show(this, output);
    };
  },
  // Another workflow, or the same after a reload.
  afterConfigureGraph() {
    speakInNotes(app.rootGraph?.nodes ?? []);
    showLiveRuns();
    for (const node of app.rootGraph?.nodes ?? []) {
      show(node, app.nodeOutputs?.[node.id]);
      if (node.comfyClass === ENCODE) showMissingEncoder(node);
    }
    for (const node of allNodes()) if ([SAVE, LOAD].includes(node.comfyClass)) showLastSummary(node);
    keepChosenCaches();
    showLastRuns();
  },
});
