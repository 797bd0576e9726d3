// The texts of the pack's pages in ComfyUI's language: locales/<language>/main.json, under "streamcache".

import { api } from "../../../scripts/api.js";
import { app } from "../../../scripts/app.js";

let languages = {};
let loading;

/** Call before anything is shown. If loading fails, keys are shown instead of texts. */
export function loadWords() {
  loading ??= read();
  return loading;
}

async function read() {
  try {
    const found = await (await api.fetchApi("/i18n")).json();
    languages = Object.fromEntries(Object.entries(found).map(([name, texts]) => [name, texts?.streamcache ?? {}]));
  } catch {
    languages = {};
  }
}

/** ComfyUI's language, as Intl takes it. */
export function locale() {
  return app.extensionManager?.setting?.get("Comfy.Locale") || "en";
}

/** words("caches.count_samples", {count: 3}): `%count%` in a text is replaced by the value, which also selects one
 * of the forms {one, other} if the text has them. Braces have a meaning in ComfyUI's own translations. */
export function words(key, values = {}) {
  const text = choose(find(locale(), key) ?? find("en", key) ?? key, values.count);
  const shown = { ...values };
  if (typeof shown.count === "number") shown.count = shown.count.toLocaleString(locale());
  return text.replace(/%(\w+)%/g, (whole, name) => String(shown[name] ?? whole));
}

/** Whether the text exists in ComfyUI's language or in English. */
export function hasWords(key) {
  return (find(locale(), key) ?? find("en", key)) !== undefined;
}

function find(language, key) {
  const names = [language, language.split("-")[0]];
  for (const name of names) {
    const found = key.split(".").reduce((texts, part) => texts?.[part], languages[name]);
    if (found !== undefined) return found;
  }
}

function choose(text, count) {
  if (typeof text === "string") return text;
  const rule = new Intl.PluralRules(locale()).select(count ?? 0);
  return text[rule] ?? text.other ?? "";
}
