// Captions that are not saved yet. They stay in this browser tab over a reload and while the server is away.

const PREFIX = "streamcache.caption:";

const key = (folder, name) => `${PREFIX}${folder}\n${name}`;

/** {text, before, stamp}: the text, and the caption that it was made from; undefined if there is none. */
export function readDraft(folder, name) {
  try {
    const found = JSON.parse(sessionStorage.getItem(key(folder, name)));
    return typeof found?.text === "string" ? found : undefined;
  } catch {
    return undefined;
  }
}

export function keepDraft(folder, name, draft) {
  try {
    sessionStorage.setItem(key(folder, name), JSON.stringify(draft));
  } catch {
    // The storage is full or switched off: the text is still in the field.
  }
}

export function dropDraft(folder, name) {
  sessionStorage.removeItem(key(folder, name));
}

/** The names of a folder's images that have one. */
export function listDrafts(folder) {
  const start = key(folder, "");
  const keys = Array.from({ length: sessionStorage.length }, (_, at) => sessionStorage.key(at));
  return keys.filter((each) => each?.startsWith(start)).map((each) => each.slice(start.length)).sort();
}
