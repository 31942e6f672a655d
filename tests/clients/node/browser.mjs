// A page of one origin calls the API of another (the example `cors`), in headless Chromium: which fields of a
// rejection may its script read, and does the preflight count?

import { createServer } from "node:http";

import { inChromium, version as chromiumVersion } from "./chromium.mjs";
import { SLACK, WAIT, checked } from "./measure.mjs";

const EXPOSED = ["retry-after", "x-rate-limited-for", "ratelimit", "ratelimit-policy"];

/** Runs in the page: spends the budget, is rejected, waits as it is told, and comes again. */
async function story({ api, fields, bare }) {
  const call = async () => {
    // A field of one's own makes the browser ask first, with a preflight.
    const answer = await fetch(api, { headers: { "x-page": "1" }, cache: "no-store" });
    const read = Object.fromEntries(fields.map((name) => [name, answer.headers.get(name)]));
    return { status: answer.status, fields: read };
  };
  const first = await call();
  const rejected = await call();
  const begun = performance.now();
  await new Promise((resolve) => setTimeout(resolve, Number(rejected.fields["retry-after"]) * 1000));
  const last = await call();
  const delay = performance.now() - begun;
  const withoutCors = await fetch(bare).then((answer) => answer.status, (error) => error.name);
  return { first, rejected, last, delay, withoutCors };
}

/** Opens a page of an origin of its own, and counts the preflights that it causes. */
async function inPage(story, argument) {
  const pages = createServer((_, response) => response.setHeader("content-type", "text/html").end("<!doctype html>"));
  await new Promise((resolve) => pages.listen(0, "127.0.0.1", resolve));
  try {
    return await inChromium(async (browser, page) => {
      const preflights = [];
      const protocol = await browser.newCDPSession(page);
      protocol.on("Network.requestWillBeSent", ({ request }) => {
        if (request.method === "OPTIONS") preflights.push(request.url);
      });
      await protocol.send("Network.enable");
      await page.goto(`http://127.0.0.1:${pages.address().port}/`);
      return { ...(await page.evaluate(story, argument)), preflights };
    });
  } finally {
    pages.close();
  }
}

export async function run({ server, cors }) {
  let version = "-";
  const seen = await checked("Chromium", version, async () => {
    version = chromiumVersion();
    // `date` is sent and not exposed; the example `server` answers without any field of CORS.
    return inPage(story, { api: `${cors}/`, fields: [...EXPOSED, "date"], bare: `${server}/unlimited` });
  });
  if (seen.problem) return [seen];
  const { first, rejected, last, delay, preflights, withoutCors } = seen;

  const row = (name, did, holds, more) => ({ name, version, did, problem: holds ? "" : "not as expected", ...more });
  const statuses = [first, rejected, last].map(({ status }) => status).join(", ");
  return [
    row("Chromium: a page that waits", statuses, statuses === "200, 429, 200" && delay < WAIT + SLACK, { delay }),
    ...EXPOSED.map((name) => row(`Chromium: ${name}`, `read: ${rejected.fields[name]}`, rejected.fields[name] !== null)),
    row("Chromium: date, not exposed", `read: ${rejected.fields.date}`, rejected.fields.date === null),
    row("Chromium: preflights", `${preflights.length}, not counted`, preflights.length > 0 && first.status === 200),
    row("Chromium: without CORS", `the script sees ${withoutCors}`, withoutCors === "TypeError"),
  ];
}
