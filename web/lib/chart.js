// Line charts as SVG, sharp at any zoom and colored by the style sheet, with values shown at the pointer or arrow keys, and
// zoomed by dragging, the wheel, or + and -.

import { COUNTS, makeScale } from "./chart_scale.js";
import { h } from "./dom.js";
import { shortNumber } from "./ticks.js";

const SVG = "http://www.w3.org/2000/svg";
const DRAG = 6; // pixels: less is a click
const PAUSE = 250; // milliseconds: wheel events with less between them are one gesture
const MOST_DOTS = 60; // on a line
const APART = 7; // pixels between two marks of outliers

let charts = 0;
const gesture = { began: null, at: 0 }; // the chart that the wheel began to turn on: turning it must not stop a scroll half way

document.addEventListener(
  "wheel",
  ({ target, timeStamp }) => {
    if (timeStamp - gesture.at > PAUSE) gesture.began = target.closest?.(".sc-chart");
    gesture.at = timeStamp;
  },
  { capture: true, passive: true },
);

function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/**
 * chart.show({series: [{name, label, color, points: [[x, y]], look, dots, quiet}], log, clip, format, axis})
 * `look` of a series is "" or some of "faint", "many", "dashed", "dash-1", "dash-2"; with `dots` its points are marked. `label` is
 * its name for screen readers; a quiet line is drawn but not read out. `clip`: outliers are marked at the edge; a series with a
 * `basis` has those of these points. `axis` is that of the values x: see `COUNTS`. The `label` of the chart is its accessible name; `read(x)` returns the heading of the tooltip. With
 * `zoomed`, the chart can be zoomed, and calls it with the interval that it shows, or null for everything.
 */
export class LineChart {
  constructor({ label, height = 220, compact = false, read = String, zoomed } = {}) {
    Object.assign(this, { compact, read, zoomed, range: null });
    this.shown = { series: [], log: false, clip: false, format: shortNumber };
    this.svg = s("svg", { "aria-hidden": "true" });
    this.tip = h("div", { class: "sc-chart-tip", hidden: true });
    this.announcement = h("div", { class: "sc-unseen", "aria-live": "polite" });
    this.clipping = `sc-clip-${++charts}`;
    this.element = h(
      "div",
      {
        class: `sc-chart ${compact ? "compact" : ""}`,
        style: { height: `${height}px` },
        tabIndex: 0,
        role: "application",
        "aria-roledescription": "chart",
        "aria-label": label,
        onpointermove: (event) => this.#point(event),
        onpointerleave: () => this.#leave(),
        onblur: () => this.#leave(),
        onkeydown: (event) => this.#key(event),
      },
      this.svg,
      this.tip,
      this.announcement,
    );
    if (zoomed) this.#listen();
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  show(shown) {
    this.shown = { format: shortNumber, log: false, clip: false, axis: COUNTS, ...shown };
    this.draw();
  }

  /** Shows an interval of the horizontal axis, or everything: null. */
  zoom(range) {
    this.range = range;
    this.draw();
  }

  destroy() {
    this.observer.disconnect();
  }

  draw() {
    const [width, height] = [this.element.clientWidth, this.element.clientHeight];
    if (width < 40 || height < 30) return;
    // The colors of series depend on the background. Themes have no sign of their own that all front ends share.
    this.element.closest(".sc")?.classList.toggle("sc-dark", isBright(getComputedStyle(this.element).color));
    this.frame = makeScale(this.shown, this.range, { width, height, compact: this.compact });
    const { box } = this.frame;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const area = s("clipPath", { id: this.clipping }, s("rect", { x: box.left, y: 0, width: Math.max(box.right - box.left + 5, 0), height: box.bottom + 3 }));
    const lines = s("g", { "clip-path": `url(#${this.clipping})` }, ...this.#lines());
    this.svg.replaceChildren(area, ...this.#axes(), lines, ...this.#outliers(), (this.selection = s("g")), (this.cursor = s("g")));
    if (this.at !== undefined) this.#mark(this.at);
  }

  #axes() {
    const { box, x, y, rows, labels, columns } = this.frame;
    const found = rows.map((value) => s("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
    found.push(s("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    rows.forEach((value, row) => found.push(s("text", { class: "side", x: box.left - 6, y: y(value) + 3.5, "text-anchor": "end" }, labels[row])));
    for (const value of columns) {
      const place = x(value);
      found.push(s("line", { class: "base", x1: place, x2: place, y1: box.bottom, y2: box.bottom + 3 }));
      const anchor = place > box.right - 16 ? "end" : place < box.left + 8 ? "start" : "middle";
      found.push(s("text", { x: place, y: box.bottom + 15, "text-anchor": anchor }, (this.shown.axis ?? COUNTS).text(value)));
    }
    return found;
  }

  #lines() {
    const { x, y, drawn } = this.frame;
    return this.shown.series.flatMap((each, number) => {
      const points = drawn[number];
      const style = `--sc-series: ${each.color}`;
      const d = points.map(([step, value], place) => `${place ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      const line = s("path", { class: `series ${each.look ?? ""}`, style, d });
      if (each.dots) {
        const every = Math.ceil(points.length / MOST_DOTS);
        const corners = ([step, value]) => `M${x(step).toFixed(1)} ${(y(value) - 4.2).toFixed(1)}l4.2 4.2l-4.2 4.2l-4.2 -4.2z`;
        return [line, s("path", { class: "dot diamonds", style, d: points.filter((_, place) => place % every === 0 || place === points.length - 1).map(corners).join("") })];
      }
      return points.length === 1 ? [line, s("circle", { class: "dot", style, r: 2.6, cx: x(points[0][0]), cy: y(points[0][1]) })] : [line];
    });
  }

  /** Arrows at the edge for values that are beyond the scale. */
  #outliers() {
    const { box, x, drawn, least, most, left, right } = this.frame;
    return this.shown.series.flatMap((each, number) => {
      const last = { up: -Infinity, down: -Infinity };
      const arrows = drawn[number].flatMap(([step, value]) => {
        const way = value > most ? "up" : value < least ? "down" : "";
        if (!way || step < left || step > right || x(step) - last[way] < APART) return [];
        last[way] = x(step);
        return [way === "up" ? `M${x(step).toFixed(1)} ${box.top - 7}l4 7h-8z` : `M${x(step).toFixed(1)} ${box.bottom - 1}l4 -7h-8z`];
      });
      return arrows.length ? [s("path", { class: "outliers", style: `--sc-series: ${each.color}`, d: arrows.join("") })] : [];
    });
  }

  #listen() {
    const { element } = this;
    element.classList.add("zooms");
    element.addEventListener("pointerdown", (event) => this.#press(event));
    element.addEventListener("pointerup", (event) => this.#release(event));
    element.addEventListener("pointercancel", () => (this.pressed = undefined));
    element.addEventListener("dblclick", () => this.#show(null));
    element.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
  }

  /** The value of the horizontal axis below the pointer. */
  #under(event) {
    const box = this.element.getBoundingClientRect();
    // The widget of a node is scaled with the canvas.
    const place = ((event.clientX - box.left) / box.width) * this.element.clientWidth;
    const { left, right, box: inner } = this.frame;
    const share = (place - inner.left) / (inner.right - inner.left);
    return left + Math.max(0, Math.min(1, share)) * (right - left);
  }

  #press(event) {
    if (event.button !== 0 || !this.frame || event.pointerType === "touch") return;
    this.pressed = { at: this.#under(event), x: event.clientX };
    this.element.setPointerCapture(event.pointerId);
  }

  #release(event) {
    const { pressed } = this;
    this.pressed = undefined;
    this.selection?.replaceChildren();
    if (!pressed || Math.abs(event.clientX - pressed.x) < DRAG) return;
    this.#show([pressed.at, this.#under(event)].sort((a, b) => a - b));
  }

  #wheel(event) {
    if (!event.deltaY || !this.frame || gesture.began !== this.element) return;
    if (event.deltaY > 0 && !this.range) return; // everything is shown: the page scrolls
    event.preventDefault();
    event.stopPropagation();
    this.#magnify(1.002 ** Math.max(-300, Math.min(300, event.deltaY)), this.#under(event));
  }

  /** Shows `factor` times as much; `at` stays where it is. */
  #magnify(factor, at) {
    const { left, right } = this.frame;
    this.#show([at - (at - left) * factor, at + (right - at) * factor]);
  }

  /** Within the curves. */
  #show(range) {
    const [low, high] = this.frame.whole;
    if (range) range = [Math.max(low, range[0]), Math.min(high, range[1])];
    if (range && range[1] - range[0] < (high - low) * 1e-6) return;
    this.range = range && (range[0] > low || range[1] < high) ? range : null;
    this.draw();
    this.zoomed(this.range);
  }

  #point(event) {
    const place = `${event.clientX} ${event.clientY}`;
    if (!this.frame || place === this.pointer) return; // browsers also report a pointer that rests while the page changes
    this.pointer = place;
    if (!this.pressed || Math.abs(event.clientX - this.pressed.x) < DRAG) return this.#mark(this.#under(event));
    this.#leave();
    const { box, x } = this.frame;
    const [from, to] = [x(this.pressed.at), x(this.#under(event))].sort((a, b) => a - b);
    this.selection.replaceChildren(s("rect", { class: "selection", x: from, y: box.top, width: to - from, height: box.bottom - box.top }));
  }

  #key(event) {
    if (!this.frame || event.ctrlKey || event.metaKey || event.altKey) return;
    if (this.zoomed && this.#zoomKey(event.key)) return taken(event);
    if (event.key === "Escape" && this.at !== undefined) {
      event.stopPropagation();
      return this.#leave();
    }
    const steps = [...new Set(this.shown.series.flatMap((each) => each.points.map(([x]) => x)))].sort((a, b) => a - b);
    const jump = event.shiftKey ? Math.max(1, Math.round(steps.length / 20)) : 1;
    const here = this.at === undefined ? steps.length : nearest(steps, this.at);
    const to = { ArrowLeft: here - jump, ArrowRight: here + jump, Home: 0, End: steps.length - 1 }[event.key];
    if (to === undefined || !steps.length) return;
    taken(event);
    this.#bring(steps[Math.max(0, Math.min(steps.length - 1, to))]);
    this.announcement.textContent = this.summary;
  }

  #zoomKey(key) {
    const { left, right } = this.frame;
    const at = this.at ?? (left + right) / 2;
    if (key === "+" || key === "=") this.#magnify(0.5, at);
    else if (key === "-") this.#magnify(2, at);
    else if (key === "0") this.#show(null);
    else return false;
    return true;
  }

  /** Marks a place; one that is not shown is moved into view. */
  #bring(at) {
    const { left, right } = this.frame;
    if (this.range && (at < left || at > right)) {
      const move = at < left ? at - left : at - right;
      this.#show([left + move, right + move]);
    }
    this.#mark(at);
  }

  #mark(at) {
    this.at = at;
    const { x, y, box, usable, left, right, width } = this.frame;
    const near = this.shown.series.map((each, number) => usable[number][nearest(usable[number], at, ([x]) => x)]).map((point) => (point && Math.abs(point[0] - at) <= Math.max((right - left) / 8, this.shown.axis?.whole === false ? 0 : 1) ? point : undefined));
    const step = near.find((point) => point)?.[0];
    if (step === undefined) return this.#leave();
    const inside = (value) => Math.max(box.top, Math.min(box.bottom, y(value)));
    const shown = (point) => point && point[0] >= left && point[0] <= right;
    const marks = near.map((point, number) => shown(point) && s("circle", { class: "dot", r: 3.4, cx: x(point[0]), cy: inside(point[1]), style: `--sc-series: ${this.shown.series[number].color}` }));
    this.cursor.replaceChildren(s("line", { class: "cursor", x1: x(step), x2: x(step), y1: box.top, y2: box.bottom }), ...marks.filter(Boolean));
    const read = this.shown.series.map((each, number) => [each, near[number]]).filter(([each, point]) => point && !each.quiet);
    this.tip.replaceChildren(h("div", { class: "head" }, this.read(step)), ...read.map(([each, point]) => this.#row(each, point)));
    const value = ([each, point]) => `${each.label ?? each.name}: ${this.shown.format(point[1], 4)}`;
    this.summary = [this.read(step), ...read.map(value)].join(", ");
    this.tip.hidden = false;
    const onLeft = x(step) > width / 2;
    this.tip.style.left = onLeft ? "" : `${x(step) + 10}px`;
    this.tip.style.right = onLeft ? `${width - x(step) + 10}px` : "";
  }

  #row(series, [, value]) {
    const swatch = h("span", { class: `sc-swatch ${series.look ?? ""}`, style: { "--sc-series": series.color } });
    return h("div", {}, swatch, h("span", { class: "sc-clip" }, series.name), h("b", {}, this.shown.format(value, 4)));
  }

  #leave() {
    this.at = undefined;
    this.tip.hidden = true;
    this.cursor?.replaceChildren();
  }
}

/** Whether a color such as rgb(250, 250, 250), that of texts, is bright. */
function isBright(color) {
  const parts = color.match(/[\d.]+/g).slice(0, 3).map(Number);
  return parts.reduce((sum, part) => sum + part) > (color.startsWith("rgb") ? 3 * 128 : 1.5);
}

function taken(event) {
  event.preventDefault();
  event.stopPropagation();
}

/** The index of the nearest value in an ascending list; -1 if it is empty. */
function nearest(row, value, of = (each) => each) {
  let [low, high] = [0, row.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (of(row[middle]) < value) low = middle;
    else high = middle;
  }
  return high < 0 || value - of(row[low]) > of(row[high]) - value ? high : low;
}
