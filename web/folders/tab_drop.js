// Images, folders and zips that are dropped onto the Datasets tab.

import { h, icon } from "../lib/dom.js";
import { words } from "../lib/words.js";
import { addImages } from "./add_images.js";
import { hasFiles, readDrop } from "./dropped.js";

/** Takes drops on the panel; on a row of the list of folders, or in the view of a folder, they go to that folder. */
export function acceptFiles(panel) {
  const { root } = panel;
  const sign = h("div", { class: "sc-drop", hidden: true }, icon("upload"), h("p", {}, words("folders.drop")));
  root.append(sign);
  root.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.stopPropagation();
    event.dataTransfer.dropEffect = "copy";
    sign.hidden = false;
  });
  root.addEventListener("dragleave", (event) => {
    if (!root.contains(event.relatedTarget)) sign.hidden = true;
  });
  root.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.stopPropagation(); // ComfyUI would open them as workflows
    sign.hidden = true;
    const under = rowAt(event)?.dataset.name ?? panel.view.folder ?? "";
    const folder = under.startsWith("input/") ? under : ""; // nothing is added to other folders
    addImages(readDrop(event), { folder }).catch((error) => panel.fail(error));
  });
}

function rowAt({ clientX, clientY }) {
  return document.elementsFromPoint(clientX, clientY).map((each) => each.closest(".sc-folder")).find(Boolean);
}
