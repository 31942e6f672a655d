// Asks the server for loads: one at the opening, and one for each button.

import { axis } from "./axis.js";

// After a load: buckets of two seconds are full, and responses of three seconds have ended.
const RECOVERY = 3_000;
// The time that a load takes, with the waits of the queue, in milliseconds, if it is shorter than the chart.
const SPANS = { burst: 2_500, edge: 2_500, full: 4_000 };

const byId = (id) => document.getElementById(id);
const buttons = [...document.querySelectorAll("[data-load]")];
const say = (text) => (byId("done").textContent = text);

/** Ends the load that runs. */
let running = null;
/** Settled when the limits have recovered from the last load. */
let recovered = Promise.resolve();
/** The load that was asked for last, until it is stopped. */
let wanted = null;

export function isRunning() {
  return running !== null;
}

export function stop() {
  wanted = null;
  running?.abort();
}

/** Shows which load it is, and what to look for. */
function explain(name) {
  for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.load === name));
  for (const text of document.querySelectorAll("[data-about]")) text.hidden = text.dataset.about !== name;
}

/** Runs a load, on one route if there is a `path`, once the limits have recovered from the load before. */
export async function run(name, { path, onBegin = () => {} } = {}) {
  stop();
  const load = { name, path };
  wanted = load;
  explain(name);
  byId("stop").disabled = false;
  await recovered;
  if (wanted !== load) return;
  onBegin();
  axis.begin(SPANS[name]);
  running = new AbortController();
  say("Running …");
  const sent = send(load, running.signal);
  recovered = recover(load, sent);
  await sent;
}

/** Asks for a load, and returns the message about it when it has ended. */
async function send({ name, path }, signal) {
  try {
    const asked = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ load: name, path }), signal };
    const answer = await fetch("/load", asked);
    if (!answer.ok) throw new Error(await answer.text());
    const { late_ms: late } = await answer.json();
    return late > 50 ? `Sent up to ${late} ms late: this machine is busy. ` : "";
  } catch (error) {
    return signal.aborted ? "Stopped. " : `Failed: ${error.message} `;
  }
}

/** Waits after a load: the next one, on limits that are half used up, would show something else. */
async function recover(load, sent) {
  const ended = await sent;
  running = null;
  const isLast = () => wanted === load || wanted === null;
  byId("stop").disabled = isLast();
  say(`${ended}The limits recover …`);
  await new Promise((resolve) => setTimeout(resolve, RECOVERY));
  if (isLast()) say(`${ended}Ready.`);
}

export function enable(isLive) {
  for (const button of buttons) button.disabled = !isLive;
}

/** Runs the load of each button. */
export function listen(onBegin) {
  for (const button of buttons) button.addEventListener("click", () => run(button.dataset.load, { onBegin }));
  byId("stop").addEventListener("click", stop);
}
