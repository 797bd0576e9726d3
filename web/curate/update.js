// "Update cache": queues the Save nodes of the open workflow that a folder of images leads to, and nothing else, and follows them.

import { api } from "../../../scripts/api.js";
import { app } from "../../../scripts/app.js";
import { FOLDER_NODE, setFolder } from "../folders/folder_node.js";
import { allNodes } from "../lib/graph.js";
import { ask } from "../lib/dialog.js";
import { button, h } from "../lib/dom.js";
import { openExample } from "../lib/example.js";
import { listen } from "../lib/server.js";
import { words } from "../lib/words.js";
import { encodedParts } from "../nodes/summary.js";
import { markUpdated } from "./edits.js";

const SAVE = "StreamCacheCacheSave";
const BUILD = "06 Build a cache"; // the template that has all nodes
const listeners = new Set();
const running = new Map(); // id → an update as a job
let last = 0;

/** Calls back with every update that makes progress. Returns a function that stops it. */
export function watchUpdates(callback) {
  listeners.add(callback);
  for (const job of running.values()) callback({ ...job });
  return () => listeners.delete(callback);
}

export const isUpdating = (folder) => [...running.values()].some((job) => job.name === folder && job.state === "running");

/** Queues the Save nodes of the folder; if the workflow has none, offers to open one that has. */
export async function updateCache(folder) {
  if (isUpdating(folder)) return null;
  const found = await findSaves(folder);
  if (found.saves.length === 0) return offerWorkflow(folder);
  return new Update(folder, found).run();
}

/** The Save nodes that the folder leads to, and all nodes that they need, by the ids that the server knows. */
async function findSaves(folder) {
  const { output } = await app.graphToPrompt();
  const needs = (id, found = new Set()) => {
    if (!(id in output) || found.has(id)) return found;
    found.add(id);
    for (const value of Object.values(output[id].inputs)) if (Array.isArray(value)) needs(String(value[0]), found);
    return found;
  };
  const isSource = (id) => output[id].class_type === FOLDER_NODE && output[id].inputs.folder === folder;
  const all = Object.keys(output).filter((id) => output[id].class_type === SAVE);
  const saves = all.filter((id) => [...needs(id)].some(isSource));
  return { saves, nodes: new Set(saves.flatMap((id) => [...needs(id)])) };
}

class Update {
  constructor(folder, { saves, nodes }) {
    Object.assign(this, { folder, nodes, waiting: new Set(saves), saves, lines: [], cached: new Set(), started: false });
    this.job = { id: `update-${(last += 1)}`, kind: "update", name: folder, state: "running", done: 0, total: 0, text: "", local: true };
    this.job.cancel = () => (this.started ? api.interrupt(null) : this.unqueue());
  }

  async run() {
    this.stops = [
      listen("executing", (id) => this.nodes.has(String(id)) && (this.started = true)),
      listen("execution_cached", ({ nodes }) => (nodes ?? []).forEach((id) => this.cached.add(String(id)))),
      listen("progress_text", ({ nodeId, text }) => this.saves.includes(String(nodeId)) && text && this.tell({ text: text.split("\n")[0] })),
      listen("progress_state", ({ nodes }) => this.progress(nodes ?? {})),
      listen("executed", ({ node, display_node: shown, output }) => this.executed(String(shown ?? node), output)),
      listen("execution_error", ({ node_id: id, exception_message: text }) => this.nodes.has(String(id)) && this.end({ state: "failed", error: text })),
      listen("execution_interrupted", ({ node_id: id }) => (this.nodes.has(String(id)) || this.started) && this.end({ state: "cancelled" })),
      listen("reconnected", () => this.look()),
    ];
    this.tell({});
    let queued = false;
    const stop = listen("promptQueued", () => (queued = true));
    await app.queuePrompt(0, 1, this.saves).finally(stop);
    if (!queued && this.waiting.size > 0) this.end({ state: "failed", error: words("curate.update_refused") });
  }

  progress(nodes) {
    const node = this.saves.map((id) => nodes[id]).find((each) => each?.state === "running");
    if (node) this.tell({ done: node.value, total: node.max });
  }

  executed(id, output) {
    const facts = output?.streamcache?.[0];
    if (!facts || !this.waiting.delete(id)) return;
    this.lines.push(summary(this.cached.has(id) ? { ...facts, unchanged: true } : facts)); // ComfyUI repeats what it showed before
    if (this.waiting.size > 0) return;
    markUpdated(this.folder);
    this.end({ state: "done", what: this.lines.join("\n") });
  }

  /** The connection was lost. If nothing is queued any more, the update has ended, or the server was restarted. */
  async look() {
    const queue = await this.queue();
    if (queue && queue.length === 0) this.end({ state: "failed", error: words("curate.update_lost") });
  }

  async queue() {
    const answer = await api.fetchApi("/queue").catch(() => null);
    const { queue_running: now = [], queue_pending: later = [] } = (await answer?.json().catch(() => null)) ?? {};
    return answer?.ok ? [...now, ...later] : null;
  }

  /** Not started yet: takes it out of the queue. */
  async unqueue() {
    const mine = ((await this.queue()) ?? []).filter(([, , , , targets]) => targets?.length === this.saves.length && this.saves.every((id) => targets.includes(id)));
    for (const [, id] of mine) await api.deleteItem("queue", id);
    this.end({ state: "cancelled" });
  }

  tell(change) {
    Object.assign(this.job, change);
    running.set(this.job.id, this.job);
    for (const callback of listeners) callback({ ...this.job });
  }

  end(how) {
    for (const stop of this.stops.splice(0)) stop();
    if (!running.has(this.job.id)) return;
    this.tell(how);
    running.delete(this.job.id);
  }
}

/** "my_dataset: 15 captions encoded, 15 reused · 0 images encoded, 28 reused" */
function summary(facts) {
  if (facts.unchanged) return words("curate.updated_same", { name: facts.name });
  const samples = words("caches.count_samples", { count: facts.samples });
  return `${facts.name}: ${[...encodedParts(facts), samples].join(" · ")}`;
}

/** The workflow has no Save node for this folder. */
function offerWorkflow(folder) {
  const content = h("p", {}, words("curate.no_save", { name: folder }));
  const act = async () => {
    await openExample(BUILD);
    const node = [...allNodes()].find((each) => each.comfyClass === FOLDER_NODE);
    if (node) setFolder(node, folder);
  };
  return ask({ title: words("curate.update"), content, action: words("curate.open_build"), act });
}

export function updateButton(folder, failed) {
  return button(words("curate.update"), () => updateCache(folder).catch(failed), { sign: "sync", title: words("curate.update_tip"), class: "sc-button sc-update" });
}
