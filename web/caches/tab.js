// Registers the sidebar tab "Datasets".

import { CACHES_TAB } from "../lib/host.js";
import { useStyle } from "../lib/style.js";
import { registerTab, TabSlot } from "../lib/tab.js";
import { acceptDrops } from "./canvas.js";
import { CachesPanel } from "./panel.js";

const slot = new TabSlot((element) => {
  for (const name of ["caches", "samples/samples", "details", "../folders/folders", "../curate/curate"]) useStyle(`../caches/${name}`);
  return new CachesPanel(element);
});

export function registerCachesTab() {
  acceptDrops();
  registerTab(slot, { id: CACHES_TAB, icon: "pi pi-database", texts: "caches" });
}

/** A setting is about to change: ComfyUI calls this just before the new value is stored. */
export function redrawCachesTab() {
  setTimeout(() => slot.panel?.redraw());
}
