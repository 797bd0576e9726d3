// A panel on a node, in both renderers: a DOM widget that comes last and is not saved with the workflow.

import { useStyle } from "../lib/style.js";

// ComfyUI shows the progress text of a node in a widget of this name. A panel replaces it and receives the text.
const TEXT = "$$node-text-preview";

const SPACING = 4; // between widgets

/** `height()` is the least height on the classic canvas; `text(words)` receives the progress text of the node. */
export function addPanel(node, element, { height, text = () => {} }) {
  useStyle();
  useStyle("../nodes/nodes");
  const old = node.widgets?.findIndex((widget) => widget.name === TEXT) ?? -1;
  if (old >= 0) {
    node.widgets[old].onRemove?.();
    node.widgets.splice(old, 1);
  }
  const options = { serialize: false, hideOnZoom: false, getMinHeight: height, getMaxHeight: height, margin: 8 };
  const widget = node.addDOMWidget(TEXT, "streamcache", element, { ...options, getValue: () => "", setValue: text });
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
