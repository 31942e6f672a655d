// Shows that a sliding window (10 per 2 seconds) has no edge to attack. `fixed_window.js` admits 20 in
// a fraction of a second around one. Here, the weight of the units spent before the edge decreases over
// the next 2 seconds, and only that much may be spent again.
//
//     cargo run --release -p tower-sluice-server -- --config k6/limits.toml
//     k6 run k6/sliding_window.js

import { Trend } from 'k6/metrics';
import {
  BLUR_MS, Client, LIMIT, PERIOD_MS, edgeAfter, findEdge, hammer, mostWithin, summaryOf, testOptions,
} from './lib.js';

const PATH = '/sliding-window';
const ATTACKS = 2;

const client = new Client();
const inHalfASecond = new Trend('admitted_in_half_a_second');
// Requests admitted after the edge beyond the share of the limit that was free by then.
const excess = new Trend('excess');
// Requests admitted in the period after the edge.
const comeBack = new Trend('come_back');

export const options = testOptions({
  scenarios: { attack: { executor: 'per-vu-iterations', vus: 1, iterations: ATTACKS, exec: 'attack' } },
  thresholds: {
    // The limit, and at most the share that becomes free meanwhile: 10 + 10 x 0.5 s / 2 s.
    admitted_in_half_a_second: [`max<=${LIMIT + (LIMIT * 500) / PERIOD_MS}`, `min>=${LIMIT}`],
    excess: ['max<=0'],
    // One for each 200 ms after the edge. The edge is found to within the pauses of a busy machine: 900 ms are allowed.
    come_back: [`min>=${LIMIT / 2}`, `max<=${LIMIT}`],
  },
});

export const setup = findEdge;

export function attack(someEdge) {
  // One idle window more than for the fixed window: the last but one still counts here.
  const edge = edgeAfter(someEdge, 2);
  const answers = hammer(client, PATH, edge - 300, edge + PERIOD_MS - 100);
  inHalfASecond.add(mostWithin(500, answers));

  const after = answers.filter((answer) => answer.admitted && answer.received > edge + BLUR_MS);
  after.forEach((answer, i) => {
    const elapsed = answer.received + BLUR_MS - edge;
    excess.add(i + 1 - (LIMIT * elapsed) / PERIOD_MS);
  });
  comeBack.add(after.length);
}

export const handleSummary = summaryOf('sliding_window', client);
