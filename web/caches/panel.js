// The tab of dataset caches: what it shows now, and what everything in it needs: the list, notices, jobs.

import { button, debounce, fill, h, iconButton } from "../lib/dom.js";
import { notice } from "../lib/dialog.js";
import { get, listen } from "../lib/server.js";
import { words } from "../lib/words.js";
import { CacheView } from "./cache.js";
import { Jobs } from "./jobs.js";
import { ListView } from "./list.js";
import { TrashView } from "./trash.js";

// What was shown when the tab was closed is shown when it is opened again.
const memory = { view: "list", name: "" };

const SHOWN_FOR = 8000; // milliseconds

export class CachesPanel {
  constructor(element) {
    this.shelf = null; // what the server last told: {caches, trash}
    this.stage = h("div", { class: "sc-stage" });
    this.notices = h("div", { class: "sc-notices" });
    this.jobs = new Jobs(this);
    const props = { class: "sc sc-panel", "aria-label": words("caches.title") };
    this.root = h("section", props, this.stage, this.notices, this.jobs.element);
    element.style.height = "100%";
    fill(element, this.root);
    const later = debounce(() => this.refresh(), 250);
    this.stops = [
      listen("streamcache.caches", later),
      listen("reconnected", () => (later(), this.jobs.load())), // whatever was told meanwhile was not heard
      listen("streamcache.job", (job) => this.jobs.heard(job)),
      () => window.removeEventListener("focus", later),
      later.cancel,
    ];
    window.addEventListener("focus", later); // the command line may have been at work
    this.show(memory.view, memory.name, false);
    this.refresh();
    this.jobs.load();
  }

  destroy() {
    clearTimeout(this.fading);
    this.asked = null;
    for (const stop of this.stops) stop();
    this.view?.destroy?.();
    this.root.remove();
  }

  /** "list", "trash", or "cache" with a name. The focus goes along where somebody went there. */
  show(view, name = "", withFocus = true) {
    Object.assign(memory, { view, name });
    this.view?.destroy?.();
    if (view === "cache") this.view = new CacheView(this, name);
    else this.view = view === "trash" ? new TrashView(this) : new ListView(this);
    fill(this.stage, this.view.element);
    if (this.shelf) this.view.update(this.shelf);
    if (withFocus) this.view.focus();
  }

  redraw() {
    this.show(memory.view, memory.name, false);
  }

  /** The last question counts: an answer to one before it may be older than what is shown. */
  async refresh() {
    const asked = (this.asked = {});
    const found = await get("/caches").catch((error) => ({ error }));
    if (this.asked !== asked) return;
    if (!found.error) {
      this.shelf = found;
      if (this.until === "answer") this.quiet();
      this.view.update(found);
    } else if (this.shelf) this.tell("bad", found.error.message, { until: "answer" });
    else this.view.broken?.(found.error);
  }

  /** Does something that may be refused. The reason is shown, and null is returned. */
  async attempt(act) {
    try {
      return await act();
    } catch (error) {
      this.fail(error);
      return null;
    }
  }

  /** Says why something was refused. What is no longer there leaves the list, and its view, too. */
  async fail(error) {
    const { view } = this;
    if (error.status === 404) await this.refresh();
    if (this.view !== view && view.name) return; // it says already that it is gone
    this.tell("bad", error.message, { until: error.status === 0 ? "answer" : "" });
  }

  /**
   * One notice at a time. A good one can carry a button, such as Undo; without one it goes by itself. One that is said
   * until the server gives an answer goes with the next one.
   */
  tell(kind, text, { action = "", act, until = "" } = {}) {
    const close = () => this.quiet();
    const more = action && button(action, () => (close(), act()), { class: "sc-button sc-undo" });
    this.quiet();
    this.until = until;
    fill(this.notices, notice(kind, text, more, iconButton("times", words("actions.close"), close)));
    if (kind === "good" && !action) this.fading = setTimeout(close, SHOWN_FOR);
  }

  quiet() {
    clearTimeout(this.fading);
    this.until = "";
    fill(this.notices);
  }
}
