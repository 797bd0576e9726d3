// The classic canvas draws all inputs of a node, even advanced ones. It can hide them (Show Advanced in the node's menu)
// but does not know which they are. This marks them, for the nodes of this pack. Nodes 2.0 hides them by itself.

import { app } from "../../scripts/app.js";

function hideAdvanced(node) {
  const advanced = new Set((node.widgets ?? []).filter((widget) => widget.options?.advanced));
  if (!node.comfyClass?.startsWith("StreamCache") || advanced.size === 0) return;
  for (const widget of advanced) widget.advanced = true;
  // The canvas reserves space for advanced widgets, even while it does not draw them.
  const before = node.getLayoutWidgets;
  node.getLayoutWidgets = function () {
    return before.call(this).filter((widget) => this.showAdvanced || !advanced.has(widget));
  };
  node.setSize([node.size[0], node.computeSize()[1]]);
}

app.registerExtension({ name: "StreamCache.AdvancedInputs", nodeCreated: hideAdvanced });
