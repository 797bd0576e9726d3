// The summary on a Save or Load node: one line, and one bar per bucket.

import { bar, bars, largest } from "../lib/bars.js";
import { fill, h } from "../lib/dom.js";
import { linkOf } from "../lib/graph.js";
import { bytes, number } from "../lib/units.js";
import { words } from "../lib/words.js";
import { addPanel } from "./node_panel.js";

export const SAVE = "StreamCacheCacheSave";
export const LOAD = "StreamCacheCacheLoad";
const MAX_BARS = 5;
const MAX_NOTICES = 3;
const ESTIMATE = 40; // pixels of a summary that is not drawn yet
const PADDING = 28; // of the panel, and around it

const panels = new WeakMap();
const last = new Map(); // id of a node and name of its cache → facts, for as long as the page is open

/** `facts` as the server sends them: {name, samples, bytes, buckets, encoded, reused, excluded, unchanged}. */
export function showSummary(node, facts) {
  const [wanted, name] = [nameOn(node), plain(facts.name)];
  last.set(keyOf(node, wanted && name), facts);
  if (wanted && name && wanted !== name) return; // of the node with the same id in another workflow, which is not open now
  if (!panels.has(node)) panels.set(node, new Summary(node));
  panels.get(node).show(facts);
}

/** Another workflow, or the same one again: shows what its nodes had shown, if they still name the same cache. */
export function showLastSummary(node) {
  const facts = last.get(keyOf(node, nameOn(node)));
  if (facts && !panels.has(node)) showSummary(node, facts);
}

function keyOf(node, name) {
  return JSON.stringify([node.type, node.id, name]);
}

/** The cache that a node names; "" if another node gives the name. */
function nameOn(node) {
  return linkOf(node, "name") ? "" : plain(node.widgets?.find((widget) => widget.name === "name")?.value);
}

/** As the server reads names. */
function plain(name) {
  return String(name ?? "").trim().replaceAll("\\", "/");
}

class Summary {
  constructor(node) {
    this.line = h("div", { class: "sc-line", role: "status" });
    this.chart = h("div");
    this.remarks = [];
    this.content = h("div", { class: "sc-stack sc-summary" }, this.line, this.chart);
    this.panel = addPanel(node, h("div", { class: "sc sc-node" }, this.content), {
      height: () => PADDING + (this.content.offsetHeight || this.tall || ESTIMATE),
      text: (text) => this.#progress(text),
      redraw: () => this.show(this.facts),
    });
    // A narrow node wraps its lines: nothing of them may be cut off.
    this.observer = new ResizeObserver(() => this.measured());
    this.observer.observe(this.content);
  }

  measured() {
    const tall = this.content.offsetHeight;
    if (!tall || tall === this.tall) return;
    this.tall = tall;
    this.panel.fit();
  }

  /** The first line is the progress; the others are remarks that are known before anything is encoded. */
  #progress(text) {
    const [first, ...remarks] = text.split("\n");
    this.line.textContent = first;
    if (remarks.join() !== this.remarks.join()) this.#fill(this.bars, remarks);
  }

  #fill(bars, remarks, more) {
    this.bars = bars;
    this.remarks = remarks;
    fill(this.chart, bars, more, remarks.length > 0 && notices(remarks));
    this.panel.fit();
  }

  show(facts) {
    this.facts = facts;
    const buckets = Object.entries(facts.buckets ?? {});
    this.line.textContent = summary(facts);
    this.line.title = facts.name;
    this.#fill(buckets.length > 0 && chart(buckets), facts.notices ?? [], facts.excluded?.length ? excluded(facts.excluded) : null);
  }
}

function chart(buckets) {
  const shown = largest(buckets, MAX_BARS, (count) => words("nodes.more_buckets", { count }));
  const most = Math.max(1, ...shown.map(([, count]) => count));
  const line = ([name, count]) => bar("li", name, count / most, number(count));
  return bars("ul", { "aria-label": words("nodes.buckets_chart") }, shown.map(line));
}

function summary(facts) {
  const parts = [
    words("nodes.samples", { count: facts.samples }),
    words("nodes.buckets", { count: Object.keys(facts.buckets ?? {}).length }),
    bytes(facts.bytes),
  ];
  if (facts.unchanged) parts.push(words("nodes.unchanged"));
  else if (facts.encoded) parts.push(...encodedParts(facts));
  return parts.join(" · ");
}

/** "captions: 15 encoded, 15 reused", and the same of the images. */
export function encodedParts({ encoded, reused = {} }) {
  const kinds = { conditioning: "curate.updated_captions", latent: "curate.updated_images" };
  const found = Object.keys(kinds).filter((field) => field in encoded || field in reused);
  return found.map((field) => words(kinds[field], { encoded: number(encoded[field] ?? 0), reused: number(reused[field] ?? 0) }));
}

/** What to know about the dataset; the tooltip has everything. */
function notices(texts) {
  const line = (text) => h("li", {}, text);
  return h("ul", { class: "sc-small sc-warned sc-notices", title: texts.join("\n") }, texts.slice(0, MAX_NOTICES).map(line));
}

/** The number of skipped files; the tooltip lists them with their reasons. */
function excluded(files) {
  const reasons = files.slice(0, 20).map((file) => `${file.source}: ${file.reason}`);
  return h("div", { class: "sc-small sc-warned", title: reasons.join("\n") }, words("nodes.excluded", { count: files.length }));
}
