"""Measures how much Envoy's requests are delayed by the check. Run by `scripts/ci/gateways --latency`:

    ENVOY=… [LIMITADOR_SERVER=…] latency.py SLUICE LOAD FOLDER

Requests at even distances go through Envoy to nginx: by turns on a path that is not limited, on one that asks `sluice serve`, and
on one that asks limitador's server, if there is one. LOAD is the program of `benches/serve`, which sends them over 50 connections.
Load, Envoy, limiter and nginx share the machine, so this is an upper bound. No test: it fails only if it cannot measure.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

from client import Client
from kinds import kinds
from ports import free_port
from programs import EXAMPLES, Program, Proxy, Sluice

RATES = 2500, 5000
SECONDS = 8
ROUNDS = 3
# What no rate here reaches: every request is asked for, and admitted.
LIMIT = 'limit = 5\n  per = "1day"', 'limit = 1000000\n  per = "1s"'
# The same limit, as limitador has it.
LIMITADORS = """
- namespace: edge
  max_value: 1000000
  seconds: 1
  conditions: ["descriptors[0].path == 'export'"]
  variables: ["descriptors[0].remote_address"]
"""


class Limitador(Program):
    def __init__(self, program, folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "limits.yaml"
        file.write_text(LIMITADORS)
        port, http_port = free_port(), free_port()
        addresses = ["--rls-ip", "127.0.0.1", "--rls-port", str(port), "--http-ip", "127.0.0.1", "--http-port", str(http_port)]
        # Fields on the limit, as ours has them.
        options = [*addresses, "--rate-limit-headers", "DRAFT_VERSION_03"]
        super().__init__("limitador", folder, [program, *options, file, "memory"])
        self.address = f"127.0.0.1:{port}"
        self.wait_until(lambda: accepts(port))


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def start_app(folder):
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    file = folder / "app.conf"
    kinds_of_bodies = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds_of_bodies)
    file.write_text(
        f"daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; keepalive_requests 1000000000; {paths}\n"
        f'server {{ listen 127.0.0.1:{port}; location / {{ return 200 "hello"; }} }} }}\n'
    )
    app = Program("nginx", folder, ["nginx", "-c", file, "-p", folder, "-e", "stderr"])

    def answers():
        try:
            return Client(port, "127.0.0.1").get("/").status == 200
        except OSError:
            return False

    app.wait_until(answers)
    return app, f"127.0.0.1:{port}"


def measure(load, port, path, rate):
    """Returns p50, p99 and p99.9 of the latencies in microseconds."""
    command = [load, "--paced", f"127.0.0.1:{port}", path, str(rate), str(SECONDS)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60).stdout.split()


def main():
    program, load, folder = *sys.argv[1:3], Path(sys.argv[3]).resolve()
    [kind] = [kind for kind in kinds() if kind.name == "envoy-ratelimit"]
    running = []

    def start(program):
        running.append(program)
        return program

    try:
        app, app_address = start_app(folder)
        start(app)
        limiters = {"sluice": start(Sluice(program, folder, (EXAMPLES / "limits.toml").read_text().replace(*LIMIT)))}
        if limitador := os.environ.get("LIMITADOR_SERVER"):
            limiters["limitador"] = start(Limitador(limitador, folder / "limitador"))
        envoys = {
            name: start(Proxy(kind, folder / f"envoy-{name}", limiter.address, app_address)) for name, limiter in limiters.items()
        }
        rows = [("no check", envoys["sluice"], "/free"), *((name, envoy, "/export") for name, envoy in envoys.items())]
        print(f"{'requests/s':>10} {'':<10} {'p50':>8} {'p99':>8} {'p99.9':>8}   (microseconds)")
        for rate in RATES:
            for _ in range(ROUNDS):
                for name, envoy, path in rows:
                    p50, p99, p999 = map(int, measure(load, envoy.port, path, rate))
                    print(f"{rate:>10} {name:<10} {p50:>8} {p99:>8} {p999:>8}", flush=True)
    finally:
        for one in running:
            one.stop()


if __name__ == "__main__":
    main()
