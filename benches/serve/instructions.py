#!/usr/bin/env python3
"""Counts the instructions that a service takes for a call over HTTP, with callgrind: the difference of two runs, so that
the start does not count. Build first: `cargo build --release -p sluice`. Give throttlecrab-server's path to have it, too.

    benches/serve/instructions.py [target/serve/bin/throttlecrab-server]
"""

import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONNECTIONS = 8
# Of this many keys.
KEYS = 1_000
FEW, MANY = 2_000, 6_000
LIMIT = 1_000_000_000

LIMITS = f"""
[[route]]
path = "/shop/user"

[[route.policy]]
name = "per-user"
algorithm = "token-bucket"
limit = {LIMIT}
per = "1day"
key = "header:x-client"
max-keys = 1_000_000
"""


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


def ask_ours(client):
    fields = f"x-forwarded-method: GET\r\nx-forwarded-uri: /shop/user\r\nx-client: {client}"
    return f"GET /auth HTTP/1.1\r\nhost: sluice\r\n{fields}\r\n\r\n"


def ask_theirs(client):
    body = f'{{"key":"{client}","max_burst":{LIMIT},"count_per_period":{LIMIT},"period":86400,"quantity":1}}'
    fields = f"content-type: application/json\r\ncontent-length: {len(body)}"
    return f"POST /throttle HTTP/1.1\r\nhost: throttlecrab\r\n{fields}\r\n\r\n{body}"


def connect(port):
    for _ in range(300):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.1)
    sys.exit("the service does not start")


def call(connection, request):
    connection.sendall(request.encode())


def await_answer(connection):
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(4_096) or sys.exit("the service has closed the connection")
    if not answer.startswith(b"HTTP/1.1 200"):
        sys.exit(answer.decode())


def count(command, port, ask, calls):
    """The instructions of a service that answers so many calls."""
    with tempfile.NamedTemporaryFile("w+") as log:
        callgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        service = subprocess.Popen(callgrind + command, stdout=subprocess.DEVNULL, stderr=log)
        connections = [connect(port) for _ in range(CONNECTIONS)]
        for number in range(0, calls, CONNECTIONS):
            for offset, connection in enumerate(connections):
                call(connection, ask(f"client-of-us-{(number + offset) % KEYS:07}"))
            for connection in connections:
                await_answer(connection)
        for connection in connections:
            connection.close()
        service.send_signal(signal.SIGINT)
        service.wait()
        log.seek(0)
        return int(re.search(r"Collected : (\d+)", log.read()).group(1))


def report(name, command, port, ask):
    few, many = (count(command, port, ask, calls) for calls in (FEW, MANY))
    print(f"{name}: {(many - few) / (MANY - FEW):,.0f} instructions for a call")


def main():
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "limits.toml")
        file.write_text(LIMITS)
        port = free_port()
        ours = ["target/release/sluice", "serve", "--listen", f"127.0.0.1:{port}", "--config", str(file)]
        report("sluice, /auth", ours, port, ask_ours)
    for program in sys.argv[1:]:
        port = free_port()
        options = ["--http", "--http-host=127.0.0.1", f"--http-port={port}", "--store-capacity=1000000"]
        report("throttlecrab-server, /throttle", [program, *options], port, ask_theirs)


if __name__ == "__main__":
    main()
