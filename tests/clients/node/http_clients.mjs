// Node's HTTP clients. Each goes to the route and gives the final status.

import axios from "axios";
import axiosRetry from "axios-retry";
import fetchRetry from "fetch-retry";
import got from "got";
import ky from "ky";
import * as rax from "retry-axios";
import { Agent, RetryAgent, request } from "undici";

import { Route, measured, version } from "./measure.mjs";

// Statuses are wanted, and no exceptions for them once a client has given up.
const validateStatus = { validateStatus: (status) => status === 200 };
const statusOf = (call) =>
  call.then(
    (answer) => answer.status,
    (error) => error.response?.status ?? Promise.reject(error),
  );

function axiosWithRetry(url, options) {
  const client = axios.create({ proxy: false, ...validateStatus });
  axiosRetry(client, { retries: 3, ...options });
  return statusOf(client.get(url));
}

function axiosWithRax(url) {
  const client = axios.create({ proxy: false, ...validateStatus });
  rax.attach(client);
  return statusOf(client.get(url, { raxConfig: { retry: 3 } }));
}

async function undici(url) {
  const answer = await request(url, { dispatcher: new RetryAgent(new Agent()) });
  await answer.body.dump();
  return answer.statusCode;
}

// Name, package, route, call, whether it waits as it is told.
const CLIENTS = [
  ["got", "got", "/got", async (url) => (await got(url, { retry: { limit: 2, noise: 0 } })).statusCode, true],
  ["ky", "ky", "/ky", (url) => statusOf(ky.get(url, { retry: 2, timeout: false })), true],
  [
    "axios-retry, exponentialDelay",
    "axios-retry",
    "/axios-retry",
    (url) => axiosWithRetry(url, { retryDelay: axiosRetry.exponentialDelay }),
    true,
  ],
  ["axios-retry, default delay", "axios-retry", "/axios-retry-default", (url) => axiosWithRetry(url, {}), true],
  ["retry-axios", "retry-axios", "/retry-axios", axiosWithRax, true],
  ["undici RetryAgent", "undici", "/undici", undici, true],
  [
    "fetch-retry",
    "fetch-retry",
    "/fetch-retry",
    (url) => statusOf(fetchRetry(fetch)(url, { retries: 1, retryDelay: 100, retryOn: [429] })),
    false,
  ],
];

export function run({ server }) {
  const routes = CLIENTS.flatMap(([name, pack, path, call, waits]) => {
    const client = { version: version(pack), call, waits };
    const bare = { ...client, name, route: new Route(server, path) };
    const told = { ...client, name: `${name}, all`, route: new Route(server, `/all${path}`) };
    return waits ? [bare, told] : [bare];
  });
  return Promise.all(routes.map((client) => measured({ ...client, call: () => client.call(client.route.url) })));
}
