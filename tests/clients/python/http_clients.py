"""Python's HTTP clients. Each maker returns a call that goes to the route and gives the final status."""

import logging
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import anthropic
import httpx
import httpx_retries
import openai
import requests
import retryhttp
import urllib3
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from measure import WAIT, Route, Row, get, measured


def urllib3_client(url):
    pool = urllib3.PoolManager(retries=urllib3.Retry(total=3))
    return lambda: pool.request("GET", url).status


def urllib3_deaf(url):
    retry = urllib3.Retry(total=1, status_forcelist=[429], respect_retry_after_header=False, raise_on_status=False)
    pool = urllib3.PoolManager(retries=retry)
    return lambda: pool.request("GET", url).status


def requests_client(url):
    session = requests.Session()
    session.mount("http://", requests.adapters.HTTPAdapter(max_retries=urllib3.Retry(total=3)))
    return lambda: session.get(url).status_code


def httpx_retries_client(url):
    client = httpx.Client(transport=httpx_retries.RetryTransport())
    return lambda: client.get(url).status_code


def retryhttp_client(url):
    client = httpx.Client()

    @retryhttp.retry
    def call():
        return client.get(url).raise_for_status().status_code

    return call


def openai_client(url):
    client = openai.OpenAI(base_url=url.removesuffix("/chat/completions"), api_key="none", max_retries=2)
    messages = [{"role": "user", "content": "hello"}]
    create = client.chat.completions.with_raw_response.create
    return lambda: create(model="none", messages=messages).status_code


def anthropic_client(url):
    client = anthropic.Anthropic(base_url=url.removesuffix("/v1/messages"), api_key="none", max_retries=2)
    messages = [{"role": "user", "content": "hello"}]
    create = client.messages.with_raw_response.create
    return lambda: create(model="none", max_tokens=1, messages=messages).status_code


def otlp_exporter(url):
    exporter = OTLPSpanExporter(endpoint=url, timeout=10)
    span = TracerProvider().get_tracer("clients").start_span("one")
    span.end()
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    # The exporter tells no status.
    return lambda: 200 if exporter.export([span]) is SpanExportResult.SUCCESS else 429


def curl(url):
    # Into a file: with /dev/null, curl does not retry.
    body = Path(tempfile.mkdtemp(prefix="sluice-curl-")) / "body"
    arguments = ["curl", "--silent", "--retry", "3", "--output", body, "--write-out", "%{http_code}", url]

    def call():
        try:
            return int(subprocess.run(arguments, capture_output=True, check=True, timeout=20).stdout)
        finally:
            shutil.rmtree(body.parent)

    return call


def curl_version():
    told = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True, timeout=10)
    return told.stdout.split()[1]


# Name, package, route, maker, whether it waits as it is told.
CLIENTS = [
    ("urllib3", "urllib3", "/urllib3", urllib3_client, True),
    ("urllib3, told to ignore it", "urllib3", "/urllib3-deaf", urllib3_deaf, False),
    ("requests", "requests", "/requests", requests_client, True),
    ("httpx-retries", "httpx-retries", "/httpx-retries", httpx_retries_client, True),
    ("retryhttp", "retryhttp", "/retryhttp", retryhttp_client, True),
    ("openai", "openai", "/openai/chat/completions", openai_client, True),
    ("anthropic", "anthropic", "/anthropic/v1/messages", anthropic_client, True),
    ("OTLP/HTTP exporter", "opentelemetry-exporter-otlp-proto-http", "/otlp/v1/traces", otlp_exporter, True),
    ("curl --retry", None, "/curl", curl, True),
]


def all_fields(server):
    """That the routes under /all tell everything at once, and each field in one line."""
    row = Row("all fields at once", "-", "")
    try:
        answers = [get(server + "/all/fields") for _ in range(2)]
        asked = time.time()
        assert [status for status, _, _ in answers] == [200, 429], answers
        fields = answers[1][1]
        told = {name: value for name, value in fields if "limit" in name or name in ("retry-after", "cache-control")}
        assert len(fields) == len(dict(fields)), f"a field of two lines: {fields}"
        reset = int(told.pop("x-ratelimit-reset"))
        assert asked < reset <= asked + WAIT + 1, f"reset at {reset}, asked at {asked}"
        assert 0 < float(told.pop("x-rate-limited-for")) <= WAIT
        assert told == {
            "cache-control": "no-store",
            "retry-after": "2",
            "ratelimit-policy": '"p";q=1;w=2',
            "ratelimit": '"p";r=0;t=2',
            "x-ratelimit-limit": "1",
            "x-ratelimit-remaining": "0",
        }, told
        row.did = f"{len(told) + 2} fields, one line each"
    except Exception as error:
        row.did, row.problem = "failed", f"{type(error).__name__}: {error}"
    return row


def run(server):
    # Made before the clock runs, since some read certificates; then all at once.
    made = []
    for name, package, path, maker, waits in CLIENTS:
        pinned = version(package) if package else curl_version()
        for title, route in [(name, Route(server, path)), (f"{name}, all", Route(server, "/all" + path))]:
            if waits or route.path == path:
                made.append((title, pinned, route, maker(route.url), waits))
    with ThreadPoolExecutor(len(made)) as threads:
        return [all_fields(server), *threads.map(lambda client: measured(*client), made)]
