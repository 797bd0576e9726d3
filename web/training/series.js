// The lines of the chart: all lines of a single run, or one smoothed line per run.

import { words } from "../lib/words.js";

const COLORS = ["#4c9be8", "#f28e2b", "#4fae6a", "#e0605e", "#b07cc6", "#3bb0b5", "#d4ac2b", "#e583b0"];
const VALIDATION = "#f28e2b";
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
  return COLORS[(places.get(name) ?? 0) % COLORS.length];
}

/** `names` are the chosen runs in order; `view` says what to show: {raw, validation}. */
export function lossSeries(names, curves, view) {
  if (names.length === 1) return oneRun(curves.get(names[0]), view, colorOf(names[0]));
  return names.flatMap((name) => {
    const found = curves.get(name);
    if (!found) return [];
    const color = colorOf(name);
    const series = [];
    if (view.raw) series.push({ name, color, points: found.loss, look: "faint many", quiet: true });
    series.push({ name, color, points: found.smooth });
    if (view.validation && found.validation.length) {
      series.push({ name, label: `${name}, ${words("training.validation")}`, color, points: found.validation, look: "dashed", dots: true });
    }
    return series;
  });
}

function oneRun(found, view, color) {
  if (!found) return [];
  const series = [];
  if (view.raw) series.push({ name: words("training.raw"), color, points: found.loss, look: "faint" });
  series.push({ name: words("training.smoothed"), color, points: found.smooth });
  if (view.validation && found.validation.length) {
    series.push({ name: words("training.validation"), color: color === VALIDATION ? COLORS[0] : VALIDATION, points: found.validation, look: "dashed", dots: true });
  }
  return series;
}

export function rateSeries(names, curves) {
  return names.flatMap((name) => {
    const points = curves.get(name)?.learning_rate ?? [];
    return points.length ? [{ name: names.length > 1 ? name : words("training.learning_rate"), color: colorOf(name), points }] : [];
  });
}
