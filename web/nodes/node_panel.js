// A panel on a node, in both renderers: a DOM widget that is saved nowhere and stands last.

import { useStyle } from "../lib/style.js";

// The host shows what the server writes on a node in a widget of this name. A panel takes its place, and gets the text.
const TEXT = "$$node-text-preview";

const SPACING = 4; // between widgets

/** `height()` is the least height on the classic canvas; `text(words)` hears what the server writes on the node. */
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
    // A workflow keeps no room for what it does not keep.
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
