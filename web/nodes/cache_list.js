// Updates the lists of caches and folders on nodes when one is added or removed. The selection stays.

import { debounce } from "../lib/dom.js";
import { allNodes } from "../lib/graph.js";
import { get, listen } from "../lib/server.js";

const LOADS = { StreamCacheCacheLoad: "name" };
const ALL_CACHES = { StreamCacheClean: "name" };
const FOLDERS = { StreamCacheImageFolder: "folder" };

/** Starts listening. */
export function keepListsFresh() {
  const folders = async () => refresh(FOLDERS, (await answer("/folders"))?.names);
  listen("streamcache.caches", debounce(refreshCaches, 250));
  listen("streamcache.folders", debounce(folders, 250));
}

/** Another workflow is open: the list to load from must have the names that its nodes have, also those of runs. */
export function keepChosenCaches() {
  if (widgets(LOADS).some((widget) => !widget.options.values.includes(widget.value))) refreshCaches();
}

/** Caches that trainings made for themselves are not offered for loading, except where one is chosen already. */
async function refreshCaches() {
  const { caches } = (await answer("/caches")) ?? {};
  if (!caches) return;
  const chosen = new Set(widgets(LOADS).map((widget) => widget.value));
  const names = (rows) => rows.map((row) => row.name).sort();
  const saved = caches.filter((row) => !row.made_for);
  refresh(LOADS, names(caches.filter((row) => !row.made_for || chosen.has(row.name))), names(saved));
  refresh(ALL_CACHES, names(caches));
}

function answer(path) {
  return get(path).catch(() => null);
}

/** The lists on the nodes of the open workflow. */
function widgets(lists) {
  const found = [];
  for (const node of allNodes()) {
    const widget = node.widgets?.find((each) => each.name === lists[node.comfyClass]);
    if (Array.isArray(widget?.options?.values)) found.push(widget);
  }
  return found;
}

function refresh(lists, names, forNewNodes = names) {
  if (!names) return;
  for (const { options } of widgets(lists)) {
    // In place: Nodes 2.0 keeps the list that a widget was created with.
    if (options.values.join("\n") !== names.join("\n")) options.values.splice(0, options.values.length, ...names);
  }
  for (const [type, widget] of Object.entries(lists)) rememberForNewNodes(type, widget, forNewNodes);
}

/** New nodes take the list from their definition. */
function rememberForNewNodes(type, widget, names) {
  const input = window.LiteGraph?.registered_node_types?.[type]?.nodeData?.input?.required?.[widget];
  if (Array.isArray(input?.[1]?.options)) input[1].options = [...names];
  else if (Array.isArray(input?.[0])) input[0] = [...names];
}
