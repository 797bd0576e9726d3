// The lines of a chart of runs: one run in full, several as one smoothed line each.

import { words } from "../lib/words.js";

export const COLORS = ["#4c9be8", "#f28e2b", "#4fae6a", "#e0605e", "#b07cc6", "#3bb0b5", "#d4ac2b", "#e583b0"];
const HELD_OUT = "#f28e2b";

/** `names` are the chosen runs in order; `view` says what to show: {raw, validation}. */
export function lossSeries(names, curves, view) {
  if (names.length === 1) return oneRun(curves.get(names[0]), view);
  return names.flatMap((name, place) => {
    const found = curves.get(name);
    if (!found) return [];
    const color = COLORS[place % COLORS.length];
    const series = [];
    if (view.raw) series.push({ name, color, points: found.loss, look: "faint many", quiet: true });
    series.push({ name, color, points: found.smooth });
    if (view.validation && found.validation.length) {
      series.push({ name, said: `${name}, ${words("training.validation")}`, color, points: found.validation, look: "dashed", dots: true });
    }
    return series;
  });
}

function oneRun(found, view) {
  if (!found) return [];
  const series = [];
  if (view.raw) series.push({ name: words("training.raw"), color: COLORS[0], points: found.loss, look: "faint" });
  series.push({ name: words("training.smoothed"), color: COLORS[0], points: found.smooth });
  if (view.validation && found.validation.length) {
    series.push({ name: words("training.validation"), color: HELD_OUT, points: found.validation, look: "dashed", dots: true });
  }
  return series;
}

export function rateSeries(names, curves) {
  return names.flatMap((name, place) => {
    const points = curves.get(name)?.learning_rate ?? [];
    return points.length ? [{ name: names.length > 1 ? name : words("training.learning_rate"), color: COLORS[place % COLORS.length], points }] : [];
  });
}
