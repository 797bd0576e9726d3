// The dialog that cleans a cache: shows what can be removed, then removes exactly that.

import { ask } from "../lib/dialog.js";
import { h } from "../lib/dom.js";
import { get, post } from "../lib/server.js";
import { bytes } from "../lib/units.js";
import { hasWords, words } from "../lib/words.js";

export async function openClean(panel, row) {
  const { name } = row;
  const preview = await panel.attempt(() => get("/cache/clean", { name }));
  if (!preview) return;
  const useful = preview.removals.filter((each) => each.count > 0 || each.bytes > 0);
  const kept = preview.removals.filter((each) => each.kept || each.held_by?.length);
  if (useful.length === 0) {
    panel.report("good", [words("clean.nothing", { name }), ...kept.map(reason)].join(" "));
    return;
  }
  const done = await ask({ title: words("clean.title", { name }), ...question(name, preview, useful) });
  if (!done) return;
  panel.report("good", words("clean.done", { name, size: bytes(done.bytes) }));
  await panel.refresh();
}

function question(name, preview, useful) {
  // Unused entries save encoding if their files come back, so they are not ticked.
  const wanted = (each) => !held(each) && !["unused", "missing"].includes(each.category);
  const tick = (each) =>
    h("input", { type: "checkbox", name: each.category, checked: wanted(each), disabled: held(each) });
  const boxes = useful.map((each) => ({ each, box: tick(each) }));
  const sum = h("strong", { class: "sc-number", role: "status" });
  const chosen = () => boxes.filter(({ box }) => box.checked).map(({ each }) => each);
  let enable = () => {};
  const count = () => {
    sum.textContent = words("clean.sum", { size: bytes(chosen().reduce((total, each) => total + each.bytes, 0)) });
    enable(chosen().length > 0);
  };
  const content = h(
    "div",
    { class: "sc-stack", onchange: count },
    h("p", { class: "sc-soft" }, words("clean.text")),
    boxes.map(({ each, box }) => removal(each, box)),
    sum,
  );
  return {
    content,
    action: words("clean.action"),
    look: "primary danger",
    ready: (set) => {
      enable = set;
      count();
    },
    act: () => post("/cache/clean", { name, plan: preview.plan, categories: chosen().map((each) => each.category) }),
  };
}

function removal(each, box) {
  const key = `clean.${each.category}`;
  const files = each.files ?? [];
  const text = hasWords(key) ? words(key, { count: each.count }) : `${each.words}: ${each.count}`;
  return h(
    "div",
    { class: "sc-removal" },
    h(
      "label",
      { class: "sc-row" },
      box,
      h("span", { class: "sc-grow" }, text),
      h("span", { class: "sc-number" }, bytes(each.bytes)),
    ),
    ["unused", "missing"].includes(each.category) && h("p", { class: "sc-small sc-soft" }, words("clean.unused_why")),
    (each.kept || held(each)) && h("p", { class: "sc-small sc-soft" }, reason(each)),
    files.length > 0 &&
      h(
        "details",
        { class: "sc-small" },
        h("summary", {}, words("clean.files", { count: each.file_count })),
        h("ul", { class: "sc-files" }, files.map((file) => h("li", {}, file))),
      ),
  );
}

function held(each) {
  return Boolean(each.held_by?.length);
}

function reason(each) {
  const by = each.held_by?.join(", ");
  return [each.kept, by && words("clean.held", { by })].filter(Boolean).join(" ");
}
