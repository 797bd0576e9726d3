// Requests to the pack's routes. A refusal becomes an Error with the server's message.

import { api } from "../../../scripts/api.js";
import { translate, translateIn } from "./messages.js";
import { words } from "./words.js";

const PREFIX = "/streamcache";
const OWN = "streamcache.";
const EVENTS = ["streamcache.caches", "streamcache.folders", "streamcache.grid", "streamcache.job", "streamcache.sample", "streamcache.training"];

// ComfyUI logs events that have had no listener, such as those of a run that trains while the page is loaded.
for (const event of EVENTS) api.addEventListener(event, () => {});

export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.name = "Refusal";
    this.status = status;
  }
}

export const isAbort = (error) => error?.name === "AbortError";

/** get("/cache", {name: "my_set"}, {signal}) resolves to the response. */
export function get(path, query = {}, options = {}) {
  return ask(path + search(query), options);
}

/** getText("/run/report", {name}) resolves to a file as text. */
export async function getText(path, query = {}) {
  const response = await send(path + search(query), {});
  if (!response.ok) throw await refusal(response);
  return response.text();
}

/** For requests that change something. */
export function post(path, body = {}, options = {}) {
  const headers = { "Content-Type": "application/json" };
  return ask(path, { ...options, method: "POST", headers, body: JSON.stringify(body) });
}

/** The address of an image or file, for <img> and <a>. */
export function address(path, query = {}) {
  return api.apiURL(PREFIX + path + search(query));
}

/** Calls back with an event of the server. Returns a function that stops listening. */
export function listen(event, callback) {
  const handle = ({ detail }) => callback(event.startsWith(OWN) ? translateIn(detail ?? {}) : (detail ?? {}));
  api.addEventListener(event, handle);
  return () => api.removeEventListener(event, handle);
}

async function ask(path, options) {
  const response = await send(path, options);
  if (!response.ok) throw await refusal(response);
  return translateIn(await readJson(response));
}

async function send(path, options) {
  try {
    return await api.fetchApi(PREFIX + path, options);
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new Refusal(words("server.unreachable"), 0);
  }
}

function readJson(response) {
  return response.json().catch((error) => {
    if (isAbort(error)) throw error;
  });
}

/** A text as JSON; undefined if it is not. */
export function toJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

async function refusal(response) {
  const found = await readJson(response);
  return new Refusal(translate(found?.error) || words("server.failed", { status: response.status }), response.status);
}

function search(query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}
