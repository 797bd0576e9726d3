// The content of a sidebar tab. ComfyUI has one element for all such tabs, renders them into it repeatedly, and does not
// always notify a tab when another one takes the element.

let shown = null; // the slot whose panel is in the sidebar

export class TabSlot {
  /** `make(element)` draws a panel into ComfyUI's element: {root, destroy()}. */
  constructor(make) {
    this.make = make;
    this.panel = null;
    this.render = (element) => this.#render(element);
    this.destroy = () => this.#destroy();
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
