// Scrolling over more than a browser can lay out. Browsers end at some 17 million pixels; beyond LIMIT the scroll bar
// stands for the whole, while small movements still are as large as the hand made them.

export const LIMIT = 8_000_000;

export class TallScroll {
  constructor() {
    this.top = 0; // of what is seen, in the whole
    this.bar = 0; // where the scroll bar was
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

  /** The scroll bar stands at `bar` now. */
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

  /** Where the scroll bar must stand for `top` to be seen. */
  barFor(top) {
    const to = Math.max(0, Math.min(this.most, top));
    if (this.height <= LIMIT) return to;
    return (to / this.most) * (this.barHeight - this.view);
  }

  /** Goes to `top` exactly; the scroll bar is moved to match. */
  jump(top) {
    this.top = Math.max(0, Math.min(this.most, top));
    this.bar = this.barFor(this.top);
    return this.bar;
  }
}
