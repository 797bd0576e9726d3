// A cache on the canvas: a Streamable Cache Load node with its name, by a button or by drag and drop.

import { app } from "../../../scripts/app.js";
import { notify } from "../lib/host.js";
import { words } from "../lib/words.js";

const NODE = "StreamCacheCacheLoad";
const TYPE = "application/x-streamcache";

/** Adds the node at a place on the canvas, or in the middle of what is seen of it. */
export function addLoadNode(name, place) {
  const graph = app.canvas.graph;
  const node = LiteGraph.createNode(NODE);
  graph.beforeChange?.();
  node.pos = place ?? freePlace(graph, node);
  graph.add(node);
  setName(node, name);
  graph.afterChange?.();
  app.canvas.selectItems?.([node]);
  app.canvas.setDirty(true, true);
  if (!place) notify("success", words("caches.added", { name }));
  return node;
}

/** Makes an element a cache that can be dragged onto the canvas. */
export function makeDraggable(element, name) {
  element.draggable = true;
  element.addEventListener("dragstart", (event) => {
    event.dataTransfer.setData(TYPE, name);
    event.dataTransfer.setData("text/plain", name);
    event.dataTransfer.effectAllowed = "copy";
  });
}

/** Once. In the capture phase: the host takes drops on the whole page for files. */
export function acceptDrops() {
  const isOurs = (event) => event.dataTransfer?.types.includes(TYPE) && onCanvas(event.target);
  const over = (event) => {
    if (!isOurs(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
  };
  const drop = (event) => {
    if (!isOurs(event)) return;
    event.preventDefault();
    event.stopPropagation();
    const [x, y] = app.clientPosToCanvasPos([event.clientX, event.clientY]);
    // The pointer is at the corner of its title.
    addLoadNode(event.dataTransfer.getData(TYPE), [x, y + LiteGraph.NODE_TITLE_HEIGHT]);
  };
  document.addEventListener("dragover", over, true);
  document.addEventListener("drop", drop, true);
}

/** The canvas itself, or a node that Nodes 2.0 draws above it; not the menus around. */
function onCanvas(target) {
  return target === app.canvas.canvas || Boolean(target.closest?.("[data-node-id], [data-testid='transform-pane']"));
}

function setName(node, name) {
  const widget = node.widgets?.find((each) => each.name === "name");
  if (!widget) return;
  const values = widget.options?.values;
  if (Array.isArray(values) && !values.includes(name)) values.push(name);
  widget.value = name;
  widget.callback?.(name);
}

/** The middle of the canvas, a little lower and to the right of a node that is there already. */
function freePlace(graph, node) {
  const box = app.canvas.canvas.getBoundingClientRect();
  const panel = document.querySelector(".side-bar-panel")?.getBoundingClientRect();
  const left = panel && panel.left < innerWidth / 2 ? panel.right : box.left;
  const right = panel && panel.left >= innerWidth / 2 ? panel.left : box.right;
  let [x, y] = app.clientPosToCanvasPos([(left + right) / 2, (box.top + box.bottom) / 2]);
  x -= node.size[0] / 2;
  while (graph.nodes.some((other) => Math.hypot(other.pos[0] - x, other.pos[1] - y) < 20)) {
    x += 30;
    y += 30;
  }
  return [x, y];
}
