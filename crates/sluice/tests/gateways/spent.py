"""Costs that are known at the end: Envoy looks before a request, and charges 30 when its response has ended."""

import time

from client import Client
from kinds import kinds
from programs import PATIENCE, Proxy, Sluice

LIMITS = """
domain: tokens
descriptors:
  - {key: remote_address, rate_limit: {unit: year, requests_per_unit: 100}}
"""

# The descriptor of both is the same. Envoy reads `hits_addend` only here, and not in `route: rate_limits`.
ACTIONS = """route: { cluster: app }
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits:
                                - actions: [{ remote_address: {} }]
                                  hits_addend: { number: 0 }
                                - actions: [{ remote_address: {} }]
                                  hits_addend: { number: 30 }
                                  apply_on_stream_done: true
"""

EXPORT = """route:
                            cluster: app
                            rate_limits:
                              - actions:
                                  - generic_key: { descriptor_key: path, descriptor_value: export }
                                  - remote_address: {}
"""


def answers_until_limited(program, folder, app):
    """Returns the statuses of requests up to the first that is limited, and at most nine."""
    folder.mkdir(parents=True, exist_ok=True)
    [kind] = [kind for kind in kinds() if kind.name == "envoy-ratelimit"]
    sluice = Sluice(program, folder, LIMITS, "--envoy-config")
    try:
        replaced = {"domain: edge": "domain: tokens", EXPORT: ACTIONS}
        envoy = Proxy(kind, folder / kind.name, sluice.address, app.address, replaced=replaced)
        try:
            return _statuses(envoy.port, sluice.address)
        finally:
            envoy.stop()
    finally:
        sluice.stop()


def _statuses(port, limiter):
    client = Client(port, "127.0.0.8")
    statuses = []
    while len(statuses) < 9 and 429 not in statuses:
        statuses.append(client.get("/export").status)
        # Envoy charges after the client has the answer.
        if statuses[-1] == 200:
            _wait_for_charges(limiter, len(statuses) * 2)
    return statuses


def _wait_for_charges(limiter, calls):
    host, port = limiter.split(":")
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and _calls(Client(int(port), host)) < calls:
        time.sleep(0.02)


def _calls(client):
    """How many decisions the service has made: a look and a charge for each answer."""
    lines = client.get("/metrics").body.decode().splitlines()
    counted = [line for line in lines if line.startswith("tower_sluice_") and 'policy="remote_address"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in counted if "_requests_total" in line)
