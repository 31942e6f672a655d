// Shared by the load tests: a client that counts, the checks of every rejection, and the summary.

import exec from 'k6/execution';
import http from 'k6/http';
import { check, sleep } from 'k6';
import { Counter, Trend } from 'k6/metrics';

const BASE_URL = __ENV.BASE_URL || 'http://127.0.0.1:3000';

// Servers that share their limits on Redis: `-e BASE_URLS=http://127.0.0.1:3000,http://127.0.0.1:3001`.
export const SERVERS = (__ENV.BASE_URLS || BASE_URL).split(',');

// A rejection is not a failure: `http_req_failed` counts all other errors.
http.setResponseCallback(http.expectedStatuses(200, 429));

// The options of a script, with the thresholds of all: no check fails, and no request.
export function testOptions(options) {
  return {
    ...options,
    thresholds: { checks: ['rate==1'], http_req_failed: ['rate==0'], ...options.thresholds },
    summaryTrendStats: ['min', 'med', 'p(90)', 'p(95)', 'p(99)', 'max'],
    // At least the largest `Client.batch`.
    batch: 100,
    batchPerHost: 100,
  };
}

// Ends the run if the server does not answer: a rejected client pauses, but one without a server would spin.
function answered(answer) {
  if (answer.status === 0) exec.test.abort(`no answer from ${BASE_URL}: ${answer.error}`);
  return answer;
}

// Sends requests, counts the answers and checks every rejection. A script with several kinds of
// clients names them; the names then precede those of the metrics.
export class Client {
  constructor(name = '', base = BASE_URL, checkRejection = checkTimedRejection) {
    const metric = (suffix) => (name ? `${name}_${suffix}` : suffix);
    this.name = name;
    this.checkRejection = checkRejection;
    this.base = base;
    this.offered = new Counter(metric('offered'));
    this.admitted = new Counter(metric('admitted'));
    this.delayed = new Counter(metric('delayed'));
    this.rejected = new Counter(metric('rejected'));
    this.latency = new Trend(metric('latency'), true);
  }

  get(path) {
    return this.count(http.get(this.base + path));
  }

  // Returns a promise of the answer.
  async getLater(path) {
    return this.count(await http.asyncRequest('GET', this.base + path));
  }

  // Sends `n` requests at once, each on its own connection.
  batch(path, n) {
    return http.batch(Array(n).fill(['GET', this.base + path])).map((answer) => this.count(answer));
  }

  // Sends a request to each server at once.
  everywhere(path) {
    return http.batch(SERVERS.map((server) => ['GET', server + path])).map((answer) => this.count(answer));
  }

  count(answer) {
    answered(answer);
    this.offered.add(1);
    this.latency.add(answer.timings.duration);
    if (answer.status === 200) {
      this.admitted.add(1);
      if (answer.json().route === '/leaky-queue' && answer.timings.duration > 50) {
        this.delayed.add(1);
      }
    } else if (answer.status === 429) {
      this.rejected.add(1);
      this.checkRejection(answer);
    }
    return answer;
  }
}

// The rejection of a limit over time, whose client can wait until a retry succeeds.
function checkTimedRejection(rejection) {
  // Several lines of one field would be joined by a comma, and fail here.
  const retryAfter = rejection.headers['Retry-After'];
  const exact = exactWait(rejection);
  check(rejection, {
    'rejection: Retry-After is one integer >= 1': () => /^[1-9][0-9]*$/.test(retryAfter),
    'rejection: 0 < X-Rate-Limited-For <= Retry-After': () => exact > 0 && exact <= Number(retryAfter),
  });
  checkProblem(rejection);
}

// The rejection of a limit of requests in flight: nobody knows when one of them will be over.
export function checkUntimedRejection(rejection) {
  check(rejection, {
    'rejection: no Retry-After': () => !('Retry-After' in rejection.headers),
    'rejection: no X-Rate-Limited-For': () => !('X-Rate-Limited-For' in rejection.headers),
    'rejection: RateLimit has no time': () => /^"[^"]+";r=0$/.test(rejection.headers['Ratelimit']),
  });
  checkProblem(rejection);
}

function checkProblem(rejection) {
  check(rejection, {
    'rejection: must not be stored': () => rejection.headers['Cache-Control'] === 'no-store',
    'rejection: is a problem document': () => rejection.headers['Content-Type'] === 'application/problem+json',
  });
}

// The exact wait that a rejection advertises, in seconds.
export function exactWait(rejection) {
  return Number(rejection.headers['X-Rate-Limited-For']);
}

// The address that the server sees for this virtual user.
export function ownAddress() {
  return answered(http.get(`${BASE_URL}/whoami`)).json().client;
}

// --- Windows -------------------------------------------------------------------------------------

// The quota of both window routes.
export const LIMIT = 10;
export const PERIOD_MS = 2000;

// The uncertainty about the server's clock, in milliseconds.
export const BLUR_MS = 20;

// When a window ends, in milliseconds of this machine's clock: the fixed window advertises it in a
// rejection. The windows of all routes of the same period begin at the same times.
export function findEdge() {
  let edge = Infinity;
  for (let rejections = 0; rejections < 10; ) {
    const answer = answered(http.get(`${SERVERS[0]}/fixed-window`));
    if (answer.status === 429) {
      rejections += 1;
      // The answer took some time to arrive: the earliest of several is the closest.
      edge = Math.min(edge, Date.now() + 1000 * exactWait(answer));
    }
  }
  return edge;
}

// The first edge before which at least `idle` whole windows pass from now on.
export function edgeAfter(edge, idle) {
  const windows = Math.ceil((Date.now() - edge) / PERIOD_MS);
  return edge + PERIOD_MS * (Math.max(0, windows) + idle);
}

// Sends a request every few milliseconds between two instants. For each it records when it was sent
// and answered here, whether it was admitted, and when the server did so (`at`, on its own clock).
export function hammer(client, path, from, until) {
  sleep(Math.max(0, from - Date.now()) / 1000);
  const answers = [];
  while (Date.now() < until) {
    const sent = Date.now();
    const answer = client.get(path);
    const admitted = answer.status === 200;
    answers.push({ sent, received: Date.now(), admitted, at: admitted ? answer.json().at_ms : undefined });
    sleep(0.005);
  }
  return answers;
}

// The most admissions in any `span` milliseconds.
export function mostWithin(span, answers) {
  const times = answers.filter((answer) => answer.admitted).map((answer) => answer.at);
  return Math.max(0, ...times.map((from) => times.filter((at) => at >= from && at <= from + span).length));
}

// --- Summary -------------------------------------------------------------------------------------

// A `handleSummary` that prints the counts of requests by result, and the results of the
// thresholds. With `-e ROW=FILE` it also writes the numbers to that file, one line per client,
// separated by tabs: name, offered, admitted, delayed, rejected, p50, p99.
export function summaryOf(script, ...clients) {
  return ({ metrics, root_group: root }) => {
    const rows = clients.map((client) => rowOf(client.name ? `${script}: ${client.name}` : script, client, metrics));
    const lines = rows.map(
      ([name, offered, admitted, delayed, rejected, p50, p99]) =>
        `${name}: offered ${offered}, admitted ${admitted} (${delayed} delayed), rejected ${rejected}; ` +
        `p50 ${p50} ms, p99 ${p99} ms`,
    );
    for (const { name, passes, fails } of root.checks) {
      lines.push(`  ${fails ? 'FAIL' : 'ok  '}  ${name} (${passes} of ${passes + fails})`);
    }
    for (const metric of Object.keys(metrics).sort()) {
      const { thresholds, values } = metrics[metric];
      // `checks` are printed above.
      for (const [threshold, { ok }] of metric === 'checks' ? [] : Object.entries(thresholds || {})) {
        const statistic = threshold.split(/[<>=]/)[0].trim();
        lines.push(`  ${ok ? 'ok  ' : 'FAIL'}  ${metric}: ${threshold} (${rounded(values[statistic])})`);
      }
    }
    const files = { stdout: lines.join('\n') + '\n' };
    if (__ENV.ROW) files[__ENV.ROW] = rows.map((row) => row.join('\t') + '\n').join('');
    return files;
  };
}

function rowOf(name, client, metrics) {
  const value = (metric, statistic) => metrics[metric.name]?.values[statistic] ?? 0;
  const counts = [client.offered, client.admitted, client.delayed, client.rejected];
  return [
    name,
    ...counts.map((metric) => value(metric, 'count')),
    ...['med', 'p(99)'].map((statistic) => value(client.latency, statistic).toFixed(2)),
  ];
}

function rounded(value) {
  return Math.round(1000 * value) / 1000;
}
