// Shows that clients do not affect each other: one sends as fast as it can and gets its own limit, 19
// stay below theirs and are neither rejected nor slowed down.
//
// Clients differ by their address, so each virtual user needs its own (Linux answers on all of 127/8):
//
//     cargo run --release -p tower-sluice-server -- --config k6/limits.toml
//     K6_LOCAL_IPS=127.0.0.1-127.0.0.20 k6 run k6/fairness.js

import { check, sleep } from 'k6';
import { Trend } from 'k6/metrics';
import { Client, ownAddress, summaryOf, testOptions } from './lib.js';

const PATH = '/token-bucket';
const RATE = 10; // per second
const BURST = 20;
const SECONDS = 10;
const GREEDY_ADDRESS = '127.0.0.1';

const greedy = new Client('greedy');
const modest = new Client('modest');
// Requests of the greedy client admitted beyond burst + rate x elapsed.
const excess = new Trend('greedy_excess');

export const options = testOptions({
  scenarios: { clients: { executor: 'constant-vus', vus: 20, duration: `${SECONDS}s` } },
  thresholds: {
    greedy_excess: ['max<=0'],
    greedy_admitted: [`count>=${0.95 * (BURST + RATE * SECONDS)}`],
    greedy_rejected: ['count>=200'],
    modest_admitted: ['count>=400'],
    // Generous, for machines that do other things too; it is a few milliseconds.
    modest_latency: ['p(90)<100'],
  },
});

// Waits until the units that an earlier run spent are back.
export function setup() {
  sleep(BURST / RATE + 0.1);
}

// The state of this virtual user: each has its own variables.
let address;
let first;
let admitted = 0;

export default function () {
  // The address selects the greedy user, and not the user's number, so the order in which k6 assigns
  // addresses does not matter. Without K6_LOCAL_IPS all share the greedy one, and the run fails.
  address ??= ownAddress();
  if (address === GREEDY_ADDRESS) {
    beGreedy();
  } else {
    check(modest.get(PATH), { 'a modest client is never rejected': ({ status }) => status === 200 });
    sleep(0.2);
  }
}

function beGreedy() {
  const answer = greedy.get(PATH);
  if (answer.status === 200) {
    const { at_ms } = answer.json();
    if (first === undefined) {
      first = at_ms;
    } else {
      admitted += 1;
    }
    excess.add(admitted - (BURST + (RATE * (at_ms - first)) / 1000));
  }
  // Some forty times its limit; more would only measure the machine.
  sleep(0.002);
}

export const handleSummary = summaryOf('fairness', greedy, modest);
