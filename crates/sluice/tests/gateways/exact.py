"""Many requests at once through many workers of Envoy."""

import threading
from collections import Counter

from client import Client
from kinds import kinds
from programs import Proxy, Sluice

THREADS = 8
EACH = 1_000
# The kernel spreads connections over the workers: so many that no worker is left without one.
CONNECTIONS = 8


def admitted_of_many(program, folder, limits, app):
    """Returns the number of answers by status, and how many requests the app has seen."""
    folder.mkdir(parents=True, exist_ok=True)
    [kind] = [kind for kind in kinds() if kind.name == "envoy-ratelimit"]
    sluice = Sluice(program, folder, limits)
    try:
        envoy = Proxy(kind, folder / kind.name, sluice.address, app.address, "--concurrency", THREADS)
        try:
            return _send(envoy.port), app.requests["127.0.0.9"]
        finally:
            envoy.stop()
    finally:
        sluice.stop()


def _send(port):
    statuses = Counter()
    lock = threading.Lock()

    def send():
        clients = [Client(port, "127.0.0.9", keep=True) for _ in range(CONNECTIONS)]
        found = Counter(clients[number % CONNECTIONS].get("/export").status for number in range(EACH))
        with lock:
            statuses.update(found)

    threads = [threading.Thread(target=send) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(statuses)
