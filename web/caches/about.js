// What is known of a cache beside its samples: where the bytes are, what sharing saves, captions, how it was made.

import { fill, h } from "../lib/dom.js";
import { notice } from "../lib/dialog.js";
import { bytes, moment, number, percent } from "../lib/units.js";
import { hasWords, words } from "../lib/words.js";
import { readerName } from "./facts.js";

const DEEP = 5; // of provenance; what lies deeper is shown as JSON

export class About {
  constructor(view) {
    this.view = view;
    this.element = h("div", { class: "sc-body sc-about" }, h("div", { class: "sc-spin" }));
  }

  know(detail) {
    this.known = true;
    fill(this.element, missing(detail), sizes(detail), sharing(detail), captions(detail), sets(detail), users(detail.row), made(detail));
  }
}

function section(key, ...content) {
  return h("section", { class: "sc-section" }, h("h3", {}, words(key)), ...content);
}

/** Named in the page's language where there is a word for it. */
function named(prefix, name) {
  return hasWords(`${prefix}.${name}`) ? words(`${prefix}.${name}`) : name;
}

function missing({ missing: files }) {
  if (!files?.length) return null;
  return notice("bad", words("about.missing", { count: files.length, files: files.slice(0, 5).join(", ") }));
}

function sizes({ parts, fields }) {
  const { fields: stored, older_generations: _, ...rest } = parts;
  const lines = Object.entries({ ...stored, ...rest }).filter(([, size]) => size > 0);
  const all = lines.reduce((sum, [, size]) => sum + size, 0);
  const entries = Object.fromEntries((fields ?? []).map((field) => [field.name, field]));
  const line = ([name, size]) =>
    h(
      "div",
      { class: "sc-part", title: entries[name] && words("about.entries", { count: entries[name].entries }) },
      h("span", { class: "sc-bar-name sc-clip" }, named("parts", name)),
      h("span", { class: "sc-bar-track" }, h("span", { style: { width: `${(100 * size) / all}%` } })),
      h("span", { class: "sc-bar-count" }, bytes(size)),
    );
  return section("about.sizes", h("div", { class: "sc-bars" }, lines.sort((a, b) => b[1] - a[1]).map(line)));
}

function sharing({ shared, saved_bytes: saved, fields }) {
  if (!saved) return section("about.sharing", h("p", { class: "sc-soft" }, words("about.not_shared")));
  const lines = (fields ?? []).filter((field) => field.bytes_unshared > field.bytes);
  return section(
    "about.sharing",
    h("p", {}, words("about.shared", { size: bytes(saved), factor: number(shared, 2) })),
    facts(lines.map((field) => [named("parts", field.name), `${bytes(field.bytes)} / ${bytes(field.bytes_unshared)} (−${percent(1 - field.bytes / field.bytes_unshared)})`])),
  );
}

function captions({ captions: found }) {
  if (!found?.total) return null;
  const common = (found.common ?? []).map(([text, count]) => h("li", {}, h("span", { class: "sc-grow sc-two-lines" }, text || "–"), h("span", { class: "sc-soft sc-number" }, `×${number(count)}`)));
  return section(
    "about.captions",
    h("p", {}, words("about.captions_text", { total: number(found.total), distinct: number(found.distinct), empty: number(found.empty) })),
    common.length > 0 && h("ul", { class: "sc-common" }, common),
  );
}

function sets({ sets: found }) {
  if (!found?.length || (found.length === 1 && !found[0].name)) return null;
  const known = (all) => Object.entries(all ?? {}).filter(([, each]) => each !== "" && each !== null);
  const value = (set) =>
    [words("caches.count_samples", { count: set.samples ?? 0 }), ...known(set.facts).map(([key, each]) => `${key}: ${plain(each)}`)].join(" · ");
  return section("about.sets", facts(found.map((set) => [set.name || "–", value(set)])));
}

function users(row) {
  const names = [...(row.writer ? [row.writer] : []), ...(row.readers ?? [])].map(readerName);
  if (names.length === 0) return null;
  return section("about.users", h("ul", { class: "sc-files" }, names.map((name) => h("li", {}, name))));
}

function made({ row, provenance }) {
  // The files that were left out have a tab of their own.
  const { excluded: _, ...encode } = provenance?.encode ?? {};
  const shown = { ...provenance, encode };
  const lines = [[words("about.published"), moment(row.published)], [words("about.generation"), String(row.generation)], ...flat(shown)];
  return section("about.made", facts(lines));
}

/** [["encoders › image", "taesd3"], …]. What comes of encoding is most of it and goes without saying so. */
function flat(value, path = []) {
  const inside = value && typeof value === "object" && path.length < DEEP && !isPlainList(value);
  if (inside) return Object.entries(value).flatMap(([key, each]) => flat(each, [...path, key]));
  const name = (path[0] === "encode" ? path.slice(1) : path).join(" › ");
  return plain(value) === "" ? [] : [[name.replaceAll("_", " "), plain(value)]];
}

function isPlainList(value) {
  return Array.isArray(value) && value.every((each) => typeof each !== "object");
}

function plain(value) {
  if (isPlainList(value)) return value.join(", ");
  return typeof value === "object" && value !== null ? JSON.stringify(value) : String(value ?? "");
}

function facts(lines) {
  return h("dl", { class: "sc-list" }, lines.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
