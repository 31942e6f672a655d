// Draws each request as a dot that falls on the gate of its route: it passes, bounces off, or waits on the gate in a row.
// All routes share one time axis.

const FULL_SPAN = 7_500;
// A dot falls for this long until it is at the gate.
const FALL = 260;
// Drawn this much later than it happened, so that the next poll comes in time.
const DELAY = 400;
// Requests after a pause begin a new chart.
const PAUSE = 4_000;
// Room to the left of the first dot and to the right of the last one, in milliseconds.
const MARGIN = 200;
// In pixels: where the gate is in the chart (page.html), and the distance between two dots.
const GATE = 31;
const PITCH = 6.4;
const ROWS = 4;
// Where many dots have the same time, they stand side by side, at most this many pixels from their place.
const FARTHEST = 150;

const isCalm = matchMedia("(prefers-reduced-motion: reduce)");
const svg = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);

/** The time axis of all charts, in milliseconds since the server's start. */
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
  note({ at, decided }) {
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

/** Finds a place for a dot that should be at `x`: in the first row that is free there, or beside the others. */
function stack(rows, x) {
  for (let place = x; place < x + FARTHEST; place += PITCH) {
    const row = rows.findIndex((taken) => taken.every((other) => Math.abs(other - place) >= PITCH - 0.1));
    if (row < 0) continue;
    rows[row].push(place);
    return [place, row];
  }
  return [x + FARTHEST, ROWS - 1];
}

/** The dots of one route. */
export class Dots {
  #requests = new Map();
  /** The requests whose dots have not found their last place. */
  #moving = new Set();
  /** The places that are taken in each row. */
  #above = [];
  #below = [];
  #start = null;

  constructor(chart) {
    this.chart = chart;
    this.group = chart.querySelector(".dots");
    this.door = chart.querySelector(".door");
    this.restart();
  }

  /** Takes the requests of a poll. `row` says where those that wait stand: the next release, and the time between two. */
  update(requests, row) {
    for (const [number, at, result, decided, isOwn] of requests) {
      const request = { ...this.#requests.get(number), at, result, decided, isOwn };
      if (!axis.note(request)) continue;
      const known = this.#requests.get(number);
      if (known) Object.assign(known, request);
      else this.#requests.set(number, request);
      this.#moving.add(known ?? request);
    }
    let waiting = 0;
    for (const request of this.#moving) {
      if (request.result === "waiting" && row) request.leaves = row.next + row.every * waiting++;
      else request.leaves = request.decided;
    }
  }

  /** Draws all dots anew, for instance in another width. */
  restart() {
    this.group.replaceChildren();
    this.#above = Array.from({ length: ROWS }, () => []);
    this.#below = Array.from({ length: ROWS }, () => []);
    for (const [number, request] of this.#requests) {
      if (request.at < axis.since) this.#requests.delete(number);
      else delete request.dot;
    }
    this.#moving = new Set(this.#requests.values());
    this.#start = axis.start;
  }

  draw() {
    if (this.#start !== axis.start) this.restart();
    const { now } = axis;
    const hasBegun = axis.start !== null;
    const line = hasBegun ? axis.place(Math.min(now, axis.active + PAUSE)) : 0;
    const moved = hasBegun ? (axis.moved / axis.span) * axis.width : 0;
    this.door.setAttribute("transform", `translate(${Math.min(line - moved, axis.width)} 0)`);
    this.group.setAttribute("transform", `translate(${-moved} 0)`);
    for (const request of this.#moving) {
      if (hasBegun && now > request.at - FALL) this.#drawOne(request, now);
    }
    if (moved > 0) this.#forget();
  }

  #drawOne(request, now) {
    const { at, result, decided, leaves, isOwn } = request;
    const waits = result === "waiting" || (decided > at + 50 && now < decided);
    const kind = waits ? "waiting" : result;
    if (request.kind !== kind || !request.dot) {
      const dot = request.dot ?? this.group.appendChild(svg("circle"));
      const isBelow = kind === "admitted" || kind === "delayed";
      const [x, row] = waits ? [axis.place(leaves ?? at), 0] : stack(isBelow ? this.#below : this.#above, axis.place(decided));
      const y = waits ? GATE : GATE + (isBelow ? 1 : -1) * (row + 0.95) * PITCH;
      dot.setAttribute("class", `dot ${kind}${isOwn ? " own" : ""}${now > at + 1_000 && !request.dot ? " still" : ""}`);
      dot.setAttribute("r", isOwn ? 4 : 2.6);
      dot.setAttribute("cy", y);
      dot.setAttribute("cx", x);
      dot.style.setProperty("--top", `${-y - 4}px`);
      dot.style.setProperty("--gate", `${GATE - y}px`);
      Object.assign(request, { dot, kind });
    } else if (waits && leaves) {
      request.dot.setAttribute("cx", axis.place(leaves));
    }
    if (!waits) this.#moving.delete(request);
  }

  /** Drops the dots that have left the chart. */
  #forget() {
    const end = axis.start + axis.moved - 1_000;
    for (const [number, request] of this.#requests) {
      if ((request.decided ?? Infinity) > end) continue;
      request.dot?.remove();
      this.#requests.delete(number);
      this.#moving.delete(request);
    }
    const first = axis.place(end);
    for (const rows of [this.#above, this.#below]) {
      rows.forEach((row, index) => (rows[index] = row.filter((place) => place >= first)));
    }
  }
}
