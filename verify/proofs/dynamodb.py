"""Proves that the conditional writes in `tower-sluice-dynamodb` implement the algorithms, and bounds the error if
clocks differ.

The names are the sources': `t` is the item's number, `at` the clock, `price` a request's cost, and `capacity` a full
bucket, all in units of 1/limit nanosecond. `now` is the clock in nanoseconds, `written` the time of the last write, and
`latest` the latest time that a right clock may have shown. `n` is a window's count, and `cost` the units that a request
adds.

Limits, bursts, costs and counts are below 10^15, and so below 2^50. DynamoDB keeps 38 digits, and Rust 128 bits. The
search for counterexamples begins at limits of nearly 10^15, so that the tests write numbers of all widths.
"""

from z3 import And, If, Implies, Not, Or

from lemma import (
    CENTURY,
    between,
    div,
    div_ceil,
    greatest,
    ints,
    least,
    lemma,
    product,
    results,
    saturating_sub,
)

ITEMS = "crates/dynamodb/src/items"
# `Quota::MAX_UNITS` + 1.
UNITS = 10**15
# DynamoDB keeps numbers below this exactly.
DIGITS = 10**38
# The greatest number in a bucket: `MOST`.
MOST = 2**121 - 1

t, now, at, price, capacity, written, error, way = ints("t now at price capacity written error way")
limit, period, burst, cost, count, waiting, charged = ints("limit period burst cost count waiting charged")
MINUTE = 60 * 10**9
full = at + capacity
latest = now + 2 * error + way
given = [t >= 0, at >= 0, written >= 0, price > 0, price <= charged, charged <= capacity]
inputs = {
    "limit": limit,
    "period": period,
    "burst": burst,
    "t": t,
    "written": written,
    "now": now,
    "error": error,
    "cost": cost,
    "count": count,
    "waiting": waiting,
}
units = [at == now * limit, price == cost * period, capacity == burst * period, charged == count * price]
domain = [
    *units,
    between(1, period, CENTURY + 1),
    between(1, limit, burst, cost, UNITS),
    way == MINUTE,
    count >= 1,
    waiting >= count,
    waiting < 2**32,
    now > 2**40,
    now < 2**62,
    error >= 0,
    error < 2**40,
    written < 2**62,
    t <= MOST,
    t > 0,
]
# An idle write takes as much of a batch as fits into a whole bucket.
idle_domain = [*domain, Or(count == waiting, div(count, burst, cost))]
# According to the writer's memory of the key, this much fits beside the debt.
busy_domain = [*domain, charged < capacity]
one = count == 1
# With these values, the search is linear.
wide = [limit == UNITS - 11, period == 30 * 86_400 * 10**9 + 1, cost > 2**40]
wide_one, wide_batch = [*wide, one], [*wide, count == 3]

# The bucket: `Gcra::decide` in src/algorithm/gcra.rs.
debt = saturating_sub(t, at)


def admits(charge):
    return debt + charge <= capacity


def idle(applies=Or(t <= at, written > latest), after=at + charged):
    return results(applies=applies, t=If(applies, after, 0))


def busy(low=None, high=full - charged, after=t + charged, begins=t > at):
    """If a part of a batch is charged, the debt must be so large that one more request does not fit."""
    low = If(charged_of_all, at, greatest(full - charged - price, at)) if low is None else low
    applies = And(begins, t > low, t <= high)
    return results(applies=applies, t=If(applies, after, 0))


charged_of_all = count == waiting
IDLE, BUSY = f"{ITEMS}/bucket.rs: Bucket::idle", f"{ITEMS}/bucket.rs: Bucket::busy"
right_clocks = written <= latest
on_idle = dict(inputs=inputs, domain=idle_domain, right=idle())
on_busy = dict(inputs=inputs, domain=busy_domain, right=busy())
single = dict(given=[*given, one, count == waiting, charged == price], fixed=wide_one)
batch = dict(given=given, fixed=wide_batch)

lemma(
    IDLE,
    "bucket: one of the two writes applies if and only if the bucket admits",
    **on_idle,
    **single,
    claim=lambda it: Implies(right_clocks, Or(it["applies"], busy()["applies"]) == admits(price)),
    broken={
        "`<` for `<=`": idle(Or(t < at, written > latest)),
        "a unit early": idle(Or(t <= at + 1, written > latest)),
        "always": idle(t >= 0),
    },
)
lemma(
    BUSY,
    "bucket: never do both apply",
    **on_busy,
    **single,
    claim=lambda it: Implies(right_clocks, Not(And(it["applies"], idle()["applies"]))),
    broken={"`>=` for `>`": busy(low=at - 1, begins=t >= at), "whatever the clock": busy(low=-1, begins=t > 0)},
)
lemma(
    BUSY,
    "bucket: the busy write applies if something is owed and it fits, and writes what the bucket would keep",
    **on_busy,
    **single,
    claim=lambda it: And(
        it["applies"] == And(t > at, admits(price)), Implies(it["applies"], it["t"] == at + debt + price)
    ),
    broken={
        "the debt is forgotten": busy(after=at + charged),
        "the charge is not compared": busy(high=full),
        "`<` for `<=`": busy(high=full - charged - 1),
        "charged twice": busy(after=t + 2 * charged),
        "32 bits of the cost": busy(after=t + cost % 2**32 * period),
        "64 bits of the price": busy(after=t + charged % 2**64),
    },
)
lemma(
    IDLE,
    "bucket: the idle write writes what the bucket would keep",
    **on_idle,
    **single,
    claim=lambda it: Implies(And(it["applies"], right_clocks), it["t"] == at + debt + price),
    broken={
        "from the last payment on": idle(after=t + charged),
        "time that passed is credited": idle(after=t + charged - 1),
        "64 bits of the clock": idle(after=at % 2**64 + charged),
    },
)
lemma(
    IDLE,
    "bucket: of a state that no right clock has written, the idle write makes a new one",
    **on_idle,
    **single,
    claim=lambda it: Implies(written > latest, And(it["applies"], it["t"] == at + price)),
    broken={"it is not looked at": idle(t <= at), "added to what was written": idle(after=greatest(t, at) + charged)},
)
lemma(
    BUSY,
    "bucket: a state after a write is at most a full bucket",
    **on_busy,
    **batch,
    claim=lambda it: And(Implies(it["applies"], it["t"] <= full), Implies(idle()["applies"], idle()["t"] <= full)),
    broken={
        "the charge is not compared": busy(high=full),
        "what one request costs is compared": busy(high=full - price),
    },
)
lemma(
    BUSY,
    "bucket: a busy write of a part of a batch applies if and only if that part fits and not one more",
    **on_busy,
    **batch,
    claim=lambda it: Implies(
        count < waiting, it["applies"] == And(t > at, admits(charged), Not(admits(charged + price)))
    ),
    broken={
        "more may fit": busy(low=at),
        "a part too small": busy(low=greatest(full - charged - price - 1, at)),
        "a part too great": busy(low=greatest(full - charged - price + 1, at)),
    },
)
lemma(
    BUSY,
    "bucket: what fits in one write fits one after the other",
    **on_busy,
    **batch,
    claim=lambda it: Implies(it["applies"], And(admits(price), admits(charged))),
    broken={"the charge is not compared": busy(high=full)},
)

# Widths. A clock has 64 bits, and every number that is written fits into a full bucket.
bounded = [
    *given,
    *units,
    between(0, now, 2**64),
    between(1, period, CENTURY + 1),
    between(1, limit, burst, cost, UNITS),
    between(1, count, waiting + 1),
]
products = [product(now, 2**64 - 1, limit, UNITS - 1), product(burst, UNITS - 1, period, CENTURY)]
# All requests in a batch that is larger than the bucket: beyond 38 digits, and beyond 128 bits.
all_waiting = waiting * price
crowd = [limit == UNITS - 11, period == CENTURY, cost == UNITS // 4 - 1, count == 3]
lemma(
    IDLE,
    "bucket: what an idle write writes has 38 digits at most",
    **on_idle,
    given=bounded,
    uses=products,
    claim=lambda it: And(it["t"] < DIGITS, at < DIGITS),
    broken={"all that wait are charged": idle(after=at + all_waiting)},
    fixed=[*crowd, written > latest],
)
lemma(
    BUSY,
    "bucket: what a busy write writes and compares has 38 digits at most, and no sum of it reaches 2^128",
    **on_busy,
    given=bounded,
    uses=products,
    claim=lambda it: And(it["t"] < DIGITS, full < DIGITS, charged + price < 2**128),
    broken={"all that wait are charged": busy(after=t + all_waiting)},
    fixed=crowd,
)
lemma(
    f"{ITEMS}/bucket.rs: Stored::read",
    "bucket: what is read of an item is written again with 38 digits, also if a charge is added to it",
    inputs={"t": t},
    given=bounded,
    uses=products,
    domain=[t < DIGITS],
    right=results(read=t <= MOST),
    claim=lambda it: Implies(it["read"], t + charged < DIGITS),
    broken={"all that DynamoDB keeps": results(read=t < DIGITS)},
)
# For a key that is always in debt, the batch is tried as a whole if it fits into the bucket. Otherwise, the part that
# fits is tried.
planned = ints("planned")[0]


def guess(whole):
    return results(busy=whole, count=If(whole, waiting, least(planned, waiting)))


lemma(
    f"{ITEMS}/bucket.rs: Items::guess",
    "bucket: a batch that is tried as a whole fits into the bucket, however many requests wait",
    inputs={"limit": limit, "period": period, "burst": burst, "cost": cost, "waiting": waiting, "now": now},
    given=[waiting >= 1, price > 0, planned >= 1, planned * price <= capacity],
    domain=[
        *units,
        between(1, period, CENTURY + 1),
        between(1, limit, burst, cost, UNITS),
        between(2**40, now, 2**62),
        waiting < 2**32,
        div(planned, burst, cost),
    ],
    right=guess(all_waiting < capacity),
    claim=lambda it: it["count"] * price <= capacity,
    broken={
        "in 128 bits, which wrap": guess(all_waiting % 2**128 < capacity),
        "in 64 bits, which wrap": guess(all_waiting % 2**64 < capacity),
    },
    fixed=[limit == UNITS - 11, period == CENTURY, cost == UNITS // 4 - 1, burst == UNITS - 1, planned == 4],
)

# Clocks. All clocks that were read between two instants showed a time between `low` and `high`. The units admitted
# since then are never more than the item's number has grown from `low`: an induction over the writes.
low, high, admitted = ints("low high admitted")


def is_bounded(admitted, t):
    return admitted <= greatest(t, low) - low


shown = [low >= 0, low <= at, at <= high, admitted >= 0]
clock_inputs = inputs | {"low": low, "high": high, "admitted_before": admitted}
clock_given = [*given, *shown, is_bounded(admitted, t)]
clocks_idle = dict(on_idle, inputs=clock_inputs, given=clock_given, fixed=wide_batch)
clocks_busy = dict(on_busy, inputs=clock_inputs, given=clock_given, fixed=wide_batch)
# A state from the future is replaced by a write whose clock is right.
kept = lambda it: And(
    is_bounded(0, t), Implies(And(it["applies"], right_clocks), is_bounded(admitted + charged, it["t"]))
)
lemma(
    IDLE,
    "clocks: at first nothing is admitted, and an idle write keeps the bound",
    **clocks_idle,
    claim=kept,
    broken={"from the last payment on": idle(after=t + charged - 1), "whatever is owed": idle(t >= 0)},
)
lemma(
    BUSY,
    "clocks: a busy write keeps the bound",
    **clocks_busy,
    claim=kept,
    broken={
        "the debt is forgotten": busy(after=at + charged),
        "one unit less is charged": busy(after=t + charged - 1),
    },
)
lemma(
    BUSY,
    "clocks: so no more than capacity + (high - low) is admitted",
    **clocks_busy,
    claim=lambda it: Implies(it["applies"], admitted + charged <= capacity + (high - low)),
    broken={"the charge is not compared": busy(high=full)},
)

# Between two true instants that are `length` apart, clocks that differ by at most `error` show a range of `length` +
# `error`; here in the bucket's units.
start, end, behind, ahead, skew = ints("start end behind ahead skew")
differ_by = lambda most: [behind >= 0, ahead >= 0, behind + ahead <= most]
lemma(
    BUSY,
    "clocks: with an error of e, an interval of length l admits at most capacity + l + e",
    inputs=clock_inputs | {"start": start, "end": end},
    given=[*clock_given, *differ_by(skew), low == start - behind, high == end + ahead],
    domain=[*busy_domain, skew == error * limit],
    fixed=wide_batch,
    right=busy(),
    claim=lambda it: Implies(it["applies"], admitted + charged <= capacity + (end - start) + skew),
    broken={"the charge is not compared": busy(high=full)},
)
lemma(
    f"{ITEMS}/mod.rs: Moment::latest",
    "clocks: a state that right clocks have written is never taken for one of a wrong clock",
    # Another process wrote by its clock at the true instant `end` at the latest, while our request was on its way.
    inputs={"now": now, "error": error},
    given=[now >= 0, *differ_by(error), written <= end + ahead, now >= start - behind, end - start <= way],
    domain=[way == MINUTE, now < 2**62, between(0, error, 2**40)],
    right=results(latest=latest),
    claim=lambda it: written <= it["latest"],
    broken={
        "without the way": results(latest=now + 2 * error),
        "as of now": results(latest=now + way),
        "half of the way": results(latest=now + 2 * error + way / 2),
    },
)

# Windows.
n = ints("n")[0]
all_of = ints("all_of")[0]
window_given = [n >= 0, cost > 0, cost <= all_of, all_of <= limit]
window_domain = [
    between(1, limit, cost, UNITS),
    n < UNITS,
    all_of == count * cost,
    count >= 1,
    waiting >= count,
    waiting < 2**32,
]
most, fewest = limit - all_of, limit - all_of - cost


def window(most=most, fewest=fewest, is_part=count < waiting, adds=all_of):
    applies = And(n <= most, Implies(And(is_part, fewest >= 0), n > fewest))
    return results(applies=applies, n=If(applies, n + adds, 0))


window_parts = dict(
    inputs={"limit": limit, "n": n, "cost": cost, "count": count, "waiting": waiting},
    given=window_given,
    domain=window_domain,
    fixed=[limit == UNITS - 11, cost > 2**40, count == 3],
    right=window(),
)
WINDOW = f"{ITEMS}/window.rs: Window::charge"
lemma(
    WINDOW,
    "window: the write applies if and only if the count and the charge stay within the limit",
    **window_parts,
    claim=lambda it: Implies(count == waiting, it["applies"] == (n + all_of <= limit)),
    broken={
        "`<` for `<=`": window(most=limit - all_of - 1),
        "the charge is not compared": window(most=limit),
        "32 bits of the charge are compared": window(most=limit - all_of % 2**32),
    },
)
lemma(
    WINDOW,
    "window: a write of a part of a batch applies if and only if that part fits and not one more",
    **window_parts,
    claim=lambda it: Implies(
        count < waiting, it["applies"] == And(n + all_of <= limit, Not(n + all_of + cost <= limit))
    ),
    broken={
        "more may fit": window(is_part=False),
        "a part too small": window(fewest=fewest - 1),
        "a part too great": window(fewest=fewest + 1),
    },
)
lemma(
    WINDOW,
    "window: if no more than a part can ever fit, the part needs no lower bound",
    **window_parts,
    claim=lambda it: Implies(And(fewest < 0, n <= most), it["applies"]),
    broken={"it has one": window(fewest=greatest(fewest, 0))},
)
lemma(
    WINDOW,
    "window: the count grows by what the requests cost, and stays within the limit",
    **window_parts,
    claim=lambda it: Implies(it["applies"], And(it["n"] == n + all_of, it["n"] <= limit)),
    broken={
        "one request is charged": window(adds=cost),
        "all that wait are charged": window(adds=waiting * cost),
        "32 bits of the charge": window(adds=all_of % 2**32),
    },
)

# `previous_units` is the previous window's weight, in units of 1/period of a request. `room` is the sliding window's
# room if the present one is empty: the quotient, rounded down.
previous_units, room, rounded, previous, number, elapsed = ints("previous_units room rounded previous window elapsed")
wrapped = ints("wrapped")[0]
free = limit * period - previous_units
month = 30 * 86_400 * 10**9
lemma(
    f"{ITEMS}/sliding_window.rs: room",
    "sliding window: the counts fit if and only if the present one is within the room",
    inputs={"limit": limit, "period": period, "window": number, "previous": previous, "now": now, "n": n},
    given=[
        n >= 0,
        period > 0,
        previous_units >= 0,
        div(room, free, period),
        div_ceil(rounded, free, period),
    ],
    domain=[
        between(1, limit, UNITS),
        between(1, period, CENTURY + 1),
        between(0, previous, limit + 1),
        previous_units == previous * (period - elapsed),
        between(0, elapsed, period),
        now == number * period + elapsed,
        now < 2**62,
        number > 2,
        room >= 1,
        div(wrapped, free % 2**64, period),
    ],
    fixed=[limit == UNITS - 11, period == month + 1, elapsed == month // 3, previous > 2**40],
    right=results(room=room),
    claim=lambda it: (previous_units + n * period <= limit * period) == (n <= it["room"]),
    broken={
        "rounded up": results(room=rounded),
        "one less": results(room=room - 1),
        "as fixed windows": results(room=limit),
        "32 bits of it": results(room=room % 2**32),
        "64 bits of the product": results(room=wrapped),
    },
)
