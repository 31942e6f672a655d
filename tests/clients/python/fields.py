"""The RateLimit fields, as http-sf (RFC 9651) reads them."""

from importlib.metadata import version

import http_sf

from measure import Row, get

ROUTES = ["/fields/one", "/fields/several", "/fields/rare"]
REQUESTS = 3


def parsed(fields, name):
    """The members of a List that is sent in one line, and in its canonical form."""
    lines = [value for field, value in fields if field == name]
    assert len(lines) == 1, f"{len(lines)} lines of {name}"
    members = http_sf.parse(lines[0].encode(), tltype="list")
    assert http_sf.ser(members) == lines[0], f"{name} is not canonical: {lines[0]}"
    return lines[0], members


def check(answer):
    status, fields, _ = answer
    policy_line, policies = parsed(fields, "ratelimit-policy")
    line, limits = parsed(fields, "ratelimit")
    for name, parameters in policies:
        assert type(name) is str and type(parameters["q"]) is int and parameters["q"] >= 1, policy_line
        assert "w" not in parameters or type(parameters["w"]) is int and parameters["w"] >= 1, policy_line
    for name, parameters in limits:
        # A Token, another type, would be equal to the String.
        assert type(name) is str, line
        assert name in [policy for policy, _ in policies], f"{line} names what {policy_line} does not"
        assert type(parameters["r"]) is int and parameters["r"] >= 0, line
        assert "t" not in parameters or type(parameters["t"]) is int and parameters["t"] >= 0, line
    retry_after = [value for field, value in fields if field == "retry-after"]
    if status == 429:
        windows = [parameters["t"] for _, parameters in limits if parameters["r"] == 0]
        assert retry_after == [str(max(windows))], f"retry-after {retry_after}, {line}"
    else:
        assert status == 200 and not retry_after, f"{status}, retry-after {retry_after}"
    return status, policy_line, line


def read(server, path):
    row = Row(f"http-sf: {path}", version("http-sf"), "")
    try:
        answers = [check(get(server + path, {"x-client": "http-sf"})) for _ in range(REQUESTS)]
        assert len({policy for _, policy, _ in answers}) == 1, "the policy changed between answers"
        assert answers[-1][0] == 429, f"not rejected after {REQUESTS} requests"
        row.did = f"{answers[-1][1]} | {answers[-1][2]}"
    except Exception as error:
        row.did, row.problem = "failed", f"{type(error).__name__}: {error}"
    return row


def run(server):
    return [read(server, path) for path in ROUTES]
