// What a client did: how often it came and when it was served, as the server and a monotonic clock tell.

import { readFileSync } from "node:fs";
import { get as httpGet } from "node:http";

// The wait that the routes of server.toml ask for, in milliseconds, and how much longer a client may take.
export const WAIT = 2000;
export const SLACK = 1200;

/** One bare request: status, fields (each with all its lines), body. */
export function get(url, headers = {}) {
  return new Promise((resolve, reject) => {
    const request = httpGet(url, { headers, agent: false, timeout: 10_000 }, (response) => {
      let body = "";
      response.setEncoding("utf8");
      response.on("data", (piece) => (body += piece));
      response.on("end", () => resolve({ status: response.statusCode, fields: response.headersDistinct, body }));
    });
    request.on("error", reject).on("timeout", () => request.destroy(new Error(`${url} does not answer`)));
  });
}

/** The version of an installed package. */
export function version(name) {
  return JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
}

/** A route, and what the server counted there. */
export class Route {
  constructor(server, path) {
    Object.assign(this, { server, path, url: server + path });
  }

  /** Takes what the route has, so that the next request is rejected. */
  async spend() {
    const { status, body } = await get(this.url);
    if (status !== 200) throw new Error(`the first request got ${status}: ${body.slice(0, 200)}`);
  }

  async count(result) {
    const start = `_requests_total{route="${this.path}",`;
    const line = (await get(`${this.server}/metrics`)).body
      .split("\n")
      .find((line) => line.includes(start) && line.includes(`result="${result}"`));
    return line ? Number(line.split(" ").at(-1)) : 0;
  }
}

/** Milliseconds that `call` takes, and its value. */
export async function timed(call) {
  const begun = performance.now();
  const value = await call();
  return [performance.now() - begun, value];
}

/** Lets a client meet a rejection. `waits`: whether it should come back when told, or too early. */
export async function measured({ name, version, route, call, waits }) {
  const row = { name, version, did: "" };
  let status, rejected;
  try {
    await route.spend();
    [row.delay, status] = await timed(call);
    rejected = await route.count("rejected");
  } catch (error) {
    return { ...row, did: "failed", problem: String(error) };
  }
  row.did = `rejected ${rejected}x, ${status === 200 ? "then" : "gave up with"} ${status}`;
  if (waits) {
    if (status !== 200 || rejected !== 1 || row.delay < WAIT || row.delay >= WAIT + SLACK) {
      row.problem = `should be rejected once and succeed after ${WAIT} to ${WAIT + SLACK} ms`;
    }
  } else if (rejected < 2) {
    row.problem = "a negative control that waited: what is asserted of the others proves nothing";
  } else {
    row.did += " (came too early, as expected)";
  }
  return row;
}

/** Runs a check that throws what is wrong, and makes it a row. */
export async function checked(name, version, check) {
  try {
    return { name, version, ...(await check()) };
  } catch (error) {
    return { name, version, did: "failed", problem: error.message ?? String(error) };
  }
}

export function print({ name, version, did, delay, problem }) {
  const verdict = problem ? `FAIL: ${problem.slice(0, 300)}` : "pass";
  const cells = [name, version, did, delay === undefined ? "-" : Math.round(delay), verdict];
  console.log(cells.map((cell) => String(cell).replace(/\s+/g, " ")).join("\t"));
}
