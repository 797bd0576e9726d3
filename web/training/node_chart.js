// The run on its Train LoRA node: curve, numbers, pictures and the stop button, in little.

import { app } from "../../../scripts/app.js";
import { LineChart } from "../lib/chart.js";
import { button, fill, h } from "../lib/dom.js";
import { openTab, TRAINING_TAB } from "../lib/host.js";
import { useStyle } from "../lib/style.js";
import { shortNumber } from "../lib/ticks.js";
import { bytes, duration, number, percent } from "../lib/units.js";
import { words } from "../lib/words.js";
import { addPanel } from "../nodes/node_panel.js";
import { badge, message } from "./now.js";
import { bySteps, enlarge, keyOf, thumbnail } from "./pictures.js";
import { store } from "./runs.js";
import { lossSeries } from "./series.js";

export const TRAIN = "StreamCacheTrain";
const HEIGHTS = { base: 92, chart: 130, pictures: 70, text: 36 }; // on the classic canvas

class NodeChart {
  constructor(node) {
    useStyle("../training/training");
    this.node = node;
    this.text = h("div", { class: "sc-small sc-number sc-said", role: "status" });
    this.state = h("span");
    this.title = h("b", { class: "sc-clip" });
    this.stop = button(words("training.stop"), () => this.#stop(), { look: "sc-stop", title: words("training.stop_tip") });
    const open = button("", () => openTab(TRAINING_TAB), { sign: "window-maximize", look: "plain sc-sign", title: words("training.open"), "aria-label": words("training.open") });
    this.chart = new LineChart({ label: words("training.loss_chart"), height: 120, compact: true, read: (step) => words("training.at_step", { step: number(step) }) });
    this.chart.element.hidden = true; // until there is something to draw
    this.facts = h("div", { class: "sc-run-facts sc-small sc-number" });
    this.pictures = h("div", { class: "sc-pictures small" });
    const head = h("div", { class: "sc-row" }, this.title, this.state, h("span", { class: "sc-grow" }), this.stop, open);
    this.element = h("div", { class: "sc sc-node sc-run-panel" }, head, this.chart.element, this.facts, this.pictures, this.text);
    this.panel = addPanel(node, this.element, { height: () => this.#height(), text: (text) => this.#progress(text) });
    this.leave = store.subscribe(() => this.show());
  }

  watch(run) {
    this.run = run;
    this.running = "";
    this.said = undefined;
    store.follow(run);
    this.show();
  }

  show() {
    const row = store.rows.get(this.run);
    const curves = store.curves.get(this.run);
    if (!row) return;
    this.title.textContent = this.title.title = row.name;
    fill(this.state, badge(row));
    this.stop.hidden = !row.live;
    this.stop.disabled = Boolean(row.stopping);
    const series = lossSeries([this.run], store.curves, { raw: true, validation: true });
    this.#drawChart(series, row);
    fill(this.facts, facts(row, curves).map(([key, value]) => h("span", {}, h("span", { class: "sc-soft" }, words(`training.${key}`)), " ", value)));
    this.#draw(curves?.samples ?? []);
    if (row.live) this.said = undefined;
    this.text.classList.toggle("bad", Boolean(this.said) || (!row.live && row.status === "failed"));
    this.#say((this.said ?? message(row)[1]) || this.running || "");
  }

  /** What the host says of the node now, in the place of what its run said last; undefined: the run speaks again. */
  tell(text) {
    this.said = text;
    this.running = "";
    this.show();
  }

  destroy() {
    this.leave();
    this.chart.destroy();
  }

  #height() {
    const { base, chart, pictures, text } = HEIGHTS;
    return base + (this.chart.element.hidden ? 0 : chart) + (this.pictures.childElementCount ? pictures : 0) + (this.text.textContent ? text : 0);
  }

  /** What the server writes on the node: how a plan is saved before the first step. Then the numbers say more. */
  #progress(text) {
    this.running = store.rows.get(this.run)?.live ? "" : text;
    if (this.running) this.#say(this.running);
  }

  #say(text) {
    if (text === this.text.textContent) return;
    const fits = Boolean(text) === Boolean(this.text.textContent);
    this.text.textContent = this.text.title = text;
    if (!fits) this.panel.fit();
  }

  #drawChart(series, row) {
    const hidden = !row.live && series.every((each) => each.points.length === 0);
    const fits = hidden === this.chart.element.hidden;
    this.chart.element.hidden = hidden;
    this.chart.show({ series });
    if (!fits) this.panel.fit();
  }

  #draw(samples) {
    const latest = [...bySteps(samples).values()].at(-1) ?? [];
    const key = keyOf(this.run, latest);
    if (key === this.key) return;
    this.key = key;
    fill(this.pictures, latest.map((sample) => thumbnail(this.run, sample, () => enlarge(this.run, samples, sample))));
    this.panel.fit();
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
  const held = curves?.validation.at(-1)?.[1];
  if (held !== undefined) found.push(["validation", shortNumber(held)]);
  if (!row.live || row.rate === undefined) return found;
  found.push(["speed", shortNumber(row.samples_per_second, 3)], ["time_left", duration(row.time_left)]);
  return [...found, ["data_wait", percent(row.data_wait, 1)], ["memory", bytes(row.memory)]];
}

/** The server draws the curve as a picture, too, for programs that cannot. Here it would be there twice. */
export function hidePictures(node) {
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
  else charts.get(node).tell(undefined);
}

/** The last run of a node's name, where nothing more is known: after a reload, or in another workflow. */
export async function showLastRuns() {
  await store.start();
  for (const node of app.graph?.nodes ?? []) {
    if (node.comfyClass !== TRAIN || charts.has(node) || isLinked(node)) continue;
    const rows = [...store.rows.values()].filter((row) => couldBe(node, row.name));
    const last = rows.sort((a, b) => b.updated - a.updated)[0];
    if (last) showRun(node, last.name);
  }
}

/** The host begins a node (""), says why it failed, or that it was interrupted (undefined). */
export function tellNode(id, text) {
  const node = findNode(id);
  if (charts.has(node)) charts.get(node).tell(text?.trim());
}

/** Every run that this page has queued, on its node: also after a reload. */
export function showLiveRuns() {
  for (const [id, run] of store.nodes) {
    const node = findNode(id);
    if (node?.comfyClass === TRAIN && store.rows.get(run)?.live && charts.get(node)?.run !== run && couldBe(node, run)) showRun(node, run);
  }
}

/** A node by the id that the server knows: `5`, or `2:5` for one inside the subgraph on node 2. */
function findNode(id) {
  let graph = app.graph;
  let node = null;
  for (const part of String(id).split(":")) {
    node = graph?.getNodeById?.(Number.isNaN(Number(part)) ? part : Number(part)) ?? null;
    graph = node?.subgraph;
  }
  return node;
}

function isLinked(node) {
  return Boolean(node.inputs?.some((input) => input.name === "name" && input.link != null));
}

/** Another workflow may be open by now that has a node of this number, too. */
function couldBe(node, run) {
  const name = node.widgets?.find((widget) => widget.name === "name")?.value;
  return isLinked(node) || typeof name !== "string" || run === name || (run.startsWith(`${name}-`) && /^\d+$/.test(run.slice(name.length + 1)));
}
