// The panel of the tab "Datasets": the view that is shown, and what all views share (the list, notices, jobs).

import { button, debounce, fill, h, iconButton } from "../lib/dom.js";
import { busy } from "../lib/busy.js";
import { notice } from "../lib/dialog.js";
import { keepKeys } from "../lib/keys.js";
import { get, listen } from "../lib/server.js";
import { words } from "../lib/words.js";
import { acceptFiles } from "../folders/tab_drop.js";
import { watchUploads } from "../folders/uploads.js";
import { FolderView } from "../curate/folder_view.js";
import { watchUpdates } from "../curate/update.js";
import { CacheView } from "./cache.js";
import { Jobs } from "./jobs.js";
import { ListView } from "./list.js";
import { TrashView } from "./trash.js";

// The view is restored when the tab is opened again.
const memory = { view: "list", name: "" };

const SHOWN_FOR = 8000; // milliseconds

export class CachesPanel {
  constructor(element) {
    this.list = null; // the last response of the server: {caches, trash}
    this.stage = h("div", { class: "sc-stage" });
    this.notices = h("div", { class: "sc-notices" });
    this.jobs = new Jobs(this);
    const props = { class: "sc sc-panel", "aria-label": words("caches.title") };
    this.root = h("section", props, this.stage, this.notices, this.jobs.element);
    element.style.height = "100%";
    fill(element, this.root);
    acceptFiles(this);
    keepKeys(this.root);
    const later = debounce(() => this.refresh(), 250);
    this.stops = [
      listen("streamcache.caches", later),
      listen("reconnected", () => (later(), this.jobs.load())), // events were missed meanwhile
      listen("streamcache.job", (job) => this.jobs.update(job)),
      watchUploads((job) => this.jobs.update(job)),
      watchUpdates((job) => this.jobs.update(job)),
      () => window.removeEventListener("focus", later),
      later.cancel,
    ];
    window.addEventListener("focus", later); // the command line may have changed something
    this.show(memory.view, memory.name, false);
    this.refresh();
    this.jobs.load();
  }

  destroy() {
    clearTimeout(this.fading);
    this.jobs.destroy();
    this.asked = null;
    for (const stop of this.stops) stop();
    this.view?.destroy?.();
    this.root.remove();
  }

  /** `view`: "list", "trash", or "cache" or "folder" with a name. The focus follows if the user navigated. */
  show(view, name = "", withFocus = true) {
    Object.assign(memory, { view, name });
    this.view?.destroy?.();
    if (view === "cache") this.view = new CacheView(this, name);
    else if (view === "folder") this.view = new FolderView(this, name);
    else this.view = view === "trash" ? new TrashView(this) : new ListView(this);
    fill(this.stage, this.view.element);
    if (this.list) this.view.update(this.list);
    if (withFocus) this.view.focus();
  }

  redraw() {
    this.show(memory.view, memory.name, false);
  }

  /** Only the last request counts: a response to an earlier one may be outdated. */
  async refresh() {
    const asked = (this.asked = {});
    const found = await busy(this.root, get("/caches")).catch((error) => ({ error }));
    if (this.asked !== asked) return;
    if (!found.error) {
      this.list = found;
      if (this.until === "answer") this.clearNotice();
      this.view.update(found);
    } else if (this.list) this.report("bad", found.error.message, { until: "answer" });
    else this.view.broken?.(found.error);
  }

  /** Runs an action that the server may refuse. On a refusal, shows the reason and returns null. */
  async attempt(act) {
    try {
      return await busy(this.root, Promise.resolve(act()));
    } catch (error) {
      this.fail(error);
      return null;
    }
  }

  /** Shows why something was refused. If a cache is gone, the list and its view are updated too. */
  async fail(error) {
    const { view } = this;
    if (error.status === 404) await this.refresh();
    if (this.view !== view && view.name) return; // its view has already reported that it is gone
    this.report("bad", error.message, { until: error.status === 0 ? "answer" : "" });
  }

  /**
   * Shows one notice at a time. A good one can have a button, such as Undo; without one it disappears by itself. A notice
   * with `until: "answer"` disappears with the next response of the server.
   */
  report(kind, text, { action = "", act, until = "" } = {}) {
    const close = () => this.clearNotice();
    const more = action && button(action, () => (close(), act()), { class: "sc-button sc-undo" });
    this.clearNotice();
    this.until = until;
    fill(this.notices, notice(kind, text, more, iconButton("times", words("actions.close"), close)));
    if (kind === "good" && !action) this.fading = setTimeout(close, SHOWN_FOR);
  }

  clearNotice() {
    clearTimeout(this.fading);
    this.until = "";
    const hadFocus = this.notices.contains(document.activeElement);
    fill(this.notices);
    if (hadFocus) this.view.regain?.();
  }
}
