"""Ports for servers of tests, by the rules of `tests/support/ports.rs`: a process owns a block of them, and marks it by its first
port. None is among those that the system gives to outgoing connections, one of which could take it before its server does."""

import itertools
import socket
import time

FIRST = 16_384
BLOCK = 1_024


def _bound(port):
    it = socket.socket()
    try:
        it.bind(("127.0.0.1", port))
        return it
    except OSError:
        it.close()
        return None


def _take():
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for block in range(16):
            mark = _bound(FIRST + block * BLOCK)
            if mark:
                return mark
        time.sleep(0.05)
    raise SystemExit("no block of ports is free; end the other tests of this machine, then run this again")


# Bound for as long as the process lives.
_mark = _take()
_next = itertools.count(1)


def free_port():
    for offset in itertools.islice(_next, BLOCK):
        port = _mark.getsockname()[1] + offset % (BLOCK - 1) + 1
        probe = _bound(port)
        # Other programs may listen on some.
        if probe:
            probe.close()
            return port
    raise SystemExit("no port is free")
