// Draws each request as a dot that falls on the gate of its route: it passes, bounces off, or waits on it in a row.

import { axis, PAUSE } from "./axis.js";

// A dot falls for this many milliseconds until it is at the gate.
const FALL = 260;
// In pixels: where the gate is in the chart (page.html), and the distance between two dots.
const GATE = 31;
const PITCH = 6.4;
const ROWS = 4;
// Where many dots have the same time, they stand side by side, at most this many pixels from their place.
const FARTHEST = 150;

const svg = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);

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
      if (!axis.note(at, decided)) continue;
      const request = this.#requests.get(number) ?? {};
      Object.assign(request, { at, result, decided, isOwn });
      this.#requests.set(number, request);
      this.#moving.add(request);
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
    // All dots lie still, and so does the line.
    if (hasBegun && this.#moving.size === 0 && now > axis.active + PAUSE + 1_000) return;
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
