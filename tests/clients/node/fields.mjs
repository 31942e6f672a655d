// The RateLimit fields, as structured-headers (RFC 9651) reads them.

import { parseList, serializeList } from "structured-headers";

import { checked, get, version } from "./measure.mjs";

const ROUTES = ["/fields/one", "/fields/several", "/fields/rare"];
const REQUESTS = 3;

function assert(holds, problem) {
  if (!holds) throw new Error(problem);
}

/** The members of a List that is sent in one line, and in its canonical form. */
function parsed(fields, name) {
  const lines = fields[name] ?? [];
  assert(lines.length === 1, `${lines.length} lines of ${name}`);
  const members = parseList(lines[0]);
  assert(serializeList(members) === lines[0], `${name} is not canonical: ${lines[0]}`);
  return [lines[0], members];
}

function check({ status, fields }) {
  const [policyLine, policies] = parsed(fields, "ratelimit-policy");
  const [line, limits] = parsed(fields, "ratelimit");
  for (const [name, parameters] of policies) {
    const [q, w = 1] = [parameters.get("q"), parameters.get("w")];
    assert(typeof name === "string" && Number.isInteger(q) && q >= 1 && Number.isInteger(w) && w >= 1, policyLine);
  }
  for (const [name, parameters] of limits) {
    const [r, t = 0] = [parameters.get("r"), parameters.get("t")];
    assert(policies.some(([policy]) => policy === name), `${line} names what ${policyLine} does not`);
    assert(Number.isInteger(r) && r >= 0 && Number.isInteger(t) && t >= 0, line);
  }
  const retryAfter = String(fields["retry-after"] ?? "");
  if (status === 429) {
    const used = limits.map(([, parameters]) => parameters).filter((parameters) => parameters.get("r") === 0);
    const windows = used.map((parameters) => parameters.get("t"));
    assert(retryAfter === String(Math.max(...windows)), `retry-after ${retryAfter}, ${line}`);
  } else {
    assert(status === 200 && !retryAfter, `${status}, retry-after ${retryAfter}`);
  }
  return { status, policyLine, line };
}

async function read(server, path) {
  const answers = [];
  for (let number = 0; number < REQUESTS; number++) {
    answers.push(check(await get(server + path, { "x-client": "structured-headers" })));
  }
  assert(new Set(answers.map(({ policyLine }) => policyLine)).size === 1, "the policy changed between answers");
  const { status, policyLine, line } = answers.at(-1);
  assert(status === 429, `not rejected after ${REQUESTS} requests`);
  return { did: `${policyLine} | ${line}` };
}

export function run({ server }) {
  const reader = version("structured-headers");
  return Promise.all(ROUTES.map((path) => checked(`structured-headers: ${path}`, reader, () => read(server, path))));
}
