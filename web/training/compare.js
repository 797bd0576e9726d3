// The charts of the chosen runs: losses, learning rates and gradient norms with one zoom, and a table as the legend.

import { LineChart } from "../lib/chart.js";
import { show as showWindow } from "../lib/dialog.js";
import { debounce, fill, h, iconButton } from "../lib/dom.js";
import { nameOf } from "../lib/names.js";
import { get } from "../lib/server.js";
import { shortNumber } from "../lib/ticks.js";
import { number } from "../lib/units.js";
import { hasWords, words } from "../lib/words.js";
import { axisOf, placesOf } from "./axes.js";
import { ChartTools } from "./chart_tools.js";
import { POINTS, smoothing, store } from "./runs.js";
import { colorOf, dashOf, lossSeries, runSeries } from "./series.js";

const OWN = ["name", "mode", "accept_changes"]; // settings that do not affect training
const LINES = ["loss", "smooth", "learning_rate", "gradient_norm"];
const DETAILED = 0.9; // of the most points: a curve with fewer has every step

export class Comparison {
  /** `view` is shared: {raw, rawSeveral, validation, log, clip, axis}. A `large` one fills a dialog. */
  constructor(view, large = false) {
    this.view = view;
    this.range = null; // of the horizontal axis
    this.detail = new Map(); // name → the curves within the range, thinned less
    const read = (place) => this.axis.read(place);
    const make = (key, label, height) => {
      const title = words(`training.${key}`);
      const chart = new LineChart({ label, height, compact: key !== "loss", read, zoomed: (range) => this.#zoom(range) });
      const head = key !== "loss" && h("div", { class: "sc-small sc-soft" }, title);
      return { key, title, chart, element: h("div", { class: "sc-stack" }, head, chart.element) };
    };
    const high = large ? Math.max(220, innerHeight - 560) : 230;
    const low = large ? 110 : 84;
    this.parts = [
      make("loss", words("training.loss_chart"), high),
      make("learning_rate", words("training.learning_rate_chart"), low),
      make("gradient_norm", words("training.gradient_norm_chart"), low),
    ];
    this.legend = h("div", { class: "sc-legend" });
    this.tools = new ChartTools(this, large);
    const [losses, ...others] = this.parts.map((part) => part.element);
    losses.prepend(this.tools.element);
    this.element = h("section", { class: "sc-stack", "aria-label": words("training.chart") }, losses, this.legend, others);
    this.load = debounce(() => this.#load(), 200);
  }

  show(names) {
    if (names.join("\n") !== this.names?.join("\n")) this.#forget();
    this.names = names;
    const curves = new Map(names.map((name) => [name, this.#curves(name)]));
    const found = [...curves.values()].filter(Boolean);
    const trained = names.some((name) => curves.get(name)?.loss.length || store.rows.get(name)?.live);
    this.element.hidden = names.length === 0 || (names.length === 1 && !trained);
    const kind = this.view.axis;
    const series = [
      lossSeries(names, curves, { ...this.view, raw: names.length > 1 ? this.view.rawSeveral : this.view.raw }),
      runSeries(names, curves, "learning_rate", kind),
      runSeries(names, curves, "gradient_norm", kind),
    ];
    this.axis = axisOf(kind, Math.max(0, ...found.map((each) => placesOf(kind, each).to(each.loss.at(-1)?.[0] ?? 0)).filter(Number.isFinite)));
    this.parts.forEach(({ chart, element }, place) => {
      element.hidden = place ? series[place].length === 0 : !trained; // a run that failed before its first step has nothing to draw
      const { log, clip } = this.view;
      chart.show({ series: series[place], log: log && place !== 1, clip: clip && place !== 1, axis: this.axis });
    });
    this.tools.show(names.length > 1, this.range !== null);
    this.series = series[0];
    fill(this.legend, names.length > 1 ? table(names) : lines(series[0]));
  }

  /** Shows an interval of the axis in all charts, or everything: null. */
  zoom(range) {
    for (const { chart } of this.parts) chart.zoom(range);
    this.#zoom(range);
  }

  /** Draws again with what the view says now; its axis may be another. */
  redraw(otherAxis = false) {
    if (otherAxis) this.zoom(null);
    this.show(this.names ?? []);
  }

  /** The same charts, large, in a dialog. */
  enlarge() {
    const large = new Comparison(this.view, true);
    const close = iconButton("times", words("training.close"), () => dialog.close());
    const head = h("div", { class: "sc-row" }, h("h2", { class: "sc-grow" }, words("training.chart")), close);
    const dialog = h("dialog", { class: "sc sc-dialog wide sc-large sc-charts", "aria-label": words("training.chart") }, head, large.element);
    const leave = store.subscribe(() => large.show(this.names));
    showWindow(dialog, () => {
      leave();
      large.destroy();
      this.redraw(); // options may have changed
      this.tools.takeOver();
    });
    large.show(this.names);
    large.zoom(this.range);
  }

  destroy() {
    this.load.cancel();
    for (const { chart } of this.parts) chart.destroy();
  }

  #zoom(range) {
    this.range = range;
    for (const { chart } of this.parts) if (chart.range !== range) chart.zoom(range);
    this.tools.show(this.names.length > 1, range !== null);
    if (range) this.load();
    else this.detail.clear();
  }

  #forget() {
    this.detail.clear();
    if (this.range) this.zoom(null);
  }

  /** The curves of a run: within the range with more points, if they have been loaded. */
  #curves(name) {
    const whole = store.curves.get(name);
    const part = this.detail.get(name);
    if (!whole || !part || part.smoothing !== smoothing()) return whole;
    const join = (key) => [...whole[key].filter(([step]) => step < part.first), ...part.curves[key], ...whole[key].filter(([step]) => step > part.last)];
    return { ...whole, ...Object.fromEntries(LINES.map((key) => [key, join(key)])) };
  }

  /** Curves are thinned: asks for those steps again that are shown. */
  async #load() {
    const { range } = this;
    const wanted = this.names.filter((name) => store.curves.get(name)?.loss.length > POINTS * DETAILED);
    await Promise.all(wanted.map(async (name) => {
      const { from } = placesOf(this.view.axis, store.curves.get(name));
      const [first, last] = [Math.floor(from(range[0])) - 1, Math.ceil(from(range[1])) + 1].map((step) => Math.max(0, step));
      const found = await get("/run", { name, points: POINTS, smoothing: smoothing(), first, last }).catch(() => null);
      if (found && this.range === range) this.detail.set(name, { first, last, smoothing: smoothing(), curves: found.curves });
    }));
    if (wanted.length && this.range === range) this.show(this.names);
  }
}

/** The legend of one run: the names of its lines. */
function lines(series) {
  const swatch = (each) => h("span", { class: `sc-swatch ${each.look ?? ""}`, style: { "--sc-series": each.color } });
  return h("div", { class: "sc-row wrap sc-small sc-soft" }, series.map((each) => h("span", { class: "sc-row" }, swatch(each), each.name)));
}

/** The legend of several runs: one column per run, with its step, its loss and the settings that differ. */
function table(names) {
  const known = names.map((name) => store.curves.get(name));
  const heads = names.map((name) => {
    const swatch = h("span", { class: `sc-swatch ${dashOf(name)}`, style: { "--sc-series": colorOf(name) } });
    return h("th", { scope: "col" }, h("span", { class: "sc-row" }, swatch, nameOf(name)));
  });
  const row = (title, cells) => h("tr", {}, h("th", { scope: "row" }, title), cells.map((cell) => h("td", { title: cell }, cell)));
  const rows = [
    row(words("training.step"), known.map((curves) => shown(curves?.smooth.at(-1)?.[0], number))),
    row(words("training.loss"), known.map((curves) => shown(curves?.smooth.at(-1)?.[1]))),
    row(words("training.best_validation"), known.map((curves) => shown(lowest(curves?.validation)))),
    ...differing(names).map((key) => row(settingName(key), known.map((curves) => shown(curves?.settings[key])))),
  ];
  return h("table", { class: "sc-table sc-small sc-number" }, h("thead", {}, h("tr", {}, h("td"), heads)), h("tbody", {}, rows));
}

function lowest(points) {
  return points?.length ? points.reduce((least, [, value]) => Math.min(least, value), Infinity) : undefined;
}

/** The settings that differ between runs, except those that always do. */
function differing(names) {
  const known = names.map((name) => store.curves.get(name)?.settings).filter((settings) => settings && Object.keys(settings).length);
  const keys = [...new Set(known.flatMap(Object.keys))].filter((key) => !OWN.includes(key));
  return keys.filter((key) => new Set(known.map((settings) => JSON.stringify(settings[key]))).size > 1);
}

export function settingName(key) {
  if (hasWords(`training.${key}`)) return words(`training.${key}`);
  return key.charAt(0).toUpperCase() + key.slice(1).replaceAll("_", " ");
}

/** The value of a setting, or – for none. */
export function shown(value, format = shortNumber) {
  if (typeof value === "number") return format(value);
  const text = typeof value === "object" && value !== null ? JSON.stringify(value) : String(value ?? "");
  return text || "–";
}
