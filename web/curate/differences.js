// What differs between two texts, marked: words for short ones, otherwise the part between the common beginning and end.

import { h } from "../lib/dom.js";

const MOST_WORDS = 400;
const MOST_CHARACTERS = 2000; // shown

/** [before, after] as elements with <del> and <ins>. */
export function differences(before, after) {
  const [old, now] = [pieces(before), pieces(after)];
  const parts = old.length * now.length <= MOST_WORDS * MOST_WORDS && old.length + now.length <= 4 * MOST_WORDS ? compare(old, now) : ends(before, after);
  const side = (kind, tag) => parts.filter(([each]) => each === "same" || each === kind).map(([each, text]) => (each === "same" ? text : h(tag, {}, text)));
  return [line(side("old", "del"), before), line(side("new", "ins"), after)];
}

function line(parts, text) {
  if (text === "") return h("div", { class: "sc-change-line sc-soft" }, "–");
  return h("div", { class: "sc-change-line", dir: "auto" }, parts);
}

const pieces = (text) => text.slice(0, MOST_CHARACTERS).match(/\s+|[^\s,]+|,/g) ?? [];

/** The longest common subsequence of words. */
function compare(old, now) {
  const lengths = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1)
    for (let j = now.length - 1; j >= 0; j -= 1)
      lengths[i][j] = old[i] === now[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const found = [];
  const add = (kind, text) => (found.at(-1)?.[0] === kind ? (found.at(-1)[1] += text) : found.push([kind, text]));
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) add("same", (j++, old[i++]));
    else if (j >= now.length || (i < old.length && lengths[i + 1][j] >= lengths[i][j + 1])) add("old", old[i++]);
    else add("new", now[j++]);
  }
  return found;
}

function ends(before, after) {
  let start = 0;
  while (start < before.length && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < Math.min(before.length, after.length) - start && before.at(-1 - end) === after.at(-1 - end)) end += 1;
  const cut = (text) => (text.length > MOST_CHARACTERS ? `${text.slice(0, MOST_CHARACTERS)}…` : text);
  const parts = [
    ["same", start > 200 ? `…${before.slice(start - 200, start)}` : before.slice(0, start)],
    ["old", cut(before.slice(start, before.length - end))],
    ["new", cut(after.slice(start, after.length - end))],
    ["same", end > 200 ? `${after.slice(after.length - end, after.length - end + 200)}…` : after.slice(after.length - end)],
  ];
  return parts.filter(([, text]) => text);
}
