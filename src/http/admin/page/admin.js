// The page for operators: looks up a key, shows what each policy says, and acts.

import { Card } from "./card.js";
import * as words from "./words.js";

const LOOK_EVERY = 2_000;
const LISTS_EVERY = 5_000;

const byId = (id) => document.getElementById(id);
const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};
const make = (name, text, className = "") => Object.assign(document.createElement(name), { textContent: text, className });

// ---- Calls ----

/** A call, with what went wrong as the message of its error. Keys are in bodies, never in addresses. */
async function call(name, body) {
  const options = body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(`api/${name}`, { ...options, cache: "no-store", signal: AbortSignal.timeout(10_000) });
  } catch (error) {
    console.debug(error);
    connect("lost", "No answer from the server");
    throw new Error("the server does not answer", { cause: error });
  }
  connect("live", "live");
  const json = await answer.json().catch(() => ({ detail: `${answer.status} ${answer.statusText}` }));
  if (!answer.ok) throw new Error(json.detail);
  return json;
}

function connect(state, text) {
  byId("connection").dataset.state = state;
  put(byId("connection"), text);
}

function report(state, text) {
  byId("result").dataset.state = state;
  put(byId("result"), text);
}

// ---- Names ----

/** Whether layers are named: not if there is only one. */
let hasLayers = false;
const nameOf = ({ layer, policy }) => (hasLayers ? `${layer} ${policy}` : policy);

// ---- The key ----

let wanted = null;
let cards = new Map();
let answers = [];

/** Looks up the wanted key. An answer that comes after another key was asked for is dropped. */
async function look() {
  const key = wanted;
  const found = await call("key", { key });
  if (key === wanted) show(found.policies, Date.now());
}

function show(policies, now) {
  answers = policies;
  const mine = policies.filter(({ state }) => state !== "no-key");
  const kept = new Map();
  for (const answer of mine) {
    const name = nameOf(answer);
    const card = cards.get(name) ?? new Card(act);
    card.show(answer, now, name);
    kept.set(name, card);
  }
  cards = kept;
  const articles = [...cards.values()].map(({ article }) => article);
  if (articles.length !== byId("cards").children.length || articles.some((article, index) => byId("cards").children[index] !== article)) byId("cards").replaceChildren(...articles);
  const others = policies.filter(({ state }) => state === "no-key");
  byId("others").replaceChildren(...others.map((answer) => make("li", `${nameOf(answer)}: this is no key of it; its keys are ${answer.keys}.`)));
  summarise(mine);
}

function summarise(mine) {
  const rejecting = mine.filter(words.isRejected);
  const names = rejecting.map(nameOf).join(", ");
  const key = words.short(wanted);
  byId("found").hidden = false;
  byId("let-in").hidden = rejecting.length === 0;
  const unknown = mine.filter(({ state }) => state === "unknown").length;
  if (mine.length === 0) put(byId("summary"), `${key} is no key of any policy`);
  else if (rejecting.length > 0) put(byId("summary"), `${key} is rejected by ${names}`);
  else if (unknown > 0) put(byId("summary"), `${key}: ${unknown} of ${mine.length} policies do not know`);
  else put(byId("summary"), `${key} passes ${mine.length === 1 ? "its policy" : `all ${mine.length} policies`}`);
}

/** Carries out a call about the wanted key, and reports it. Returns whether it is done. */
async function act(name, { layer, policy }, more, done) {
  try {
    const answer = await call(name, { key: wanted, layer, policy, ...more });
    show(answers.map((other) => (other.layer === layer && other.policy === policy ? answer : other)), Date.now());
    report("done", `${nameOf(answer)}: ${done}, at ${words.clock(Date.now())}.`);
    void lists();
    return true;
  } catch (error) {
    report("failed", `Not done: ${error.message}.`);
    return false;
  }
}

/** Resets each policy that rejects the key, or ends its ban there if the policy cannot reset keys. */
async function letIn() {
  const rejecting = answers.filter(words.isRejected);
  for (const answer of rejecting) {
    const isDone = await act(answer.can_reset ? "reset" : "unban", answer, {}, "let in");
    if (!isDone) return;
  }
  const still = answers.filter(words.isRejected).map(nameOf);
  if (still.length > 0) report("failed", `Still rejected by ${still.join(", ")}: allow it there for a while`);
  else report("done", `${words.short(wanted)} is let in by ${rejecting.map(nameOf).join(", ")}, at ${words.clock(Date.now())}.`);
}

async function lookUp(key) {
  wanted = key;
  byId("key").value = key;
  cards = new Map();
  try {
    report("none", "");
    await look();
  } catch (error) {
    report("failed", `Not known: ${error.message}.`);
  }
}

// ---- The lists ----

/** Fills a table with rows of cells: texts, or elements. */
function fill(id, rows) {
  const table = byId(id);
  const heads = [...table.querySelectorAll("th")].map(({ textContent }) => textContent);
  const cell = (content, index) => {
    const { text = "", element, className = "" } = typeof content === "object" && content ? content : { text: content };
    const made = make("td", text, className);
    if (element) made.append(element);
    made.dataset.head = heads[index];
    return made;
  };
  const signature = JSON.stringify(rows, (name, value) => (value instanceof Element ? value.textContent : value));
  table.hidden = rows.length === 0;
  // Rows that have not changed stay, so that the focus does.
  if (table.dataset.rows === signature) return;
  table.dataset.rows = signature;
  table.tBodies[0].replaceChildren(
    ...rows.map((row) => {
      const made = document.createElement("tr");
      made.append(...row.map(cell));
      return made;
    }),
  );
}

/** A key that is looked up when it is pressed. */
function keyButton(key) {
  if (key === null) return { text: "(only its hash is kept)" };
  const element = make("button", key);
  element.type = "button";
  element.addEventListener("click", () => {
    void lookUp(key);
    scrollTo(0, 0);
  });
  return { element };
}

async function lists() {
  try {
    const [{ policies }, { stores }, { exceptions }, { offenders }] = await Promise.all(["policies", "stores", "exceptions", "offenders"].map((name) => call(name)));
    hasLayers = new Set(policies.map(({ layer }) => layer)).size > 1;
    put(byId("hint"), `Write ${[...new Set(policies.map(({ keys }) => keys))].join("; or ")}.`);
    fill("policies", policies.map((policy) => [nameOf(policy), words.limit(policy), policy.keys, stateOf(policy)]));
    fill("stores", stores.map((store) => [store.node, breakerOf(store), store.policies.map(nameOf).join(", ")]));
    put(byId("stores-note"), stores.length === 0 ? "The budgets are in the memory of this process." : "");
    fill("exceptions", exceptions.map((entry) => [keyButton(entry.key), nameOf(entry), entry.kind === "ban" ? "banned" : "allowed", words.span(entry.left_ms), entry.reason ?? ""]));
    put(byId("exceptions-note"), exceptions.length === 0 ? "Nobody, as far as this process knows." : "");
    showOffenders(offenders);
  } catch (error) {
    console.debug(error);
  }
}

function stateOf({ shadow, shadow_rejected: rejected, failures, table, waiting, in_flight: inFlight }) {
  const parts = [];
  if (shadow) parts.push(`shadow, would have rejected ${rejected.toLocaleString("en")}`);
  if (failures > 0) parts.push(`${failures.toLocaleString("en")} failures`);
  if (table) parts.push(`about ${table.live_keys.toLocaleString("en")} of ${table.capacity.toLocaleString("en")} keys`);
  if (waiting) parts.push(`${waiting.toLocaleString("en")} waiting`);
  if (inFlight) parts.push(`${inFlight.toLocaleString("en")} in flight`);
  return { text: parts.join(", ") || "–", className: failures > 0 ? "bad" : "" };
}

function breakerOf({ breaker, connected }) {
  const text = { closed: "closed: it is called", open: "open: it keeps failing, and is not called for a while", "half-open": "half open: one call probes it" }[breaker];
  return { text: connected === false && breaker === "closed" ? "closed; not connected" : text, className: breaker === "closed" ? "" : "bad" };
}

function showOffenders(all) {
  const rows = all.flatMap((policy) => policy.list.map((entry) => ({ ...entry, policy })));
  rows.sort((a, b) => b.count - a.count);
  const times = ({ count, error }) => (error > 0 ? `${(count - error).toLocaleString("en")} to ${count.toLocaleString("en")}` : count.toLocaleString("en"));
  fill("offenders", rows.map((row) => [row.policy.whole_keys ? keyButton(row.key) : row.key, nameOf(row.policy), { text: times(row), className: "number" }, words.clock(row.first_ms), words.clock(row.last_ms), row.banned_for_ms === null ? "–" : words.span(row.banned_for_ms)]));
  const notes = all.length === 0 ? ["Not counted: no policy tracks its offenders (Policy::track_offenders)."] : rows.length === 0 ? ["Nobody was rejected in this hour and the one before."] : [];
  notes.push(...all.filter(({ missing }) => missing).map((policy) => `${nameOf(policy)}: without the counts of other processes: ${policy.missing}.`));
  put(byId("offenders-note"), notes.join(" "));
}

// ---- Together ----

byId("look").addEventListener("submit", (event) => {
  event.preventDefault();
  void lookUp(byId("key").value);
});
byId("let-in").addEventListener("click", () => void letIn());

/** Calls again and again, with a pause after each answer, while the page is visible. */
async function repeat(pause, once) {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, pause));
    if (!document.hidden) await once().catch((error) => console.debug(error));
  }
}

await lists();
void repeat(LISTS_EVERY, lists);
void repeat(LOOK_EVERY, async () => wanted !== null && (await look()));
