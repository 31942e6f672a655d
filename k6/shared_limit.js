// Shows that two servers on one Redis enforce one limit together: a window admits exactly its limit, and a bucket
// less than one per cent too many over half a minute.
//
//     cargo run --release -p tower-sluice-server --features redis -- \
//         --listen 127.0.0.1:3000 --config k6/limits.toml --redis redis://127.0.0.1:6379
//     cargo run --release -p tower-sluice-server --features redis -- \
//         --listen 127.0.0.1:3001 --config k6/limits.toml --redis redis://127.0.0.1:6379
//     k6 run -e BASE_URLS=http://127.0.0.1:3000,http://127.0.0.1:3001 k6/shared_limit.js

import { check, sleep } from 'k6';
import { Trend } from 'k6/metrics';
import { BLUR_MS, Client, LIMIT, PERIOD_MS, SERVERS, edgeAfter, findEdge, summaryOf, testOptions } from './lib.js';

const RATE = 10; // per second
const BURST = 20;
const SECONDS = 30;
const WINDOWS = 3;
// A call, on its own or shared, is over by then.
const WINDOWS_TAKE = `${((WINDOWS + 3) * PERIOD_MS) / 1000}s`;

const windowed = new Client('window');
const steady = new Client('bucket');
const inOneWindow = new Trend('admitted_in_one_window');

export const options = testOptions({
  scenarios: {
    window: { executor: 'per-vu-iterations', vus: 1, iterations: WINDOWS, exec: 'window' },
    bucket: { executor: 'constant-vus', vus: 4, duration: `${SECONDS}s`, startTime: WINDOWS_TAKE, exec: 'bucket' },
  },
  thresholds: {
    admitted_in_one_window: [`min==${LIMIT}`, `max==${LIMIT}`],
    bucket_admitted: [
      `count<=${Math.floor(1.01 * (BURST + RATE * SECONDS))}`,
      `count>=${Math.floor(0.97 * (BURST + RATE * SECONDS))}`,
    ],
    bucket_rejected: ['count>=1000'],
  },
});

export function setup() {
  check(SERVERS, { 'there are two servers': ({ length }) => length === 2 });
  return findEdge();
}

// Sends to both servers at once, well inside one window.
export function window(someEdge) {
  const edge = edgeAfter(someEdge, 0);
  sleep((edge - Date.now() + 3 * BLUR_MS) / 1000);
  let admitted = 0;
  while (Date.now() < edge + PERIOD_MS / 2) {
    admitted += windowed.everywhere('/fixed-window').filter(({ status }) => status === 200).length;
    sleep(0.005);
  }
  inOneWindow.add(admitted);
}

export function bucket() {
  steady.everywhere('/token-bucket');
  sleep(0.01);
}

export const handleSummary = summaryOf('shared_limit', windowed, steady);
