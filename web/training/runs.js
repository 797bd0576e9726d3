// The store of training runs: loaded once, then kept up to date by the events of the server.

import { api } from "../../../scripts/api.js";
import { debounce } from "../lib/dom.js";
import { setting } from "../lib/host.js";
import { get, listen, post } from "../lib/server.js";

export const POINTS = 1200;
const MAX_POINTS = 3000; // of a live curve before it is loaded again, thinned
const LOOK_AGAIN = 5000; // milliseconds between two questions whether other processes have changed a run
const LIVE_ONLY = ["points", "validation", "exported", "run", "node"];

class RunStore {
  constructor() {
    this.rows = new Map(); // name → row
    this.curves = new Map(); // name → {loss, smooth, …, samples, prompts, settings, exports, report}
    this.nodes = new Map(); // id of a node on this page → name of its run
    this.listeners = new Set();
    this.loaded = false;
    this.loading = 0;
    this.error = null;
  }

  /** Call any number of times: loads the runs and listens to events once. */
  start() {
    this.started ??= this.#start();
    return this.started;
  }

  async #start() {
    listen("streamcache.training", (facts) => this.#update(facts));
    listen("streamcache.sample", (facts) => this.#addSample(facts));
    listen("reconnected", () => this.#catchUp());
    listen("streamcache.caches", debounce(() => this.load(), 400)); // also sent when a run is deleted or restored
    await this.load();
  }

  async load() {
    this.loading += 1;
    this.notify();
    try {
      const { stamp } = await get("/runs/stamp"); // before the list, which may be newer
      const { runs } = await get("/runs", { client: api.clientId });
      this.stamp = stamp;
      this.rows = new Map(runs.map((row) => [row.name, row]));
      for (const row of runs) if (row.node) this.nodes.set(String(row.node), row.name);
      this.error = null;
    } catch (error) {
      this.error = error.message;
    }
    this.loaded = true;
    this.loading -= 1;
    this.notify();
  }

  /** Loads the curves of a run, if the page does not have them. */
  async follow(name, again = false) {
    const before = this.curves.get(name);
    if (!name || (before && !again)) return;
    // A response counts only for the request that is still current: the run may have restarted meanwhile.
    const mine = { ...(before ?? empty()), asked: true };
    this.curves.set(name, mine);
    const query = { name, points: POINTS, smoothing: smoothing(), client: api.clientId };
    const found = await get("/run", query).catch((error) => ({ error }));
    if (this.curves.get(name) !== mine) return;
    if (found.error) this.#notFound(name, before, found.error);
    else this.#found(name, mine, found);
    this.notify();
  }

  /** Loads all curves again, with another smoothing. */
  reloadCurves() {
    return Promise.all([...this.curves.keys()].map((name) => this.follow(name, true)));
  }

  async stop(name) {
    await post("/run/stop", { name });
    this.#merge(name, { stopping: true });
  }

  async remove(name) {
    const { trash } = await post("/run/delete", { name });
    this.rows.delete(name);
    this.curves.delete(name);
    this.notify();
    return trash;
  }

  async restore(trash) {
    await post("/trash/restore", { id: trash });
    await this.load();
  }

  async label(name, tags, comment) {
    await post("/run/label", { name, tags, comment });
    await this.load();
  }

  /** Resolves to the new name. */
  async rename(name, to) {
    const found = await post("/run/rename", { name, to });
    this.curves.delete(name);
    await this.load();
    return found.name;
  }

  /** While someone looks, runs of other processes appear and go on by themselves. Returns a function that ends it. */
  watch() {
    const timer = setInterval(() => !document.hidden && this.#lookAgain(), LOOK_AGAIN);
    return () => clearInterval(timer);
  }

  live() {
    return [...this.rows.values()].filter((row) => row.live);
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Listeners are called once for all changes of a frame. */
  notify() {
    this.pending ??= setTimeout(() => {
      this.pending = undefined;
      for (const listener of [...this.listeners]) listener(this);
    }, 30);
  }

  /** Events were missed while disconnected, and a run may have restarted: load everything again. */
  #catchUp() {
    const names = [...this.curves.keys()];
    this.curves.clear();
    return Promise.all([this.load(), ...names.map((name) => this.follow(name))]);
  }

  /** Loads what another process has changed. Whether one is still running is in no file: such runs are always loaded. */
  async #lookAgain() {
    const elsewhere = [...this.rows.values()].some((row) => row.status === "running" && !row.live);
    const { stamp } = await get("/runs/stamp").catch(() => ({}));
    if (!stamp || (stamp === this.stamp && !elsewhere)) return;
    const before = this.rows;
    await this.load();
    const changed = [...this.rows.values()].filter((row) => !row.live && this.curves.has(row.name) && row.updated !== before.get(row.name)?.updated);
    await Promise.all(changed.map((row) => this.follow(row.name, true)));
  }

  #found(name, live, { curves, samples, run, ...rest }) {
    const whole = Object.fromEntries(Object.entries(curves).map(([key, points]) => [key, join(points, live[key])]));
    this.curves.set(name, { ...whole, ...rest, samples: joinSamples(samples, live.samples) });
    this.rows.set(name, { ...this.rows.get(name), ...run });
  }

  #notFound(name, before, error) {
    if (before) this.curves.set(name, { ...before, asked: false });
    else this.curves.delete(name);
    if (error.status === 404) this.rows.delete(name);
  }

  #update(facts) {
    const name = facts.run;
    const live = Boolean(facts.live);
    const known = this.rows.get(name);
    if (facts.node) this.nodes.set(String(facts.node), name);
    const row = Object.fromEntries(Object.entries(facts).filter(([key]) => !LIVE_ONLY.includes(key)));
    // A run that begins may have files on disk: it resumes, or overwrites an earlier run.
    const begins = live && facts.step === 0 && !facts.validation;
    this.#merge(name, { ...row, name, live, ...(begins ? { began: Date.now() / 1000, stopping: false, lora: "" } : {}) });
    if (begins) this.curves.delete(name);
    if (begins || !this.curves.has(name)) this.follow(name);
    else this.#grow(name, facts);
    if (!live || !known) this.load();
    if (!live || facts.exported) this.follow(name, true); // its list of LoRA files has changed
  }

  #grow(name, facts) {
    const curves = this.curves.get(name);
    const keep = smoothing() / 1000;
    for (const [step, loss] of facts.points ?? []) {
      if (step <= (curves.loss.at(-1)?.[0] ?? 0)) continue;
      const count = curves.loss.length;
      const weight = 1 - keep ** count;
      const average = keep * weight * (curves.smooth.at(-1)?.[1] ?? 0) + (1 - keep) * loss;
      curves.loss.push([step, loss]);
      curves.smooth.push([step, average / (1 - keep ** (count + 1))]);
    }
    for (const key of ["learning_rate", "gradient_norm"]) {
      const known = typeof facts[key] === "number" && facts.step > (curves[key].at(-1)?.[0] ?? 0);
      if (known) curves[key].push([facts.step, facts[key]]);
    }
    this.#goOn(curves, facts);
    if (facts.validation && facts.validation[0] > (curves.validation.at(-1)?.[0] ?? -1)) {
      curves.validation.push(facts.validation);
    }
    if (curves.loss.length > MAX_POINTS && !curves.asked) this.follow(name, true);
  }

  /** The places of the newest step on the axes of time and epochs, until they are loaded. */
  #goOn({ time, epoch }, { step, rate, epoch: now }) {
    const [last, seconds] = time.at(-1) ?? [0, 0];
    if (rate > 0 && step > last) time.push([step, seconds + (step - last) / rate]);
    if (now > (epoch.at(-1)?.[1] ?? 0)) epoch.push([step - 1, now]);
  }

  #addSample({ run, step, prompt, file, mtime }) {
    const samples = this.curves.get(run)?.samples;
    if (!samples) return;
    const place = samples.findIndex((each) => each.file === file);
    samples.splice(place < 0 ? samples.length : place, 1, { step, prompt, file, mtime });
    this.notify();
  }

  #merge(name, facts) {
    this.rows.set(name, { steps: 0, step: 0, dataset: "", lora: "", updated: Date.now() / 1000, ...this.rows.get(name), ...facts });
    this.notify();
  }
}

function empty() {
  const lines = { loss: [], smooth: [], validation: [], learning_rate: [], gradient_norm: [], epoch: [], time: [] };
  return { ...lines, samples: [], prompts: [], settings: {}, host_settings: {}, exports: [], report: "" };
}

/** Events that came while the response was on its way are newer. */
function join(points, live) {
  const last = points.at(-1)?.[0] ?? -1;
  return [...points, ...live.filter(([step]) => step > last)];
}

function joinSamples(samples, live) {
  const newer = new Map(live.map((sample) => [sample.file, sample]));
  const written = (sample) => Number(sample?.mtime ?? 0);
  const latest = (sample) => (written(newer.get(sample.file)) > written(sample) ? newer.get(sample.file) : sample);
  const known = new Set(samples.map((sample) => sample.file));
  return [...samples.map(latest), ...live.filter((sample) => !known.has(sample.file))];
}

/** Of the loss, in thousandths. */
export function smoothing() {
  return Math.round(Math.max(0, Math.min(0.999, setting("StreamCache.Smoothing", 0.9))) * 1000);
}

export const store = new RunStore();
