// The page of the example server: polls /live five times a second, and shows a row for each route.

import { axis } from "./page/axis.js";
import { Dots } from "./page/draw.js";
import * as limit from "./page/limit.js";
import * as loads from "./page/loads.js";
import * as ticket from "./page/ticket.js";

const POLL_EVERY = 200;
const OPENING_LOAD = "groups";

const byId = (id) => document.getElementById(id);
const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};
const make = (name, text, className = "") => Object.assign(document.createElement(name), { textContent: text, className });

// ---- A route: its words and its numbers ----

const COUNTS = { offered: "sent", admitted: "passed", delayed: "waited", rejected: "rejected", left: "gave up" };
const lanes = new Map();

class Lane {
  constructor(route) {
    this.article = byId("lane").content.firstElementChild.cloneNode(true);
    this.find = (selector) => this.article.querySelector(selector);
    const name = route.paths.join(", ");
    this.article.setAttribute("aria-label", name);
    this.find("h2 span").textContent = name;
    this.find("h2 a").href = encodeURI(`/live/toml${route.paths[0]}`);
    this.find("h2 a").setAttribute("aria-label", `TOML of ${name}`);
    this.numbers = {};
    for (const [count, label] of Object.entries(COUNTS)) {
      const item = make("div", "", count);
      this.numbers[count] = make("dd", "0");
      item.append(make("dt", label), this.numbers[count]);
      this.find(".counts").append(item);
    }
    this.dots = new Dots(this.find(".chart"));
  }

  /** Counts from here on, when a load begins. */
  begin() {
    this.base = this.route;
    this.count();
  }

  /** Shows what a poll has found at `now`. */
  update(route, now) {
    this.route = route;
    const words = route.policies.map(({ name, words }) => (words.startsWith(`${name}:`) ? words : `${name}: ${words}`));
    put(this.find(".policies"), words.join("; ") || "no policy: everything passes");
    this.count();
    const { limit, next_release_ms: next } = route;
    const row = next !== null && limit?.per_ms ? { next: now + next, every: limit.per_ms / limit.limit } : null;
    this.dots.update(route.requests, row);
  }

  count() {
    const since = (count) => this.route[count] - (this.base?.[count] ?? 0);
    for (const [count, element] of Object.entries(this.numbers)) put(element, String(since(count)));
    const words = `${since("admitted")} passed, ${since("delayed")} of them after a wait, ${since("rejected")} rejected`;
    this.find(".chart").setAttribute("aria-label", words);
    const { open } = this.route;
    const notes = [open === null ? "" : `open now: ${open}`, since("rejected") ? this.describeRejection() : ""];
    put(this.find(".last"), notes.filter(Boolean).join(" · "));
  }

  describeRejection() {
    const { status, fields } = this.route.last_rejection ?? {};
    if (!status) return "";
    if (fields["grpc-status"]) return `last: grpc-status ${fields["grpc-status"]}, pushback ${fields["grpc-retry-pushback-ms"]} ms`;
    const wait = fields["retry-after"];
    return wait ? `last: ${status}, Retry-After: ${wait}` : `last: ${status}`;
  }
}

// ---- Polling ----

let last = { started: 0, now: 0 };
let lostSince = null;

async function poll() {
  const begun = performance.now();
  try {
    // Results of the same millisecond may have come after the last poll.
    const since = Math.max(0, last.now - 100);
    const answer = await fetch(`/live?since=${since}`, { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(answer.status);
    show(await answer.json(), begun);
  } catch (error) {
    lose(error);
  }
  setTimeout(poll, lostSince ? 1000 : Math.max(0, POLL_EVERY - (performance.now() - begun)));
}

function show({ started_at: started, now_ms: now, can_change: canChange, routes }, begun) {
  const isNew = started !== last.started;
  last = { started, now };
  if (isNew) {
    for (const lane of lanes.values()) lane.article.remove();
    lanes.clear();
    axis.offset = -Infinity;
  }
  axis.adjust(now);
  if (isNew) axis.begin();
  for (const route of routes) {
    const name = route.paths.join(", ");
    if (!lanes.has(name)) {
      lanes.set(name, new Lane(route));
      byId("routes").append(lanes.get(name).article);
      widths.observe(lanes.get(name).find(".chart"));
    }
    lanes.get(name).update(route, now);
  }
  limit.show(canChange, routes, begun);
  ticket.list(routes);
  lostSince = null;
  connect("live", "live");
  if (canChange) open();
}

function lose(error) {
  if (lostSince) return;
  console.debug(error);
  lostSince = new Date();
  loads.stop();
  connect("lost", `No answer from the server since ${lostSince.toLocaleTimeString()}. The charts stand still; trying again every second.`);
}

function connect(state, text) {
  byId("connection").dataset.state = state;
  document.body.classList.toggle("lost", state === "lost");
  put(byId("connection"), text);
  loads.enable(state === "live");
}

// ---- The charts ----

const widths = new ResizeObserver(() => {
  const { width } = lanes.values().next().value.find(".chart").getBoundingClientRect();
  if (width === axis.width) return;
  axis.width = width;
  for (const lane of lanes.values()) lane.dots.restart();
});

function drawAll() {
  for (const lane of lanes.values()) lane.dots.draw();
  requestAnimationFrame(drawAll);
}

// ---- Loads ----

/** Starts a gentle load when the page is first seen. The limits of a file may be too precious for it. */
let isOpen = false;
function open() {
  if (isOpen || document.hidden) return;
  isOpen = true;
  void loads.run(OPENING_LOAD);
}

const beginAll = () => lanes.forEach((lane) => lane.begin());

/** Waits until the route rejects requests of the load that runs, or until the load ends. */
async function fill(path) {
  const { numbers } = lanes.get(path);
  do await new Promise((resolve) => setTimeout(resolve, 10));
  while (Number(numbers.rejected.textContent) < 5 && loads.isRunning());
}

loads.listen(beginAll);
// One sees a change only while requests come.
limit.listen(() => loads.isRunning() || loads.run("twice", { onBegin: beginAll }));
ticket.listen(fill, beginAll);
void poll();
drawAll();
