// What the user says about a run: its name, tags and a comment.

import { ask } from "../lib/dialog.js";
import { h } from "../lib/dom.js";
import { words } from "../lib/words.js";
import { store } from "./runs.js";

/** A dialog for them. Resolves to the run's name afterwards, or to null if nothing was changed. */
export function editLabels(row) {
  const field = (tag, props) => h(tag, { class: "sc-field", spellcheck: false, ...props });
  const name = field("input", { type: "text", value: row.name, required: true, maxLength: 120 });
  const tags = field("input", { type: "text", value: (row.tags ?? []).join(", "), maxLength: 1000, "aria-describedby": "sc-tags-tip" });
  const comment = field("textarea", { value: row.comment ?? "", rows: 4, maxLength: 2000 });
  const content = [
    h("label", { class: "sc-stack" }, words("training.name"), name),
    h("label", { class: "sc-stack" }, words("training.tags"), tags),
    h("span", { id: "sc-tags-tip", class: "sc-small sc-soft" }, words("training.tags_tip")),
    h("label", { class: "sc-stack" }, words("training.comment"), comment),
  ];
  const act = async () => {
    await store.label(row.name, split(tags.value), comment.value);
    const to = name.value.trim();
    return to === row.name ? to : store.rename(row.name, to);
  };
  return ask({ title: words("training.edit_title", { name: row.name }), content, action: words("training.save"), act });
}

function split(text) {
  return text.split(/[,，、\n]/).map((tag) => tag.trim()).filter(Boolean);
}
