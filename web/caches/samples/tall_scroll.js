// Scrolls content taller than browsers can lay out (about 17 million pixels). Beyond LIMIT the scroll bar is scaled to the
// content, while small movements still scroll by the distance that the user moved.

export const LIMIT = 8_000_000;

export class TallScroll {
  constructor() {
    this.top = 0; // of the visible part, in the content
    this.bar = 0; // last position of the scroll bar
    this.height = 0;
    this.view = 0;
  }

  get barHeight() {
    return Math.min(this.height, LIMIT);
  }

  get most() {
    return Math.max(0, this.height - this.view);
  }

  resize(height, view) {
    this.height = height;
    this.view = view;
    this.top = Math.min(this.top, this.most);
  }

  /** The scroll bar has moved to `bar`. */
  move(bar) {
    const mostBar = Math.max(0, this.barHeight - this.view);
    const step = bar - this.bar;
    this.bar = bar;
    if (this.height <= LIMIT) this.top = bar;
    else if (bar <= 0) this.top = 0;
    else if (bar >= mostBar - 1) this.top = this.most;
    else if (Math.abs(step) <= this.view) this.top = Math.max(0, Math.min(this.most, this.top + step));
    else this.top = (bar / mostBar) * this.most;
  }

  /** The position of the scroll bar that shows `top`. */
  barFor(top) {
    const to = Math.max(0, Math.min(this.most, top));
    if (this.height <= LIMIT) return to;
    return (to / this.most) * (this.barHeight - this.view);
  }

  /** Goes to `top` exactly; returns the matching position of the scroll bar. */
  jump(top) {
    this.top = Math.max(0, Math.min(this.most, top));
    this.bar = this.barFor(this.top);
    return this.bar;
  }
}
