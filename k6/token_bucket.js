// Shows the guarantee of the token bucket: 10 requests per second and client, 20 at once after idle times.
//
//     cargo run --release -p tower-sluice-server -- --config k6/limits.toml
//     k6 run k6/token_bucket.js

import { check, sleep } from 'k6';
import { Trend } from 'k6/metrics';
import { Client, exactWait, summaryOf, testOptions } from './lib.js';

const RATE = 10; // per second
const BURST = 20;
const FLOOD_SECONDS = 8;

// The leaky bucket runs the same test on its route.
export function bucketTest(name, path) {
  const client = new Client();

  // Requests admitted beyond burst + rate x elapsed since a first one that found the bucket full. All
  // numbers are the server's, so a slow test machine cannot blur them.
  const excess = new Trend('excess');
  const measure = (first, answer) => {
    if (answer.status === 200) {
      const { served, at_ms } = answer.json();
      excess.add(served - first.served - (BURST + (RATE * (at_ms - first.at_ms)) / 1000));
    } else {
      check(answer, { 'rejection: the next unit comes within 1/rate': () => exactWait(answer) <= 1 / RATE });
    }
    return answer;
  };

  return {
    options: testOptions({
      scenarios: {
        flood: {
          executor: 'constant-arrival-rate',
          rate: 50,
          duration: `${FLOOD_SECONDS}s`,
          preAllocatedVUs: 20,
          exec: 'flood',
        },
        // Starts when the bucket has recovered from the flood.
        burst: {
          executor: 'per-vu-iterations',
          vus: 1,
          iterations: 1,
          startTime: `${FLOOD_SECONDS + BURST / RATE + 1}s`,
          exec: 'burst',
        },
      },
      thresholds: {
        excess: ['max<=0'],
        'admitted{scenario:flood}': [`count>=${0.95 * (BURST + RATE * FLOOD_SECONDS)}`],
        'rejected{scenario:flood}': ['count>=200'],
      },
    }),

    // Waits until the units that an earlier run spent are back, and sends the first request.
    setup() {
      sleep(BURST / RATE + 0.1);
      return client.get(path).json();
    },

    // Five times the rate, from many connections.
    flood(first) {
      measure(first, client.get(path));
    },

    burst() {
      const begun = Date.now();
      const burst = client.batch(path, BURST);
      const next = client.get(path);
      // On a machine so busy that the burst took longer than 1/rate, one more may pass.
      const slow = Date.now() - begun >= 1000 / RATE;
      check(burst, { 'a whole burst passes at once': () => burst.every((answer) => answer.status === 200) });
      check(next, { 'and no request more': () => next.status === 429 || slow });

      const inOrder = burst.map((answer) => answer.json()).sort((a, b) => a.served - b.served);
      const ask = () => measure(inOrder[0], client.get(path));
      // Ten times: send until rejected, wait for exactly the advertised time, be admitted.
      for (let round = 0; round < 10; round++) {
        let answer;
        do {
          answer = ask();
        } while (answer.status === 200);
        sleep(exactWait(answer));
        check(ask(), { 'a client that waits X-Rate-Limited-For is admitted': ({ status }) => status === 200 });
      }
    },

    handleSummary: summaryOf(name, client),
  };
}

export const { options, setup, burst, flood, handleSummary } = bucketTest('token_bucket', '/token-bucket');
