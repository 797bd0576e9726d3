// The menu of a cache. Every change is reported, and can be undone or asks first.

import { askName } from "../lib/dialog.js";
import { openMenu } from "../lib/menu.js";
import { post } from "../lib/server.js";
import { words } from "../lib/words.js";
import { addLoadNode } from "./canvas.js";
import { openClean } from "./clean.js";
import { inUse } from "./facts.js";
import { askPush, remoteRoots } from "./remotes.js";
import { restoreCache } from "./trash.js";

export function cacheMenu(panel, row, anchor) {
  const { name } = row;
  const held = inUse(row);
  const title = held ? words("caches.held") : undefined;
  const entry = (key, sign, act, more = {}) => ({ label: words(`actions.${key}`), sign, act, ...more });
  openMenu(anchor, [
    entry("add", "plus-circle", () => addLoadNode(name), { disabled: row.problem }),
    null,
    entry("verify", "check-square", () => job(panel, "/cache/verify", { name })),
    entry("clean", "eraser", () => openClean(panel, row), { disabled: row.problem }),
    null,
    entry("rename", "pencil", () => rename(panel, name), { disabled: held, title }),
    entry("duplicate", "clone", () => copy(panel, name, "duplicate"), { disabled: row.problem }),
    entry("export", "file-export", () => copy(panel, name, "export"), { disabled: row.problem }),
    ...(remoteRoots().length ? [{ label: words("remotes.push_to"), sign: "cloud-upload", act: () => askPush(panel, name), disabled: row.problem }] : []),
    null,
    entry("delete", "trash", () => remove(panel, name), { danger: true, disabled: held, title }),
  ]);
}

async function rename(panel, name) {
  const renamed = await askName({
    title: words("rename.title", { name }),
    text: words("rename.text"),
    label: words("rename.label"),
    value: name,
    action: words("rename.action"),
    act: (to) => post("/cache/rename", { name, to }),
  });
  if (!renamed) return;
  if (panel.view.name === name) {
    panel.list = null; // it has only the old name, so the cache would seem to be missing
    panel.show("cache", renamed.name);
  }
  await panel.refresh();
  panel.report("good", words("rename.done", { name, to: renamed.name }));
}

function copy(panel, name, kind) {
  return askName({
    title: words(`${kind}.title`, { name }),
    text: words(`${kind}.text`),
    label: words("rename.label"),
    value: kind === "duplicate" ? `${name}_copy` : name,
    action: words(`${kind}.action`),
    act: async (to) => panel.jobs.update((await post(`/cache/${kind}`, { name, to })).job),
  });
}

function job(panel, path, body) {
  return panel.attempt(async () => panel.jobs.update((await post(path, body)).job));
}

/** Asks no question: the trash keeps the cache, and the notice has an Undo button. */
export async function remove(panel, name) {
  const removed = await panel.attempt(() => post("/cache/delete", { name }));
  if (!removed) return;
  if (panel.view.name === name) panel.show("list");
  const undo = () => panel.attempt(() => restoreCache(panel, removed.trash));
  panel.report("good", words("delete.done", { name }), { action: words("actions.undo"), act: undo });
  panel.notices.querySelector(".sc-undo")?.focus();
  await panel.refresh();
}
