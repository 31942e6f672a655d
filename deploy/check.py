"""Sends the example server requests of all kinds, and runs every query of the dashboard and of the alerts in a real
Prometheus. Run by `scripts/ci/prometheus`:

    check.py SERVER ADMIN PROMETHEUS PID_OF_REDIS LIMITS EDITED_LIMITS

Then replaces the file that the server watches by the edited one: the alerts of removed policies must stop.

Exits with 1 if a query has no data, or impossible data.
"""

import http.client
import json
import math
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
import urllib.parse
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
NAME = "tower_sluice_rate_limiting_"
LABELS = {"__name__", "instance", "job", "le", "node", "policy", "priority", "result", "route", "share"}
# The alerts that must not fire after this traffic, and those that must. The speed of the store is not checked: it depends
# on the machine's load.
SILENT = {"RateLimitTableFull", "RateLimitTableFillingUp", "RateLimitQueueSlow", "RateLimitOverloaded"}
FIRING = {"RateLimitStoreDown", "RateLimitLimiterFailing", "RateLimitManyRejected", "RateLimitMissingKey"}
CLIENT = "client-4711"
# The example server makes no calls to partners, and keeps no debts: it does not export these. `alerts_test.yml` tests the
# alerts on them, and `tests/repository` that each metric is in the dashboard or in an alert.
ELSEWHERE = re.compile(NAME + "(outgoing_|waiting_calls|throttled_partners|debt_table_|store_conversions|store_lost_swaps|crossings)")


def address(url):
    url = urllib.parse.urlsplit(url)
    return url.hostname, url.port


class Traffic:
    """Sends requests, and counts the responses by path and status."""

    def __init__(self, server):
        self.server = address(server)
        self.answers = Counter()
        self.lock = threading.Lock()

    def send(self, path, count=1, client=True):
        connection = http.client.HTTPConnection(*self.server, timeout=20)
        for _ in range(count):
            connection.request("GET", path, headers={"x-client": CLIENT} if client else {})
            answer = connection.getresponse()
            answer.read()
            with self.lock:
                self.answers[path, answer.status] += 1
        connection.close()

    def at_once(self, path, count):
        threads = [threading.Thread(target=self.send, args=(path,)) for _ in range(count)]
        for thread in threads:
            thread.start()
        return threads

    def leave(self, path):
        """Sends a request, and closes the connection before the response."""
        with socket.create_connection(self.server, timeout=20) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: test\r\nx-client: {CLIENT}\r\n\r\n".encode())
            time.sleep(0.1)

    def metrics(self):
        connection = http.client.HTTPConnection(*self.server, timeout=20)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return text


class Prometheus:
    def __init__(self, url):
        self.address = address(url)

    def get(self, path, **query):
        connection = http.client.HTTPConnection(*self.address, timeout=20)
        connection.request("GET", path + "?" + urllib.parse.urlencode(query, doseq=True))
        answer = json.load(connection.getresponse())
        connection.close()
        assert answer["status"] == "success", f"{query}: {answer}"
        return answer["data"]

    def query(self, query):
        """Returns the values by their labels."""
        result = self.get("/api/v1/query", query=query)["result"]
        return {tuple(sorted(it["metric"].items())): float(it["value"][1]) for it in result}

    def total(self, query):
        return sum(self.query(query).values())


def until(what, seconds, is_so):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.2)


def act_by_hand(admin):
    """Bans one key and allows another, as an operator does."""
    connection = http.client.HTTPConnection(*address(admin), timeout=20)
    for act, key in [("ban", "203.0.113.1"), ("allow", "203.0.113.2")]:
        terms = {"policy": "bucket", "key": key, "for": "1h", "reason": "a check of the dashboard"}
        connection.request("POST", f"/api/{act}", json.dumps(terms), {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, f"{act}: {answer.status} {text}"
    connection.close()


def drive(traffic, prometheus, redis):
    # Prometheus sees only increases after the first scrape of a counter.
    until("the first scrape", 30, lambda: len(prometheus.query(NAME + "requests_total")) > 20)
    # The counter of a store begins with its first call.
    traffic.send("/shared", 5)
    until("a call", 30, lambda: prometheus.query(NAME + "store_call_duration_seconds_count"))
    traffic.send("/bucket", 2_000)
    traffic.send("/keyed", 20)
    traffic.send("/keyed", 10, client=False)
    traffic.send("/shared", 45)
    traffic.send("/overload", 30)
    # One passes and ten wait: nine of them for two seconds or more, so that Prometheus sees them; one disconnects.
    waiting = traffic.at_once("/queue", 10) + traffic.at_once("/shared-queue", 3)
    time.sleep(0.3)
    traffic.leave("/queue")
    until("there are waiters", 20, lambda: prometheus.total(NAME + "queued_requests") > 0)
    for thread in waiting:
        thread.join(30)
    os.kill(redis, signal.SIGKILL)
    traffic.send("/shared", 50)
    # A scrape after the last request.
    last = time.time()
    stamp = f'min(timestamp({NAME}queued_requests))'
    until("the last scrape", 30, lambda: min(prometheus.query(stamp).values(), default=0) > last + 1)


def check_counts(traffic, prometheus):
    """Prometheus has exactly the counts that the clients saw."""
    for path in ["/bucket", "/keyed", "/shared", "/queue", "/shared-queue", "/overload"]:
        policy = path.strip("/")

        def counted(results):
            return prometheus.total(f'{NAME}requests_total{{route="{path}", policy="{policy}", result=~"{results}"}}')

        for status, results in [(200, "allowed|delayed"), (429, "rejected"), (400, "missing-key")]:
            seen = traffic.answers[path, status]
            assert counted(results) == seen, f"{path}: {status} {seen} times, counted {counted(results)}"
        print(f"{path}: {dict((s, n) for (p, s), n in sorted(traffic.answers.items()) if p == path)}, as counted")
    assert {status for (_, status) in traffic.answers} == {200, 400, 429}, traffic.answers
    total = lambda name: prometheus.total(NAME + name)
    assert total('requests_total{route="/bucket", policy="watch", result="shadow-rejected"}') == 2
    assert total('requests_total{route="/queue", result="cancelled"}') == 1
    assert total('requests_total{route="/queue", result="delayed"}') >= 5
    assert total('limiter_failures_total{policy="shared"}') == 50
    assert total("queued_requests") == 0, "no request waits any more"
    assert total('table_capacity{policy="bucket"}') == 65_536
    assert total('store_breaker{policy="shared"}') >= 1
    assert [total(f'{state}_by_hand{{policy="bucket"}}') for state in ["banned", "allowed"]] == [1, 1]
    answered = total('store_call_duration_seconds_count{result="ok"}')
    assert answered >= 1, "calls to Redis were answered"


def check_labels(traffic, prometheus):
    series = prometheus.get("/api/v1/series", **{"match[]": '{__name__=~"tower_sluice_.*"}'})
    labels = {label for one in series for label in one}
    assert labels <= LABELS, f"labels {labels - LABELS}"
    text = traffic.metrics()
    assert CLIENT not in text and '127.0.0.1"' not in text, "the metrics contain a key"
    print(f"{len(series)} series, labels {' '.join(sorted(labels))}")


def selectors(query):
    return re.findall(NAME + r"\w+(?:\{[^}]*\})?", query)


def check_query(prometheus, where, query, must_have_data=True):
    if any(ELSEWHERE.match(selector) for selector in selectors(query)):
        prometheus.query(query)
        return []
    for selector in selectors(query):
        assert prometheus.query(selector), f"{where}: nothing is exported as {selector}"
    values = prometheus.query(query)
    # A share or a quantile of nothing is not a number.
    numbers = [value for value in values.values() if not math.isnan(value)]
    assert all(value >= 0 and math.isfinite(value) for value in numbers), f"{where}: {query}: {values}"
    assert numbers or not must_have_data, f"{where}: no data for {query}"
    return numbers


def check_dashboard(prometheus):
    dashboard = json.loads((HERE / "dashboard.json").read_text())
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
            assert prometheus.query(f'{metric}{{{label}!=""}}'), f"variable {label}"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]), "two panels have one id"
    # A row is a heading.
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    count = 0
    for panel in panels:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "2m").replace("$__range", "2m")
            query = re.sub(r'"\$(route|policy)"', '".*"', query)
            assert "$" not in query, query
            check_query(prometheus, panel["title"], query)
            if any(ELSEWHERE.match(selector) for selector in selectors(query)):
                continue
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert any(dict(key).get(label) for key in prometheus.query(query)), f"{panel['title']}: {label}"
            count += 1
    print(f"dashboard: {len(panels)} panels, {count} queries")


def check_alerts(prometheus):
    rules = [rule for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} >= SILENT | FIRING
    for rule in rules:
        name = rule["name"]
        holds = bool(check_query(prometheus, name, rule["query"], must_have_data=False))
        assert rule["health"] == "ok", rule
        assert not (holds and name in SILENT), f"{name} fires"
        assert holds or name not in FIRING, f"{name} does not fire: {rule['query']}"
        print(f"{name}: {'holds' if holds else 'does not hold'}")


def fill(traffic, path, count):
    """Sends requests of `count` clients, many at a time. HEAD, whose responses have no content."""
    with socket.create_connection(traffic.server, timeout=20) as connection:
        for first in range(0, count, 500):
            batch = range(first, min(first + 500, count))
            head = "HEAD {} HTTP/1.1\r\nhost: test\r\nx-client: client-{}\r\n\r\n"
            connection.sendall("".join(head.format(path, number) for number in batch).encode())
            answers = b""
            while answers.count(b"\r\n\r\n") < len(batch):
                part = connection.recv(1 << 16)
                assert part, f"{path}: the server hangs up"
                answers += part


def check_policies_that_go(traffic, prometheus, limits, edited):
    """Alerts of policies that a change removes stop, and no counter falls."""
    rules = [rule for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]
    expressions = {rule["name"]: rule["query"] for rule in rules}
    quiet = ["RateLimitStoreDown", "RateLimitTableFillingUp"]
    fill(traffic, "/full", 60_000)
    for name in quiet:
        until(f"{name} holds", 30, lambda: prometheus.query(expressions[name]))
    # Replaced atomically, as an editor does.
    shutil.copy(edited, limits + ".new")
    os.rename(limits + ".new", limits)
    for name in quiet:
        until(f"{name} holds no more", 30, lambda: not prometheus.query(expressions[name]))
        print(f"{name}: quiet once its policies are gone")
    for gauge in ["table_live_keys", "table_capacity", "store_breaker"]:
        gone = prometheus.query(f'{NAME}{gauge}{{policy=~"full|shared|shared-queue"}}')
        assert gone and not any(gone.values()), f"{gauge} of policies that are gone: {gone}"
    traffic.send("/full", 1)
    until("the successor is seen", 30, lambda: prometheus.total(f'{NAME}table_capacity{{policy="after-full"}}') > 0)
    # A fall of a counter is a reset to Prometheus.
    for counter in ["requests", "limiter_failures", "table_evicted_live", "table_turned_away", "ban_table_evicted_live"]:
        resets = prometheus.query(f"resets({NAME}{counter}_total[5m])")
        assert resets and not any(resets.values()), f"{counter} fell: {resets}"


def main():
    server, admin, prometheus, redis, limits, edited = sys.argv[1:]
    traffic, prometheus = Traffic(server), Prometheus(prometheus)
    act_by_hand(admin)
    drive(traffic, prometheus, int(redis))
    check_counts(traffic, prometheus)
    check_labels(traffic, prometheus)
    check_dashboard(prometheus)
    check_alerts(prometheus)
    check_policies_that_go(traffic, prometheus, limits, edited)
    print("Prometheus sees what the clients saw")


if __name__ == "__main__":
    main()
