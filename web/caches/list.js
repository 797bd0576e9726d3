// The list of all caches: search, order, and how to make the first one.

import { button, debounce, fill, h, icon, iconButton, roving } from "../lib/dom.js";
import { notice } from "../lib/dialog.js";
import { FIRST_STEPS, openExample } from "../lib/example.js";
import { post } from "../lib/server.js";
import { nameOf } from "../lib/names.js";
import { number } from "../lib/units.js";
import { words } from "../lib/words.js";
import { cacheMenu } from "./actions.js";
import { addLoadNode, makeDraggable } from "./canvas.js";
import { addButton, addSign, FolderSection } from "../folders/section.js";
import { RemoteSection } from "./remotes.js";
import { amounts, badges, cover, encoders, exactly, origin } from "./facts.js";

const ORDERS = {
  newest: (a, b) => (b.published ?? 0) - (a.published ?? 0),
  name: (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }),
  largest: (a, b) => (b.bytes ?? 0) - (a.bytes ?? 0),
  samples: (a, b) => (b.samples ?? 0) - (a.samples ?? 0),
};
const FIRST = 60; // more are drawn on request
const memory = { search: "", order: "newest", opened: "", runs: false };

export class ListView {
  constructor(panel) {
    this.panel = panel;
    this.most = FIRST;
    this.cards = h("ul", { class: "sc-cards", "aria-label": words("caches.title") });
    this.state = h("div", { "aria-live": "polite" }, h("div", { class: "sc-empty" }, h("div", { class: "sc-spin" })));
    this.runs = new RunCaches((row) => this.card(row));
    this.lists = h("div", {}, this.cards, this.runs.element);
    this.roving = roving(this.lists, ".sc-card-open");
    this.trash = button("", () => panel.show("trash"), { sign: "trash", look: "plain" });
    this.count = h("span", { class: "sc-soft sc-small sc-grow" });
    this.foot = h("div", { class: "sc-foot" }, this.count, this.trash);
    this.tools = h("div", { class: "sc-tools" }, this.searchField(), this.orderField());
    this.folders = new FolderSection(panel);
    this.remotes = new RemoteSection(panel);
    const refresh = () => (panel.refresh(), this.folders.load(), this.remotes.load(true));
    this.element = h(
      "div",
      { class: "sc-view" },
      h(
        "header",
        { class: "sc-head" },
        h("h2", {}, words("caches.title")),
        addSign(panel),
        iconButton("refresh", words("actions.refresh"), refresh),
      ),
      this.tools,
      h("div", { class: "sc-body" }, this.folders.element, this.state, this.lists, this.remotes.element),
      this.foot,
    );
  }

  destroy() {
    this.folders.destroy();
    this.remotes.destroy();
  }

  searchField() {
    const label = words("caches.search");
    const search = debounce((text) => {
      memory.search = text;
      this.draw();
    }, 120);
    const field = h("input", {
      class: "sc-field",
      type: "search",
      placeholder: label,
      "aria-label": label,
      value: memory.search,
      oninput: () => search(field.value),
    });
    return h("div", { class: "sc-search" }, icon("search"), field);
  }

  orderField() {
    const field = h(
      "select",
      { class: "sc-field sc-order", "aria-label": words("caches.order"), title: words("caches.order") },
      Object.keys(ORDERS).map((name) => h("option", { value: name }, words(`caches.order_${name}`))),
    );
    field.value = memory.order;
    field.addEventListener("change", () => {
      memory.order = field.value;
      this.draw();
    });
    return field;
  }

  update(list) {
    this.list = list;
    this.draw();
  }

  /** The list could not be loaded. */
  broken(error) {
    const again = button(words("actions.again"), () => this.panel.refresh(), { sign: "refresh" });
    fill(this.state, notice("bad", error.message, again));
  }

  focus() {
    this.wantsFocus = this.folders.wantsFocus = true;
    if (this.list) this.restoreFocus();
  }

  draw() {
    if (!this.list) return; // a search was typed before the list arrived
    const { caches, trash } = this.list;
    const asked = memory.search.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (row) => [row.name, ...encoders(row)].join(" ").toLowerCase();
    const found = caches.filter((row) => asked.every((word) => text(row).includes(word))).sort(ORDERS[memory.order]);
    this.folders.search(asked);
    this.remotes.search(asked);
    const focused = document.activeElement?.closest?.(".sc-card")?.dataset.name;
    const saved = found.filter((row) => !row.made_for);
    fill(this.cards, saved.slice(0, this.most).map((row) => this.card(row)));
    if (saved.length > this.most) this.cards.append(this.more(saved.length));
    this.cards.hidden = saved.length === 0;
    this.runs.show(found.filter((row) => row.made_for), asked.length > 0);
    this.tools.hidden = caches.length === 0;
    this.foot.hidden = caches.length === 0 && trash.length === 0;
    this.trash.hidden = trash.length === 0;
    this.trash.lastChild.textContent = words("caches.trash_count", { count: trash.length });
    this.count.textContent = caches.length ? words("caches.count_caches", { count: caches.length }) : "";
    fill(this.state, caches.length === 0 ? this.empty() : found.length === 0 ? this.nothing() : null);
    this.restoreFocus(focused);
  }

  restoreFocus(focused) {
    this.roving.settle();
    const name = focused ?? (this.wantsFocus ? memory.opened : "");
    this.wantsFocus = false;
    const card = [...this.lists.querySelectorAll(".sc-card")].find((each) => each.dataset.name === name);
    card?.querySelector(".sc-card-open").focus();
  }

  card(row) {
    const open = () => {
      memory.opened = row.name;
      this.panel.show("cache", row.name);
    };
    const marks = badges(row);
    // Not a <button>: Firefox does not start a drag on one.
    const press = (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), open());
    const text = h(
      "div",
      { role: "button", class: "sc-card-open", tabIndex: -1, onclick: open, onkeydown: press },
      nameOf(row.name, { class: "sc-card-name" }),
      row.problem
        ? h("span", { class: "sc-small sc-problem", title: row.problem }, row.problem)
        : h("span", { class: "sc-small sc-number" }, amounts(row)),
      h("span", { class: "sc-small sc-soft sc-clip", title: [exactly(row), ...encoders(row)].join("\n") }, origin(row)),
      marks.length > 0 && h("span", { class: "sc-row wrap sc-badges" }, marks),
    );
    const { name } = row;
    const menu = () => cacheMenu(this.panel, row, more);
    const add = iconButton("plus-circle", words("caches.add", { name }), () => addLoadNode(name), { tabIndex: -1 });
    const props = { tabIndex: -1, "aria-haspopup": "menu" };
    const more = iconButton("ellipsis-v", words("caches.more", { name }), menu, props);
    const tools = h("div", { class: "sc-card-tools" }, !row.problem && add, more);
    const card = h("li", { class: "sc-card", dataset: { name } }, cover(row), text, tools);
    card.addEventListener("contextmenu", (event) => {
      event.preventDefault();
      menu();
    });
    if (!row.problem) makeDraggable(card, name);
    return card;
  }

  more(all) {
    const show = () => {
      this.most = all;
      this.draw();
    };
    return h("li", { class: "sc-more" }, button(words("caches.show_all", { count: all }), show));
  }

  empty() {
    const steps = ["caches.first_step", "caches.second_step", "caches.third_step"];
    return h(
      "div",
      { class: "sc-empty" },
      icon("database"),
      h("h3", {}, words("caches.none")),
      h("p", { class: "sc-soft" }, words("caches.none_why")),
      h("ol", {}, steps.map((key) => h("li", {}, words(key)))),
      h("div", { class: "sc-stack sc-first" }, addButton(this.panel, "primary"), this.example(), this.workflow()),
    );
  }

  example() {
    const add = () => this.panel.attempt(async () => this.panel.jobs.update((await post("/folder/example", { example: "zogglewump" })).job));
    return button(words("folders.example"), add, { sign: "images" });
  }

  workflow() {
    const open = () => this.panel.attempt(() => openExample(FIRST_STEPS));
    return button(words("caches.example"), open, { sign: "sitemap" });
  }

  nothing() {
    const text = words("caches.no_match", { search: memory.search });
    return h("div", { class: "sc-empty" }, icon("search"), h("p", { class: "sc-soft" }, text));
  }
}

/** The caches that trainings made for themselves: closed, because users seldom want them. A search opens it. */
class RunCaches {
  constructor(draw) {
    this.draw = draw;
    this.rows = [];
    this.count = h("span", { class: "sc-badge" });
    this.cards = h("ul", { class: "sc-cards", "aria-label": words("caches.made_by_runs") });
    const summary = h("summary", { title: words("caches.made_by_runs_why") }, words("caches.made_by_runs"), this.count);
    this.element = h("details", { class: "sc-fold sc-run-caches", hidden: true, ontoggle: () => this.toggled() }, summary, this.cards);
  }

  show(rows, searched) {
    this.rows = rows;
    this.searched = searched;
    this.element.hidden = rows.length === 0;
    this.count.textContent = number(rows.length);
    this.element.open = searched || memory.runs;
    this.fill();
  }

  toggled() {
    if (!this.searched) memory.runs = this.element.open;
    this.fill();
  }

  /** Cards that are not seen do not exist: arrow keys would go to them. */
  fill() {
    fill(this.cards, this.element.open ? this.rows.map(this.draw) : []);
  }
}
