// Signs of work: an element that waits for the server is marked as busy. The style sheet draws it after a moment, so that quick
// answers do not flicker.

const waiting = new WeakMap(); // element → how many answers it waits for

/** Marks an element as busy until a promise is settled; returns the promise. */
export function busy(element, promise) {
  count(element, 1);
  const done = () => count(element, -1);
  promise.then(done, done);
  return promise;
}

function count(element, more) {
  const now = (waiting.get(element) ?? 0) + more;
  waiting.set(element, now);
  element.setAttribute("aria-busy", String(now > 0));
}
