// The nodes of the open workflow.

import { app } from "../../../scripts/app.js";

/** All nodes, those inside subgraphs too. */
export function* allNodes(graph = app.rootGraph) {
  for (const node of graph?.nodes ?? []) {
    yield node;
    if (node.subgraph) yield* allNodes(node.subgraph);
  }
}

/** A node by the id that the server knows: `5`, or `2:5` for one inside the subgraph on node 2. */
export function findNode(id) {
  let graph = app.rootGraph;
  let node = null;
  for (const part of String(id).split(":")) {
    node = graph?.getNodeById?.(Number.isNaN(Number(part)) ? part : Number(part)) ?? null;
    graph = node?.subgraph;
  }
  return node;
}

/** Whether an input is connected, so that the value of its widget does not count. */
export function isConnected(node, name) {
  const slot = node.inputs?.findIndex((input) => input.name === name) ?? -1;
  return slot >= 0 && node.isInputConnected(slot);
}
