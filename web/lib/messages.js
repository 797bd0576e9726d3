// Messages of the server and of nodes in ComfyUI's language. The code that writes them knows English only; web/messages/ has
// the other languages, by pattern: "%1%: cannot be read: %2%".

import { locale } from "./words.js";

const LANGUAGES = ["zh"];
const KEYS = new Set(["error", "locked", "notes", "notices", "problem", "reason", "undo", "warnings", "words"]); // never the texts of users
const REASONS = "refused"; // reasons by the names of images
const LONGEST = 2000; // characters of a line; longer ones stay English
const COUNT = /^%1% [a-z]+$/; // "%1% images"
const SEPARATORS = [": ", "; ", ". ", ", "];

const catalogues = new Map(); // language → {exact, patterns, words, notes}

/** Call before anything is shown, and when the language has changed. Without a catalogue messages stay English. */
export async function loadMessages() {
  const language = spoken();
  if (!language || catalogues.has(language)) return;
  try {
    const answer = await fetch(new URL(`../messages/${language}.json`, import.meta.url));
    catalogues.set(language, compile(await answer.json()));
  } catch {
    // It is tried again when the language changes.
  }
}

/** A message in ComfyUI's language, as far as it is known. */
export function translate(text) {
  const catalogue = catalogues.get(spoken());
  if (!catalogue || typeof text !== "string") return text;
  return text.split("\n").map((line) => render(catalogue, line, new Map()) ?? line).join("\n");
}

/** Translates the messages in an answer or event of the server, in place. */
export function translateIn(answer) {
  if (catalogues.has(spoken())) walk(answer);
  return answer;
}

/** A choice in a list, or the name of a setting. */
export function translateWord(word) {
  return catalogues.get(spoken())?.words[word] ?? word;
}

/** A text whose lines are all known, such as the note of a template; otherwise undefined. */
export function translateWhole(text) {
  const notes = catalogues.get(spoken())?.notes;
  const lines = String(text).split("\n");
  if (!notes || !lines.every((line) => !line.trim() || notes[line])) return undefined;
  return lines.map((line) => notes[line] ?? line).join("\n");
}

function spoken() {
  return LANGUAGES.find((language) => locale().split("-")[0] === language);
}

function compile({ messages, words, notes }) {
  const entries = Object.entries(messages);
  const patterns = entries.filter(([english]) => /%\d+%/.test(english)).map(([english, other]) => {
    const order = [...english.matchAll(/%(\d+)%/g)].map((match) => match[1]);
    const parts = english.split(/%\d+%/);
    const value = COUNT.test(english) ? "([\\d,.]+)" : "(.*?)"; // or every sentence that ends with "name" would be a number of names
    const source = parts.map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join(value);
    return { rule: new RegExp(`^${source}$`), order, other, letters: parts.join("").length };
  });
  // The most telling pattern first: many fit a message that begins with a name and a colon.
  patterns.sort((a, b) => b.letters - a.letters);
  return { exact: new Map(entries), patterns, words, notes };
}

/** The line in the other language; undefined if nothing of it is known. `seen`: the parts that were tried, each of them once. */
function render(catalogue, line, seen) {
  if (!seen.has(line)) seen.set(line, line.trim() && line.length <= LONGEST ? find(catalogue, line, seen) : undefined);
  return seen.get(line);
}

function find(catalogue, line, seen) {
  if (catalogue.exact.has(line)) return catalogue.exact.get(line);
  for (const { rule, order, other } of catalogue.patterns) {
    const found = rule.exec(line);
    if (!found) continue;
    const values = Object.fromEntries(order.map((number, at) => [number, render(catalogue, found[at + 1], seen) ?? found[at + 1]]));
    return other.replace(/%(\d+)%/g, (whole, number) => values[number] ?? whole);
  }
  return renderParts(catalogue, line, seen);
}

/** A message behind a name ("a.png: is a link"), or several in one line. */
function renderParts(catalogue, line, seen) {
  for (const separator of SEPARATORS) {
    for (let at = line.indexOf(separator); at > 0; at = line.indexOf(separator, at + 1)) {
      const [before, after] = [line.slice(0, at), line.slice(at + separator.length)];
      const rest = render(catalogue, after, seen);
      if (rest === undefined) continue;
      const mark = { ": ": "：", "; ": "；", ". ": "。", ", ": "，" }[separator];
      return (catalogue.exact.get(before) ?? before) + mark + rest;
    }
  }
  return undefined;
}

function walk(value, key) {
  if (Array.isArray(value)) {
    for (let at = 0; at < value.length; at += 1) {
      if (typeof value[at] === "string") value[at] = KEYS.has(key) ? translate(value[at]) : value[at];
      else walk(value[at]); // counted words of captions are lists in a list
    }
  } else if (value && typeof value === "object") {
    for (const [name, each] of Object.entries(value)) {
      if (typeof each === "string") value[name] = KEYS.has(name) || key === REASONS ? translate(each) : each;
      else walk(each, name);
    }
  }
}
