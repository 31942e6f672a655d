"""Measures how much Envoy's requests are delayed by the check. Run by `scripts/gateways --latency`:

    ENVOY=… latency.py SLUICE FOLDER

5,000 requests per second, of 50 clients, go through Envoy to nginx, by turns on a path that asks `sluice serve` and on one that
does not. Load, Envoy, limiter and nginx share the machine, so this is an upper bound. No test: it fails only if it cannot measure.
"""

import subprocess
import sys
from pathlib import Path

from client import Client
from kinds import kinds
from ports import free_port
from programs import EXAMPLES, Program, Proxy, Sluice

CLIENTS = 50
PER_CLIENT = 100
SECONDS = 8
ROUNDS = 3
# What no rate here reaches: every request is asked for, and admitted.
LIMIT = 'limit = 5\n  per = "1day"', 'limit = 1000000\n  per = "1s"'


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


def measure(port, path, log):
    """Returns the latencies of all requests, sorted, in microseconds."""
    log.unlink(missing_ok=True)
    command = ["h2load", "--h1", f"--clients={CLIENTS}", f"--rps={PER_CLIENT}", f"--duration={SECONDS}", f"--log-file={log}"]
    subprocess.run([*command, f"http://127.0.0.1:{port}{path}"], check=True, capture_output=True, timeout=60)
    # The time, the status, the latency.
    rows = [line.split() for line in log.read_text().splitlines()]
    statuses = {row[1] for row in rows}
    if statuses != {"200"}:
        sys.exit(f"not all requests to {path} were admitted: {statuses}")
    return sorted(int(row[2]) for row in rows)


def main():
    program, folder = sys.argv[1], Path(sys.argv[2]).resolve()
    [kind] = [kind for kind in kinds() if kind.name == "envoy-ratelimit"]
    running = []
    try:
        app, app_address = start_app(folder)
        running.append(app)
        sluice = Sluice(program, folder, (EXAMPLES / "limits.toml").read_text().replace(*LIMIT))
        running.append(sluice)
        envoy = Proxy(kind, folder / kind.name, sluice.address, app_address)
        running.append(envoy)
        print(f"{'':<20} {'requests/s':>10} {'p50':>8} {'p99':>8} {'p99.9':>8}   (microseconds)")
        for _ in range(ROUNDS):
            for name, path in (("without the check", "/free"), ("with the check", "/export")):
                found = measure(envoy.port, path, folder / "h2load.log")
                quantiles = [found[len(found) * part // 1000] for part in (500, 990, 999)]
                print(f"{name:<20} {len(found) // SECONDS:>10}", *(f"{it:>8}" for it in quantiles), flush=True)
    finally:
        for one in running:
            one.stop()


if __name__ == "__main__":
    main()
