// Changes to the captions and choices of one folder, each with a notice and undo.

import { get, post } from "../lib/server.js";
import { words } from "../lib/words.js";

const edited = new Set(); // folders that this page changed since their cache was updated

export const wasEdited = (folder) => edited.has(folder);
export const markUpdated = (folder) => edited.delete(folder);

export class Edits {
  /** `changed()` is called after each change; `panel` shows notices, or `dialog` while one is open. */
  constructor(folder, panel, changed) {
    Object.assign(this, { folder, panel, changed, dialog: null });
    this.undoTitle = ""; // of what undo would take back
  }

  /** Writes a caption if the file is as it was shown. Resolves to the server's result; conflicts are for the caller to show. */
  caption(name, text, stamp) {
    return this.send("/folder/caption", { name, text, stamp });
  }

  preview(target, edits, options) {
    return post("/folder/preview", { folder: this.folder, ...target, edits }, options);
  }

  async apply(token) {
    const done = await this.send("/folder/edit", { token });
    this.report(words("curate.captions_changed", { count: done.changed.length }), done);
    return done;
  }

  /** `choice`: {excluded} or {repeats}. */
  async choose(target, choice) {
    const done = await this.attempt("/folder/choose", { ...target, ...choice });
    if (!done) return null;
    const key = choice.repeats !== undefined ? "repeats_set" : choice.excluded ? "excluded" : "included";
    this.report(words(`curate.${key}`, { count: done.changed.length, repeats: choice.repeats }), done);
    return done;
  }

  async undo() {
    const done = await this.attempt("/folder/undo", {});
    if (done) this.report(words("curate.undone", { count: done.changed.length }), done, false);
    return done;
  }

  async send(path, body) {
    const done = await post(path, { folder: this.folder, ...body });
    this.undoTitle = done.undo ?? "";
    if (done.changed.length > 0) edited.add(this.folder);
    this.changed();
    return done;
  }

  /** Like `send`; a refusal is shown, and the result is null. */
  async attempt(path, body) {
    try {
      return await this.send(path, body);
    } catch (error) {
      if (this.dialog) this.dialog.report("bad", error.message);
      else this.panel.fail(error);
      return null;
    }
  }

  /** What undo would take back, as the server knows it. */
  async load(query) {
    const found = await get("/folder/charts", { folder: this.folder, ...query });
    this.undoTitle = found.undo ?? "";
    return found;
  }

  report(text, done, undo = true) {
    const left = [
      done.conflict_count > 0 && words("curate.conflicts", { count: done.conflict_count }),
      done.refused_count > 0 && words("curate.refused", { count: done.refused_count, reason: Object.values(done.refused)[0] }),
    ].filter(Boolean);
    const kind = left.length > 0 ? "warn" : "good";
    const action = undo && done.changed.length > 0 ? { action: words("actions.undo"), act: () => this.undo() } : {};
    (this.dialog ?? this.panel).report(kind, [text, ...left].join("\n"), action);
  }
}
