// The summary on a Save or Load node: one line, and one bar per bucket.

import { bar, bars, largest } from "../lib/bars.js";
import { fill, h } from "../lib/dom.js";
import { bytes, number } from "../lib/units.js";
import { words } from "../lib/words.js";
import { addPanel } from "./node_panel.js";

export const SAVE = "StreamCacheCacheSave";
export const LOAD = "StreamCacheCacheLoad";
const MAX_BARS = 5;

const panels = new WeakMap();

/** `facts` as the server sends them: {name, samples, bytes, buckets, encoded, reused, excluded, unchanged}. */
export function showSummary(node, facts) {
  if (!panels.has(node)) panels.set(node, new Summary(node));
  panels.get(node).show(facts);
}

class Summary {
  constructor(node) {
    this.line = h("div", { class: "sc-line", role: "status" });
    this.chart = h("div");
    this.rows = 0;
    this.element = h("div", { class: "sc sc-node sc-summary" }, this.line, this.chart);
    this.panel = addPanel(node, this.element, {
      height: () => 48 + 20 * this.rows + (this.more ? 20 : 0),
      text: (text) => (this.line.textContent = text.split("\n")[0]),
      redraw: () => this.show(this.facts),
    });
  }

  show(facts) {
    this.facts = facts;
    const buckets = Object.entries(facts.buckets ?? {});
    this.rows = Math.min(buckets.length, MAX_BARS);
    this.more = facts.excluded?.length ? excluded(facts.excluded) : null;
    this.line.textContent = summary(facts);
    this.line.title = facts.name;
    fill(this.chart, buckets.length > 0 && chart(buckets), this.more);
    this.panel.fit();
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
  else if (facts.encoded) {
    const [encoded, reused] = [facts.encoded.latent ?? 0, facts.reused?.latent ?? 0];
    parts.push(words("nodes.encoded", { encoded: number(encoded), reused: number(reused) }));
  }
  return parts.join(" · ");
}

/** The number of skipped files; the tooltip lists them with their reasons. */
function excluded(files) {
  const reasons = files.slice(0, 20).map((file) => `${file.source}: ${file.reason}`);
  return h("div", { class: "sc-small sc-warned", title: reasons.join("\n") }, words("nodes.excluded", { count: files.length }));
}
