"""What the tests start: the app behind the proxies, `sluice serve`, and the proxies with the files of the examples."""

import http.server
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

from client import Client
from ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples" / "proxies"
PATIENCE = 30
# A busy machine does not answer within the timeouts of the examples, and would be taken for a limiter that hangs.
TIMES = {"100ms": "5s", "500ms": "5s", "timeout: 0.1s": "timeout: 5s", "timeout: 0.2s": "timeout: 5s", "lb_try_duration 1s": "lb_try_duration 20s"}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Says nothing: proxies reset connections when they stop."""


class App:
    """Answers 200, or 403 at /forbidden, with the body that it was sent. Counts requests by client."""

    def __init__(self):
        app = self
        app.requests = Counter()
        app.lock = threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def answer(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                with app.lock:
                    app.requests[self.headers.get("x-client")] += 1
                self.send_response(403 if self.path == "/forbidden" else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = answer

            def log_message(self, *_):
                pass

        server = Server(("127.0.0.1", free_port()), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.address = f"127.0.0.1:{server.server_port}"


class Program:
    """A process that logs to a file, and is stopped by `stop`."""

    def __init__(self, name, folder, command, env=None):
        self.log = folder / f"{name}.log"
        self.name = name
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                list(map(str, command)), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}
            )

    def wait_until(self, is_ready):
        """Returns the first true result of `is_ready`."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            if result := is_ready():
                return result
            time.sleep(0.02)
        raise RuntimeError(f"{self.name} does not start; its log is {self.log}:\n{self.log.read_text()[-3000:]}")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Sluice(Program):
    def __init__(self, program, folder, limits, option="--config"):
        file = folder / ("limits.toml" if option == "--config" else "limits.yaml")
        file.write_text(limits)
        super().__init__("sluice", folder, [program, "serve", option, file, "--listen", "127.0.0.1:0"])
        self.address = self.wait_until(self._printed_address)

    def pause(self):
        """From now on, connections are accepted, but nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)
        # All of its threads have stopped then.
        os.waitpid(self.process.pid, os.WUNTRACED)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def _printed_address(self):
        found = re.search(r"^listening on (\S+)$", self.log.read_text(), re.M)
        return found and found[1]


class Proxy(Program):
    """A proxy with its example, in which only addresses and paths of files are replaced."""

    def __init__(self, kind, folder, limiter, app, *arguments, replaced=None):
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        addresses = {
            "127.0.0.1:8081": limiter,
            "127.0.0.1:8080": app,
            "127.0.0.1:8082": f"127.0.0.1:{free_port()}",
            kind.listen: kind.listen_on.format(port=self.port),
            "address: 127.0.0.1, port_value: 8081": "address: 127.0.0.1, port_value: " + limiter.rpartition(":")[2],
            "address: 127.0.0.1, port_value: 8080": "address: 127.0.0.1, port_value: " + app.rpartition(":")[2],
            "/etc/haproxy/": f"{folder}/",
            "/etc/traefik/": f"{folder}/",
            **TIMES,
        }
        # Of a test that needs other routes than the example has.
        addresses = {**(replaced or {}), **addresses}
        is_replaced = False
        for name in kind.files:
            text = (EXAMPLES / name).read_text()
            is_replaced |= kind.listen in text
            for old, new in {**addresses, **kind.own}.items():
                text = text.replace(old, new)
            (folder / name).write_text(text)
        if not is_replaced:
            raise RuntimeError(f"{kind.name}: its files have no {kind.listen!r}; change `listen` in kinds.py to what they have")
        command = [part.format(folder=folder, file=folder / kind.files[0]) for part in kind.command]
        # nginx and Caddy write below these folders.
        super().__init__(kind.name, folder, [*command, *arguments], {"HOME": str(folder), "XDG_DATA_HOME": str(folder)})
        self.wait_until(self._answers)

    def _answers(self):
        try:
            return Client(self.port, "127.0.0.1").get("/ready").status in (200, 500)
        except OSError:
            return False
