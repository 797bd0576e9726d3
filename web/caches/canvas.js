// Caches and folders on the canvas: a node with the name, by a button or by drag and drop.

import { app } from "../../../scripts/app.js";
import { notify } from "../lib/host.js";
import { words } from "../lib/words.js";

const LOAD = "StreamCacheCacheLoad";
const WIDGETS = { [LOAD]: "name", StreamCacheImageFolder: "folder" }; // node → the widget that gets the name
const TYPE = "application/x-streamcache"; // of the dragged name; its node is dragged beside it
const NODE_TYPE = "application/x-streamcache-node";
const GAP = 10; // between a new node and others
const STEP = 40;
const MAX_RINGS = 100;

/** Adds a Load node at a place on the canvas, or in the middle of its visible part. */
export function addLoadNode(name, place) {
  const node = addNode(LOAD, WIDGETS[LOAD], name, place);
  if (!place) notify("success", words("caches.added", { name }));
  return node;
}

/** Adds a node and sets one of its widgets. */
export function addNode(type, widget, value, place) {
  const graph = app.canvas.graph;
  const node = LiteGraph.createNode(type);
  graph.beforeChange?.();
  node.pos = place ?? freePlace(graph, node);
  graph.add(node);
  setWidget(node, widget, value);
  graph.afterChange?.();
  app.canvas.selectItems?.([node]);
  app.canvas.setDirty(true, true);
  if (!place && !isVisible(node)) app.canvas.centerOnNode?.(node); // no free place was visible
  return node;
}

/** Makes an element draggable onto the canvas, as a cache or as another node with the name. */
export function makeDraggable(element, name, node = LOAD) {
  element.draggable = true;
  element.addEventListener("dragstart", (event) => {
    event.dataTransfer.setData(TYPE, name);
    event.dataTransfer.setData(NODE_TYPE, node);
    event.dataTransfer.setData("text/plain", name);
    event.dataTransfer.effectAllowed = "copy";
  });
}

/** Call once. Listens in the capture phase: ComfyUI treats drops anywhere on the page as files. */
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
    // The pointer becomes the corner of the title bar.
    const type = event.dataTransfer.getData(NODE_TYPE);
    if (!(type in WIDGETS)) return;
    addNode(type, WIDGETS[type], event.dataTransfer.getData(TYPE), [x, y + LiteGraph.NODE_TITLE_HEIGHT]);
  };
  document.addEventListener("dragover", over, true);
  document.addEventListener("drop", drop, true);
}

/** The canvas itself, or a node that Nodes 2.0 draws above it; not the menus around. */
function onCanvas(target) {
  return target === app.canvas.canvas || Boolean(target.closest?.("[data-node-id], [data-testid='transform-pane']"));
}

/** Sets a list of names to one of them, also to one that the list does not have yet. */
export function setWidget(node, name, value) {
  const widget = node.widgets?.find((each) => each.name === name);
  if (!widget) return;
  const values = widget.options?.values;
  if (Array.isArray(values) && !values.includes(value)) values.push(value);
  widget.value = value;
  widget.callback?.(value);
}

/** As near as can be to the middle of what is seen of the canvas, and on no other node. */
function freePlace(graph, node) {
  const [x, y] = middle();
  const wanted = [x - node.size[0] / 2, y - node.size[1] / 2];
  const taken = graph.nodes.map((other) => box(other.pos, other.flags?.collapsed ? [other.size[0], 0] : other.size));
  const isFree = (place) => !taken.some((other) => overlap(box(place, node.size), other));
  for (let ring = 0; ring < MAX_RINGS; ring += 1) {
    const found = around(wanted, ring).find(isFree);
    if (found) return found;
  }
  return wanted;
}

/** Of the part that no sidebar covers. */
function middle() {
  const { left, right, top, bottom } = app.canvas.canvas.getBoundingClientRect();
  const panel = document.querySelector(".side-bar-panel")?.getBoundingClientRect();
  const from = panel && panel.left < innerWidth / 2 ? panel.right : left;
  const to = panel && panel.left >= innerWidth / 2 ? panel.left : right;
  return app.clientPosToCanvasPos([(from + to) / 2, (top + bottom) / 2]);
}

function isVisible(node) {
  const { left, right, top, bottom } = app.canvas.canvas.getBoundingClientRect();
  const [x, y] = app.canvasPosToClientPos([...node.pos]);
  return x > left && x < right - GAP && y > top && y < bottom - GAP;
}

/** Left, top, right and bottom of a node with its title, and some room. */
function box([x, y], [width, height]) {
  return [x - GAP, y - LiteGraph.NODE_TITLE_HEIGHT - GAP, x + width + GAP, y + height + GAP];
}

function overlap(one, other) {
  return one[0] < other[2] && other[0] < one[2] && one[1] < other[3] && other[1] < one[3];
}

/** Places on a circle, the right one first. */
function around([x, y], ring) {
  const count = ring === 0 ? 1 : 8 * ring;
  const angle = (place) => (2 * Math.PI * place) / count;
  return Array.from({ length: count }, (_, place) => [x + Math.cos(angle(place)) * ring * STEP, y + Math.sin(angle(place)) * ring * STEP]);
}
