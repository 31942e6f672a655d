// Shows what the token bucket promises: 10 requests per second and client, 20 at once after idleness.
//
//     cargo run --release --example server --features axum,config
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

  // Requests admitted beyond burst + rate x elapsed, over all that are served since the first. Both
  // numbers come from the server, so a slow test machine cannot blur them.
  const excess = new Trend('excess');
  const measure = (first, answer) => {
    if (answer.status === 200) {
      const { served, at_ms } = answer.json();
      excess.add(served - first.served - (BURST + (RATE * (at_ms - first.at_ms)) / 1000));
    } else {
      check(answer, { 'refusal: the next unit comes within 1/rate': () => exactWait(answer) <= 1 / RATE });
    }
    return answer;
  };

  return {
    options: testOptions({
      scenarios: {
        burst: { executor: 'per-vu-iterations', vus: 1, iterations: 1, startTime: '1s', exec: 'burst' },
        // Starts after the bucket has recovered from the burst.
        flood: {
          executor: 'constant-arrival-rate',
          rate: 50,
          duration: `${FLOOD_SECONDS}s`,
          preAllocatedVUs: 20,
          startTime: '6s',
          exec: 'flood',
        },
      },
      thresholds: {
        excess: ['max<=0'],
        'admitted{scenario:flood}': [`count>=${0.95 * (BURST + RATE * FLOOD_SECONDS)}`],
        'refused{scenario:flood}': ['count>=200'],
      },
    }),

    // Waits until whatever an earlier run spent is back, and takes the request that all are measured from.
    setup() {
      sleep(BURST / RATE + 0.1);
      return client.get(path).json();
    },

    burst(first) {
      const begun = Date.now();
      const burst = client.batch(path, BURST);
      const next = client.get(path);
      // On a machine so busy that the burst took longer than 1/rate, one more may pass.
      const slow = Date.now() - begun >= 1000 / RATE;
      check(burst, { 'a whole burst passes at once': () => burst.every((answer) => answer.status === 200) });
      check(next, { 'and no request more': () => next.status === 429 || slow });
      [...burst, next].forEach((answer) => measure(first, answer));

      // Ten times: go on until refused, wait exactly as long as told, pass.
      for (let round = 0; round < 10; round++) {
        let answer;
        do {
          answer = measure(first, client.get(path));
        } while (answer.status === 200);
        sleep(exactWait(answer));
        answer = measure(first, client.get(path));
        check(answer, { 'who waits X-Rate-Limited-For is admitted': () => answer.status === 200 });
      }
    },

    flood(first) {
      measure(first, client.get(path));
    },

    handleSummary: summaryOf(name, client),
  };
}

export const { options, setup, burst, flood, handleSummary } = bucketTest('token_bucket', '/token-bucket');
