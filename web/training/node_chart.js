// The panel on a Train LoRA node: loss curve, numbers, sample images and the stop button.

import { LineChart } from "../lib/chart.js";
import { button, fill, h, iconButton } from "../lib/dom.js";
import { pathsOf, pathTo, setValueOn, valueOn } from "../lib/graph.js";
import { openTab, TRAINING_TAB } from "../lib/host.js";
import { setName } from "../lib/names.js";
import { useStyle } from "../lib/style.js";
import { shortNumber } from "../lib/ticks.js";
import { bytes, duration, number, percent } from "../lib/units.js";
import { words } from "../lib/words.js";
import { addPanel } from "../nodes/node_panel.js";
import { couldBe, TRAIN } from "./again.js";
import { badge, message } from "./now.js";
import { bySteps, enlarge, keyOf, thumbnail } from "./images.js";
import { store } from "./runs.js";
import { lossSeries } from "./series.js";

const LEFT = ["stopped", "interrupted"]; // how a run ended that can go on
const HEIGHTS = { base: 92, chart: 130, images: 70, text: 36 }; // on the classic canvas

class NodeChart {
  constructor(node) {
    useStyle("../training/training");
    this.node = node;
    this.text = h("div", { class: "sc-small sc-number sc-said", role: "status" });
    this.state = h("span");
    this.title = h("b");
    this.stop = button("", () => this.#stop(), { look: "sc-stop" });
    this.goOn = button("", () => this.#goOn(), { look: "plain sc-go-on" });
    this.goOn.hidden = true;
    this.open = iconButton("window-maximize", "", () => openTab(TRAINING_TAB));
    this.chart = new LineChart({ height: 120, compact: true, read: (step) => words("training.at_step", { step: number(step) }) });
    this.chart.element.hidden = true; // until there is something to draw
    this.facts = h("div", { class: "sc-run-facts sc-small sc-number" });
    this.images = h("div", { class: "sc-pictures small" });
    const head = h("div", { class: "sc-row" }, this.title, this.state, h("span", { class: "sc-grow" }), this.goOn, this.stop, this.open);
    this.element = h("div", { class: "sc sc-node sc-run-panel" }, head, this.chart.element, this.facts, this.images, this.text);
    this.#label();
    this.panel = addPanel(node, this.element, {
      height: () => this.#height(),
      text: (text) => this.#progress(text),
      redraw: () => (this.#label(), this.show()),
    });
    this.leave = store.subscribe(() => this.show());
  }

  watch(run) {
    this.run = run;
    this.running = "";
    this.message = undefined;
    store.follow(run);
    this.show();
  }

  show() {
    const row = store.rows.get(this.run);
    const curves = store.curves.get(this.run);
    if (!row) return;
    setName(this.title, row.name);
    fill(this.state, badge(row));
    this.stop.hidden = !row.live;
    this.stop.disabled = Boolean(row.stopping);
    const series = lossSeries([this.run], store.curves, { raw: true, validation: true, axis: "step" });
    this.#offer(row);
    this.#drawChart(series, row);
    fill(this.facts, facts(row, curves).map(([key, value]) => h("span", {}, h("span", { class: "sc-soft" }, words(`training.${key}`)), " ", value)));
    this.#draw(curves?.samples ?? [], curves?.prompts ?? []);
    if (row.live) this.message = undefined;
    this.text.classList.toggle("bad", Boolean(this.message) || (!row.live && row.status === "failed"));
    this.#showText((this.message ?? message(row)[1]) || this.running || "");
  }

  /** Shows a message of ComfyUI about the node instead of the one of its run; undefined: the one of the run again. */
  setMessage(text) {
    this.message = text;
    this.running = "";
    this.show();
  }

  destroy() {
    this.leave();
    this.chart.destroy();
  }

  #label() {
    this.stop.textContent = words("training.stop");
    this.stop.title = words("training.stop_tip");
    this.open.title = words("training.open");
    this.open.setAttribute("aria-label", words("training.open"));
    this.chart.element.setAttribute("aria-label", words("training.loss_chart"));
  }

  #height() {
    const { base, chart, images, text } = HEIGHTS;
    return base + (this.chart.element.hidden ? 0 : chart) + (this.images.childElementCount ? images : 0) + (this.text.textContent ? text : 0);
  }

  /** The progress text of the node: how a plan is encoded before the first step. During training the numbers replace it. */
  #progress(text) {
    this.running = store.rows.get(this.run)?.live ? "" : text;
    if (this.running) this.#showText(this.running);
  }

  #showText(text) {
    if (text === this.text.textContent) return;
    const fits = Boolean(text) === Boolean(this.text.textContent);
    this.text.textContent = this.text.title = text;
    if (!fits) this.panel.fit();
  }

  #drawChart(series, row) {
    const hidden = !row.live && series.every((each) => each.points.length === 0);
    const fits = hidden === this.chart.element.hidden;
    this.chart.element.hidden = hidden;
    this.chart.show({ series, clip: true });
    if (!fits) this.panel.fit();
  }

  #draw(samples, prompts) {
    const latest = [...bySteps(samples).values()].at(-1) ?? [];
    const key = keyOf(this.run, latest);
    if (key === this.key) return;
    this.key = key;
    fill(this.images, latest.map((sample) => thumbnail(this.run, sample, prompts, () => enlarge(this.run, samples, sample, prompts))));
    this.panel.fit();
  }

  /** A stopped run goes on only if mode is resume. */
  #offer(row) {
    this.goOn.hidden = row.live || !LEFT.includes(row.status) || !row.step || row.step >= row.steps || !this.#path();
    this.goOn.textContent = words("training.go_on", { run: row.name });
    this.goOn.title = words("training.go_on_tip", { run: row.name });
  }

  /** The path to the training node, if it would start another run or the same again. */
  #path() {
    const path = [...pathsOf(TRAIN)].find((nodes) => nodes.includes(this.node));
    return path && ["new", "overwrite"].includes(valueOn(path, "mode")) ? path : undefined;
  }

  #goOn() {
    const path = this.#path();
    if (path && setValueOn(path, "mode", "resume")) setValueOn(path, "name", this.run);
    this.show();
  }

  async #stop() {
    await store.stop(this.run).catch(() => store.load());
  }
}

function facts(row, curves) {
  const smooth = curves?.smooth.at(-1)?.[1];
  const found = [];
  if (row.steps) found.push(["step", `${number(row.step)} / ${number(row.steps)}`]);
  if (row.live || smooth !== undefined) found.push(["loss", smooth === undefined ? "–" : shortNumber(smooth)]);
  const validation = curves?.validation.at(-1)?.[1];
  if (validation !== undefined) found.push(["validation", shortNumber(validation)]);
  if (!row.live || row.rate === undefined) return found;
  found.push(["speed", shortNumber(row.samples_per_second, 3)], ["time_left", duration(row.time_left)]);
  return [...found, ["data_wait", percent(row.data_wait, 1)], ["memory", bytes(row.memory)]];
}

/** The server also sends the curve as an image, for other programs. Here it would appear twice. */
export function hideImages(node) {
  node.hideOutputImages = true; // Nodes 2.0; its live preview is hidden by the style sheet
  node.onDrawBackground = () => {};
}

const charts = new WeakMap();

/** Shows a run on a node. */
export function showRun(node, run) {
  if (!charts.has(node)) {
    const chart = new NodeChart(node);
    charts.set(node, chart);
    const removed = node.onRemoved;
    node.onRemoved = function (...values) {
      chart.destroy();
      charts.delete(node);
      return removed?.apply(this, values);
    };
  }
  if (charts.get(node).run !== run) charts.get(node).watch(run);
  else charts.get(node).setMessage(undefined);
}

/** Shows a run on the training node of a path, and on the nodes with the subgraphs around it. */
function showOn(path, run) {
  for (const node of path) if (charts.get(node)?.run !== run) showRun(node, run);
}

/** Shows the last run of each node's name if nothing else is known: after a reload, or in another workflow. */
export async function showLastRuns() {
  await store.start();
  for (const path of pathsOf(TRAIN)) {
    if (charts.has(path[0]) || typeof valueOn(path, "name") !== "string") continue;
    const rows = [...store.rows.values()].filter((row) => couldBe(path, row.name));
    const last = rows.sort((a, b) => b.updated - a.updated)[0];
    if (last) showOn(path, last.name);
  }
}

/** ComfyUI starts a node (""), reports its error, or was interrupted (undefined). */
export function setNodeMessage(id, text) {
  for (const node of pathTo(id)) charts.get(node)?.setMessage(text?.trim());
}

/** Shows the runs that this page has queued on their nodes, even after a reload. */
export function showLiveRuns() {
  for (const [id, run] of store.nodes) {
    const path = pathTo(id);
    if (path.at(-1)?.comfyClass === TRAIN && store.rows.get(run)?.live && couldBe(path, run)) showOn(path, run);
  }
}
