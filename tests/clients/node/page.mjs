// The page of the example server at `/`, in headless Chromium: do its loads show what each algorithm does, are its dots
// the requests, does a ticket keep its promise, does the slider change the limit, can one see every mark, does nothing
// jump, does all of it fit the screen, does it say when the server is gone, and does it keep to its own origin?

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

import { inChromium, version as chromiumVersion } from "./chromium.mjs";
import { contrast } from "./contrast.mjs";
import { checked } from "./measure.mjs";
import * as overload from "./overload_page.mjs";

// With the built-in configuration: 10 per second. Buckets hold 20, and ten wait in the queue.
const [BUCKET, LEAKY, QUEUE] = ["/token-bucket", "/leaky-bucket", "/leaky-queue"];
const [FIXED, SLIDING, IN_FLIGHT] = ["/fixed-window", "/sliding-window", "/in-flight"];
const [GRPC, FREE] = ["/sluice.example.v1.Echo/Echo", "/unlimited"];
const ALL = [BUCKET, LEAKY, QUEUE, FIXED, SLIDING, IN_FLIGHT, GRPC, FREE];
const LOADS = ["half", "twice", "burst", "groups", "edge", "full"];
// A visitor sees all of it after this many milliseconds.
const FIRST_SIGHT = 5_000;
// What a busy machine may take for what is done in milliseconds.
const PATIENCE = 20_000;
// A load whose requests were sent later than this, in milliseconds, shows something else, and is repeated.
const LATEST = 150;
const ATTEMPTS = 5;

/** The example server as a process, until `stop`. */
async function start(listen) {
  const process_ = spawn(process.env.EXAMPLE_SERVER, ["--listen", listen], { stdio: ["ignore", "pipe", "ignore"] });
  const kill = () => process_.kill("SIGKILL");
  process.once("exit", kill);
  const exited = new Promise((resolve) => process_.once("exit", resolve).once("error", resolve));
  const lines = createInterface({ input: process_.stdout });
  const line = await Promise.race([new Promise((resolve) => lines.once("line", resolve)), exited]);
  assert.match(String(line), /^listening on /, `${process.env.EXAMPLE_SERVER} does not start`);
  const stop = async () => {
    kill();
    await exited;
    process.off("exit", kill);
  };
  return { url: line.slice("listening on ".length), stop };
}

/** The page, as one uses it. */
class Watched {
  constructor(page, url) {
    Object.assign(this, { page, url, foreign: [], errors: [], mayFail: false });
    page.setDefaultTimeout(PATIENCE);
    page.on("request", (request) => {
      if (!request.url().startsWith(`${url}/`) && !request.url().startsWith("data:")) this.foreign.push(request.url());
    });
    page.on("pageerror", (error) => this.errors.push(String(error)));
    page.on("console", (message) => {
      const text = message.text();
      // Chromium reports every attempt to reach a server that is gone, and each rejection of a visitor's request.
      const isExpected = (this.mayFail && text.includes("net::ERR_")) || text.includes("status of 429");
      if (["error", "warning"].includes(message.type()) && !isExpected) this.errors.push(text);
    });
  }

  card(path) {
    return this.page.getByRole("article", { name: path, exact: true });
  }

  button(load) {
    return this.page.locator(`button[data-load=${load}]:enabled`);
  }

  async numbers(path) {
    const items = this.card(path).locator(".counts > div");
    const read = (items) => items.map((item) => [item.className, Number(item.querySelector("dd").textContent)]);
    return Object.fromEntries(await items.evaluateAll(read));
  }

  /** Looks until it holds. */
  async until(path, what, holds) {
    const end = performance.now() + PATIENCE;
    for (;;) {
      const numbers = await this.numbers(path);
      if (holds(numbers)) return numbers;
      assert.ok(performance.now() < end, `${path}: ${what}, but the page shows ${JSON.stringify(numbers)}`);
      await this.page.waitForTimeout(50);
    }
  }

  /** Waits until no load runs and the limits have recovered. */
  async ready() {
    await this.page.locator("#done", { hasText: "Ready" }).waitFor();
  }

  /** The dots of a route: how many there are of each kind, and where they are, in seconds from the left. */
  async dots(path) {
    const { left, right } = await this.page.evaluate(() => {
      const labels = [...document.querySelectorAll("#axis span")].map((label) => [parseFloat(label.textContent), label.getBoundingClientRect().left]);
      const [first, second] = labels;
      return { left: first[1], right: first[1] + (second[1] - first[1]) / second[0] };
    });
    const read = (dots) => dots.map((dot) => [dot.classList[1], dot.getBoundingClientRect()]).map(([kind, box]) => [kind, box.left + box.width / 2]);
    const dots = await this.card(path).locator(".dot").evaluateAll(read);
    const kinds = {};
    for (const [kind, x] of dots) (kinds[kind] ??= []).push((x - left) / (right - left));
    return kinds;
  }

  async state(state) {
    await this.page.locator(`#connection[data-state=${state}]`).waitFor();
    return this.page.locator("#connection").textContent();
  }

  /** Runs a load, and returns the numbers that the page shows then, by path. */
  async load(load, sent) {
    for (let attempt = 1; ; attempt += 1) {
      await this.ready();
      const answered = this.page.waitForResponse(`${this.url}/load`, { timeout: 3 * PATIENCE });
      // By the keyboard, as whoever has no mouse.
      await this.button(load).press("Enter");
      const { late_ms: late, routes } = await (await answered).json();
      await this.page.locator("#done", { hasText: "recover" }).waitFor();
      await this.ready();
      assert.deepEqual(routes.map(({ path }) => path).sort(), [...ALL].sort());
      const shown = {};
      for (const { path, admitted, delayed, rejected } of routes) {
        shown[path] = await this.until(path, "the page should count all", (now) => now.offered === sent);
        const counts = [shown[path].admitted, shown[path].delayed, shown[path].rejected];
        assert.deepEqual(counts, [admitted, delayed, rejected], path);
        assert.equal(admitted + rejected, sent, path);
      }
      if (late <= LATEST) return shown;
      assert.ok(attempt < ATTEMPTS, `sent ${late} ms late in attempt ${attempt}: this machine is too slow to test with`);
    }
  }
}

/** Checks how many requests of a load each route admitted: from the first to the second number. */
function compare(shown, expected) {
  for (const [path, [least, most]] of Object.entries(expected)) {
    const { admitted } = shown[path];
    assert.ok(admitted >= least && admitted <= most, `${path}: ${admitted} admitted, ${least} to ${most} expected`);
  }
  return [BUCKET, FIXED, SLIDING, QUEUE].map((path) => `${path.slice(1)} ${shown[path].admitted}`).join(", ");
}

const both = (range) => ({ [BUCKET]: range, [LEAKY]: range, [GRPC]: range });

async function half(watched) {
  const shown = await watched.load("half", 30);
  assert.equal(shown[QUEUE].delayed, 0);
  const all = Object.fromEntries(ALL.map((path) => [path, [30, 30]]));
  // Ten responses of three seconds.
  return compare(shown, { ...all, [IN_FLIGHT]: [10, 29] });
}

/** What is sent at 10 per second beyond the first: the buckets their burst, the queue its ten waiters. */
async function twice(watched) {
  const shown = await watched.load("twice", 120);
  assert.ok(shown[QUEUE].delayed >= 60, JSON.stringify(shown[QUEUE]));
  return compare(shown, { ...both([78, 82]), [QUEUE]: [69, 73], [FIXED]: [60, 70], [SLIDING]: [52, 62], [FREE]: [120, 120] });
}

/** A bucket admits its burst, a window its limit, and the queue one at once and ten later. */
async function burst(watched) {
  const shown = await watched.load("burst", 50);
  assert.equal(shown[QUEUE].delayed, shown[QUEUE].admitted - 1);
  const windows = { [FIXED]: [10, 10], [SLIDING]: [10, 11], [IN_FLIGHT]: [10, 10] };
  return compare(shown, { ...both([20, 22]), ...windows, [QUEUE]: [11, 13], [FREE]: [50, 50] });
}

async function groups(watched) {
  const shown = await watched.load("groups", 60);
  assert.ok(shown[QUEUE].delayed >= 50, JSON.stringify(shown[QUEUE]));
  return compare(shown, { ...both([60, 60]), [FIXED]: [60, 60], [QUEUE]: [60, 60], [SLIDING]: [25, 40] });
}

/** Only the fixed window admits twice its limit around the edge of a window. */
async function edge(watched) {
  const shown = await watched.load("edge", 40);
  return compare(shown, { ...both([23, 26]), [FIXED]: [20, 20], [SLIDING]: [10, 13], [QUEUE]: [14, 17] });
}

/** One load starts by itself, and after a few seconds one has seen requests pass, wait and be rejected. */
async function opening(watched) {
  const { page } = watched;
  for (let attempt = 1; ; attempt += 1) {
    const seen = [[BUCKET, "admitted"], [QUEUE, "waiting"], [QUEUE, "delayed"], [SLIDING, "rejected"]].map(async ([path, kind]) => {
      await watched.card(path).locator(`.dot.${kind}`).first().waitFor({ state: "attached" });
      return page.evaluate(() => performance.now());
    });
    const last = Math.max(...(await Promise.all(seen)));
    await watched.ready();
    if (last <= FIRST_SIGHT) return `passed, waited, left and rejected in ${(last / 1000).toFixed(1)} s`;
    assert.ok(attempt < ATTEMPTS, `the first ${last} ms do not show it`);
    await page.reload();
  }
}

/** After a load of groups: each request is a dot, on the side of the gate where it belongs, at the same scale for all. */
async function dotsAreRequests(watched) {
  const charts = [];
  for (const path of ALL) {
    const { admitted: passed, delayed, rejected } = await watched.numbers(path);
    const dots = await watched.dots(path);
    const count = (kind) => dots[kind]?.length ?? 0;
    assert.deepEqual([count("admitted") + count("delayed"), count("delayed"), count("rejected"), count("waiting")], [passed, delayed, rejected, 0], path);
    const { x, width } = await watched.card(path).locator(".chart").boundingBox();
    charts.push([x, width]);
    const sides = await watched.card(path).locator(".chart").evaluate((chart) => {
      const gate = Number(chart.querySelector(".gate").getAttribute("d").match(/M0 (\d+)/)[1]);
      const isBelow = (dot) => Number(dot.getAttribute("cy")) > gate;
      return [...chart.querySelectorAll(".dot")].filter((dot) => isBelow(dot) === dot.matches(".rejected")).length;
    });
    assert.equal(sides, 0, `${path}: dots on the wrong side of the gate`);
  }
  for (const chart of charts) assert.deepEqual(chart, charts[0]);
  // The groups fill the chart, and the queue spaces them evenly: ten in each second.
  const { delayed } = await watched.dots(QUEUE);
  const gaps = delayed.sort((a, b) => a - b).map((x, index) => x - delayed[index - 1]).slice(1).sort((a, b) => a - b);
  const middle = gaps[gaps.length >> 1];
  assert.ok(middle > 0.08 && middle < 0.12, `${middle} s between two dots`);
  assert.ok(delayed.at(-1) > 5, `the last one is at ${delayed.at(-1)} s`);
  return `all, the queue's ${middle.toFixed(3)} s apart`;
}

/** A rejected request counts down, turns green at the time of its `Retry-After`, and passes then. */
async function ticket(watched, path) {
  const { page } = watched;
  await page.locator("#to").selectOption(path);
  await watched.ready();
  const changes = await page.evaluateHandle(() => {
    const ticket = document.getElementById("ticket");
    const changes = [];
    const note = () => {
      const left = parseFloat(ticket.querySelector(".countdown").textContent);
      const { borderTopColor: color } = getComputedStyle(ticket);
      changes.push({ state: ticket.dataset.state, at: performance.now(), color, text: ticket.textContent, left });
    };
    new MutationObserver(note).observe(ticket, { attributes: true, childList: true, characterData: true, subtree: true });
    return changes;
  });
  const answers = [];
  const listen = (answer) => new URL(answer.url()).pathname === path && answers.push([answer.status(), answer.headers()["retry-after"]]);
  page.on("response", listen);
  await page.locator("#send").press("Enter");
  await page.locator("#ticket[data-state=passed]").waitFor();
  page.off("response", listen);
  await watched.ready();
  const told = await changes.jsonValue();
  const [waiting, ready, passed] = ["waiting", "ready", "passed"].map((state) => told.find((change) => change.state === state));
  const rejected = answers.findIndex(([status]) => status === 429);
  assert.deepEqual(answers.slice(rejected).map(([status]) => status), [429, 200], "the first retry passes");
  const wait = Number(answers[rejected][1]);
  assert.match(waiting.text, new RegExp(`429 rejected.*Retry-After: ${wait}`, "s"));
  assert.match(passed.text, /200 passes/);
  const waited = (ready.at - waiting.at) / 1000;
  // The page reads its clock just before the change is seen here, and a busy machine comes late.
  assert.ok(waited >= wait - 0.05 && waited < wait + 2, `green after ${waited} s instead of ${wait}`);
  const left = told.filter((change) => change.state === "waiting").map((change) => change.left);
  assert.ok(left.length > 10 && left.every((time, index) => !(time > left[index - 1])), `the countdown reads ${left}`);
  assert.ok(waiting.color !== ready.color && ready.color === passed.color, `${waiting.color}, ${ready.color}, ${passed.color}`);
  assert.equal(await watched.card(path).locator(".dot.own.rejected").count(), 1);
  return `429, green after ${waited.toFixed(2)} s, 200`;
}

/** The limit changes while a load runs: from then on everything passes. */
async function slider(watched) {
  const { page } = watched;
  await watched.ready();
  await watched.button("twice").press("Enter");
  await watched.until(FIXED, "some should be rejected", (now) => now.rejected >= 3);
  // Polls that are answered late, with the limit from before the change, do not put it back.
  await page.route("**/live?*", async (route) => {
    const response = await route.fetch();
    await page.waitForTimeout(400);
    await route.fulfill({ response });
  });
  const changed = page.waitForResponse(`${watched.url}/live/limit`);
  await page.locator("#limit").press("End");
  assert.equal((await changed).status(), 200);
  for (let looks = 0; looks < 10; looks += 1) {
    assert.equal(await page.locator("#limit-now").textContent(), "40 per second");
    await page.waitForTimeout(50);
  }
  await page.unrouteAll({ behavior: "wait" });
  for (const path of [BUCKET, QUEUE, FIXED]) await watched.card(path).locator(".policies", { hasText: /: 40 per 1s/ }).waitFor();
  const before = await watched.numbers(FIXED);
  await watched.ready();
  const after = await watched.numbers(FIXED);
  assert.ok(after.rejected - before.rejected <= 2 && after.offered === 120, `${JSON.stringify(before)}, then ${JSON.stringify(after)}`);
  const toml = await page.request.get(watched.url + (await watched.card(FIXED).locator("h2 a").getAttribute("href")));
  assert.match(await toml.text(), /^\[\[route\]\]\npath = "\/fixed-window"\n[^]*^limit = 40$/m);
  // Moved while no load runs, it starts one.
  await page.locator("#limit").fill("10");
  await page.locator("#done", { hasText: "Running" }).waitFor();
  await watched.card(FIXED).locator(".policies", { hasText: /: 10 per 1s/ }).waitFor();
  await page.locator("#stop").press("Enter");
  await page.locator("#done", { hasText: "recover" }).waitFor();
  await watched.ready();
  return `${before.rejected} rejected at 10, then ${after.rejected - before.rejected} at 40`;
}

async function links({ page, url }) {
  const hrefs = await page.locator("nav a, h2 a").evaluateAll((links) => links.map((link) => link.href));
  assert.equal(hrefs.length, 3 + ALL.length);
  assert.match(hrefs.shift(), /^https:\/\/docs\.rs\/tower-sluice\/.*\/guide\/$/);
  for (const href of hrefs) assert.equal((await page.request.get(href)).status(), 200, href);
  return `the guide, ${hrefs.length} of ${url}`;
}

/** Nothing has moved since the page was opened, except for the marks in the charts. */
async function nothingJumps({ page }) {
  const shifts = await page.evaluate(() => window.shifts);
  assert.deepEqual(shifts, []);
  return "no layout shift";
}

/** Runs in the page: the marks with the colours that they have on the ground, in each state. */
function marks() {
  const ticket = document.getElementById("ticket");
  const { state } = ticket.dataset;
  const chart = document.querySelector(".chart");
  const card = getComputedStyle(chart.closest("article")).backgroundColor;
  const ground = getComputedStyle(document.body).backgroundColor;
  const found = [];
  const add = (name, element, property, back = card, pseudo) => found.push([name, getComputedStyle(element, pseudo)[property], back]);
  for (const kind of ["admitted", "delayed", "rejected", "left", "waiting", "admitted own"]) {
    const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    dot.setAttribute("class", `dot ${kind} still`);
    chart.append(dot);
    if (kind !== "waiting") add(`dot ${kind}`, dot, "fill");
    add(`dot ${kind}`, dot, "stroke");
    dot.remove();
  }
  for (const name of ["gate", "now"]) add(name, chart.querySelector(`.${name}`), "stroke");
  for (const item of document.querySelectorAll(".legend li")) add(`legend ${item.className}`, item, "borderTopColor", ground, "::before");
  for (const name of ["none", "waiting", "ready", "passed"]) {
    ticket.dataset.state = name;
    add(`ticket ${name}`, ticket, "borderTopColor");
  }
  ticket.dataset.state = state;
  add("connection", document.getElementById("connection"), "backgroundColor", ground, "::before");
  add("slider", document.getElementById("limit"), "accentColor", ground);
  add("axis", document.querySelector("#axis span"), "borderLeftColor", ground);
  for (const button of document.querySelectorAll("button, select")) add("button", button, "borderTopColor", ground);
  return found;
}

/** Each mark has a contrast of 3 at least to its ground (WCAG 2.2, 1.4.11). */
async function marksAreVisible({ page }) {
  const least = [];
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    const ratios = (await page.evaluate(marks)).map(([name, color, ground]) => [contrast(color, ground), name]).sort(([a], [b]) => a - b);
    assert.ok(ratios.length > 20 && ratios[0][0] >= 3, `${colorScheme}: ${ratios[0]}`);
    least.push(`${colorScheme} ${ratios[0][0].toFixed(1)}`);
  }
  return `at least ${least.join(", ")}`;
}

/** Who asks for less motion gets dots that neither fall nor bounce. */
async function calm(watched) {
  const { page } = watched;
  await watched.ready();
  await page.emulateMedia({ reducedMotion: "reduce" });
  const names = await page.locator(".dot").evaluateAll((dots) => [...new Set(dots.map((dot) => getComputedStyle(dot).animationName))]);
  assert.deepEqual(names, ["none"]);
  assert.equal(await page.locator(".door").first().isVisible(), false);
  await page.emulateMedia({ reducedMotion: "no-preference" });
  return "no animation";
}

/** After a load of which each route with a limit has rejected something. */
async function lastRejection(watched) {
  const texts = {};
  for (const path of ALL) texts[path] = await watched.card(path).locator(".last").textContent();
  for (const path of [BUCKET, LEAKY, QUEUE, FIXED, SLIDING]) assert.match(texts[path], /^last: 429, Retry-After: 1$/, path);
  assert.match(texts[GRPC], /^last: grpc-status 8, pushback \d+ ms$/);
  assert.equal(texts[FREE], "");
  return texts[BUCKET];
}

/** A page that is opened later counts from the server's start, and shows the rejection that it did not see. */
async function openedLater(watched) {
  await watched.page.reload();
  await watched.state("live");
  const { rejected } = await watched.until(BUCKET, "some were rejected before", (now) => now.rejected > 0);
  assert.match(await watched.card(BUCKET).locator(".last").textContent(), /^last: 429, Retry-After: 1$/);
  return `${rejected} rejected, and the last one`;
}

async function stopped(watched) {
  await watched.ready();
  await watched.button("twice").press("Enter");
  await watched.until(QUEUE, "some should be rejected: the queue is full", (now) => now.rejected >= 3);
  await watched.page.locator("#stop").press("Enter");
  await watched.page.locator("#done", { hasText: "Stopped" }).waitFor();
  // The requests leave the queue, too: by their turns alone, not one of them would be counted as having left.
  const after = await watched.until(QUEUE, "all should have left", (now) => now.left >= 3);
  await watched.page.locator("#done", { hasText: "Ready" }).waitFor();
  const { offered } = await watched.numbers(FREE);
  assert.ok(offered < 120, `${offered} were sent`);
  return `${after.left} left the queue, ${offered} sent`;
}

/** A server that is gone is told; the next one at its address counts anew. */
async function restart(watched, server, listen) {
  watched.mayFail = true;
  await server.stop();
  const told = await watched.state("lost");
  assert.match(told, /No answer from the server since/);
  // Also at the end of the page, where the message stood long ago.
  await watched.page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  const { y } = await watched.page.locator("#connection").boundingBox();
  assert.ok(y >= 0, `the message is ${-y} px above what one sees`);
  assert.equal(await watched.button("burst").count(), 0);
  const next = await start(listen);
  try {
    await watched.state("live");
    watched.mayFail = false;
    assert.equal((await watched.numbers(BUCKET)).offered, 0);
    return `told, recovered, then ${await burst(watched)}`;
  } finally {
    await next.stop();
  }
}

/** Runs in the page: what is cut off or lies outside of its card, and the texts with their colours. */
function layout() {
  const found = [];
  const texts = [];
  for (const card of document.querySelectorAll("article")) {
    const outer = card.getBoundingClientRect();
    const visible = (selector) => [...card.querySelectorAll(selector)].filter((element) => element.getClientRects().length > 0);
    for (const element of visible(":not(.chart *)")) {
      const { left, right, top, bottom } = element.getBoundingClientRect();
      const isOutside = left < outer.left - 1 || right > outer.right + 1 || top < outer.top - 1 || bottom > outer.bottom + 1;
      const isCut = element.clientWidth > 0 && element.scrollWidth > element.clientWidth + 1;
      if (isOutside || isCut) found.push(`${card.ariaLabel}: ${element.className || element.tagName} overflows`);
    }
    const colors = (element) => [getComputedStyle(element).color, getComputedStyle(card).backgroundColor];
    for (const element of visible("h2, h2 a, .policies, .last, dt, dd")) texts.push([`${card.ariaLabel}: ${element.tagName}`, ...colors(element)]);
  }
  for (const part of document.querySelectorAll("#ticket *")) {
    const [inner, outer] = [part, part.parentElement].map((element) => element.getBoundingClientRect());
    if (inner.bottom > outer.bottom || inner.height < 12) found.push(`ticket: ${part.className} overflows`);
  }
  const countdown = document.querySelector("#ticket .countdown");
  countdown.textContent = "10.00 s";
  if (countdown.scrollWidth > countdown.clientWidth) found.push("ticket: countdown overflows");
  const explained = document.getElementById("explained");
  if (explained.scrollHeight > explained.clientHeight) found.push("the explanation overflows");
  const { scrollWidth, scrollHeight } = document.documentElement;
  return { found, texts, scrollWidth, scrollHeight };
}

/** All routes on one screen, and on a phone nothing beyond the edge; with each text about the loads. */
async function fits({ page }, width, height) {
  await page.setViewportSize({ width, height });
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    for (const load of LOADS) {
      const show = (load) => document.querySelectorAll("[data-about]").forEach((text) => (text.hidden = text.dataset.about !== load));
      await page.evaluate(show, load);
      const { found, texts, scrollWidth, scrollHeight } = await page.evaluate(layout);
      for (const [name, ...colors] of texts) if (contrast(...colors) < 4.5) found.push(`${name} has a contrast of ${contrast(...colors)}`);
      assert.deepEqual(found, [], `${colorScheme}, ${load}`);
      assert.equal(scrollWidth, width, "one has to scroll sideways");
      if (width > 1000) assert.ok(scrollHeight <= height, `${load}: ${scrollHeight} px high`);
    }
  }
  return "nothing beyond the edge, light and dark";
}

/** On a phone, a bucket and the queue can be compared without scrolling. */
async function phone(watched) {
  await watched.page.setViewportSize({ width: 390, height: 844 });
  await watched.page.evaluate(() => scrollTo(0, 0));
  // The browser's bars take the rest.
  const visible = 844 - 110;
  const ends = {};
  for (const path of [BUCKET, LEAKY, QUEUE]) {
    const { y, height } = await watched.card(path).boundingBox();
    ends[path] = Math.round(y + height);
    assert.ok(ends[path] <= visible, `${path} ends at ${ends[path]} px`);
  }
  return `the queue ends at ${ends[QUEUE]} of ${visible} px`;
}

/** Runs in the page before its scripts. */
function recordShifts() {
  window.shifts = [];
  const name = ({ node, previousRect: from, currentRect: to }) => `${node?.id || node?.className || node?.nodeName} from ${from.x},${from.y} to ${to.x},${to.y}`;
  const note = ({ value, sources }) => window.shifts.push(`${value}: ${sources.map(name)}`);
  new PerformanceObserver((list) => list.getEntries().forEach(note)).observe({ type: "layout-shift", buffered: true });
}

export async function run() {
  let version = "-";
  const rows = [];
  const row = async (name, check) => {
    rows.push(await checked(`page: ${name}`, version, async () => ({ did: await check() })));
  };
  process.once("SIGTERM", () => process.exit(1));
  await row("opens", async () => {
    version = chromiumVersion();
    const server = await start("127.0.0.1:0");
    try {
      await inChromium(async (_, page) => {
        const watched = new Watched(page, server.url);
        await page.setViewportSize({ width: 1280, height: 800 });
        await page.addInitScript(recordShifts);
        await page.goto(server.url);
        await watched.state("live");
        await row("opens with a load", () => opening(watched));
        await row("half the limit", () => half(watched));
        await row("twice the limit", () => twice(watched));
        await row("groups", () => groups(watched));
        await row("dots", () => dotsAreRequests(watched));
        await row("the edge of a window", () => edge(watched));
        await row("a burst", () => burst(watched));
        await row("the last rejection", () => lastRejection(watched));
        await row("a ticket of a bucket", () => ticket(watched, BUCKET));
        await row("a ticket of a window", () => ticket(watched, FIXED));
        await row("the slider", () => slider(watched));
        await row("nothing jumps", () => nothingJumps(watched));
        await row("opened later", () => openedLater(watched));
        await row("contrast", () => marksAreVisible(watched));
        await row("less motion", () => calm(watched));
        await row("links", () => links(watched));
        await row("1280 x 800", () => fits(watched, 1280, 800));
        await row("360 x 740", () => fits(watched, 360, 740));
        await row("390 x 844", () => phone(watched));
        await row("stop", () => stopped(watched));
        await page.emulateMedia({ colorScheme: "light" });
        await page.goto(`${server.url}/page/overload`);
        await row("overload without protection", () => overload.bare(watched));
        await row("overload with protection", () => overload.protectedFrom(watched));
        await row("overload: contrast", () => overload.marksAreVisible(watched));
        await row("overload: 1280 x 800", () => overload.fits(watched, 1280, 800));
        await row("overload: 360 x 740", () => overload.fits(watched, 360, 740));
        await row("overload: a load ends", () => overload.ends(watched));
        await page.goto(server.url);
        // The page opens with a load, once; a server that is gone before would get it after its restart.
        await watched.ready();
        await row("a server that restarts", () => restart(watched, server, new URL(server.url).host));
        await row("origins, errors", async () => {
          assert.deepEqual([watched.foreign, watched.errors], [[], []]);
          return "its own only, none";
        });
      });
      return "closed";
    } finally {
      await server.stop();
    }
  });
  return rows;
}
