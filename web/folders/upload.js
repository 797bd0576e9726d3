// Sends files to the server: single ones through ComfyUI's own upload route, zips through ours. Everything waits in a hidden
// folder until it is added, or discarded if the user cancels or closes the page.

import { api } from "../../../scripts/api.js";
import { address, post, Refusal, toJson } from "../lib/server.js";
import { bytes } from "../lib/units.js";
import { words } from "../lib/words.js";

const AT_ONCE = 4;
const OVERHEAD = 16384; // bytes of a request besides its file

export const begin = (folder, size) => post("/folder/begin", { folder, bytes: Math.max(1, size) });

export const discard = (upload) => post("/folder/discard", { upload }).catch(() => {});

/** When the page is closed there is no time for a request with a response. */
export function discardAtOnce(upload) {
  navigator.sendBeacon?.(address("/folder/discard"), new Blob([JSON.stringify({ upload })], { type: "application/json" }));
}

/** Sends everything. `report(sent)` gets the bytes sent so far. Resolves to the files that could not be sent: [{place, words}]. */
export async function sendAll(given, begun, { report, signal }) {
  const problems = [];
  let sent = 0;
  const files = given.files.filter(({ file, path }) => {
    const fits = file.size + OVERHEAD <= begun.file_bytes;
    if (!fits) problems.push({ place: path, words: words("folders.reason_size", { size: bytes(begun.file_bytes) }) });
    return fits;
  });
  const waiting = files.map((each, number) => ({ ...each, number })).reverse();
  const work = async () => {
    for (let next; (next = waiting.pop()); ) {
      signal.throwIfAborted();
      const problem = await sendFile(next, begun, signal);
      if (problem) problems.push({ place: next.path, words: problem });
      report((sent += next.file.size));
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  for (const [number, file] of given.zips.entries()) {
    await sendZip(file, { upload: begun.upload, number }, signal, (part) => report(sent + part));
    report((sent += file.size));
  }
  return problems;
}

/** Resolves to the reason if this file was refused. If the server cannot store any file, it throws. */
async function sendFile({ file, path, number }, begun, signal) {
  const cut = path.lastIndexOf("/");
  const body = new FormData();
  body.append("type", "input");
  body.append("subfolder", cut < 0 ? begun.subfolder : `${begun.subfolder}/${path.slice(0, cut)}`);
  body.append("image", file, `${String(number).padStart(6, "0")}-${path.slice(cut + 1)}`);
  const response = await api.fetchApi("/upload/image", { method: "POST", body, signal }).catch((error) => {
    if (signal.aborted) throw error;
    return null; // the file cannot be read, or the connection is lost
  });
  if (response?.ok) return "";
  if (response?.status === 413) return words("folders.reason_size", { size: bytes(begun.file_bytes) });
  if (response?.status >= 500) throw new Refusal(words("folders.not_stored", { name: path }), response.status);
  if (response === null && (await isUnreadable(file))) return words("folders.reason_unreadable");
  throw new Refusal(response ? words("server.failed", { status: response.status }) : words("server.unreachable"), response?.status ?? 0);
}

/** A file that was removed or changed after it was chosen. */
function isUnreadable(file) {
  return file.slice(0, 1).arrayBuffer().then(() => false, () => true);
}

/** Not fetch: it does not report how much it has sent. */
function sendZip(file, query, signal, report) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const stop = () => request.abort();
    request.open("POST", address("/folder/zip", query));
    request.setRequestHeader("Content-Type", "application/zip");
    if (api.user) request.setRequestHeader("Comfy-User", api.user);
    request.upload.onprogress = (event) => report(event.loaded);
    request.onload = () => {
      const answer = toJson(request.responseText);
      const error = answer?.error || words("server.failed", { status: request.status });
      request.status === 200 ? resolve() : reject(new Refusal(error, request.status));
    };
    request.onerror = () => reject(new Refusal(words("server.unreachable"), 0));
    request.onabort = () => reject(new DOMException("", "AbortError"));
    signal.addEventListener("abort", stop);
    request.onloadend = () => signal.removeEventListener("abort", stop);
    request.send(file);
  });
}
