// Two tabs of a cache: its details (sizes, sharing, captions, how it was made), and the files that were skipped.

import { bar, bars } from "../lib/bars.js";
import { fill, h } from "../lib/dom.js";
import { notice } from "../lib/dialog.js";
import { translateWord } from "../lib/messages.js";
import { bytes, moment, number, percent } from "../lib/units.js";
import { hasWords, words } from "../lib/words.js";

const DEEP = 5; // levels of provenance shown as a tree; deeper ones are shown as JSON

export class About {
  constructor(view) {
    this.view = view;
    this.element = h("div", { class: "sc-body sc-about", tabIndex: 0 }, h("div", { class: "sc-spin" }));
  }

  know(detail) {
    this.known = true;
    const sections = [missing, sizes, sharing, captions, sets, users, made];
    // The columns are inside the scrolling element: as columns itself it would grow sideways.
    fill(this.element, h("div", { class: "sc-columns" }, ...sections.map((draw) => draw(detail))));
  }
}

/** The files that were skipped during encoding, each with its reason. */
export class Skipped {
  constructor() {
    this.element = h("div", { class: "sc-body", tabIndex: 0 }, h("div", { class: "sc-spin" })); // so that keys scroll it
  }

  know({ excluded }) {
    this.known = true;
    const { count, files } = excluded;
    const line = ({ source, reason }) => h("li", {}, h("strong", {}, source), h("span", { class: "sc-soft" }, reason));
    fill(
      this.element,
      h("p", { class: "sc-soft" }, words("excluded.text", { count })),
      h("ul", { class: "sc-excluded" }, files.map(line)),
      files.length < count && h("p", { class: "sc-soft" }, words("excluded.more", { count: count - files.length })),
    );
  }
}

function section(key, ...content) {
  return h("section", { class: "sc-section" }, h("h3", {}, words(key)), ...content);
}

/** The translated name if there is one. */
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
  const title = (name) => entries[name] && words("about.entries", { count: entries[name].entries });
  const line = ([name, size]) => bar("div", named("parts", name), size / all, bytes(size), { title: title(name) });
  return section("about.sizes", bars("div", {}, lines.sort((a, b) => b[1] - a[1]).map(line)));
}

function sharing({ shared, saved_bytes: saved, fields, trimmed_bytes: trimmed, untrimmed_bytes: untrimmed }) {
  const share = { size: bytes(trimmed), share: percent(trimmed / untrimmed) };
  const padding = trimmed > 0 && h("p", {}, words("about.trimmed", share));
  if (!saved) {
    return section("about.sharing", h("p", { class: "sc-soft" }, words("about.not_shared")), padding);
  }
  const lines = (fields ?? []).filter((field) => field.bytes_unshared > field.bytes);
  return section(
    "about.sharing",
    h("p", {}, words("about.shared", { size: bytes(saved), factor: number(shared, 2) })),
    facts(lines.map((field) => [named("parts", field.name), saving(field)])),
    padding,
  );
}

/** 449 kB / 1.4 MB (−68%) */
function saving({ bytes: stored, bytes_unshared: otherwise }) {
  return `${bytes(stored)} / ${bytes(otherwise)} (−${percent(1 - stored / otherwise)})`;
}

function captions({ captions: found }) {
  if (!found?.total) return null;
  const { total, distinct, empty } = found;
  const line = ([text, count]) =>
    h(
      "li",
      {},
      h("span", { class: "sc-grow sc-two-lines" }, text || "–"),
      h("span", { class: "sc-soft sc-number" }, `×${number(count)}`),
    );
  const counts = { total: number(total), distinct: number(distinct), empty: number(empty) };
  return section(
    "about.captions",
    h("p", {}, words("about.captions_text", counts)),
    found.common?.length > 0 && h("ul", { class: "sc-common" }, found.common.map(line)),
  );
}

function sets({ sets: found }) {
  if (!found?.length || (found.length === 1 && !found[0].name)) return null;
  const present = (all) => Object.entries(all ?? {}).filter(([, each]) => each !== "" && each !== null);
  const value = ({ samples, facts: settings }) => {
    const count = words("caches.count_samples", { count: samples ?? 0 });
    return [count, ...present(settings).map(([key, each]) => `${key}: ${plain(each)}`)].join(" · ");
  };
  return section("about.sets", facts(found.map((set) => [set.name || "–", value(set)])));
}

function users({ row }) {
  const names = [...(row.writer ? [row.writer] : []), ...(row.readers ?? [])];
  if (names.length === 0) return null;
  return section("about.users", h("ul", { class: "sc-files" }, names.map((name) => h("li", {}, name))));
}

function made({ row, provenance }) {
  // The skipped files have their own tab.
  const { encode, ...rest } = provenance ?? {};
  const { excluded: _, ...shown } = encode ?? {};
  const lines = [
    [words("about.published"), moment(row.published)],
    [words("about.sources"), words(`sources.${row.sources}`)],
    [words("about.generation"), row.generation],
  ];
  return section("about.made", facts(lines), tree({ ...shown, ...rest }));
}

/** Nested values: plain ones as lines, the others below their names. */
function tree(value, depth = 0) {
  const entries = Object.entries(value).filter(([, each]) => plain(each) !== "");
  const isPlain = ([, each]) => typeof each !== "object" || isPlainList(each) || depth >= DEEP;
  const name = (key) => (Array.isArray(value) ? `${Number(key) + 1}` : translateWord(key.replaceAll("_", " ")));
  const branch = ([key, each]) => h("div", { class: "sc-branch" }, h("h4", {}, name(key)), tree(each, depth + 1));
  return [
    facts(entries.filter(isPlain).map(([key, each]) => [name(key), plain(each)])),
    ...entries.filter((entry) => !isPlain(entry)).map(branch),
  ];
}

function isPlainList(value) {
  return Array.isArray(value) && value.every((each) => typeof each !== "object");
}

function plain(value) {
  if (isPlainList(value)) return value.join(", ");
  return typeof value === "object" && value !== null ? JSON.stringify(value) : String(value ?? "");
}

function facts(lines) {
  if (lines.length === 0) return null;
  return h("dl", { class: "sc-list" }, lines.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
