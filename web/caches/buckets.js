// The chart of buckets: a bar each. Choosing one shows only its samples; choosing it again shows all.

import { bar, bars } from "../lib/bars.js";
import { h, roving } from "../lib/dom.js";
import { number } from "../lib/units.js";
import { words } from "../lib/words.js";

const SHOWN = 60;

export class Buckets {
  /** `chosen(name)` is called with "" when no bucket is chosen any more. */
  constructor(buckets, chosen) {
    this.chosen = chosen;
    this.value = "";
    const sorted = [...(buckets ?? [])].sort((a, b) => b.samples - a.samples);
    const most = Math.max(1, ...sorted.map((each) => each.samples));
    const shown = sorted.slice(0, SHOWN).map((bucket, at) => this.bar(bucket, most, at));
    this.bars = bars("div", { role: "group", "aria-label": words("caches.buckets_label") }, shown);
    if (sorted.length > SHOWN) this.bars.append(this.rest(sorted.slice(SHOWN)));
    roving(this.bars, ".sc-bar");
    const summary = h("summary", {}, words("caches.buckets"), h("span", { class: "sc-badge" }, number(sorted.length)));
    this.element = h("details", { class: "sc-buckets", open: true, hidden: sorted.length === 0 }, summary, this.bars);
  }

  bar(bucket, most, at) {
    return bar("button", bucket.name, bucket.samples / most, number(bucket.samples), {
      type: "button",
      dataset: { bucket: bucket.name },
      "aria-pressed": "false",
      "aria-label": `${bucket.name}: ${words("caches.count_samples", { count: bucket.samples })}`,
      tabIndex: at === 0 ? 0 : -1,
      onclick: () => this.choose(bucket.name),
    });
  }

  rest(buckets) {
    const samples = buckets.reduce((sum, each) => sum + each.samples, 0);
    const text = words("caches.more_buckets", { count: buckets.length, samples: number(samples) });
    return h("div", { class: "sc-small sc-soft" }, text);
  }

  choose(name) {
    this.value = this.value === name ? "" : name;
    for (const each of this.bars.querySelectorAll(".sc-bar")) {
      each.setAttribute("aria-pressed", String(each.dataset.bucket === this.value));
    }
    this.bars.classList.toggle("chosen", this.value !== "");
    this.chosen(this.value);
  }
}
