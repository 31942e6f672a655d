"""Runs the parts that are named, and prints a row for each client or check. Exits with 1 if one fails.

    run.py http://127.0.0.1:3000 http fields grpc retries mcp

The address is the example `server`. The variable MCP_SERVER has the address of the example `mcp`.
"""

import importlib
import sys

PARTS = {"http": "http_clients", "fields": "fields", "grpc": "grpc_clients", "retries": "retries", "mcp": "mcp_client"}


def main():
    server, *parts = sys.argv[1:]
    failed = False
    for part in parts:
        if part not in PARTS:
            continue
        for row in importlib.import_module(PARTS[part]).run(server):
            row.print()
            failed |= bool(row.problem)
    sys.exit(failed)


if __name__ == "__main__":
    main()
