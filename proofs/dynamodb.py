"""Proves that the conditional writes of `tower-sluice-dynamodb` are the algorithms, for all numbers.

Each claim is negated and given to an SMT solver (Z3) over the integers, which have no greatest. No counterexample is a
proof. `scripts/prove` installs the solver and runs this.

The names are those of the sources: `t` is the number of the item, `now` the clock, `price` what a request costs,
`capacity` a full bucket, all in units of 1/limit nanosecond; `written` is
the time of the last write, and `latest` what a right clock may have shown; `n` is the count of a window, `cost` what a request adds.
"""

import sys

from z3 import And, If, Implies, Int, Not, Or, Solver, sat, unsat


def proved(claim, *given):
    solver = Solver()
    solver.set("timeout", 60_000)
    solver.add(*given)
    # Of what cannot be, anything could be proved.
    if solver.check() != sat:
        return False
    solver.add(Not(claim))
    return solver.check() == unsat


def greatest(a, b):
    return If(a > b, a, b)


t, now, price, capacity, charged = (Int(name) for name in "t now price capacity charged".split())
written, error, way = Int("written"), Int("error"), Int("way")
full = now + capacity
latest = now + 2 * error + way
times = [t >= 0, now >= 0, written >= 0, error >= 0, way >= 0]
fits = [price > 0, price <= capacity]

# The bucket: `Gcra::decide` in src/algorithm/gcra.rs.
debt = greatest(t - now, 0)
admits = debt + price <= capacity
after = now + debt + price

# The two writes, in items/bucket.rs, on an item of the same quota. One on no item is one with `t` = 0.
idle_applies = Or(t <= now, written > latest)
idle_after = now + price
busy_applies = And(t > now, t <= full - price)
busy_after = t + price

# A batch of which `charged` is charged, and of which `price` more would be the next request.
batch_low = greatest(full - (charged + price), now)
batch_applies = And(t > batch_low, t > now, t <= full - charged)

claims = {
    "bucket: one of the two writes applies if and only if the bucket admits": proved(
        Or(idle_applies, busy_applies) == admits, *times, *fits, written <= latest
    ),
    "bucket: never do both apply": proved(
        Not(And(idle_applies, busy_applies)), *times, *fits, written <= latest
    ),
    "bucket: the one that applies writes what the bucket would keep": proved(
        And(Implies(idle_applies, idle_after == after), Implies(busy_applies, busy_after == after)),
        *times, *fits, written <= latest,
    ),
    "bucket: of a state that no right clock has written, the idle write makes a new one": proved(
        And(idle_applies, idle_after == now + price), *times, *fits, written > latest
    ),
    "bucket: a state after a write is at most a full bucket": proved(
        And(Implies(idle_applies, idle_after <= full), Implies(busy_applies, busy_after <= full)), *times, *fits
    ),
    "bucket: a busy write of a part of a batch applies if and only if that part fits and not one more": proved(
        batch_applies == And(t > now, debt + charged <= capacity, Not(debt + charged + price <= capacity)),
        *times, *fits, charged > 0, charged <= capacity,
    ),
    "bucket: what fits in one write fits one after the other": proved(
        Implies(debt + charged <= capacity, debt + price <= capacity), *times, *fits, price <= charged
    ),
}

# Clocks. All clocks that were read between two instants showed something between `low` and `high`. What was admitted
# since is never more than the number of the item has grown from `low`: an induction over the writes.
low, high, admitted = Int("low"), Int("high"), Int("admitted")


def bounded(admitted, t):
    return admitted <= greatest(t, low) - low


shown = [low >= 0, low <= now, now <= high, admitted >= 0]
claims |= {
    "clocks: at first nothing is admitted": proved(bounded(0, t), *times),
    "clocks: each write keeps the bound": proved(
        And(
            Implies(t <= now, bounded(admitted + price, idle_after)),
            Implies(busy_applies, bounded(admitted + price, busy_after)),
        ),
        *times, *fits, *shown, bounded(admitted, t),
    ),
    "clocks: so no more than capacity + (high - low) is admitted": proved(
        admitted <= capacity + (high - low), *times, *fits, *shown, bounded(admitted, t), t <= high + capacity
    ),
}

# Between two true instants that are `length` apart, clocks that differ by `error` at most show a range of
# `length` + `error`.
start, end, behind, ahead = (Int(name) for name in "start end behind ahead".split())
right = [behind >= 0, ahead >= 0, behind + ahead <= error]
claims |= {
    "clocks: with an error of e, an interval of length l admits at most capacity + l + e": proved(
        admitted <= capacity + (end - start) + error,
        *right, low == start - behind, high == end + ahead, admitted <= capacity + (high - low),
    ),
    # Another process wrote by its clock at the true instant `end` at the latest, while our request was on its way.
    "clocks: a state that right clocks have written is never taken for one of a wrong clock": proved(
        written <= latest, *times, *right, written <= end + ahead, now >= start - behind, end - start <= way
    ),
}

# Windows.
n, cost, limit, previous_units, period, room, rest = (
    Int(name) for name in "n cost limit previous_units period room rest".split()
)
counts = [n >= 0, cost > 0, cost <= limit, charged > 0, charged <= limit]
most, least = limit - charged, limit - charged - cost
claims |= {
    "window: the write applies if and only if the count and the charge stay within the limit": proved(
        (n <= most) == (n + charged <= limit), *counts
    ),
    "window: a write of a part of a batch applies if and only if that part fits and not one more": proved(
        And(n > least, n <= most) == And(n + charged <= limit, Not(n + charged + cost <= limit)), *counts
    ),
    "window: if no more than a part can ever fit, the part needs no lower bound": proved(
        Implies(least < 0, n > least), *counts
    ),
    # `previous_units` is what the previous window weighs, in units of 1/period of a request. `room` is what the sliding
    # window has left if nothing is in the present one: the quotient, rounded down.
    "sliding window: the counts fit if and only if the present one is within the room": proved(
        (previous_units + n * period <= limit * period) == (n <= room),
        n >= 0, period > 0, previous_units >= 0, 0 <= rest, rest < period,
        limit * period - previous_units == room * period + rest,
    ),
}

for claim, holds in claims.items():
    print("proved " if holds else "FAILED ", claim)
print(f"{sum(claims.values())} of {len(claims)} claims proved")
sys.exit(not all(claims.values()))
