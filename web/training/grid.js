// The grid of the chosen runs: test images that are kept with them. Prompts in rows; runs, steps and strengths in columns.

import { ask, show as showWindow } from "../lib/dialog.js";
import { button, fill, h, iconButton } from "../lib/dom.js";
import { notify } from "../lib/host.js";
import { address, get, listen } from "../lib/server.js";
import { useStyle } from "../lib/style.js";
import { number } from "../lib/units.js";
import { words } from "../lib/words.js";
import { drawGrid } from "./grid_node.js";
import { store } from "./runs.js";

const source = ({ run, file, mtime }) => address("/run/grid/picture", { name: run, file, mtime });

export class GridView {
  constructor() {
    useStyle("../training/grid");
    this.names = [];
    this.pictures = [];
    this.count = h("span", { class: "sc-soft sc-small sc-number sc-grow" });
    const draw = button(words("training.grid_draw"), () => this.#ask(), { sign: "images", title: words("training.grid_draw_tip") });
    this.whole = iconButton("window-maximize", words("training.grid_whole"), () => this.#openWhole());
    this.table = h("div", { class: "sc-grid-scroll", tabIndex: 0, role: "group", "aria-label": words("training.grid") });
    this.element = h("section", { class: "sc-stack sc-grid", "aria-label": words("training.grid") }, h("div", { class: "sc-row wrap" }, h("h3", {}, words("training.grid")), this.count, this.whole, draw), this.table);
    const again = () => this.#load();
    this.stops = [listen("streamcache.grid", ({ run }) => this.names.includes(run) && again()), listen("reconnected", again)];
  }

  /** Loads the pictures of other runs, and of a run that has begun or ended. */
  show(names) {
    this.element.hidden = names.length === 0;
    const key = JSON.stringify(names.map((name) => [name, store.rows.get(name)?.status]));
    if (key === this.key) return;
    Object.assign(this, { key, names });
    this.#load();
  }

  destroy() {
    for (const stop of this.stops) stop();
  }

  /** One request at a time; what changes meanwhile is loaded after it. */
  async #load() {
    if (this.loading) return void (this.stale = true);
    this.loading = true;
    do {
      this.stale = false;
      const { names, key } = this;
      const found = await Promise.all(names.map((name) => get("/run/grid", { name }).catch(() => ({ pictures: [] }))));
      if (key === this.key) this.#draw(found.flatMap(({ pictures }, place) => pictures.map((each) => ({ ...each, run: names[place] }))));
    } while (this.stale);
    this.loading = false;
  }

  #draw(pictures) {
    const several = new Set(pictures.map((each) => each.base)).size > 1;
    this.pictures = pictures.map((each) => ({ ...each, model: several ? each.base : "" }));
    this.count.textContent = pictures.length ? words("training.grid_count", { count: pictures.length }) : "";
    this.table.hidden = this.whole.hidden = pictures.length === 0;
    fill(this.table, pictures.length && this.#sheet());
  }

  #sheet() {
    const columns = unique(this.pictures, columnOf).sort(byColumn);
    const rows = unique(this.pictures, rowOf);
    const found = new Map(this.pictures.map((each) => [`${rowOf(each)}|${columnOf(each)}`, each]));
    const head = columns.map((each) => h("th", { scope: "col", title: each.lora }, columnName(each)));
    const cell = (row, column) => {
      const picture = found.get(`${rowOf(row)}|${columnOf(column)}`);
      return h("td", {}, picture ? this.#picture(picture) : "–");
    };
    const line = (row) => h("tr", {}, h("th", { scope: "row", title: aboutRow(row) }, h("span", { class: "sc-grid-prompt" }, row.prompt), h("span", { class: "sc-soft" }, words("training.grid_seed", { seed: row.seed }))), columns.map((column) => cell(row, column)));
    return h("table", { class: "sc-grid-table sc-small" }, h("thead", {}, h("tr", {}, h("td"), head)), h("tbody", {}, rows.map(line)));
  }

  /** The whole grid in the middle of the window: the tab is often narrow. */
  #openWhole() {
    const close = iconButton("times", words("training.close"), () => dialog.close());
    const head = h("header", { class: "sc-head" }, h("h2", { class: "sc-clip sc-grow" }, `${this.names.join(", ")} · ${words("training.grid")}`), close);
    const dialog = h("dialog", { class: "sc sc-dialog wide sc-large sc-grid-whole", "aria-label": words("training.grid") }, head, h("div", { class: "sc-grid-scroll" }, this.#sheet()));
    showWindow(dialog);
  }

  #picture(picture) {
    const image = h("img", { src: source(picture), alt: nameOf(picture), loading: "lazy", draggable: false });
    return h("button", { type: "button", class: "sc-picture", title: words("training.enlarge"), onclick: () => this.#enlarge(picture) }, image);
  }

  /** A large view of one picture. Arrow keys move along its row and its column. */
  #enlarge(picture) {
    const columns = unique(this.pictures, columnOf).sort(byColumn).map(columnOf);
    const rows = unique(this.pictures, rowOf).map(rowOf);
    const at = (row, column) => this.pictures.find((each) => rowOf(each) === rows[row] && columnOf(each) === columns[column]);
    const stage = h("figure", { class: "sc-grid-stage" });
    const title = h("h2", { class: "sc-clip sc-grow" });
    const close = iconButton("times", words("training.close"), () => dialog.close());
    const dialog = h("dialog", { class: "sc sc-dialog wide sc-large", "aria-label": words("training.grid") });
    let [row, column] = [rows.indexOf(rowOf(picture)), columns.indexOf(columnOf(picture))];
    const show = (found) => {
      title.textContent = columnName(found);
      fill(stage, h("img", { src: source(found), alt: nameOf(found) }), h("figcaption", {}, found.prompt, h("span", { class: "sc-soft sc-small" }, aboutRow(found))));
    };
    dialog.append(h("form", { method: "dialog", onsubmit: (event) => event.preventDefault() }, h("div", { class: "sc-row" }, title, close), stage));
    dialog.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      const found = move && at(row + move[0], column + move[1]);
      if (!move) return;
      event.preventDefault();
      if (!found) return;
      [row, column] = [row + move[0], column + move[1]];
      show(found);
    });
    show(picture);
    showWindow(dialog);
  }

  /** Asks what to draw; the rest is what the LoRA Test Grid node on the canvas says. */
  async #ask() {
    const run = this.names.at(0);
    const known = unique(this.pictures, (each) => each.prompt).map((each) => each.prompt);
    const prompts = known.length ? known : (await get("/run", { name: run }).catch(() => ({}))).prompts ?? [];
    const field = (name, value, props = {}) => h(props.rows ? "textarea" : "input", { class: "sc-field", name, value, ...props });
    const fields = {
      prompts: field("prompts", prompts.join("\n"), { rows: 4, placeholder: words("training.grid_prompts_tip") }),
      exports: field("exports", "all"),
      strengths: field("strengths", "1"),
      seeds: field("seeds", "1"),
    };
    const titles = [words("training.grid_prompts"), words("training.grid_exports"), words("training.grid_strengths"), words("training.grid_seeds")];
    const labels = Object.values(fields).map((input, place) => h("label", { class: "sc-stack sc-small sc-grid-field" }, titles[place], input));
    const act = () => {
      const values = Object.fromEntries(Object.entries(fields).map(([name, input]) => [name, input.value.trim()]));
      if (!values.prompts) throw new Error(words("training.grid_no_prompt"));
      return drawGrid(run, values);
    };
    const done = await ask({ title: words("training.grid_title", { name: run }), content: h("div", { class: "sc-stack" }, labels), action: words("training.grid_queue"), act });
    if (done) notify("success", words("training.grid_queued", { name: run }));
  }
}

// Not by the name of the run, which may have changed since. Each model that the LoRAs were tried on has its own columns.
const columnOf = ({ step, strength, lora, base }) => JSON.stringify(lora ? [base, lora, step, strength] : [base]);
const rowOf = ({ prompt, negative, seed, settings }) => JSON.stringify([prompt, negative, seed, Object.entries(settings).sort()]);

function unique(pictures, keyOf) {
  return [...new Map(pictures.map((each) => [keyOf(each), each])).values()];
}

/** The model alone first, then by run or LoRA, step and strength. */
function byColumn(one, other) {
  const order = (each) => [each.lora ? 1 : 0, each.name, each.step ?? Infinity, each.strength, each.base];
  const [a, b] = [order(one), order(other)];
  const place = a.findIndex((value, at) => value !== b[at]);
  return place < 0 ? 0 : a[place] < b[place] ? -1 : 1;
}

function columnName({ lora, name, step, strength, model }) {
  const on = model && words("training.grid_model", { model });
  const at = step === null ? "" : words("training.at_step", { step: number(step) });
  const parts = lora ? [name, at, `× ${strength}`] : [words("training.grid_base")];
  return [...parts, on].filter(Boolean).join(" · ");
}

function nameOf(picture) {
  return `${picture.prompt} · ${columnName(picture)}`;
}

function aboutRow({ negative, seed, settings }) {
  const facts = Object.entries(settings).map(([name, value]) => `${name} ${value}`);
  return [words("training.grid_seed", { seed }), negative && `− ${negative}`, ...facts].filter(Boolean).join(" · ");
}
