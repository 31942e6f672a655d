// What the page says: sentences of an answer, and times as people read them.

const UNITS = [[86_400_000, "day", 3_600_000, "h"], [3_600_000, "h", 60_000, "min"], [60_000, "min", 1_000, "s"]];

const GLUE = "\u00a0";

/** A time in one or two units that stay on one line, rounded up: `54 min`, `1 h 20 min`, `2 days`. */
export function span(ms) {
  if (ms < 1_000) return ["less than", 1, "s"].join(GLUE);
  for (const [size, name, least, leastName] of UNITS) {
    const whole = Math.ceil(ms / least) * least;
    if (whole < size) continue;
    const [count, rest] = [Math.floor(whole / size), (whole % size) / least];
    const first = [count, `${name}${name === "day" && count > 1 ? "s" : ""}`];
    return (rest > 0 ? [...first, rest, leastName] : first).join(GLUE);
  }
  return [Math.ceil(ms / 1_000), "s"].join(GLUE);
}

/** The instant at `ms` of the Unix epoch: the time, with the date unless it is today. */
export function clock(ms) {
  const at = new Date(ms);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}

/** The zone of all times: `UTC+2`. */
export function zone() {
  const parts = new Intl.DateTimeFormat("en", { timeZoneName: "shortOffset" }).formatToParts();
  const { value } = parts.find(({ type }) => type === "timeZoneName");
  return value === "GMT" ? "UTC+0" : value.replace("GMT", "UTC");
}

const ends = new Map();

/** An end, computed from a rest. It varies with the time that the answer takes, so the first one stays. */
export function end(name, at) {
  if (!(Math.abs(ends.get(name) - at) < 1_500)) ends.set(name, at);
  return clock(ends.get(name));
}

const count = (number) => number.toLocaleString("en");

/** A number with its noun: `1 failure`, `2 failures`. */
export const counted = (number, one) => `${count(number)} ${one}${number === 1 ? "" : "s"}`;

/** How full a table is. The number of keys is an estimate. */
export const fill = ({ live_keys: keys, capacity }) => (keys === 0 ? `no key, room for ${count(capacity)}` : `about ${count(keys)} of ${counted(capacity, "key")}`);

/** The period of a limit: `second`, `15 min`. */
function period(ms) {
  if (ms === null) return "";
  const [name] = [["second", 1000], ["minute", 60_000], ["hour", 3_600_000], ["day", 86_400_000]].find(([, size]) => size === ms) ?? [span(ms)];
  return ` per ${name}`;
}

/** The limit of a policy in force. */
export function limit({ kind, limit, period_ms: ms, burst, overload }) {
  if (kind === "overload") return `${count(overload.limit)} in flight, as found`;
  if (kind === "balance") return "the units that are credited to a key";
  if (limit === null) return "not advertised";
  if (kind === "in-flight") return `${count(limit)} in flight`;
  const more = burst !== null && burst !== limit ? `, up to ${count(burst)} at once` : "";
  return `${count(limit)}${period(ms)}${more}`;
}

/** The key as it was typed, shortened for a sentence. */
export const short = (key) => (key.length > 80 ? `${key.slice(0, 79)}…` : key);

/** What the keys of policies look like, in short: `a name + an address`, and an example of one, if there is one. */
export function form(keys) {
  const parts = keys.replace(/, or \(shared\) for .*$/, "").replace(/^<|>$/g, "").split("> + <");
  const read = parts.map((part) => part.match(/^(.*?),? such as ([^\s,]+)/) ?? [part, part, null]);
  const name = read.map(([, what]) => (what === "a text that is not empty" ? "a name" : what)).join(" + ");
  const example = read.every(([, , such]) => such) ? read.map(([, , such]) => such).join(" + ") : null;
  return { name, example };
}

/** What to write into the field, for policies with these keys. */
export function hint(keys) {
  const forms = keys.map(form);
  const texts = new Set(forms.map(({ name, example }) => example ?? name));
  return `${forms.every(({ example }) => example) ? "Such as" : "Write"} ${[...texts].join(", or ")}`;
}

/** Why a policy was not asked. */
export function notChecked(name, keys) {
  const { name: what, example } = form(keys);
  return `Not checked: ${name}. Its keys are ${what}${example ? `, such as ${example}` : ""}.`;
}

/** When a ban or an allowance ends, and since when it is there. */
function times(name, { left_ms: left, since_ms: since }, now) {
  return `until ${end(name, now + left)} (another ${span(left)})${since === null ? "" : `, since ${clock(now - since)}`}`;
}

/** What a policy, with these `terms`, says about a key. `now`: when it said so. `isKnown`: whether the key was seen before. */
export function says(answer, now, isKnown) {
  const { layer, policy, state, kind, left, limit, ban, allowance, passes_in_ms: next, full_in_ms: full, terms } = answer;
  const name = `${layer} ${policy}`;
  if (state === "banned" && ban.by_hand) return `Banned by hand ${times(name, ban, now)}: ${ban.reason}`;
  if (state === "banned") return `Banned ${times(name, ban, now)}: it kept sending although it was rejected.`;
  if (state === "allowed") return `Allowed by hand ${times(name, allowance, now)}, whatever it sends: ${allowance.reason}`;
  if (state === "unknown") return `Not known: ${answer.error}.`;
  if (kind === "overload") return `${count(limit - left)} of ${count(limit)} in flight, over all keys.`;
  if (kind === "balance") return left > 0 ? `Passes: ${counted(left, "unit")} left.` : "No units left: nothing was credited, or all is used.";
  if (kind === "in-flight") {
    if (state === "passes") return `Passes: ${count(limit - left)} of ${count(limit)} in flight.`;
    return `All ${count(limit)} are in flight: the next request passes when one of them has ended.`;
  }
  const most = count(limit);
  const back = `all ${most} are back at ${end(`${name} full`, now + full)}`;
  if (state === "passes" && full > 0) return `Passes: ${count(left)} of ${most} left; ${back}.`;
  if (state === "passes" && isKnown) return `Passes: nothing used, ${count(left)} of ${most} left.`;
  if (state === "passes") return "Nothing used: nobody with this key has come lately, or it is spelled otherwise (upper and lower case count).";
  // The limit of a bucket is its burst. A key may have a quota of its own, whose period is not known.
  const rate = terms?.burst === limit && terms.limit !== limit ? ` (${count(terms.limit)}${period(terms.period_ms)})` : "";
  const used = `Used all ${most}${terms?.limit === limit ? period(terms.period_ms) : rate}.`;
  if (next === null || next === full) return `${used} A${back.slice(1)}.`;
  return `${used} The next request passes at ${end(`${name} next`, now + next)}; ${back}.`;
}

/** How often the key was rejected, and what else is to know. */
export function more(answer, now) {
  const parts = [];
  const { state, ban, allowance, rejections, kind } = answer;
  const byHand = ban ?? allowance;
  if (answer.shadow) parts.push("A shadow: it rejects no request.");
  if (byHand?.by_hand && byHand.since_ms === null) parts.push("Made by another process: its log says when.");
  if (rejections) {
    const { count: times, error, first_ms: first, last_ms: last } = rejections;
    if (times === 1) parts.push(`1 rejection, at ${clock(last)}.`);
    else parts.push(`${error > 0 ? `${count(times - error)} to ${count(times)}` : count(times)} rejections: first ${clock(first)}, last ${clock(last)}.`);
  } else if (kind === "fixed-window" && state === "limited" && answer.period_ms) {
    parts.push(`Its window began at ${clock(now + answer.full_in_ms - answer.period_ms)}.`);
  } else if (rejections === undefined && state === "limited") {
    parts.push("Since when is not known: the policy does not track its offenders.");
  } else if (rejections === null && state === "limited") {
    parts.push("It was not rejected, or too seldom to be listed.");
  }
  return parts.join(" ");
}

/** What is wrong with a call, as a sentence. `span` is what was typed as its time. */
export function problem(detail, span) {
  const text = (detail.startsWith("`for`") ? `“${span}”${detail.slice(5)}` : detail).replaceAll("`", "");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}`;
}

/** Whether the policy has seen the key, as far as it remembers. */
export const isUsed = ({ state, full_in_ms: full, rejections }) => ["limited", "banned", "allowed"].includes(state) || full > 0 || Boolean(rejections);

/** Whether requests of the key are rejected now. */
export const isRejected = ({ state, shadow }) => !shadow && (state === "limited" || state === "banned");
