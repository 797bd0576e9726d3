// The tags of a caption: what is between commas, as chips that can be removed and added. Lines are variants, and each is changed.

import { fill, h, iconButton } from "../lib/dom.js";
import { words } from "../lib/words.js";

const MOST_SHOWN = 60;
const form = (tag) => tag.normalize("NFC").trim().toLowerCase();

/** The different tags of all lines, in their first spelling. */
export function tagsOf(text) {
  const found = new Map();
  for (const tag of text.split(/[\n,]/)) if (tag.trim() && !found.has(form(tag))) found.set(form(tag), tag.trim());
  return [...found.values()];
}

export function withoutTag(text, tag) {
  const keep = (line) => line.split(",").filter((each) => form(each) !== form(tag));
  const changed = (line) => (tagsOf(line).some((each) => form(each) === form(tag)) ? keep(line).join(",").trim() : line);
  const lines = text.split("\n").map((line) => [line, changed(line)]);
  return lines.filter(([before, after]) => after || !before.trim()).map(([, after]) => after).join("\n"); // no emptied variants
}

export function withTag(text, tag) {
  const add = (line) => {
    if (tagsOf(line).some((each) => form(each) === form(tag))) return line;
    const bare = line.trimEnd().replace(/,\s*$/, "").trimEnd();
    return bare ? `${bare}, ${tag.trim()}` : tag.trim();
  };
  const lines = text.split("\n");
  return lines.map((line, at) => (line.trim() || (at === 0 && !text.trim()) ? add(line) : line)).join("\n");
}

export class TagChips {
  /** `changed(text)` is called with the whole caption. */
  constructor(changed) {
    this.changed = changed;
    this.list = h("ul", { class: "sc-tags", "aria-label": words("curate.tags") });
    const label = words("curate.add_tag");
    this.field = h("input", { class: "sc-field", type: "text", dir: "auto", maxLength: 500, placeholder: label, "aria-label": label, onkeydown: (event) => this.key(event) });
    this.adding = h("div", { class: "sc-row" }, this.field, iconButton("plus", label, () => this.add()));
    this.element = h("div", { class: "sc-stack" }, this.list, this.adding);
  }

  show(text, locked) {
    this.text = text;
    this.adding.hidden = locked;
    const tags = tagsOf(text);
    const chip = (tag) =>
      h(
        "li",
        { class: "sc-tag" },
        h("bdi", { class: "sc-clip", title: tag }, tag),
        !locked && iconButton("times", words("curate.remove_tag", { tag: tag.slice(0, 100) }), () => this.remove(tag)),
      );
    fill(this.list, tags.slice(0, MOST_SHOWN).map(chip));
    if (tags.length > MOST_SHOWN) this.list.append(h("li", { class: "sc-small sc-soft" }, words("curate.more_tags", { count: tags.length - MOST_SHOWN })));
  }

  remove(tag) {
    const at = [...this.list.children].indexOf(document.activeElement?.closest(".sc-tag"));
    this.changed(withoutTag(this.text, tag));
    const chips = this.list.querySelectorAll(".sc-tag button");
    (chips[Math.min(Math.max(at, 0), chips.length - 1)] ?? this.field).focus();
  }

  key(event) {
    if (event.key !== "Enter" || event.ctrlKey || event.isComposing) return;
    event.preventDefault();
    this.add();
  }

  add() {
    const tag = this.field.value.trim();
    if (!tag) return;
    this.field.value = "";
    this.changed(tag.split(",").filter((each) => each.trim()).reduce(withTag, this.text));
    this.field.focus();
  }
}
