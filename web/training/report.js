// The report page of a run, in a dialog. Its folder may come from elsewhere, so the page is shown in a sandboxed frame:
// it can run no scripts and has no access to ComfyUI.

import { show } from "../lib/dialog.js";
import { h, iconButton } from "../lib/dom.js";
import { getText } from "../lib/server.js";
import { words } from "../lib/words.js";

export async function openReport(run) {
  const frame = h("iframe", { class: "sc-report-frame", title: words("training.report"), sandbox: "", srcdoc: await getText("/run/report", { name: run }) });
  const close = iconButton("times", words("training.close"), () => dialog.close());
  const head = h("header", { class: "sc-head" }, h("h2", { class: "sc-clip" }, run), close);
  const dialog = h("dialog", { class: "sc sc-dialog wide sc-large", "aria-label": words("training.report") }, head, frame);
  show(dialog);
}
