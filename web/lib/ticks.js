// The ticks of an axis, and how their numbers are formatted.

import { locale } from "./words.js";

/** About `count` round values between `low` and `high`. */
export function linearTicks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, place) => (first + place) * step);
}

/** Powers of ten, with their multiples by 2 and 5 if there are few. Within less than a decade, round values. */
export function logTicks(low, high, count) {
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const within = (value) => value >= low * 0.999 && value <= high * 1.001;
  for (const folds of [[1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = from; power <= to; power += 1) found.push(...folds.map((fold) => fold * 10 ** power));
    const shown = found.filter(within);
    if (shown.length <= count + 2 && shown.length >= 3) return shown;
  }
  return linearTicks(low, high, count).filter(within);
}

/** 0.0123, 1.2e-5, 1,200: only significant digits. */
export function shortNumber(value, digits = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e7) return value.toExponential(Math.max(digits - 3, 0)).replace(/\.?0+e/, "e");
  return new Intl.NumberFormat(locale(), { maximumSignificantDigits: digits }).format(value);
}

/** The labels of an axis, with enough digits to distinguish neighbors. */
export function tickLabels(values, format = shortNumber) {
  const least = values.slice(1).reduce((step, value, place) => Math.min(step, Math.abs(value - values[place])), Infinity);
  const isClose = (value, digits) => Math.abs(Number(value.toPrecision(digits)) - value) <= least / 20;
  let digits = 3;
  while (digits < 9 && !values.every((value) => isClose(value, value !== 0 && Math.abs(value) < 1e-3 ? Math.max(digits - 2, 1) : digits))) digits += 1;
  return values.map((value) => format(value, digits));
}
