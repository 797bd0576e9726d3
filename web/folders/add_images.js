// Adding images: asks where they go, then starts the upload.

import { ask, notice, show } from "../lib/dialog.js";
import { button, fill, h } from "../lib/dom.js";
import { openMenu } from "../lib/menu.js";
import { get } from "../lib/server.js";
import { bytes } from "../lib/units.js";
import { words } from "../lib/words.js";
import { readChosen } from "./dropped.js";
import { setFolder } from "./folder_node.js";
import { begin } from "./upload.js";
import { start } from "./uploads.js";

const DATASETS = "input/datasets/";
const CHOICES = ["keep_both", "skip", "replace"];
const LISTED = 5;

/** The menu of "Add images": a browser chooses either files or one folder. */
export function chooseImages(anchor, { folder = "", failed } = {}) {
  const choose = (props) => {
    const field = h("input", { type: "file", multiple: true, ...props });
    field.addEventListener("change", () => addImages(readChosen(field.files), { folder }).catch(failed));
    field.click();
  };
  const accept = "image/*,.txt,.caption,.json,.jsonl,.zip,.avif,.tif,.tiff,.jfif";
  openMenu(anchor, [
    { label: words("folders.choose_files"), sign: "images", act: () => choose({ accept }) },
    { label: words("folders.choose_folder"), sign: "folder-open", act: () => choose({ webkitdirectory: true }) },
  ]);
}

/** `found` as of dropped.js, or a promise of it. With a node, its folder is set when the images are there. */
export async function addImages(found, { folder = "", node = null } = {}) {
  const given = await found;
  if (!given.files.length && !given.zips.length) return nothingToAdd(given);
  const { folders } = await get("/folders").catch(() => ({ folders: [] }));
  const known = folders.filter((row) => row.writable).map((row) => row.name);
  const asked = await askFolder(given, folder || proposed(given, node, known), known);
  if (!asked) return null;
  const job = await start(given, asked.begun, asked.ifExists);
  if (job && node) setFolder(node, job.name);
  return job;
}

function askFolder(given, value, known) {
  const names = h("datalist", { id: "sc-folder-names" }, known.map((name) => h("option", { value: short(name) })));
  const props = { type: "text", value: short(value), required: true, maxLength: 200, spellcheck: false, autocomplete: "off" };
  const field = h("input", { class: "sc-field", ...props, list: names.id });
  field.setAttribute("list", names.id);
  const choice = h(
    "select",
    { class: "sc-field" },
    CHOICES.map((each) => h("option", { value: each }, words(`folders.${each}`))),
  );
  const hint = h("span", { class: "sc-soft sc-small", "aria-live": "polite" });
  const clash = h("label", { class: "sc-stack" }, words("folders.if_exists"), choice);
  const draw = () => {
    const name = whole(field.value.trim());
    const exists = known.includes(name);
    hint.textContent = words(exists ? "folders.existing" : "folders.new", { name });
    clash.hidden = !exists && given.zips.length === 0;
  };
  field.addEventListener("input", draw);
  draw();
  const content = h(
    "div",
    { class: "sc-stack sc-adding" },
    h("p", {}, summary(given)),
    given.left.length > 0 && leftOut(given.left),
    h("label", { class: "sc-stack" }, words("folders.folder"), field, names, hint),
    clash,
  );
  const act = async () => ({ begun: await begin(field.value.trim(), given.bytes), ifExists: choice.value });
  const asked = ask({ title: words("folders.add"), content, action: words("folders.add_action"), act });
  field.focus();
  field.select();
  return asked;
}

/** "30 images · 30 captions · 2 zips · 12.5 MB" */
function summary(given) {
  const counts = { images: given.images, captions: given.captions, zips: given.zips.length };
  const parts = Object.entries(counts).filter(([, count]) => count > 0);
  return [...parts.map(([key, count]) => words(`folders.count_${key}`, { count })), bytes(given.bytes)].join(" · ");
}

function leftOut(left) {
  const names = left.slice(0, LISTED).map(({ place }) => place);
  if (left.length > LISTED) names.push("…");
  return notice("warn", `${words("folders.left_out", { count: left.length })} ${names.join(", ")}`);
}

function nothingToAdd(given) {
  const close = button(words("actions.close"), () => window_.close(), { look: "primary" });
  const window_ = h("dialog", { class: "sc sc-dialog", "aria-label": words("folders.add") });
  fill(
    window_,
    h("h2", {}, words("folders.add")),
    h("p", {}, words("folders.nothing")),
    given.left.length > 0 && leftOut(given.left),
    h("div", { class: "sc-actions" }, close),
  );
  show(window_);
  return null;
}

/** The name of what was dropped; for single files the folder of the node, if it has images. */
function proposed(given, node, known) {
  const current = node?.widgets?.find((each) => each.name === "folder")?.value;
  if (!given.name && known.includes(current)) return current;
  return plain(given.name) || words("folders.default_name");
}

/** As a name that every system allows. */
function plain(name) {
  return name.replace(/[\u0000-\u001f\u007f<>:"|?*\\/]/gu, "_").replace(/^[ .]+|[ .]+$/g, "").slice(0, 100);
}

const short = (name) => (name.startsWith(DATASETS) ? name.slice(DATASETS.length) : name);
const whole = (name) => (name.startsWith("input/") ? name : DATASETS + name);
