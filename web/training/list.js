// The list of all runs. The ticked ones are compared on the chart.

import { fill, h, iconButton, roving } from "../lib/dom.js";
import { nameOf } from "../lib/names.js";
import { age, number } from "../lib/units.js";
import { words } from "../lib/words.js";
import { badge } from "./now.js";
import { colorOf } from "./series.js";

export class RunList {
  /** Callbacks: `choose(name, chosen)` when a run is ticked, `open(name)` to show it alone, `remove(name)`. */
  constructor({ choose, open, remove }) {
    Object.assign(this, { choose, open, remove });
    this.items = new Map();
    this.list = h("ul", { class: "sc-runs" });
    this.head = h("h3");
    const tip = h("span", { class: "sc-small sc-soft" }, words("training.compare_tip"));
    this.element = h("section", { class: "sc-stack", "aria-label": words("training.runs") }, h("div", { class: "sc-row wrap" }, this.head, tip), this.list);
    this.roving = roving(this.list, "input, .sc-run-text");
  }

  show(rows, chosen) {
    this.element.hidden = rows.length === 0;
    this.head.textContent = words("training.runs");
    const before = this.items;
    this.items = new Map(rows.map((row) => [row.name, before.get(row.name) ?? this.#make(row.name)]));
    const wanted = [...this.items.values()].map((item) => item.element);
    if (wanted.length !== this.list.children.length || wanted.some((each, place) => this.list.children[place] !== each)) {
      const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
      this.list.replaceChildren(...wanted);
      focused?.focus();
    }
    for (const row of rows) this.#update(row, chosen.includes(row.name));
    this.roving.settle();
  }

  #make(name) {
    const box = h("input", { type: "checkbox", "aria-label": words("training.compare", { name }), onchange: (event) => this.choose(name, event.target.checked) });
    const swatch = h("span", { class: "sc-swatch" });
    const [state, facts] = [h("span"), h("span", { class: "sc-small sc-soft sc-number sc-clip" })];
    const title = nameOf(name, { class: "sc-name" });
    const show = { type: "button", class: "sc-run-text", title: words("training.show_alone"), onclick: () => this.open(name) };
    const text = h("button", show, h("span", { class: "sc-row" }, title, state), facts);
    const bin = iconButton("trash", words("training.remove", { name }), () => this.remove(name));
    const element = h("li", { class: "sc-run", dataset: { run: name } }, h("label", { class: "sc-row sc-run-tick" }, box, swatch), text, bin);
    return { element, box, swatch, state, facts, bin };
  }

  #update(row, chosen) {
    const item = this.items.get(row.name);
    item.box.checked = chosen;
    item.swatch.style.setProperty("--sc-series", chosen ? colorOf(row.name) : "transparent");
    fill(item.state, badge(row));
    const steps = row.steps ? `${number(row.step)} / ${number(row.steps)}` : "";
    item.facts.textContent = [age(row.updated), steps, row.dataset].filter(Boolean).join(" · ");
    item.facts.title = item.facts.textContent;
    item.bin.disabled = row.live;
  }
}
