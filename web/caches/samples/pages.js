// The samples of one cache that match a search, loaded page by page as they become visible, in few requests. `Pages` is also the
// base of other lists that a grid shows.

import { address, get, isAbort } from "../../lib/server.js";
import { number } from "../../lib/units.js";
import { words } from "../../lib/words.js";

const PAGE = 100;
const MAX_PAGES_PER_REQUEST = 5; // the server returns at most 500 items
const MAX_PAGES_KEPT = 200;

export class Pages {
  /** `path` returns the items under the name `list`. `changed()` is called when items arrive, `failed(error)` when the server refuses. */
  constructor(path, list, query, changed, failed) {
    Object.assign(this, { path, list, query, changed, failed });
    this.total = null; // unknown until the first response
    this.pages = new Map(); // page number → items, most recently used last
    this.stale = new Set(); // page numbers that are shown, and loaded again
    this.asked = new Map(); // page number → the AbortController of its request
  }

  /** The item at a place, or undefined if it is not loaded. */
  at(place) {
    return this.pages.get(Math.floor(place / PAGE))?.[place % PAGE];
  }

  isStale(place) {
    return this.stale.has(Math.floor(place / PAGE));
  }

  /** Items from `first` to before `end` are visible now: load them and abort requests for others. */
  want(first, end) {
    const [from, to] = [Math.floor(first / PAGE), Math.floor(Math.max(first, end - 1) / PAGE)];
    for (const [page, request] of this.asked) {
      if (page < from || page > to) request.abort();
    }
    const missing = [];
    for (let page = from; page <= to; page += 1) {
      if (this.pages.has(page) && !this.stale.has(page)) this.keep(page, this.pages.get(page));
      else if (!this.asked.has(page) || this.asked.get(page).signal.aborted) missing.push(page);
    }
    for (const pages of runs(missing)) this.fetch(pages);
  }

  stop() {
    for (const request of new Set(this.asked.values())) request.abort();
    this.asked.clear();
  }

  async fetch(pages) {
    const request = new AbortController();
    for (const page of pages) this.asked.set(page, request);
    const range = { start: pages[0] * PAGE, count: pages.length * PAGE };
    try {
      const found = await get(this.path, { ...this.query, ...this.more(), ...range }, { signal: request.signal });
      performance.mark(`streamcache:${this.list}`);
      this.total = found.total;
      this.take(found);
      for (const page of pages) {
        const at = (page - pages[0]) * PAGE;
        this.keep(page, found[this.list].slice(at, at + PAGE));
      }
      this.changed();
    } catch (error) {
      if (!isAbort(error)) this.failed(error);
    } finally {
      for (const page of pages) if (this.asked.get(page) === request) this.asked.delete(page);
    }
  }

  /** What else a request says, and what else is in a response. */
  more() {
    return {};
  }

  take() {}

  keep(page, items) {
    this.stale.delete(page);
    this.pages.delete(page);
    this.pages.set(page, items);
    if (this.pages.size > MAX_PAGES_KEPT) this.pages.delete(this.pages.keys().next().value);
  }
}

export class SamplePages extends Pages {
  constructor({ name, generation, search = "", bucket = "" }, changed, failed) {
    super("/cache/samples", "samples", { name, generation, search, bucket }, changed, failed);
  }

  /** Whether all samples are shown, so that places are numbers. */
  get whole() {
    return !this.query.search && !this.query.bucket;
  }

  /** The number of the sample at a place; without a filter it is known before the sample is loaded. */
  numberAt(place) {
    return this.at(place)?.number ?? (this.whole ? place : undefined);
  }

  /** What names the thumbnail at a place, and its address. */
  pictureAt(place) {
    return this.numberAt(place);
  }

  addressAt(place) {
    const { name, generation } = this.query;
    return address("/cache/thumbnail", { name, generation, number: this.numberAt(place) });
  }

  /** The text of a tile, and what a screen reader says. */
  labelAt(place) {
    const sample = this.at(place);
    if (!sample) return [words("caches.loading"), words("caches.loading")];
    const label = sample.captions.filter(Boolean)[0] || words("caches.no_caption");
    return [label, `${number(sample.number + 1)}: ${label}`];
  }
}

/** Groups consecutive numbers, at most as many per group as one request may ask for. */
function runs(numbers) {
  const found = [];
  for (const each of numbers) {
    const run = found.at(-1);
    if (run && run.at(-1) === each - 1 && run.length < MAX_PAGES_PER_REQUEST) run.push(each);
    else found.push([each]);
  }
  return found;
}
