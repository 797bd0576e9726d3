// Images, folders and zips that are dropped onto an Image Folder Dataset node, in both renderers.

import { notify } from "../lib/host.js";
import { words } from "../lib/words.js";
import { addImages } from "./add_images.js";
import { hasFiles, readDrop } from "./dropped.js";
import { FOLDER_NODE } from "./folder_node.js";

export function takeDrops(node) {
  if (node.comfyClass !== FOLDER_NODE) return;
  node.onDragOver = hasFiles;
  node.onDragDrop = async (event) => {
    if (!hasFiles(event) || isWorkflow(event)) return false;
    event.preventDefault?.();
    addImages(readDrop(event), { node }).catch((error) => notify("error", words("folders.failed", { name: "" }), error.message));
    return true; // ComfyUI does nothing more
  };
}

/** A single JSON file is a workflow to open. */
function isWorkflow(event) {
  const { files } = event.dataTransfer;
  return files.length === 1 && /\.json$/i.test(files[0].name);
}
