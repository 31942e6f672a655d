// Runs the parts that are named, and prints a row for each client or check. Exits with 1 if one fails.
//
//     node run.mjs http://127.0.0.1:3000 http://127.0.0.1:3001 http fields grpc mcp browser page admin
//
// The first address is the example `server`, the second the example `cors`. The variable MCP_SERVER has the address of the
// example `mcp`.

import { print } from "./measure.mjs";

const PARTS = {
  http: "http_clients",
  fields: "fields",
  grpc: "grpc_clients",
  mcp: "mcp_client",
  browser: "browser",
  page: "page",
  admin: "admin",
};

const [server, cors, ...parts] = process.argv.slice(2);
let failed = false;
for (const part of parts) {
  if (!(part in PARTS)) continue;
  const { run } = await import(`./${PARTS[part]}.mjs`);
  for (const row of await run({ server, cors })) {
    print(row);
    failed ||= Boolean(row.problem);
  }
}
// Some clients keep connections, which would keep the process.
process.exit(failed ? 1 : 0);
