// How the images of a folder will be resized and cropped.

import { FOLDER_NODE } from "../folders/folder_node.js";
import { allNodes } from "../lib/graph.js";

const ENCODE = "StreamCacheEncode";
const SETTINGS = ["resolution", "step", "min_aspect", "max_aspect", "upscale", "crop"];

/** The settings for buckets and crops of the Encode node that the folder is connected to on the canvas; {} if there is none. */
export function transformOf(folder) {
  const isSource = (node) => node.comfyClass === FOLDER_NODE && widget(node, "folder") === folder;
  for (const node of allNodes()) {
    if (!isSource(node)) continue;
    const links = (node.outputs ?? []).flatMap((output) => output.links ?? []);
    for (const id of links) {
      const link = node.graph?.getLink?.(id) ?? node.graph?.links?.get?.(id) ?? node.graph?.links?.[id];
      const target = link && node.graph.getNodeById(link.target_id);
      if (target?.comfyClass !== ENCODE) continue;
      const values = SETTINGS.map((name) => [name, widget(target, name)]).filter(([, value]) => value !== undefined);
      return Object.fromEntries(values.map(([name, value]) => [name, name === "step" ? Number(value) : value]));
    }
  }
  return {};
}

const widget = (node, name) => node.widgets?.find((each) => each.name === name)?.value;
