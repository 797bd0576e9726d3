// ComfyUI's own page: settings, notices, tabs.

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

/** Shows a sidebar tab and moves the focus into it. */
export function openTab(id) {
  const tabs = app.extensionManager.sidebarTab;
  if (tabs.activeSidebarTabId !== id) tabs.toggleSidebarTab(id);
  requestAnimationFrame(() => {
    const heading = document.querySelector(".side-bar-panel .sc-panel h2");
    if (!heading) return;
    heading.tabIndex = -1; // so that Tab continues from the top, and the key that opened the tab is not typed into a field
    heading.focus();
  });
}

/** Like ComfyUI's own tabs: the key that opened a tab also closes it. */
export function toggleTab(id) {
  const tabs = app.extensionManager.sidebarTab;
  if (tabs.activeSidebarTabId === id) tabs.toggleSidebarTab(id);
  else openTab(id);
}
