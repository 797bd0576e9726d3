// Elements of the page, made by code. Whatever is given as a child becomes text, never markup.

/** h("button", {class: "x", onclick, "aria-label": "…", dataset: {…}, style: {…}}, "text", element, …) */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) set(element, name, value);
  element.append(...present(children));
  return element;
}

/** Lists among children are children, too; what is null or false is left out. */
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

/** A sign of the host's icon font. It says nothing to a screen reader: the control that bears it has a label. */
export function icon(name) {
  return h("i", { class: `pi pi-${name} sc-icon`, "aria-hidden": "true" });
}

/** A button with words, a sign, or both. `look`: "primary" | "danger" | "plain" | "" (a quiet frame). */
export function button(label, onclick, { sign, look = "", title, ...props } = {}) {
  const face = [sign && icon(sign), label && h("span", {}, label)];
  return h("button", { type: "button", class: `sc-button ${look}`, onclick, title, ...props }, ...face);
}

/** A button that is only a sign; its label is its tooltip, too. */
export function iconButton(sign, label, onclick, props = {}) {
  return h(
    "button",
    { type: "button", class: "sc-button plain sc-sign", title: label, "aria-label": label, onclick, ...props },
    icon(sign),
  );
}

/** Puts new children in the place of all others. */
export function fill(element, ...children) {
  element.replaceChildren(...present(children));
  return element;
}

/** Arrow keys, Home and End move the focus among the elements that a selector finds; Tab leaves them. */
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

/** Calls a function once things have been quiet for a while. */
export function debounce(call, milliseconds) {
  let timer;
  const later = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), milliseconds);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}
