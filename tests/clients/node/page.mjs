// The page of the example server at `/`, in headless Chromium: do its loads show what each algorithm does, does all of it
// fit the screen, does it say when the server is gone, and does it keep to its own origin?

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

import { inChromium, version as chromiumVersion } from "./chromium.mjs";
import { checked } from "./measure.mjs";

// With the built-in configuration: 10 per second. Buckets hold 20, and ten wait in the queue.
const [BUCKET, LEAKY, QUEUE] = ["/token-bucket", "/leaky-bucket", "/leaky-queue"];
const [FIXED, SLIDING, IN_FLIGHT] = ["/fixed-window", "/sliding-window", "/in-flight"];
const [GRPC, FREE] = ["/sluice.example.v1.Echo/Echo", "/unlimited"];
const ALL = [BUCKET, LEAKY, QUEUE, FIXED, SLIDING, IN_FLIGHT, GRPC, FREE];
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
      // Chromium reports every attempt to reach a server that is gone.
      const isExpected = this.mayFail && text.includes("net::ERR_");
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

  async state(state) {
    await this.page.locator(`#connection[data-state=${state}]`).waitFor();
    return this.page.locator("#connection").textContent();
  }

  /** Runs a load, and returns the numbers that the page shows then, by path. */
  async load(load, sent) {
    for (let attempt = 1; ; attempt += 1) {
      const answered = this.page.waitForResponse(`${this.url}/load`, { timeout: 3 * PATIENCE });
      // By the keyboard, as whoever has no mouse.
      await this.button(load).press("Enter");
      const { late_ms: late, routes } = await (await answered).json();
      await this.page.locator("#done", { hasText: "Ready" }).waitFor();
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

/** After a load of which each route with a limit has rejected something. */
async function lastRejection(watched) {
  const texts = {};
  for (const path of ALL) texts[path] = await watched.card(path).locator(".last").textContent();
  for (const path of [BUCKET, LEAKY, QUEUE, FIXED, SLIDING]) assert.match(texts[path], /429 · retry-after: 1 .* ratelimit: "/, path);
  assert.match(texts[GRPC], /grpc-status: 8/);
  assert.equal(texts[FREE], "");
  return texts[BUCKET];
}

/** A page that is opened later counts from the server's start, and shows the rejection that it did not see. */
async function openedLater(watched) {
  await watched.page.reload();
  await watched.state("live");
  const { rejected } = await watched.until(BUCKET, "some were rejected before", (now) => now.rejected > 0);
  assert.match(await watched.card(BUCKET).locator(".last").textContent(), /^last rejection: 429 · retry-after: 1 /);
  return `${rejected} rejected, and the last one`;
}

/** The line lies between nothing and the highest bar, at the same height in all charts. */
async function limitLines(watched) {
  const marks = [];
  for (const path of ALL) {
    const mark = watched.card(path).locator(".line");
    assert.equal(await mark.isVisible(), path !== FREE, path);
    if (path !== FREE) marks.push(await mark.evaluate((mark) => [mark.dataset.limit, mark.style.top]));
  }
  for (const mark of marks) assert.deepEqual(mark, marks[0]);
  assert.equal(marks[0][0], "limit 10");
  return `${marks.length} lines at ${marks[0][1]}`;
}

async function stopped(watched) {
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

/** Runs in the page: what is cut off, lies outside of its card, or cannot be read on its background. */
function flaws() {
  const found = [];
  const luminance = (color) => {
    const [r, g, b] = color.match(/[\d.]+/g).map((value) => (value / 255 <= 0.03928 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (text, ground) => {
    const [dark, light] = [luminance(text), luminance(ground)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  for (const card of document.querySelectorAll("article")) {
    const outer = card.getBoundingClientRect();
    const visible = (selector) => [...card.querySelectorAll(selector)].filter((element) => element.getClientRects().length > 0);
    for (const element of visible("*")) {
      const { left, right, top, bottom } = element.getBoundingClientRect();
      const isOutside = left < outer.left - 1 || right > outer.right + 1 || top < outer.top - 1 || bottom > outer.bottom + 1;
      const isCut = element.clientWidth > 0 && element.scrollWidth > element.clientWidth + 1;
      if (isOutside || isCut) found.push(`${card.ariaLabel}: ${element.className || element.tagName} overflows`);
    }
    for (const element of visible("h2, .policies, .last, dt, dd, figcaption")) {
      const ratio = contrast(getComputedStyle(element).color, getComputedStyle(card).backgroundColor);
      if (ratio < 4.5) found.push(`${card.ariaLabel}: ${element.className || element.tagName} has a contrast of ${ratio}`);
    }
  }
  const { scrollWidth, scrollHeight } = document.documentElement;
  return { found, scrollWidth, scrollHeight };
}

/** All routes on one screen, and on a phone nothing beyond the edge; with each text about the loads. */
async function fits({ page }, width, height) {
  await page.setViewportSize({ width, height });
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    for (const load of ["", "half", "twice", "burst", "groups", "edge"]) {
      const show = (load) => document.querySelectorAll("[data-about]").forEach((text) => (text.hidden = text.dataset.about !== load));
      await page.evaluate(show, load);
      const { found, scrollWidth, scrollHeight } = await page.evaluate(flaws);
      assert.deepEqual(found, [], colorScheme);
      assert.equal(scrollWidth, width, "one has to scroll sideways");
      if (width > 1000) assert.ok(scrollHeight <= height, `${load}: ${scrollHeight} px high`);
    }
  }
  return "nothing beyond the edge, light and dark";
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
        await page.goto(server.url);
        await watched.state("live");
        await row("half the limit", () => half(watched));
        await row("twice the limit", () => twice(watched));
        await row("groups", () => groups(watched));
        await row("the edge of a window", () => edge(watched));
        await row("a burst", () => burst(watched));
        await row("the last rejection", () => lastRejection(watched));
        await row("opened later", () => openedLater(watched));
        await row("the limit", () => limitLines(watched));
        await row("1280 x 800", () => fits(watched, 1280, 800));
        await row("360 x 740", () => fits(watched, 360, 740));
        await row("stop", () => stopped(watched));
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
