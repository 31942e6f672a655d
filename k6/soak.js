// As much load as the machine allows, for `scripts/soak`: on all routes in turn, from many clients.
//
// The routes in ROUTES (separated by commas) get requests as fast as they answer, those in QUEUES from so many users that
// some always wait. Writes the counts of answers per route to SUMMARY.

import exec from 'k6/execution';
import http from 'k6/http';
import { Counter } from 'k6/metrics';

const BASE_URL = __ENV.BASE_URL;
const ROUTES = __ENV.ROUTES.split(',');
const QUEUES = __ENV.QUEUES.split(',');
const DURATION = `${__ENV.SECONDS}s`;
const CLIENTS = 1000;

http.setResponseCallback(http.expectedStatuses(200, 429));

// By route: 200, 429, and unexpected answers.
const counters = {};
for (const route of [...ROUTES, ...QUEUES]) {
  const name = route.replace(/\W/g, '_');
  counters[route] = [200, 429, 'other'].map((status) => new Counter(`answers_${name}_${status}`));
}

const users = (exec, vus) => ({ executor: 'constant-vus', vus, duration: DURATION, gracefulStop: '10s', exec });

export const options = {
  scenarios: { flood: users('flood', 24), line: users('line', 12 * QUEUES.length) },
  thresholds: { http_req_failed: ['rate==0'] },
  summaryTrendStats: ['med', 'p(99)', 'max'],
  discardResponseBodies: true,
};

function ask(route) {
  const client = `client-${Math.floor(Math.random() * CLIENTS)}`;
  const { status } = http.get(BASE_URL + route, { headers: { 'x-client': client }, tags: { name: route } });
  counters[route][{ 200: 0, 429: 1 }[status] ?? 2].add(1);
  if (status === 0) exec.test.abort(`no answer from ${BASE_URL}`);
}

export function flood() {
  ask(ROUTES[exec.scenario.iterationInTest % ROUTES.length]);
}

export function line() {
  ask(QUEUES[exec.vu.idInTest % QUEUES.length]);
}

export function handleSummary(data) {
  const count = (counter) => data.metrics[counter.name]?.values.count ?? 0;
  const answers = Object.fromEntries(Object.entries(counters).map(([route, of]) => [route, of.map(count)]));
  const { med, max, 'p(99)': p99 } = data.metrics.http_req_duration.values;
  const summary = { answers, failed: data.metrics.http_req_failed.values.passes, latency: { med, p99, max } };
  return { [__ENV.SUMMARY]: JSON.stringify(summary) };
}
