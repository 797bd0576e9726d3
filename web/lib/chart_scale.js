// The scales of a chart: which part of the curves it shows, from where to where its axes go, and where their ticks are.

import { linearTicks, logTicks, shortNumber, tickLabels } from "./ticks.js";

const CHARACTER = 6.4; // width in pixels on an axis
const MIN_MARGIN = 42; // so that charts above each other line up
const FEW = 8; // values: none of them is an outlier
const BEYOND = 0.02; // share of the values that may be outliers, at each end
const FAR = 1.5; // how many times the span of the others an outlier is away from them

/** The whole numbers of an axis, as steps are. An axis of seconds has ticks at multiples of its `unit`. */
export const COUNTS = { whole: true, unit: 1, text: (value) => shortNumber(value, 6) };

/** How a chart of `width` by `height` shows the series within `range`, an interval of the horizontal axis, or all of them. */
export function makeScale({ series, log: wanted, clip, format, axis = COUNTS }, range, { width, height, compact }) {
  const usable = series.map((each) => (wanted ? each.points.filter(([, y]) => y > 0) : each.points));
  const whole = span(usable.flatMap((points) => (points.length ? [points[0][0], points.at(-1)[0]] : [])), 0, 1);
  let [left, right] = range ?? whole;
  if (left === right) [left, right] = [left - 1, right + 1];
  const drawn = usable.map((points) => within(points, left, right));
  const seen = (points) => points.filter(([x, y]) => x >= left && x <= right && (!wanted || y > 0)).map(([, y]) => y);
  let values = drawn.flatMap(seen);
  const log = wanted && values.length > 0;
  if (clip) values = withoutOutliers(values, series.flatMap((each) => seen(each.basis ?? each.points)), log);
  let [low, high] = span(values, log ? 0.1 : 0, 1);
  const [least, most] = [low, high];
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
  const room = log ? (high / low) ** 0.05 : (high - low) * 0.05;
  [low, high] = log ? [low / room, high * room] : [low >= 0 && low < (high - low) * 0.3 ? 0 : low - room, high + room];
  const count = Math.max(2, Math.round(height / 52));
  const rows = log ? logTicks(low, high, count) : linearTicks(low, high, count);
  const labels = tickLabels(rows, format);
  const margin = Math.max(MIN_MARGIN, Math.max(...labels.map((text) => text.length)) * CHARACTER + 10);
  const box = { left: margin, right: width - 8, top: 8, bottom: height - (compact ? 18 : 22) };
  const x = (value) => box.left + ((value - left) / (right - left)) * (box.right - box.left);
  const place = log ? (value) => Math.log(Math.max(value, Number.MIN_VALUE) / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
  const y = (value) => box.bottom - place(value) * (box.bottom - box.top);
  const columns = columnsOf(left, right, Math.max(2, Math.round((box.right - box.left) / 90)), axis);
  return { box, x, y, rows, labels, columns, left, right, whole, least, most, log, usable, drawn, width };
}

function columnsOf(left, right, count, { whole, unit }) {
  const found = linearTicks(left / unit, right / unit, count);
  return (whole ? found.filter(Number.isInteger) : found).map((value) => value * unit);
}

function span(values, low, high) {
  return values.length ? [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))] : [low, high];
}

/** The points of an interval, and the one at either side, to which its lines go. */
function within(points, left, right) {
  const from = points.findIndex(([x]) => x >= left);
  if (from < 0) return points.slice(-1);
  const to = points.findLastIndex(([x]) => x <= right);
  return points.slice(Math.max(from - 1, 0), to + 2);
}

/** The values that are not far away from nearly all in `basis`: a spike must not flatten the others. */
function withoutOutliers(values, basis, log) {
  if (basis.length < FEW) return values;
  const sorted = (log ? basis.map(Math.log) : [...basis]).sort((a, b) => a - b);
  const skip = Math.max(1, Math.floor(BEYOND * sorted.length));
  const [bottom, top] = [sorted[skip], sorted.at(-1 - skip)];
  const far = FAR * Math.max(top - bottom, log ? 0.1 : Math.abs(top) * 0.1);
  const place = log ? Math.log : (value) => value;
  const near = values.filter((value) => place(value) >= bottom - far && place(value) <= top + far);
  return near.length ? near : values;
}
