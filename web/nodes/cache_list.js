// Updates the lists of caches on nodes when a cache is added or removed. The selection stays.

import { app } from "../../../scripts/app.js";
import { debounce } from "../lib/dom.js";
import { get, listen } from "../lib/server.js";

const LISTS = { StreamCacheCacheLoad: "name", StreamCacheClean: "name" };

/** Starts listening. */
export function keepListsFresh() {
  listen("streamcache.caches", debounce(refresh, 250));
}

async function refresh() {
  const found = await get("/caches").catch(() => null);
  if (!found) return;
  const names = found.caches.map((row) => row.name).sort();
  for (const node of allNodes(app.graph)) {
    const widget = node.widgets?.find((each) => each.name === LISTS[node.comfyClass]);
    const values = widget?.options?.values;
    // In place: Nodes 2.0 keeps the list that a widget was created with.
    if (Array.isArray(values) && values.join("\n") !== names.join("\n")) values.splice(0, values.length, ...names);
  }
  for (const type of Object.keys(LISTS)) rememberForNewNodes(type, names);
}

function* allNodes(graph) {
  for (const node of graph?.nodes ?? []) {
    yield node;
    if (node.subgraph) yield* allNodes(node.subgraph);
  }
}

/** New nodes take the list from their definition. */
function rememberForNewNodes(type, names) {
  const input = window.LiteGraph?.registered_node_types?.[type]?.nodeData?.input?.required?.[LISTS[type]];
  if (Array.isArray(input?.[1]?.options)) input[1].options = [...names];
  else if (Array.isArray(input?.[0])) input[0] = [...names];
}
