"""What a client did: how often it came and when it was served, as the server and a monotonic clock tell."""

import re
import time
from dataclasses import dataclass
from http.client import HTTPConnection
from urllib.parse import urlsplit

# The wait that the routes of server.toml ask for, in seconds, and how much longer a client may take.
WAIT = 2.0
SLACK = 1.2


def get(url, headers=None):
    """One bare request: status, fields in order of arrival, body."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname, parts.port, timeout=10)
    try:
        connection.request("GET", parts.path, headers=headers or {})
        response = connection.getresponse()
        return response.status, [(name.lower(), value) for name, value in response.getheaders()], response.read()
    finally:
        connection.close()


@dataclass
class Row:
    """A line of the table."""

    name: str
    version: str
    did: str
    delay: float | None = None
    problem: str = ""

    def print(self):
        delay = "-" if self.delay is None else f"{self.delay * 1000:.0f}"
        verdict = f"FAIL: {self.problem}" if self.problem else "pass"
        print("\t".join([self.name, self.version, self.did, delay, " ".join(verdict.split())]), flush=True)


class Route:
    """A route, and what the server counted there."""

    def __init__(self, server, path):
        self.server, self.path, self.url = server, path, server + path

    def spend(self):
        """Takes what the route has, so that the next request is rejected."""
        status, _, body = get(self.url)
        if status != 200:
            raise AssertionError(f"the first request got {status}: {body[:200]}")

    def count(self, result):
        _, _, text = get(self.server + "/metrics")
        pattern = rf'^\S+_requests_total{{route="{re.escape(self.path)}",policy="\w+",result="{result}"}} (\d+)$'
        found = re.search(pattern, text.decode(), re.MULTILINE)
        return int(found[1]) if found else 0


def measured(name, version, route, call, waits):
    """Lets a client meet a rejection. `waits`: whether it should come back when told, or too early."""
    row = Row(name, version, "")
    try:
        route.spend()
        begun = time.monotonic()
        status = call()
        row.delay = time.monotonic() - begun
        rejected = route.count("rejected")
    except Exception as error:
        row.did = "failed"
        row.problem = f"{type(error).__name__}: {error}"[:300]
        return row
    row.did = f"rejected {rejected}x, then {status}" if status == 200 else f"rejected {rejected}x, gave up with {status}"
    if waits:
        if status != 200 or rejected != 1 or not WAIT <= row.delay < WAIT + SLACK:
            row.problem = f"should be rejected once and succeed after {WAIT} to {WAIT + SLACK} s"
    elif rejected < 2:
        row.problem = "a negative control that waited: what is asserted of the others proves nothing"
    else:
        row.did += " (came too early, as expected)"
    return row
