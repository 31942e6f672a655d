"""Drives the example configurations of proxies. Run by `scripts/ci/gateways`, which installs them:

    ENVOY=… TRAEFIK=… run.py SLUICE FOLDER

Each proxy is in front of the same app and asks the same `sluice serve`, with the files of `crates/sluice/examples/proxies`. All are
tried at once, each by clients of its own. Prints a line per check, and exits with 1 if one fails.
"""

import json
import math
import sys
import threading
import time
import traceback
from pathlib import Path

from client import Client
from exact import admitted_of_many
from kinds import kinds
from programs import EXAMPLES, PATIENCE, App, Proxy, Sluice
from spent import answers_until_limited

# Of limits.toml.
EXPORTS = 5
EXPORT_EVERY = 86_400 // EXPORTS
SEARCHES = 3
SEARCH_EVERY = 2


# Of a route with so many policies that the head of an answer exceeds 4 KiB.
MANY = "".join(
    f"""
  [[route.policy]]
  name = "{'many-' + str(number) + '-' * 50}"
  algorithm = "token-bucket"
  limit = 5
  per = "1day"
  key = "client-ip"
"""
    for number in range(30)
)


# Of a route whose clients are told apart by a cookie.
BY_COOKIE = """
[[route]]
path = "/session"
  [[route.policy]]
  name = "sessions"
  algorithm = "fixed-window"
  limit = 2
  per = "1day"
  key = "cookie:sid"
"""


class Report:
    """The results, by proxy."""

    def __init__(self):
        self.lock = threading.Lock()
        self.lines = {}
        self.passed = 0
        self.failed = 0

    def check(self, proxy, name, found, expected):
        """`expected` is a value, or a function that says whether `found` is right."""
        is_right = bool(expected(found)) if callable(expected) else found == expected
        verdict = "" if is_right else " WRONG" if callable(expected) else f" WRONG, not {expected}"
        with self.lock:
            self.passed += is_right
            self.failed += not is_right
            self.lines.setdefault(proxy, []).append(f"{proxy:<16} {name:<62} {found}{verdict}")

    def print(self):
        for lines in self.lines.values():
            print(*lines, sep="\n")
        # As CI reads it.
        print(f"{self.passed} passed, {self.failed} failed")

    def guard(self, name, act, *arguments):
        """Counts a test that crashes as failed."""
        try:
            act(*arguments)
        except Exception:
            self.check(name, traceback.format_exc(), "crashed", "done")


def forgeries(other):
    """Fields that must not give a client the budget of another, or of another path."""
    return {
        "an address": [("X-Forwarded-For", other)],
        "two addresses": [("X-Forwarded-For", f"{other}, 127.0.0.1")],
        "addresses in two lines": [("X-Forwarded-For", other), ("X-Forwarded-For", other)],
        "other fields for addresses": [("X-Real-IP", other), ("Forwarded", f"for={other}"), ("X-Envoy-External-Address", other)],
        "a path": [("X-Forwarded-Uri", "/forged")],
        "a path in two lines": [("X-Forwarded-Uri", "/forged"), ("X-Forwarded-Uri", "/forged")],
        "a path in Envoy's field": [("X-Envoy-Original-Path", "/forged")],
        "a method": [("X-Forwarded-Method", "OPTIONS")],
        "a host": [("X-Forwarded-Host", "forged.example")],
        "names for Connection to drop": [("Connection", "close, X-Forwarded-For, X-Forwarded-Uri")],
    }


def try_spellings(check, kind, proxy, client):
    """The client has used up its exports."""
    for path in ("/export?status=418", "/export#/../x", "/%65xport", "//export", "/a/../export"):
        # Envoy rejects some of these itself. Caddy encodes the `#`, and so its app sees another path, too.
        right = (200,) if "#" in path and kind.name == "caddy" else (400, 429)
        check(f"limited, too: {path}", client.get(path).status, lambda status: status in right)
    # Envoy's ext_authz has the target in the request line of its call, where a server cannot take these.
    raw = [] if kind.name == "envoy-ext-authz" else ['/?q="<x>"', '/a"<b>']
    for path in ("/?q=tea", *raw, "/a|b", "/" + "x" * 3_000, "/?q=" + "x" * 3_000):
        check(f"not limited: {path[:20]}", client.get(path).status, 200)
    for count in (60, 96, 98, 100, 110):
        # With the client's own, which are three. A proxy may reject as many; none may end.
        fields = [(f"X-Field-{number}", "1") for number in range(count)]
        check(f"{count} fields", client.get("/about", fields).status, lambda status: status in (200, 400, 431))
        fields = [("X-Api-Key", "v")] * count
        check(f"{count} times one field", client.get("/about", fields).status, lambda status: status in (200, 400, 431))
    check("after them", client.get("/about").status, 200)


def try_many_policies(check, kind, client):
    if kind.name != "envoy-ratelimit":
        statuses = [client.get("/many").status for _ in range(6)]
        check("thirty policies of five a day", statuses, [200] * 5 + [429])


def try_cookies(check, kind, client):
    """Envoy's files hand no cookies on."""
    if kind.name.startswith("envoy"):
        return
    session = ("Cookie", f"sid={kind.name}")
    statuses = [client.get("/session", [("Cookie", "a=1"), session]).status for _ in range(3)]
    check("two requests of a session in the second of two fields", statuses, [200] * 2 + [429])
    status = client.get("/session", [("Cookie", "sid=other"), session]).status
    check("forged: a second session", status, lambda status: status in (400, 429))


def try_proxy(report, app, kind, proxy, network):
    def check(name, found, expected):
        report.check(kind.name, name, found, expected)

    # The addresses of its clients are 127.0.<network>.*.
    first, second, third = (Client(proxy.port, f"127.0.{network}.{host}") for host in (1, 2, 3))

    begun = time.monotonic()
    answers = [first.get("/export") for _ in range(EXPORTS + 1)]
    check("five exports a day, and no sixth", [answer.status for answer in answers], [200] * EXPORTS + [429])
    check("the app has seen", app.requests[first.address], EXPORTS)
    rejected = answers[-1].fields
    wait = int(rejected.get("retry-after", 0))
    elapsed = int(time.monotonic() - begun) + 1
    check("Retry-After of the sixth", wait, lambda wait: EXPORT_EVERY - elapsed <= wait <= EXPORT_EVERY)
    for name in kind.on_admitted:
        check(f"an admitted answer has {name}", answers[0].fields.get(name), bool)
    check("a rejection has ratelimit", rejected.get("ratelimit"), lambda found: found and 'exports";r=0;' in found)
    check("a rejection has ratelimit-policy", rejected.get("ratelimit-policy"), lambda found: found and 'exports";q=5;' in found)
    exact = rejected.get("x-rate-limited-for", "0")
    check("its exact wait, and Retry-After", (exact, wait), lambda found: math.ceil(float(found[0])) == found[1])
    check("its media type", rejected.get("content-type"), "application/problem+json")
    check("its body has the status", json.loads(answers[-1].body).get("status"), 429)

    check("another client", second.get("/export").status, 200)
    for name, fields in forgeries(second.address).items():
        # Envoy rejects some of these itself.
        check(f"forged: {name}", first.get("/export", fields).status, lambda status: status in (400, 429))
    check("the other client is not charged", [second.get("/export").status for _ in range(EXPORTS)], [200] * (EXPORTS - 1) + [429])

    try_spellings(check, kind, proxy, first)
    try_many_policies(check, kind, third)
    try_cookies(check, kind, third)

    posted = third.get("/echo", method="POST", body=b"x" * 100_000)
    check("a body arrives at the app", (posted.status, len(posted.body)), (200, 100_000))
    check("the app's own 403", third.get("/forbidden").status, 403)

    # On a machine that is so busy that a token comes meanwhile, again with another client.
    for host in range(10, 20):
        client = Client(proxy.port, f"127.0.{network}.{host}")
        answers = [client.get("/search") for _ in range(SEARCHES + 1)]
        if answers[-1].status == 429:
            break
    check("three searches, and no fourth", [answer.status for answer in answers], [200] * SEARCHES + [429])
    wait = int(answers[-1].fields.get("retry-after", 0))
    check("Retry-After of the fourth", wait, lambda wait: 1 <= wait <= SEARCH_EVERY)
    time.sleep(wait)
    check("after that wait", client.get("/search").status, 200)


def try_without_limiter(report, kind, proxy, network, how):
    client = Client(proxy.port, f"127.0.{network}.1")
    # A client's own timeout is longer than those of the files.
    report.check(kind.name, f"the limiter {how}", client.get("/export").status, kind.when_down)


def try_again(report, kind, proxy, network):
    client = Client(proxy.port, f"127.0.{network}.1")
    deadline = time.monotonic() + PATIENCE
    # Caddy does not ask for five seconds.
    while (status := client.get("/export").status) != 429 and time.monotonic() < deadline:
        time.sleep(0.1)
    report.check(kind.name, "the limiter answers again", status, 429)


def try_many(report, program, folder, app):
    limits = (EXAMPLES / "limits.toml").read_text().replace("limit = 5\n", "limit = 777\n")
    found, seen = admitted_of_many(program, folder, limits, app)
    report.check("envoy-ratelimit", "8 workers, 8 x 1,000 requests at a limit of 777: admitted", found, {200: 777, 429: 7_223})
    report.check("envoy-ratelimit", "the app has seen", seen, 777)


def try_spent(report, program, folder, app):
    found = answers_until_limited(program, folder, app)
    report.check("envoy-ratelimit", "30 tokens per answer at a limit of 100, charged when streams end", found, [200] * 4 + [429])


def together(tasks):
    threads = [threading.Thread(target=task[0], args=task[1:]) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main():
    program, folder = sys.argv[1], Path(sys.argv[2]).resolve()
    only = sys.argv[3:]
    if unknown := set(only) - {kind.name for kind in kinds()}:
        sys.exit(f"there is no proxy {', '.join(unknown)}; there are: {', '.join(kind.name for kind in kinds())}")
    folder.mkdir(parents=True, exist_ok=True)
    report = Report()
    app = App()
    running = []
    try:
        many = '\n[[route]]\npath = "/many"\n' + MANY
        sluice = Sluice(program, folder, (EXAMPLES / "limits.toml").read_text() + many + BY_COOKIE)
        running.append(sluice)
        proxies = []

        def start(network, kind):
            proxy = Proxy(kind, folder / kind.name, sluice.address, app.address)
            running.append(proxy)
            proxies.append((network, kind, proxy))

        chosen = [kind for kind in kinds() if not only or kind.name in only]
        together([(report.guard, kind.name, start, network, kind) for network, kind in enumerate(chosen, 1)])
        tasks = [(report.guard, kind.name, try_proxy, report, app, kind, proxy, network) for network, kind, proxy in proxies]
        if any(kind.name == "envoy-ratelimit" for kind in chosen):
            tasks.append((report.guard, "envoy-ratelimit", try_many, report, program, folder / "many", App()))
            tasks.append((report.guard, "envoy-ratelimit", try_spent, report, program, folder / "spent", App()))
        together(tasks)
        sluice.pause()
        together([
            (report.guard, kind.name, try_without_limiter, report, kind, proxy, network, "hangs")
            for network, kind, proxy in proxies
            if kind.has_timeout
        ])
        sluice.resume()
        together([(report.guard, kind.name, try_again, report, kind, proxy, network) for network, kind, proxy in proxies])
        sluice.stop()
        together([
            (report.guard, kind.name, try_without_limiter, report, kind, proxy, network, "is down")
            for network, kind, proxy in proxies
        ])
    finally:
        for one in running:
            one.stop()
        report.print()
    sys.exit(report.failed != 0)


if __name__ == "__main__":
    main()
