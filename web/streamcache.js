// Entry point of the pack's pages: the tab "Datasets", settings, commands and key bindings. training.js adds the tab
// "Training".

import { app } from "../../scripts/app.js";
import { redrawCachesTab, registerCachesTab } from "./caches/tab.js";
import { takeDrops } from "./folders/node_drop.js";
import { CACHES_TAB, toggleTab, TRAINING_TAB } from "./lib/host.js";
import { loadMessages } from "./lib/messages.js";
import { useStyle } from "./lib/style.js";
import { loadWords } from "./lib/words.js";

const SETTINGS = [
  {
    id: "StreamCache.Units",
    name: "File size units",
    category: ["StreamCache", "View", "Units"],
    type: "combo",
    options: ["MB", "MiB"],
    defaultValue: "MB",
    onChange: redrawCachesTab,
  },
  {
    id: "StreamCache.ThumbnailSize",
    name: "Thumbnail size in the Datasets tab (pixels)",
    category: ["StreamCache", "View", "ThumbnailSize"],
    type: "slider",
    attrs: { min: 64, max: 256, step: 8 },
    defaultValue: 88,
    onChange: redrawCachesTab,
  },
  {
    id: "StreamCache.Smoothing",
    name: "Loss curve smoothing",
    tooltip: "0 = raw loss, 0.99 = long-term trend only",
    category: ["StreamCache", "Training", "Smoothing"],
    type: "slider",
    attrs: { min: 0, max: 0.99, step: 0.01 },
    defaultValue: 0.9,
  },
];

app.registerExtension({
  name: "StreamCache.Page",
  settings: SETTINGS,
  commands: [
    {
      id: "StreamCache.OpenCaches",
      label: "Open dataset caches",
      icon: "pi pi-database",
      function: () => toggleTab(CACHES_TAB),
    },
    {
      id: "StreamCache.OpenTraining",
      label: "Open LoRA training",
      icon: "pi pi-chart-line",
      function: () => toggleTab(TRAINING_TAB),
    },
  ],
  // ComfyUI's own tabs use W, N, M and A; ours use Shift, so that no plain key is taken.
  keybindings: [
    { combo: { key: "d", shift: true }, commandId: "StreamCache.OpenCaches" },
    { combo: { key: "t", shift: true }, commandId: "StreamCache.OpenTraining" },
  ],
  menuCommands: [{ path: ["View"], commands: ["StreamCache.OpenCaches", "StreamCache.OpenTraining"] }],
  async setup() {
    useStyle();
    await loadWords().then(loadMessages);
    registerCachesTab();
  },
  nodeCreated: takeDrops,
});
