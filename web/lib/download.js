// Files that the browser saves.

import { h } from "./dom.js";

/** Saves a Blob under a name. */
export function saveFile(blob, name) {
  const link = URL.createObjectURL(blob);
  h("a", { href: link, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(link), 10000); // the browser reads it after this returns
}

/** A link that downloads a file of the server, and looks like a button. */
export function downloadLink(href, name, ...face) {
  return h("a", { class: "sc-button", href, download: name }, ...face);
}
