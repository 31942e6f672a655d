// Shows the cost of the limiter: the same requests to a route without a limit and to one whose limit is
// not reached. Both are sent in turn on the same connection, so other load on the machine slows
// down both alike. Over loopback, most of each time is spent in the network stack.
//
// A virtual user stays below the token bucket's 10 per second, so the load takes many of them, each
// with its own address (Linux answers on all of 127/8):
//
//     cargo run --release -p tower-sluice-server -- --config k6/limits.toml
//     K6_LOCAL_IPS=127.0.0.1-127.0.0.20 k6 run k6/unlimited.js

import { check, sleep } from 'k6';
import { Trend } from 'k6/metrics';
import { Client, summaryOf, testOptions } from './lib.js';

const SECONDS = 12;

const plain = new Client('plain');
const limited = new Client('limited');
// How much longer the limited one of two requests in a row took.
const difference = new Trend('difference', true);

export const options = testOptions({
  scenarios: { pairs: { executor: 'constant-vus', vus: 20, duration: `${SECONDS}s` } },
  thresholds: {
    // Far above the real difference (microseconds), far below a noticeable one.
    difference: ['med<1'],
    limited_admitted: [`count>=${100 * SECONDS}`],
  },
});

// Waits until the units that an earlier run spent are back.
export function setup() {
  sleep(2.1);
}

export default function () {
  const ask = (client, path) => {
    const answer = client.get(path);
    check(answer, { passes: ({ status }) => status === 200 });
    return answer.timings.duration;
  };
  // The second of two requests finds warm caches and threads: neither route always comes second.
  if (Math.random() < 0.5) {
    const ms = ask(plain, '/unlimited');
    difference.add(ask(limited, '/token-bucket') - ms);
  } else {
    const ms = ask(limited, '/token-bucket');
    difference.add(ms - ask(plain, '/unlimited'));
  }
  // At most nine times per second, and not all users in step.
  sleep(0.11 + 0.03 * Math.random());
}

export const handleSummary = summaryOf('unlimited', plain, limited);
