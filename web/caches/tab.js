// The sidebar tab. The host calls render again whenever it draws its sidebar anew, with the same element.

import { app } from "../../../scripts/app.js";
import { CACHES_TAB } from "../lib/host.js";
import { useStyle } from "../lib/style.js";
import { words } from "../lib/words.js";
import { acceptDrops } from "./canvas.js";
import { CachesPanel } from "./panel.js";

let panel;

export function registerCachesTab() {
  acceptDrops();
  app.extensionManager.registerSidebarTab({
    id: CACHES_TAB,
    icon: "pi pi-database",
    title: words("caches.title"),
    tooltip: words("caches.title"),
    label: words("caches.label"),
    type: "custom",
    render,
    destroy,
  });
}

/** A setting changes: the host tells so just before it does. */
export function redrawCachesTab() {
  setTimeout(() => panel?.redraw());
}

function render(element) {
  if (panel?.host === element && element.contains(panel.root)) return;
  destroy();
  useStyle("../caches/caches");
  panel = new CachesPanel(element);
  panel.host = element;
}

function destroy() {
  panel?.destroy();
  panel = undefined;
}
