// The page of the admin service, in headless Chromium, as an operator uses it: why is this customer limited, since when,
// let her in now. And can a page of another site do the same?

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { inChromium, version as chromiumVersion } from "./chromium.mjs";
import { contrast } from "./contrast.mjs";
import { checked, get } from "./measure.mjs";

// What a busy machine may take for what is done in milliseconds.
const PATIENCE = 20_000;

// Limits that no test waits for.
const CONFIG = `
[[route]]
path = "/api"
  [[route.policy]]
  name = "per-customer"
  algorithm = "fixed-window"
  limit = 5
  per = "100days"
  key = "header:x-customer"
  on-missing-key = "skip"
  track-offenders = "whole"
  [[route.policy]]
  name = "per-address"
  algorithm = "token-bucket"
  limit = 1000
  per = "1h"
  key = "client-ip"

[[route]]
path = "/export"
  [[route.policy]]
  name = "per-customer"
  algorithm = "sliding-window"
  limit = 2
  per = "100days"
  key = "header:x-customer"
  track-offenders = "hash"

[[route]]
path = "/login"
  [[route.policy]]
  name = "logins"
  algorithm = "sliding-window"
  limit = 2
  per = "100days"
  key = ["header:x-customer", "client-ip"]
  on-missing-key = "skip"
  track-offenders = "whole"
  [route.policy.penalty]
  rejections = 2
  per = "1h"
  ban = "2h"

[[route]]
path = "/slow"
  [[route.policy]]
  name = "in-line"
  algorithm = "leaky-queue"
  limit = 10
  per = "1s"
  max-queue = 10
  key = "header:x-customer"
  on-missing-key = "skip"
`;

/** The example server with the admin service, until `stop`. */
async function start() {
  const folder = mkdtempSync(join(tmpdir(), "sluice-admin-"));
  const file = join(folder, "limits.toml");
  writeFileSync(file, CONFIG);
  const options = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config", file];
  const process_ = spawn(process.env.EXAMPLE_SERVER, options, { stdio: ["ignore", "pipe", "ignore"] });
  const kill = () => process_.kill("SIGKILL");
  process.once("exit", kill);
  const exited = new Promise((resolve) => process_.once("exit", resolve).once("error", resolve));
  const lines = createInterface({ input: process_.stdout })[Symbol.asyncIterator]();
  const address = async (before) => {
    const line = await Promise.race([lines.next(), exited]);
    assert.ok(String(line?.value).startsWith(before), `${process.env.EXAMPLE_SERVER} does not start`);
    return line.value.slice(before.length);
  };
  const [url, admin] = [await address("listening on "), await address("admin on ")];
  const stop = async () => {
    kill();
    await exited;
    process.off("exit", kill);
    rmSync(folder, { recursive: true, force: true });
  };
  return { url, admin, stop };
}

/** The page, as an operator uses it. */
class Operator {
  constructor(page, server) {
    Object.assign(this, { page, server, foreign: [], errors: [], mayFail: false });
    page.setDefaultTimeout(PATIENCE);
    page.on("request", (request) => {
      if (!request.url().startsWith(`${server.admin}/`) && !request.url().startsWith("data:")) this.foreign.push(request.url());
    });
    page.on("pageerror", (error) => this.errors.push(String(error)));
    page.on("console", (message) => {
      const text = message.text();
      // Chromium reports each call that is not carried out, and each attempt to reach a server that is gone.
      const isExpected = (this.mayFail && text.includes("net::ERR_")) || text.includes("status of 422");
      if (["error", "warning"].includes(message.type()) && !isExpected) this.errors.push(text);
    });
  }

  /** What a customer gets. */
  async ask(path, customer) {
    return (await get(`${this.server.url}${path}`, { "x-customer": customer })).status;
  }

  async lookUp(key) {
    await this.page.getByLabel("Key of a client").fill(key);
    await this.page.keyboard.press("Enter");
    return this.summary(key);
  }

  /** The summary about a key, once there is one. */
  async summary(text) {
    const summary = this.page.locator("#summary", { hasText: text });
    await summary.waitFor();
    return summary.textContent();
  }

  card(name) {
    return this.page.getByRole("article", { name, exact: true });
  }

  /** What a policy says, once it says this. */
  async says(name, text) {
    const says = this.card(name).locator(".says", { hasText: text });
    await says.waitFor();
    return says.textContent();
  }

  press(name, button) {
    return this.card(name).getByRole("button", { name: button, exact: true }).click();
  }

  /** The line about what was done, once it says this. */
  async result(state, text) {
    const result = this.page.locator(`#result[data-state=${state}]`, { hasText: text });
    await result.waitFor();
    return result.textContent();
  }

  async fillForm(name, span, reason) {
    await this.card(name).getByLabel("For", { exact: true }).fill(span);
    await this.card(name).getByLabel("Reason").fill(reason);
    await this.page.keyboard.press("Enter");
  }
}

const MINE = "/api per-customer";
const EXPORT = "/export per-customer";
const LOGINS = "/login logins";
const CLOCK = String.raw`(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d`;

/** Why is this customer limited, since when, let her in now. */
async function letIn(operator) {
  for (let count = 0; count < 5; count += 1) assert.equal(await operator.ask("/api", "ada"), 200);
  assert.equal(await operator.ask("/api", "ada"), 429);
  const begun = performance.now();
  assert.equal(await operator.lookUp("ada"), `ada is rejected by ${MINE}`);
  assert.match(await operator.says(MINE, "Used all"), new RegExp(`^Used all 5 per 100\\sdays\\. All 5 are back at ${CLOCK}\\.$`));
  assert.match(await operator.card(MINE).locator(".more").textContent(), /^1 rejection, at \d\d:\d\d:\d\d\.$/);
  await operator.says(EXPORT, "Passes: nothing used, 2 of 2 left");
  await operator.page.locator("#others", { hasText: "Not checked: /api per-address. Its keys are an address, such as 203.0.113.7." }).waitFor();
  await operator.page.getByRole("button", { name: "Let in now" }).click();
  const done = await operator.result("done", "let in");
  assert.match(done, /^Done \d\d:\d\d:\d\d: ada let in \(\/api per-customer\)$/);
  assert.equal(await operator.summary("not limited"), `ada: not limited by ${MINE}, ${EXPORT}, /slow in-line. Not checked: /api per-address, ${LOGINS}.`);
  assert.equal(await operator.card(MINE).locator(".more").textContent().then((text) => text.startsWith("1 rejection")), true, "it is still true");
  assert.equal(await operator.ask("/api", "ada"), 200);
  return `${Math.round(performance.now() - begun)} ms from the question to the next request`;
}

/** Who is rejected most: a key that is shown whole is looked up by a click, and a hash is not. */
async function offenders(operator) {
  const row = (text) => operator.page.locator("#offenders tbody tr", { hasText: text });
  await row("ada").locator("td").nth(2).filter({ hasText: /^1$/ }).waitFor();
  for (let count = 0; count < 3; count += 1) await operator.ask("/export", "gus");
  await row(EXPORT).first().waitFor();
  assert.doesNotMatch(await operator.page.locator("#offenders").textContent(), /gus/);
  assert.equal(await row(EXPORT).getByRole("button").count(), 0);
  await operator.lookUp("bea");
  await row("ada").getByRole("button").click();
  return operator.summary("ada: not limited");
}

/** One policy is reset by its button. */
async function reset(operator) {
  for (const status of [200, 200, 429]) assert.equal(await operator.ask("/export", "bea"), status);
  assert.equal(await operator.lookUp("bea"), `bea is rejected by ${EXPORT}`);
  await operator.says(EXPORT, "used all 2");
  await operator.press(EXPORT, "Reset");
  await operator.result("done", `bea reset (${EXPORT}): full budget, no ban or allowance`);
  assert.equal(await operator.ask("/export", "bea"), 200);
  return "she passes";
}

async function ban(operator) {
  await operator.lookUp("mallory");
  await operator.press(MINE, "Ban…");
  assert.equal(await operator.page.evaluate(() => document.activeElement.name), "reason", "the form has the focus");
  await operator.fillForm(MINE, "1h", "scrapes the catalogue");
  await operator.result("done", `mallory banned (${MINE})`);
  const says = await operator.says(MINE, "Banned by hand");
  assert.match(says, new RegExp(`^Banned by hand until ${CLOCK} \\(another (1\\sh|59\\smin\\s\\d+\\ss)\\), since ${CLOCK}: scrapes the catalogue$`));
  assert.match(await operator.page.locator("#exceptions td[data-head=Until]").first().textContent(), new RegExp(`^${CLOCK}$`));
  // A second one replaces it.
  await operator.press(MINE, "Ban…");
  assert.match(await operator.card(MINE).locator(".replaces").textContent(), new RegExp(`^The present ban ends at ${CLOCK}\\.$`));
  await operator.card(MINE).getByRole("button", { name: "Replace the ban" }).waitFor();
  await operator.fillForm(MINE, "3 hours", "still scrapes");
  await operator.says(MINE, "still scrapes");
  assert.equal(await operator.ask("/api", "mallory"), 429);
  assert.equal(await operator.ask("/export", "mallory"), 200);
  // From the list, at another time.
  await operator.lookUp("ada");
  await operator.page.locator("#exceptions").getByRole("button", { name: "mallory" }).click();
  await operator.summary(`mallory is rejected by ${MINE}`);
  await operator.press(MINE, "Unban");
  await operator.result("done", `mallory unbanned (${MINE}): the used budget stays`);
  assert.equal(await operator.ask("/api", "mallory"), 200);
  await operator.page.locator("#exceptions").waitFor({ state: "hidden" });
  return says;
}

/** By the keyboard alone. */
async function allow(operator) {
  for (const status of [200, 200, 429]) assert.equal(await operator.ask("/export", "zoe"), status);
  await operator.lookUp("zoe");
  const button = operator.card(EXPORT).getByRole("button", { name: "Allow…" });
  await button.press("Enter");
  await operator.page.keyboard.press("Escape");
  assert.equal(await button.evaluate((it) => it === document.activeElement), true, "the focus is back");
  await button.press("Enter");
  await operator.fillForm(EXPORT, "2days", "moves her shop today");
  await operator.says(EXPORT, "whatever it sends: moves her shop today");
  for (let count = 0; count < 5; count += 1) assert.equal(await operator.ask("/export", "zoe"), 200);
  await operator.press(EXPORT, "End the allowance");
  await operator.result("done", `zoe no longer allowed (${EXPORT})`);
  assert.equal(await operator.ask("/export", "zoe"), 429, "her budget is as it was");
  return "allowed, and no longer";
}

/** A queue cannot be reset, but its ban can be lifted. */
async function queue(operator) {
  await operator.lookUp("quentin");
  assert.equal(await operator.card("/slow in-line").getByRole("button", { name: "Reset" }).count(), 0);
  await operator.press("/slow in-line", "Ban…");
  await operator.fillForm("/slow in-line", "15min", "floods");
  await operator.says("/slow in-line", "floods");
  assert.equal(await operator.ask("/slow", "quentin"), 429);
  await operator.page.getByRole("button", { name: "Let in now" }).click();
  await operator.result("done", "quentin let in (/slow in-line)");
  assert.equal(await operator.ask("/slow", "quentin"), 200);
  return "its ban is lifted";
}

/** A text that is the key of some policies only: what was not checked is said, and the key that may be meant is offered. */
async function doubtful(operator) {
  for (const status of [200, 200, 429, 429, 429, 429]) assert.equal(await operator.ask("/login", "dana"), status);
  const { page } = operator;
  await page.locator("#offenders tbody tr", { hasText: "dana + 127.0.0.1" }).locator("td", { hasText: new RegExp(`^${CLOCK}$`) }).nth(2).waitFor();
  const summary = await operator.lookUp("dana");
  assert.equal(summary, `dana: not limited by ${MINE}, ${EXPORT}, /slow in-line. Not checked: /api per-address, ${LOGINS}.`);
  assert.equal(await operator.says(MINE, "Nothing used"), "Nothing used: nobody with this key has come lately, or it is spelled otherwise (upper and lower case count).");
  await page.locator("#others", { hasText: `Not checked: ${LOGINS}. Its keys are the value of the header x-customer + an address.` }).waitFor();
  await page.locator("#suggestions").getByRole("button", { name: "dana + 127.0.0.1" }).click();
  await operator.summary(`dana + 127.0.0.1 is rejected by ${LOGINS}`);
  assert.match(await operator.says(LOGINS, "Banned"), new RegExp(`^Banned until ${CLOCK} \\(another .*\\): it kept sending although it was rejected\\.$`));
  // The buttons are for what was looked up, not for what is typed meanwhile.
  const field = page.getByLabel("Key of a client");
  await field.fill("dan");
  assert.equal(await page.locator("#cards").evaluate((it) => it.inert), true);
  await field.fill("dana + 127.0.0.1");
  assert.equal(await page.locator("#cards").evaluate((it) => it.inert), false);
  await page.getByRole("button", { name: "Let in now" }).click();
  await operator.result("done", `dana + 127.0.0.1 let in (${LOGINS})`);
  assert.equal(await operator.ask("/login", "dana"), 200);
  // An empty value, in quotes.
  assert.equal(await operator.lookUp('""'), '“""” is no key of any policy.');
  await field.fill("  ");
  await page.keyboard.press("Enter");
  await operator.result("failed", "Type a key first.");
  return summary;
}

async function mistakes(operator) {
  await operator.lookUp("ada");
  await operator.press(MINE, "Ban…");
  await operator.fillForm(MINE, "for ever", "x");
  const problem = (text) => operator.card(MINE).locator(".problem", { hasText: text });
  await problem("“for ever” is no time; write 30s, 15min, 3h or 2days.").waitFor();
  await operator.fillForm(MINE, "3", "x");
  const told = "3 what? Write 30s, 15min, 3h or 2days.";
  await problem(told).waitFor();
  assert.equal(await operator.card(MINE).getByLabel("For", { exact: true }).getAttribute("aria-invalid"), "true");
  assert.equal(await operator.ask("/api", "ada"), 200, "she is not banned");
  await operator.card(MINE).getByRole("button", { name: "Cancel" }).click();
  // A key and a reason are texts, whatever is in them.
  const hostile = `x"><img src=x onerror=alert(1)><script>alert(2)</script>`;
  await operator.lookUp(hostile);
  await operator.press(MINE, "Ban…");
  await operator.fillForm(MINE, "1h", hostile);
  await operator.says(MINE, hostile);
  await operator.page.locator("#exceptions", { hasText: hostile }).waitFor();
  assert.equal(await operator.page.locator("img, main script").count(), 0);
  await operator.press(MINE, "Unban");
  await operator.result("done", "unbanned");
  return told;
}

/** A page of another site, in the same browser, tries each way to send a call. */
async function otherSite(operator, browser) {
  const form = (type) => `<form method="post" enctype="${type}" action="${operator.server.admin}/api/ban"><input name='{"policy":"in-line","key":"eve","for":"1h","reason":"' value='"}'></form>`;
  const html = `<!doctype html>${["text/plain", "application/x-www-form-urlencoded"].map(form).join("")}`;
  const site = createServer((_, response) => response.setHeader("content-type", "text/html").end(html));
  await new Promise((resolve) => site.listen(0, "127.0.0.1", resolve));
  try {
    const page = await browser.newPage();
    const address = `http://localhost:${site.address().port}/`;
    const tries = async (api) => {
      const body = JSON.stringify({ policy: "in-line", key: "eve", for: "1h", reason: "x" });
      const send = (options) => fetch(`${api}/ban`, { method: "POST", body, ...options }).then(({ status, type }) => status || type, (error) => error.name);
      return {
        json: await send({ headers: { "content-type": "application/json" } }),
        plain: await send({}),
        opaque: await send({ mode: "no-cors" }),
        read: await fetch(`${api}/exceptions`).then(({ status }) => status, (error) => error.name),
      };
    };
    await page.goto(address);
    const seen = await page.evaluate(tries, `${operator.server.admin}/api`);
    assert.deepEqual(seen, { json: "TypeError", plain: "TypeError", opaque: "opaque", read: "TypeError" });
    for (const index of [0, 1]) {
      await page.goto(address);
      const [response] = await Promise.all([page.waitForNavigation(), page.evaluate((index) => document.forms[index].submit(), index)]);
      assert.equal(response.status(), 403);
    }
    await page.close();
  } finally {
    site.close();
  }
  const { exceptions } = JSON.parse((await get(`${operator.server.admin}/api/exceptions`)).body);
  assert.deepEqual(exceptions, []);
  return "fetches and forms: nothing done, nothing read";
}

/** Runs in the page: what is cut off, what is too small to hit, and the texts with the colours of them and their grounds. */
function layout() {
  const found = [];
  const texts = [];
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const { backgroundColor } = getComputedStyle(at);
      if (!/, 0\)$|transparent/.test(backgroundColor)) return backgroundColor;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  const visible = [...document.querySelectorAll("body *")].filter((element) => element.checkVisibility() && element.getClientRects().length > 0);
  for (const element of visible) {
    if (element.closest("thead") && getComputedStyle(element.closest("thead")).position === "absolute") continue;
    const { left, right, height } = element.getBoundingClientRect();
    const name = `${element.tagName} ${element.id || element.className || element.textContent.slice(0, 30)}`;
    if (left < 0 || right > innerWidth + 1) found.push(`${name} is beyond the edge`);
    if (element.clientWidth > 0 && element.tagName !== "INPUT" && element.scrollWidth > element.clientWidth + 1) found.push(`${name} overflows`);
    if (["BUTTON", "INPUT"].includes(element.tagName) && height < 24) found.push(`${name} is ${height} px high`);
    const hasText = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    if (hasText) texts.push([name, getComputedStyle(element).color, ground(element)]);
  }
  return { found, texts, width: document.documentElement.scrollWidth };
}

async function fits(operator, width, height) {
  const { page } = operator;
  await page.setViewportSize({ width, height });
  await operator.lookUp("sk-a-customer-whose-key-is-as-long-as-they-are-0123456789abcdef");
  await operator.press(MINE, "Ban…");
  let least = Infinity;
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    const { found, texts, width: scrolled } = await page.evaluate(layout);
    for (const [name, ...colors] of texts) {
      least = Math.min(least, contrast(...colors));
      if (contrast(...colors) < 4.5) found.push(`${name} has a contrast of ${contrast(...colors)}`);
    }
    assert.ok(texts.length > 20, `${texts.length} texts: they were not found`);
    assert.deepEqual(found, [], colorScheme);
    assert.equal(scrolled, width, "one has to scroll sideways");
    if (process.env.SCREENSHOTS) await page.screenshot({ path: join(process.env.SCREENSHOTS, `admin-${width}-${colorScheme}.png`), fullPage: true });
  }
  // A field without a label says nothing to those who do not see it.
  const unlabelled = await page.evaluate(() => [...document.querySelectorAll("input")].filter((input) => !input.labels.length).length);
  assert.equal(unlabelled, 0);
  await operator.card(MINE).getByRole("button", { name: "Cancel" }).click();
  return `nothing beyond the edge, light and dark; the least contrast is ${least.toFixed(1)}`;
}

async function lost(operator) {
  operator.mayFail = true;
  await operator.server.stop();
  await operator.page.locator("#connection[data-state=lost]").waitFor();
  return operator.page.locator("#connection").textContent();
}

export async function run() {
  let version = "-";
  const rows = [];
  const row = async (name, check) => {
    rows.push(await checked(`admin: ${name}`, version, async () => ({ did: await check() })));
  };
  process.once("SIGTERM", () => process.exit(1));
  await row("opens", async () => {
    version = chromiumVersion();
    const server = await start();
    try {
      await inChromium(async (browser, page) => {
        const operator = new Operator(page, server);
        await page.setViewportSize({ width: 1280, height: 800 });
        await page.goto(server.admin);
        await page.locator("#connection[data-state=live]").waitFor();
        await row("why, since when, let her in", () => letIn(operator));
        await row("rejected most", () => offenders(operator));
        await row("reset", () => reset(operator));
        await row("ban and unban", () => ban(operator));
        await row("allow, by the keyboard", () => allow(operator));
        await row("a queue", () => queue(operator));
        await row("a key of some policies", () => doubtful(operator));
        await row("mistakes and hostile texts", () => mistakes(operator));
        await row("1280 x 800", () => fits(operator, 1280, 800));
        await row("390 x 844", () => fits(operator, 390, 844));
        await row("origins, errors", async () => {
          assert.deepEqual([operator.foreign, operator.errors], [[], []]);
          return "its own only, none";
        });
        await row("a page of another site", () => otherSite(operator, browser));
        await row("the server is gone", () => lost(operator));
      });
      return "closed";
    } finally {
      await server.stop();
    }
  });
  return rows;
}
