// The uploads of this page, one after the other. They go on while the tab is closed; the tab shows them as jobs.

import { CACHES_TAB, notify, openTab } from "../lib/host.js";
import { get, isAbort, listen, post } from "../lib/server.js";
import { words } from "../lib/words.js";
import { discard, discardAtOnce, sendAll } from "./upload.js";

const BETWEEN = 200; // milliseconds between two reports
const shown = new Map(); // id → an upload as a job
const found = new Map(); // id of a job on the server → files that were not even sent
const listeners = new Set();
let last = Promise.resolve();

/** Calls back with every upload that makes progress, and with the jobs that follow. Returns a function that stops it. */
export function watchUploads(callback) {
  listeners.add(callback);
  for (const job of shown.values()) callback(job);
  return () => listeners.delete(callback);
}

/** The files that the page did not send for a job, as problems of the job. */
export const unsent = (id) => found.get(id) ?? [];

/**
 * Sends files and has them added; `given` as of dropped.js, `begun` as the server began it. Resolves to the job, or to null if
 * nothing was added.
 */
export function start(given, begun, ifExists) {
  const stop = new AbortController();
  const job = { id: begun.upload, kind: "upload", name: begun.folder, state: "running", done: 0, total: given.bytes, local: true };
  job.cancel = () => stop.abort();
  tell(job);
  openTab(CACHES_TAB);
  const result = last.then(() => run(job, given, begun, ifExists, stop.signal));
  last = result.catch(() => {});
  return result;
}

async function run(job, given, begun, ifExists, signal) {
  const leaving = (event) => event.preventDefault(); // the browser asks whether to leave
  const left = () => discardAtOnce(begun.upload);
  window.addEventListener("beforeunload", leaving);
  window.addEventListener("pagehide", left);
  try {
    let told = 0;
    const report = (done) => {
      job.done = done;
      if (performance.now() - told < BETWEEN) return; // thousands of files may be sent within seconds
      told = performance.now();
      tell(job);
    };
    const problems = await sendAll(given, begun, { report, signal });
    const request = { upload: begun.upload, folder: begun.folder, if_exists: ifExists };
    const { job: adding } = await post("/folder/add", request, { signal });
    found.set(adding.id, [...given.left, ...problems]);
    end(job, { state: "sent" });
    tell(adding);
    return await ended(adding.id);
  } catch (error) {
    discard(begun.upload);
    const stopped = signal.aborted || isAbort(error);
    end(job, stopped ? { state: "cancelled" } : { state: "failed", error: error.message });
    return null;
  } finally {
    window.removeEventListener("beforeunload", leaving);
    window.removeEventListener("pagehide", left);
  }
}

function end(job, how) {
  shown.delete(job.id);
  tell(Object.assign(job, how), false);
  if (how.error && listeners.size === 0) notify("error", words("folders.failed", { name: job.name }), how.error);
}

function tell(job, keep = job.local) {
  if (keep) shown.set(job.id, job);
  for (const callback of listeners) callback({ ...job });
}

/** The job when it has ended. Events are missed while the connection is lost. */
function ended(id) {
  return new Promise((resolve) => {
    const stops = [];
    const look = (job) => {
      if (job?.id !== id || job.state === "running") return;
      for (const stop of stops) stop();
      resolve(job.state === "done" ? job : null);
    };
    const ask = async () => {
      const { jobs } = await get("/jobs").catch(() => ({}));
      if (jobs) look(jobs.find((job) => job.id === id) ?? { id, state: "failed" }); // the server restarted
    };
    stops.push(listen("streamcache.job", look), listen("reconnected", ask));
    ask(); // it may have ended already
  });
}
