// A panel on a node, in both renderers: a DOM widget that comes last and is not saved with the workflow.

import { pathTo } from "../lib/graph.js";
import { onLanguageChange } from "../lib/host.js";
import { keepKeys } from "../lib/keys.js";
import { listen } from "../lib/server.js";
import { useStyle } from "../lib/style.js";

const NAME = "streamcache_panel";
const TEXT = "$$node-text-preview"; // ComfyUI's own widget for the progress text of a node
const SPACING = 4; // between widgets

const panels = new Map(); // node → {text, redraw}

/**
 * `height()` is the least height on the classic canvas; `text(words)` receives the progress text of the node; `redraw()` is
 * called when the language has changed.
 */
export function addPanel(node, element, { height, text, redraw }) {
  useStyle();
  useStyle("../nodes/nodes");
  panels.set(node, { text, redraw });
  keepKeys(element);
  const removed = node.onRemoved;
  node.onRemoved = function (...values) {
    panels.delete(node);
    return removed?.apply(this, values);
  };
  hideText(node);
  const options = { serialize: false, hideOnZoom: false, getMinHeight: height, getMaxHeight: height, margin: 8 };
  const widget = node.addDOMWidget(NAME, "streamcache", element, { ...options, getValue: () => "", setValue: () => {} });
  widget.serialize = false;
  const serialized = node.onSerialize;
  node.onSerialize = function (data) {
    serialized?.call(this, data);
    // The panel is not saved with the workflow, so its space is not either.
    data.size = [data.size[0], data.size[1] - height() - SPACING];
  };
  const fit = () => {
    element.style.minHeight = `${height() - 16}px`;
    const [, needed] = node.computeSize();
    node.setSize([Math.max(node.size[0], 300), Math.max(node.size[1], needed)]);
    node.setDirtyCanvas?.(true, true);
  };
  fit();
  return { widget, fit };
}

/** Starts to update all panels: progress texts, and another language. Call once. */
export function keepPanelsFresh() {
  listen("progress_text", ({ nodeId, text }) => {
    for (const node of text ? pathTo(nodeId) : []) {
      if (!panels.has(node)) continue;
      panels.get(node).text(text);
      queueMicrotask(() => hideText(node)); // ComfyUI may handle the event after this
    }
  });
  onLanguageChange(() => {
    for (const { redraw } of panels.values()) redraw();
  });
}

/**
 * The panel shows the text; in ComfyUI's own widget it would appear twice. An invisible one takes its place, into which
 * ComfyUI then writes. Newer front ends remove it when the job ends.
 */
function hideText(node) {
  if (node.subgraph) return; // ComfyUI shows no text on it
  const widget = node.widgets?.find((each) => each.name === TEXT);
  if (widget?.type === "hidden") return;
  if (widget) node.removeWidget(widget);
  const options = { hidden: true, serialize: false };
  const hidden = node.addCustomWidget({ name: TEXT, type: "hidden", value: "", y: 0, options, serialize: false });
  hidden.hidden = true;
  hidden.serialize = false;
}
