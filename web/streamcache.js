// The pack's part of the page: the tab of dataset caches, settings, commands and keys. The tab of training is
// training.js.

import { app } from "../../scripts/app.js";
import { redrawCachesTab, registerCachesTab } from "./caches/tab.js";
import { CACHES_TAB, toggleTab, TRAINING_TAB } from "./lib/host.js";
import { useStyle } from "./lib/style.js";
import { loadWords } from "./lib/words.js";

const SETTINGS = [
  {
    id: "StreamCache.Units",
    name: "Units of sizes",
    category: ["StreamCache", "View", "Units"],
    type: "combo",
    options: ["MB", "MiB"],
    defaultValue: "MB",
    onChange: redrawCachesTab,
  },
  {
    id: "StreamCache.ThumbnailSize",
    name: "Size of thumbnails in the tab of dataset caches, in pixels",
    category: ["StreamCache", "View", "ThumbnailSize"],
    type: "slider",
    attrs: { min: 64, max: 256, step: 8 },
    defaultValue: 88,
    onChange: redrawCachesTab,
  },
  {
    id: "StreamCache.Smoothing",
    name: "Smoothing of the loss curve",
    tooltip: "0 shows the loss as it is; 0.99 shows its slowest trend.",
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
  // As the host's own tabs have W, N, M and A; with Shift, so that no plain key is taken.
  keybindings: [
    { combo: { key: "d", shift: true }, commandId: "StreamCache.OpenCaches" },
    { combo: { key: "t", shift: true }, commandId: "StreamCache.OpenTraining" },
  ],
  menuCommands: [{ path: ["View"], commands: ["StreamCache.OpenCaches", "StreamCache.OpenTraining"] }],
  async setup() {
    useStyle();
    await loadWords();
    registerCachesTab();
  },
});
