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
  // A name and a password in the address of the page are no part of a call: browsers send them by themselves, and
  // refuse an address that has them.
  const address = new URL(`api/${name}`, document.baseURI);
  address.username = address.password = "";
  let answer;
  try {
    answer = await fetch(address, { ...options, cache: "no-store", signal: AbortSignal.timeout(10_000) });
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
/** The policies in force, by name. */
let inForce = new Map();
/** The keys in the lists. */
let listed = new Set();

/** Looks up the wanted key. An answer that comes after another key was asked for is dropped. */
async function look() {
  const key = wanted;
  const found = await call("key", { key });
  if (key === wanted) show(found.policies, Date.now());
}

const fail = (message) => report("failed", `Not done: ${words.problem(message)}`);

function show(policies, now) {
  answers = policies;
  const mine = policies.filter(({ state }) => state !== "no-key");
  const others = policies.filter(({ state }) => state === "no-key");
  const isKnown = listed.has(wanted) || mine.some(words.isUsed);
  const kept = new Map();
  for (const answer of mine) {
    const name = nameOf(answer);
    const card = cards.get(name) ?? new Card(act, fail);
    card.show({ ...answer, terms: inForce.get(name) }, now, name, isKnown);
    kept.set(name, card);
  }
  cards = kept;
  const articles = [...cards.values()].map(({ article }) => article);
  if (articles.length !== byId("cards").children.length || articles.some((article, index) => byId("cards").children[index] !== article)) byId("cards").replaceChildren(...articles);
  byId("others").replaceChildren(...others.map((answer) => make("li", words.notChecked(nameOf(answer), answer.keys))));
  summarise(mine, others);
  suggest(others);
}

const namesOf = (policies) => policies.map(nameOf).join(", ");

/** What was checked and what was not: a policy that takes no such key says nothing about the client. */
function summarise(mine, others) {
  const rejecting = mine.filter(words.isRejected);
  const unknown = mine.filter(({ state }) => state === "unknown");
  const passing = mine.filter((answer) => !rejecting.includes(answer) && !unknown.includes(answer));
  const key = words.short(wanted);
  byId("found").hidden = false;
  byId("let-in").hidden = rejecting.length === 0;
  const parts = [];
  if (unknown.length > 0) parts.push(`not known by ${namesOf(unknown)}.`);
  if (passing.length > 0) parts.push(`not limited by ${namesOf(passing)}.`);
  if (others.length > 0) parts.push(`not checked: ${namesOf(others)}.`);
  const sentences = parts.map((part, index) => (index === 0 ? part : `N${part.slice(1)}`)).join(" ");
  if (mine.length === 0) put(byId("summary"), `“${key}” is no key of any policy.`);
  else if (rejecting.length > 0) put(byId("summary"), `${key} is rejected by ${namesOf(rejecting)}`);
  else put(byId("summary"), `${key}: ${sentences}`);
}

/** Offers listed keys that have the typed text as a part, but for spaces, case and `+`. */
function suggest(others) {
  const fold = (key) => key.toLowerCase().replace(/[\s+]/g, "");
  const isDoubtful = fold(wanted) !== "" && (others.length > 0 || !listed.has(wanted));
  const keys = [...listed].filter((key) => isDoubtful && key !== wanted && fold(key).includes(fold(wanted))).slice(0, 5);
  const place = byId("suggestions");
  place.hidden = keys.length === 0;
  const signature = JSON.stringify(keys);
  if (place.dataset.keys === signature) return;
  place.dataset.keys = signature;
  place.replaceChildren("Did you mean ", ...keys.flatMap((key, index) => (index === 0 ? [keyButton(key).element] : [" or ", keyButton(key).element])), "?");
}

/** Carries out a call about the wanted key, and shows the answer. */
async function carryOut(name, { layer, policy }, more) {
  const answer = await call(name, { key: wanted, layer, policy, ...more });
  show(answers.map((before) => (before.layer === layer && before.policy === policy ? answer : before)), Date.now());
  void lists();
}

/** What was done, and where. */
function done(verb, policies, more = "") {
  report("done", `Done ${words.clock(Date.now())}: ${words.short(wanted)} ${verb} (${namesOf(policies)})${more}`);
}

/** Carries out a call, and reports it. */
async function act(name, answer, more, [verb, means]) {
  await carryOut(name, answer, more);
  if (name === "unban" && answer.state === "allowed") done("no longer allowed", [answer], means);
  else done(verb, [answer], means);
}

/** Resets each policy that rejects the key, or ends its ban there if the policy cannot reset keys. */
async function letIn() {
  const rejecting = answers.filter(words.isRejected);
  try {
    for (const answer of rejecting) await carryOut(answer.can_reset ? "reset" : "unban", answer);
  } catch ({ message }) {
    fail(message);
    return;
  }
  const still = answers.filter(words.isRejected);
  if (still.length > 0) report("failed", `Still rejected by ${namesOf(still)}: allow it there for a while.`);
  else done("let in", rejecting);
}

/** What is shown is about the wanted key: it cannot be acted on while the field has another one. */
function compareWithField() {
  for (const id of ["found", "cards"]) byId(id).inert = byId("key").value !== wanted;
}

async function lookUp(key) {
  if (key.trim() === "") {
    report("failed", "Type a key first.");
    byId("key").focus();
    return;
  }
  wanted = key;
  byId("key").value = key;
  cards = new Map();
  compareWithField();
  try {
    report("none", "");
    await Promise.all([lists(), look()]);
  } catch ({ message }) {
    report("failed", `Not known: ${words.problem(message)}`);
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
    inForce = new Map(policies.map((policy) => [nameOf(policy), policy]));
    put(byId("hint"), words.hint(policies.map(({ keys }) => keys)));
    const whole = offenders.flatMap(({ list }) => list).filter((entry) => entry.whole);
    listed = new Set([...whole, ...exceptions].map(({ key }) => key));
    const now = Date.now();
    fill("policies", policies.map((policy) => [nameOf(policy), words.limit(policy), policy.keys, stateOf(policy)]));
    fill("stores", stores.map((store) => [store.node, breakerOf(store), store.policies.map(nameOf).join(", ")]));
    put(byId("stores-note"), stores.length === 0 ? "The budgets are in the memory of this process." : "");
    fill("exceptions", exceptions.map((entry) => [keyButton(entry.key), nameOf(entry), entry.kind === "ban" ? "banned" : "allowed", words.end(`${nameOf(entry)} ${entry.key}`, now + entry.left_ms), entry.reason ?? ""]));
    put(byId("exceptions-note"), exceptions.length === 0 ? "Nobody, as far as this process knows." : "");
    showOffenders(offenders, now);
  } catch (error) {
    console.debug(error);
  }
}

function stateOf({ shadow, shadow_rejected: rejected, failures, table, waiting, in_flight: inFlight, overload }) {
  const parts = [];
  if (shadow) parts.push(`shadow, would have rejected ${rejected.toLocaleString("en")}`);
  if (failures > 0) parts.push(words.counted(failures, "failure"));
  if (table) parts.push(words.fill(table));
  if (waiting) parts.push(`${waiting.toLocaleString("en")} waiting`);
  if (inFlight) parts.push(`${inFlight.toLocaleString("en")} in flight`);
  if (overload?.shed) parts.push(`${overload.shed.toLocaleString("en")} shed`);
  if (overload?.overloaded) parts.push("overloaded");
  return { text: parts.join(", ") || "–", className: failures > 0 || overload?.overloaded ? "bad" : "" };
}

function breakerOf({ breaker, connected }) {
  const text = { closed: "closed: it is called", open: "open: it keeps failing, and is not called for a while", "half-open": "half open: one call probes it" }[breaker];
  return { text: connected === false && breaker === "closed" ? "closed; not connected" : text, className: breaker === "closed" ? "" : "bad" };
}

function showOffenders(all, now) {
  const rows = all.flatMap((policy) => policy.list.map((entry) => ({ ...entry, policy })));
  rows.sort((a, b) => b.count - a.count);
  const times = ({ count, error }) => (error > 0 ? `${(count - error).toLocaleString("en")} to ${count.toLocaleString("en")}` : count.toLocaleString("en"));
  fill("offenders", rows.map((row) => [row.whole ? keyButton(row.key) : row.key, nameOf(row.policy), { text: times(row), className: "number" }, words.clock(row.first_ms), words.clock(row.last_ms), row.banned_for_ms === null ? "–" : words.end(`${nameOf(row.policy)} ${row.key}`, now + row.banned_for_ms)]));
  const notes = all.length === 0 ? ["Not counted: no policy tracks its offenders (Policy::track_offenders)."] : rows.length === 0 ? ["Nobody."] : [];
  notes.push(...all.filter(({ missing }) => missing).map((policy) => `${nameOf(policy)}: without the counts of other processes: ${policy.missing}.`));
  put(byId("offenders-note"), notes.join(" "));
}

// ---- Together ----

byId("look").addEventListener("submit", (event) => {
  event.preventDefault();
  void lookUp(byId("key").value);
});
byId("key").addEventListener("input", compareWithField);
byId("let-in").addEventListener("click", () => void letIn());

/** Calls again and again, with a pause after each answer, while the page is visible. */
async function repeat(pause, once) {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, pause));
    if (!document.hidden) await once().catch((error) => console.debug(error));
  }
}

put(byId("zone"), `times in ${words.zone()}`);
await lists();
void repeat(LISTS_EVERY, lists);
void repeat(LOOK_EVERY, async () => wanted !== null && (await look()));
