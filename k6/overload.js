// Shows what a server that is offered more than it can do still does in time: the same requests to a route that protects
// its worker and to a bare one, at 1, 2, 5 and 10 times what the worker can do. What counts is goodput, the responses
// within 100 ms; a client gives up after a second. A fifth of the requests are of the high class, and of two tenants, one
// sends three of five requests.
//
//     cargo run --release -p tower-sluice-server -- --config k6/limits.toml
//     k6 run --log-output=none k6/overload.js
//
// With `-e INLINE=1`, requests compute on the worker of the runtime itself, which is the server's only one:
//
//     cargo run --release -p tower-sluice-server -- --config k6/inline.toml --workers 1
//
// Without the option of the log, k6 logs each client that gives up. With `-e CURVE=FILE`, the goodput by load is written to that file.
//
// A request is 20 ms of work: at ten times the capacity, k6 and the rejections then need less than the other processor of a
// machine with two. A machine with other things to do is slower, and so the checks of time are three times as generous, and
// hold for a run only if the worker had the processor for a third of the time: `watch` reads that from the server.

import exec from 'k6/execution';
import { check, sleep } from 'k6';
import http from 'k6/http';
import { Counter, Gauge, Rate, Trend } from 'k6/metrics';
import { Client, SERVERS, summaryOf, testOptions } from './lib.js';

const PATHS = __ENV.INLINE
  ? { bare: '/overload/inline/bare', protected: '/overload/inline' }
  : { bare: '/overload/bare', protected: '/overload' };
const TIMES = [1, 2, 5, 10];
const MOST = TIMES[TIMES.length - 1];
const PROMPT_MS = 100;
const CHECKED_MS = 3 * PROMPT_MS;
const WORK_MS = 20;
const SLOWEST_MS = 3 * WORK_MS;
// Each load, of which the first second does not count: the worker has begun with an empty queue.
const SECONDS = 4;
const COUNTED_FROM_MS = 1000;
const COUNTED_SECONDS = SECONDS - COUNTED_FROM_MS / 1000;
// Until all clients of a load have given up.
const PAUSE_SECONDS = 1.5;
const MEASURE_MS = 2000;
// As many requests at a time keep the worker busy.
const BUSY = 3;
// An iteration sends what is due in its slot of time, so that the rate can follow the capacity that was measured.
const SLOTS_PER_SECOND = 20;
// More than there are requests.
const EXCUSED = 1e6;
const RESULTS = ['sent', 'prompt', 'late', 'rejected', 'left'];

http.setResponseCallback(http.expectedStatuses(200, 503));

const loads = TIMES.flatMap((times) => Object.keys(PATHS).map((route) => ({ name: `${route}_${times}`, route, times })));
const clients = { bare: new Client('bare'), protected: new Client('protected') };
// By load and by result.
const counts = {};
for (const { name } of loads) {
  counts[name] = Object.fromEntries(RESULTS.map((result) => [result, new Counter(`${name}_${result}`)]));
}
const capacity = new Gauge('capacity');
// How long the worker took for a request at the highest load, and the longest that the server took for one without work.
const workTook = new Gauge('work_took', true);
const idleTook = new Trend('idle_took', true);
// At the highest load, in requests: those of the protected route that were served in time, less those that were served
// too late; and less those of the bare route that were served in time. Both count as positive on a machine that is too busy.
const inTime = new Counter('in_time');
const gain = new Counter('gain');
// Positive if more requests of the high class are served than of the others, in proportion to what is sent.
const preference = new Counter('preference');
// Of what is served at more than the capacity.
const forModest = new Rate('for_modest_tenant');

export const options = testOptions({
  scenarios: {
    watch: {
      executor: 'per-vu-iterations',
      vus: 1,
      iterations: 1,
      startTime: `${(loads.length - 1) * (SECONDS + PAUSE_SECONDS) + COUNTED_FROM_MS / 1000}s`,
      exec: 'watch',
    },
    ...Object.fromEntries(loads.map(({ name, route, times }, index) => [
      name,
      {
        executor: 'constant-arrival-rate',
        rate: SLOTS_PER_SECOND,
        duration: `${SECONDS}s`,
        startTime: `${index * (SECONDS + PAUSE_SECONDS)}s`,
        gracefulStop: `${PAUSE_SECONDS}s`,
        // A slot is over when its last client is.
        preAllocatedVUs: 2 * SLOTS_PER_SECOND,
        env: { ROUTE: route, TIMES: String(times) },
        exec: 'offer',
      },
    ])),
  },
  thresholds: {
    // Clients that give up.
    http_req_failed: [],
    in_time: ['count>0'],
    // Half, in the long run; it sends two of five.
    for_modest_tenant: ['rate>=0.35'],
    gain: ['count>0'],
    preference: ['count>0'],
    protected_rejected: ['count>0'],
  },
});

// Measures how many requests per second the worker does while it is always busy.
export async function setup() {
  // The server measures the processor before its first request.
  for (const path of Object.values(PATHS)) check(http.get(SERVERS[0] + path), { answers: ({ status }) => status === 200 });
  const begun = Date.now();
  let served = 0;
  const ask = async () => {
    while (Date.now() < begun + MEASURE_MS) {
      const { status } = await http.asyncRequest('GET', SERVERS[0] + PATHS.bare);
      if (status !== 200) exec.test.abort(`status ${status} of a route with nothing to do`);
      served += 1;
    }
  };
  await Promise.all(Array.from({ length: BUSY }, ask));
  const perSecond = (1000 * served) / (Date.now() - begun);
  capacity.add(perSecond);
  return { perSecond };
}

// Sends the requests of one slot, evenly spaced, and waits for their answers.
export async function offer({ perSecond }) {
  const { ROUTE: route, TIMES: times } = __ENV;
  const perSlot = (Number(times) * perSecond) / SLOTS_PER_SECOND;
  const slot = exec.scenario.iterationInTest;
  const first = Math.floor(slot * perSlot);
  const end = Math.floor((slot + 1) * perSlot);
  const begun = Date.now();
  const answers = [];
  for (let number = first; number < end; number += 1) {
    const due = begun + ((number - first) / (end - first)) * (1000 / SLOTS_PER_SECOND);
    if (due > Date.now()) sleep((due - Date.now()) / 1000);
    answers.push(send(route, Number(times), number));
  }
  await Promise.all(answers);
}

async function send(route, times, number) {
  const isHigh = number % 5 === 0;
  // The second and the fourth of five in each class.
  const inClass = isHigh ? number / 5 : number - Math.ceil(number / 5);
  const isModest = inClass % 5 === 1 || inClass % 5 === 3;
  const headers = { 'X-Tenant': isModest ? 'modest' : 'greedy', 'X-Class': isHigh ? 'high' : 'normal' };
  const counted = Date.now() >= exec.scenario.startTime + COUNTED_FROM_MS;
  const answer = await http.asyncRequest('GET', SERVERS[0] + PATHS[route], null, { headers, timeout: '1s' });
  // A connection that an overloaded server is slow to accept makes its client wait, too.
  const ms = answer.timings.connecting + answer.timings.duration;
  const result = resultOf(answer, ms);
  note(clients[route], answer, ms);
  if (result === 'rejected') checkRejection(answer);
  if (!counted) return;
  const count = counts[`${route}_${times}`];
  count.sent.add(1);
  count[result].add(1);
  if (route === 'protected' && times > 1 && answer.status === 200) forModest.add(isModest);
  if (times !== MOST || answer.status !== 200) return;
  const isInTime = ms <= CHECKED_MS;
  if (route === 'bare') {
    if (isInTime) gain.add(-1);
    return;
  }
  inTime.add(isInTime ? 1 : -1);
  if (isInTime) gain.add(1);
  // Of the others, four times as many are sent.
  preference.add(isHigh ? 4 : -1);
}

// Sees whether the machine lets the worker work, and the server answer, at the highest load on the protected route.
export function watch() {
  const worker = () => http.get(`${SERVERS[0]}/overload/state`).json().worker;
  const before = worker();
  const end = Date.now() + 1000 * COUNTED_SECONDS;
  let longest = 0;
  while (Date.now() < end) {
    longest = Math.max(longest, http.get(`${SERVERS[0]}/healthz`).timings.duration);
    sleep(0.1);
  }
  const after = worker();
  const took = (after.busy_us - before.busy_us) / 1000 / Math.max(1, after.done - before.done);
  workTook.add(took);
  idleTook.add(longest);
  if (took <= SLOWEST_MS && longest <= PROMPT_MS) return;
  inTime.add(EXCUSED);
  gain.add(EXCUSED);
}

function resultOf({ status }, ms) {
  if (status === 200) return ms <= PROMPT_MS ? 'prompt' : 'late';
  return status === 0 ? 'left' : 'rejected';
}

function note(client, { status }, ms) {
  client.offered.add(1);
  if (status === 0) return;
  client.latency.add(ms);
  if (status === 200) client.admitted.add(1);
  else client.rejected.add(1);
}

// In one check: there are thousands of them.
function checkRejection({ status, headers, body }) {
  const wait = headers['Retry-After'];
  check(headers, {
    'rejection: a problem document says that the server is overloaded, with an estimate or none': () =>
      status === 503 &&
      (wait === undefined || /^([1-9]|[12][0-9]|30)$/.test(wait)) &&
      headers['Content-Type'] === 'application/problem+json' &&
      headers['Cache-Control'] === 'no-store' &&
      body.includes('#temporary-reduced-capacity"'),
  });
}

const summary = summaryOf(__ENV.INLINE ? 'overload_inline' : 'overload', clients.bare, clients.protected);

export function handleSummary(data) {
  const { metrics } = data;
  const most = metrics.capacity?.values.value ?? 0;
  const perSecond = ({ name }, result) => Math.round((metrics[`${name}_${result}`]?.values.count ?? 0) / COUNTED_SECONDS);
  const rows = loads.map((load) => [load.times, load.route, ...RESULTS.map((result) => perSecond(load, result))]);
  const head = ['times', 'route', ...RESULTS];
  const table = [head, ...rows].map((row) => '  ' + row.map((cell) => String(cell).padStart(9)).join(' ')).join('\n');
  const files = summary(data);
  const took = Math.round(metrics.work_took?.values.value ?? 0);
  const longest = Math.round(metrics.idle_took?.values.max ?? 0);
  const isBusy = took > SLOWEST_MS || longest > PROMPT_MS;
  files.stdout =
    `capacity ${Math.round(most)} per second; requests per second, of which prompt ones are the goodput:\n${table}\n` +
    `at the highest load, ${took} ms of the worker for a request, and up to ${longest} ms of the server for one without work` +
    `${isBusy ? ': this machine is too busy for the checks of time' : ''}\n${files.stdout}`;
  if (__ENV.CURVE) {
    const comments = [`# ${__ENV.ORIGIN || 'an unknown machine'}`, `# capacity ${Math.round(most)}`];
    files[__ENV.CURVE] = [...comments, head.join(), ...rows.map((row) => row.join())].join('\n') + '\n';
  }
  return files;
}
