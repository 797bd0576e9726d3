// Updates the lists of caches and folders on nodes when one is added or removed. The selection stays.

import { debounce } from "../lib/dom.js";
import { allNodes } from "../lib/graph.js";
import { get, listen } from "../lib/server.js";

const CACHES = { StreamCacheCacheLoad: "name", StreamCacheClean: "name" };
const FOLDERS = { StreamCacheImageFolder: "folder" };

/** Starts listening. */
export function keepListsFresh() {
  const caches = () => refresh(CACHES, "/caches", (found) => found.caches.map((row) => row.name).sort());
  const folders = () => refresh(FOLDERS, "/folders", (found) => found.names);
  listen("streamcache.caches", debounce(caches, 250));
  listen("streamcache.folders", debounce(folders, 250));
}

async function refresh(lists, path, namesOf) {
  const found = await get(path).catch(() => null);
  if (!found) return;
  const names = namesOf(found);
  for (const node of allNodes()) {
    const widget = node.widgets?.find((each) => each.name === lists[node.comfyClass]);
    const values = widget?.options?.values;
    // In place: Nodes 2.0 keeps the list that a widget was created with.
    if (Array.isArray(values) && values.join("\n") !== names.join("\n")) values.splice(0, values.length, ...names);
  }
  for (const [type, widget] of Object.entries(lists)) rememberForNewNodes(type, widget, names);
}

/** New nodes take the list from their definition. */
function rememberForNewNodes(type, widget, names) {
  const input = window.LiteGraph?.registered_node_types?.[type]?.nodeData?.input?.required?.[widget];
  if (Array.isArray(input?.[1]?.options)) input[1].options = [...names];
  else if (Array.isArray(input?.[0])) input[0] = [...names];
}
