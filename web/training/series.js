// The lines of the charts: all lines of a single run, or one smoothed line per run.

import { words } from "../lib/words.js";
import { placesOf } from "./axes.js";

const COLORS = 12; // of the palette in training.css; further runs have the same colors, dashed
const DASHES = ["", "dash-1", "dash-2"];
const places = new Map(); // name of a chosen run → index of its color

/** A run keeps its color while it is chosen, even if other runs are added or removed. */
export function giveColors(names) {
  for (const name of [...places.keys()]) if (!names.includes(name)) places.delete(name);
  for (const name of names) {
    if (places.has(name)) continue;
    const taken = new Set(places.values());
    places.set(name, names.findIndex((_, place) => !taken.has(place)));
  }
}

export function colorOf(name) {
  return `var(--sc-run-${(places.get(name) ?? 0) % COLORS})`;
}

/** The dashes that distinguish a run from others of the same color. */
export function dashOf(name) {
  return DASHES[Math.floor((places.get(name) ?? 0) / COLORS) % DASHES.length];
}

/** `names` are the chosen runs in order; `view` says what to show: {raw, validation, axis}. Validation has marks, in every color. */
export function lossSeries(names, curves, view) {
  const several = names.length > 1;
  return names.flatMap((name) => {
    const found = curves.get(name);
    if (!found) return [];
    const [color, dash, on] = [colorOf(name), dashOf(name), placer(view.axis, found)];
    const called = (key) => (several ? name : words(`training.${key}`));
    const series = [];
    if (view.raw) series.push({ name: called("raw"), color, points: on(found.loss), look: several ? "faint many" : "faint", quiet: several });
    // After a spike, an average stays high for many steps: what is an outlier, the losses tell.
    series.push({ name: called("smoothed"), color, points: on(found.smooth), basis: on(found.loss), look: dash });
    if (view.validation && found.validation.length) {
      const label = several ? `${name}, ${words("training.validation")}` : undefined;
      series.push({ name: called("validation"), label, color, points: on(found.validation), look: "dashed", dots: true });
    }
    return series;
  });
}

/** One line per run: its `learning_rate` or `gradient_norm`. */
export function runSeries(names, curves, key, axis) {
  return names.flatMap((name) => {
    const found = curves.get(name);
    if (!found?.[key]?.length) return [];
    const called = names.length > 1 ? name : words(`training.${key}`);
    return [{ name: called, color: colorOf(name), look: dashOf(name), points: placer(axis, found)(found[key]) }];
  });
}

function placer(axis = "step", curves) {
  if (axis === "step") return (points) => points;
  const { to } = placesOf(axis, curves);
  return (points) => points.map(([step, value]) => [to(step), value]).filter(([place]) => Number.isFinite(place));
}
