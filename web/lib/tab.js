// The content of a sidebar tab. ComfyUI has one element for all such tabs, renders them into it repeatedly, and does not
// always notify a tab when another one takes the element.

import { app } from "../../../scripts/app.js";
import { onLanguageChange } from "./host.js";
import { words } from "./words.js";

let shown = null; // the slot whose panel is in the sidebar

export class TabSlot {
  /** `make(element)` draws a panel into ComfyUI's element: {root, destroy()}. */
  constructor(make) {
    this.make = make;
    this.panel = null;
    this.render = (element) => this.#render(element);
    this.destroy = () => this.#destroy();
  }

  /** Draws the panel again if it is shown, in the language that ComfyUI has now. */
  redraw() {
    const element = this.panel?.root.parentElement;
    if (!element) return;
    this.#destroy();
    this.#render(element);
  }

  #render(element) {
    if (this.panel && element.contains(this.panel.root)) return;
    shown?.destroy();
    this.#destroy();
    this.panel = this.make(element);
    shown = this;
  }

  #destroy() {
    this.panel?.destroy();
    this.panel = null;
    if (shown === this) shown = null;
  }
}

/** Adds the tab to ComfyUI's sidebar. `texts` is where its title and label are among the texts. */
export function registerTab(slot, { id, icon, texts }) {
  const tabs = app.extensionManager.sidebarTab;
  const labels = () => ({ title: words(`${texts}.title`), tooltip: words(`${texts}.title`), label: words(`${texts}.label`) });
  tabs.registerSidebarTab({ id, icon, ...labels(), type: "custom", render: slot.render, destroy: slot.destroy });
  onLanguageChange(() => {
    Object.assign(tabs.sidebarTabs.find((tab) => tab.id === id) ?? {}, labels());
    slot.redraw();
  });
}
