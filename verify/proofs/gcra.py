"""The bucket, `Gcra`, in units of 1/limit nanosecond: only the wait is rounded, and nothing overflows."""

from z3 import And, If, Implies, Not, Or

from lemma import (
    CENTURY,
    UNITS,
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

DECIDE = "src/algorithm/gcra.rs: Gcra::decide"
CARRIED = "src/algorithm/gcra.rs: Gcra::carried"
EXPIRES = "src/algorithm/gcra.rs: Gcra::expires_at"

# The API's ranges: quotas with 50 bits, instants and costs with 64, and a period of a hundred years at most.
limit, period, burst, nanos, cost, tat = ints("limit period burst nanos cost tat")
quota = {"limit": limit, "period": period, "burst": burst}
inputs = quota | {"tat": tat, "now": nanos, "cost": cost}

# In units. The proofs need only the facts that are given.
now, price, capacity = ints("now_units price capacity")
given = [tat >= 0, now >= 0, limit > 0, price > 0, price <= capacity]
charge_of_api = [
    between(1, limit, burst, UNITS),
    between(0, nanos, 2**64),
    between(1, period, CENTURY + 1),
    between(1, cost, burst + 1),
    now == nanos * limit,
    price == cost * period,
]
# Every TAT is below this: see the end.
MOST_TAT = 2**121
domain = [*charge_of_api, capacity == burst * period, tat < MOST_TAT]

debt = saturating_sub(tat, now)


def decide(owes=debt, admits=None, after=None, wait=None):
    admits = owes + price <= capacity if admits is None else admits
    after = now + owes + price if after is None else after
    # Values that an admission or a rejection does not have are 0.
    return results(admitted=admits, tat=If(admits, after, 0))


lemma(
    DECIDE,
    "a charge is exact: the debt after it is the debt before and the price",
    inputs=inputs,
    given=given,
    domain=domain,
    right=decide(),
    claim=lambda it: Implies(it["admitted"], saturating_sub(it["tat"], now) == debt + price),
    broken={
        "time that passed while nothing was owed is credited": decide(owes=tat - now),
        "the debt is forgotten": decide(after=now + price),
        "the TAT is charged, and not the debt": decide(after=tat + price),
    },
)
lemma(
    DECIDE,
    "what fits in the bucket is admitted, and nothing else; no debt exceeds the capacity",
    inputs=inputs,
    given=given,
    domain=domain,
    right=decide(),
    claim=lambda it: And(
        it["admitted"] == (debt <= capacity - price), Implies(it["admitted"], it["tat"] <= now + capacity)
    ),
    broken={
        "the price is not compared": decide(admits=debt <= capacity),
        "`<` for `<=`": decide(admits=debt + price < capacity),
        "one unit too many": decide(admits=debt + price <= capacity + 1),
    },
)

# The bound. `admitted` units were admitted since the clock showed `low`. All clocks that were read since then show
# times from `low` to `high`, in any order: an induction over the charges.
low, high, admitted, length, skew = ints("low high admitted length skew")


def is_bounded(admitted, tat):
    return admitted <= greatest(tat, low) - low


lemma(
    DECIDE,
    "in every interval: each charge keeps what was admitted within what the TAT has grown from the first reading",
    inputs=inputs | {"low": low, "admitted_before": admitted},
    given=[*given, 0 <= low, low <= now, is_bounded(admitted, tat), admitted >= 0],
    domain=[*domain, tat > 0],
    right=decide(),
    claim=lambda it: Implies(it["admitted"], is_bounded(admitted + price, it["tat"])),
    broken={
        "the debt is forgotten": decide(after=now + price),
        "the debt is credited": decide(owes=tat - now),
        "half of the price is charged": decide(after=now + debt + price / 2),
    },
)
lemma(
    DECIDE,
    "in every interval: at most burst + rate × (length + skew of the clocks) is admitted, and nothing before the first charge",
    inputs=inputs | {"low": low, "admitted_before": admitted, "length": length, "skew": skew},
    given=[
        *given,
        0 <= low,
        low <= now,
        now <= high,
        length >= 0,
        skew >= 0,
        high - low == length + skew,
        is_bounded(admitted, tat),
        admitted >= 0,
        is_bounded(0, 0),
    ],
    domain=[*domain, tat > 0, length > 0, high < 2**113],
    right=decide(),
    claim=lambda it: Implies(it["admitted"], admitted + price <= capacity + length + skew),
    broken={
        "the price is not compared": decide(admits=debt <= capacity),
        "`<=` against twice the burst": decide(admits=debt + price <= 2 * capacity),
    },
)

# The wait, and its length in units.
owed = debt + price - capacity
fits_after = lambda units: saturating_sub(tat, now + units) + price <= capacity

floor, exact, until_paid = ints("wait_down wait_up wait_until_paid")
wait_given = [
    *given,
    owed > 0,
    div_ceil(exact, owed, limit),
    div(floor, owed, limit),
    div_ceil(until_paid, debt, limit),
]
lemma(
    DECIDE,
    "the wait is exact: admitted after it, and rejected a nanosecond earlier",
    inputs=inputs,
    given=wait_given,
    domain=[*domain, tat < 2**113],
    right=results(wait=exact),
    claim=lambda it: And(fits_after(it["wait"] * limit), Not(fits_after((it["wait"] - 1) * limit))),
    broken={
        "rounded down": results(wait=floor),
        "a nanosecond more": results(wait=exact + 1),
        "until all is paid": results(wait=until_paid),
    },
)

# The remaining units.
remaining, rounded_up, all_paid, nothing_left = ints("remaining remaining_up reset_up reset_down")
free = capacity - debt
fits = lambda count: debt + count * period <= capacity
lemma(
    DECIDE,
    "what is said to remain fits, and not one unit more",
    inputs=inputs,
    given=[
        tat >= 0,
        now >= 0,
        period > 0,
        debt <= capacity,
        div(remaining, free, period),
        div_ceil(rounded_up, free, period),
    ],
    domain=[*domain, debt > 0],
    right=results(remaining=remaining),
    claim=lambda it: And(fits(it["remaining"]), Not(fits(it["remaining"] + 1))),
    broken={"rounded up": results(remaining=rounded_up), "one less": results(remaining=greatest(remaining - 1, 0))},
)
lemma(
    EXPIRES,
    "the state is forgotten when nothing is owed, and not a nanosecond earlier",
    inputs=quota | {"tat": tat},
    given=[tat > 0, limit > 0, div_ceil(all_paid, tat, limit), div(nothing_left, tat, limit)],
    domain=[between(1, limit, burst, UNITS), between(1, period, CENTURY + 1), tat < 2**64],
    right=results(expires=all_paid),
    claim=lambda it: And(it["expires"] * limit >= tat, (it["expires"] - 1) * limit < tat),
    broken={"rounded down": results(expires=nothing_left)},
)

# A new quota. `before` is the old quota's units per token, and `paid` its clock.
old_limit, before, tokens, rest, paid, up, down = ints("from_limit from_period tokens rest from_now up down")
old_debt = tokens * before + rest
carry_inputs = {
    "limit": limit,
    "period": period,
    "from_limit": old_limit,
    "from_period": before,
    "tat": tat,
    "now": nanos,
}
carried = tokens * period + up
# `MOST_CARRIED`.
most = 2**120


def carry(debt, cut=most):
    return results(tat=If(debt == 0, 0, now + least(debt, cut)))


carry_given = [
    period > 0,
    before > 0,
    tokens >= 0,
    between(0, rest, before),
    now >= 0,
    div_ceil(up, rest * period, before),
]
carry_domain = [
    between(1, limit, old_limit, UNITS),
    between(0, nanos, 2**64),
    between(1, period, before, CENTURY + 1),
    now == nanos * limit,
    paid == nanos * old_limit,
    between(0, tat, MOST_TAT),
    saturating_sub(tat, paid) == old_debt,
]
lemma(
    CARRIED,
    "as many tokens are owed under another quota, rounded up by less than a unit",
    inputs=carry_inputs,
    given=[*carry_given, div(down, rest * period, before), carried < most],
    domain=carry_domain,
    fixed=[tokens > 0, tokens < 100, before < 1000, period < 1000],
    right=carry(carried),
    # `owed` / period is at least the old debt, and with one unit less, it would not be.
    claim=lambda it: And(
        saturating_sub(it["tat"], now) * before >= old_debt * period,
        Or(old_debt == 0, (saturating_sub(it["tat"], now) - 1) * before < old_debt * period),
    ),
    broken={
        "rounded down": carry(tokens * period + down),
        "the rest is forgotten": carry(tokens * period),
        "units are kept as they are": carry(old_debt),
    },
)

# Nothing wraps: neither in a state that a change of quota writes, at any later clock reading, nor in a state that
# `decide` itself writes. These are the greatest values that `Gcra::units` and `Gcra::price` return, the latter for a
# cost that may be charged.
INSTANT, PRICE = (2**64 - 1) * (UNITS - 1), (UNITS - 1) * CENTURY
later, charge = ints("later charge")


def sums(tat):
    """The greatest sum in `Gcra::decide`, and in the functions that it calls."""
    debt = saturating_sub(tat, later)
    return greatest(later + debt + charge, greatest(tat, debt + charge) + limit - 1)


lemma(
    CARRIED,
    "every state that is carried over is below 2^121, and no sum of a decision on it reaches 2^122, whatever the numbers",
    inputs=carry_inputs,
    given=[
        *carry_given,
        between(1, limit, UNITS),
        between(0, nanos, 2**64),
        between(1, period, before, CENTURY + 1),
        now == nanos * limit,
        0 <= later,
        later <= INSTANT,
        0 <= charge,
        charge <= PRICE,
    ],
    domain=carry_domain,
    uses=[product(rest, CENTURY, period, CENTURY)],
    steps=[now <= INSTANT, up >= 0, tokens * period >= 0],
    right=carry(carried),
    claim=lambda it: And(
        it["tat"] >= 0, it["tat"] < MOST_TAT, sums(it["tat"]) < 2**122, rest * period + before < 2**124
    ),
    broken={
        "debts are not cut": carry(carried, 2**200),
        "cut at 2^128": carry(carried, 2**128),
        "cut at 2^121": carry(carried, 2**121),
    },
    fixed=[nanos == 10**18, limit == 3, old_limit == 1, before == 1, rest == 0, up == 0, period == CENTURY],
)
lemma(
    DECIDE,
    "no sum of a decision on a state that a decision has written reaches 2^115, nor any price 2^126, whatever the numbers",
    inputs=inputs,
    given=[
        between(1, limit, burst, UNITS),
        between(0, nanos, 2**64),
        between(1, period, CENTURY + 1),
        between(1, cost, 2**64),
        now == nanos * limit,
        price == cost * period,
        capacity == burst * period,
        tat >= 0,
        tat <= INSTANT + PRICE,
        0 <= later,
        later <= INSTANT,
        0 <= charge,
        charge <= PRICE,
    ],
    uses=[product(cost, 2**64 - 1, period, CENTURY)],
    steps=[now <= INSTANT, capacity <= PRICE],
    # A cost above the burst is rejected without a comparison.
    right=decide(admits=And(cost <= burst, debt + price <= capacity)),
    claim=lambda it: And(it["tat"] <= INSTANT + PRICE, sums(it["tat"]) < 2**115, price < 2**126),
    broken={"a debt of any size is admitted": decide(admits=And(cost <= burst, price <= capacity))},
    fixed=[nanos == 1, limit == 3, period == CENTURY, burst == UNITS - 1, cost == UNITS - 1],
)
