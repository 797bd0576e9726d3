// What a run leaves: what can be done with it, its LoRA files, its settings and notes.

import { button, fill, h, icon, iconButton } from "../lib/dom.js";
import { downloadLink } from "../lib/download.js";
import { nameOf } from "../lib/names.js";
import { address } from "../lib/server.js";
import { shortNumber } from "../lib/ticks.js";
import { number } from "../lib/units.js";
import { words } from "../lib/words.js";
import { addLora, resume, trainAgain } from "./again.js";
import { settingName, shown } from "./compare.js";

export class RunResult {
  /** `edit(row)` asks for name, tags and comment. */
  constructor(edit) {
    this.edit = edit;
    this.tags = h("div", { class: "sc-row wrap sc-tags" });
    this.actions = h("div", { class: "sc-row wrap", role: "group", "aria-label": words("training.actions") });
    this.files = h("ul", { class: "sc-files" });
    this.list = fold(words("training.files"), this.files);
    this.list.open = true;
    this.settings = h("tbody");
    this.about = fold(words("training.settings"), h("table", { class: "sc-lines sc-small sc-settings" }, this.settings));
    this.element = h("div", { class: "sc-stack" }, this.tags, this.actions, this.list, this.about);
  }

  /** Parts are drawn only if they change: the user may be about to press a button. */
  show(row, curves) {
    Object.assign(this, { row, curves });
    this.#draw("tags", [row.tags, row.comment], () => fill(this.tags, this.#tags(row)));
    const files = curves?.exports ?? [];
    const last = files.find(({ file }) => file === row.lora)?.file ?? row.lora;
    const known = Object.keys(curves?.settings ?? {}).length > 0;
    this.#draw("actions", [row.name, row.live, row.status, last, known], () => fill(this.actions, this.#actions(last, known)));
    this.list.hidden = files.length < (row.live ? 1 : 2); // once it has ended, a single file is among the actions
    this.#draw("files", [row.name, files], () => fill(this.files, files.map((each) => fileRow(row.name, each, best(files)))));
    const settings = { ...curves?.settings, ...curves?.host_settings };
    this.about.hidden = Object.keys(settings).length === 0;
    this.#draw("settings", settings, () => fill(this.settings, Object.entries(settings).map(([key, value]) => settingRow(key, value))));
  }

  #draw(part, content, draw) {
    const key = JSON.stringify(content);
    if (this[`${part}Key`] === key) return;
    this[`${part}Key`] = key;
    draw();
  }

  #tags(row) {
    return [row.tags?.map((tag) => h("span", { class: "sc-tag" }, tag)), row.comment && h("span", { class: "sc-small sc-soft sc-comment" }, row.comment)];
  }

  #actions(last, known) {
    const { row } = this;
    const edit = button(words("training.edit"), () => this.edit(this.row), { sign: "pencil" });
    if (row.live || row.status === "running") return [];
    return [
      last && button(words("training.add_lora"), () => addLora(last), { sign: "plus", look: "primary", title: last }),
      last && downloadLink(address("/run/lora", { name: row.name, file: last }), last, icon("download"), h("span", {}, words("training.download"))),
      known && button(words("training.resume"), () => resume(this.row, this.curves), { sign: "play", title: words("training.resume_tip") }),
      known && button(words("training.again"), () => trainAgain(this.row, this.curves), { sign: "replay", title: words("training.again_tip") }),
      edit,
    ];
  }
}

function fold(title, ...content) {
  return h("details", { class: "sc-more" }, h("summary", {}, title), content);
}

/** The file with the lowest validation loss. */
function best(files) {
  const measured = files.filter((each) => typeof each.validation === "number");
  return measured.length < 2 ? undefined : measured.reduce((one, other) => (other.validation < one.validation ? other : one)).file;
}

function fileRow(run, { file, step, loss, validation, partial }, best) {
  const value = (key, each) => typeof each === "number" && `${words(`training.${key}`)} ${shortNumber(each)}`;
  const facts = [words("training.at_step", { step: number(step) }), value("loss", loss), value("validation", validation)].filter(Boolean);
  const mark = [file === best && h("span", { class: "sc-badge good" }, words("training.best_file")), partial && h("span", { class: "sc-badge warn" }, words("training.partial"))];
  const text = h("div", { class: "sc-grow sc-file-text" }, h("span", { class: "sc-row" }, nameOf(file), mark), h("span", { class: "sc-small sc-soft sc-number" }, facts.join(" · ")));
  const load = iconButton("plus", words("training.add_file", { file }), () => addLora(file));
  const label = words("training.download_file", { file });
  const save = h("a", { class: "sc-button plain sc-sign", href: address("/run/lora", { name: run, file }), download: file, title: label, "aria-label": label }, icon("download"));
  return h("li", { class: "sc-row", dataset: { step } }, text, load, save);
}

function settingRow(key, value) {
  const text = shown(value);
  return h("tr", {}, h("th", { scope: "row" }, settingName(key)), h("td", { title: text }, text));
}
