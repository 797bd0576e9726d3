// The images of a folder that match a filter, loaded page by page; and a single one, found by its name.

import { Pages } from "../caches/samples/pages.js";
import { address, get } from "../lib/server.js";
import { words } from "../lib/words.js";
import { transformOf } from "./transform.js";

const MOST_PER_REQUEST = 500;

export class ImagePages extends Pages {
  /** `query`: folder, filter and order. */
  constructor(query, changed, failed) {
    super("/folder/view", "images", query, changed, failed);
    this.all = null; // images in the folder
    this.reading = false; // whether the server still reads the folder
    this.locked = ""; // why nothing can be edited
  }

  /** Loads everything again. Until it arrives, what is known stays visible. */
  reload(first, end) {
    this.stop();
    this.state = undefined;
    this.outdate();
    this.want(first, end);
  }

  outdate() {
    for (const page of this.pages.keys()) this.stale.add(page);
  }

  /** With a state the server answers from its memory, without looking at the folder. */
  more() {
    return this.state ? { state: this.state } : {};
  }

  take(found) {
    if (this.state && found.state !== this.state) this.outdate(); // the folder changed meanwhile
    Object.assign(this, { state: found.state, all: found.all, reading: found.reading, locked: found.locked ?? "" });
  }

  /** The image at a place, unless it is being loaded again. */
  fresh(place) {
    return this.isStale(place) ? undefined : this.at(place);
  }

  pictureAt(place) {
    const image = this.at(place);
    return image?.width ? `${image.name}|${image.image_stamp}` : undefined; // without a size it cannot be read
  }

  addressAt(place) {
    return thumbnail(this.query.folder, this.at(place));
  }

  labelAt(place) {
    const image = this.at(place);
    if (!image) return [words("caches.loading"), words("caches.loading")];
    return [firstLine(image) || words("caches.no_caption"), spoken(image)];
  }

  /** The names from `first` to before `end`, also of images that were never loaded. */
  async names(first, end) {
    const found = [];
    for (let start = first; start < end; start += MOST_PER_REQUEST) {
      const range = { start, count: Math.min(MOST_PER_REQUEST, end - start) };
      const known = Array.from({ length: range.count }, (_, at) => this.at(start + at)?.name);
      const { images } = known.every(Boolean) ? {} : await get(this.path, { ...this.query, ...this.more(), ...range });
      found.push(...(images?.map((image) => image.name) ?? known));
    }
    return found;
  }
}

/** A list of one image, as the dialog takes it. */
export class OneImage {
  constructor(folder, image) {
    this.query = { folder };
    this.image = image;
    this.total = 1;
    this.locked = "";
  }

  at() {
    return this.image;
  }

  /** Only the server knows. */
  fresh() {
    return undefined;
  }
}

/** The first variant of its caption. */
export const firstLine = (image) => (image.lines > 0 ? (image.caption.split("\n").find((line) => line.trim()) ?? "") : "");

/** An image of a folder with its whole caption. */
export const readImage = (folder, name) => get("/folder/caption", { folder, name, ...transformOf(folder) });

export function thumbnail(folder, { name, image_stamp: stamp }) {
  return address("/folder/image", { folder, name, stamp });
}

/** "cats/1.png: a cat, excluded, 3 repeats" */
function spoken(image) {
  const parts = [firstLine(image) || words("caches.no_caption")];
  if (image.problem) parts.push(image.problem);
  if (image.excluded) parts.push(words("curate.is_excluded"));
  if (image.repeats > 1) parts.push(words("curate.repeated", { count: image.repeats }));
  if (image.mask) parts.push(words("curate.has_mask"));
  return `${image.name}: ${parts.join(", ")}`;
}
