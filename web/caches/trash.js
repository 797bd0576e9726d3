// The trash: deleted caches and training runs, which can be restored until it is emptied.

import { ask } from "../lib/dialog.js";
import { button, fill, h, icon, iconButton } from "../lib/dom.js";
import { nameOf } from "../lib/names.js";
import { post } from "../lib/server.js";
import { age, bytes, moment } from "../lib/units.js";
import { words } from "../lib/words.js";

export class TrashView {
  constructor(panel) {
    this.panel = panel;
    this.cards = h("ul", { class: "sc-cards", "aria-label": words("caches.trash") });
    this.back = iconButton("arrow-left", words("actions.back"), () => panel.show("list"));
    const emptyAll = () => this.empty(this.trash);
    this.emptyAll = button(words("caches.empty_trash"), emptyAll, { sign: "trash", look: "danger" });
    this.emptyAll.hidden = true; // until the list arrives
    this.state = h("div", { "aria-live": "polite" });
    this.element = h(
      "div",
      { class: "sc-view", onkeydown: (event) => this.key(event) },
      h("header", { class: "sc-head" }, this.back, h("h2", {}, words("caches.trash")), this.emptyAll),
      h("div", { class: "sc-body" }, this.state, this.cards),
    );
  }

  key(event) {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    this.panel.show("list");
  }

  focus() {
    this.back.focus();
  }

  update({ trash }) {
    this.trash = trash;
    this.emptyAll.hidden = trash.length === 0;
    fill(this.cards, trash.map((row) => this.card(row)));
    const text = words("caches.trash_empty");
    const nothing = h("div", { class: "sc-empty" }, icon("trash"), h("p", { class: "sc-soft" }, text));
    fill(this.state, trash.length === 0 ? nothing : null);
  }

  card(row) {
    const restore = button(words("caches.restore"), () => this.restore(row), { sign: "undo" });
    const remove = iconButton("times", words("caches.remove_for_good", { name: row.name }), () => this.empty([row]));
    const run = h("span", { class: "sc-badge" }, icon("chart-line"), words("caches.run"));
    const when = h("span", { title: words("caches.deleted", { age: moment(row.deleted) }) }, age(row.deleted));
    return h(
      "li",
      { class: "sc-card", dataset: { name: row.name } },
      h(
        "div",
        { class: "sc-card-text" },
        nameOf(row.name, { class: "sc-card-name" }),
        h("span", { class: "sc-small sc-soft sc-number" }, bytes(row.bytes), " · ", when),
        row.kind === "run" && h("span", { class: "sc-row sc-badges" }, run),
      ),
      h("div", { class: "sc-card-tools" }, restore, remove),
    );
  }

  restore(row) {
    return this.panel.attempt(() => restoreCache(this.panel, row.id));
  }

  async empty(rows) {
    const size = rows.reduce((sum, row) => sum + row.bytes, 0);
    const removed = await ask({
      title: words("caches.empty_title", { count: rows.length }),
      content: h("p", {}, words("caches.empty_text", { size: bytes(size) })),
      action: words("caches.empty_action"),
      look: "primary danger",
      act: () => post("/trash/empty", { ids: rows.map((row) => row.id) }),
    });
    if (!removed) return;
    this.panel.report("good", words("caches.freed", { size: bytes(removed.bytes) }));
    await this.panel.refresh();
  }
}

export async function restoreCache(panel, id) {
  const { name } = await post("/trash/restore", { id });
  panel.report("good", words("caches.restored", { name }));
  await panel.refresh();
  return name;
}
