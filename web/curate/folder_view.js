// One folder of images: its pictures in a grid, with search, filters, charts, a selection, and what can be done with it.

import { makeDraggable } from "../caches/canvas.js";
import { Grid } from "../caches/samples/grid.js";
import { chooseImages } from "../folders/add_images.js";
import { FOLDER_NODE, useFolder } from "../folders/folder_node.js";
import { askName, notice } from "../lib/dialog.js";
import { button, debounce, fill, h, icon, iconButton } from "../lib/dom.js";
import { setting } from "../lib/host.js";
import { nameOf } from "../lib/names.js";
import { get, listen, post } from "../lib/server.js";
import { number } from "../lib/units.js";
import { words } from "../lib/words.js";
import { editMany } from "./bulk_dialog.js";
import { Charts } from "./charts.js";
import { dropDraft, listDrafts } from "./drafts.js";
import { Edits, wasEdited } from "./edits.js";
import { EMPTY, filterBody, Filters } from "./filters.js";
import { ImageDialog } from "./image_dialog.js";
import { firstLine, ImagePages, OneImage, readImage } from "./image_pages.js";
import { MOST_NAMES, Selection } from "./selection.js";
import { transformOf } from "./transform.js";
import { isUpdating, updateButton, watchUpdates } from "./update.js";

const FIRST = 100; // images of the first request
const CONFLICT = 409;
const MOST_REPEATS = 100_000;
const memory = { folder: "", filter: null };

export class FolderView {
  constructor(panel, folder) {
    Object.assign(this, { panel, folder, name: folder });
    if (memory.folder !== folder) Object.assign(memory, { folder, filter: { ...EMPTY, order: "name", descending: "" } });
    this.filter = memory.filter;
    this.transform = transformOf(folder);
    this.edits = new Edits(folder, panel, () => this.reload());
    this.selection = new Selection({
      changed: () => this.drawSelection(),
      removed: () => this.choose({ excluded: true }),
      tooMany: () => (panel.report("warn", words("curate.too_many", { count: MOST_NAMES })), false),
      failed: (error) => void panel.fail(error),
    });
    this.grid = new Grid({
      size: Number(setting("StreamCache.ThumbnailSize", 88)),
      label: words("curate.images_label"),
      opened: (place) => this.open(place),
      looked: (place) => this.look(place),
      selection: this.selection,
      mark: (tile, place) => this.mark(tile, place),
    });
    this.filters = new Filters(this.filter, { asked: () => this.ask(), similar: () => this.findAlike() });
    this.charts = new Charts({ chosen: (filter) => this.filters.set(filter), opened: () => this.loadCharts() });
    this.count = h("span", { class: "sc-small sc-soft sc-number sc-grow", role: "status" });
    this.state = h("div", { class: "sc-state" });
    this.caption = h("div", { class: "sc-caption", "aria-hidden": "true" });
    this.bar = h("div", { class: "sc-selection", role: "toolbar", "aria-label": words("curate.selection"), hidden: true });
    this.updater = updateButton(folder, (error) => panel.fail(error));
    this.element = h(
      "div",
      { class: "sc-view sc-curate", dataset: { folder }, onkeydown: (event) => this.key(event) },
      this.head(),
      this.filters.element,
      this.filters.chips,
      this.charts.element,
      h("div", { class: "sc-countline sc-row" }, this.count, this.selectAll(), this.updater),
      this.state,
      this.grid.element,
      this.caption,
      this.bar,
    );
    const later = debounce(() => this.reload(), 250);
    this.stops = [listen("streamcache.folders", later), listen("reconnected", later), later.cancel, this.filters.cancel, watchUpdates(() => this.drawUpdate()), () => window.removeEventListener("focus", later)];
    window.addEventListener("focus", later); // files may have been changed by other programs
    this.look(null);
    this.ask();
    this.loadCharts();
  }

  head() {
    const { folder, panel } = this;
    this.back = iconButton("arrow-left", words("actions.back"), () => panel.show("list"));
    this.title = nameOf(folder.split("/").at(-1), { tag: "h2", title: folder });
    makeDraggable(this.title, folder, FOLDER_NODE);
    const use = iconButton("plus-circle", words("folders.use", { name: folder }), () => useFolder(folder));
    const failed = (error) => panel.fail(error);
    const add = iconButton("upload", words("folders.add_to", { name: folder }), () => chooseImages(add, { folder, failed }), { "aria-haspopup": "menu" });
    this.undo = iconButton("undo", words("actions.undo"), () => this.edits.undo(), { disabled: true });
    return h("header", { class: "sc-head" }, this.back, this.title, use, folder.startsWith("input/") && add, this.undo);
  }

  selectAll() {
    return iconButton("check-square", words("curate.select_all"), () => (this.selection.all(), this.grid.element.focus()));
  }

  destroy() {
    this.gone = true;
    for (const stop of this.stops) stop();
    this.window?.element.close();
    this.panel.clearNotice(); // its Undo would be another folder's
    this.grid.destroy();
  }

  focus() {
    this.back.focus();
  }

  /** Something that had the focus is gone: keys must not reach the canvas. */
  regain() {
    this.grid.element.focus({ preventScroll: true });
  }

  /** The list of caches has been loaded. */
  update() {}

  /** Keys that ComfyUI would use for the canvas. */
  key(event) {
    const isTyping = event.target.matches("input, textarea, select");
    const isUndo = event.key.toLowerCase() === "z" && (event.ctrlKey || event.metaKey) && !event.shiftKey;
    if (isUndo && !isTyping && this.edits.undoTitle) return void this.edits.undo();
    if (event.key === "Delete" || event.key === "Backspace") event.stopPropagation();
    if (event.key !== "Escape") return;
    event.stopPropagation();
    if (this.selection.count > 0 && !isTyping) this.selection.clear();
    else if (!event.target.value) this.panel.show("list"); // first clear the text of a search
  }

  /** Shows other images. The current ones stay visible until they arrive. */
  ask() {
    this.images?.stop();
    const query = { folder: this.folder, ...this.filter, ...this.transform };
    const images = new ImagePages(query, () => this.arrived(images), (error) => this.failed(error));
    this.images = images;
    this.element.setAttribute("aria-busy", "true");
    if (!this.shown) fill(this.state, h("div", { class: "sc-empty" }, h("div", { class: "sc-spin" })));
    images.want(0, FIRST);
    if (this.found) this.charts.show(this.found, this.filter);
  }

  arrived(images) {
    if (images !== this.images || this.gone) return;
    this.shown = true;
    this.reading = images.reading;
    if (this.wantsCharts && !this.reading) this.loadCharts();
    this.element.setAttribute("aria-busy", "false");
    if (this.selection.pages !== images) this.selection.show(images);
    fill(this.state, images.locked && notice("", images.locked), this.drafts(), images.total === 0 && this.nothing());
    this.count.textContent = this.filters.isSet
      ? words("curate.found", { found: number(images.total), count: images.all })
      : words("folders.count_images", { count: images.all });
    this.grid.show(images);
    this.drawSelection();
    this.window?.update();
  }

  failed(error) {
    this.element.setAttribute("aria-busy", "false");
    if (error.status === 404) {
      this.panel.show("list");
      return this.panel.report("warn", words("caches.gone", { name: this.folder }));
    }
    const again = button(words("actions.again"), () => this.ask(), { sign: "refresh" });
    if (this.shown) this.panel.fail(error);
    else fill(this.state, notice(error.status === CONFLICT ? "" : "bad", error.message, again)); // 409: it is being read
  }

  /** Something changed: captions, choices or files. */
  reload() {
    if (this.gone) return;
    this.images.reload(...(this.grid.samples === this.images ? this.grid.range() : [0, FIRST]));
    this.loadCharts();
    this.drawUpdate();
  }

  async loadCharts() {
    this.wantsCharts = !this.shown || this.reading; // then they are loaded when the images have arrived
    if (this.wantsCharts) return;
    const asked = (this.asked = {});
    const found = await this.edits.load(this.transform).catch(() => null);
    if (!found || this.asked !== asked || this.gone) return;
    this.found = found;
    this.undo.disabled = !this.edits.undoTitle;
    this.undo.title = [words("actions.undo"), this.edits.undoTitle].filter(Boolean).join(": ");
    this.charts.show(found, this.filter);
    this.window?.draw();
    this.drawUpdate();
  }

  drawUpdate() {
    this.updater.classList.toggle("primary", wasEdited(this.folder));
    this.updater.setAttribute("aria-disabled", String(isUpdating(this.folder))); // disabled, it would lose the focus
  }

  nothing() {
    const clear = this.filters.isSet && button(words("curate.show_all"), () => this.filters.clear(), { sign: "filter-slash" });
    return h("div", { class: "sc-empty" }, icon("search"), h("p", { class: "sc-soft" }, words("curate.no_images")), clear);
  }

  /** Captions that were typed, but not saved before the page was reloaded. */
  drafts() {
    const names = this.window ? [] : listDrafts(this.folder);
    if (names.length === 0) return null;
    const [name] = names;
    const discard = () => {
      for (const each of names) dropDraft(this.folder, each);
      this.arrived(this.images);
      this.regain();
    };
    return notice("warn", words("curate.unsaved", { count: names.length, name }), button(words("curate.open"), () => this.openNamed(name)), button(words("curate.discard"), discard));
  }

  /** Signs on a tile: excluded, repeats, mask, problem. Drawn only when they change. */
  mark(tile, place) {
    const image = this.images?.at(place);
    const marks = image ? [image.excluded, image.repeats, image.mask, Boolean(image.problem), image.lines === 0].join() : "";
    if (tile.dataset.marks === marks) return;
    tile.dataset.marks = marks;
    tile.classList.toggle("excluded", Boolean(image?.excluded));
    tile.querySelector(".sc-tile-marks")?.remove();
    if (!image) return;
    const sign = (name) => h("span", {}, icon(name));
    const signs = [
      image.problem && sign("exclamation-triangle"),
      image.excluded && sign("ban"),
      image.mask && sign("eye"),
      image.repeats > 1 && h("span", {}, `×${number(image.repeats)}`),
      !image.problem && image.lines === 0 && sign("comment"),
    ];
    if (signs.some(Boolean)) tile.append(h("span", { class: "sc-tile-marks", "aria-hidden": "true" }, signs));
  }

  look(place) {
    const image = place === null ? undefined : this.images?.at(place);
    if (!image) return fill(this.caption, h("span", { class: "sc-soft" }, words("curate.point")));
    const facts = [image.bucket, image.width && `${image.width}×${image.height}`].filter(Boolean).map((fact) => ` · ${fact}`);
    fill(
      this.caption,
      h("span", { class: "sc-small sc-soft sc-named-facts" }, nameOf(image.name), h("span", {}, facts)),
      h("bdi", { class: "sc-caption-text" }, image.problem || firstLine(image) || words("caches.no_caption")),
    );
  }

  open(place) {
    if (!this.images.at(place)) return;
    this.window = new ImageDialog(this.images, place, this.edits, { moved: (to) => this.grid.go(to), closed: () => this.closed() });
  }

  async openNamed(name) {
    const image = await this.panel.attempt(() => readImage(this.folder, name));
    if (!image || this.gone) return;
    const one = new OneImage(this.folder, image);
    this.window = new ImageDialog(one, 0, this.edits, { closed: () => this.closed() });
  }

  closed() {
    this.window = undefined;
    if (this.gone) return;
    this.arrived(this.images);
    this.regain();
  }

  // The selection

  drawSelection() {
    this.grid?.point();
    const { count } = this.selection;
    if (!this.bar) return;
    const hadFocus = this.bar.contains(document.activeElement);
    this.bar.hidden = count === 0;
    this.element?.classList.toggle("selecting", count > 0);
    if (count === 0 && hadFocus) this.regain();
    if (count === 0 || this.barCount === count) return void (this.barCount = count);
    const first = this.barCount === 0 || this.barCount === undefined || this.bar.childElementCount === 0;
    this.barCount = count;
    if (!first) return void (this.bar.firstChild.textContent = words("curate.selected", { count }));
    const locked = Boolean(this.images.locked);
    const act = (key, sign, run) => button(words(`curate.${key}`), run, { sign, disabled: locked, dataset: { act: key } });
    fill(
      this.bar,
      h("span", { class: "sc-grow sc-number", role: "status" }, words("curate.selected", { count })),
      act("edit_captions", "pencil", () => this.editMany()),
      iconButton("times", words("curate.clear_selection"), () => this.selection.clear()),
      act("exclude", "ban", () => this.choose({ excluded: true })),
      act("include", "check", () => this.choose({ excluded: false })),
      act("set_repeats", "refresh", () => this.askRepeats()),
    );
  }

  get target() {
    return this.selection.target(filterBody({ ...this.filter, ...this.transform }));
  }

  async choose(choice) {
    const done = await this.edits.choose(this.target, choice);
    if (done && this.filters.isSet) this.selection.clear(); // some may be selected, but no longer shown
    return done;
  }

  editMany() {
    return editMany(this.edits, this.target, this.selection.count);
  }

  askRepeats() {
    const { target } = this;
    const wanted = (text) => {
      const repeats = Number(text);
      if (!Number.isInteger(repeats) || repeats < 1 || repeats > MOST_REPEATS) throw new Error(words("curate.bad_repeats", { count: MOST_REPEATS }));
      return this.edits.choose(target, { repeats });
    };
    const title = words("curate.repeats_title", { count: this.selection.count });
    return askName({ title, text: words("curate.repeats_text"), label: words("curate.repeats"), value: "1", action: words("curate.apply"), act: wanted });
  }

  /** Whether look-alikes are known. Otherwise they are looked for, and the filter waits. */
  async findAlike() {
    const known = await this.panel.attempt(() => get("/folder/alike", { folder: this.folder }));
    if (!known || known.ready) return Boolean(known);
    const started = await this.panel.attempt(() => post("/folder/alike", { folder: this.folder }));
    if (!started) return false;
    this.panel.jobs.update(started.job);
    return new Promise((resolve) => {
      const settle = (job) => {
        if (job.id !== started.job.id || job.state === "running") return;
        stop();
        resolve(job.state === "done" && !this.gone);
      };
      const stop = listen("streamcache.job", settle);
      this.stops.push(stop);
      get("/jobs").then(({ jobs }) => jobs.forEach(settle), () => {}); // it may have ended already
    });
  }
}
