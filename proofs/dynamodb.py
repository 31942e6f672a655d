"""The conditional writes of `tower-sluice-dynamodb` are the algorithms, and clocks that differ cost what they say.

The names are those of the sources: `t` is the number of the item, `now` the clock, `price` what a request costs,
`capacity` a full bucket, all in units of 1/limit nanosecond (the counterexamples have a limit of one, so that these are
nanoseconds); `written` is the time of the last write, and `latest` what a right clock may have shown; `n` is the count
of a window, `cost` what a request adds.
"""

from z3 import And, If, Implies, Not, Or

from lemma import CENTURY, between, div, div_ceil, greatest, ints, lemma, results, saturating_sub

ITEMS = "dynamodb/src/items"

t, now, price, capacity, written, error, way = ints("t now price capacity written error way")
limit, period, burst, cost, count, waiting, charged = ints("limit period burst cost count waiting charged")
MINUTE = 60 * 10**9
full = now + capacity
latest = now + 2 * error + way
given = [t >= 0, now >= 0, written >= 0, error >= 0, way >= 0, price > 0, price <= charged, charged <= capacity]
inputs = {
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
domain = [
    between(1, period, CENTURY + 1),
    between(1, burst, cost, 2**32),
    way == MINUTE,
    price == cost * period,
    capacity == burst * period,
    charged == count * price,
    count >= 1,
    waiting >= count,
    waiting < 2**20,
    now > 2**40,
    now < 2**62,
    error < 2**40,
    written < 2**62,
    t < 2**63,
    t > 0,
]
# By what the writer remembers of the key, so much fits beside what is owed.
busy_domain = [*domain, charged < capacity]
one = count == 1

# The bucket: `Gcra::decide` in src/algorithm/gcra.rs.
debt = saturating_sub(t, now)


def admits(charge):
    return debt + charge <= capacity


def idle(applies=Or(t <= now, written > latest), after=now + charged):
    return results(applies=applies, t=If(applies, after, 0))


def busy(low=None, high=full - charged, after=t + charged, begins=t > now):
    """Of a batch of which a part is charged, so much must be owed that one request more does not fit."""
    low = If(charged_of_all, now, greatest(full - charged - price, now)) if low is None else low
    applies = And(begins, t > low, t <= high)
    return results(applies=applies, t=If(applies, after, 0))


charged_of_all = count == waiting
IDLE, BUSY = f"{ITEMS}/bucket.rs: Bucket::idle", f"{ITEMS}/bucket.rs: Bucket::busy"
right_clocks = written <= latest
single = dict(inputs=inputs, given=[*given, one, count == waiting, charged == price])

lemma(
    IDLE,
    "bucket: one of the two writes applies if and only if the bucket admits",
    **single,
    domain=domain,
    right=idle(),
    claim=lambda it: Implies(right_clocks, Or(it["applies"], busy()["applies"]) == admits(price)),
    broken={
        "`<` for `<=`": idle(Or(t < now, written > latest)),
        "a tick early": idle(Or(t <= now + 1, written > latest)),
        "always": idle(t >= 0),
    },
)
lemma(
    BUSY,
    "bucket: never do both apply",
    **single,
    domain=busy_domain,
    right=busy(),
    claim=lambda it: Implies(right_clocks, Not(And(it["applies"], idle()["applies"]))),
    broken={"`>=` for `>`": busy(low=now - 1, begins=t >= now), "whatever the clock": busy(low=-1, begins=t > 0)},
)
lemma(
    BUSY,
    "bucket: the busy write applies if something is owed and it fits, and writes what the bucket would keep",
    **single,
    domain=busy_domain,
    right=busy(),
    claim=lambda it: And(
        it["applies"] == And(t > now, admits(price)), Implies(it["applies"], it["t"] == now + debt + price)
    ),
    broken={
        "the debt is forgotten": busy(after=now + charged),
        "the charge is not compared": busy(high=full),
        "`<` for `<=`": busy(high=full - charged - 1),
        "charged twice": busy(after=t + 2 * charged),
    },
)
lemma(
    IDLE,
    "bucket: the idle write writes what the bucket would keep",
    **single,
    domain=domain,
    right=idle(),
    claim=lambda it: Implies(And(it["applies"], right_clocks), it["t"] == now + debt + price),
    broken={
        "from the last payment on": idle(after=t + charged),
        "time that passed is credited": idle(after=t + charged - 1),
    },
)
lemma(
    IDLE,
    "bucket: of a state that no right clock has written, the idle write makes a new one",
    **single,
    domain=domain,
    right=idle(),
    claim=lambda it: Implies(written > latest, And(it["applies"], it["t"] == now + price)),
    broken={"it is not looked at": idle(t <= now), "added to what was written": idle(after=greatest(t, now) + charged)},
)
lemma(
    BUSY,
    "bucket: a state after a write is at most a full bucket",
    inputs=inputs,
    given=given,
    domain=busy_domain,
    right=busy(),
    claim=lambda it: And(Implies(it["applies"], it["t"] <= full), Implies(idle()["applies"], idle()["t"] <= full)),
    broken={
        "the charge is not compared": busy(high=full),
        "what one request costs is compared": busy(high=full - price),
    },
)
lemma(
    BUSY,
    "bucket: a busy write of a part of a batch applies if and only if that part fits and not one more",
    inputs=inputs,
    given=given,
    domain=busy_domain,
    right=busy(),
    claim=lambda it: Implies(
        count < waiting, it["applies"] == And(t > now, admits(charged), Not(admits(charged + price)))
    ),
    broken={
        "more may fit": busy(low=now),
        "a part too small": busy(low=greatest(full - charged - price - 1, now)),
        "a part too great": busy(low=greatest(full - charged - price + 1, now)),
    },
)
lemma(
    BUSY,
    "bucket: what fits in one write fits one after the other",
    inputs=inputs,
    given=given,
    domain=busy_domain,
    right=busy(),
    claim=lambda it: Implies(it["applies"], And(admits(price), admits(charged))),
    broken={"the charge is not compared": busy(high=full)},
)

# Clocks. All clocks that were read between two instants showed something between `low` and `high`. What was admitted
# since is never more than the number of the item has grown from `low`: an induction over the writes.
low, high, admitted = ints("low high admitted")


def is_bounded(admitted, t):
    return admitted <= greatest(t, low) - low


shown = [low >= 0, low <= now, now <= high, admitted >= 0]
clock_inputs = inputs | {"low": low, "high": high, "admitted_before": admitted}
clock_given = [*given, *shown, is_bounded(admitted, t)]
# A state from the future is replaced: by a write of a clock that is right.
kept = lambda it: And(
    is_bounded(0, t), Implies(And(it["applies"], right_clocks), is_bounded(admitted + charged, it["t"]))
)
lemma(
    IDLE,
    "clocks: at first nothing is admitted, and an idle write keeps the bound",
    inputs=clock_inputs,
    given=clock_given,
    domain=domain,
    right=idle(),
    claim=kept,
    broken={"from the last payment on": idle(after=t + charged - 1), "whatever is owed": idle(t >= 0)},
)
lemma(
    BUSY,
    "clocks: a busy write keeps the bound",
    inputs=clock_inputs,
    given=clock_given,
    domain=busy_domain,
    right=busy(),
    claim=kept,
    broken={
        "the debt is forgotten": busy(after=now + charged),
        "one unit less is charged": busy(after=t + charged - 1),
    },
)
lemma(
    BUSY,
    "clocks: so no more than capacity + (high - low) is admitted",
    inputs=clock_inputs,
    given=clock_given,
    domain=busy_domain,
    right=busy(),
    claim=lambda it: Implies(it["applies"], admitted + charged <= capacity + (high - low)),
    broken={"the charge is not compared": busy(high=full)},
)

# Between two true instants that are `length` apart, clocks that differ by `error` at most show a range of
# `length` + `error`.
start, end, behind, ahead = ints("start end behind ahead")
right = [behind >= 0, ahead >= 0, behind + ahead <= error]
lemma(
    BUSY,
    "clocks: with an error of e, an interval of length l admits at most capacity + l + e",
    inputs=clock_inputs | {"start": start, "end": end},
    given=[*clock_given, *right, low == start - behind, high == end + ahead],
    domain=busy_domain,
    right=busy(),
    claim=lambda it: Implies(it["applies"], admitted + charged <= capacity + (end - start) + error),
    broken={"the charge is not compared": busy(high=full)},
)
lemma(
    f"{ITEMS}/mod.rs: Moment::latest",
    "clocks: a state that right clocks have written is never taken for one of a wrong clock",
    # Another process wrote by its clock at the true instant `end` at the latest, while our request was on its way.
    inputs={"now": now, "error": error},
    given=[*given[:5], *right, written <= end + ahead, now >= start - behind, end - start <= way],
    domain=[way == MINUTE, now < 2**62, error < 2**40],
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
all_of = count * cost
units = ints("units")[0]
window_given = [n >= 0, cost > 0, cost <= units, units <= limit]
window_domain = [
    between(1, limit, cost, 2**32),
    n < 2**32,
    units == all_of,
    count >= 1,
    waiting >= count,
    waiting < 2**20,
]
most, least = limit - units, limit - units - cost


def window(most=most, least=least, bounded=count < waiting):
    applies = And(n <= most, Implies(And(bounded, least >= 0), n > least))
    return results(applies=applies, n=If(applies, n + units, 0))


window_parts = dict(
    inputs={"limit": limit, "n": n, "cost": cost, "count": count, "waiting": waiting},
    given=window_given,
    domain=window_domain,
    right=window(),
)
WINDOW = f"{ITEMS}/window.rs: Window::charge"
lemma(
    WINDOW,
    "window: the write applies if and only if the count and the charge stay within the limit",
    **window_parts,
    claim=lambda it: Implies(count == waiting, it["applies"] == (n + units <= limit)),
    broken={"`<` for `<=`": window(most=limit - units - 1), "the charge is not compared": window(most=limit)},
)
lemma(
    WINDOW,
    "window: a write of a part of a batch applies if and only if that part fits and not one more",
    **window_parts,
    claim=lambda it: Implies(count < waiting, it["applies"] == And(n + units <= limit, Not(n + units + cost <= limit))),
    broken={
        "more may fit": window(bounded=False),
        "a part too small": window(least=least - 1),
        "a part too great": window(least=least + 1),
    },
)
lemma(
    WINDOW,
    "window: if no more than a part can ever fit, the part needs no lower bound",
    **window_parts,
    claim=lambda it: Implies(And(least < 0, n <= most), it["applies"]),
    broken={"it has one": window(least=greatest(least, 0))},
)

# `previous_units` is what the previous window weighs, in units of 1/period of a request. `room` is what the sliding
# window has left if nothing is in the present one: the quotient, rounded down.
previous_units, room, rounded, previous, number, elapsed = ints("previous_units room rounded previous window elapsed")
lemma(
    f"{ITEMS}/sliding_window.rs: room",
    "sliding window: the counts fit if and only if the present one is within the room",
    inputs={"limit": limit, "period": period, "window": number, "previous": previous, "now": now, "n": n},
    given=[
        n >= 0,
        period > 0,
        previous_units >= 0,
        div(room, limit * period - previous_units, period),
        div_ceil(rounded, limit * period - previous_units, period),
    ],
    domain=[
        between(1, limit, 2**32),
        between(1, period, CENTURY + 1),
        between(0, previous, limit + 1),
        previous_units == previous * (period - elapsed),
        between(0, elapsed, period),
        now == number * period + elapsed,
        now < 2**62,
        number > 2,
        room >= 1,
    ],
    fixed=[limit < 100, between(10**9, period, 10**10)],
    right=results(room=room),
    claim=lambda it: (previous_units + n * period <= limit * period) == (n <= it["room"]),
    broken={
        "rounded up": results(room=rounded),
        "one less": results(room=room - 1),
        "as fixed windows": results(room=limit),
    },
)
