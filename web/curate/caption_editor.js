// The caption of one image, edited: saved with Ctrl+Enter, kept as a draft until then, and never over a file that changed meanwhile.

import { button, fill, h } from "../lib/dom.js";
import { notice } from "../lib/dialog.js";
import { words } from "../lib/words.js";
import { dropDraft, keepDraft, readDraft } from "./drafts.js";
import { readImage } from "./image_pages.js";
import { TagChips } from "./tags.js";

export class CaptionEditor {
  /** `saved(image)` is called with the image as it is then. */
  constructor(folder, edits, saved) {
    Object.assign(this, { folder, edits, saved });
    this.field = h("textarea", {
      class: "sc-field sc-caption-field",
      dir: "auto",
      rows: 5,
      spellcheck: false,
      "aria-describedby": "sc-caption-hint",
      oninput: () => this.typed(),
    });
    this.tags = new TagChips((text) => this.set(text));
    this.notes = h("div", { class: "sc-stack" });
    this.saveButton = button(words("curate.save"), () => this.save(), { look: "primary", sign: "check", title: words("curate.save_tip") });
    this.status = h("span", { class: "sc-small sc-soft", role: "status" });
    this.element = h(
      "div",
      { class: "sc-stack" },
      h("label", { class: "sc-stack sc-label" }, words("curate.caption"), this.field),
      h("span", { class: "sc-small sc-soft", id: "sc-caption-hint" }, words("curate.caption_hint")),
      this.tags.element,
      this.notes,
      h("div", { class: "sc-row" }, this.saveButton, this.status),
    );
  }

  get dirty() {
    return Boolean(this.base) && this.field.value !== this.base.text;
  }

  get locked() {
    return this.image.locked || (this.base ? "" : words("caches.loading"));
  }

  /** Another image, or the same one as it is now. A text that was typed stays. */
  async show(image) {
    const isOther = this.image?.name !== image.name;
    if (!isOther && (this.dirty || this.saving || this.conflict)) return;
    if (!isOther && this.base?.stamp === image.stamp && this.image.locked === image.locked) return;
    this.image = image;
    this.conflict = null;
    this.base = image.cut ? null : { text: image.caption, stamp: image.stamp };
    this.status.textContent = "";
    fill(this.notes);
    this.field.value = image.caption;
    this.draw();
    if (image.cut) await this.readWhole(image);
    if (this.image !== image) return;
    this.offerDraft();
    this.draw();
  }

  async readWhole(image) {
    const whole = await readImage(this.folder, image.name).catch((error) => ({ error }));
    if (this.image !== image) return;
    if (whole.error) return fill(this.notes, notice("bad", whole.error.message));
    this.base = { text: whole.caption, stamp: whole.stamp };
    this.field.value = whole.caption;
  }

  /** A text that was not saved before the page was reloaded, or the server was away. */
  offerDraft() {
    const draft = readDraft(this.folder, this.image.name);
    if (!draft || !this.base || this.image.locked) return;
    if (draft.text === this.base.text) return dropDraft(this.folder, this.image.name);
    const now = this.base;
    this.base = { text: draft.before, stamp: draft.stamp };
    this.field.value = draft.text;
    const discard = button(words("curate.discard"), () => this.start(now));
    fill(this.notes, notice("warn", words("curate.restored"), discard));
  }

  /** Begins again with a caption as it is on disk. */
  start(base) {
    dropDraft(this.folder, this.image.name);
    this.base = base;
    this.field.value = base.text;
    this.conflict = null;
    fill(this.notes);
    this.draw();
    this.field.focus();
  }

  draw() {
    const locked = Boolean(this.locked);
    this.field.readOnly = locked;
    this.tags.show(this.field.value, locked);
    this.saveButton.disabled = locked || !this.dirty || this.saving || Boolean(this.conflict);
    if (this.image.locked) fill(this.notes, notice("", words("curate.locked", { reason: this.image.locked })));
  }

  typed() {
    const { name } = this.image;
    this.status.textContent = "";
    if (this.dirty) keepDraft(this.folder, name, { text: this.field.value, before: this.base.text, stamp: this.base.stamp });
    else dropDraft(this.folder, name);
    this.draw();
  }

  set(text) {
    this.field.value = text;
    this.typed();
  }

  /** Resolves to whether everything is saved, so that another image can be shown. */
  async save() {
    if (!this.base || this.image.locked || (!this.dirty && !this.conflict)) return true;
    if (this.conflict) return false; // the user has to choose first
    if (this.saving) return this.saving;
    this.saving = this.send();
    const saved = await this.saving;
    this.saving = null;
    this.draw();
    return saved;
  }

  async send() {
    const { image, base } = this;
    const text = this.field.value;
    this.status.textContent = words("curate.saving");
    this.draw();
    const done = await this.edits.caption(image.name, text, base.stamp).catch((error) => ({ error }));
    this.status.textContent = "";
    const problem = done.error?.message ?? done.refused?.[image.name];
    if (problem) {
      const discard = button(words("curate.discard"), () => this.start(base)); // or the dialog could not be closed
      fill(this.notes, notice("bad", `${words("curate.not_saved")} ${problem}`, discard));
      return false;
    }
    if (done.conflicts.length > 0) {
      this.showConflict(done.conflicts[0]);
      return false;
    }
    const now = await readImage(this.folder, image.name).catch(() => null); // its stamp is new
    if (this.field.value === text) dropDraft(this.folder, image.name);
    if (now) {
      if (this.field.value === text) this.field.value = now.caption;
      this.base = { text: now.caption, stamp: now.stamp };
      this.image = now;
      this.saved(now);
    }
    fill(this.notes);
    this.status.textContent = words("curate.saved");
    return this.field.value === text || !this.dirty;
  }

  /** The file changed meanwhile: both texts, and the user chooses. */
  showConflict(conflict) {
    this.conflict = conflict;
    const mine = this.field.value;
    const choose = (keepMine) => {
      const typed = this.field.value;
      this.start({ text: conflict.found, stamp: conflict.stamp });
      if (!keepMine) return;
      this.set(typed);
      this.save();
    };
    const text = (title, value) => h("div", { class: "sc-stack sc-version" }, h("strong", {}, title), h("div", { class: "sc-version-text", dir: "auto", tabIndex: 0, role: "group", "aria-label": title }, value || "–"));
    fill(
      this.notes,
      notice("warn", words("curate.conflict")),
      h("div", { class: "sc-versions" }, text(words("curate.on_disk"), conflict.found), text(words("curate.yours"), mine)),
      h(
        "div",
        { class: "sc-row wrap" },
        button(words("curate.keep_mine"), () => choose(true), { class: "sc-button sc-keep-mine" }),
        button(words("curate.take_theirs"), () => choose(false), { class: "sc-button sc-take-theirs" }),
      ),
    );
    this.draw();
    this.notes.querySelector(".sc-version-text").focus(); // no key overwrites either text
  }
}
