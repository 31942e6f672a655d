// Shows that the leaky bucket as a queue delays instead of rejecting: one request departs per second, in
// order of arrival, ten wait, and a request that finds the queue full is rejected at once.
//
//     cargo run --release -p tower-sluice-server -- --config k6/limits.toml
//     k6 run k6/leaky_queue.js

import exec from 'k6/execution';
import { check, sleep } from 'k6';
import { Trend } from 'k6/metrics';
import { Client, summaryOf, testOptions } from './lib.js';

const PATH = '/leaky-queue';
const INTERVAL_MS = 1000;
const CAPACITY = 10;
const CROWD_SECONDS = 20;

const client = new Client();
// How much later than the n-th interval after the first the n-th request departed, on the server's clock.
const drift = new Trend('drift', true);
// Between two successive departures, on the server's clock.
const gap = new Trend('gap', true);
// From arrival to departure, once the queue is full.
const fullWait = new Trend('full_wait', true);
const rejection = new Trend('rejection', true);

export const options = testOptions({
  scenarios: {
    crowd: {
      executor: 'constant-vus',
      vus: 20,
      duration: `${CROWD_SECONDS}s`,
      // Requests that wait at the end still depart.
      gracefulStop: `${CAPACITY + 5}s`,
      exec: 'crowd',
    },
    // Starts when the crowd is gone.
    order: {
      executor: 'per-vu-iterations',
      vus: 1,
      iterations: 1,
      startTime: `${CROWD_SECONDS + CAPACITY + 3}s`,
      exec: 'order',
    },
  },
  thresholds: {
    // Never early. Late by a slow start, or a stall of the machine, which the queue
    // does not catch up on: that would be a burst.
    drift: ['min>=-100', 'max<=500'],
    gap: [`min>=${INTERVAL_MS - 150}`, `max<=${INTERVAL_MS + 250}`],
    // One waiter departs per second, and another client arrives a little later.
    full_wait: [`min>=${INTERVAL_MS * (CAPACITY - 2)}`, `max<=${INTERVAL_MS * CAPACITY + 500}`],
    rejection: ['p(90)<100'],
    'admitted{scenario:crowd}': [`count>=${CROWD_SECONDS + CAPACITY - 2}`],
    'rejected{scenario:crowd}': ['count>=50'],
  },
});

// Sends the request from which all departures are measured.
export function setup() {
  sleep(INTERVAL_MS / 1000 + 0.1);
  return client.get(PATH).json();
}

// Twenty clients, of which eleven fit: ten wait, one is served.
export function crowd(first) {
  const begun = Date.now();
  const answer = client.get(PATH);
  if (answer.status === 200) {
    const { served, at_ms } = answer.json();
    drift.add(at_ms - first.at_ms - INTERVAL_MS * (served - first.served));
    if (begun >= exec.scenario.startTime + 1.5 * INTERVAL_MS) {
      fullWait.add(answer.timings.duration);
    }
    // Lets another client arrive first.
    sleep(Math.random());
  } else {
    rejection.add(answer.timings.duration);
    check(answer, { 'rejection: a retry is accepted within one interval': () => answer.headers['Retry-After'] === '1' });
    sleep(Number(answer.headers['Retry-After']) + 0.2 * Math.random());
  }
}

// One client that sends without waiting for answers knows the order of arrival. One request passes,
// ten wait, and the last finds the queue full.
export async function order() {
  const promises = [];
  for (let i = 0; i < 1 + CAPACITY + 1; i++) {
    promises.push(client.getLater(PATH));
    // Far enough apart to arrive in this order, and all before the first waiter departs.
    sleep(0.04);
  }
  const answers = await Promise.all(promises);
  const last = answers.pop();
  check(last, { 'a full queue rejects': () => last.status === 429 });
  check(answers, { 'a queue that is not full does not': () => answers.every(({ status }) => status === 200) });

  const departures = answers.map((answer) => answer.json());
  departures.slice(1).forEach(({ served, at_ms }, i) => {
    const before = departures[i];
    check(served, { 'the order of arrival is the order of departure': () => served === before.served + 1 });
    gap.add(at_ms - before.at_ms);
  });
}

export const handleSummary = summaryOf('leaky_queue', client);
