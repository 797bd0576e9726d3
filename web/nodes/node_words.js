// What ComfyUI shows of the pack's nodes, in its language: errors, progress, choices in lists, and the notes of templates.

import { api } from "../../../scripts/api.js";
import { app } from "../../../scripts/app.js";
import { findNode } from "../lib/graph.js";
import { loadMessages, translate, translateIn, translateWhole, translateWord } from "../lib/messages.js";
import { onLanguageChange } from "../lib/host.js";

const OWN = /^StreamCache/;
const NAMES = /^(folder|file|name|start_from|type|.*_name\d?)$/; // lists of files and folders
const NOTES = ["MarkdownNote", "Note"];

/** Starts to translate. Call once, after the messages are loaded. */
export function speakOnNodes() {
  // Before ComfyUI's own listeners, which show the event.
  const hear = (event, change) => api.addEventListener(event, ({ detail }) => detail && change(detail), { capture: true });
  hear("execution_error", (detail) => OWN.test(detail.node_type) && (detail.exception_message = translate(detail.exception_message)));
  hear("progress_text", (detail) => isOwn(detail.nodeId) && (detail.text = translate(detail.text)));
  hear("executed", ({ node, display_node: shown, output }) => {
    if (!output || !isOwn(shown ?? node)) return;
    if (Array.isArray(output.text)) output.text = output.text.map(translate);
    translateIn(output.streamcache);
  });
  const queue = api.queuePrompt;
  api.queuePrompt = async function (...values) {
    try {
      return await queue.apply(this, values);
    } catch (error) {
      translateRefusals(error?.response?.node_errors);
      throw error;
    }
  };
  onLanguageChange(async () => {
    await loadMessages();
    app.canvas?.setDirty(true, true);
  });
}

/** The choices of a list are shown in ComfyUI's language; their values stay. */
export function speakInLists(node) {
  if (!OWN.test(node.comfyClass)) return;
  for (const widget of node.widgets ?? []) {
    if (widget.type === "combo" && !NAMES.test(widget.name)) widget.options.getOptionLabel = (value) => translateWord(value);
  }
}

/** Notes and titles of a template that was just opened. Those that a user wrote or changed stay. */
export function speakInNotes(nodes) {
  if (!nodes.some((node) => OWN.test(node.comfyClass))) return;
  for (const node of nodes) {
    if (NOTES.includes(node.type)) {
      const widget = node.widgets?.[0];
      widget.value = translateWhole(widget.value) ?? widget.value;
    } else if (node.title !== node.constructor.title) node.title = translateWhole(node.title) ?? node.title;
  }
}

function isOwn(id) {
  return OWN.test(findNode(id)?.comfyClass);
}

/** ComfyUI puts the name of an input before the reason: "folder - not found". */
function translateRefusals(refused) {
  for (const { class_type, errors } of Object.values(refused ?? {})) {
    if (!OWN.test(class_type)) continue;
    for (const error of errors ?? []) {
      const [input, ...reason] = String(error.details ?? "").split(" - ");
      if (reason.length) error.details = `${input} - ${translate(reason.join(" - "))}`;
    }
  }
}
