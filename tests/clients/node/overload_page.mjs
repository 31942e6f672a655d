// The page about overload, in headless Chromium: do its numbers and its columns show what protection does, at any load, does
// a load end, can one see every mark, and does all of it fit the screen? A busy machine serves fewer requests in time, and
// nothing here depends on how many.

import assert from "node:assert/strict";

import { contrast } from "./contrast.mjs";

// What a busy machine may take for what is done in a second.
const PATIENCE = 30_000;

/** The table: by result, what became of requests of the high class and of the others. */
async function numbers({ page }) {
  const read = (rows) => rows.map((row) => [row.className, [...row.querySelectorAll("td")].map((cell) => Number(cell.textContent))]);
  return Object.fromEntries(await page.locator("#now tbody tr").evaluateAll(read));
}

async function until(watched, what, holds) {
  const end = performance.now() + PATIENCE;
  for (;;) {
    const now = await numbers(watched);
    if (holds(now)) return now;
    assert.ok(performance.now() < end, `${what}, but the page shows ${JSON.stringify(now)}`);
    await watched.page.waitForTimeout(50);
  }
}

/** Chooses a load by the keyboard: the slider has steps of a half, from a half to ten. */
async function choose({ page }, times, protection) {
  await page.locator("#times").press("Home");
  for (let step = 0.5; step < times; step += 0.5) await page.locator("#times").press("ArrowRight");
  await page.locator(`[name=route][value=${protection}]`).press("Space");
}

const running = ({ page }, text) => page.locator("#done", { hasText: text }).waitFor({ timeout: PATIENCE });

/** Columns of a kind with something in them. */
const columns = ({ page }, kind) => page.locator(`.columns rect.${kind}:not([height="0"])`);

/** More than the worker can do: the others are served too late, or give up. */
export async function bare(watched) {
  await watched.state("live");
  assert.equal(await watched.page.locator("#stop").isDisabled(), true);
  await choose(watched, 3, "bare");
  await watched.page.locator("#start").press("Enter");
  await running(watched, "Running at 3×, without protection.");
  const { late, left, shed } = await until(watched, "clients should give up", ({ left: [high, other] }) => high > 0 && other > 0);
  assert.deepEqual(shed, [0, 0], "nothing rejects");
  return `${left[0] + left[1]} gave up, ${late[0] + late[1]} late, none rejected`;
}

/** Changes protection and load while the load runs. At ten times the capacity, the page and the server answer as before. */
export async function protectedFrom(watched) {
  const { page } = watched;
  await choose(watched, 0.5, "protected");
  await running(watched, "Running at 0.5×, with protection.");
  await columns(watched, "with").first().waitFor({ state: "attached", timeout: PATIENCE });
  await choose(watched, 10, "protected");
  await running(watched, "Running at 10×, with protection.");
  assert.equal(await page.locator("#times-now").textContent(), "10× = 500 per second");
  const { shed } = await until(watched, "others should be rejected", ({ shed: [, other] }) => other > 100);
  const facts = Object.fromEntries(await page.locator("#limiter dl > div").evaluateAll((items) => items.map((item) => [...item.children].map((part) => part.textContent))));
  assert.match(facts["limit found"], /^[1-9]\d*$/);
  assert.match(facts["in flight"], /^\d+$/);
  assert.match(facts.waiting, /^\d+ high, \d+ normal$/);
  assert.match(facts["rejected in all"], /^\d+ high, [1-9]\d* normal$/);
  assert.match(await page.locator(".columns").getAttribute("aria-label"), /^\d+ per second within 100 ms, of 50 that the worker can do$/);
  assert.equal((await page.request.get(`${watched.url}/healthz`)).status(), 200);
  const toml = await page.request.get(watched.url + (await page.locator("#limiter h2 a").getAttribute("href")));
  assert.match(await toml.text(), /^algorithm = "overload"$/m);
  assert.equal(await page.locator("#connection").getAttribute("data-state"), "live");
  return `limit ${facts["limit found"]}, ${shed[0]} high and ${shed[1]} others rejected`;
}

/** No request is sent once it is stopped. */
export async function ends(watched) {
  await watched.page.locator("#stop").press("Enter");
  await running(watched, "Stopped.");
  await until(watched, "nothing should be sent", ({ sent }) => sent[0] + sent[1] === 0);
  assert.equal(await watched.page.locator("#start").isEnabled(), true);
  return "nothing is sent";
}

/** Runs in the page: the marks with the colours that they have on their ground. */
function marks() {
  const card = getComputedStyle(document.querySelector("article")).backgroundColor;
  const ground = getComputedStyle(document.body).backgroundColor;
  const found = [];
  const add = (name, element, property, back, pseudo) => found.push([name, getComputedStyle(element, pseudo)[property], back]);
  for (const [kind, property] of [["prompt with", "fill"], ["prompt without", "stroke"], ["late", "fill"]]) {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    bar.setAttribute("class", kind);
    document.querySelector(".columns").append(bar);
    add(kind, bar, property, card);
    bar.remove();
  }
  add("capacity", document.querySelector(".capacity"), "stroke", card);
  add("base", document.querySelector(".columns"), "borderBottomColor", card);
  for (const item of document.querySelectorAll(".legend li")) add(`legend ${item.className}`, item, "borderTopColor", card, "::before");
  add("slider", document.getElementById("times"), "accentColor", ground);
  for (const button of document.querySelectorAll("button")) add("button", button, "borderTopColor", ground);
  return found;
}

/** Each mark has a contrast of 3 at least to its ground (WCAG 2.2, 1.4.11). */
export async function marksAreVisible({ page }) {
  const least = [];
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    const ratios = (await page.evaluate(marks)).map(([name, color, ground]) => [contrast(color, ground), name]).sort(([a], [b]) => a - b);
    assert.ok(ratios.length > 9 && ratios[0][0] >= 3, `${colorScheme}: ${ratios[0]}`);
    least.push(`${colorScheme} ${ratios[0][0].toFixed(1)}`);
  }
  return `at least ${least.join(", ")}`;
}

/** Runs in the page: what is cut off or lies outside of its card, and the texts with their colours. */
function layout() {
  const found = [];
  const texts = [];
  const background = (element) => {
    const { backgroundColor } = getComputedStyle(element);
    return backgroundColor === "rgba(0, 0, 0, 0)" && element.parentElement ? background(element.parentElement) : backgroundColor;
  };
  for (const element of document.querySelectorAll("body *:not(.columns *):not(option)")) {
    if (element.getClientRects().length === 0) continue;
    const outer = (element.closest("article") ?? document.body).getBoundingClientRect();
    const { left, right, top, bottom } = element.getBoundingClientRect();
    if (left < outer.left - 1 || right > outer.right + 1 || top < outer.top - 1 || bottom > outer.bottom + 1) found.push(`${element.tagName} ${element.className} overflows`);
    const hasText = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    if (hasText && !element.disabled) texts.push([`${element.tagName}: ${element.textContent}`, getComputedStyle(element).color, background(element)]);
  }
  const { scrollWidth, scrollHeight } = document.documentElement;
  return { found, texts, scrollWidth, scrollHeight };
}

/** On one screen, and on a phone nothing beyond the edge, while the numbers are large. */
export async function fits({ page }, width, height) {
  await page.setViewportSize({ width, height });
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    const { found, texts, scrollWidth, scrollHeight } = await page.evaluate(layout);
    for (const [name, ...colors] of texts) if (contrast(...colors) < 4.5) found.push(`${name} has a contrast of ${contrast(...colors)}`);
    assert.deepEqual(found, [], colorScheme);
    assert.equal(scrollWidth, width, "one has to scroll sideways");
    if (width > 1000) assert.ok(scrollHeight <= height, `${scrollHeight} px high`);
  }
  return "nothing beyond the edge, light and dark";
}
