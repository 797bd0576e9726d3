// The samples of one cache that match a search, known piece by piece: what is looked at is asked for, in few requests.

import { get, isAbort } from "../lib/server.js";

const PAGE = 100;
const MOST_PAGES_A_REQUEST = 5; // the server answers at most 500 samples
const MOST_PAGES_KEPT = 200;

export class Samples {
  /** `changed()` is called when more is known, `failed(error)` when the server refused. */
  constructor({ name, generation, search = "", bucket = "" }, changed, failed) {
    this.query = { name, generation, search, bucket };
    this.total = null; // unknown until the first answer
    this.changed = changed;
    this.failed = failed;
    this.pages = new Map(); // page number → samples, the ones used last at the end
    this.asked = new Map(); // page number → the AbortController of its request
  }

  /** Everything that matches nothing but the cache itself is numbered without gaps. */
  get whole() {
    return !this.query.search && !this.query.bucket;
  }

  /** What is known of the sample at a place, or undefined. */
  at(place) {
    return this.pages.get(Math.floor(place / PAGE))?.[place % PAGE];
  }

  /** The number of the sample at a place: known before its facts where nothing is left out. */
  numberAt(place) {
    return this.at(place)?.number ?? (this.whole ? place : undefined);
  }

  /** Samples from `first` to before `end` are looked at now. Requests for others are given up. */
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
    if (this.pages.size > MOST_PAGES_KEPT) this.pages.delete(this.pages.keys().next().value);
  }
}

/** Neighbouring numbers, at most as many together as one request may ask for. */
function runs(numbers) {
  const found = [];
  for (const each of numbers) {
    const run = found.at(-1);
    if (run && run.at(-1) === each - 1 && run.length < MOST_PAGES_A_REQUEST) run.push(each);
    else found.push([each]);
  }
  return found;
}
