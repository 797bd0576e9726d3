// The horizontal axes of a chart of runs: steps, epochs, or time of training.

import { COUNTS } from "../lib/chart_scale.js";
import { duration, number } from "../lib/units.js";
import { words } from "../lib/words.js";

export const AXES = { step: "training.axis_step", epoch: "training.axis_epoch", time: "training.axis_time" }; // their names

const MINUTE = 60;
const HOUR = 3600;

/** Where the steps of a run are on an axis, and the other way round. */
export function placesOf(kind, curves) {
  const known = kind === "step" ? undefined : curves?.[kind];
  if (!known) return { to: (step) => step, from: (place) => place };
  const back = known.map(([step, place]) => [place, step]);
  return { to: (step) => along(known, step), from: (place) => along(back, place) };
}

/** The ticks of an axis that ends at `last`, and the headings of its places. */
export function axisOf(kind, last) {
  if (kind === "epoch") return { whole: false, unit: 1, text: (place) => number(place, 2), read: (place) => words("training.at_epoch", { epoch: number(place, 2) }) };
  if (kind !== "time") return { ...COUNTS, read: (step) => words("training.at_step", { step: number(step) }) };
  const unit = last > 2 * HOUR ? HOUR : last > 2 * MINUTE ? MINUTE : 1;
  return { whole: unit === 1, unit, text: duration, read: (seconds) => words("training.at_time", { time: duration(seconds) }) };
}

/** Between known pairs by their distance, and beyond them as the nearest two go on. */
function along(pairs, value) {
  if (pairs.length < 2) return pairs.length ? pairs[0][1] : NaN;
  let [low, high] = [0, pairs.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (pairs[middle][0] <= value) low = middle;
    else high = middle;
  }
  const [[from, first], [to, second]] = [pairs[low], pairs[high]];
  return to === from ? second : first + ((value - from) / (to - from)) * (second - first);
}
