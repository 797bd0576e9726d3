// Bars with a name and a count. A bar can be a list item, a button or a plain line.

import { h } from "./dom.js";
import { useStyle } from "./style.js";

/** bars("ul", {"aria-label": "…"}, [bar("li", "512×512", 0.4, "12"), …]) */
export function bars(tag, props, rows) {
  useStyle("bars");
  return h(tag, { class: "sc-bars", ...props }, rows);
}

/** `share` of the track is filled, from 0 to 1; at least one percent, so that small values stay visible. */
export function bar(tag, name, share, count, props = {}) {
  const width = `${Math.max(100 * share, 1)}%`;
  return h(
    tag,
    { class: "sc-bar", ...props },
    h("span", { class: "sc-bar-name sc-clip", title: name }, name),
    h("span", { class: "sc-bar-track" }, h("span", { style: { width } })),
    h("span", { class: "sc-bar-count" }, count),
  );
}

/** The largest of [[name, count]] first; those beyond `most` are summed up in a last one, named `rest(n)`. */
export function largest(rows, most, rest) {
  const sorted = [...rows].sort((a, b) => b[1] - a[1]);
  if (sorted.length <= most) return sorted;
  const left = sorted.splice(most - 1);
  return [...sorted, [rest(left.length), left.reduce((sum, [, count]) => sum + count, 0)]];
}
