// Files that were left out when the cache was made, each with its reason.

import { fill, h } from "../lib/dom.js";
import { words } from "../lib/words.js";

export class Excluded {
  constructor() {
    this.element = h("div", { class: "sc-body" }, h("div", { class: "sc-spin" }));
  }

  know({ excluded }) {
    this.known = true;
    const { count, files } = excluded;
    const line = ({ source, reason }) => h("li", {}, h("strong", {}, source), h("span", { class: "sc-soft" }, reason));
    fill(
      this.element,
      h("p", { class: "sc-soft" }, words("excluded.text", { count })),
      h("ul", { class: "sc-excluded" }, files.map(line)),
      files.length < count && h("p", { class: "sc-soft" }, words("excluded.more", { count: count - files.length })),
    );
  }
}
