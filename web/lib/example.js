// The example workflows that come with the pack.

import { api } from "../../../scripts/api.js";
import { app } from "../../../scripts/app.js";
import { words } from "./words.js";

/** The one that runs on every machine: it needs neither models nor images of the user. */
export const FIRST_STEPS = "01 First steps, no model files";

/** Opens one in a new workflow tab. */
export async function openExample(name) {
  // /extensions/<the pack's folder>/lib/example.js
  const pack = new URL(import.meta.url).pathname.split("/").at(-3);
  const answer = await fetch(api.apiURL(`/workflow_templates/${pack}/${encodeURIComponent(name)}.json`));
  if (!answer.ok) throw new Error(words("caches.no_example"));
  await app.loadGraphData(await answer.json(), true, true, name);
}
