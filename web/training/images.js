// Sample images of a run: the latest, those of any earlier step, and a large view that compares steps.

import { show as showWindow } from "../lib/dialog.js";
import { fill, h, iconButton } from "../lib/dom.js";
import { address } from "../lib/server.js";
import { useStyle } from "../lib/style.js";
import { number } from "../lib/units.js";
import { words } from "../lib/words.js";

// An overwritten run reuses the names of its files; the modification time distinguishes them.
const source = (run, { file, mtime }) => address("/run/sample", { name: run, file, mtime });
// Runs of earlier versions did not store their prompts.
const captionOf = (sample, prompts) => prompts[sample.prompt] || words("training.prompt", { number: sample.prompt + 1 });
const called = (sample, prompts) => words(prompts[sample.prompt] ? "training.sample_of" : "training.sample_image", { step: number(sample.step), prompt: prompts[sample.prompt] || sample.prompt + 1 });

/** Step → its sample images. */
export function bySteps(samples) {
  const steps = new Map();
  for (const sample of samples) steps.set(sample.step, [...(steps.get(sample.step) ?? []), sample]);
  return steps;
}

/** Changes when any of the images does. */
export function keyOf(run, samples) {
  return [run, ...samples.map(({ file, mtime }) => `${file}@${mtime ?? ""}`)].join("/");
}

export class SampleImages {
  constructor() {
    this.slider = h("input", { type: "range", min: 0, step: 1, "aria-label": words("training.step"), oninput: () => this.#choose() });
    this.where = h("span", { class: "sc-soft sc-small sc-number" });
    this.row = h("div", { class: "sc-pictures" });
    const head = h("div", { class: "sc-row" }, h("h3", {}, words("training.samples")), this.where, h("span", { class: "sc-grow" }), this.slider);
    this.element = h("section", { class: "sc-stack", "aria-label": words("training.samples") }, head, this.row);
    this.key = "";
  }

  /** Stays at the chosen step; if that is the latest one, it follows the run. */
  show(run, { samples = [], prompts = [] } = {}, several = false) {
    this.element.hidden = samples.length === 0;
    const steps = bySteps(samples);
    const names = [...steps.keys()];
    const latest = run !== this.run || this.chosen === undefined || Number(this.slider.value) === Number(this.slider.max);
    Object.assign(this, { run, steps, names, several, prompts });
    this.slider.max = Math.max(names.length - 1, 0);
    this.slider.hidden = names.length < 2;
    this.slider.value = latest ? this.slider.max : Math.max(names.indexOf(this.chosen), 0);
    this.#choose();
  }

  #choose() {
    this.chosen = this.names[Number(this.slider.value)];
    if (this.chosen === undefined) return;
    const label = words("training.at_step", { step: number(this.chosen) });
    this.slider.setAttribute("aria-valuetext", label);
    this.where.textContent = this.several ? `${this.run} · ${label}` : label;
    const shown = this.steps.get(this.chosen);
    const key = `${keyOf(this.run, shown)}/${this.prompts.join("/")}`;
    if (key === this.key) return;
    this.key = key;
    const open = (sample) => enlarge(this.run, [...this.steps.values()].flat(), sample, this.prompts);
    fill(this.row, shown.map((sample) => this.#figure(sample, open)));
  }

  /** An image with its caption below it, cut after a few lines. */
  #figure(sample, open) {
    const caption = captionOf(sample, this.prompts);
    const image = thumbnail(this.run, sample, this.prompts, () => open(sample));
    return h("figure", {}, image, h("figcaption", { class: "sc-small sc-soft", title: caption }, caption));
  }
}

export function thumbnail(run, sample, prompts, onclick) {
  const image = h("img", { src: source(run, sample), alt: called(sample, prompts), loading: "lazy", draggable: false });
  return h("button", { type: "button", class: "sc-picture", title: words("training.enlarge"), onclick }, image);
}

/** One prompt over the steps: a large image, optionally next to the one of the first step. Arrow keys move. */
export async function enlarge(run, samples, sample, prompts = []) {
  await useStyle("../training/training");
  const same = samples.filter((each) => each.prompt === sample.prompt);
  const state = { now: same.findIndex((each) => each.file === sample.file), before: 0, both: false };
  const one = (place) => h("figure", {}, h("img", { src: source(run, same[place]), alt: called(same[place], prompts) }), h("figcaption", { class: "sc-number" }, words("training.at_step", { step: number(same[place].step) })));
  const stage = h("div", { class: "sc-compare-stage" });
  const strip = h("div", { class: "sc-pictures strip", role: "group", "aria-label": words("training.steps") });
  const dialog = h("dialog", { class: "sc sc-dialog wide sc-large", "aria-label": words("training.samples") });
  const both = h("input", { type: "checkbox", onchange: () => show({ both: both.checked }) });

  function show(change) {
    Object.assign(state, change);
    state.now = Math.max(0, Math.min(same.length - 1, state.now));
    fill(stage, state.both ? [one(state.before), one(state.now)] : one(state.now));
    [...strip.children].forEach((each, place) => each.setAttribute("aria-pressed", String(place === state.now)));
    strip.children[state.now]?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  fill(strip, same.map((each, place) => thumbnail(run, each, prompts, () => show({ now: place }))));
  const close = iconButton("times", words("training.close"), () => dialog.close());
  const compare = h("label", { class: "sc-row sc-small" }, both, words("training.compare_first", { step: number(same[0].step) }));
  const head = h("div", { class: "sc-row" }, h("h2", { class: "sc-clip sc-grow", title: captionOf(sample, prompts) }, `${run} · ${captionOf(sample, prompts)}`), same.length > 1 && compare, close);
  dialog.append(h("form", { method: "dialog", onsubmit: (event) => event.preventDefault() }, head, stage, same.length > 1 && strip));
  dialog.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: state.now - 1, ArrowRight: state.now + 1, Home: 0, End: same.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      show({ now: to });
    }
  });
  showWindow(dialog);
  show({});
}

