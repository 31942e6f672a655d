// The page of the example server: polls /live four times a second, draws the last half minute of each route, and asks
// the server for a load when a button is pressed.
"use strict";

const SPAN = 30_000;
const POLL_EVERY = 250;
// Longer gaps between two polls are drawn as unknown.
const LONGEST_GAP = 2_500;
// After a load: buckets of two seconds are full, and responses of three seconds have ended.
const RECOVERY = 3_000;

const byId = (id) => document.getElementById(id);
const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};
const make = (name, text, className = "") => Object.assign(document.createElement(name), { textContent: text, className });

// ---- A route: its numbers and its chart ----

const COUNTS = { offered: "sent", admitted: "admitted", delayed: "waited", rejected: "rejected", left: "gave up" };
const FIELDS = ["retry-after", "x-rate-limited-for", "ratelimit", "grpc-status", "grpc-retry-pushback-ms"];
const cards = new Map();

class Card {
  constructor(route) {
    this.article = byId("card").content.firstElementChild.cloneNode(true);
    this.find = (selector) => this.article.querySelector(selector);
    this.name = route.paths.join(", ");
    /** What each poll found, the newest last: `from` and `to` in milliseconds, and the counts of the route at `to`. */
    this.samples = [];
    this.article.setAttribute("aria-label", this.name);
    this.find("h2").textContent = this.name;
    this.numbers = {};
    for (const [count, label] of Object.entries(COUNTS)) {
      const item = make("div", "", count);
      this.numbers[count] = make("dd", "0");
      item.append(make("dt", label), this.numbers[count]);
      this.find(".counts").append(item);
    }
    this.begin();
  }

  /** Counts from here on, when a load begins. */
  begin() {
    this.base = this.route;
    if (this.route) this.count();
  }

  /** Adds the numbers of a poll. */
  update(route, at, continues) {
    const before = this.samples.at(-1);
    this.samples.push({ from: before?.to ?? at, to: at, isKnown: continues && Boolean(before), route });
    while (this.samples[0].to < at - SPAN - 10_000) this.samples.shift();
    this.route = route;
    const words = route.policies.map(({ name, words }) => (words.startsWith(`${name}:`) ? words : `${name}: ${words}`));
    put(this.find(".policies"), words.join("; ") || "no policy: everything passes");
    this.count();
  }

  count() {
    for (const [count, element] of Object.entries(this.numbers)) {
      const number = this.route[count] - (this.base?.[count] ?? 0);
      put(element, String(number));
      element.parentElement.hidden = (count === "delayed" && this.route.waiting === null) || (count === "left" && !number);
    }
    this.showRejection();
  }

  /** What the chart shows: requests within `window` milliseconds, or responses that are open. */
  get meaning() {
    const { limit, open } = this.route;
    if (limit && limit.per_ms === null) return { window: 1000, limit: open === null ? null : limit.limit, isOpen: open !== null };
    if (!limit) return { window: 1000, limit: null };
    const window = Math.min(Math.max(limit.per_ms, 1000), 10_000);
    return { window, limit: (limit.limit * window) / limit.per_ms };
  }

  /** Works out the bars of the chart: for each poll, what passed and was rejected in the window before it. */
  measure(now) {
    const { window, isOpen } = this.meaning;
    this.bars = [];
    let first = 0;
    this.samples.forEach((sample, index) => {
      // The poll that is closest to the window's beginning.
      const away = (sample_) => Math.abs(sample_.to - (sample.to - window));
      while (first < index && away(this.samples[first + 1]) <= away(this.samples[first])) first += 1;
      if (this.samples.slice(first + 1, index + 1).some((sample) => !sample.isKnown)) first = index;
      if (sample.to < now - SPAN) return;
      const since = (count) => Math.max(0, sample.route[count] - this.samples[first].route[count]);
      const passes = isOpen ? sample.route.open : since("admitted");
      const { from, to, isKnown } = sample;
      this.bars.push({ from, to, isKnown, passes, waits: sample.route.waiting ?? 0, rejected: since("rejected") });
    });
    this.most = Math.max(0, ...this.bars.map((bar) => bar.passes));
    this.above = Math.max(this.most, ...this.bars.map((bar) => bar.passes + bar.waits));
    this.below = Math.max(0, ...this.bars.map((bar) => bar.rejected));
  }

  draw(now, above, below) {
    const { window, limit, isOpen } = this.meaning;
    // The unit is the same above and below the line.
    const unit = 100 / (above + below);
    const line = above * unit;
    const paths = { admitted: "", waiting: "", rejected: "", gap: "" };
    for (const { from, to, isKnown, passes, waits, rejected } of this.bars) {
      const x = Math.max(0, Math.round(from - now + SPAN));
      const bar = (top, height) => (height > 0 && isKnown ? `M${x} ${top}h${Math.round(to - now + SPAN) - x}v${height}H${x}z` : "");
      paths.admitted += bar(line - passes * unit, passes * unit);
      paths.waiting += bar(line - (passes + waits) * unit, waits * unit);
      paths.rejected += bar(line, rejected * unit);
      if (!isKnown && to - from > POLL_EVERY) paths.gap += `M${x} 0H${Math.round(to - now + SPAN)}v100H${x}z`;
    }
    for (const [kind, path] of Object.entries(paths)) this.find(`path.${kind}`).setAttribute("d", path);
    this.find(".base").style.top = `${line}%`;
    const mark = this.find(".line");
    mark.hidden = limit === null;
    mark.style.top = `${line - (limit ?? 0) * unit}%`;
    mark.dataset.limit = `limit ${Math.round((limit ?? 0) * 100) / 100}`;
    const within = window === 1000 ? "in a second" : `in ${window / 1000} s`;
    put(this.find(".what"), isOpen ? "open responses" : `requests ${within}`);
    put(this.find(".most"), `most admitted: ${this.most}`);
    this.find("svg").setAttribute("aria-label", `Last 30 s: at most ${this.most} admitted and ${this.below} rejected ${within}.`);
  }

  /** Shows the last rejection, if there is one among those that are counted. */
  showRejection() {
    const { rejected, last_rejection: last } = this.route;
    if (!last || rejected === (this.base?.rejected ?? 0)) return put(this.find(".last"), "");
    const { status, fields } = last;
    const told = FIELDS.filter((name) => name in fields).map((name) => `${name}: ${fields[name]}`);
    put(this.find(".last"), [`last rejection: ${status}`, ...told].join(" · "));
  }
}

function drawAll(now) {
  const all = [...cards.values()];
  for (const card of all) card.measure(now);
  // One scale for all routes with a limit. A route without one would make it too small.
  const limited = all.filter((card) => card.meaning.limit !== null);
  const above = Math.max(10, ...limited.map((card) => Math.max(card.above, card.meaning.limit * 1.5)));
  const below = Math.max(5, ...limited.map((card) => card.below));
  for (const card of all) {
    if (card.meaning.limit !== null) card.draw(now, above, below);
    else card.draw(now, Math.max(10, card.above), card.below);
  }
}

// ---- Polling ----

let last = { started: 0, at: -Infinity };
let lostSince = null;

async function poll() {
  const begun = performance.now();
  try {
    const answer = await fetch("/live", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(answer.status);
    show(await answer.json());
  } catch {
    lose();
  }
  setTimeout(poll, lostSince ? 1000 : Math.max(0, POLL_EVERY - (performance.now() - begun)));
}

function show({ started_at: started, routes }) {
  const at = performance.now();
  // A background tab polls seldom, and a new server counts from zero: the time in between is unknown.
  const continues = started === last.started && at - last.at < LONGEST_GAP;
  const isSame = started === last.started;
  last = { started, at };
  const names = new Set();
  for (const route of routes) {
    const name = route.paths.join(", ");
    names.add(name);
    if (!cards.has(name)) {
      cards.set(name, new Card(route));
      byId("routes").append(cards.get(name).article);
    }
    const card = cards.get(name);
    if (!isSame) card.base = null;
    card.update(route, at, continues);
  }
  for (const [name, card] of cards) {
    if (names.has(name)) continue;
    card.article.remove();
    cards.delete(name);
  }
  drawAll(at);
  lostSince = null;
  connection("live", "live");
}

function lose() {
  if (lostSince) return;
  lostSince = new Date();
  running?.abort();
  connection("lost", `No answer from the server since ${lostSince.toLocaleTimeString()}. The charts stand still; trying again every second.`);
}

function connection(state, text) {
  byId("connection").dataset.state = state;
  document.body.classList.toggle("lost", state === "lost");
  put(byId("connection"), text);
  enable();
}

// ---- Loads ----

const buttons = [...document.querySelectorAll("[data-load]")];
/** Ends the load that runs. */
let running = null;
let isRecovering = false;

function enable() {
  for (const button of buttons) button.disabled = running !== null || isRecovering || lostSince !== null || cards.size === 0;
  byId("stop").disabled = running === null;
}

async function load(button) {
  const name = button.dataset.load;
  for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
  for (const text of document.querySelectorAll("[data-about]")) text.hidden = text.dataset.about !== name;
  for (const card of cards.values()) card.begin();
  running = new AbortController();
  enable();
  put(byId("done"), "Running …");
  let ended = "";
  try {
    const asked = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ load: name }), signal: running.signal };
    const answer = await fetch("/load", asked);
    if (!answer.ok) throw new Error(await answer.text());
    const { late_ms: late } = await answer.json();
    if (late > 50) ended = `Sent up to ${late} ms late: this machine is busy.`;
  } catch (error) {
    ended = running.signal.aborted ? "Stopped." : `Failed: ${error.message}`;
  }
  running = null;
  // A load on limits that are half used up would show something else.
  isRecovering = true;
  enable();
  put(byId("done"), `${ended} The limits recover …`.trim());
  setTimeout(() => {
    isRecovering = false;
    enable();
    put(byId("done"), `${ended} Ready.`.trim());
  }, RECOVERY);
}

for (const button of buttons) button.addEventListener("click", () => load(button));
byId("stop").addEventListener("click", () => running?.abort());
poll();
