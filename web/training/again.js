// A run on the canvas: a Train LoRA node with its settings, to train again or to go on, and a loader with one of its LoRAs.

import { app } from "../../../scripts/app.js";
import { addNode, setWidget } from "../caches/canvas.js";
import { linkOf, pathsOf, valueOn } from "../lib/graph.js";
import { notify } from "../lib/host.js";
import { words } from "../lib/words.js";

export const TRAIN = "StreamCacheTrain";
const LOADER = "LoraLoader"; // ComfyUI's own
const LOAD = "StreamCacheCacheLoad";
const MODELS = ["model", "vae", "clip", "prompts", "negative"]; // inputs that other runs on the canvas may share
const DATA = ["dataset", "latents", "conditioning"];
const GAP = 60;

/** Whether a training node, given by its path, has this run: another workflow with a node of the same id may be open by now. */
export function couldBe(path, run) {
  const name = valueOn(path, "name");
  return typeof name !== "string" || isNumbered(run, name);
}

/** Whether a run has this name, or the free one that a new run of this name took. */
function isNumbered(run, name) {
  return run === name || (run.startsWith(`${name}-`) && /^\d+$/.test(run.slice(name.length + 1)));
}

/** Adds ComfyUI's Load LoRA with this file. */
export function addLora(file) {
  addNode(LOADER, "lora_name", file);
  notify("success", words("training.lora_added", { file }));
}

/** Adds a training node with all settings of a run; a new run takes a free name by itself. */
export function trainAgain(row, curves) {
  const first = curves.settings.name;
  const name = first && isNumbered(row.name, first) ? first : row.name; // it may have been renamed since
  tell("training.again_added", addTraining(row, curves, { name, mode: "new" }), row);
}

/** Makes the run's node resume it, or adds one that does. */
export function resume(row, curves) {
  const known = [...pathsOf(TRAIN)].find((path) => path.length === 1 && valueOn(path, "name") !== undefined && couldBe(path, row.name))?.[0];
  const node = known ?? addTraining(row, curves, { name: row.name, mode: "resume" });
  if (known) {
    setValues(known, { name: row.name, mode: "resume" });
    app.canvas.selectItems?.([known]);
    app.canvas.centerOnNode?.(known);
    app.canvas.setDirty(true, true);
  }
  tell(row.status === "done" ? "training.resume_done" : "training.resume_added", node, row);
}

function addTraining(row, curves, own) {
  const graph = app.canvas.graph;
  const others = graph.nodes.filter((node) => node.comfyClass === TRAIN);
  const like = others.find((node) => couldBe([node], row.name)) ?? others[0];
  const node = addNode(TRAIN, "name", own.name);
  const missing = setValues(node, { ...curves.settings, ...curves.host_settings, ...own });
  if (missing.length) notify("error", words("training.not_on_node"), missing.join(", "));
  const same = like && couldBe([like], row.name);
  for (const input of like ? [...MODELS, ...(same ? DATA : [])] : []) copyLink(graph, like, node, input);
  if (!DATA.some((input) => linkOf(node, input)) && row.dataset) loadDataset(row.dataset, node);
  app.canvas.selectItems?.([node]);
  return node;
}

function loadDataset(name, node) {
  const load = LiteGraph.createNode(LOAD);
  load.pos = [node.pos[0] - load.size[0] - GAP, node.pos[1]];
  app.canvas.graph.add(load);
  setWidget(load, "name", name);
  load.connect(0, node, slotOf(node, "dataset"));
}

function copyLink(graph, from, to, input) {
  const link = linkOf(from, input);
  const slot = slotOf(to, input);
  if (link && slot >= 0) graph.getNodeById(link.origin_id)?.connect(link.origin_slot, to, slot);
}

function slotOf(node, name) {
  return node.inputs?.findIndex((input) => input.name === name) ?? -1;
}

/** Sets widgets by their names; returns the settings that the node lacks. A choice may add widgets, which come later in the list. */
function setValues(node, values) {
  const left = new Set(Object.keys(values));
  for (let place = 0; place < node.widgets.length; place += 1) {
    const widget = node.widgets[place];
    const key = widget.name.split(".").at(-1);
    if (!left.delete(key)) continue;
    const value = toWidget(widget, values[key]);
    if (value === undefined) continue;
    if (widget.options?.values) setWidget(node, widget.name, value);
    else widget.value = value; // as stored: ComfyUI's callback rounds numbers
  }
  return [...left].filter((key) => values[key] !== null && values[key] !== "");
}

/** A stored setting as its widget has it; undefined: as it is on a new node. */
function toWidget(widget, value) {
  const choices = widget.options?.values;
  if (value === null || value === undefined) return undefined;
  if (Array.isArray(value)) return value.join("\n");
  if (typeof value === "object") return Object.entries(value).map(([key, each]) => `${key}=${optionText(each)}`).join(", ");
  if (!Array.isArray(choices) || choices.includes(value)) return value;
  const path = String(value).replaceAll("\\", "/");
  return choices.find((choice) => choice === path || path.endsWith(`/${String(choice).replaceAll("\\", "/")}`));
}

function optionText(value) {
  if (Array.isArray(value)) return `(${value.map(optionText).join(", ")})`;
  return value === null ? "none" : String(value);
}

function tell(key, node, row) {
  const ready = linkOf(node, "model") !== null;
  notify("success", words(key, { name: row.name }), ready ? "" : words("training.connect_model"));
}
