// What a sidebar tab shows. The host has one element for all such tabs, lets them draw into it again and again, and
// does not always tell a tab that another one took it.

let shown = null; // the slot whose panel is in the sidebar

export class TabSlot {
  /** `make(element)` draws a panel into the host's element: {root, destroy()}. */
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
