// What the pages ask of the host's own page: settings, notices, tabs.

import { app } from "../../../scripts/app.js";

export const CACHES_TAB = "streamcache-caches";
export const TRAINING_TAB = "streamcache-training";

export function setting(id, otherwise) {
  return app.extensionManager?.setting?.get(id) ?? otherwise;
}

export function setSetting(id, value) {
  return app.extensionManager.setting.set(id, value);
}

/** A notice in the corner of the page. `severity`: "success" | "info" | "warn" | "error". */
export function notify(severity, summary, detail = "") {
  app.extensionManager.toast.add({ severity, summary, detail, life: severity === "error" ? 8000 : 4000 });
}

/** Shows a sidebar tab, and puts the focus into it: it is asked for by a key or a command. */
export function openTab(id) {
  const tabs = app.extensionManager.sidebarTab;
  if (tabs.activeSidebarTabId !== id) tabs.toggleSidebarTab(id);
  requestAnimationFrame(() => {
    const panel = document.querySelector(".side-bar-panel .sc-panel");
    const seen = (selector) => [...(panel?.querySelectorAll(selector) ?? [])].find((each) => each.checkVisibility());
    (seen("input:not([type=checkbox], [type=range])") ?? seen("button"))?.focus();
  });
}
