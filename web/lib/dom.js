// Helpers that create elements. Children become text, never markup.

/** h("button", {class: "x", onclick, "aria-label": "…", dataset: {…}, style: {…}}, "text", element, …) */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) set(element, name, value);
  element.append(...present(children));
  return element;
}

/** Flattens lists and drops null and false. */
function present(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "class") element.className = value;
  else if (name === "dataset") Object.assign(element.dataset, value);
  else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
  else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name in element && !name.startsWith("aria-") && name !== "list") element[name] = value;
  else element.setAttribute(name, value === true ? "" : value);
}

/** An icon of ComfyUI's icon font. Hidden from screen readers: its control has a label. */
export function icon(name) {
  return h("i", { class: `pi pi-${name} sc-icon`, "aria-hidden": "true" });
}

/** A button with text, an icon, or both. `look`: "primary" | "danger" | "plain" | "" (a plain frame). */
export function button(label, onclick, { sign, look = "", title, ...props } = {}) {
  const face = [sign && icon(sign), label && h("span", {}, label)];
  return h("button", { type: "button", class: `sc-button ${look}`, onclick, title, ...props }, ...face);
}

/** A button with only an icon; its label is also its tooltip. */
export function iconButton(sign, label, onclick, props = {}) {
  return h(
    "button",
    { type: "button", class: "sc-button plain sc-sign", title: label, "aria-label": label, onclick, ...props },
    icon(sign),
  );
}

/** Replaces all children. */
export function fill(element, ...children) {
  element.replaceChildren(...present(children));
  return element;
}

/** Arrow keys, Home and End move the focus among the elements of a selector; Tab leaves them. */
export function roving(container, selector) {
  const items = () => [...container.querySelectorAll(selector)];
  const settle = (chosen) => {
    for (const item of items()) item.tabIndex = item === chosen ? 0 : -1;
  };
  container.addEventListener("focusin", (event) => {
    const item = event.target.closest?.(selector);
    if (item) settle(item);
  });
  container.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.indexOf(event.target.closest?.(selector));
    const last = all.length - 1;
    const [before, after] = [at - 1, at + 1];
    const steps = { ArrowDown: after, ArrowRight: after, ArrowUp: before, ArrowLeft: before, Home: 0, End: last };
    const to = steps[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    all[Math.max(0, Math.min(last, to))].focus();
  });
  return { settle: () => settle(items().find((item) => item.tabIndex === 0) ?? items()[0]) };
}

/** Calls a function after a pause without further calls. */
export function debounce(call, milliseconds) {
  let timer;
  const later = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), milliseconds);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}
