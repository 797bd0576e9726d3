// Style sheets of the pack's pages. Each is loaded once, on first use.

const loaded = new Map();

/** useStyle("style") loads web/lib/style.css; the promise resolves when it is loaded. */
export function useStyle(name = "style") {
  if (!loaded.has(name)) loaded.set(name, load(new URL(`./${name}.css`, import.meta.url).href));
  return loaded.get(name);
}

function load(href) {
  return new Promise((resolve) => {
    const link = document.createElement("link");
    Object.assign(link, { rel: "stylesheet", href, onload: resolve, onerror: resolve });
    document.head.append(link);
  });
}
