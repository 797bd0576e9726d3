// A grid of thumbnails with elements only for the visible ones, however many there are: the samples of a cache, or the images of a
// folder, of which several can be selected.
//
// The focus stays on the grid itself and aria-activedescendant names the sample, so that no focus is lost when the
// element of a sample that was scrolled away is reused.

import { h, icon } from "../../lib/dom.js";
import { TallScroll } from "./tall_scroll.js";

const GAP = 4;
const MAX_TILES = 600; // on very large screens tiles grow instead
const MAX_SPARE = 100;
const ROWS_AHEAD = 2;
const QUIET = 100; // milliseconds without movement before loading, after fast scrolling

export class Grid {
  /**
   * `size`: the least size of a tile; `opened(place)` and `looked(place | null)` are callbacks. `selection`, if several can be
   * selected: {count, has, toggle, begin, extend (with a place), all, clear, remove}. `mark(tile, place)` draws signs on a tile.
   */
  constructor({ size, label, opened, looked, selection = null, mark = () => {} }) {
    Object.assign(this, { size, opened, looked, selection, mark });
    this.scroll = new TallScroll();
    this.tiles = new Map(); // place → element
    this.spare = [];
    this.active = 0;
    this.columns = 1;
    this.drawnAt = 0;
    this.tile = size;
    this.sizer = h("div", { class: "sc-grid-sizer", role: "presentation" });
    this.element = h(
      "div",
      {
        class: "sc-grid",
        role: "listbox",
        tabIndex: 0,
        "aria-label": label,
        "aria-multiselectable": selection && "true",
        onscroll: () => this.scrolled(),
        onkeydown: (event) => this.key(event),
        onclick: (event) => this.click(event),
        onmouseover: (event) => this.hover(event),
        onmouseleave: () => this.looked(document.activeElement === this.element ? this.active : null),
        onfocus: () => this.point(),
        onblur: () => this.looked(null),
      },
      this.sizer,
    );
    this.observer = new ResizeObserver(() => this.layout());
    this.observer.observe(this.element);
  }

  /** Shows other samples from the top, or continues with the same ones. */
  show(samples) {
    if (this.samples !== samples) {
      this.samples = samples;
      this.active = this.drawnAt = 0;
      this.element.scrollTop = this.scroll.jump(0);
      this.recycle(() => true);
    }
    this.layout();
  }

  destroy() {
    this.observer.disconnect();
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    this.samples?.stop();
  }

  layout() {
    const width = this.sizer.clientWidth;
    const view = this.element.clientHeight;
    if (!width || !view || !this.samples) return;
    const least = Math.max(this.size, Math.sqrt((width * view) / MAX_TILES));
    const before = this.columns * Math.floor(this.scroll.top / (this.tile + GAP));
    const columns = Math.max(1, Math.floor((width + GAP) / (least + GAP)));
    const changed = columns !== this.columns;
    this.columns = columns;
    this.tile = (width - GAP * (columns - 1)) / columns;
    const rows = Math.ceil((this.samples.total ?? 0) / columns);
    this.scroll.resize(Math.max(0, rows * (this.tile + GAP) - GAP), view);
    this.sizer.style.height = `${this.scroll.barHeight}px`;
    if (changed) this.element.scrollTop = this.scroll.jump(Math.floor(before / columns) * (this.tile + GAP));
    this.draw();
  }

  scrolled() {
    this.scroll.move(this.element.scrollTop);
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw();
    });
  }

  /** The places that have an element now: the visible ones and a few rows more. */
  range() {
    const row = this.tile + GAP;
    const first = Math.max(0, Math.floor(this.scroll.top / row) - ROWS_AHEAD);
    const last = Math.ceil((this.scroll.top + this.scroll.view) / row) + ROWS_AHEAD;
    return [first * this.columns, Math.min(this.samples.total ?? 0, last * this.columns)];
  }

  draw() {
    if (!this.samples) return;
    const [first, end] = this.range();
    this.recycle((place) => place < first || place >= end);
    for (let place = first; place < end; place += 1) this.put(place);
    this.point();
    const isFast = Math.abs(this.scroll.top - this.drawnAt) > this.scroll.view / 2;
    this.drawnAt = this.scroll.top;
    clearTimeout(this.timer);
    if (isFast) this.timer = setTimeout(() => this.ask(), QUIET);
    else this.ask();
  }

  /** Samples that were only scrolled past are never loaded. */
  ask() {
    this.samples.want(...this.range());
    this.load();
  }

  /** Loads the visible thumbnails. Loading stops when a tile is recycled. */
  load() {
    for (const [place, tile] of this.tiles) {
      const found = this.samples.pictureAt(place);
      if (found === undefined || tile.dataset.number === String(found)) continue;
      tile.dataset.number = found;
      tile.classList.remove("broken");
      tile.firstChild.src = this.samples.addressAt(place);
    }
    if (!this.painted && this.tiles.size) this.firstPaint();
  }

  firstPaint() {
    this.painted = true;
    requestAnimationFrame(() => setTimeout(() => performance.mark("streamcache:grid")));
  }

  put(place) {
    let tile = this.tiles.get(place);
    if (!tile) {
      tile = this.spare.pop() ?? this.makeTile();
      this.tiles.set(place, tile);
      tile.id = `sc-sample-${place}`;
      tile.dataset.place = place;
      tile.hidden = false;
    }
    const [row, column] = [Math.floor(place / this.columns), place % this.columns];
    const y = row * (this.tile + GAP) - this.scroll.top + this.scroll.bar;
    tile.style.transform = `translate(${column * (this.tile + GAP)}px, ${y}px)`;
    tile.style.width = tile.style.height = `${this.tile}px`;
    this.label(tile, place);
  }

  label(tile, place) {
    this.mark(tile, place);
    const [label, spoken] = this.samples.labelAt(place);
    if (tile.dataset.label === label && tile.dataset.of === String(place) && tile.dataset.spoken === spoken) return;
    tile.dataset.label = label;
    tile.dataset.of = place;
    tile.dataset.spoken = spoken;
    tile.setAttribute("aria-label", spoken);
    tile.setAttribute("aria-posinset", place + 1);
    tile.setAttribute("aria-setsize", this.samples.total);
  }

  makeTile() {
    const image = h("img", { alt: "", decoding: "async", draggable: false });
    image.addEventListener("error", () => image.hasAttribute("src") && tile.classList.add("broken"));
    const tile = h("div", { class: "sc-tile", role: "option", "aria-selected": "false" }, image);
    if (this.selection) tile.append(h("span", { class: "sc-tile-check", "aria-hidden": "true" }, icon("check")));
    this.sizer.append(tile);
    return tile;
  }

  /** Frees the elements of places; their images stop loading. */
  recycle(away) {
    for (const [place, tile] of this.tiles) {
      if (!away(place)) continue;
      this.tiles.delete(place);
      tile.hidden = true;
      tile.classList.remove("broken");
      tile.removeAttribute("id");
      delete tile.dataset.number;
      tile.firstChild.removeAttribute("src");
      if (this.spare.length < MAX_SPARE) this.spare.push(tile);
      else tile.remove();
    }
  }

  /** Marks the sample at the keyboard cursor. */
  point() {
    const focused = document.activeElement === this.element;
    for (const [place, tile] of this.tiles) {
      tile.setAttribute("aria-selected", String(this.selection ? this.selection.has(place) : place === this.active));
      tile.classList.toggle("active", focused && place === this.active);
    }
    if (this.tiles.has(this.active)) this.element.setAttribute("aria-activedescendant", `sc-sample-${this.active}`);
    else this.element.removeAttribute("aria-activedescendant");
    if (focused) this.looked(this.active);
  }

  go(place) {
    const last = (this.samples.total ?? 0) - 1;
    if (last < 0) return;
    this.active = Math.max(0, Math.min(last, place));
    const top = Math.floor(this.active / this.columns) * (this.tile + GAP);
    if (top < this.scroll.top) this.element.scrollTop = this.scroll.jump(top);
    else if (top + this.tile > this.scroll.top + this.scroll.view)
      this.element.scrollTop = this.scroll.jump(top + this.tile - this.scroll.view);
    this.draw();
  }

  key(event) {
    const page = this.columns * Math.max(1, Math.floor(this.scroll.view / (this.tile + GAP)));
    const row = this.columns;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -row, ArrowDown: row, PageUp: -page, PageDown: page };
    const all = this.samples?.total ?? 0;
    if (event.key in steps) this.step(event, this.active + steps[event.key]);
    else if (event.key === "Home") this.step(event, 0);
    else if (event.key === "End") this.step(event, all - 1);
    else if (event.key === " " && all && this.selection) this.selection.toggle(this.active);
    else if ((event.key === "Enter" || event.key === " ") && all) this.opened(this.active);
    else if (!this.selection || !this.select(event)) return;
    event.preventDefault();
    event.stopPropagation();
  }

  step(event, place) {
    if (event.shiftKey) this.selection?.begin(this.active);
    this.go(place);
    if (event.shiftKey) this.selection?.extend(this.active);
  }

  /** Keys of the selection. Returns whether the key was one. */
  select(event) {
    if (event.key === "a" && (event.ctrlKey || event.metaKey)) this.selection.all();
    else if (event.key === "Delete" || event.key === "Backspace") this.selection.remove();
    else if (event.key === "Escape" && this.selection.count > 0) this.selection.clear();
    else return false;
    return true;
  }

  click(event) {
    const tile = event.target.closest(".sc-tile");
    if (!tile) return;
    const place = Number(tile.dataset.place);
    if (event.shiftKey) this.selection?.begin(this.active);
    this.active = place;
    this.element.focus({ preventScroll: true });
    this.point();
    if (this.selection && event.shiftKey) this.selection.extend(place);
    else if (this.selection && (event.ctrlKey || event.metaKey || event.target.closest(".sc-tile-check"))) this.selection.toggle(place);
    else this.opened(place);
  }

  hover(event) {
    const tile = event.target.closest(".sc-tile");
    if (tile) this.looked(Number(tile.dataset.place));
  }
}
