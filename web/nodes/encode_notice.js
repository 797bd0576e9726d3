// The notice on an Encode Dataset node that has only one of its two encoders: what the dataset will lack.

import { h } from "../lib/dom.js";
import { linkOf } from "../lib/graph.js";
import { words } from "../lib/words.js";
import { addPanel } from "./node_panel.js";

export const ENCODE = "StreamCacheEncode";
const ENCODERS = { vae: "nodes.no_vae", clip: "nodes.no_clip" };
const HEIGHT = 56;

const notices = new WeakMap(); // node → its notice, once it had one

/** Shows the notice whenever the connections of the node ask for it. */
export function watchEncoders(node) {
  const before = node.onConnectionsChange;
  node.onConnectionsChange = function (...values) {
    const result = before?.apply(this, values);
    queueMicrotask(() => showMissingEncoder(node)); // the link is set after this call
    return result;
  };
}

export function showMissingEncoder(node) {
  const key = missing(node);
  if (!notices.has(node)) {
    if (!key) return;
    notices.set(node, new Notice(node));
  }
  notices.get(node).show(key);
}

/** The key of the text; nothing while no images are connected, or if neither encoder is: that is an error when it is queued. */
function missing(node) {
  const connected = (name) => linkOf(node, name) !== null;
  if (!connected("source") && !connected("images")) return undefined;
  const open = Object.keys(ENCODERS).filter((name) => !connected(name));
  return open.length === 1 ? ENCODERS[open[0]] : undefined;
}

class Notice {
  constructor(node) {
    this.text = h("div", { class: "sc-small sc-warned", role: "status" });
    this.element = h("div", { class: "sc sc-node" }, this.text);
    const height = () => (this.key ? HEIGHT : 0);
    this.panel = addPanel(node, this.element, { height, text: () => {}, redraw: () => this.show(this.key) });
  }

  show(key) {
    this.key = key;
    this.text.hidden = this.element.hidden = !key;
    this.text.textContent = this.text.title = key ? words(key) : "";
    this.panel.fit();
  }
}
