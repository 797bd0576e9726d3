// The chart of the chosen runs: their losses and learning rates, what to show of them, and a table that is its legend.

import { LineChart } from "../lib/chart.js";
import { debounce, fill, h } from "../lib/dom.js";
import { setSetting, setting } from "../lib/host.js";
import { shortNumber } from "../lib/ticks.js";
import { number } from "../lib/units.js";
import { words } from "../lib/words.js";
import { store } from "./runs.js";
import { COLORS, lossSeries, rateSeries } from "./series.js";

export class Comparison {
  constructor(view) {
    this.view = view;
    const read = (step) => words("training.at_step", { step: number(step) });
    this.losses = new LineChart({ label: words("training.loss_chart"), height: 230, read });
    this.rates = new LineChart({ label: words("training.learning_rate"), height: 84, compact: true, read });
    this.legend = h("div");
    const smooth = debounce(() => store.smoothAnew(), 200);
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
    const rate = h("div", { class: "sc-small sc-soft" }, words("training.learning_rate"));
    this.element = h("section", { class: "sc-stack", "aria-label": words("training.chart") }, tools, this.losses.element, this.legend, rate, this.rates.element);
  }

  show(names) {
    this.names = names;
    this.element.hidden = names.length === 0;
    this.losses.show({ series: lossSeries(names, store.curves, this.view), log: this.view.log });
    this.rates.show({ series: rateSeries(names, store.curves) });
    fill(this.legend, names.length > 1 ? table(names) : lines(lossSeries(names, store.curves, this.view)));
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

/** One run: the names of its lines. */
function lines(series) {
  const swatch = (each) => h("span", { class: `sc-swatch ${each.look ?? ""}`, style: { "--sc-series": each.color } });
  return h("div", { class: "sc-row wrap sc-small sc-soft" }, series.map((each) => h("span", { class: "sc-row" }, swatch(each), each.name)));
}

/** Several: where each of them is. */
function table(names) {
  const heads = ["run", "step", "loss", "best_validation"].map((key) => h("th", { scope: "col" }, words(`training.${key}`)));
  const rows = names.map((name, place) => {
    const curves = store.curves.get(name);
    const last = curves?.smooth.at(-1);
    const best = Math.min(...(curves?.validation ?? []).map(([, value]) => value));
    const swatch = h("span", { class: "sc-swatch", style: { "--sc-series": COLORS[place % COLORS.length] } });
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, h("span", { class: "sc-row" }, swatch, h("span", { class: "sc-clip", title: name }, name))),
      h("td", {}, last ? number(last[0]) : "–"),
      h("td", {}, last ? shortNumber(last[1]) : "–"),
      h("td", {}, Number.isFinite(best) ? shortNumber(best) : "–"),
    );
  });
  return h("table", { class: "sc-table sc-small sc-number" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows));
}
