// The classic canvas draws all inputs of a node, even advanced ones. It can hide them (Show Advanced in the node's menu)
// but does not know which they are. This marks them, for the nodes of this pack. Nodes 2.0 hides them by itself.
// Training settings are also shown by group: see nodes/setting_groups.js.

import { app } from "../../scripts/app.js";
import { showByGroup } from "./nodes/setting_groups.js";

function hideAdvanced(node) {
  const advanced = (node.widgets ?? []).filter((widget) => widget.options?.advanced);
  if (!node.comfyClass?.startsWith("StreamCache") || advanced.length === 0) return;
  for (const widget of advanced) widget.advanced = true;
  // The canvas reserves space for advanced widgets, even while it does not draw them.
  const before = node.getLayoutWidgets;
  node.getLayoutWidgets = function () {
    return before.call(this).filter((widget) => this.showAdvanced || !widget.advanced);
  };
  node.setSize([node.size[0], node.computeSize()[1]]);
}

app.registerExtension({
  name: "StreamCache.AdvancedInputs",
  nodeCreated(node) {
    hideAdvanced(node);
    showByGroup(node);
  },
});
