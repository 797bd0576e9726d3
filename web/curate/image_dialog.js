// One image of a folder in a dialog: the picture, its caption to edit, and whether and how often it is used.

import { notice, show } from "../lib/dialog.js";
import { button, fill, h, iconButton } from "../lib/dom.js";
import { setName } from "../lib/names.js";
import { get } from "../lib/server.js";
import { bytes, moment, number } from "../lib/units.js";
import { words } from "../lib/words.js";
import { CaptionEditor } from "./caption_editor.js";
import { Edits } from "./edits.js";
import { OneImage, readImage } from "./image_pages.js";
import { Picture } from "./picture.js";

const MOST_REPEATS = 100_000;
const MOST_READ_AGAIN = 5000; // images of a folder; of a larger one the list shows what was read last

export class ImageDialog {
  /** `images`: ImagePages or OneImage. `moved(place)` lets the grid scroll along and load what is missing. */
  constructor(images, place, edits, { moved = () => {}, closed = () => {} } = {}) {
    this.images = images;
    this.place = place;
    this.edits = edits;
    this.moved = moved;
    const { folder } = images.query;
    this.folder = folder;
    this.picture = new Picture(folder);
    this.editor = new CaptionEditor(folder, edits, (now) => this.image?.name === now.name && (this.image = now));
    this.title = h("h2", { id: "sc-image-title" });
    this.where = h("span", { class: "sc-soft sc-small sc-number sc-place" });
    this.before = iconButton("chevron-left", words("curate.previous"), () => this.step(-1));
    this.after = iconButton("chevron-right", words("curate.next"), () => this.step(1));
    this.undo = iconButton("undo", words("actions.undo"), () => this.takeBack());
    this.problem = h("div");
    this.message = h("div");
    this.exclude = button("", () => this.choose({ excluded: !this.image.excluded }), { sign: "ban", class: "sc-button sc-exclude" });
    this.repeats = h("input", { class: "sc-field sc-repeats", type: "number", min: 1, max: MOST_REPEATS, step: 1, onchange: () => this.repeat() });
    this.facts = h("dl", { class: "sc-list" });
    const close = iconButton("times", words("actions.close"), () => this.leave());
    const repeats = h("label", { class: "sc-row" }, words("curate.repeats"), this.repeats);
    const text = h("div", { class: "sc-sample-text sc-stack sc-image-text" }, this.problem, this.editor.element, h("div", { class: "sc-row wrap" }, this.exclude, repeats), this.message, this.facts);
    this.element = h(
      "dialog",
      { class: "sc sc-dialog wide sc-sample sc-image", "aria-labelledby": "sc-image-title", onkeydown: (event) => this.key(event) },
      h("header", { class: "sc-head" }, this.title, this.where, this.undo, this.before, this.after, close),
      h("div", { class: "sc-sample-body" }, this.picture.element, text),
    );
    this.element.addEventListener("cancel", (event) => (event.preventDefault(), this.leave()));
    this.element.addEventListener("mousedown", (event) => event.target === this.element && (event.stopImmediatePropagation(), this.leave()));
    this.update();
    edits.dialog = this;
    show(this.element, () => {
      this.closed = true;
      edits.dialog = null;
      closed();
    });
    (this.image?.locked ? this.after : this.editor.field).focus({ preventScroll: true }); // in a small window the picture comes first
  }

  /** Saves first; stays open if that is not possible. */
  async leave() {
    if (await this.editor.save()) this.element.close();
  }

  key(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      return void this.editor.save();
    }
    const step = { PageUp: -1, PageDown: 1 }[event.key] ?? (isText(event.target) ? undefined : { ArrowLeft: -1, ArrowRight: 1 }[event.key]);
    if (step === undefined) return;
    event.preventDefault();
    this.step(step);
  }

  /** If the image is no longer in the list (another filter), the next one is at its place. */
  async step(by) {
    const to = this.place + by - (this.isAway && by > 0 ? 1 : 0);
    if (to < 0 || to >= this.images.total || !(await this.editor.save()) || this.closed) return;
    this.place = to;
    this.image = null;
    fill(this.message);
    this.isAway = false;
    this.moved(to);
    this.update();
  }

  /** The list has been loaded, or another image is shown. */
  update() {
    const found = this.images.fresh(this.place);
    const isElsewhere = this.image && found && found.name !== this.image.name;
    if (isElsewhere || (this.image && this.images.total === 1 && !found)) return this.follow(isElsewhere);
    const before = this.image?.name;
    this.image = found ?? this.image ?? this.images.at(this.place);
    this.draw();
    if (this.image && this.image.name !== before && this.images.total <= MOST_READ_AGAIN) this.follow(); // it may have changed on disk
  }

  /** The image is elsewhere in the list, or not in it any more. */
  async follow(isElsewhere) {
    if (isElsewhere) this.isAway = true;
    const { image } = this;
    const now = await readImage(this.folder, image.name).catch(() => null);
    if (!now || this.image !== image || this.closed) return;
    this.image = now;
    this.draw();
  }

  draw() {
    const { image, images } = this;
    this.before.disabled = this.place === 0;
    this.after.disabled = this.place >= images.total - 1 && !(this.isAway && this.place < images.total);
    this.undo.disabled = !this.edits.undoTitle;
    this.undo.title = [words("actions.undo"), this.edits.undoTitle].filter(Boolean).join(": ");
    this.picture.show(image);
    this.where.textContent = images.total > 1 ? words("curate.place", { place: number(this.place + 1), all: number(images.total) }) : "";
    setName(this.title, image?.name ?? words("caches.loading"), image?.name ?? "");
    if (!image) return;
    this.editor.show(image);
    const locked = this.images.locked;
    this.exclude.lastChild.textContent = words(image.excluded ? "curate.include" : "curate.exclude");
    this.exclude.disabled = this.repeats.disabled = Boolean(locked);
    if (document.activeElement !== this.repeats) this.repeats.value = image.repeats;
    fill(this.problem, image.problem && notice("bad", image.problem), image.excluded && notice("warn", words("curate.excluded_note")));
    fill(this.facts, facts(image));
  }

  /** A notice of an edit. Undo is in the head of the dialog. */
  report(kind, text) {
    fill(this.message, notice(kind, text));
  }

  choose(choice) {
    return this.edits.choose({ names: [this.image.name] }, choice);
  }

  repeat() {
    const count = Math.round(Number(this.repeats.value));
    if (count >= 1 && count <= MOST_REPEATS && count !== this.image.repeats) this.choose({ repeats: count });
    else this.repeats.value = this.image.repeats;
  }

  async takeBack() {
    await this.edits.undo();
    if (this.image && !this.closed) this.follow();
  }
}

/** Opens the image that a sample of a cache was made from. Resolves to the reason if that is not possible. */
export async function editSource(panel, query) {
  const { folder, image: name, reason } = await get("/cache/source", query);
  if (reason) return reason;
  const image = await readImage(folder, name);
  const edits = new Edits(folder, panel, () => window_?.update());
  const window_ = new ImageDialog(new OneImage(folder, image), 0, edits);
  await edits.load().then(() => window_.draw(), () => {});
  return "";
}

const isText = (element) => element.matches?.("textarea, input");

function facts(image) {
  const size = image.width ? `${number(image.width)}×${number(image.height)} · ${bytes(image.bytes)}` : bytes(image.bytes);
  const lines = [
    ["sample.source", image.name],
    ["sample.size", size],
    ["sample.bucket", image.bucket],
    ["curate.date", moment(image.modified)],
  ].filter(([, value]) => value);
  return lines.map(([key, value]) => [h("dt", {}, words(key)), h("dd", {}, value)]);
}
