// The controls above the charts: what is drawn, along which axis, the zoom, a large view, and files to save.

import { chartImage } from "../lib/chart_image.js";
import { debounce, fill, h, iconButton } from "../lib/dom.js";
import { saveFile } from "../lib/download.js";
import { notify, setSetting, setting } from "../lib/host.js";
import { openMenu } from "../lib/menu.js";
import { getText } from "../lib/server.js";
import { words } from "../lib/words.js";
import { AXES } from "./axes.js";
import { store } from "./runs.js";

export class ChartTools {
  constructor(charts, large) {
    this.charts = charts;
    this.boxes = ["raw", "validation", "log", "clip"].map((key) => this.#switch(key));
    const smooth = debounce(() => store.reloadCurves(), 200);
    const slider = (this.slider = h("input", {
      type: "range",
      min: 0,
      max: 0.99,
      step: 0.01,
      value: setting("StreamCache.Smoothing", 0.9),
      oninput: async (event) => {
        await setSetting("StreamCache.Smoothing", Number(event.target.value));
        smooth();
      },
    }));
    const axis = (this.axis = h("select", { class: "sc-field sc-small", name: "axis", onchange: (event) => this.#setAxis(event.target.value) }));
    fill(axis, Object.entries(AXES).map(([kind, name]) => h("option", { value: kind, selected: charts.view.axis === kind }, words(name))));
    this.reset = iconButton("search-minus", words("training.reset_zoom"), () => this.#reset());
    this.save = iconButton("download", words("training.save_chart"), () => this.#openMenu(), { "aria-haspopup": "menu" });
    const enlarge = large ? null : iconButton("window-maximize", words("training.large_chart"), () => charts.enlarge());
    this.element = h(
      "div",
      { class: "sc-row wrap sc-small sc-chart-tools", role: "group", "aria-label": words("training.shown") },
      this.boxes.map(({ label }) => label),
      h("label", { class: "sc-row" }, words("training.smoothing"), slider),
      h("label", { class: "sc-row" }, words("training.axis"), axis),
      h("span", { class: "sc-row sc-chart-buttons" }, this.reset, enlarge, this.save),
    );
  }

  /** Several runs have a setting of their own for raw losses, which would be one tangle. */
  show(several, zoomed) {
    this.several = several;
    for (const { key, box } of this.boxes) box.checked = this.charts.view[this.#own(key)];
    this.reset.hidden = !zoomed;
  }

  /** What was set in the large view. */
  takeOver() {
    this.axis.value = this.charts.view.axis;
    this.slider.value = setting("StreamCache.Smoothing", 0.9);
  }

  #own(key) {
    return key === "raw" && this.several ? "rawSeveral" : key;
  }

  #switch(key) {
    const change = (event) => {
      this.charts.view[this.#own(key)] = event.target.checked;
      this.charts.redraw();
    };
    const box = h("input", { type: "checkbox", checked: this.charts.view[key], onchange: change, name: key });
    const title = key === "clip" ? words("training.clip_tip") : undefined;
    return { key, box, label: h("label", { class: "sc-row", title }, box, words(`training.${key}`)) };
  }

  #setAxis(kind) {
    this.charts.view.axis = kind;
    this.charts.redraw(true);
  }

  #reset() {
    this.charts.zoom(null);
    this.charts.parts[0].chart.element.focus(); // the button is gone
  }

  #openMenu() {
    const act = (save) => () => save(this.charts).catch((error) => notify("error", words("training.not_saved"), error.message));
    openMenu(this.save, [
      { label: words("training.save_png"), sign: "image", act: act(saveImage) },
      { label: words("training.save_csv"), sign: "table", act: act(saveTable) },
    ]);
  }
}

async function saveImage({ names, parts, series, element }) {
  const shown = parts.filter((part) => !part.element.hidden).map(({ title, chart }) => ({ title, svg: chart.svg }));
  const legend = series.filter((each) => !each.quiet).map(({ label, name, color, look }) => ({ name: label ?? name, color, look }));
  const title = names.length > 1 ? words("training.title") : names[0];
  saveFile(await chartImage(title, shown, legend, element.closest(".sc-panel, dialog")), `${fileName(names)}.png`);
}

/** Every step of the chosen runs; several have a column with the run's name. */
async function saveTable({ names }) {
  const tables = await Promise.all(names.map((name) => getText("/run/table", { name })));
  const rows = tables.map((table) => table.trimEnd().split("\n"));
  const quoted = (name) => `"${name.replaceAll('"', '""')}"`;
  const lines = names.length === 1 ? rows[0] : [`run,${rows[0][0]}`, ...rows.flatMap((each, place) => each.slice(1).map((row) => `${quoted(names[place])},${row}`))];
  saveFile(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }), `${fileName(names)}.csv`);
}

function fileName(names) {
  return names.length === 1 ? names[0] : "runs";
}
