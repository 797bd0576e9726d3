// Names as users and other people chose them, which may be long: cut in the middle, because names of one family begin alike.

import { fill, h } from "./dom.js";

const END = 10; // characters that always stay

/** An element with a name. What does not fit is cut out of its middle; its tooltip and its text are the whole name. */
export function nameOf(name, { tag = "span", title = name, ...props } = {}) {
  return setName(h(tag, { ...props, title }), name, title);
}

/** Puts another name into such an element. */
export function setName(element, name, title = name) {
  if (element.dataset.whole === name) return element;
  const letters = [...name]; // an emoji is one
  const at = Math.max(0, letters.length - END);
  element.classList.add("sc-middle");
  element.title = title;
  // The style sheet draws the two parts; screen readers, search and copying use the whole name.
  Object.assign(element.dataset, { whole: name, start: letters.slice(0, at).join(""), end: letters.slice(at).join("") });
  return fill(element, h("span", {}, name));
}
