// The samples of a cache: a search, a chart of buckets that chooses among them, and the grid.

import { debounce, fill, h, icon } from "../lib/dom.js";
import { setting } from "../lib/host.js";
import { number } from "../lib/units.js";
import { words } from "../lib/words.js";
import { Buckets } from "./buckets.js";
import { Grid } from "./grid.js";
import { SampleWindow } from "./sample.js";
import { Samples } from "./samples.js";

export class SamplesTab {
  constructor(view) {
    this.view = view;
    this.filter = { search: "", bucket: "" };
    this.grid = new Grid({
      size: Number(setting("StreamCache.ThumbnailSize", 88)),
      opened: (place) => this.open(place),
      looked: (place) => this.look(place),
    });
    this.buckets = new Buckets(view.row.buckets, (bucket) => this.ask({ bucket }));
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

  /** Other samples are wanted. What is shown stays until they are known. */
  ask(filter) {
    Object.assign(this.filter, filter);
    const { name, generation } = this.view.row;
    this.samples?.stop();
    const query = { name, generation, ...this.filter };
    const samples = new Samples(query, () => this.arrived(samples), (error) => this.failed(error));
    this.samples = samples;
    this.element.setAttribute("aria-busy", "true");
    samples.want(0, 100);
  }

  arrived(samples) {
    if (samples !== this.samples) return;
    this.element.setAttribute("aria-busy", "false");
    fill(this.state, samples.total === 0 ? this.nothing() : null);
    const all = this.view.row.samples;
    this.count.textContent = samples.whole
      ? words("caches.count_samples", { count: all })
      : words("caches.found", { found: number(samples.total), count: all });
    this.grid.show(samples);
    this.window?.update();
  }

  failed(error) {
    this.element.setAttribute("aria-busy", "false");
    // The cache was saved anew meanwhile: the list knows the new generation.
    if (error.status === 409) this.view.panel.refresh();
    else this.view.fail(error);
  }

  nothing() {
    return h("div", { class: "sc-empty" }, icon("search"), h("p", { class: "sc-soft" }, words("caches.no_samples")));
  }

  /** The caption of what the pointer or the keyboard is at. */
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
    this.window = new SampleWindow(this.samples, place, {
      moved: (to) => this.grid.go(to),
      closed: () => (this.window = undefined),
    });
  }
}
