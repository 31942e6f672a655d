// Shows an outage from the clients' side: Redis is killed under load and restarted. No request is answered 5xx, and
// none waits for it; each server limits locally meanwhile, and soon after the restart they limit together again.
//
// The caller kills Redis at KILL_AT and restarts it at BACK_AT, in milliseconds since 1970:
// `scripts/demo redis_outage` does.

import exec from 'k6/execution';
import { sleep } from 'k6';
import { Counter } from 'k6/metrics';
import { Client, SERVERS, summaryOf, testOptions } from './lib.js';

const PATH = '/token-bucket';
const RATE = 10; // per second and client
const BURST = 20;
const TIMEOUT_MS = 50;

const KILL_AT = Number(__ENV.KILL_AT);
const BACK_AT = Number(__ENV.BACK_AT);
const RECOVERED_AT = BACK_AT + 6000;
const MEASURED_S = 8;
const END = RECOVERED_AT + 1000 * MEASURED_S;
const OUT_S = (BACK_AT - KILL_AT) / 1000;

const client = new Client();
const byServer = SERVERS.map((base) => new Client('', base));
// Admissions by the servers alone, and by both together again.
const alone = new Counter('admitted_alone');
const together = new Counter('admitted_together');

export const options = testOptions({
  scenarios: { clients: { executor: 'constant-vus', vus: 4, duration: `${Math.ceil((END - Date.now()) / 1000)}s` } },
  thresholds: {
    // No server failed: all answers are 200 or 429.
    http_req_failed: ['rate==0'],
    latency: [`p(90)<${TIMEOUT_MS}`],
    // Each server admits at most its own limit, and the bursts were spent before.
    admitted_alone: [`count<=${2 * (RATE * OUT_S + BURST)}`, `count>=${RATE * OUT_S}`],
    // What the bucket holds when the measurement begins, since clients may have paused, and what it earns meanwhile.
    admitted_together: [`count<=${RATE * MEASURED_S + BURST}`, `count>=${0.9 * RATE * MEASURED_S}`],
  },
});

export default function () {
  const asked = Date.now();
  const { status } = byServer[exec.vu.idInTest % SERVERS.length].get(PATH);
  if (status === 200) {
    const answered = Date.now();
    if (asked > KILL_AT + 1000 && answered < BACK_AT) alone.add(1);
    if (asked > RECOVERED_AT && answered < END) together.add(1);
  }
  sleep(0.005);
}

export const handleSummary = summaryOf('redis_outage', client);
