// Shows the known weakness of a fixed window: it is exact within a window (10 per 2 seconds), and admits
// twice as much around the edge of two. One client spends a window's whole limit at its end, and the next
// one's at its start. `sliding_window.js` makes the same attack on a window without this weakness.
//
//     cargo run --release -p tower-sluice-server -- --config k6/limits.toml
//     k6 run k6/fixed_window.js

import { Trend } from 'k6/metrics';
import { BLUR_MS, Client, LIMIT, edgeAfter, findEdge, hammer, mostWithin, summaryOf, testOptions } from './lib.js';

const PATH = '/fixed-window';
const ATTACKS = 3;

const client = new Client();
const inHalfASecond = new Trend('admitted_in_half_a_second');
const inOneWindow = new Trend('admitted_in_one_window');

export const options = testOptions({
  scenarios: { attack: { executor: 'per-vu-iterations', vus: 1, iterations: ATTACKS, exec: 'attack' } },
  thresholds: {
    // The doubling is a property of the algorithm: it occurs, and no more than that.
    admitted_in_half_a_second: [`max==${2 * LIMIT}`],
    admitted_in_one_window: [`max==${LIMIT}`],
    rejected: [`count>=${ATTACKS * 20}`],
  },
});

export const setup = findEdge;

export function attack(someEdge) {
  const edge = edgeAfter(someEdge, 1);
  const answers = hammer(client, PATH, edge - 300, edge + 300);
  inHalfASecond.add(mostWithin(500, answers));

  // A request in flight at the edge may belong to either window, and is left out.
  const admitted = answers.filter((answer) => answer.admitted);
  inOneWindow.add(admitted.filter((answer) => answer.received < edge - BLUR_MS).length);
  inOneWindow.add(admitted.filter((answer) => answer.sent > edge + BLUR_MS).length);
}

export const handleSummary = summaryOf('fixed_window', client);
