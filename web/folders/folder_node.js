// Folders of images on the canvas: Image Folder Dataset nodes, which also take dropped images.

import { app } from "../../../scripts/app.js";
import { addNode, setWidget } from "../caches/canvas.js";
import { notify } from "../lib/host.js";
import { words } from "../lib/words.js";

export const FOLDER_NODE = "StreamCacheImageFolder";
const WIDGET = "folder";

/** Adds a node with the folder, at a place on the canvas or in the middle of its visible part. */
export function addFolderNode(folder, place) {
  const node = addNode(FOLDER_NODE, WIDGET, folder, place);
  if (!place) notify("success", words("folders.node_added", { name: folder }));
  return node;
}

/** Sets the folder on the only selected node of that kind, otherwise adds one. */
export function useFolder(folder) {
  const selected = [...(app.canvas.selectedItems ?? [])].filter((item) => item.comfyClass === FOLDER_NODE);
  if (selected.length === 1) setFolder(selected[0], folder);
  else addFolderNode(folder);
}

export function setFolder(node, folder) {
  if (!node.graph) return addFolderNode(folder); // it was removed meanwhile
  node.graph.beforeChange?.();
  setWidget(node, WIDGET, folder);
  node.graph.afterChange?.();
  node.setDirtyCanvas?.(true, true);
  notify("success", words("folders.node_set", { name: folder }));
  return node;
}
