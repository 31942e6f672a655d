// Sends a request from this browser to a route whose limit is used up, shows the rejection as a ticket, and sends the
// request again at the time on the ticket.

import { run } from "./loads.js";

const byId = (id) => document.getElementById(id);
const ticket = byId("ticket");
const part = (name) => ticket.querySelector(`.${name}`);
// Without luck, a request is rejected at once. With luck, it gets a unit before the load does.
const TRIES = 10;

function show(state, status, fields, countdown) {
  ticket.dataset.state = state;
  part("status").textContent = status;
  part("fields").textContent = fields;
  part("countdown").textContent = countdown;
}

const seconds = (millis) => `${(Math.max(0, millis) / 1000).toFixed(2)} s`;
const sleep = (millis) => new Promise((resolve) => setTimeout(resolve, millis));
const send = (path) => fetch(path, { cache: "no-store", headers: { "x-own": "1" } });

/** Sends a request until one is rejected, and returns its answer. */
async function meetRejection(path) {
  for (let tries = 0; tries < TRIES; tries += 1) {
    const answer = await send(path);
    if (answer.status === 429 || answer.status === 503) return answer;
  }
  throw new Error("The route rejects nothing.");
}

/** Counts down to a time, and changes the ticket to green then. */
function countDown(end) {
  return new Promise((resolve) => {
    const tick = () => {
      const left = end - performance.now();
      part("countdown").textContent = seconds(left);
      if (left > 0) return setTimeout(tick, Math.min(left, 30));
      ticket.dataset.state = "ready";
      resolve();
    };
    tick();
  });
}

/** Redeems a rejection: waits as it says and sends again, until the request passes. */
async function redeem(path, rejected) {
  const begun = performance.now();
  let answer = rejected;
  while (answer.status === 429 || answer.status === 503) {
    const wait = answer.headers.get("retry-after");
    const exact = answer.headers.get("x-rate-limited-for");
    show("waiting", `${answer.status} rejected`, `Retry-After: ${wait} · X-Rate-Limited-For: ${exact}`, seconds(wait * 1000));
    await countDown(performance.now() + wait * 1000);
    answer = await send(path);
  }
  show("passed", `${answer.status} passes`, `Sent again after ${seconds(performance.now() - begun)}`, seconds(0));
}

/** `isFull` resolves when the load has used up the limit. */
async function sendOne(isFull, onBegin) {
  const path = byId("to").value;
  byId("send").disabled = true;
  show("none", "Filling …", `A load uses up the limit · ${path}`, "–");
  try {
    await new Promise((begin, fail) => {
      const begun = () => {
        onBegin();
        begin();
      };
      run("full", { path, onBegin: begun }).then(() => fail(new Error("Another load was chosen.")));
    });
    await isFull(path);
    await redeem(path, await meetRejection(path));
  } catch (error) {
    show("none", "No ticket", error.message, "–");
  }
  byId("send").disabled = false;
}

/** Its paths begin with a package, which has dots. */
const isGrpc = (path) => path.includes(".");

/** Lists the routes that a browser can send to, and whose limit has a period. */
export function list(routes) {
  const paths = routes.filter(({ limit, paths }) => limit?.per_ms && !isGrpc(paths[0])).map(({ paths }) => paths[0]);
  const options = [...byId("to").options].map(({ value }) => value);
  if (paths.join() === options.join()) return;
  byId("to").replaceChildren(...paths.map((path) => new Option(path, path)));
  byId("send").disabled = paths.length === 0;
}

export function listen(isFull, onBegin) {
  byId("send").addEventListener("click", () => sendOne(isFull, onBegin));
}
