// The panel of the tab "Training": the current run, the chart of the chosen runs, sample images, and all runs.

import { button, fill, h, icon, iconButton } from "../lib/dom.js";
import { FIRST_STEPS, openExample } from "../lib/example.js";
import { notify } from "../lib/host.js";
import { keepKeys } from "../lib/keys.js";
import { words } from "../lib/words.js";
import { Comparison } from "./compare.js";
import { GridView } from "./grid.js";
import { editLabels } from "./labels.js";
import { RunList } from "./list.js";
import { RunCard } from "./now.js";
import { SampleImages } from "./images.js";
import { store } from "./runs.js";
import { giveColors } from "./series.js";

const MINUTE = 60000; // after which ages are drawn again

// The selection is kept while the page is open, even if the tab is closed.
const state = { chosen: [], byHand: false, followed: "", undo: null, view: { raw: true, rawSeveral: false, validation: true, log: false, clip: true, axis: "step" } };

export class TrainingPanel {
  constructor(element) {
    this.card = new RunCard({ edit: (row) => this.#edit(row) });
    this.comparison = new Comparison(state.view);
    this.images = new SampleImages();
    this.grid = new GridView();
    this.list = new RunList({ choose: (...change) => this.#choose(...change), open: (name) => this.#open(name), remove: (name) => this.#remove(name) });
    this.notice = h("div", { role: "status" });
    const head = h("header", { class: "sc-head" }, h("h2", {}, words("training.title")), iconButton("refresh", words("training.refresh"), () => store.load()));
    this.body = h("div", { class: "sc-body sc-stack sc-training" });
    element.style.height = "100%";
    this.root = h("div", { class: "sc sc-panel" }, head, this.body);
    fill(element, this.root);
    keepKeys(this.root);
    this.leave = store.subscribe(() => this.show());
    this.show();
    this.clock = setInterval(() => this.show(), MINUTE);
    this.unwatch = store.watch();
    store.start();
  }

  destroy() {
    clearInterval(this.clock);
    this.unwatch();
    this.leave();
    this.comparison.destroy();
    this.grid.destroy();
    this.root.remove();
  }

  show() {
    const rows = [...store.rows.values()].sort((a, b) => b.live - a.live || b.updated - a.updated);
    const parts = rows.length ? [this.card, this.notice, this.comparison, this.images, this.grid, this.list] : [this.notice];
    const wanted = [...parts.map((part) => part.element ?? part), ...(rows.length ? [] : [this.#nothing()])];
    if (wanted.some((each, place) => this.body.children[place] !== each)) fill(this.body, wanted);
    this.#follow(rows);
    giveColors(state.chosen);
    const focus = rows.find((row) => row.live && state.chosen.includes(row.name)) ?? store.rows.get(state.chosen.at(-1)) ?? rows[0];
    this.card.show(focus, store.curves.get(focus?.name));
    this.comparison.show(state.chosen);
    this.#showImages(focus?.name);
    this.grid.show(state.chosen.length ? state.chosen : focus ? [focus.name] : []);
    this.root.setAttribute("aria-busy", String(store.loading > 0 || state.chosen.some((name) => store.curves.get(name)?.asked)));
    this.list.show(rows, state.chosen);
    this.#offerUndo();
  }

  /** The images of the first chosen run that has any, so that ticking another run for comparison keeps them. */
  #showImages(otherwise) {
    const samples = (name) => store.curves.get(name)?.samples ?? [];
    const name = state.chosen.find((each) => samples(each).length) ?? otherwise;
    this.images.show(name, store.curves.get(name), state.chosen.length > 1);
  }

  /** Drawn only when it changes: the user may be about to press its buttons. */
  #offerUndo() {
    if (this.offered === state.undo) return;
    this.offered = state.undo;
    if (!state.undo) return fill(this.notice);
    const { name, trash, lora } = state.undo;
    const back = button(words("training.undo"), () => this.#restore(trash), { sign: "undo" });
    const close = iconButton("times", words("training.close"), () => this.#withoutUndo());
    fill(this.notice, h("div", { class: "sc-notice" }, icon("trash"), h("span", { class: "sc-grow" }, words(lora ? "training.removed" : "training.removed_bare", { name })), back, close));
  }

  #withoutUndo() {
    state.undo = null;
    this.show();
  }

  /** Shows a run that begins, alone unless the user has chosen others; without one, the latest run. */
  #follow(rows) {
    state.chosen = state.chosen.filter((name) => store.rows.has(name));
    const live = rows.find((row) => row.live)?.name;
    if (live && live !== state.followed) {
      state.followed = live;
      state.chosen = state.byHand ? [...new Set([...state.chosen, live])] : [live];
    }
    if (!state.chosen.length && !state.byHand && rows.length) state.chosen = [rows[0].name];
    for (const name of state.chosen) store.follow(name);
  }

  #choose(name, chosen) {
    state.byHand = true;
    state.chosen = chosen ? [...state.chosen, name] : state.chosen.filter((each) => each !== name);
    this.show();
  }

  /** Shows a run alone, and scrolls to it. */
  #open(name) {
    Object.assign(state, { byHand: true, chosen: [name] });
    this.show();
    this.card.element.scrollIntoView({ block: "nearest" });
  }

  async #edit(row) {
    const name = await editLabels(row);
    if (name && name !== row.name) state.chosen = state.chosen.map((each) => (each === row.name ? name : each)).filter((each) => store.rows.has(each));
    if (name && !state.chosen.includes(name)) this.#open(name); // the list came without the old name before the new one was known
    this.show();
  }

  async #remove(name) {
    const lora = store.rows.get(name)?.lora;
    try {
      state.undo = { name, lora, trash: await store.remove(name) };
    } catch (error) {
      notify("error", words("training.not_removed", { name }), error.message);
    }
    this.show();
    this.notice.querySelector("button")?.focus(); // the button that was pressed no longer exists
  }

  async #restore(trash) {
    this.#withoutUndo();
    try {
      await store.restore(trash);
    } catch (error) {
      notify("error", words("training.not_restored"), error.message);
    }
    this.show();
  }

  async #example() {
    await openExample(FIRST_STEPS).catch((error) => notify("error", error.message));
  }

  #nothing() {
    if (store.error) return h("div", { class: "sc-notice bad" }, icon("times-circle"), h("span", {}, store.error));
    if (!store.loaded) return h("div", { class: "sc-spin", role: "status", "aria-label": words("training.loading") });
    const example = button(words("caches.example"), () => this.#example(), { sign: "sitemap", look: "primary" });
    return h("div", { class: "sc-empty" }, icon("chart-line"), h("h3", {}, words("training.none")), h("p", { class: "sc-soft" }, words("training.none_tip")), example);
  }
}
