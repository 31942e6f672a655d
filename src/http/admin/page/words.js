// What the page says: sentences of an answer, and times as people read them.

const UNITS = [[86_400_000, "day", 3_600_000, "h"], [3_600_000, "h", 60_000, "min"], [60_000, "min", 1_000, "s"]];

/** A time in one or two units, rounded up: `54 min`, `1 h 20 min`, `2 days`. */
export function span(ms) {
  if (ms < 1_000) return "less than 1 s";
  for (const [size, name, least, leastName] of UNITS) {
    const whole = Math.ceil(ms / least) * least;
    if (whole < size) continue;
    const [count, rest] = [Math.floor(whole / size), (whole % size) / least];
    const first = `${count} ${name}${name === "day" && count > 1 ? "s" : ""}`;
    return rest > 0 ? `${first} ${rest} ${leastName}` : first;
  }
  return `${Math.ceil(ms / 1_000)} s`;
}

/** The instant at `ms` of the Unix epoch: the time, with the date unless it is today. */
export function clock(ms) {
  const at = new Date(ms);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}

const count = (number) => number.toLocaleString("en");

/** The period of a limit: `second`, `15 min`. */
function period(ms) {
  if (ms === null) return "";
  const [name] = [["second", 1000], ["minute", 60_000], ["hour", 3_600_000], ["day", 86_400_000]].find(([, size]) => size === ms) ?? [span(ms)];
  return ` per ${name}`;
}

/** The limit of a policy in force. */
export function limit({ kind, limit, period_ms: ms, burst }) {
  if (limit === null) return "not advertised";
  if (kind === "in-flight") return `${count(limit)} in flight`;
  const more = burst !== null && burst !== limit ? `, up to ${count(burst)} at once` : "";
  return `${count(limit)}${period(ms)}${more}`;
}

/** The key as it was typed, shortened for a sentence. */
export const short = (key) => (key.length > 80 ? `${key.slice(0, 79)}…` : key);

/** What a policy says about a key. `now`: when it said so. */
export function says(answer, now) {
  const { state, kind, left, limit, ban, allowance } = answer;
  if (state === "banned" && ban.by_hand) return `Banned by hand for another ${span(ban.left_ms)}: ${ban.reason}`;
  if (state === "banned") return `Banned for another ${span(ban.left_ms)}: it kept sending although it was rejected`;
  if (state === "allowed") return `Allowed by hand for another ${span(allowance.left_ms)}, whatever it sends: ${allowance.reason}`;
  if (state === "unknown") return `Not known: ${answer.error}`;
  const full = answer.full_in_ms > 0 && kind !== "in-flight" ? `, full again in ${span(answer.full_in_ms)}` : "";
  if (state === "passes") return left === limit ? `Passes: nothing used, ${count(left)} of ${count(limit)} left` : `Passes: ${count(left)} of ${count(limit)} left${full}`;
  if (kind === "in-flight") return `Rejected while all ${count(limit)} are in flight: the next request passes when one of them has ended`;
  const until = answer.passes_in_ms === null ? "Rejected" : `Rejected until ${clock(now + answer.passes_in_ms)}`;
  return `${until}: used all ${count(limit)}${kind.endsWith("window") ? period(answer.period_ms) : ""}${full}`;
}

/** Since when, and how often. */
export function more(answer, now) {
  const parts = [];
  const { state, ban, allowance, rejections, kind } = answer;
  const byHand = ban ?? allowance;
  if (answer.shadow) parts.push("A shadow: it rejects no request.");
  if (byHand?.since_ms != null) parts.push(`Since ${clock(now - byHand.since_ms)}.`);
  else if (byHand?.by_hand) parts.push("Made by another process: its log says when.");
  if (rejections) {
    const { count: times, error, first_ms: first, last_ms: last } = rejections;
    const about = error > 0 ? `${count(times - error)} to ${count(times)} times` : times === 1 ? "once" : `${count(times)} times`;
    parts.push(`Rejected ${about} since ${clock(first)}, last at ${clock(last)}.`);
  } else if (kind === "fixed-window" && state === "limited" && answer.period_ms) {
    parts.push(`Its window began at ${clock(now + answer.full_in_ms - answer.period_ms)}.`);
  } else if (rejections === undefined && state === "limited") {
    parts.push("Since when is not known: the policy does not track its offenders.");
  } else if (rejections === null && state === "limited") {
    parts.push("It was not rejected, or too seldom to be listed.");
  }
  return parts.join(" ");
}

/** Whether requests of the key are rejected now. */
export const isRejected = ({ state, shadow }) => !shadow && (state === "limited" || state === "banned");
