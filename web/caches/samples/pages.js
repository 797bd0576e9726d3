// The samples of one cache that match a search, loaded page by page as they become visible, in few requests.

import { get, isAbort } from "../../lib/server.js";

const PAGE = 100;
const MAX_PAGES_PER_REQUEST = 5; // the server returns at most 500 samples
const MAX_PAGES_KEPT = 200;

export class SamplePages {
  /** `changed()` is called when samples arrive, `failed(error)` when the server refuses. */
  constructor({ name, generation, search = "", bucket = "" }, changed, failed) {
    this.query = { name, generation, search, bucket };
    this.total = null; // unknown until the first response
    this.changed = changed;
    this.failed = failed;
    this.pages = new Map(); // page number → samples, most recently used last
    this.asked = new Map(); // page number → the AbortController of its request
  }

  /** Whether all samples are shown, so that places are numbers. */
  get whole() {
    return !this.query.search && !this.query.bucket;
  }

  /** The sample at a place, or undefined if it is not loaded. */
  at(place) {
    return this.pages.get(Math.floor(place / PAGE))?.[place % PAGE];
  }

  /** The number of the sample at a place; without a filter it is known before the sample is loaded. */
  numberAt(place) {
    return this.at(place)?.number ?? (this.whole ? place : undefined);
  }

  /** Samples from `first` to before `end` are visible now: load them and abort requests for others. */
  want(first, end) {
    const [from, to] = [Math.floor(first / PAGE), Math.floor(Math.max(first, end - 1) / PAGE)];
    for (const [page, request] of this.asked) {
      if (page < from || page > to) request.abort();
    }
    const missing = [];
    for (let page = from; page <= to; page += 1) {
      if (this.pages.has(page)) this.keep(page, this.pages.get(page));
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
      const found = await get("/cache/samples", { ...this.query, ...range }, { signal: request.signal });
      performance.mark("streamcache:samples");
      this.total = found.total;
      for (const page of pages) {
        const at = (page - pages[0]) * PAGE;
        this.keep(page, found.samples.slice(at, at + PAGE));
      }
      this.changed();
    } catch (error) {
      if (!isAbort(error)) this.failed(error);
    } finally {
      for (const page of pages) if (this.asked.get(page) === request) this.asked.delete(page);
    }
  }

  keep(page, samples) {
    this.pages.delete(page);
    this.pages.set(page, samples);
    if (this.pages.size > MAX_PAGES_KEPT) this.pages.delete(this.pages.keys().next().value);
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
