// The original picture of an image, with what its mask and the crop of its bucket leave out.

import { button, fill, h } from "../lib/dom.js";
import { notice } from "../lib/dialog.js";
import { address } from "../lib/server.js";
import { words } from "../lib/words.js";
import { firstLine, thumbnail } from "./image_pages.js";

const SIDE = 2048; // the longer side at most
const memory = { mask: false, crop: false };

export class Picture {
  constructor(folder) {
    this.folder = folder;
    this.frame = h("div", { class: "sc-sample-frame sc-picture-frame" });
    this.mask = this.toggle("mask");
    this.crop = this.toggle("crop");
    this.tools = h("div", { class: "sc-row wrap sc-picture-tools" }, this.mask, this.crop);
    this.element = h("div", { class: "sc-picture-side" }, this.frame, this.tools);
  }

  toggle(key) {
    const pressed = () => {
      memory[key] = !memory[key];
      this.draw();
    };
    return button(words(`curate.show_${key}`), pressed, { sign: key === "mask" ? "eye" : "expand", dataset: { overlay: key } });
  }

  show(image) {
    const seen = image && `${image.name}|${image.image_stamp}|${image.crop}|${image.mask_stamp}`;
    if (this.seen === seen) return;
    this.seen = seen;
    this.image = image;
    if (!image) return fill(this.frame, h("div", { class: "sc-spin" }));
    if (image.problem && !image.width) return fill(this.frame, notice("bad", image.problem));
    const spin = h("div", { class: "sc-spin" });
    const query = { folder: this.folder, name: image.name, stamp: image.image_stamp };
    const alt = firstLine(image);
    const small = h("img", { class: "sc-picture-small", alt: "", src: thumbnail(this.folder, image) });
    const large = h("img", { class: "sc-picture-large", alt, decoding: "async", src: address("/folder/picture", { ...query, side: SIDE }) });
    large.addEventListener("load", () => (small.remove(), spin.remove()));
    large.addEventListener("error", () => fill(this.frame, notice("bad", words("curate.no_picture", { name: image.name }))));
    this.box = h("div", { class: "sc-picture", style: { "--ratio": image.width / image.height } }, small, large, spin);
    fill(this.frame, this.box);
    this.draw();
  }

  draw() {
    const { image, box } = this;
    const cut = image && cropOf(image);
    this.mask.hidden = !image?.mask;
    this.crop.hidden = !cut;
    for (const key of ["mask", "crop"]) this[key].setAttribute("aria-pressed", String(memory[key]));
    box?.querySelectorAll(".sc-overlay").forEach((each) => each.remove());
    if (!image || !box) return;
    const query = { folder: this.folder, name: image.name, stamp: image.mask_stamp, side: SIDE };
    if (memory.mask && image.mask) box.append(h("img", { class: "sc-overlay sc-overlay-mask", alt: words("curate.mask"), src: address("/folder/mask", query) }));
    if (memory.crop && cut) box.append(h("div", { class: "sc-overlay sc-overlay-crop", title: image.bucket, style: cut }));
  }
}

/** What the bucket keeps, as insets; null if that is not known. */
export function cropOf({ crop }) {
  if (!crop) return null;
  const [left, top, right, bottom] = [crop[0], crop[1], 1 - crop[2], 1 - crop[3]].map((share) => `${(100 * share).toFixed(3)}%`);
  return { left, top, right, bottom };
}
