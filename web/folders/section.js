// The section "Image folders" of the Datasets tab: a row per folder, and Add images.

import { makeDraggable } from "../caches/canvas.js";
import { notice } from "../lib/dialog.js";
import { button, debounce, fill, h, icon, iconButton, roving } from "../lib/dom.js";
import { nameOf } from "../lib/names.js";
import { address, get, listen } from "../lib/server.js";
import { words } from "../lib/words.js";
import { chooseImages } from "./add_images.js";
import { FOLDER_NODE, useFolder } from "./folder_node.js";

const FIRST = 4; // more are drawn on request
const memory = { all: false, opened: "" };

export class FolderSection {
  constructor(panel) {
    this.panel = panel;
    this.folders = [];
    this.wanted = [];
    this.rows = h("ul", { class: "sc-folders", "aria-label": words("folders.title") });
    this.roving = roving(this.rows, ".sc-folder-open");
    this.state = h("div");
    this.element = h(
      "section",
      { class: "sc-folder-section", hidden: true },
      h("h3", {}, words("folders.title")),
      this.state,
      this.rows,
    );
    const later = debounce(() => this.load(), 250);
    this.stops = [listen("streamcache.folders", later), later.cancel, () => window.removeEventListener("focus", later)];
    window.addEventListener("focus", later); // files may have been copied into a folder
    this.load();
  }

  destroy() {
    this.asked = null;
    for (const stop of this.stops) stop();
  }

  async load() {
    const asked = (this.asked = {});
    const found = await get("/folders").catch((error) => ({ error }));
    if (this.asked !== asked) return;
    if (found.error) this.element.hidden = false;
    fill(this.state, found.error && notice("bad", found.error.message));
    if (found.error) return;
    this.folders = found.folders;
    this.draw();
  }

  /** Shows only folders whose names contain all these words. */
  search(wanted) {
    if (wanted.join(" ") === this.wanted.join(" ")) return;
    this.wanted = wanted;
    this.draw();
  }

  draw() {
    const focused = document.activeElement?.closest?.(".sc-folder")?.dataset.name ?? this.returned();
    const folders = this.folders.filter(({ name }) => this.wanted.every((word) => name.toLowerCase().includes(word)));
    this.element.hidden = folders.length === 0;
    const shown = memory.all ? folders : folders.slice(0, FIRST);
    fill(this.rows, shown.map((folder) => this.row(folder)));
    if (shown.length < folders.length) this.rows.append(this.more(folders.length));
    this.roving.settle();
    const again = [...this.rows.querySelectorAll(".sc-folder")].find((row) => row.dataset.name === focused);
    again?.querySelector(".sc-folder-open").focus();
  }

  /** The folder that was open, if the user comes back from it. */
  returned() {
    const { opened } = memory;
    if (!this.wantsFocus) return undefined;
    this.wantsFocus = false;
    memory.opened = "";
    return opened || undefined;
  }

  row(folder) {
    const { name } = folder;
    const open = () => {
      memory.opened = name;
      this.panel.show("folder", name);
    };
    // Not a <button>: Firefox does not start a drag on one.
    const press = (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), open());
    const label = words("folders.open", { name });
    const text = h(
      "div",
      { role: "button", class: "sc-folder-open", tabIndex: -1, title: label, onclick: open, onkeydown: press },
      nameOf(name.split("/").at(-1), { class: "sc-card-name" }),
      h("span", { class: "sc-small sc-soft sc-clip" }, amounts(folder)),
    );
    const use = iconButton("plus-circle", words("folders.use", { name }), () => useFolder(name), { tabIndex: -1 });
    const more = { tabIndex: -1, "aria-haspopup": "menu" };
    const add = folder.writable && iconButton("upload", words("folders.add_to", { name }), choosing(this.panel, name), more);
    const row = h("li", { class: "sc-folder", dataset: { name } }, covers(folder), text, use, add);
    makeDraggable(row, name, FOLDER_NODE);
    return row;
  }

  more(count) {
    const show = () => {
      memory.all = true;
      this.draw();
    };
    return h("li", { class: "sc-more" }, button(words("caches.show_all", { count }), show));
  }
}

export function addButton(panel, look = "") {
  return button(words("folders.add"), choosing(panel), { sign: "upload", look, "aria-haspopup": "menu" });
}

export function addSign(panel) {
  return iconButton("upload", words("folders.add"), choosing(panel), { "aria-haspopup": "menu" });
}

const choosing = (panel, folder = "") => (event) => chooseImages(event.currentTarget, { folder, failed: (error) => panel.fail(error) });

/** "30 images · 28 with captions" */
function amounts(folder) {
  const parts = [words("folders.count_images", { count: folder.images })];
  if (folder.captions > 0 || !folder.metadata) parts.push(words("folders.captioned", { count: folder.captions }));
  if (folder.metadata) parts.push("metadata.jsonl");
  return parts.join(" · ");
}

function covers(folder) {
  const frame = h("div", { class: "sc-folder-covers", "aria-hidden": "true" }, icon("images"));
  for (const name of folder.covers) {
    const query = { folder: folder.name, name, stamp: folder.modified };
    const image = h("img", { alt: "", loading: "lazy", draggable: false, src: address("/folder/image", query) });
    image.addEventListener("error", () => image.remove());
    frame.append(image);
  }
  return frame;
}
