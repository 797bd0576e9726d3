// The nodes of the open workflow.

import { app } from "../../../scripts/app.js";

const SUBGRAPH_INPUTS = -10; // the id of the inputs of a subgraph, as links know it

/** All nodes, those inside subgraphs too. */
export function* allNodes(graph = app.rootGraph) {
  for (const node of graph?.nodes ?? []) {
    yield node;
    if (node.subgraph) yield* allNodes(node.subgraph);
  }
}

/** The nodes on the way to one by the id that the server knows: `2:5` is node 2, which has a subgraph, and node 5 inside it. Empty
 * if it does not exist. */
export function pathTo(id) {
  let graph = app.rootGraph;
  const path = [];
  for (const part of String(id).split(":")) {
    const node = graph?.getNodeById?.(Number.isNaN(Number(part)) ? part : Number(part));
    if (!node) return [];
    path.push(node);
    graph = node.subgraph;
  }
  return path;
}

/** The last of them: the node itself. */
export function findNode(id) {
  return pathTo(id).at(-1) ?? null;
}

/** All nodes of a type with their paths, as `pathTo` returns them. */
export function* pathsOf(type, graph = app.rootGraph, above = []) {
  for (const node of graph?.nodes ?? []) {
    if (node.comfyClass === type) yield [...above, node];
    if (node.subgraph) yield* pathsOf(type, node.subgraph, [...above, node]);
  }
}

/** The link of an input, null if it is not connected. */
export function linkOf(node, name) {
  const slot = node.inputs?.findIndex((input) => input.name === name) ?? -1;
  return slot >= 0 && node.isInputConnected(slot) ? node.getInputLink(slot) : null;
}

/**
 * The value of a widget of the last node of a path. If the subgraph around it has an input for it, the value is that of the node
 * with the subgraph. undefined if another node gives the value.
 */
export function valueOn(path, name) {
  const [node, outer] = [path.at(-1), path.at(-2)];
  const link = linkOf(node, name);
  if (!link) return node.widgets?.find((widget) => widget.name === name)?.value;
  if (Number(link.origin_id) !== SUBGRAPH_INPUTS) return undefined;
  return valueOn(path.slice(0, -1), outer.subgraph.inputs[link.origin_slot].name);
}

/** Sets such a value where a person would: on the node with the subgraph if that has an input for it. Whether there is a widget. */
export function setValueOn(path, name, value) {
  const [node, outer] = [path.at(-1), path.at(-2)];
  const link = linkOf(node, name);
  if (link && Number(link.origin_id) === SUBGRAPH_INPUTS) {
    return setValueOn(path.slice(0, -1), outer.subgraph.inputs[link.origin_slot].name, value);
  }
  const widget = link ? undefined : node.widgets?.find((each) => each.name === name);
  if (!widget) return false;
  widget.value = value;
  widget.callback?.(value);
  return true;
}
