// The example workflow that makes a first cache.

import { api } from "../../../scripts/api.js";
import { app } from "../../../scripts/app.js";
import { words } from "../lib/words.js";

const NAME = "build_a_cache";

/** Opens it in a workflow tab of its own. */
export async function openExample() {
  // /extensions/<the pack's folder>/caches/example.js
  const pack = new URL(import.meta.url).pathname.split("/").at(-3);
  const answer = await fetch(api.apiURL(`/workflow_templates/${pack}/${NAME}.json`));
  if (!answer.ok) throw new Error(words("caches.no_example"));
  await app.loadGraphData(await answer.json(), true, true, NAME);
}
