// Editing the captions of many images: find and replace, prefix, suffix, tags; with a live preview of what changes.

import { ask, notice } from "../lib/dialog.js";
import { debounce, fill, h } from "../lib/dom.js";
import { nameOf } from "../lib/names.js";
import { isAbort } from "../lib/server.js";
import { words } from "../lib/words.js";
import { differences } from "./differences.js";

const MOST_SHOWN = 50;
const QUIET = 300; // milliseconds without typing before the preview
// In this order they are applied, as by the command line.
const FIELDS = ["find", "by", "remove_tag", "append_tag", "prefix", "suffix"];

/** `target`: {names} or {filter}; `count` images. Resolves when the dialog is closed. */
export function editMany(edits, target, count) {
  return new BulkDialog(edits, target).open(count);
}

class BulkDialog {
  constructor(edits, target) {
    Object.assign(this, { edits, target, token: "" });
    this.preview = h("div", { class: "sc-preview", role: "group", "aria-label": words("curate.preview"), "aria-live": "polite" }, h("p", { class: "sc-soft" }, words("curate.preview_hint")));
    this.later = debounce(() => this.look(), QUIET);
    const field = (name) => h("input", { class: "sc-field", type: "text", dir: "auto", maxLength: 2000, spellcheck: false, autocomplete: "off", dataset: { edit: name }, oninput: () => this.typed() });
    this.fields = Object.fromEntries(FIELDS.map((name) => [name, field(name)]));
    this.regex = h("input", { type: "checkbox", onchange: () => this.typed() });
  }

  open(count) {
    const label = (name) => h("label", { class: "sc-stack sc-label" }, words(`curate.edit_${name}`), this.fields[name]);
    const content = h(
      "div",
      { class: "sc-stack sc-bulk" },
      h("div", { class: "sc-bulk-fields" }, FIELDS.slice(0, 2).map(label), h("label", { class: "sc-row sc-regex" }, this.regex, words("curate.regex")), FIELDS.slice(2).map(label)),
      this.preview,
    );
    const asked = ask({
      title: words("curate.edit_title", { count }),
      content,
      action: words("curate.apply"),
      look: "primary",
      wide: true,
      act: () => this.apply(),
      ready: (enable) => {
        this.enable = enable;
        enable(false);
      },
    });
    this.fields.find.focus();
    return asked.finally(() => (this.later.cancel(), this.request?.abort()));
  }

  get wanted() {
    const value = (name) => this.fields[name].value;
    const found = value("find") ? [{ kind: "replace", find: value("find"), by: value("by"), regex: this.regex.checked }] : [];
    const texts = FIELDS.slice(2).map((name) => ({ kind: name, text: value(name) }));
    return [...found, ...texts.filter(({ text }) => text.trim())];
  }

  typed() {
    this.token = "";
    this.enable(false);
    this.request?.abort();
    this.preview.setAttribute("aria-busy", "true");
    this.later();
  }

  async look() {
    if (this.wanted.length === 0) return this.show(h("p", { class: "sc-soft" }, words("curate.preview_hint")));
    fill(this.preview, h("div", { class: "sc-spin" }));
    this.request = new AbortController();
    const { signal } = this.request;
    const found = await this.edits.preview(this.target, this.wanted, { signal }).catch((error) => ({ error }));
    if (signal.aborted || isAbort(found.error)) return;
    if (found.error) return this.show(notice("bad", found.error.message));
    this.token = found.token;
    this.enable(found.total > 0);
    const change = ({ name, before, after }) => h("li", {}, nameOf(name, { class: "sc-small sc-soft" }), ...differences(before, after));
    const shown = found.changes.slice(0, MOST_SHOWN);
    this.show(
      h("p", {}, h("strong", {}, words("curate.will_change", { count: found.total }))),
      found.refused_count > 0 && notice("warn", words("curate.refused", { count: found.refused_count, reason: Object.values(found.refused)[0] })),
      shown.length > 0 && h("ul", { class: "sc-changes" }, shown.map(change)),
      found.total > shown.length && h("p", { class: "sc-small sc-soft" }, words("curate.more_changes", { count: found.total - shown.length })),
    );
  }

  show(...content) {
    this.preview.setAttribute("aria-busy", "false");
    fill(this.preview, ...content);
    if (this.preview.scrollHeight > this.preview.clientHeight) this.preview.tabIndex = 0; // so that keys scroll it
    else this.preview.removeAttribute("tabindex");
  }

  /** Exactly what the preview showed. */
  async apply() {
    try {
      return await this.edits.apply(this.token);
    } catch (error) {
      if (error.status === 409) await this.look(); // the preview is too old: show a new one
      throw error;
    }
  }
}
