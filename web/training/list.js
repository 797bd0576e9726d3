// The list of all runs. The ticked ones are compared on the chart.

import { fill, h, icon, iconButton, roving } from "../lib/dom.js";
import { nameOf } from "../lib/names.js";
import { age, number } from "../lib/units.js";
import { words } from "../lib/words.js";
import { badge } from "./now.js";
import { colorOf, dashOf } from "./series.js";

const FEW = 5; // runs are found without a search

export class RunList {
  /** Callbacks: `choose(name, chosen)` when a run is ticked, `open(name)` to show it alone, `remove(name)`. */
  constructor({ choose, open, remove }) {
    Object.assign(this, { choose, open, remove });
    this.items = new Map();
    this.list = h("ul", { class: "sc-runs" });
    this.head = h("h3");
    this.field = h("input", { type: "search", class: "sc-field", placeholder: words("training.search"), "aria-label": words("training.search"), oninput: () => this.show(this.rows, this.chosen) });
    this.search = h("div", { class: "sc-search" }, icon("search"), this.field);
    this.none = h("p", { class: "sc-small sc-soft", role: "status" });
    const tip = h("span", { class: "sc-small sc-soft" }, words("training.compare_tip"));
    this.element = h("section", { class: "sc-stack", "aria-label": words("training.runs") }, h("div", { class: "sc-row wrap" }, this.head, tip), this.search, this.list, this.none);
    this.roving = roving(this.list, "input, .sc-run-text");
  }

  show(all, chosen) {
    Object.assign(this, { rows: all, chosen });
    this.element.hidden = all.length === 0;
    this.head.textContent = words("training.runs");
    this.search.hidden = all.length < FEW && !this.field.value;
    const rows = all.filter((row) => fits(row, this.field.value));
    this.none.textContent = rows.length ? "" : words("training.none_found");
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
    const [state, facts, tags] = [h("span"), h("span", { class: "sc-small sc-soft sc-number sc-clip" }), h("span", { class: "sc-row wrap sc-tags" })];
    const title = nameOf(name, { class: "sc-name" });
    const show = { type: "button", class: "sc-run-text", title: words("training.show_alone"), onclick: () => this.open(name) };
    const text = h("button", show, h("span", { class: "sc-row" }, title, state), facts, tags);
    const bin = iconButton("trash", words("training.remove", { name }), () => this.remove(name));
    const element = h("li", { class: "sc-run", dataset: { run: name } }, h("label", { class: "sc-row sc-run-tick" }, box, swatch), text, bin);
    return { element, box, swatch, state, facts, tags, bin };
  }

  #update(row, chosen) {
    const item = this.items.get(row.name);
    item.box.checked = chosen;
    item.swatch.className = `sc-swatch ${chosen ? dashOf(row.name) : ""}`;
    item.swatch.style.setProperty("--sc-series", chosen ? colorOf(row.name) : "transparent");
    fill(item.state, badge(row));
    const steps = row.steps ? `${number(row.step)} / ${number(row.steps)}` : "";
    item.facts.textContent = [age(row.updated), steps, row.dataset].filter(Boolean).join(" · ");
    item.facts.title = item.facts.textContent;
    fill(item.tags, row.tags?.map((tag) => h("span", { class: "sc-tag" }, tag)));
    item.bin.disabled = row.live;
  }
}

/** Whether every word of a search is in what the list knows of a run. */
function fits(row, search) {
  const text = [row.name, row.dataset, row.comment, row.lora, words(`training.status.${row.status}`), ...(row.tags ?? [])].join("\n").toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}
