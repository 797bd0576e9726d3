// The tab with the samples of a cache: a search, a chart of buckets to filter by, and the grid of thumbnails.

import { bar, bars } from "../../lib/bars.js";
import { busy } from "../../lib/busy.js";
import { debounce, fill, h, icon, roving } from "../../lib/dom.js";
import { setting } from "../../lib/host.js";
import { number } from "../../lib/units.js";
import { words } from "../../lib/words.js";
import { Grid } from "./grid.js";
import { SampleDialog } from "./sample_dialog.js";
import { SamplePages } from "./pages.js";

const MAX_BUCKETS = 60; // shown
const LOW = 700; // pixels of height below which the pictures get the space of the chart

export class SamplesTab {
  constructor(view) {
    this.view = view;
    this.filter = { search: "", bucket: "" };
    this.grid = new Grid({
      size: Number(setting("StreamCache.ThumbnailSize", 88)),
      label: words("caches.samples_label"),
      opened: (place) => this.open(place),
      looked: (place) => this.look(place),
    });
    this.buckets = new Buckets(view.row.buckets, view.panel.root.clientHeight >= LOW, (bucket) => this.ask({ bucket }));
    this.count = h("span", { class: "sc-small sc-soft sc-number", role: "status" });
    this.state = h("div", { class: "sc-state" });
    this.caption = h("div", { class: "sc-caption", "aria-hidden": "true" });
    this.element = h(
      "div",
      { class: "sc-samples" },
      h("div", { class: "sc-tools" }, this.searchField()),
      this.buckets.element,
      h("div", { class: "sc-countline" }, this.count),
      this.state,
      this.grid.element,
      this.caption,
    );
    this.look(null);
    this.ask({});
  }

  destroy() {
    this.answered?.();
    this.window?.close();
    this.search.cancel();
    this.grid.destroy();
  }

  shown() {
    this.grid.layout();
  }

  searchField() {
    const label = words("caches.search_samples");
    this.search = debounce((search) => this.ask({ search }), 250);
    const field = h("input", {
      class: "sc-field",
      type: "search",
      placeholder: label,
      "aria-label": label,
      oninput: () => this.search(field.value.trim()),
    });
    return h("div", { class: "sc-search" }, icon("search"), field);
  }

  /** Loads other samples. The current ones stay visible until they arrive. */
  ask(filter) {
    Object.assign(this.filter, filter);
    const { name, generation } = this.view.row;
    this.samples?.stop();
    const query = { name, generation, ...this.filter };
    const samples = new SamplePages(query, () => this.arrived(samples), (error) => this.failed(error));
    this.samples = samples;
    this.answered?.();
    busy(this.view.panel.root, new Promise((done) => (this.answered = done)));
    samples.want(0, 100);
  }

  arrived(samples) {
    if (samples !== this.samples) return;
    this.answered();
    fill(this.state, samples.total === 0 ? this.nothing() : null);
    const all = this.view.row.samples;
    this.count.textContent = samples.whole
      ? words("caches.count_samples", { count: all })
      : words("caches.found", { found: number(samples.total), count: all });
    this.grid.show(samples);
    this.window?.update();
  }

  failed(error) {
    this.answered();
    // The cache was saved again in the meantime: the list has the new generation.
    if (error.status === 409) this.view.panel.refresh();
    else this.view.fail(error);
  }

  nothing() {
    return h("div", { class: "sc-empty" }, icon("search"), h("p", { class: "sc-soft" }, words("caches.no_samples")));
  }

  /** Shows the caption of the sample under the pointer or the keyboard cursor. */
  look(place) {
    const sample = place === null ? undefined : this.samples?.at(place);
    if (!sample) {
      fill(this.caption, h("span", { class: "sc-soft" }, words("caches.point")));
      return;
    }
    const facts = [`#${number(sample.number + 1)}`, sample.bucket, sample.source].filter(Boolean).join(" · ");
    fill(
      this.caption,
      h("span", { class: "sc-small sc-soft sc-clip" }, facts),
      h("span", { class: "sc-caption-text" }, sample.captions.filter(Boolean)[0] ?? words("caches.no_caption")),
    );
  }

  open(place) {
    this.window = new SampleDialog(this.samples, place, {
      panel: this.view.panel,
      moved: (to) => this.grid.go(to),
      closed: () => (this.window = undefined),
    });
  }
}

/** One bar per bucket. Choosing one shows only its samples; choosing it again shows all. */
class Buckets {
  /** `open`: whether the chart is unfolded; `chosen(name)` is called with "" when no bucket is chosen. */
  constructor(buckets, open, chosen) {
    this.chosen = chosen;
    this.value = "";
    const sorted = [...(buckets ?? [])].sort((a, b) => b.samples - a.samples);
    const most = Math.max(1, ...sorted.map((each) => each.samples));
    const shown = sorted.slice(0, MAX_BUCKETS).map((bucket, at) => this.bar(bucket, most, at));
    this.bars = bars("div", { role: "group", "aria-label": words("caches.buckets_label") }, shown);
    if (sorted.length > MAX_BUCKETS) this.bars.append(this.rest(sorted.slice(MAX_BUCKETS)));
    roving(this.bars, ".sc-bar");
    const summary = h("summary", {}, words("caches.buckets"), h("span", { class: "sc-badge" }, number(sorted.length)));
    this.element = h("details", { class: "sc-fold sc-buckets", open, hidden: sorted.length === 0 }, summary, this.bars);
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
