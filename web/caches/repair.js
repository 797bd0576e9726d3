// Repairing a damaged cache: what would be dropped, a question, and another one if that is more than a few samples.

import { ask } from "../lib/dialog.js";
import { button, h } from "../lib/dom.js";
import { post } from "../lib/server.js";
import { words } from "../lib/words.js";

const LISTED = 200; // the server names no more

/** What to do about the problems that a verify job found; null if there is nothing to do. */
export function remedy(panel, job) {
  const { problems } = job;
  const isDebris = ({ kind }) => kind === "debris";
  if (problems.length > 0 && problems.every(isDebris)) return h("p", { class: "sc-remedy sc-small" }, words("jobs.debris"));
  const isDamage = ({ kind, place }) => kind !== "debris" && kind !== "unreadable" && place?.startsWith("shards/");
  if (!problems.some(isDamage)) return null; // a damaged index has its own message
  const damaged = problems.filter(isDamage);
  const repair = button(words("repair.open"), () => askFirst(panel, job, damaged), { sign: "wrench" });
  return h("div", { class: "sc-remedy sc-small" }, h("p", {}, words("jobs.encode_again")), h("p", {}, words("jobs.repair")), repair);
}

/** The button on a repair that was refused because of how much it would drop. */
export function acceptLoss(panel, job) {
  return button(words("repair.accept"), () => askAgain(panel, job), { sign: "wrench", look: "danger" });
}

function askFirst(panel, job, damaged) {
  const count = job.counts.dropped ?? 0;
  return ask({
    title: words("repair.title", { name: job.name }),
    content: h(
      "div",
      { class: "sc-stack" },
      h("p", {}, count > 0 ? words("repair.text", { count }) : words("repair.nothing_lost")),
      list(damaged.map((problem) => problem.words), job.problem_count),
      h("p", { class: "sc-soft" }, words("repair.kept")),
    ),
    action: words("repair.action"),
    look: "primary danger",
    act: () => start(panel, job.name, count, false),
  });
}

/** The second question names every sample, and is answered by a tick. */
function askAgain(panel, job) {
  const { dropped, samples } = job.counts;
  const tick = h("input", { type: "checkbox", name: "accept", onchange: () => enable(tick.checked) });
  let enable = () => {};
  return ask({
    title: words("repair.title", { name: job.name }),
    content: h(
      "div",
      { class: "sc-stack" },
      h("p", {}, words("repair.many", { count: dropped, samples })),
      list(job.problems.map((problem) => problem.place), dropped),
      h("label", { class: "sc-row sc-removal" }, tick, words("repair.sure", { count: dropped })),
    ),
    action: words("repair.action"),
    look: "primary danger",
    ready: (set) => {
      enable = set;
      set(false);
    },
    act: () => start(panel, job.name, dropped, true),
  });
}

async function start(panel, name, most, accept) {
  const { job } = await post("/cache/repair", { name, most, accept_loss: accept });
  panel.jobs.update(job);
}

function list(lines, all) {
  const more = all - Math.min(lines.length, LISTED);
  const item = (line) => h("li", {}, line);
  const rest = more > 0 && h("li", { class: "sc-soft" }, words("repair.more", { count: more }));
  return h("ul", { class: "sc-files sc-scroll", tabIndex: 0, "aria-label": words("repair.list") }, lines.slice(0, LISTED).map(item), rest);
}
