// The card of one run: its status, its numbers, and the button that stops and saves it.

import { button, fill, h, icon } from "../lib/dom.js";
import { notify } from "../lib/host.js";
import { setName } from "../lib/names.js";
import { shortNumber } from "../lib/ticks.js";
import { age, bytes, duration, number, percent } from "../lib/units.js";
import { words } from "../lib/words.js";
import { openReport } from "./report.js";
import { RunResult } from "./result.js";
import { store } from "./runs.js";

const LOOKS = { running: "good", stopping: "warn", done: "", stopped: "warn", interrupted: "warn", failed: "bad" };

const NAMES = ["dataset", "file"];

/** The status of a run as a colored badge. */
export function badge(row) {
  const state = row.live && row.stopping ? "stopping" : row.status;
  return h("span", { class: `sc-badge ${LOOKS[state] ?? ""}`, dataset: { state } }, words(`training.status.${state}`));
}

export class RunCard {
  /** `edit(row)` asks for its name, tags and comment. */
  constructor({ edit }) {
    this.result = new RunResult(edit);
    this.title = h("h3", { class: "sc-run-title" });
    this.state = h("span");
    this.stop = button(words("training.stop"), () => this.#stop(), {
      sign: "stop-circle",
      look: "sc-stop",
      title: words("training.stop_tip"),
    });
    this.bar = h("div");
    this.progress = h("div", { class: "sc-progress", role: "progressbar", "aria-valuemin": 0 }, this.bar);
    this.line = h("div", { class: "sc-row sc-small sc-soft sc-number" });
    this.tiles = h("dl", { class: "sc-tiles" });
    this.message = h("div", { role: "status" });
    this.report = button(words("training.report"), () => this.#openReport(), { look: "plain sc-report", title: words("training.report_tip") });
    const head = h("div", { class: "sc-row wrap" }, this.title, this.state, this.stop, this.report);
    this.element = h("section", { class: "sc-run-card", "aria-label": words("training.now") }, head, this.progress, this.line, this.message, this.tiles, this.result.element);
  }

  show(row, curves) {
    this.element.hidden = !row;
    if (!row) return;
    if (this.name !== row.name) this.failure = "";
    this.name = row.name;
    setName(this.title, row.name);
    fill(this.state, badge(row));
    this.stop.hidden = !row.live;
    this.stop.disabled = Boolean(row.stopping);
    this.report.hidden = row.live || !curves?.report;
    const share = row.steps ? Math.min(row.step / row.steps, 1) : 0;
    this.bar.style.width = `${100 * share}%`;
    this.progress.setAttribute("aria-valuemax", row.steps || 1);
    this.progress.setAttribute("aria-valuenow", row.step);
    this.progress.setAttribute("aria-label", words("training.progress"));
    this.progress.hidden = !row.steps && !row.live;
    const of = row.steps ? words("training.step_of", { step: number(row.step), steps: number(row.steps) }) : "";
    const right = row.live ? words("training.left", { time: duration(row.time_left) }) : age(row.updated);
    fill(this.line, h("span", {}, of), h("span", { class: "sc-grow" }), h("span", {}, row.live && row.time_left === undefined ? "" : right));
    fill(this.tiles, tiles(row, curves).map(([name, value, title]) => h("div", { title }, h("dt", {}, words(`training.${name}`)), h("dd", { class: NAMES.includes(name) ? "words" : "" }, value))));
    this.#showMessage(row);
    this.result.show(row, curves);
  }

  #showMessage(row) {
    const [look, text] = this.failure ? ["bad", this.failure] : message(row);
    if (this.message.dataset.text === text) return;
    this.message.dataset.text = text;
    const sign = { good: "check-circle", bad: "times-circle", warn: "info-circle" }[look];
    fill(this.message, text && h("div", { class: `sc-notice ${look}` }, icon(sign), h("span", {}, text)));
  }

  async #openReport() {
    try {
      await openReport(this.name);
    } catch (error) {
      notify("error", error.message);
    }
  }

  async #stop() {
    this.failure = "";
    try {
      await store.stop(this.name);
    } catch (error) {
      this.failure = error.message;
      store.load();
    }
  }
}

/** What the user should know about a run: [look, text]. */
export function message(row) {
  const values = { step: number(row.step), steps: number(row.steps), file: row.lora };
  const noted = row.notes ? ["warn", row.notes] : ["", ""]; // about its dataset
  if (row.live) return row.stopping ? ["warn", words("training.stopping")] : noted;
  if (row.status === "stopped") return ["good", words(row.lora ? "training.was_stopped" : "training.was_stopped_bare", values)];
  if (row.status === "interrupted" && row.saved_step) return ["warn", words("training.was_saved", { ...values, saved: number(row.saved_step) })];
  if (row.status === "interrupted") return ["warn", words("training.was_interrupted", values)];
  if (row.status === "failed") return ["bad", row.problem || words("training.was_failed")];
  return noted;
}

function tiles(row, curves) {
  const smooth = row.live ? (curves?.smooth.at(-1)?.[1] ?? row.smooth) : curves?.smooth.at(-1)?.[1];
  const validation = curves?.validation ?? [];
  const best = validation.reduce((least, [, value]) => Math.min(least, value), Infinity);
  const found = smooth === undefined && !row.live ? [] : [["loss", smooth === undefined ? "–" : shortNumber(smooth)]];
  if (validation.length) found.push(["validation", shortNumber(validation.at(-1)[1]), words("training.best", { value: shortNumber(best) })]);
  if (!row.live) return [...found, ["dataset", row.dataset, row.dataset], ["file", row.lora, row.lora]].filter(([, value]) => value);
  const has = (value, show) => (value === undefined || value === null ? "–" : show(value));
  return [
    ...found,
    ["learning_rate", has(row.learning_rate, (value) => shortNumber(value))],
    ["speed", has(row.samples_per_second, (value) => shortNumber(value, 3)), words("training.speed_tip", { rate: has(row.rate, (value) => shortNumber(value, 3)) })],
    ["data_wait", has(row.data_wait, (value) => percent(value, 1)), words("training.data_wait_tip")],
    ["memory", has(row.memory, bytes)],
  ];
}
