// The page of the example server at `/`, in headless Chromium: are its numbers those that its buttons must cause,
// does it say when the server is gone, and does it keep to its own origin?

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

import { inChromium, version as chromiumVersion } from "./chromium.mjs";
import { checked } from "./measure.mjs";

// With the built-in configuration: 10 per second, 20 at once; and one per second, 10 waiting.
const BUCKET = "/token-bucket";
const QUEUE = "/leaky-queue";
const FREE = "/unlimited";
// What a busy machine may take for what is done in milliseconds.
const PATIENCE = 20_000;

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
    Object.assign(this, { page, url, foreign: [], errors: [], authorized: 0, mayFail: false });
    page.setDefaultTimeout(PATIENCE);
    page.on("request", (request) => {
      if (!request.url().startsWith(`${url}/`) && !request.url().startsWith("data:")) this.foreign.push(request.url());
      if (request.headers().authorization === "Bearer greedy") this.authorized += 1;
    });
    page.on("pageerror", (error) => this.errors.push(String(error)));
    page.on("console", (message) => {
      const text = message.text();
      // Chromium reports every rejection to a script, too, and every attempt to reach a server that is gone.
      const isExpected = text.includes("status of 429") || (this.mayFail && text.includes("net::ERR_"));
      if (["error", "warning"].includes(message.type()) && !isExpected) this.errors.push(text);
    });
  }

  card(path) {
    return this.page.getByRole("article", { name: path, exact: true });
  }

  async press(path, kind) {
    // By the keyboard, as whoever has no mouse.
    await this.card(path).locator(`[data-run=${kind}]`).press("Enter");
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
}

/** 20 at once, and what comes back while the burst lasts; the rest is rejected. */
async function burst(watched) {
  const before = await watched.numbers(BUCKET);
  const begun = performance.now();
  await watched.press(BUCKET, "burst");
  const done = watched.page.locator("#done", { hasText: `Burst on ${BUCKET} has ended` });
  await done.waitFor();
  const refilled = Math.ceil((performance.now() - begun) / 100);
  const after = await watched.until(BUCKET, "50 should be answered", (now) => now.admitted + now.rejected >= before.admitted + before.rejected + 50);
  const [offered, admitted, rejected] = ["offered", "admitted", "rejected"].map((count) => after[count] - before[count]);
  assert.equal(offered, 50);
  assert.equal(admitted + rejected, 50);
  assert.ok(admitted >= 20 && admitted <= 20 + refilled, `${admitted} admitted, ${refilled} refilled`);
  assert.ok(rejected > 0, `none rejected in ${refilled}00 ms: this machine is too slow to test with`);
  const sent = await done.textContent();
  assert.ok(sent.includes(`200 × ${admitted}`) && sent.includes(`429 × ${rejected}`), sent);
  return `${admitted} admitted, ${rejected} rejected`;
}

async function lastAnswer({ page }) {
  const shown = await page.locator("#fields dt").evaluateAll((terms) => terms.map((term) => term.firstChild.data));
  const wanted = ["RateLimit", "RateLimit-Policy", "Retry-After", "X-Rate-Limited-For"];
  // The last of a burst was rejected, unless a unit came back just then.
  const isRejected = (await page.locator("#answer").textContent()).startsWith("429");
  for (const field of isRejected ? wanted : wanted.slice(0, 2)) assert.ok(shown.includes(field), `${field}: ${shown}`);
  return shown.slice(0, 4).join(", ");
}

async function queue(watched) {
  await watched.page.locator("#burst").fill("5");
  await watched.press(QUEUE, "burst");
  const full = await watched.until(QUEUE, "some should wait", (now) => now.waiting >= 3);
  assert.ok(full.waiting <= 4, `${full.waiting} wait`);
  await watched.card(QUEUE).getByText("waiting, the next leaves in").waitFor();
  const empty = await watched.until(QUEUE, "nobody should wait in the end", (now) => now.waiting === 0 && now.admitted === 5);
  assert.deepEqual([empty.delayed, empty.rejected], [4, 0]);
  return `${full.waiting} waited, then none`;
}

async function stopped(watched) {
  await watched.page.locator("#burst").fill("50");
  await watched.press(QUEUE, "burst");
  await watched.until(QUEUE, "some should wait", (now) => now.waiting >= 3);
  await watched.press(QUEUE, "stop");
  // They leave the queue, too: by their turns alone, not one of them would be counted as having left.
  const after = await watched.until(QUEUE, "all should have left", (now) => now.waiting === 0);
  assert.ok(after.left >= 3, JSON.stringify(after));
  return `${after.left} left the queue`;
}

async function greedy(watched) {
  await watched.press(FREE, "greedy");
  const busy = await watched.until(FREE, "many should be sent", (now) => now.admitted > 50);
  await watched.press(FREE, "stop");
  assert.ok(watched.authorized > 50, `${watched.authorized} came as greedy`);
  assert.equal(busy.rejected, 0);
  return "came as user greedy";
}

/** Where all requests share six connections, a look comes late; from then on the page holds no more than five. */
async function sixConnections(watched) {
  const fill = async (least) => {
    await watched.press(QUEUE, "burst");
    return watched.until(QUEUE, `${least} should wait`, (now) => now.waiting >= least);
  };
  const empty = async () => {
    await watched.press(QUEUE, "stop");
    await watched.until(QUEUE, "all should have left", (now) => now.waiting === 0);
  };
  await fill(6);
  const late = new Promise((resolve) => {
    const hold = (route) => setTimeout(() => route.continue().then(resolve), 1500);
    watched.page.route(`${watched.url}/live`, hold, { times: 1 });
  });
  await late;
  // The next look is sent when that one is answered.
  await watched.page.waitForResponse(`${watched.url}/live`);
  await watched.page.waitForRequest(`${watched.url}/live`);
  await empty();
  await fill(4);
  await watched.page.waitForTimeout(500);
  const { waiting } = await watched.numbers(QUEUE);
  assert.ok(waiting <= 5, `${waiting} wait`);
  await empty();
  return `${waiting} waited`;
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
  assert.ok(await watched.card(BUCKET).locator("[data-run=burst]").isDisabled());
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

async function narrow({ page }) {
  await page.setViewportSize({ width: 360, height: 780 });
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.equal(width, 360, "one has to scroll sideways");
  return "nothing beyond the edge";
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
        await page.goto(server.url);
        await watched.state("live");
        await row("a burst", () => burst(watched));
        await row("the last answer", () => lastAnswer(watched));
        await row("a queue", () => queue(watched));
        await row("stop", () => stopped(watched));
        await row("a greedy client", () => greedy(watched));
        await row("six connections in all", () => sixConnections(watched));
        await row("on a phone", () => narrow(watched));
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
