// Questions to the pack's routes. A refusal becomes an Error whose message is the server's own sentence for people.

import { api } from "../../../scripts/api.js";
import { words } from "./words.js";

const PREFIX = "/streamcache";

export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.name = "Refusal";
    this.status = status;
  }
}

export const isAbort = (error) => error?.name === "AbortError";

/** get("/cache", {name: "my_set"}, {signal}): what the route answers. */
export function get(path, query = {}, options = {}) {
  return ask(path + search(query), options);
}

/** Whatever changes something. */
export function post(path, body = {}, options = {}) {
  const headers = { "Content-Type": "application/json" };
  return ask(path, { ...options, method: "POST", headers, body: JSON.stringify(body) });
}

/** Where a picture is, for an <img>. */
export function address(path, query = {}) {
  return api.apiURL(PREFIX + path + search(query));
}

/** Calls back with what the server tells all pages. Returns how to stop listening. */
export function listen(event, callback) {
  const heard = ({ detail }) => callback(detail ?? {});
  api.addEventListener(event, heard);
  return () => api.removeEventListener(event, heard);
}

async function ask(path, options) {
  let answer;
  try {
    answer = await api.fetchApi(PREFIX + path, options);
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new Refusal(words("server.unreachable"), 0);
  }
  const found = await answer.json().catch((error) => {
    if (isAbort(error)) throw error;
  });
  if (!answer.ok) throw new Refusal(found?.error || words("server.failed", { status: answer.status }), answer.status);
  return found;
}

function search(query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}
