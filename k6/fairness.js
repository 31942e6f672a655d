// Shows that clients do not feel each other: one sends as fast as it can and gets its own limit, 19
// stay below theirs and are never refused, nor slowed down.
//
// Clients differ by their address, so each virtual user needs its own (Linux answers on all of 127/8):
//
//     cargo run --release --example server --features axum,config
//     K6_LOCAL_IPS=127.0.0.1-127.0.0.20 k6 run k6/fairness.js

import { check, sleep } from 'k6';
import { Trend } from 'k6/metrics';
import http from 'k6/http';
import { Client, summaryOf, testOptions } from './lib.js';

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
  scenarios: { clients: { executor: 'constant-vus', vus: 20, duration: `${SECONDS}s`, exec: 'client' } },
  thresholds: {
    greedy_excess: ['max<=0'],
    greedy_admitted: [`count>=${0.95 * (BURST + RATE * SECONDS)}`],
    greedy_refused: ['count>=200'],
    modest_admitted: ['count>=400'],
    modest_refused: ['count==0'],
    modest_latency: ['p(99)<100'],
  },
});
