// The LoRA Test Grid node of a run on the canvas: connected like the Train LoRA node, filled and queued by the page.

import { app } from "../../../scripts/app.js";
import { addNode, setWidget } from "../caches/canvas.js";
import { linkOf } from "../lib/graph.js";
import { listen } from "../lib/server.js";
import { words } from "../lib/words.js";
import { store } from "./runs.js";

const GRID = "StreamCacheLoraGrid";
const TRAIN = "StreamCacheTrain";
const SOCKETS = { model: "MODEL", vae: "VAE", clip: "CLIP" };

/** Fills the node of a run, adds one if there is none, and queues it with what feeds it, and nothing else. */
export async function drawGrid(run, values) {
  const graph = app.canvas.graph;
  const own = graph.nodes.find((node) => node.comfyClass === GRID && valueOf(node, "run") === run);
  const node = own ?? addNode(GRID, "run", run);
  for (const [name, value] of Object.entries(values)) setWidget(node, name, value);
  const missing = Object.keys(SOCKETS).filter((name) => !linkOf(node, name) && !connect(graph, node, name, run));
  app.canvas.setDirty(true, true);
  if (missing.length) throw new Error(words("training.grid_connect", { inputs: missing.map((name) => SOCKETS[name]).join(", ") }));
  let queued = false;
  const stop = listen("promptQueued", () => (queued = true));
  await app.queuePrompt(0, 1, [String(node.id)]).finally(stop);
  if (!queued) throw new Error(words("training.grid_refused"));
}

/** Connects an input as on the run's Train LoRA node, or as on any node that has one of this type. */
function connect(graph, node, name, run) {
  const trains = graph.nodes.filter((each) => each.comfyClass === TRAIN);
  const first = trains.find((each) => store.nodes.get(String(each.id)) === run || valueOf(each, "name") === run);
  const others = graph.nodes.filter((each) => each !== node && each !== first && !trains.includes(each));
  for (const each of [first, ...trains, ...others]) {
    const link = each && each.inputs?.some((input) => input.name === name && input.type === SOCKETS[name]) && linkOf(each, name);
    const from = link && graph.getNodeById(link.origin_id);
    if (from) return Boolean(from.connect(link.origin_slot, node, slotOf(node, name)));
  }
  // Any model would not do: the LoRA is for one. A loader that nothing uses yet is most likely meant.
  const loader = name !== "model" && graph.nodes.find((each) => outputOf(each, name) >= 0);
  return loader ? Boolean(loader.connect(outputOf(loader, name), node, slotOf(node, name))) : false;
}

function outputOf(node, name) {
  return node.outputs?.findIndex((output) => output.type === SOCKETS[name]) ?? -1;
}

function slotOf(node, name) {
  return node.inputs.findIndex((input) => input.name === name);
}

function valueOf(node, name) {
  return node.widgets?.find((widget) => widget.name === name)?.value;
}
