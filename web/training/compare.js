// The chart of the chosen runs: losses, learning rates, its options, and a table as the legend.

import { LineChart } from "../lib/chart.js";
import { debounce, fill, h } from "../lib/dom.js";
import { setSetting, setting } from "../lib/host.js";
import { nameOf } from "../lib/names.js";
import { shortNumber } from "../lib/ticks.js";
import { number } from "../lib/units.js";
import { hasWords, words } from "../lib/words.js";
import { store } from "./runs.js";
import { colorOf, lossSeries, rateSeries } from "./series.js";

const OWN = ["name", "mode", "accept_changes"]; // settings that do not affect training

export class Comparison {
  constructor(view) {
    this.view = view;
    const read = (step) => words("training.at_step", { step: number(step) });
    this.losses = new LineChart({ label: words("training.loss_chart"), height: 230, read });
    this.rates = new LineChart({ label: words("training.learning_rate"), height: 84, compact: true, read });
    this.legend = h("div", { class: "sc-legend" });
    const smooth = debounce(() => store.reloadCurves(), 200);
    const slider = h("input", {
      type: "range",
      min: 0,
      max: 0.99,
      step: 0.01,
      value: setting("StreamCache.Smoothing", 0.9),
      oninput: async (event) => {
        await setSetting("StreamCache.Smoothing", Number(event.target.value));
        smooth();
      },
    });
    const tools = h(
      "div",
      { class: "sc-row wrap sc-small sc-chart-tools", role: "group", "aria-label": words("training.shown") },
      this.#switch("raw", "training.raw"),
      this.#switch("validation", "training.validation"),
      this.#switch("log", "training.log"),
      h("label", { class: "sc-row" }, words("training.smoothing"), slider),
    );
    const title = h("div", { class: "sc-small sc-soft" }, words("training.learning_rate"));
    this.loss = h("div", { class: "sc-stack" }, tools, this.losses.element);
    this.rate = h("div", { class: "sc-stack" }, title, this.rates.element);
    this.element = h("section", { class: "sc-stack", "aria-label": words("training.chart") }, this.loss, this.legend, this.rate);
  }

  show(names) {
    this.names = names;
    const [losses, rates] = [lossSeries(names, store.curves, this.view), rateSeries(names, store.curves)];
    const trained = names.some((name) => store.curves.get(name)?.loss.length || store.rows.get(name)?.live);
    this.element.hidden = names.length === 0 || (names.length === 1 && !trained);
    this.loss.hidden = !trained; // a run that failed before its first step has nothing to draw
    this.rate.hidden = rates.length === 0;
    this.losses.show({ series: losses, log: this.view.log });
    this.rates.show({ series: rates });
    fill(this.legend, names.length > 1 ? table(names) : lines(losses));
  }

  destroy() {
    this.losses.destroy();
    this.rates.destroy();
  }

  #switch(key, text) {
    const change = (event) => {
      this.view[key] = event.target.checked;
      this.show(this.names ?? []);
    };
    return h("label", { class: "sc-row" }, h("input", { type: "checkbox", checked: this.view[key], onchange: change, name: key }), words(text));
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
    const swatch = h("span", { class: "sc-swatch", style: { "--sc-series": colorOf(name) } });
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

function settingName(key) {
  if (hasWords(`training.${key}`)) return words(`training.${key}`);
  return key.charAt(0).toUpperCase() + key.slice(1).replaceAll("_", " ");
}

function shown(value, format = shortNumber) {
  if (typeof value === "number") return format(value);
  const text = typeof value === "object" && value !== null ? JSON.stringify(value) : String(value ?? "");
  return text || "–";
}
