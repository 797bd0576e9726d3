// Short texts and badges about a cache, for the list and for its own view.

import { h, icon } from "../lib/dom.js";
import { address } from "../lib/server.js";
import { age, bytes, moment } from "../lib/units.js";
import { words } from "../lib/words.js";

/** Badges: in use, damaged, source files missing. */
export function badges(row) {
  const found = [];
  const add = (kind, sign, key, title) =>
    found.push(h("span", { class: `sc-badge ${kind}`, title }, icon(sign), words(key)));
  if (row.problem) add("bad", "exclamation-circle", "caches.unreadable", row.problem);
  if (row.writer) add("good", "pencil", "caches.being_written", String(row.writer));
  else if (row.readers?.length) add("good", "eye", "caches.in_use", row.readers.join("\n"));
  if (row.sources === "missing") add("warn", "images", "caches.sources_missing", words("caches.sources_missing_why"));
  if (row.sources === "partly") add("warn", "images", "caches.sources_partly", words("caches.sources_partly_why"));
  return found;
}

export function inUse(row) {
  return Boolean(row.writer || row.readers?.length);
}

/** "812 samples · 5 buckets · 1.24 GB" */
export function amounts(row) {
  return [
    words("caches.count_samples", { count: row.samples ?? 0 }),
    words("caches.count_buckets", { count: row.buckets?.length ?? 0 }),
    bytes(row.bytes),
  ].join(" · ");
}

/** "3 days ago · VAE taesd3 · text clip_l" */
export function origin(row) {
  return [age(row.published), ...encoders(row)].filter(Boolean).join(" · ");
}

/** ["VAE taesd3", "text clip_l"]: the encoders; one that is known only by its hash is shown by the first digits. */
export function encoders(row) {
  const short = (name) => (/^[0-9a-f]{12,}$/.test(name) ? name.slice(0, 6) : name);
  const found = Object.entries(row.encoders ?? {}).filter(([, name]) => name);
  return found.map(([field, name]) => words(`encoders.${field}`, { name: short(name) }));
}

export function exactly(row) {
  return moment(row.published);
}

/** The thumbnail of the first sample, or an icon. */
export function cover(row) {
  const frame = h("div", { class: "sc-cover" }, icon(row.problem ? "exclamation-triangle" : "images"));
  if (row.problem || !row.samples) return frame;
  const query = { name: row.name, generation: row.generation, number: 0 };
  const image = h("img", { alt: "", loading: "lazy", draggable: false, src: address("/cache/thumbnail", query) });
  image.addEventListener("error", () => image.remove());
  frame.append(image);
  return frame;
}
