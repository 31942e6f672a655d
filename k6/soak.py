"""The soak test of `scripts/soak`, which describes it. `judge` has the assertions.

    python3 k6/soak.py SERVER K6 OUT SECONDS

Everything random follows SEED (printed), so that a run can be repeated.
"""

import json
import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

ALGORITHMS = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "leaky-queue"]
STORES = ["memory", "redis"]
REQUESTS = "tower_sluice_rate_limiting_requests_total"
QUEUED = "tower_sluice_rate_limiting_queued_requests"
# The server applies a change of the file within this many seconds.
SEEN_WITHIN = 2.0
CHANGE_EVERY = (8, 20)
RESTART_EVERY = (45, 75)


def main(server_binary, k6, out, seconds):
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"SEED={seed}", flush=True)
    random.seed(seed)
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    redis = Redis(out)
    policies = {(store, algorithm): Policy(store, algorithm) for store in STORES for algorithm in ALGORITHMS}
    file = os.path.join(out, "limits.toml")
    write(file, redis, policies)
    server = Server(server_binary, file, out)
    load = None
    try:
        load = start_k6(k6, server, out, seconds)
        changes, memory = disturb(load, server, redis, policies, file, seconds)
        if load.wait(timeout=60) not in (0, 99):  # 99: a threshold failed, which is reported below
            fail(f"k6 ended with {load.returncode}; see {out}/k6.log")
        time.sleep(2)
        return judge(server, redis, policies, out, changes, memory)
    finally:
        for process in (load, server.process, redis.process):
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait()


class Policy:
    """One policy of the file, with the history of its limits."""

    def __init__(self, store, algorithm):
        self.store, self.algorithm = store, algorithm
        self.path = f"/{store}/{algorithm}"
        self.limit, self.burst, self.capacity = 400, 40, 40
        # Times from which these numbers applied, by this machine's clock.
        self.history = [(time.time(), self.limit, self.burst, self.capacity)]

    def change(self):
        self.limit = random.choice([50, 100, 200, 400, 800])
        self.burst = random.choice([1, 10, 40, 100])
        self.capacity = random.choice([10, 40, 80])

    def note_change(self):
        self.history.append((time.time(), self.limit, self.burst, self.capacity))

    def toml(self):
        lines = [f'name = "{self.algorithm}"', f'algorithm = "{self.algorithm}"', f"limit = {self.limit}", 'per = "1s"']
        lines += ['key = "global"', "status = 429", f'store = "{self.store}"']
        if "window" not in self.algorithm:
            lines.append(f"burst = {self.burst}")
        if self.algorithm == "leaky-queue":
            lines += [f"max-queue = {self.capacity}", 'max-wait = "2s"']
        return "\n".join(lines)

    def most(self, end, restarts):
        """Returns the most that may have been admitted until `end`; a Redis that restarts loses all debts."""
        restarts = restarts if self.store == "redis" else []
        spans = list(zip(self.history, self.history[1:] + [(end, *self.history[-1][1:])]))
        if "window" in self.algorithm:
            # In each second of the clock, the greatest limit that applied in it; once more if Redis lost the count.
            first, last = math.floor(self.history[0][0]), math.floor(end)
            limits = [0] * (last - first + 1)
            for (since, limit, *_), (until, *_) in spans:
                # Until the server saw the file, the former limit may have applied.
                for second in range(math.floor(since), min(math.floor(until + SEEN_WITHIN), last) + 1):
                    limits[second - first] = max(limits[second - first], limit)
            return sum(limits) + sum(limits[math.floor(at) - first] for at in restarts)
        most = self.history[0][2] + (self.history[0][3] if self.algorithm == "leaky-queue" else 0)
        for (since, limit, burst, capacity), (until, next_limit, next_burst, next_capacity) in spans:
            most += limit * (until - since)
            most += max(0, limit - next_limit) * SEEN_WITHIN
            most += max(0, next_burst - burst)
            if self.algorithm == "leaky-queue":
                most += max(0, next_capacity - capacity)
        return most + sum(self.at(at)[2] for at in restarts)

    def at(self, moment):
        return [numbers for numbers in self.history if numbers[0] <= moment][-1]


def write(file, redis, policies):
    """Replaces the file atomically, so that the server never reads half of it."""
    parts = [f'[redis]\nurl = "redis://127.0.0.1:{redis.port}"\n']
    for policy in policies.values():
        # A second policy, with a key per client and a high limit.
        keyed = 'name = "per-client"\nalgorithm = "token-bucket"\nlimit = 100000\nper = "1s"\nkey = "header:x-client"\n'
        keyed += 'store = "memory"'
        parts.append(f'[[route]]\npath = "{policy.path}"\n[[route.policy]]\n{policy.toml()}\n[[route.policy]]\n{keyed}\n')
    with open(file + ".new", "w") as new:
        new.write("\n".join(parts))
    os.replace(file + ".new", file)


class Redis:
    def __init__(self, out):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.out, self.restarts = out, []
        self.start()

    def start(self):
        log = open(os.path.join(self.out, "redis.log"), "ab")
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.out)
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        fail(f"redis-server does not start; see {self.out}/redis.log")

    def restart(self):
        """Kills Redis, which loses its data, and starts it after a random pause."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        time.sleep(random.uniform(0.5, 5))
        self.start()
        self.restarts.append(time.time())


class Server:
    def __init__(self, binary, file, out):
        self.log = os.path.join(out, "server.log")
        log = open(self.log, "wb")
        command = [binary, "--listen", "127.0.0.1:0", "--config", file]
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(100):
            found = re.search(r"listening on (\S+)", open(self.log).read())
            if found:
                self.url = found[1]
                return
            time.sleep(0.1)
        fail(f"the server does not start; see {self.log}")

    def megabytes(self):
        status = open(f"/proc/{self.process.pid}/status").read()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    def metrics(self):
        """Returns, by name, a list of labels and values."""
        metrics = {}
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
                if found and not line.startswith("#"):
                    labels = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
                    metrics.setdefault(found[1], []).append((labels, float(found[3])))
        return metrics

    def limits_of(self, path):
        """Returns the limits that the server advertises, which show whether it has applied a change."""
        with open_any(self.url + path) as answer:
            return answer.headers.get("RateLimit-Policy") or ""


def open_any(url):
    try:
        return urllib.request.urlopen(url, timeout=10)
    except urllib.error.HTTPError as rejection:
        return rejection


def start_k6(k6, server, out, seconds):
    paths = {True: [], False: []}
    for store in STORES:
        for algorithm in ALGORITHMS:
            paths[algorithm == "leaky-queue"].append(f"/{store}/{algorithm}")
    environment = {
        "BASE_URL": server.url,
        "ROUTES": ",".join(paths[False]),
        "QUEUES": ",".join(paths[True]),
        "SECONDS": str(seconds),
        "SUMMARY": os.path.join(out, "summary.json"),
    }
    options = [option for name, value in environment.items() for option in ("-e", f"{name}={value}")]
    here = os.path.dirname(os.path.abspath(__file__))
    log = open(os.path.join(out, "k6.log"), "wb")
    command = [k6, "run", "--quiet", "--no-color", "--no-usage-report", "--address", "", *options, os.path.join(here, "soak.js")]
    return subprocess.Popen(command, stdout=log, stderr=log)


def disturb(load, server, redis, policies, file, seconds):
    """Changes limits and restarts Redis at random until the load ends; returns the changes, and the memory over time."""
    begun = time.time()
    changes, memory = 0, []
    next_change, next_restart = begun + 10, begun + random.uniform(*RESTART_EVERY) / 2
    while load.poll() is None:
        now = time.time()
        memory.append((now - begun, server.megabytes()))
        if now > begun + seconds + 60:
            fail("k6 does not end")
        # No changes near the end, so that the final counts are complete.
        if now < begun + seconds - 10 and now > next_change:
            changed = random.sample(list(policies.values()), random.randint(1, len(policies)))
            for policy in changed:
                policy.change()
            write(file, redis, policies)
            for policy in changed:
                policy.note_change()
            changes += 1
            if changes % 5 == 0:
                spoil(file, redis, policies, server)
            next_change = now + random.uniform(*CHANGE_EVERY)
        if now < begun + seconds - 15 and now > next_restart:
            redis.restart()
            next_restart = now + random.uniform(*RESTART_EVERY)
        time.sleep(1)
        if server.process.poll() is not None:
            fail(f"the server ended with {server.process.returncode}; see {server.log}")
    return changes, memory


def spoil(file, redis, policies, server):
    """Checks that an invalid file changes nothing, and is logged."""
    path = next(iter(policies.values())).path
    time.sleep(SEEN_WITHIN)
    before = server.limits_of(path)
    with open(file, "a") as text:
        text.write("\nlimt = 1\n")
    time.sleep(SEEN_WITHIN)
    if server.limits_of(path) != before:
        fail("a bad file changed a limit")
    if "limt" not in open(server.log).read():
        fail(f"a bad file was not logged; see {server.log}")
    write(file, redis, policies)


def judge(server, redis, policies, out, changes, memory):
    metrics, summary, end = server.metrics(), json.load(open(os.path.join(out, "summary.json"))), time.time()
    problems = []
    print(f"\n{'policy':24} {'offered':>9} {'admitted':>9} {'at most':>9} {'overrun':>8} {'used':>6}")
    for policy in policies.values():
        passed, rejected, other = summary["answers"][policy.path]
        most = policy.most(end, redis.restarts)
        overrun = max(0.0, 100 * (passed - most) / most)
        print(f"{policy.path[1:]:24} {passed + rejected + other:9} {passed:9} {most:9.0f} {overrun:7.2f}% {100 * passed / most:5.0f}%")
        if overrun >= 1:
            problems.append(f"{policy.path}: {overrun:.2f} % too many")
        if other:
            problems.append(f"{policy.path}: {other} answers that are neither 200 nor 429")
        counted = sum(
            value
            for labels, value in metrics.get(REQUESTS, [])
            if labels["route"] == policy.path and labels["policy"] == policy.algorithm and labels["result"] in ("allowed", "delayed")
        )
        # k6 may have cancelled the last requests, and this script has sent some.
        if abs(counted - passed) > 100:
            problems.append(f"{policy.path}: the server counts {counted:.0f} admitted, the clients {passed}")
    queued = sum(value for _, value in metrics.get(QUEUED, [({}, math.nan)]))
    if queued != 0:
        problems.append(f"{queued} still queued")
    settled = [size for at, size in memory if at > 0.25 * memory[-1][0]]
    quarter = max(1, len(settled) // 4)
    early, late = median(settled[:quarter]), median(settled[-quarter:])
    print(f"\nmemory: {early:.1f} MiB after a quarter of the time, {late:.1f} MiB at the end, {max(settled):.1f} at most")
    if late > 1.05 * early + 2:
        problems.append(f"memory grew from {early:.1f} to {late:.1f} MiB")
    text = open(server.log).read()
    if "panicked" in text:
        problems.append(f"the server panicked; see {server.log}")
    latency = summary["latency"]
    print(f"latency: median {latency['med']:.2f} ms, p99 {latency['p99']:.2f} ms, with the waits of queues")
    print(f"{changes} changes of limits, {len(redis.restarts)} restarts of Redis, {queued:.0f} still queued")
    for problem in problems:
        print(f"FAIL: {problem}")
    return 1 if problems else 0


def median(numbers):
    return sorted(numbers)[len(numbers) // 2]


def fail(problem):
    sys.exit(f"soak: {problem}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4], int(sys.argv[4])))
