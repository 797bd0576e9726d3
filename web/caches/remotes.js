// Remote roots in the Datasets tab: their caches, what is here of each, and the buttons Pull, Push and Sync.

import { ask, notice } from "../lib/dialog.js";
import { button, debounce, fill, h, icon, iconButton } from "../lib/dom.js";
import { nameOf } from "../lib/names.js";
import { get, listen, post } from "../lib/server.js";
import { bytes, moment } from "../lib/units.js";
import { words } from "../lib/words.js";
import { addLoadNode } from "./canvas.js";

const AGAIN = 2000; // milliseconds, while a root is being read
const SIGNS = { "": "cloud", same: "check", ahead: "arrow-up", behind: "arrow-down", apart: "exclamation-triangle", unknown: "question" };
const memory = { open: true };
let known = []; // the roots of the last response, for the menus of caches

export const remoteRoots = () => known.map(({ name }) => name);

export class RemoteSection {
  constructor(panel) {
    this.panel = panel;
    this.roots = [];
    this.wanted = [];
    this.list = h("div", { class: "sc-stack" });
    const summary = h("summary", { title: words("remotes.title_why") }, words("remotes.title"));
    this.element = h("details", { class: "sc-fold sc-remotes", hidden: true, open: memory.open }, summary, this.list);
    this.element.addEventListener("toggle", () => (memory.open = this.element.open));
    const later = debounce(() => this.load(), 400);
    this.stops = [listen("streamcache.caches", later), later.cancel];
    this.load();
  }

  destroy() {
    this.asked = null;
    clearTimeout(this.again);
    for (const stop of this.stops) stop();
  }

  async load(again = false) {
    const asked = (this.asked = {});
    clearTimeout(this.again);
    const found = await get("/remotes", again ? { again } : {}).catch((error) => ({ error }));
    if (this.asked !== asked) return;
    this.element.hidden = !found.error && found.roots.length === 0;
    if (found.error) return fill(this.list, notice("bad", found.error.message));
    known = this.roots = found.roots;
    this.draw();
    if (found.roots.some(({ state, again }) => state === "reading" || again)) this.again = setTimeout(() => this.load(), AGAIN);
  }

  /** Shows only caches whose names contain all these words. */
  search(wanted) {
    if (wanted.join(" ") === this.wanted.join(" ")) return;
    this.wanted = wanted;
    this.draw();
  }

  draw() {
    const focused = document.activeElement?.closest?.("[data-remote]") && document.activeElement.dataset.act;
    const at = document.activeElement?.closest?.("[data-remote]")?.dataset.remote;
    fill(this.list, this.roots.map((root) => this.root(root)));
    const row = at && [...this.list.querySelectorAll("[data-remote]")].find((each) => each.dataset.remote === at);
    row?.querySelector(`[data-act="${focused}"]`)?.focus();
  }

  root(root) {
    const caches = root.caches.filter(({ name }) => this.wanted.every((word) => name.toLowerCase().includes(word)));
    const state = root.state === "ready" ? null : h("span", { class: `sc-badge ${root.state === "reading" ? "" : "bad"}` }, words(`remotes.${root.state}`));
    const head = h("div", { class: "sc-row" }, icon("cloud"), h("h3", { class: "sc-grow sc-clip", title: root.address }, root.name), state);
    const away = root.state === "unreachable" && notice("warn", words("remotes.unreachable_why", root));
    const empty = root.state === "ready" && root.caches.length === 0 && h("p", { class: "sc-soft sc-small" }, words("remotes.none"));
    const rows = h("ul", { class: "sc-cards", "aria-label": root.name }, caches.map((cache) => this.row(cache)));
    return h("section", { class: "sc-remote-root", dataset: { root: root.name, state: root.state } }, head, away, empty, caches.length > 0 && rows);
  }

  row(cache) {
    const { name } = cache;
    const samples = words("caches.count_samples", { count: cache.samples });
    const arrived = words("remotes.arrived", { done: bytes(cache.arrived), total: bytes(cache.bytes) });
    const below = cache.local === "partly" ? arrived : `${samples} · ${bytes(cache.bytes)}`;
    const key = cache.relation ? `remotes.relation_${cache.relation}` : `remotes.local_${cache.local}`;
    const kind = { same: "good", apart: "warn", unknown: "warn" }[cache.relation] ?? "";
    const sign = cache.local === "partly" && !cache.relation ? "hourglass" : SIGNS[cache.relation];
    const badge = h("span", { class: `sc-badge ${kind}`, title: cache.local_name }, icon(sign), words(key));
    const text = h(
      "div",
      { class: "sc-grow sc-remote-text" },
      nameOf(name.split("/").slice(1).join("/"), { class: "sc-card-name" }),
      cache.problem ? h("span", { class: "sc-small sc-problem", title: cache.problem }, cache.problem) : h("span", { class: "sc-small sc-number sc-soft" }, below),
    );
    const tools = cache.problem ? [] : this.actions(cache);
    const add = !cache.problem && iconButton("plus-circle", words("remotes.add", { name }), () => addLoadNode(cache.local_name || name), { dataset: { act: "add" } });
    const props = { class: "sc-remote", dataset: { remote: name, local: cache.local, relation: cache.relation } };
    return h("li", props, h("div", { class: "sc-row" }, text, add), h("div", { class: "sc-row wrap" }, !cache.problem && badge, h("span", { class: "sc-grow" }), tools));
  }

  actions(cache) {
    const { name, relation } = cache;
    const local = cache.local_name;
    const make = (act, label, title, run, look = "") =>
      button(label, run, { look, title, "aria-label": title, dataset: { act } });
    const values = { name, local };
    const pull = (key) =>
      make("pull", words(`remotes.${key}`), words("remotes.pull_name", values), () => this.start("pull", { name: local || name, remote: name }), "primary");
    if (!relation) return [pull(cache.local === "partly" ? "resume" : "pull")];
    if (relation === "behind") return [pull("pull")];
    if (relation === "ahead") return [make("push", words("remotes.push"), words("remotes.push_name", values), () => this.start("push", { name: local, remote: name }), "primary")];
    if (relation === "apart") return [make("sync", words("remotes.sync"), words("remotes.sync_name", values), () => this.decide(cache))];
    return [];
  }

  start(kind, body) {
    return this.panel.attempt(async () => this.panel.jobs.update((await post(`/remote/${kind}`, body)).job));
  }

  /** Both sides have changed: the user says which one stays. */
  decide(cache) {
    const { name, local_name: local } = cache;
    // None is chosen: the other side loses what only it has, so pressing Enter must not decide.
    const choice = (value, side) =>
      h(
        "label",
        { class: "sc-row sc-keep-side" },
        h("input", { type: "radio", name: "keep", value, required: true }),
        h("span", { class: "sc-stack" }, words(`remotes.keep_${value}`, { name, local }), side && h("span", { class: "sc-small sc-number sc-soft" }, sideFacts(side))),
      );
    const content = h("div", { class: "sc-stack" }, h("p", {}, words("remotes.keep_text")), choice("local", cache.here), choice("remote", cache));
    return ask({
      title: words("remotes.keep_title", { name, local }),
      content,
      action: words("remotes.sync").replace("…", ""),
      ready: (can) => {
        can(false);
        content.addEventListener("change", () => can(true));
      },
      act: async () => {
        const keep = content.querySelector("input:checked").value;
        this.panel.jobs.update((await post("/remote/sync", { name: local, remote: name, keep })).job);
      },
    });
  }
}

/** "812 samples · generation 0123456789ab · published May 3, 2026, 10:12". */
function sideFacts({ samples, generation, published }) {
  const version = words("remotes.generation", { generation: generation.slice(0, 12) });
  const facts = [words("caches.count_samples", { count: samples }), version];
  return (published ? [...facts, words("remotes.published", { date: moment(published) })] : facts).join(" · ");
}

/** Asks to which root a cache is pushed, and under which name: those of the cache that it came from or was pushed to. */
export function askPush(panel, name) {
  const there = known.flatMap(({ caches }) => caches).find((cache) => cache.local_name === name)?.name;
  const [at, ...below] = (there ?? "").split("/");
  const roots = h("select", { class: "sc-field" }, remoteRoots().map((root) => h("option", { value: root, selected: root === at }, root)));
  const as = h("input", { class: "sc-field", type: "text", value: there ? below.join("/") : name, required: true, maxLength: 200, spellcheck: false });
  const content = h(
    "div",
    { class: "sc-stack" },
    h("p", { class: "sc-soft" }, words("remotes.push_text")),
    h("label", { class: "sc-stack" }, words("remotes.push_root"), roots),
    h("label", { class: "sc-stack" }, words("remotes.push_as"), as),
  );
  return ask({
    title: words("remotes.push_title", { name }),
    content,
    action: words("remotes.push"),
    act: async () => panel.jobs.update((await post("/remote/push", { name, remote: `${roots.value}/${as.value.trim()}` })).job),
  });
}
