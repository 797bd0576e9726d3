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

/** Calls back when the user has chosen another language. ComfyUI may report the choice before it applies it. */
export function onLanguageChange(callback) {
  app.ui.settings.addEventListener("Comfy.Locale.change", () => setTimeout(callback));
}

/** A notice in the corner of the page. `kind`: "success" | "error". */
export function notify(kind, summary, detail = "") {
  const { toast } = app.extensionManager;
  const milliseconds = kind === "error" ? 8000 : 4000;
  // Older front ends have only `add`; newer ones a function for each kind.
  if (toast[kind]) toast[kind](summary, { description: detail || undefined, duration: milliseconds });
  else toast.add({ severity: kind, summary, detail, life: milliseconds });
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
