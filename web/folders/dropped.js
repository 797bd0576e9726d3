// Files that were dropped or chosen: their paths, what they are, and which are left out.

import { words } from "../lib/words.js";

const IMAGE = /^(png|jpe?g|jfif|webp|avif|bmp|tiff?|gif)$/;
const CAPTION = /^(txt|caption|json)$/;
const DEBRIS = /^(\..*|thumbs\.db|desktop\.ini|__macosx|@eadir)$/i;
const FORBIDDEN = /[\u0000-\u001f\u007f<>:"|?*\\]|^[ .]|[ .]$/u;
const REPEATS = /^[0-9]+_./; // the name of such a folder says how often its images are repeated
const MAX_NAME = 200; // bytes

export const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

/**
 * What a drop contains: {name, files: [{file, path}], zips, left: [{place, words}]}. Call it in the event itself: afterwards the
 * browser hides the files.
 */
export function readDrop(event) {
  const items = [...(event.dataTransfer?.items ?? [])].filter((item) => item.kind === "file");
  const found = items.map((item) => ({ entry: item.webkitGetAsEntry?.(), file: item.getAsFile() }));
  return readEntries(found);
}

async function readEntries(found) {
  const files = [];
  for (const { entry, file } of found) {
    if (entry) await walk(entry, "", files);
    else if (file) files.push({ file, path: file.name });
  }
  return sort(files);
}

/** The same for an <input type="file">. */
export function readChosen(list) {
  return sort([...list].map((file) => ({ file, path: file.webkitRelativePath || file.name })));
}

async function walk(entry, above, files) {
  if (DEBRIS.test(entry.name)) return;
  const path = above + entry.name;
  if (entry.isFile) files.push({ file: await new Promise((done, fail) => entry.file(done, fail)), path });
  if (!entry.isDirectory) return;
  const reader = entry.createReader();
  // A browser hands out a folder in portions.
  for (let portion; (portion = await new Promise((done, fail) => reader.readEntries(done, fail))).length; ) {
    for (const each of portion) await walk(each, `${path}/`, files);
  }
}

function sort(all) {
  const given = { name: "", files: [], zips: [], left: [], images: 0, captions: 0, bytes: 0 };
  const shown = all.filter(({ path }) => !path.split("/").some((part) => DEBRIS.test(part)));
  const { name, files } = withoutTop(shown);
  given.name = name;
  for (const each of files) place(given, each);
  given.name ||= given.zips.length === 1 && !given.files.length ? given.zips[0].name.replace(/\.zip$/i, "") : "";
  given.bytes = [...given.files.map(({ file }) => file), ...given.zips].reduce((sum, file) => sum + file.size, 0);
  return given;
}

function place(given, { file, path }) {
  const kind = kindOf(path);
  const reason = kind === "" ? "kind" : path.split("/").some(isBadName) ? "name" : "";
  if (reason) given.left.push({ place: path, words: words(`folders.reason_${reason}`) });
  else if (kind === "zip") given.zips.push(file);
  else {
    given.files.push({ file, path });
    if (kind === "image") given.images += 1;
    if (kind === "caption") given.captions += 1;
  }
}

function kindOf(path) {
  const base = path.split("/").at(-1);
  const ending = base.includes(".") ? base.split(".").at(-1).toLowerCase() : "";
  if (["metadata.jsonl", "streamcache.json"].includes(base)) return "metadata";
  if (ending === "zip") return path.includes("/") ? "" : "zip";
  return IMAGE.test(ending) ? "image" : CAPTION.test(ending) ? "caption" : "";
}

const isBadName = (part) => FORBIDDEN.test(part) || new TextEncoder().encode(part).length > MAX_NAME;

/** Without the folder that all files are in: it gives the new folder its name. */
function withoutTop(files) {
  const tops = new Set(files.map(({ path }) => (path.includes("/") ? path.split("/")[0] : "")));
  const [top] = tops;
  if (tops.size !== 1 || !top) return { name: "", files };
  if (REPEATS.test(top)) return { name: top.replace(/^[0-9]+_/, ""), files };
  return { name: top, files: files.map(({ file, path }) => ({ file, path: path.slice(top.length + 1) })) };
}
