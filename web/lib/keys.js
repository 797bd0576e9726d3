// Keys that are pressed in the pack's panels and belong to them, not to the nodes that are selected on the canvas.

const PLAIN = ["Delete", "Backspace", ".", "p", "h", "v"];
const WITH_CONTROL = ["a", "b", "c", "e", "g", "m", "v", "x", "y", "z"];
const WITH_ALT = ["c", "+", "-", "="];

/** Keeps keys that change nodes or the view of the canvas, and copying and pasting, inside an element. ComfyUI's other keys work. */
export function keepKeys(element) {
  element.addEventListener("keydown", (event) => {
    if (!isOfCanvas(event)) return;
    event.stopPropagation();
    if (["z", "y"].includes(event.key.toLowerCase())) hide(event);
  });
  for (const kind of ["copy", "cut", "paste"]) element.addEventListener(kind, (event) => event.stopPropagation());
}

/** ComfyUI takes undo and redo before any element does, and looks at the event a moment later: it finds a plain letter. */
function hide(event) {
  for (const name of ["ctrlKey", "metaKey"]) Object.defineProperty(event, name, { value: false });
}

function isOfCanvas({ key, ctrlKey, metaKey, altKey }) {
  const name = key.length === 1 ? key.toLowerCase() : key;
  if (ctrlKey || metaKey) return WITH_CONTROL.includes(name);
  return (altKey ? WITH_ALT : PLAIN).includes(name);
}
