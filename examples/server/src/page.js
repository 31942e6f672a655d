// The page of the example server: polls /live four times a second, draws the last minute of each route, and sends
// requests when a button is pressed.
"use strict";

const SECONDS = 60;
const POLL_EVERY = 250;
const STEADY_FOR = 10_000;
const GREEDY_FOR = 5_000;
const GREEDY_AT_ONCE = 4;

const byId = (id) => document.getElementById(id);
const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};
const make = (name, text, className = "") => Object.assign(document.createElement(name), { textContent: text, className });
const seconds = (millis) => `${(millis / 1000).toFixed(millis < 10_000 ? 2 : 0)} s`;

/** The next of 1, 2, 5, 10, … for a scale. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

// ---- A route: its numbers, its charts, its buttons ----

const COUNTS = { offered: "offered", admitted: "admitted", delayed: "waited", rejected: "rejected", left: "gave up", waiting: "waiting" };
const cards = new Map();

class Card {
  constructor(route) {
    this.article = byId("card").content.firstElementChild.cloneNode(true);
    this.find = (selector) => this.article.querySelector(selector);
    this.name = route.paths.join(", ");
    this.call = route.call;
    this.before = null;
    /** A column for each second, the newest last; null if nothing is known of it, undefined before the page was open. */
    this.columns = Array(SECONDS).fill();
    this.second = Math.floor(performance.now() / 1000);
    this.sent = new Map();
    this.article.setAttribute("aria-label", this.name);
    this.find("h2").textContent = this.name;
    this.numbers = {};
    for (const [count, label] of Object.entries(COUNTS)) {
      const item = make("div", "", count);
      this.numbers[count] = make("dd", "0");
      item.append(make("dt", label), this.numbers[count]);
      this.find(".counts").append(item);
    }
    for (const button of this.article.querySelectorAll("button")) {
      button.setAttribute("aria-label", `${button.textContent} on ${this.name}`);
      button.addEventListener("click", () => press(this, button.dataset.run));
    }
    if (!this.call) {
      this.find(".buttons").remove();
      put(this.find(".sent"), "gRPC: a page cannot call it; use grpcurl or a client of your own.");
    }
  }

  /** Adds the numbers of a poll. Differences to the last one count, unless that was too long ago. */
  update(route, at, continues) {
    const words = route.policies.map(({ name, words }) => (words.startsWith(`${name}:`) ? words : `${name}: ${words}`));
    if (words.length === 0) words.push("no policy: everything passes");
    const list = this.find(".policies");
    if (list.textContent !== words.join("")) list.replaceChildren(...words.map((line) => make("li", line)));

    const second = Math.floor(at / 1000);
    const isKnown = continues && this.before !== null;
    for (let steps = Math.min(second - this.second, SECONDS); steps > 0; steps--) {
      this.columns.shift();
      this.columns.push(isKnown ? nothing() : null);
    }
    this.second = second;
    if (isKnown) {
      const column = (this.columns[SECONDS - 1] ??= nothing());
      for (const count of ["offered", "admitted", "delayed", "rejected"]) {
        column[count] += Math.max(0, route[count] - this.before[count]);
      }
      column.waiting = Math.max(column.waiting, route.waiting ?? 0);
    }
    this.before = route;
    for (const [count, element] of Object.entries(this.numbers)) {
      put(element, String(route[count] ?? 0));
      const isOfQueue = count === "waiting" || count === "delayed";
      element.parentElement.hidden = (isOfQueue && route.waiting === null) || (count === "left" && !route.left);
    }
    this.draw(route);
  }

  draw(route) {
    const most = Math.max(...this.columns.map((column) => column?.offered ?? 0), ...this.columns.map(answered));
    const top = roundUp(Math.max(most, 10));
    const bars = { admitted: "", delayed: "", rejected: "" };
    let [offered, gap, pen] = ["", "", "M"];
    this.columns.forEach((column, x) => {
      if (!column) {
        pen = "M";
        if (column === null) gap += `M${x} 0h1v100h-1z`;
        return;
      }
      let y = 100;
      const heights = { ...column, admitted: column.admitted - column.delayed };
      for (const kind in bars) {
        const height = (heights[kind] / top) * 100;
        if (height > 0) bars[kind] += `M${x + 0.1} ${y}h.8v${-height}h-.8z`;
        y -= height;
      }
      const line = 100 - (column.offered / top) * 100;
      offered += `${pen}${x} ${line}H${x + 1}`;
      pen = "L";
    });
    const flow = this.find(".flow");
    for (const [kind, path] of Object.entries({ ...bars, offered, gap })) {
      flow.querySelector(`path.${kind}`).setAttribute("d", path);
    }
    put(flow.querySelector(".top"), `${top}/s`);
    const total = (kind) => this.columns.reduce((sum, column) => sum + (column?.[kind] ?? 0), 0);
    flow.querySelector("svg").setAttribute(
      "aria-label",
      `Last minute: ${total("offered")} offered, ${total("admitted")} admitted, ${total("delayed")} of them after a wait, ` +
        `${total("rejected")} rejected; at most ${most} in a second.`,
    );
    if (route.waiting !== null) this.drawQueue(route);
  }

  drawQueue({ waiting, next_release_ms: next }) {
    const queue = this.find(".queue");
    queue.hidden = false;
    const most = Math.max(...this.columns.map((column) => column?.waiting ?? 0));
    const top = roundUp(Math.max(most, 10));
    let [area, gap] = ["", ""];
    this.columns.forEach((column, x) => {
      if (column === null) gap += `M${x} 0h1v100h-1z`;
      else if (column?.waiting) area += `M${x} 100v${(-column.waiting / top) * 100}h1.02V100z`;
    });
    queue.querySelector("path.waiting").setAttribute("d", area);
    queue.querySelector("path.gap").setAttribute("d", gap);
    queue.querySelector("svg").setAttribute("aria-label", `Queue in the last minute: at most ${most} waiting.`);
    put(queue.querySelector(".top"), String(top));
    const release = next === null ? "" : `, the next leaves in ${seconds(next)}`;
    put(queue.querySelector(".depth"), waiting ? `${waiting} waiting${release}` : "no waiters");
  }

  drawSent() {
    const sent = [...this.sent].filter(([, count]) => count).map(([outcome, count]) => `${outcome} × ${count}`);
    if (sent.length) put(this.find(".sent"), `sent from here: ${sent.join(" · ")}`);
    for (const button of this.article.querySelectorAll("button")) {
      const kind = button.dataset.run;
      const runs = [...running].some((run) => run.card === this && (kind === "stop" || run.kind === kind));
      if (kind === "stop") button.disabled = !runs;
      else button.setAttribute("aria-pressed", String(runs));
    }
  }
}

const nothing = () => ({ offered: 0, admitted: 0, delayed: 0, rejected: 0, waiting: 0 });
const answered = (column) => (column ? column.admitted + column.rejected : 0);

// ---- Polling ----

let last = { started: 0, at: -Infinity };
let lostSince = null;

async function poll() {
  const begun = performance.now();
  const sharesLanes = lanes.length > 1 && lanes[1].busy > 0;
  try {
    const answer = await fetch("/live", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(answer.status);
    show(await answer.json());
  } catch {
    lose();
  }
  const took = performance.now() - begun;
  // A browser that counts both lanes as one made this poll wait behind the page's own requests.
  if (sharesLanes && took > 1000) lanes.length = 1;
  setTimeout(poll, lostSince ? 1000 : Math.max(0, POLL_EVERY - took));
}

function show({ started_at: started, routes }) {
  const at = performance.now();
  // A background tab polls seldom, and a new server counts from zero: the time in between is unknown.
  const continues = started === last.started && at - last.at < 2500;
  last = { started, at };
  const list = byId("routes");
  const names = new Set();
  for (const route of routes) {
    const name = route.paths.join(", ");
    names.add(name);
    if (!cards.has(name)) {
      cards.set(name, new Card(route));
      list.append(cards.get(name).article);
    }
    cards.get(name).update(route, at, continues);
  }
  for (const [name, card] of cards) {
    if (names.has(name)) continue;
    stop(card);
    card.article.remove();
    cards.delete(name);
  }
  lostSince = null;
  connection("live", "live");
}

function lose() {
  if (lostSince) return;
  lostSince = new Date();
  for (const card of cards.values()) stop(card);
  connection("lost", `No answer from the server since ${lostSince.toLocaleTimeString()}. The charts stand still; trying again every second.`);
}

function connection(state, text) {
  byId("connection").dataset.state = state;
  document.body.classList.toggle("lost", state === "lost");
  put(byId("connection"), text);
  for (const button of document.querySelectorAll("[data-run]:not([data-run=stop])")) button.disabled = state === "lost";
}

// ---- Sending ----

// A browser opens six connections to a server of HTTP/1.1, and another six for requests without credentials. One is
// reserved for the polls; otherwise the page would stand still while a queue holds all connections.
const lanes = [
  { credentials: "same-origin", busy: 0, room: 5 },
  { credentials: "omit", busy: 0, room: 6 },
];
/** The runs that are not at their end, in the order in which they may send next. */
const running = new Set();

class Run {
  constructor(card, kind) {
    Object.assign(this, { card, kind, pending: 0, flying: 0, isAllDue: false, counts: new Map() });
    this.abort = new AbortController();
    this.headers = kind === "greedy" ? { authorization: "Bearer greedy" } : {};
  }

  burst(count) {
    this.pending = count;
    this.isAllDue = true;
  }

  steady(rate) {
    const begun = performance.now();
    let total = 0;
    this.timer = setInterval(() => {
      const passed = Math.min(performance.now() - begun, STEADY_FOR);
      const due = Math.ceil((passed / 1000) * rate) - total;
      total += due;
      // Requests that could not be sent for a second are dropped, not sent later in one burst.
      this.pending = Math.min(this.pending + due, rate);
      if (passed >= STEADY_FOR) this.end();
      pump();
    }, 40);
  }

  greedy() {
    this.pending = GREEDY_AT_ONCE;
    this.timer = setTimeout(() => {
      this.pending = 0;
      this.end();
    }, GREEDY_FOR);
  }

  /** Nothing more is to be sent than what is pending. */
  end() {
    clearTimeout(this.timer);
    this.isAllDue = true;
    this.settle();
  }

  note(outcome) {
    for (const counts of [this.counts, this.card.sent]) counts.set(outcome, (counts.get(outcome) ?? 0) + 1);
  }

  settle() {
    if (!this.isAllDue || this.pending || this.flying || !running.delete(this)) return;
    this.card.drawSent();
    const counts = [...this.counts].map(([outcome, count]) => `${outcome} × ${count}`).join(", ");
    const kind = this.kind[0].toUpperCase() + this.kind.slice(1);
    byId("done").replaceChildren(`${kind} on ${this.card.name} has ended: ${counts || "nothing was sent"}.`, spoken());
  }
}

function press(card, kind) {
  if (kind === "stop") return stop(card);
  const amount = { burst: byId("burst"), steady: byId("rate") }[kind];
  if (amount && !amount.reportValidity()) return;
  const run = new Run(card, kind);
  running.add(run);
  run[kind](amount?.valueAsNumber);
  card.drawSent();
  pump();
}

function stop(card) {
  for (const run of [...running].filter((run) => run.card === card)) {
    run.pending = 0;
    run.abort.abort();
    run.end();
  }
}

/** Sends as many as the lanes allow, one of each run in turn. */
function pump() {
  for (;;) {
    const lane = lanes.find((lane) => lane.busy < lane.room);
    const run = [...running].find((run) => run.pending > 0);
    if (!lane || !run) return;
    running.delete(run);
    running.add(run);
    send(run, lane);
  }
}

async function send(run, lane) {
  run.pending--;
  run.flying++;
  lane.busy++;
  try {
    const asked = { cache: "no-store", credentials: lane.credentials, headers: run.headers, signal: run.abort.signal };
    const answer = await fetch(run.card.call, asked);
    await answer.arrayBuffer();
    run.note(answer.status);
    lastAnswer = { path: run.card.call, answer };
  } catch {
    run.note(run.abort.signal.aborted ? "stopped" : "failed");
  }
  lane.busy--;
  run.flying--;
  if (run.kind === "greedy" && !run.isAllDue) run.pending++;
  unshown = true;
  run.settle();
  pump();
}

// ---- The last answer ----

const MEANT = {
  "ratelimit": ["RateLimit", "what is left (r), and when it is back (t)"],
  "ratelimit-policy": ["RateLimit-Policy", "the quota (q) in a window (w)"],
  "retry-after": ["Retry-After", "whole seconds to wait"],
  "x-rate-limited-for": ["X-Rate-Limited-For", "the exact wait in seconds"],
  "server-timing": ["Server-Timing", "how long it waited in the queue"],
};
let lastAnswer = null;
let unshown = false;

/** The last answer as text for screen readers. */
function spoken() {
  const wait = lastAnswer?.answer.headers.get("retry-after");
  const text = lastAnswer ? ` Last answer: ${lastAnswer.answer.status}${wait ? `, retry after ${wait} seconds` : ""}.` : "";
  return make("span", text, "spoken");
}

/** Runs on a timer and not with each answer: a thousand may come in a second. */
function showAnswers() {
  if (!unshown) return;
  unshown = false;
  for (const card of cards.values()) card.drawSent();
  if (!lastAnswer) return;
  const { path, answer } = lastAnswer;
  put(byId("answer"), `${answer.status} ${answer.statusText} ${path}`);
  const known = Object.keys(MEANT).filter((name) => answer.headers.has(name));
  const others = [...answer.headers.keys()].filter((name) => !(name in MEANT));
  const rows = [...known, ...others].map((name) => {
    const [title, meaning] = MEANT[name] ?? [name, ""];
    const [row, term] = [make("div", "", meaning ? "" : "other"), make("dt", title)];
    if (meaning) term.append(make("span", meaning));
    row.append(term, make("dd", answer.headers.get(name)));
    return row;
  });
  byId("fields").replaceChildren(...rows);
}

byId("amounts").addEventListener("submit", (event) => event.preventDefault());
const wide = matchMedia("(min-width: 72rem)");
const openIfWide = () => (byId("last").open = wide.matches);
wide.addEventListener("change", openIfWide);
openIfWide();
setInterval(showAnswers, 200);
poll();
