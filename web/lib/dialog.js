// Native dialogs, so that the focus stays inside and then returns to where it was.

import { busy } from "./busy.js";
import { button, fill, h, icon } from "./dom.js";
import { keepKeys } from "./keys.js";
import { words } from "./words.js";

let last = 0;

/** A sentence in a colored frame. `kind`: "bad" | "warn" | "good" | "". */
export function notice(kind, text, ...more) {
  const sign = { bad: "exclamation-circle", warn: "exclamation-triangle", good: "check-circle" }[kind] ?? "info-circle";
  const role = kind === "bad" ? "alert" : "status";
  return h("div", { class: `sc-notice ${kind}`, role }, icon(sign), h("div", { class: "sc-grow" }, text), ...more);
}

/**
 * Asks for confirmation. `act` runs when the main button is pressed; the dialog then closes, or shows the error. The
 * promise resolves to what `act` returned, or to null if the user canceled.
 */
export function ask({ title, content, action, act, look = "primary", wide = false, ready }) {
  const problem = h("div");
  const go = button(action, undefined, { look, type: "submit" });
  const no = button(words("actions.cancel"), () => window_.close());
  const id = `sc-dialog-${++last}`;
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id }, title),
    content,
    problem,
    h("div", { class: "sc-actions" }, no, go),
  );
  const window_ = h("dialog", { class: `sc sc-dialog ${wide ? "wide" : ""}`, "aria-labelledby": id }, form);
  ready?.((can) => (go.disabled = !can));
  return new Promise((resolve) => {
    let result = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      fill(problem);
      try {
        result = (await busy(form, Promise.resolve(act()))) ?? true;
        window_.close();
      } catch (error) {
        fill(problem, notice("bad", error.message));
        go.disabled = false;
      }
    });
    show(window_, () => resolve(result));
  });
}

/** Shows a dialog; it is closed by its close button, by Escape, or by a click outside. */
export function show(window_, closed = () => {}) {
  window_.addEventListener("close", () => {
    window_.remove();
    closed();
  });
  keepKeys(window_);
  window_.addEventListener("keydown", (event) => event.stopPropagation());
  window_.addEventListener("mousedown", (event) => event.target === window_ && window_.close());
  document.body.append(window_);
  window_.showModal();
}

/** Asks for a name; `act` gets it. */
export function askName({ title, text, label, value = "", action, act }) {
  const props = { type: "text", value, required: true, maxLength: 200, spellcheck: false };
  const field = h("input", { class: "sc-field", ...props });
  const content = h("label", { class: "sc-stack" }, text && h("span", { class: "sc-soft" }, text), label, field);
  const asked = ask({ title, content, action, act: () => act(field.value.trim()) });
  field.focus();
  field.select();
  return asked;
}
