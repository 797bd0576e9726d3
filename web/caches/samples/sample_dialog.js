// One sample in a dialog: its image, all captions, its source. Arrow keys go to the next or previous sample.

import { notice, show } from "../../lib/dialog.js";
import { editSource } from "../../curate/image_dialog.js";
import { button, fill, h, iconButton } from "../../lib/dom.js";
import { address } from "../../lib/server.js";
import { number } from "../../lib/units.js";
import { words } from "../../lib/words.js";

export class SampleDialog {
  constructor(samples, place, { panel, moved, closed }) {
    Object.assign(this, { samples, place, panel, moved });
    this.problem = h("div");
    this.edit = button(words("sample.edit"), () => this.editCaption(), { sign: "pencil" });
    this.image = h("img", { class: "sc-sample-picture", alt: "" });
    this.text = h("div", { "aria-live": "polite" });
    this.title = h("h2", { id: "sc-sample-title" });
    this.before = iconButton("chevron-left", words("actions.previous"), () => this.go(this.place - 1));
    this.after = iconButton("chevron-right", words("actions.next"), () => this.go(this.place + 1));
    const close = iconButton("times", words("actions.close"), () => this.close());
    this.element = h(
      "dialog",
      {
        class: "sc sc-dialog wide sc-sample",
        "aria-labelledby": "sc-sample-title",
        onkeydown: (event) => this.key(event),
      },
      h("header", { class: "sc-head" }, this.title, this.before, this.after, close),
      h("div", { class: "sc-sample-body" }, h("div", { class: "sc-sample-frame" }, this.image), h("div", { class: "sc-sample-text" }, this.text, this.edit, this.problem)),
    );
    this.update();
    show(this.element, closed);
    this.after.focus();
  }

  close() {
    this.element.close();
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.go(this.place + step);
  }

  go(place) {
    if (place < 0 || place >= this.samples.total) return;
    this.place = place;
    this.moved(place); // the grid scrolls along and loads what is missing
    this.update();
  }

  /** The caption is edited where it came from, if that is still there. */
  async editCaption() {
    const { name, generation } = this.samples.query;
    const query = { name, generation, number: this.samples.numberAt(this.place) };
    this.edit.disabled = true;
    const reason = await editSource(this.panel, query).catch((error) => error.message);
    this.edit.disabled = false;
    fill(this.problem, reason && notice("warn", reason));
  }

  update() {
    const sample = this.samples.at(this.place);
    const { name, generation } = this.samples.query;
    this.title.textContent = words("sample.title", { place: number(this.place + 1), all: number(this.samples.total) });
    this.before.disabled = this.place === 0;
    this.after.disabled = this.place >= this.samples.total - 1;
    const found = this.samples.numberAt(this.place);
    if (found !== undefined) {
      const src = address("/cache/thumbnail", { name, generation, number: found });
      if (this.image.getAttribute("src") !== src) this.image.src = src;
    }
    if (this.told !== found) fill(this.problem);
    this.told = found;
    if (!sample) return fill(this.text, h("div", { class: "sc-spin" }));
    this.image.alt = sample.captions.filter(Boolean)[0] ?? "";
    fill(this.text, captions(sample), facts(sample));
  }
}

function captions(sample) {
  const texts = sample.captions.filter(Boolean);
  const title = h("h3", {}, words("sample.captions", { count: texts.length }));
  if (texts.length === 0) return [h("h3", {}, words("caches.no_caption"))];
  return [title, h("ul", { class: "sc-sample-captions" }, texts.map((text) => h("li", {}, text)))];
}

function facts(sample) {
  const size = sample.width && sample.height ? `${number(sample.width)}×${number(sample.height)}` : "";
  const lines = [
    ["sample.number", number(sample.number + 1)],
    ["sample.source", sample.source],
    ["sample.size", size],
    ["sample.bucket", sample.bucket],
    ["sample.set", sample.set],
    ["sample.repeats", sample.repeats === 1 ? "" : number(sample.repeats)],
    ["sample.weight", sample.weight === 1 ? "" : number(sample.weight, 3)],
  ].filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const line = ([key, value]) => [h("dt", {}, words(key)), h("dd", {}, String(value))];
  return h("dl", { class: "sc-list" }, lines.map(line));
}
