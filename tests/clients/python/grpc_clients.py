"""grpcio: retries after the pushback, and decodes the details."""

import json
import time
from importlib.metadata import version
from urllib.parse import urlsplit

import grpc
from google.protobuf.wrappers_pb2 import StringValue
from google.rpc.error_details_pb2 import QuotaFailure, RetryInfo
from grpc_status import rpc_status

from measure import SLACK, WAIT, Route, Row

PATH = "/sluice.example.v1.Echo/Echo"
DEADLINE = 10
# Its own backoff is far shorter than the pushback, so that what is waited is the pushback.
RETRYING = {
    "methodConfig": [
        {
            "name": [{"service": "sluice.example.v1.Echo"}],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.1s",
                "maxBackoff": "0.2s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
            },
        }
    ]
}


def echo(channel, key):
    # EchoRequest has, as StringValue, one string in field 1.
    method = channel.unary_unary(
        PATH, request_serializer=StringValue.SerializeToString, response_deserializer=StringValue.FromString
    )
    return method(StringValue(value="hello"), metadata=[("x-client", key)], timeout=DEADLINE).value


def retries(server, plain):
    row = Row("grpcio, retryPolicy", version("grpcio"), "")
    address = urlsplit(server).netloc
    route = Route(server, PATH)
    with grpc.insecure_channel(address, [("grpc.service_config", json.dumps(RETRYING))]) as channel:
        begun = time.monotonic()
        assert echo(plain, "grpcio") == "hello"
        before = route.count("rejected")
        asked = time.monotonic()
        said = echo(channel, "grpcio")
        row.delay, since_first = time.monotonic() - asked, time.monotonic() - begun
        rejected = route.count("rejected") - before
    row.did = f"rejected {rejected}x, then OK"
    # The pushback tells what is left of the wait, to the millisecond.
    if said != "hello" or rejected != 1 or since_first < WAIT or row.delay >= WAIT + SLACK:
        row.problem = f"should be rejected once, and succeed {WAIT} s after the first call"
    return row


def decodes(_, plain):
    row = Row("grpcio-status", version("grpcio-status"), "")
    assert echo(plain, "grpcio-status") == "hello"
    try:
        echo(plain, "grpcio-status")
        raise AssertionError("the second call was not rejected")
    except grpc.RpcError as error:
        rejection = error
    assert rejection.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, rejection
    pushback = [value for name, value in rejection.trailing_metadata() if name == "grpc-retry-pushback-ms"]
    assert len(pushback) == 1 and pushback[0].isdecimal() and 0 < int(pushback[0]) <= WAIT * 1000, pushback
    # Checks that code and message inside are those outside, too.
    status = rpc_status.from_call(rejection)
    details = {detail.type_url.rsplit("/")[-1]: detail for detail in status.details}
    retry, quota = RetryInfo(), QuotaFailure()
    assert details["google.rpc.RetryInfo"].Unpack(retry) and details["google.rpc.QuotaFailure"].Unpack(quota), details
    delay = retry.retry_delay.ToNanoseconds()
    assert -(-delay // 1_000_000) == int(pushback[0]), f"RetryInfo {delay} ns, pushback {pushback[0]} ms"
    assert [violation.subject for violation in quota.violations] and "127.0.0.1" not in str(quota), quota
    row.did = f"RetryInfo {delay / 1e9:.6f} s, QuotaFailure of {quota.violations[0].subject}"
    return row


def run(server):
    rows = []
    with grpc.insecure_channel(urlsplit(server).netloc, [("grpc.enable_retries", 0)]) as plain:
        for check in [retries, decodes]:
            try:
                rows.append(check(server, plain))
            except Exception as error:
                detail = error.details() if isinstance(error, grpc.RpcError) else str(error)
                rows.append(Row(f"grpcio: {check.__name__}", version("grpcio"), "failed", None, detail or repr(error)))
    return rows
