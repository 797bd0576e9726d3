// Line charts as SVG, sharp at any zoom and colored by the style sheet, with values shown at the pointer or arrow keys.

import { h } from "./dom.js";
import { linearTicks, logTicks, shortNumber, tickLabels } from "./ticks.js";

const SVG = "http://www.w3.org/2000/svg";
const CHARACTER = 6.4; // width in pixels on an axis
const MIN_MARGIN = 42; // so that charts above each other line up

function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/**
 * chart.show({series: [{name, label, color, points: [[x, y]], look: "" | "faint" | "dashed", dots, quiet}], log, format})
 * `label` of a series is its name for screen readers; a quiet line is drawn but not read out. The `label` of the chart is
 * its accessible name; `read(step)` returns the heading of the tooltip.
 */
export class LineChart {
  constructor({ label, height = 220, compact = false, read = String } = {}) {
    this.compact = compact;
    this.read = read;
    this.shown = { series: [], log: false, format: shortNumber };
    this.svg = s("svg", { "aria-hidden": "true" });
    this.tip = h("div", { class: "sc-chart-tip", hidden: true });
    this.announcement = h("div", { class: "sc-unseen", "aria-live": "polite" });
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
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  show(shown) {
    this.shown = { format: shortNumber, log: false, ...shown };
    this.draw();
  }

  destroy() {
    this.observer.disconnect();
  }

  draw() {
    const [width, height] = [this.element.clientWidth, this.element.clientHeight];
    if (width < 40 || height < 30) return;
    this.frame = this.#frame(width, height);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...this.#axes(), ...this.#lines(), (this.cursor = s("g")));
    if (this.at !== undefined) this.#mark(this.at);
  }

  #frame(width, height) {
    const usable = this.shown.series.map((each) => (this.shown.log ? each.points.filter(([, y]) => y > 0) : each.points));
    const all = usable.flat();
    const [xs, ys] = [all.map(([x]) => x), all.map(([, y]) => y)];
    const span = (values, low, high) => (values.length ? [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))] : [low, high]);
    let [left, right] = span(xs, 0, 1);
    let [low, high] = span(ys, 0, 1);
    if (left === right) [left, right] = [left - 1, right + 1];
    const log = this.shown.log && low > 0;
    if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
    const room = log ? (high / low) ** 0.05 : (high - low) * 0.05;
    [low, high] = log ? [low / room, high * room] : [low >= 0 && low < (high - low) * 0.3 ? 0 : low - room, high + room];
    const count = Math.max(2, Math.round(height / 52));
    const rows = log ? logTicks(low, high, count) : linearTicks(low, high, count);
    const labels = tickLabels(rows, this.shown.format);
    const margin = Math.max(MIN_MARGIN, Math.max(...labels.map((text) => text.length)) * CHARACTER + 10);
    const box = { left: margin, right: width - 8, top: 8, bottom: height - (this.compact ? 18 : 22) };
    const x = (value) => box.left + ((value - left) / (right - left)) * (box.right - box.left);
    const place = log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
    const y = (value) => box.bottom - place(value) * (box.bottom - box.top);
    const columns = linearTicks(left, right, Math.max(2, Math.round((box.right - box.left) / 90))).filter(Number.isInteger);
    return { box, x, y, rows, labels, columns, left, right, log, usable, width };
  }

  #axes() {
    const { box, x, y, rows, labels, columns } = this.frame;
    const found = rows.map((value) => s("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
    found.push(s("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    rows.forEach((value, row) => found.push(s("text", { x: box.left - 6, y: y(value) + 3.5, "text-anchor": "end" }, labels[row])));
    for (const value of columns) {
      const place = x(value);
      found.push(s("line", { class: "base", x1: place, x2: place, y1: box.bottom, y2: box.bottom + 3 }));
      const anchor = place > box.right - 16 ? "end" : place < box.left + 8 ? "start" : "middle";
      found.push(s("text", { x: place, y: box.bottom + 15, "text-anchor": anchor }, shortNumber(value, 6)));
    }
    return found;
  }

  #lines() {
    const { x, y, usable } = this.frame;
    return this.shown.series.flatMap((each, number) => {
      const points = usable[number];
      const style = `--sc-series: ${each.color}`;
      const d = points.map(([step, value], place) => `${place ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      const line = s("path", { class: `series ${each.look ?? ""}`, style, d });
      const dots = each.dots && points.length <= 60 ? points : points.length === 1 ? points : [];
      const marks = dots.map(([step, value]) => s("circle", { class: "dot", style, r: 2.6, cx: x(step), cy: y(value) }));
      return [line, ...marks];
    });
  }

  #point(event) {
    if (!this.frame) return;
    const box = this.element.getBoundingClientRect();
    // The widget of a node is scaled with the canvas.
    const place = ((event.clientX - box.left) / box.width) * this.element.clientWidth;
    const { left, right, box: inner } = this.frame;
    const share = (place - inner.left) / (inner.right - inner.left);
    this.#mark(left + Math.max(0, Math.min(1, share)) * (right - left));
  }

  #key(event) {
    if (!this.frame) return;
    const steps = [...new Set(this.shown.series.flatMap((each) => each.points.map(([x]) => x)))].sort((a, b) => a - b);
    if (event.key === "Escape" && this.at !== undefined) {
      event.stopPropagation();
      return this.#leave();
    }
    const jump = event.shiftKey ? Math.max(1, Math.round(steps.length / 20)) : 1;
    const here = this.at === undefined ? steps.length : nearest(steps, this.at);
    const to = { ArrowLeft: here - jump, ArrowRight: here + jump, Home: 0, End: steps.length - 1 }[event.key];
    if (to === undefined || !steps.length) return;
    event.preventDefault();
    event.stopPropagation();
    this.#mark(steps[Math.max(0, Math.min(steps.length - 1, to))]);
    this.announcement.textContent = this.summary;
  }

  #mark(at) {
    this.at = at;
    const { x, y, box, usable, left, right, width } = this.frame;
    const near = this.shown.series.map((each, number) => usable[number][nearest(usable[number], at, ([x]) => x)]).map((point) => (point && Math.abs(point[0] - at) <= Math.max((right - left) / 8, 1) ? point : undefined));
    const step = near.find((point) => point)?.[0];
    if (step === undefined) return this.#leave();
    const marks = near.map((point, number) => point && s("circle", { class: "dot", r: 3.4, cx: x(point[0]), cy: y(point[1]), style: `--sc-series: ${this.shown.series[number].color}` }));
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
