// Jobs on the server: a line with progress while a job runs, then with its result.

import { useFolder } from "../folders/folder_node.js";
import { unsent } from "../folders/uploads.js";
import { button, h, icon, iconButton } from "../lib/dom.js";
import { get, post } from "../lib/server.js";
import { bytes, duration, number } from "../lib/units.js";
import { words } from "../lib/words.js";
import { acceptLoss, remedy } from "./repair.js";

const TRAVEL = ["push", "pull", "sync"];
const PROBLEMS_SHOWN = 30;
const SHOWN_FOR = 10000; // milliseconds, of a job that went well and has nothing to press
const DISMISSED = "streamcache.dismissed";
const MOST_DISMISSED = 200;
const dismissed = new Set(JSON.parse(sessionStorage.getItem(DISMISSED) ?? "[]")); // ids of jobs that the user has dismissed

export class Jobs {
  constructor(panel) {
    this.panel = panel;
    this.lines = new Map(); // id → {job, element, fading}
    this.element = h("div", { class: "sc-jobs", role: "log", "aria-label": words("jobs.label") });
  }

  destroy() {
    for (const { fading } of this.lines.values()) clearTimeout(fading);
  }

  /** Called when the tab is opened or the connection is back: loads running and finished jobs. */
  async load() {
    const before = [...this.lines.values()];
    const { jobs } = await get("/jobs").catch(() => ({}));
    if (!jobs) return;
    const known = new Set(jobs.map((job) => job.id));
    for (const { job } of before) if (!known.has(job.id) && !job.local) this.update({ ...job, state: "failed" }); // the server restarted
    for (const job of jobs.reverse()) if (!dismissed.has(job.id)) this.update(job);
  }

  update(job) {
    if (job.state === "sent") return this.forget(job.id); // a job on the server goes on with it
    if (job.kind === "read" && job.state === "done") return this.forget(job.id); // its images are shown
    const known = this.lines.get(job.id);
    // The response to the request that started a job may arrive after the event that it is done, and only then this page knows
    // which files it did not send: the job is drawn again as it ended.
    if (known && known.job.state !== "running") job = known.job;
    if (!known) this.tidy();
    const element = this.draw(job);
    if (known) known.element.replaceWith(element);
    else this.element.append(element);
    clearTimeout(known?.fading);
    this.lines.set(job.id, { job, element, fading: isOver(job, element) && this.fade(job.id) });
    if (job.kind === "repair" && job.state === "done") this.settle(job);
  }

  /** The line of a job that went well goes away by itself, but not while the user reads it. */
  fade(id) {
    return setTimeout(() => {
      const line = this.lines.get(id);
      if (!line) return;
      if (line.element.matches(":hover, :focus-within")) line.fading = this.fade(id);
      else this.forget(id);
    }, SHOWN_FOR);
  }

  /** What verifying found before a repair is no longer true. */
  settle({ id, name }) {
    for (const { job } of [...this.lines.values()]) {
      if (job.id !== id && job.name === name && ["verify", "repair"].includes(job.kind) && job.state !== "running") this.forget(job.id);
    }
  }

  draw(job) {
    const facts = { name: job.name, to: job.to, done: number(job.done ?? 0), total: number(job.total ?? 0), ...travel(job) };
    if (job.state === "running") return this.running(job, job.text || words(`jobs.${job.kind}_running`, facts));
    const adds = job.kind === "add";
    const { dropped = 0 } = job.counts ?? {};
    const refused = job.kind === "repair" && job.state === "failed" && dropped > 0;
    const problems = [...unsent(job.id), ...(job.problems ?? [])];
    const bad = adds && job.state === "done" ? !job.counts.images && problems.length > 0 : isBad(job);
    const partly = adds && !bad && problems.length > 0;
    const sign = partly ? "exclamation-triangle" : bad ? "exclamation-circle" : job.state === "cancelled" ? "ban" : "check-circle";
    const done = bad && !adds ? "jobs.problems" : `jobs.${job.kind}_done`;
    const text = {
      failed: () => (refused ? words("repair.refused", { ...facts, count: dropped, samples: job.counts.samples }) : job.error || words("jobs.failed", facts)),
      cancelled: () => words(adds ? "jobs.add_cancelled" : TRAVEL.includes(job.kind) ? "jobs.travel_cancelled" : "jobs.cancelled", facts),
      done: () => words(done, { ...facts, count: job.kind === "repair" ? dropped : job.problem_count, what: adds ? whatWasAdded(job.counts) : job.what }),
    }[job.state]();
    const all = unsent(job.id).length + (job.problem_count ?? 0);
    const close = iconButton("times", words("actions.close"), () => this.forget(job.id));
    return h(
      "div",
      { class: `sc-job ${partly ? "partly" : bad ? "bad" : "good"}`, dataset: { job: job.kind, state: job.state } },
      h("div", { class: "sc-row" }, icon(sign), h("span", { class: "sc-grow", title: job.words }, text), close),
      adds && job.state === "done" && job.counts.images + job.counts.same > 0 && toCanvas(job.name),
      adds && problems.length > 0 && h("p", { class: "sc-small" }, words("jobs.not_added", { count: all })),
      problems.length > 0 && h("ul", { class: "sc-problems" }, problems.slice(0, PROBLEMS_SHOWN).map(problemLine)),
      job.kind === "verify" && job.state === "done" && remedy(this.panel, { ...job, problems }),
      refused && acceptLoss(this.panel, job),
    );
  }

  running(job, text) {
    const share = job.total ? Math.min(1, job.done / job.total) : 0;
    const percent = Math.round(share * 100);
    const cancel = () => this.panel.attempt(() => (job.cancel ?? (() => post("/job/cancel", { id: job.id })))());
    const stop = iconButton("times", words("jobs.stop"), cancel);
    const bar = h("div", { style: { width: `${share * 100}%` } });
    const aria = { "aria-label": text, "aria-valuenow": percent, "aria-valuemin": 0, "aria-valuemax": 100 };
    return h(
      "div",
      { class: "sc-job", dataset: { job: job.kind, state: job.state } },
      h(
        "div",
        { class: "sc-row" },
        h("span", { class: "sc-grow sc-two-lines", title: text }, text),
        h("span", { class: "sc-soft sc-number sc-small" }, `${percent}%`),
        stop,
      ),
      h("div", { class: "sc-progress", role: "progressbar", ...aria }, bar),
    );
  }

  /** Successful jobs are dismissed when the next one starts. */
  tidy() {
    for (const { job } of this.lines.values()) if (job.state !== "running" && !isBad(job)) this.forget(job.id);
  }

  forget(id) {
    dismissed.add(id);
    sessionStorage.setItem(DISMISSED, JSON.stringify([...dismissed].slice(-MOST_DISMISSED)));
    clearTimeout(this.lines.get(id)?.fading);
    this.lines.get(id)?.element.remove();
    this.lines.delete(id);
  }
}

/** "28 images · 28 captions · 2 there already" */
function whatWasAdded(counts) {
  const keys = ["images", "captions", "masks", "renamed", "replaced", "same"];
  const parts = keys.filter((key) => key === "images" || counts[key] > 0);
  return parts.map((key) => words(`folders.count_${key}`, { count: counts[key] ?? 0 })).join(" · ");
}

/** "1.2 GB of 4 GB, 2:10 left" while a cache travels, and what was carried at the end. */
function travel(job) {
  if (!TRAVEL.includes(job.kind)) return {};
  const left = Number.isFinite(job.left) ? duration(job.left) : "";
  const values = { done: bytes(job.done), total: bytes(job.total), left };
  const { files, bytes: size, resumed } = job.counts ?? {};
  const key = !files ? "nothing_carried" : resumed ? "carried_resumed" : "carried";
  const carried = words(`jobs.${key}`, { size: bytes(size), resumed: bytes(resumed) });
  return { sent: words(left ? "jobs.sent_left" : "jobs.sent", values), carried };
}

function toCanvas(folder) {
  return button(words("folders.to_canvas"), () => useFolder(folder), { sign: "plus-circle" });
}

/** Nothing is left to press or to read. */
function isOver(job, element) {
  return job.state !== "running" && job.kind !== "update" && element.matches(".good") && element.querySelectorAll("button").length === 1;
}

function isBad(job) {
  return job.state === "failed" || job.problems?.length > 0;
}

function problemLine(problem) {
  return h("li", {}, h("span", { class: "sc-soft" }, `${problem.place ?? ""} `), problem.words ?? problem.kind);
}
