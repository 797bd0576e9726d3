// Charts of a folder: buckets, lengths of captions, tags, words, and what a run will see. Pressing a bar filters.

import { bar, bars } from "../lib/bars.js";
import { fill, h, roving } from "../lib/dom.js";
import { number } from "../lib/units.js";
import { words } from "../lib/words.js";

const MOST_BARS = 40;
const LENGTHS = [0, 1, 6, 11, 21, 41, 81]; // words: where each group begins
const memory = { open: false };

export class Charts {
  /** `chosen(filter)` is called when a bar is pressed; `opened()` when the charts are to be loaded. */
  constructor({ chosen, opened }) {
    this.chosen = chosen;
    this.body = h("div", { class: "sc-charts-body" }, h("div", { class: "sc-spin" }));
    this.summary = h("summary", {}, words("curate.charts"));
    this.element = h("details", { class: "sc-buckets sc-charts", open: memory.open }, this.summary, this.body);
    this.element.addEventListener("toggle", () => {
      memory.open = this.element.open;
      if (memory.open) opened();
    });
  }

  get open() {
    return this.element.open;
  }

  show(found, filter) {
    this.found = found;
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.value : undefined;
    const { counts } = found;
    fill(
      this.body,
      h("p", { class: "sc-small", dataset: { chart: "run" } }, words("curate.run_sees", { count: counts.samples, images: number(counts.images), excluded: number(counts.excluded) })),
      sets(found.sets),
      this.chart("buckets", found.buckets, (name) => ({ bucket: name }), filter.bucket),
      this.chart("tags", found.tags, (name) => ({ tag: name }), filter.tag),
      this.chart("words", found.words, (name) => ({ search: name }), filter.search),
      this.chart("lengths", lengths(found.lengths)),
    );
    if (focused) [...this.body.querySelectorAll("[data-value]")].find((each) => each.dataset.value === focused)?.focus();
  }

  /** Without `filter` the bars cannot be pressed. */
  chart(key, rows, filter, value = "") {
    if (!rows?.length) return null;
    const shown = rows.slice(0, MOST_BARS);
    const most = Math.max(1, ...shown.map(([, count]) => count));
    const line = ([name, count], at) => {
      const text = name || words("curate.no_bucket");
      const label = `${text}: ${words("folders.count_images", { count })}`;
      if (!filter) return bar("li", text, count / most, number(count));
      const press = () => this.chosen(filter(value === name ? "" : name));
      const props = { type: "button", dataset: { value: name }, "aria-pressed": String(value === name), "aria-label": label, tabIndex: at === 0 ? 0 : -1, onclick: press };
      return bar("button", text, count / most, number(count), props);
    };
    const label = words(`curate.chart_${key}`);
    const group = bars(filter ? "div" : "ul", { role: filter && "group", "aria-label": label }, shown.map(line));
    group.classList.toggle("chosen", value !== "" && shown.some(([name]) => name === value));
    if (filter) roving(group, ".sc-bar");
    return h("section", { class: "sc-chart-part", dataset: { chart: key } }, h("h3", {}, label), group);
  }
}

/** Folders below that repeat their images by their names, such as 10_cat. */
function sets(found) {
  const shown = (found ?? []).filter((set) => set.folder);
  if (shown.length === 0) return null;
  const line = ({ folder, samples }) => h("li", {}, `${folder}: ${words("caches.count_samples", { count: samples })}`);
  return h("ul", { class: "sc-files" }, shown.slice(0, MOST_BARS).map(line));
}

/** Numbers of words in a few groups. */
function lengths(rows) {
  const groups = LENGTHS.map((low, at) => [low, LENGTHS[at + 1]]);
  const name = ([low, high]) => (high === undefined ? `${low}+` : high - 1 === low ? String(low) : `${low}–${high - 1}`);
  const count = ([low, high = Infinity]) => (rows ?? []).reduce((sum, [length, images]) => sum + (length >= low && length < high ? images : 0), 0);
  return groups.map((group) => [words("curate.words_in", { count: name(group) }), count(group)]).filter(([, images]) => images > 0);
}
