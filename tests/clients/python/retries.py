"""A client that repeats a request whose answer was lost, with the idempotency key of the first: Stripe's."""

import re
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from urllib.parse import urlsplit

import stripe

from measure import Row

# What the routes admit per day.
LIMIT = 5


class Losing(ThreadingHTTPServer):
    """Passes requests on to the server, and closes the connection in place of the first answer."""

    def __init__(self, server):
        super().__init__(("127.0.0.1", 0), PassOn)
        self.to = urlsplit(server)
        # Of each request: its idempotency key, the status of its answer, and what that says is left.
        self.seen = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class PassOn(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        connection = HTTPConnection(self.server.to.hostname, self.server.to.port, timeout=10)
        connection.request("POST", self.path, body, dict(self.headers))
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        left = int(re.search(r";r=(\d+)", answer.getheader("RateLimit"))[1])
        self.server.seen.append((self.headers["Idempotency-Key"], answer.status, left))
        self.close_connection = True
        if len(self.server.seen) == 1:
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def lost_answer(server, title, create, expected):
    """Creates something twice; the first answer is lost. `expected`: what is left after each request."""
    row = Row(title, version("stripe"), "")
    proxy = Losing(server)
    try:
        client = stripe.StripeClient("sk_test_none", base_addresses={"api": proxy.url}, max_network_retries=2)
        for _ in range(2):
            create(client.v1)
        keys, statuses, left = zip(*proxy.seen)
        row.did = f"repeated 1 of 2, {LIMIT - left[-1]} charged"
        if statuses != (200, 200, 200) or not (keys[0] and keys[0] == keys[1] != keys[2]):
            row.problem = f"should repeat the first request with its key, and the second has another: {proxy.seen}"
        elif list(left) != expected:
            row.problem = f"should have {expected} left after each request: {proxy.seen}"
    except Exception as error:
        row.did, row.problem = "failed", f"{type(error).__name__}: {error}; {proxy.seen}"
    finally:
        proxy.shutdown()
        proxy.server_close()
    return row


def run(server):
    return [
        lost_answer(server, "stripe, charged once", lambda api: api.customers.create({"name": "a"}), [4, 4, 3]),
        lost_answer(server, "stripe, charged each time", lambda api: api.products.create({"name": "a"}), [4, 3, 2]),
    ]
