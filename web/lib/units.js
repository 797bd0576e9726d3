// Numbers, sizes and times in ComfyUI's language.

import { setting } from "./host.js";
import { locale, words } from "./words.js";

const SCALES = { MB: [1000, ["B", "kB", "MB", "GB", "TB"]], MiB: [1024, ["B", "KiB", "MiB", "GiB", "TiB"]] };
const AGES = [
  ["year", 31557600],
  ["month", 2629800],
  ["week", 604800],
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
];

export function number(value, digits = 0) {
  return new Intl.NumberFormat(locale(), { maximumFractionDigits: digits }).format(value);
}

export function percent(share, digits = 0) {
  return new Intl.NumberFormat(locale(), { style: "percent", maximumFractionDigits: digits }).format(share);
}

/** 1.24 GB, or 1.15 GiB depending on the setting: three significant digits. */
export function bytes(value) {
  const [base, names] = SCALES[setting("StreamCache.Units", "MB")] ?? SCALES.MB;
  let rank = 0;
  let left = value ?? 0;
  while (Math.abs(left) >= base && rank < names.length - 1) {
    left /= base;
    rank += 1;
  }
  const digits = rank === 0 || left >= 100 ? 0 : left >= 10 ? 1 : 2;
  return `${number(left, digits)} ${names[rank]}`;
}

/** "3 hours ago", from seconds since 1970. */
export function age(moment, now = Date.now() / 1000) {
  if (!moment) return "";
  const past = Math.max(0, now - moment);
  const [unit, size] = AGES.find(([, each]) => past >= each) ?? ["minute", 60];
  const count = Math.floor(past / size);
  if (count === 0) return words("units.now");
  return new Intl.RelativeTimeFormat(locale(), { numeric: "auto" }).format(-count, unit);
}

/** Date and time, from seconds since 1970. */
export function moment(seconds) {
  if (!seconds) return "";
  return new Intl.DateTimeFormat(locale(), { dateStyle: "medium", timeStyle: "short" }).format(seconds * 1000);
}

/** 1:02:03, 4:05, 0:09. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}
