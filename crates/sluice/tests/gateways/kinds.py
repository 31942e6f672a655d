"""The proxies: how each is started, and what its example promises."""

import os
from dataclasses import dataclass, field

LIMITER_FIELDS = ("ratelimit", "ratelimit-policy")
ENVOY_FIELDS = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
ENVOY_WEB = "address: 0.0.0.0, port_value: 80 "
ENVOY_ON = "address: 127.0.0.1, port_value: {port} "


@dataclass
class Kind:
    name: str
    # The first is the one that the command names.
    files: list
    command: list
    # What the files have for the address of clients, and what takes its place.
    listen: str
    listen_on: str
    # The fields of admitted answers, of the limiter or of the proxy.
    on_admitted: tuple = ()
    # The status of a request that the limiter cannot judge.
    when_down: int = 200
    # Whether a limiter that does not answer is noticed.
    has_timeout: bool = True
    # What else the test replaces.
    own: dict = field(default_factory=dict)


def envoy(file, **other):
    # Each hot restart would need an id of its own.
    command = [os.environ["ENVOY"], "--disable-hot-restart", "--log-level", "warn", "--config-path", "{file}"]
    return Kind(file, [f"{file}.yaml"], command, ENVOY_WEB, ENVOY_ON, **other)


def kinds():
    return [
        Kind(
            "nginx",
            ["nginx.conf"],
            ["nginx", "-c", "{file}", "-p", "{folder}", "-e", "stderr", "-g", "daemon off; pid nginx.pid; error_log stderr;"],
            "listen 80;",
            "listen 127.0.0.1:{port};",
            on_admitted=LIMITER_FIELDS,
            own={"http {\n": "http { access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;"
                 " uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n"},
        ),
        Kind(
            "caddy",
            ["Caddyfile"],
            ["caddy", "run", "--config", "{file}", "--adapter", "caddyfile"],
            "\n:80 {",
            "\n{{\n\tadmin off\n}}\nhttp://127.0.0.1:{port} {{",
        ),
        Kind(
            "traefik",
            ["traefik.yml", "traefik-limits.yml"],
            [os.environ["TRAEFIK"], "--configFile={file}"],
            'address: ":80"',
            'address: "127.0.0.1:{port}"',
            when_down=500,
            has_timeout=False,
        ),
        Kind(
            "haproxy",
            ["haproxy.cfg", "haproxy.lua"],
            ["haproxy", "-f", "{file}"],
            "bind :80\n",
            "bind 127.0.0.1:{port}\n",
            on_admitted=LIMITER_FIELDS,
        ),
        envoy("envoy-ext-authz", on_admitted=LIMITER_FIELDS),
        envoy("envoy-ratelimit", on_admitted=LIMITER_FIELDS + ENVOY_FIELDS),
    ]
