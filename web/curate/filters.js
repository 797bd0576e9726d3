// What is shown of a folder, and in which order: a search, menus, and the filters in use as chips.

import { debounce, fill, h, icon, iconButton } from "../lib/dom.js";
import { openMenu } from "../lib/menu.js";
import { words } from "../lib/words.js";

const CAPTION_LENGTH = "caption_length";
const ORDERS = ["name", "size", "bytes", CAPTION_LENGTH, "date", "bucket", "repeats", "similarity"];
// key of the text → what it sets
const KINDS = {
  no_caption: { captioned: "false" },
  captioned: { captioned: "true" },
  is_excluded: { excluded: "true" },
  not_excluded: { excluded: "false" },
  masked: { masked: "true" },
  not_masked: { masked: "false" },
  problem: { problem: "true" },
  alike: { alike: "true" },
};
const SIGNS = { no_caption: "comment", captioned: "comment", is_excluded: "ban", not_excluded: "check", masked: "eye", not_masked: "eye-slash", problem: "exclamation-triangle", alike: "clone" };
export const EMPTY = { search: "", tag: "", bucket: "", captioned: "", excluded: "", masked: "", problem: "", alike: "" };

/** As the server takes it in the body of a request: booleans instead of texts, only what is set. */
export function filterBody({ order: _, descending: __, ...filter }) {
  const given = Object.entries(filter).filter(([, value]) => value !== "" && value !== undefined);
  const booleans = { true: true, false: false };
  return Object.fromEntries(given.map(([key, value]) => [key, key in EMPTY && value in booleans && !["search", "tag", "bucket"].includes(key) ? booleans[value] : value]));
}

export class Filters {
  /** `asked(filter)` is called with what changed; `similar()` resolves to whether look-alikes are known. */
  constructor(filter, { asked, similar }) {
    Object.assign(this, { filter, asked, similar });
    const label = words("curate.search");
    const search = debounce((text) => this.set({ search: text }), 250);
    this.cancel = search.cancel;
    const props = { type: "search", dir: "auto", placeholder: label, "aria-label": label, value: filter.search };
    this.field = h("input", { class: "sc-field", ...props, oninput: () => search(this.field.value.trim()) });
    const menu = { "aria-haspopup": "menu" };
    this.by = iconButton("filter", words("curate.filter"), () => this.openFilters(), menu);
    this.sort = iconButton("sort-alt", words("curate.order"), () => this.openOrders(), menu);
    this.element = h("div", { class: "sc-tools" }, h("div", { class: "sc-search" }, icon("search"), this.field), this.by, this.sort);
    this.chips = h("ul", { class: "sc-tags sc-filter-chips", "aria-label": words("curate.filters") });
    this.draw();
  }

  async set(change) {
    if ((change.alike === "true" || change.order === "similarity") && !(await this.similar())) return;
    Object.assign(this.filter, change);
    if ("search" in change && this.field.value.trim() !== change.search) this.field.value = change.search;
    this.draw();
    this.asked();
  }

  clear() {
    this.set({ ...EMPTY });
  }

  get isSet() {
    return Object.keys(EMPTY).some((key) => this.filter[key] !== "");
  }

  openFilters() {
    const entry = (key) => {
      const [[name, value]] = Object.entries(KINDS[key]);
      const checked = this.filter[name] === value;
      return { label: words(`curate.${key}`), sign: SIGNS[key], checked, act: () => this.set({ [name]: checked ? "" : value }) };
    };
    const clear = { label: words("curate.show_all"), sign: "filter-slash", disabled: !this.isSet, act: () => this.clear() };
    openMenu(this.by, [...Object.keys(KINDS).map(entry), null, clear]);
  }

  openOrders() {
    const { order, descending } = this.filter;
    const entry = (each) => {
      const value = each.replace("_", " "); // as the server names it
      return { label: words(`curate.order_${each}`), sign: "sort", checked: value === order, act: () => this.set({ order: value }) };
    };
    const turn = { label: words("curate.descending"), sign: "sort-amount-down", checked: descending === "true", act: () => this.set({ descending: descending === "true" ? "" : "true" }) };
    openMenu(this.sort, [...ORDERS.map(entry), null, turn]);
  }

  draw() {
    const { filter } = this;
    const kinds = Object.entries(KINDS).flatMap(([key, set]) => Object.entries(set).map(([name, value]) => [key, name, value]));
    const shown = kinds.filter(([, name, value]) => filter[name] === value).map(([key, name]) => [words(`curate.${key}`), name]);
    if (filter.bucket) shown.push([words("curate.bucket", { name: filter.bucket }), "bucket"]);
    if (filter.tag) shown.push([words("curate.tag", { name: filter.tag }), "tag"]);
    const chip = ([text, name]) =>
      h("li", { class: "sc-tag", dataset: { filter: name } }, h("bdi", { class: "sc-clip", title: text }, text), iconButton("times", words("curate.remove_filter", { name: text }), () => (this.set({ [name]: "" }), this.by.focus())));
    fill(this.chips, shown.map(chip));
    this.chips.hidden = shown.length === 0;
    this.by.classList.toggle("on", shown.length > 0);
  }
}
