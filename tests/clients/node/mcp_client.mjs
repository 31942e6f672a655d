// The official MCP client against the example `mcp`: how its caller learns the wait. `mcp_client.py` checks more.

import { Client, ProtocolError, SdkHttpError, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

import { SLACK, WAIT, checked, timed, version } from "./measure.mjs";

const PACKAGE = "@modelcontextprotocol/client";

/** A client of a user, which speaks the revision with the headers only if it is asked to. */
async function connect(user, versionNegotiation = { mode: "auto" }) {
  const headers = { authorization: `Bearer of-${user}` };
  const url = new URL(`${process.env.MCP_SERVER}/mcp`);
  const transport = new StreamableHTTPClientTransport(url, { requestInit: { headers } });
  const client = new Client({ name: "clients", version: "1" }, { versionNegotiation });
  await client.connect(transport);
  return client;
}

const call = (client, name, args = {}) => client.callTool({ name, arguments: args });

/** The error of a call that must be rejected. */
async function rejected(promise) {
  const value = await promise.catch((error) => error);
  if (value instanceof Error) return value;
  throw new Error(`it was not rejected: ${JSON.stringify(value)}`);
}

/** Waits as the error says, and calls again. */
async function waits(data, again) {
  const { retryAfter, limits } = data;
  if (!(retryAfter >= 1 && retryAfter * 1000 <= WAIT)) throw new Error(`retryAfter ${retryAfter}`);
  const [delay] = await timed(async () => {
    await new Promise((resolve) => setTimeout(resolve, retryAfter * 1000));
    await again();
  });
  if (delay >= WAIT + SLACK) throw new Error(`${delay} ms`);
  return { delay, did: `retryAfter ${retryAfter} of ${limits}; then OK` };
}

/** The layer's rejection is an error of HTTP here, with the body as a text. */
async function layer() {
  const client = await connect("joy");
  await call(client, "report");
  await call(client, "report");
  const error = await rejected(call(client, "report"));
  if (!(error instanceof SdkHttpError && error.data.status === 429)) throw error;
  await call(client, "look_up");
  const row = await waits(JSON.parse(error.data.text).error.data, () => call(client, "report"));
  return { ...row, did: `SdkHttpError 429, ${row.did}` };
}

/** The handler's rejection is an error of JSON-RPC. */
async function handler() {
  const client = await connect("kim");
  await call(client, "report", { pages: 20 });
  const error = await rejected(call(client, "report"));
  if (!(error instanceof ProtocolError && error.code === 429)) throw error;
  const row = await waits(error.data, () => call(client, "report"));
  return { ...row, did: `ProtocolError 429, ${row.did}` };
}

/** By default, it is a client that is older than the revision. */
async function legacy() {
  const error = await rejected(connect("lea", {}));
  if (!(error instanceof SdkHttpError && error.data.status === 400)) throw error;
  const { code, message } = JSON.parse(error.data.text).error;
  if (code !== -32020 || !message.endsWith("this server speaks 2026-07-28")) throw error;
  return { did: "SdkHttpError 400, the message names 2026-07-28" };
}

export async function run() {
  return [
    await checked("mcp, TypeScript: the layer's limit", version(PACKAGE), layer),
    await checked("mcp, TypeScript: the handler's limit", version(PACKAGE), handler),
    await checked("mcp, TypeScript: no option", version(PACKAGE), legacy),
  ];
}
