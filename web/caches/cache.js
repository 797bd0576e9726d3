// One cache: tabs with its samples, its details, and the files that were skipped.

import { busy } from "../lib/busy.js";
import { button, fill, h, iconButton, roving } from "../lib/dom.js";
import { notice } from "../lib/dialog.js";
import { nameOf } from "../lib/names.js";
import { get, isAbort } from "../lib/server.js";
import { number } from "../lib/units.js";
import { words } from "../lib/words.js";
import { About, Skipped } from "./about.js";
import { cacheMenu } from "./actions.js";
import { addLoadNode, makeDraggable } from "./canvas.js";
import { amounts, badges, exactly, origin } from "./facts.js";
import { SamplesTab } from "./samples/samples_tab.js";

const TABS = { samples: SamplesTab, about: About, excluded: Skipped };
let lastTab = "samples";

export class CacheView {
  constructor(panel, name) {
    this.panel = panel;
    this.name = name;
    this.tabs = {};
    this.back = iconButton("arrow-left", words("actions.back"), () => panel.show("list"));
    const menu = () => this.row && cacheMenu(panel, this.row, this.more);
    this.more = iconButton("ellipsis-v", words("caches.more", { name }), menu, { "aria-haspopup": "menu" });
    this.add = iconButton("plus-circle", words("caches.add", { name }), () => addLoadNode(name));
    this.title = nameOf(name, { tag: "h2" });
    makeDraggable(this.title, name);
    this.facts = h("div", { class: "sc-facts" });
    this.bar = h("div", { class: "sc-tabs", role: "tablist", "aria-label": name });
    this.roving = roving(this.bar, ".sc-tab");
    this.stage = h("div", { class: "sc-tab-stage" });
    this.element = h(
      "div",
      { class: "sc-view", dataset: { cache: name }, onkeydown: (event) => this.key(event) },
      h("header", { class: "sc-head" }, this.back, this.title, this.add, this.more),
      this.facts,
      this.bar,
      this.stage,
    );
  }

  destroy() {
    this.asked?.abort();
    for (const tab of Object.values(this.tabs)) tab.destroy?.();
  }

  key(event) {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    if (!event.target.value) this.panel.show("list"); // first clear the text of a search
  }

  focus() {
    this.back.focus();
  }

  broken(error) {
    const again = button(words("actions.again"), () => this.panel.refresh(), { sign: "refresh" });
    fill(this.facts, notice("bad", error.message, again));
  }

  /** The list of caches has been loaded. */
  update({ caches }) {
    const row = caches.find((each) => each.name === this.name);
    if (!row) {
      this.panel.show("list");
      this.panel.report("warn", words("caches.gone", { name: this.name }));
      return;
    }
    const before = this.row;
    this.row = row;
    this.drawFacts();
    this.add.hidden = Boolean(row.problem);
    this.title.draggable = !row.problem;
    if (row.problem) {
      fill(this.bar);
      fill(this.stage, h("div", { class: "sc-body" }, notice("bad", row.problem)));
    } else if (before?.generation !== row.generation || before?.problem || this.unreachable) {
      this.open();
    }
  }

  /** Another generation has other samples: load everything again. */
  open() {
    for (const tab of Object.values(this.tabs)) tab.destroy?.();
    this.tabs = {};
    this.detail = null;
    this.unreachable = false;
    this.drawBar();
    this.show(lastTab);
    this.load();
  }

  async load() {
    this.asked?.abort();
    this.asked = new AbortController();
    const found = await busy(this.panel.root, get("/cache", { name: this.name }, { signal: this.asked.signal })).catch((error) => ({ error }));
    if (found.error) {
      if (!isAbort(found.error)) this.fail(found.error);
      return;
    }
    this.detail = found;
    this.drawBar();
    for (const tab of Object.values(this.tabs)) tab.know?.(found);
  }

  /** Loading failed. If the server did not respond, load everything again once it does. */
  fail(error) {
    this.unreachable ||= error.status === 0;
    this.panel.fail(error);
  }

  drawFacts() {
    const marks = badges(this.row);
    fill(
      this.facts,
      !this.row.problem && h("div", { class: "sc-number" }, amounts(this.row)),
      h("div", { class: "sc-small sc-soft", title: exactly(this.row) }, origin(this.row)),
      marks.length > 0 && h("div", { class: "sc-row wrap sc-badges" }, marks),
    );
  }

  drawBar() {
    const count = this.detail?.excluded?.count ?? 0;
    const names = Object.keys(TABS).filter((name) => name !== "excluded" || count > 0);
    if (this.detail && !names.includes(lastTab)) this.show("samples");
    fill(
      this.bar,
      names.map((name) =>
        h(
          "button",
          {
            type: "button",
            role: "tab",
            class: "sc-tab",
            id: `sc-tab-${name}`,
            "aria-controls": "sc-tab-panel",
            "aria-selected": String(name === lastTab),
            tabIndex: name === lastTab ? 0 : -1,
            onclick: () => this.show(name),
            onfocus: () => name !== lastTab && this.show(name),
          },
          words(`caches.tab_${name}`),
          name === "excluded" && h("span", { class: "sc-badge warn" }, number(count)),
        ),
      ),
    );
  }

  show(name) {
    lastTab = name;
    const tab = (this.tabs[name] ??= new TABS[name](this));
    if (this.detail && !tab.known) {
      tab.known = true;
      tab.know?.(this.detail);
    }
    fill(this.stage, tab.element);
    Object.assign(this.stage, { id: "sc-tab-panel", role: "tabpanel" });
    this.stage.setAttribute("aria-labelledby", `sc-tab-${name}`);
    for (const each of this.bar.children) {
      each.setAttribute("aria-selected", String(each.id === `sc-tab-${name}`));
      each.tabIndex = each.id === `sc-tab-${name}` ? 0 : -1;
    }
    tab.shown?.();
  }
}
