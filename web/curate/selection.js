// Which images of a folder are selected: names, or all images of the filter without knowing their names.

export const MOST_NAMES = 10_000; // in one request

export class Selection {
  /** `changed()` is called after each change, `removed()` by the Delete key, `tooMany()` if there are more than names can be sent. */
  constructor({ changed, removed, tooMany, failed }) {
    Object.assign(this, { changed, removed, tooMany, failed });
    this.names = new Set();
    this.whole = false; // all images of the filter
    this.anchor = null; // the place at which a range begins
  }

  /** Other images are shown. */
  show(pages) {
    this.pages = pages;
    this.clear();
  }

  get count() {
    return this.whole ? (this.pages?.total ?? 0) : this.names.size;
  }

  has(place) {
    if (this.whole) return true;
    const image = this.pages?.at(place);
    return Boolean(image) && this.names.has(image.name);
  }

  /** The only selected image, or undefined. */
  get only() {
    return this.count === 1 && !this.whole ? [...this.names][0] : undefined;
  }

  /** What a request names: {names} or {filter}. */
  target(filter) {
    return this.whole ? { filter } : { names: [...this.names] };
  }

  async toggle(place) {
    const image = this.pages?.at(place);
    if (!image) return;
    if (this.whole && !(await this.spell())) return;
    if (!this.names.delete(image.name)) this.names.add(image.name);
    this.anchor = place;
    this.changed();
  }

  /** Where a range begins, unless one has begun. */
  begin(place) {
    this.anchor ??= place;
  }

  /** Selects everything from the anchor to this place. */
  async extend(place) {
    const [first, last] = [Math.min(this.anchor, place), Math.max(this.anchor, place)];
    if (last - first >= MOST_NAMES) return this.tooMany();
    const { pages } = this;
    const names = await pages.names(first, last + 1).catch((error) => this.failed(error));
    if (!names || pages !== this.pages) return;
    this.whole = false;
    this.names = new Set(names);
    this.changed();
  }

  all() {
    this.names.clear();
    this.whole = (this.pages?.total ?? 0) > 0;
    this.anchor = null;
    this.changed();
  }

  clear() {
    this.names.clear();
    this.whole = false;
    this.anchor = null;
    this.changed();
  }

  remove() {
    if (this.count > 0) this.removed();
  }

  /** All images of the filter by their names, so that single ones can be taken out. */
  async spell() {
    const { pages } = this;
    if (pages.total > MOST_NAMES) return this.tooMany();
    const names = await pages.names(0, pages.total).catch((error) => this.failed(error));
    if (!names || pages !== this.pages) return false;
    this.whole = false;
    this.names = new Set(names);
    return true;
  }
}
