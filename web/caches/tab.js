// Registers the sidebar tab "Datasets".

import { app } from "../../../scripts/app.js";
import { CACHES_TAB } from "../lib/host.js";
import { useStyle } from "../lib/style.js";
import { TabSlot } from "../lib/tab.js";
import { words } from "../lib/words.js";
import { acceptDrops } from "./canvas.js";
import { CachesPanel } from "./panel.js";

const slot = new TabSlot((element) => {
  for (const name of ["caches", "samples/samples", "details"]) useStyle(`../caches/${name}`);
  return new CachesPanel(element);
});

export function registerCachesTab() {
  acceptDrops();
  app.extensionManager.registerSidebarTab({
    id: CACHES_TAB,
    icon: "pi pi-database",
    title: words("caches.title"),
    tooltip: words("caches.title"),
    label: words("caches.label"),
    type: "custom",
    render: slot.render,
    destroy: slot.destroy,
  });
}

/** A setting is about to change: ComfyUI calls this just before the new value is stored. */
export function redrawCachesTab() {
  setTimeout(() => slot.panel?.redraw());
}
