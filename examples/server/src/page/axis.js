// The time axis that all routes share.

const FULL_SPAN = 7_500;
// Drawn this much later than it happened, so that the next poll comes in time.
const DELAY = 400;
// Requests after a pause begin a new chart.
export const PAUSE = 4_000;
// Room to the left of the first dot and to the right of the last one.
const MARGIN = 200;

const isCalm = matchMedia("(prefers-reduced-motion: reduce)");

/** All times are in milliseconds since the server's start. */
export const axis = {
  span: FULL_SPAN,
  width: 0,
  /** The time at its left end; `null` until the first request comes. */
  start: null,
  /** Earlier requests belong to an earlier chart. */
  since: 0,
  /** The time of the last arrival or result. */
  active: -Infinity,
  offset: -Infinity,

  /** Adjusts the clock to a time that the server has just sent. The answer that travelled shortest is right. */
  adjust(now) {
    this.offset = Math.max(now - performance.now(), this.offset - 2);
  },

  /** The time that is drawn now. */
  get now() {
    return performance.now() + this.offset - DELAY;
  },

  /** Begins a new chart with the next request. */
  begin(span = FULL_SPAN) {
    Object.assign(this, { span, start: null, since: this.now + DELAY });
    const step = span > 4_000 ? 1_000 : 500;
    const labels = [];
    for (let time = 0; time < span - MARGIN; time += step) {
      const label = Object.assign(document.createElement("span"), { textContent: `${time / 1000}${time ? "" : " s"}` });
      label.style.left = `${((time + MARGIN) / span) * 100}%`;
      labels.push(label);
    }
    document.getElementById("axis").replaceChildren(...labels);
  },

  /** Notes a request. Returns whether it is part of this chart. */
  note(at, decided) {
    if (at < this.since) return false;
    if (at > this.active + PAUSE && this.start !== null) {
      this.begin();
      this.since = at;
    }
    this.start ??= at - MARGIN;
    this.active = Math.max(this.active, at, decided ?? 0);
    return true;
  },

  /** The pixels from the left end of the first chart to a time. */
  place(time) {
    return ((time - this.start) / this.span) * this.width;
  },

  /** How far the chart has moved on, in milliseconds. */
  get moved() {
    const moved = Math.max(0, Math.min(this.now, this.active) + MARGIN - this.span - this.start);
    return isCalm.matches ? Math.ceil(moved / 1000) * 1000 : moved;
  },
};
