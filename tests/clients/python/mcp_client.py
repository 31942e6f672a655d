"""The official MCP client against the example `mcp`: how its caller learns the wait, and which calls a limit concerns.

Each check has users of its own, since users have the budgets.
"""

import asyncio
import os
import re
import time
from contextlib import asynccontextmanager
from importlib.metadata import version

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from measure import SLACK, WAIT, Row

HEADER_MISMATCH, RATE_LIMITED = -32020, 429


class Seen:
    """What a client sent and got, as its HTTP client saw it."""

    def __init__(self):
        self.answers = []

    @property
    def last(self):
        return self.answers[-1]

    def left(self, policy):
        """The units that a policy has left, by the last answer."""
        return int(re.search(rf'"{policy}";r=(\d+)', self.last.headers["ratelimit"])[1])


@asynccontextmanager
async def client_of(user, name=None, mode="auto"):
    """A client of this user. With a `name`, it sends that as `Mcp-Name` of tool calls, and with "" no such field."""
    seen = Seen()

    async def lie(request):
        if name is not None and request.headers.get("mcp-method") == "tools/call":
            del request.headers["mcp-name"]
            if name:
                request.headers["mcp-name"] = name

    async def note(response):
        seen.answers.append(response)

    hooks = {"request": [lie], "response": [note]}
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer of-{user}"}, event_hooks=hooks) as http:
        transport = streamable_http_client(os.environ["MCP_SERVER"] + "/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client, seen


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return result.content[0].text


async def rejected(client, tool, **arguments):
    """The error of a call that must be rejected."""
    try:
        result = await client.call_tool(tool, arguments)
    except MCPError as error:
        return error
    raise AssertionError(f"{tool} was not rejected: {result}")


@asynccontextmanager
async def waits(row, client, seen, status, limit, **arguments):
    """Lets a report be rejected, waits as its error says after the block, and repeats it."""
    begun = time.monotonic()
    error = await rejected(client, "report", **arguments)
    wait = error.data["retryAfter"]
    assert error.code == RATE_LIMITED and error.data["limits"] == [limit], error.error
    assert wait in (1, WAIT) and f"retry in {wait} second" in error.message, error.error
    assert seen.last.status_code == status, seen.last
    yield wait
    await asyncio.sleep(begun + wait - time.monotonic())
    await call(client, "report", **arguments)
    row.delay = time.monotonic() - begun
    assert wait <= row.delay < wait + SLACK, row.delay
    row.did = f"{error.code}, HTTP {status}, retryAfter {wait}; then OK"


async def a_tool_s_limit(row):
    async with client_of("ada") as (ada, seen), client_of("bob") as (bob, _):
        assert ada.protocol_version == "2026-07-28" and [tool.name for tool in (await ada.list_tools()).tools]
        await call(ada, "report")
        await call(ada, "report")
        async with waits(row, ada, seen, 429, "per-tool") as wait:
            assert seen.last.headers["retry-after"] == str(wait), seen.last.headers
            # Another tool, and another user.
            await call(ada, "look_up")
            await call(bob, "report")


async def costs(row):
    async with client_of("cleo") as (cleo, seen):
        left = [seen.left("per-user")]
        # Otherwise the client lists the tools after its first call.
        await cleo.list_tools()
        left.append(seen.left("per-user"))
        for tool in ["look_up", "report"]:
            await call(cleo, tool)
            left.append(seen.left("per-user"))
        # A unit comes back each second.
        assert all(0 <= now - then <= 1 for now, then in zip(left, [40, 39, 38, 28])), left
    row.did = f"units left: {left[0]}; after a list {left[1]}, look_up {left[2]}, report {left[3]}"


async def used_up(row):
    """A user without units still connects, and reads the wait."""
    async with client_of("dan") as (dan, seen):
        try:
            while True:
                await dan.list_tools(cache_mode="bypass")
        except MCPError as error:
            assert error.data["limits"] == ["per-user"] and error.data["retryAfter"] == 1, error.error
        listed = sum(answer.status_code == 200 for answer in seen.answers) - 1
    async with client_of("dan") as (dan, seen):
        error = await rejected(dan, "report")
        assert error.data["limits"] == ["per-user"] and 5 <= error.data["retryAfter"] <= 10, error.error
    row.did = f"after {listed} lists: connected, retryAfter {error.data['retryAfter']} for a report"


async def stays_connected(row):
    """A rejection closes no connection, so the next call finds one that works."""
    async with client_of("jo") as (jo, seen):
        times = 0
        while times < 500:
            try:
                await jo.call_tool("report")
            except MCPError as error:
                assert error.code == RATE_LIMITED, error.error
                times += 1
    row.did = f"{times} rejections in a row"


async def lies(row):
    """Calls that name the cheap tool, and are for the dear one, run nothing and cost what they name."""
    async with client_of("eve") as (eve, seen):
        await call(eve, "report")
        before = seen.left("per-user")
    async with client_of("eve", name="look_up") as (liar, seen):
        error = await rejected(liar, "report")
        assert error.code == HEADER_MISMATCH and "Mcp-Name does not match" in error.message, error.error
        # The client lists the tools, and calls once more.
        statuses = [answer.status_code for answer in seen.answers]
        assert statuses == [200, 400, 200, 400], statuses
        assert before - 3 <= seen.left("per-user") <= before - 2, (before, seen.left("per-user"))
        error = await rejected(liar, "report")
        assert error.code == RATE_LIMITED and error.data["limits"] == ["per-tool"], error.error
    async with client_of("eve") as (eve, _), client_of("bob2") as (bob, _):
        error = await rejected(eve, "look_up")
        assert error.data["limits"] == ["per-tool"], "the lie was charged to what it named"
        await call(eve, "report")
        await call(bob, "look_up")
    row.did = "2 calls not run, charged to the tool that they name"


async def spellings(row):
    """The Base64 form of a plain name is no second budget."""
    async with client_of("fay", name="=?base64?cmVwb3J0?=") as (fay, seen):
        error = await rejected(fay, "report")
        assert error.code == HEADER_MISMATCH and seen.last.status_code == 400, error.error
        assert "ratelimit" not in seen.last.headers, "it reached the limit"
    row.did = f"{error.code}, HTTP 400"


async def no_name(row):
    async with client_of("gus", name="") as (gus, seen):
        error = await rejected(gus, "report")
        assert error.code == HEADER_MISMATCH and error.message.endswith("header mcp-name is missing."), error.error
        assert seen.last.status_code == 400, seen.last
    row.did = f"{error.code}, HTTP 400"


async def handler(row):
    """The handler's own limit, on an argument."""
    async with client_of("hal") as (hal, seen):
        await call(hal, "report", pages=20)
        async with waits(row, hal, seen, 200, "pages", pages=1):
            pass
    async with client_of("ida") as (ida, _):
        never = await rejected(ida, "report", pages=21)
        assert never.data == {"retryAfter": None, "limits": ["pages"]}, never.error


async def legacy(row):
    """A client that is older than the revision, or is told to be."""
    try:
        async with client_of("ivy", mode="legacy"):
            raise AssertionError("it connected")
    except ExceptionGroup as group:
        error = first(group)
    assert isinstance(error, MCPError), error
    assert error.code == HEADER_MISMATCH and error.message.endswith("this server speaks 2026-07-28"), error.error
    row.did = f"{error.code}, the message names 2026-07-28"


def first(error):
    """The error in groups of one, which the client's tasks make of it."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


CHECKS = [
    ("a tool's limit", a_tool_s_limit),
    ("costs", costs),
    ("no units left", used_up),
    ("many rejections", stays_connected),
    ("a wrong Mcp-Name", lies),
    ("Mcp-Name in Base64", spellings),
    ("no Mcp-Name", no_name),
    ("the handler's limit", handler),
    ("mode legacy", legacy),
]


def run(_):
    rows = []
    for title, check in CHECKS:
        row = Row(f"mcp: {title}", version("mcp"), "")
        try:
            asyncio.run(asyncio.wait_for(check(row), 30))
        except Exception as error:
            row.did, row.problem = "failed", repr(first(error))
        rows.append(row)
    return rows
