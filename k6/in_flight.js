// Shows that a request is in flight until its body has ended: at a limit of 10 per client, at most 10 of 200 slow
// downloads are open at any time, and the others are rejected. tower's own ConcurrencyLimit(10), on the same
// downloads, counts until the heads of the responses only: all 200 are open. The server counts.
//
//     cargo run --release -p tower-sluice-server -- --config k6/limits.toml
//     k6 run k6/in_flight.js

import { check, sleep } from 'k6';
import http from 'k6/http';
import { Trend } from 'k6/metrics';
import { checkUntimedRejection, Client, SERVERS, summaryOf, testOptions } from './lib.js';

const LIMIT = 10;
const DOWNLOADS = 200;
const DOWNLOAD_SECONDS = 3;
const SECONDS = 12;
const TOWER_AT = SECONDS + DOWNLOAD_SECONDS + 2;
const COUNT_AT = TOWER_AT + 2 * DOWNLOAD_SECONDS + 2;

const limited = new Client('limited', SERVERS[0], checkUntimedRejection);
const tower = new Client('tower');
// The most downloads that were open at the server at any time.
const mostLimited = new Trend('limited_open');
const mostTower = new Trend('tower_open');

export const options = testOptions({
  scenarios: {
    limited: {
      executor: 'constant-vus',
      vus: DOWNLOADS,
      duration: `${SECONDS}s`,
      // Downloads that are open at the end are completed.
      gracefulStop: `${DOWNLOAD_SECONDS + 1}s`,
      exec: 'retry',
    },
    tower: {
      executor: 'per-vu-iterations',
      vus: DOWNLOADS,
      iterations: 1,
      startTime: `${TOWER_AT}s`,
      exec: 'download',
    },
    count: { executor: 'per-vu-iterations', vus: 1, iterations: 1, startTime: `${COUNT_AT}s`, exec: 'count' },
  },
  thresholds: {
    // The limit is used, and never exceeded.
    limited_open: [`max<=${LIMIT}`, `max>=${LIMIT}`],
    limited_admitted: [`count>=${LIMIT * Math.floor(SECONDS / (DOWNLOAD_SECONDS + 1))}`],
    limited_rejected: [`count>=${DOWNLOADS - LIMIT}`],
    tower_open: [`max>=${DOWNLOADS}`],
    tower_admitted: [`count>=${DOWNLOADS}`],
  },
});

export function retry() {
  if (limited.get('/in-flight').status !== 200) sleep(0.5 + 0.5 * Math.random());
}

export function download() {
  tower.get('/in-flight/tower');
}

// All downloads are over.
export function count() {
  const open = http.get(`${SERVERS[0]}/in-flight/open`).json();
  mostLimited.add(open.limited.most);
  mostTower.add(open.tower.most);
  check(open, { 'nothing is open at the end': () => open.limited.now === 0 && open.tower.now === 0 });
}

export const handleSummary = summaryOf('in_flight', limited, tower);
