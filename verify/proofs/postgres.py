"""The statements in `tower-sluice-postgres` implement the algorithms.

The names are the sources'. `from_limit` and `from_period` are the quota under which the row is kept. `limit`, `period`
and `burst` are the question's. `ahead` is by how much the clock that wrote the row was ahead. A bucket's numbers are in
units of 1/limit nanosecond: `at` is the clock, `price` a request's cost, `capacity` a full bucket.

PostgreSQL counts in `bigint`, below 2^63, and in `numeric`, which has no bound here. An instant is made from
microseconds by a product of doubles, which is exact up to 2^53 microseconds, the year 2255. `div` and the division of
`bigint` round towards zero. So a quotient that should be below zero is zero or less, and a statement makes zero from
it.
"""

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
    scaled,
)

SQL = "crates/postgres/src/sql/mod.rs"
BUCKET, FIXED = f"{SQL}: BUCKET", f"{SQL}: FIXED_WINDOW"
SLIDING, CALENDAR = f"{SQL}: SLIDING_WINDOW", f"{SQL}: CALENDAR_WINDOW"

# The greatest `bigint` and `integer`, and one.
BIGINT, INTEGER = 2**63, 2**31
# The last microsecond that a double knows exactly, in nanoseconds.
EXACT = 2**53 * 1_000
MOST_CARRIED = 2**120
DAY = 86_400 * 10**9
MONTH = 30 * DAY

now, limit, period, burst, cost, count, fitting = ints("now limit period burst cost count fitting")
from_limit, from_period, number, previous, used = ints("from_limit from_period number previous used")
ahead, ahead_micros, later = ints("ahead ahead_micros later")
quotas = [
    between(1, limit, from_limit, burst, UNITS),
    between(1, period, from_period, CENTURY + 1),
    between(1, cost, UNITS),
    between(1, count, INTEGER),
]
clocks = [between(2**40, now, 2**62), between(0, ahead, 2**60), ahead == 1_000 * ahead_micros]


def charged_of(room, fits, count=count):
    """How many requests are charged: `fits` is the room over the cost, rounded down."""
    return If(room >= 0, greatest(least(fits, count), 0), 0)


def is_the_loop(it, room, price):
    """Requests are decided one after the other, and each one adds its price. Request i is admitted if i prices fit, and
    no request is admitted after a rejected one. `price` times the number is written as in the claim."""
    charged = it["charged"]
    return And(
        0 <= charged,
        charged <= count,
        Implies(charged > 0, charged * price <= room),
        Implies(charged < count, charged * price + price > room),
    )


# Instants.
ends, micros = ints("ends micros")
LAST = BIGINT - 1


def instant(nanos, micros):
    return div(micros, least(nanos, LAST) + 999, 1_000)


floor = ints("floor")[0]
lemma(
    f"{SQL}: instant",
    "a row has ended when it expires, and that is less than a microsecond later",
    inputs={"ends": ends},
    given=[ends >= 0, later >= 0, later <= LAST, instant(ends, micros), div(floor, least(ends, LAST), 1_000)],
    domain=[ends < EXACT, ends > 2**60, ends % 1_000 != 0],
    right=results(micros=micros),
    # The clock of the sweep is rounded down to microseconds.
    claim=lambda it: And(
        Implies(it["micros"] <= later / 1_000, ends <= later),
        Implies(ends <= LAST, it["micros"] * 1_000 < ends + 1_000),
        it["micros"] < BIGINT,
    ),
    broken={
        "rounded down": results(micros=floor),
        "a microsecond more": results(micros=micros + 1),
    },
)

# Buckets: `Gcra::decide` and `Gcra::carried`.
at, from_at, moved, capacity, price, charge = ints("at from_at moved capacity price charge")
tokens, rest, whole, carried_rest, up, down, in_full = ints("tokens rest whole carried_rest up down in_full")
is_same = And(from_limit == limit, from_period == period)
corrected = If(ahead == 0, number, greatest(number - moved, 0))
debt_before = greatest(corrected - from_at, 0)
# The algorithm's result, and the statement's.
converted = least(whole + carried_rest, MOST_CARRIED)
debt = If(is_same, debt_before, least(whole + up, MOST_CARRIED))
bucket_room = capacity - debt
bucket_charged = charged_of(bucket_room, fitting)


def bucket(charged=bucket_charged, debt=debt, base=at):
    return results(charged=charged, number=base + debt + charged * price)


bucket_inputs = {
    "from_limit": from_limit,
    "from_period": from_period,
    "number": number,
    "ahead": ahead,
    "now": now,
    "limit": limit,
    "period": period,
    "burst": burst,
    "cost": cost,
    "count": count,
}
conversion = [
    div(tokens, debt_before, from_period),
    rest == debt_before - tokens * from_period,
    whole == tokens * period,
    div_ceil(carried_rest, rest * period, from_period),
    div(up, rest * period + from_period - 1, from_period),
    div(down, rest * period, from_period),
]
room_over_price = Implies(bucket_room >= 0, div(fitting, bucket_room, price))
bucket_given = [
    price > 0,
    capacity >= 0,
    at >= 0,
    from_at >= 0,
    moved >= 0,
    ahead >= 0,
    number >= 0,
    count >= 1,
    from_period > 0,
    period > 0,
    room_over_price,
    Implies(from_limit == limit, from_at == at),
]
bucket_units = [
    at == now * limit,
    from_at == now * from_limit,
    moved == ahead * from_limit,
    capacity == burst * period,
    price == cost * period,
]
bucket_domain = [*quotas, *clocks, *bucket_units, *conversion, cost <= burst, number < 2**121]
# With these values, the search is linear: with the widest numbers, and with numbers that no clock divides.
same_wide = [
    limit == UNITS - 11,
    from_limit == limit,
    period == MONTH + 1,
    from_period == period,
    cost == UNITS // 4 - 1,
    burst == UNITS - 1,
    count == 3,
]
other_wide = [
    limit == 7_000_003,
    from_limit == UNITS - 11,
    period == 10**9 + 7,
    from_period == MONTH + 1,
    burst == UNITS - 1,
    cost == UNITS // 2**20,
    count == 5,
    ahead == 0,
]
# A token took a third of a nanosecond, and takes years now, so a debt becomes greater than any that is carried.
from_cheap_to_dear = [
    limit == 7,
    from_limit == 3,
    from_period == 1,
    period == CENTURY,
    burst == 1,
    cost == 1,
    count == 1,
    ahead == 0,
]
bucket_parts = dict(inputs=bucket_inputs, domain=bucket_domain, right=bucket())
lemma(
    BUCKET,
    "as many requests are charged as are admitted one after the other",
    **bucket_parts,
    given=bucket_given,
    uses=[scaled(price, count, fitting)],
    fixed=[*same_wide, ahead == 0],
    claim=lambda it: is_the_loop(it, bucket_room, price),
    broken={
        "one more": bucket(charged_of(bucket_room, fitting + 1)),
        "one less": bucket(charged_of(bucket_room, fitting - 1)),
        "all or none": bucket(If(And(bucket_room >= 0, fitting >= count), count, 0)),
        "what is owed is not compared": (
            bucket(charged_of(capacity, in_full)),
            *same_wide,
            ahead == 0,
            div(in_full, capacity, price),
        ),
        "a request, whatever is owed": bucket(greatest(bucket_charged, 1)),
    },
)
lemma(
    BUCKET,
    "the new number is the clock, what was owed, and what is charged",
    **bucket_parts,
    given=[*bucket_given, is_same, ahead == 0],
    fixed=same_wide,
    claim=lambda it: it["number"] == at + greatest(number - at, 0) + it["charged"] * price,
    broken={
        "what was owed is forgotten": bucket(debt=0),
        "time that passed while nothing was owed is credited": bucket(debt=corrected - from_at),
        "charged to the number of the row": (bucket(base=greatest(at, number)), *same_wide, number > at),
        "64 bits of the clock": bucket(base=at % 2**64),
    },
)
plainly_owed = greatest(number - at, 0)
plain_fits = If(plainly_owed <= capacity - price, 1, 0)
lemma(
    BUCKET,
    "a plain charge is that of the whole statement",
    **(bucket_parts | {"right": bucket(charged=plain_fits, debt=plainly_owed)}),
    given=[*bucket_given, is_same, ahead == 0, count == 1],
    uses=[scaled(price, fitting, 0), scaled(price, 1, fitting)],
    fixed=[*same_wide[:-1]],
    claim=lambda it: And(it["charged"] == bucket_charged, it["number"] == bucket()["number"]),
    broken={
        "only below a full bucket": bucket(If(plainly_owed < capacity - price, 1, 0), plainly_owed),
        "whatever it costs": bucket(If(plainly_owed <= capacity, 1, 0), plainly_owed),
        "time that passed while nothing was owed is credited": bucket(plain_fits, number - at),
    },
)
lemma(
    BUCKET,
    "under another rate, as much is owed as `Gcra::carried` makes of it",
    **bucket_parts,
    given=[*bucket_given, *conversion, Not(is_same), ahead == 0],
    fixed=other_wide,
    steps=[
        Implies(up > carried_rest, False),
        Implies(up < carried_rest, False),
        up == carried_rest,
    ],
    uses=[
        scaled(from_period, carried_rest + 1, up),
        scaled(from_period, up + 1, carried_rest),
    ],
    claim=lambda it: it["number"] == at + converted + it["charged"] * price,
    broken={
        "rounded down": bucket(debt=least(whole + down, MOST_CARRIED)),
        "whole tokens only": bucket(debt=least(whole, MOST_CARRIED)),
        "in the units of the row": bucket(debt=debt_before),
        "forgotten": bucket(debt=0),
        "never cut": (
            bucket(debt=whole + up),
            *from_cheap_to_dear,
            number > 2**120,
        ),
    },
)
lemma(
    BUCKET,
    "after a clock was set back, as much is owed as there was",
    **bucket_parts,
    given=[*bucket_given, is_same, ahead > 0],
    fixed=[*same_wide, ahead > 2**50, number > from_at + moved],
    # The row was written at `now` + `ahead`, which is `at` + `moved` units.
    claim=lambda it: it["number"] == at + greatest(number - (at + moved), 0) + it["charged"] * price,
    broken={
        "as of the clock that was ahead": bucket(debt=greatest(number - from_at, 0)),
        "by nanoseconds": bucket(debt=greatest(number - ahead - from_at, 0)),
        "forgotten": bucket(debt=0),
    },
)

# The widths, for any row. A bucket holds the debt, or it was carried over.
paid, paid_down, expires = ints("paid paid_down expires")
after = bucket()["number"]
lemma(
    BUCKET,
    "no number reaches 2^121, which Rust reads again, and no count exceeds an `integer`",
    inputs=bucket_inputs,
    given=[
        *bucket_given,
        *bucket_units,
        *quotas,
        between(0, now, BIGINT),
        whole >= 0,
        up >= 0,
        # By induction: this lemma claims it for each statement.
        debt_before <= MOST_CARRIED,
    ],
    domain=bucket_domain,
    right=bucket(),
    fixed=other_wide,
    uses=[
        product(now, BIGINT - 1, limit, UNITS - 1),
        product(burst, UNITS - 1, period, CENTURY),
        scaled(price, bucket_charged, fitting),
    ],
    steps=[
        at < 2**113,
        capacity < 2**112,
        bucket_charged * price <= greatest(bucket_room, 0),
        debt + bucket_charged * price <= MOST_CARRIED,
    ],
    claim=lambda it: And(it["number"] < 2**121, it["charged"] < INTEGER),
    broken={
        "never cut": (
            bucket(debt=whole + up),
            *from_cheap_to_dear,
            number > 2**119,
            number < 2**120,
        ),
    },
)


def expiring(expires=expires):
    return results(expires=expires)


expiry_down, expiry_of_row, paid_of_row = ints("expiry_down expiry_of_row paid_of_row")
lemma(
    BUCKET,
    "a row does not expire before its debt is paid",
    inputs=bucket_inputs,
    given=[
        limit > 0,
        after >= 0,
        later >= 0,
        later <= LAST,
        div(paid, after + limit - 1, limit),
        instant(paid, expires),
    ],
    domain=[
        *bucket_domain,
        *bucket_given,
        paid < EXACT,
        div(paid_down, after, limit),
        div(expiry_down, paid_down, 1_000),
        div(paid_of_row, number + limit - 1, limit),
        instant(paid_of_row, expiry_of_row),
    ],
    uses=[scaled(limit, paid, later)],
    right=expiring(),
    fixed=[*same_wide, ahead == 0, number > at],
    claim=lambda it: Implies(it["expires"] <= later / 1_000, later * limit >= after),
    broken={
        "rounded down": (expiring(expiry_down), *same_wide, ahead == 0, number > at, later == expiry_down * 1_000),
        "when what was owed before is paid": (
            expiring(expiry_of_row),
            *same_wide,
            ahead == 0,
            number > at,
            later == expiry_of_row * 1_000,
        ),
    },
)

# Windows. `present` is the clock's window under the question's quota, and `from_present` under the row's.
present, from_present = ints("present from_present")
window_given = [
    limit > 0,
    cost > 0,
    count >= 1,
    number >= 0,
    used >= 0,
    previous >= 0,
    now >= 0,
    present >= 0,
    from_present >= 0,
    period > 0,
    from_period > 0,
    div(present, now, period),
    div(from_present, now, from_period),
    Implies(from_period == period, from_present == present),
]
window_domain = [
    *quotas,
    between(2**40, now, 2**62),
    cost <= limit,
    between(0, used, UNITS),
    between(0, previous, UNITS),
    number < 2**62,
]
window_corrected = least(number, from_present + 1)
same_period = from_period == period

# Fixed windows: `FixedWindow::decide` and `inherit`.
fixed_number = If(same_period, greatest(window_corrected, present), present)
fixed_used = If((window_corrected + 1) * from_period > now, used, 0)
fixed_room = limit - fixed_used
fixed_charged = charged_of(fixed_room, fitting)
fits_fixed = Implies(fixed_room >= 0, div(fitting, fixed_room, cost))


def fixed(charged=fixed_charged, number=fixed_number, used=fixed_used):
    return results(charged=charged, number=number, used=used + charged * cost)


fixed_inputs = {
    "from_period": from_period,
    "number": number,
    "used": used,
    "now": now,
    "limit": limit,
    "period": period,
    "cost": cost,
    "count": count,
}
month_wide = [limit == UNITS - 11, cost == UNITS // 4 - 1, count == 3, period == MONTH + 1, now > 2**60]
same_month = [*month_wide, from_period == period]
other_month = [*month_wide, from_period == DAY + 7]
of_fixed = dict(inputs=fixed_inputs, domain=window_domain, right=fixed())
edges = [scaled(from_period, window_corrected + 1, from_present), scaled(from_period, from_present, window_corrected)]
lemma(
    FIXED,
    "as many requests are charged as are admitted one after the other",
    **of_fixed,
    given=[*window_given, fits_fixed],
    uses=[scaled(cost, count, fitting)],
    fixed=same_month,
    claim=lambda it: is_the_loop(it, fixed_room, cost),
    broken={
        "one more": fixed(charged_of(fixed_room, fitting + 1)),
        "one less": fixed(charged_of(fixed_room, fitting - 1)),
        "all or none": fixed(If(And(fixed_room >= 0, fitting >= count), count, 0)),
        "a request, whatever was used": fixed(greatest(fixed_charged, 1)),
    },
)
counts_on = number >= present
lemma(
    FIXED,
    "what was used counts in its window, and in no later one",
    **of_fixed,
    given=[*window_given, fits_fixed, same_period, number <= present + 1],
    uses=edges,
    fixed=[*same_month, used > 0],
    claim=lambda it: And(
        it["used"] == If(counts_on, used, 0) + it["charged"] * cost,
        it["number"] == If(counts_on, number, present),
    ),
    broken={
        "never": fixed(used=0),
        "always": fixed(used=used),
        "to the beginning of its window": fixed(used=If(number * from_period > now, used, 0)),
        "a window that is ahead is forgotten": (fixed(number=present), *same_month, used > 0, number == present + 1),
    },
)
# The result of `plain.sql` for a row with the period in question. The whole statement decides on all other rows.
plain_number = greatest(least(number, present + 1), present)
plain_used = If(number >= present, used, 0)
one_fits = If(plain_used <= limit - cost, 1, 0)
one_of_same_month = [it if it is not month_wide[2] else count == 1 for it in same_month]
lemma(
    FIXED,
    "a plain charge is that of the whole statement",
    **(of_fixed | {"right": fixed(one_fits, plain_number, plain_used)}),
    given=[*window_given, fits_fixed, same_period, count == 1],
    uses=[*edges, scaled(cost, fitting, 0), scaled(cost, 1, fitting)],
    fixed=[*one_of_same_month, used > 0],
    claim=lambda it: And(
        it["charged"] == fixed_charged, it["number"] == fixed_number, it["used"] == fixed()["used"]
    ),
    broken={
        "as far ahead as the row": (
            fixed(one_fits, greatest(number, present), plain_used),
            *one_of_same_month,
            used > 0,
            number > present + 1,
        ),
        "a window that is ahead is forgotten": fixed(one_fits, plain_number, If(number == present, used, 0)),
        "what was used counts in the next window, too": fixed(
            one_fits, plain_number, If(number + 1 >= present, used, 0)
        ),
        "up to the limit, whatever it costs": fixed(If(plain_used <= limit, 1, 0), plain_number, plain_used),
    },
)
lemma(
    FIXED,
    "under another period, what counts of it counts in the present window",
    **of_fixed,
    given=[*window_given, fits_fixed, Not(same_period), number <= from_present + 1],
    fixed=[*other_month, used > 0],
    claim=lambda it: And(
        it["used"] == If((number + 1) * from_period <= now, 0, used) + it["charged"] * cost,
        it["number"] == present,
    ),
    broken={
        "the number is that of the row": fixed(number=greatest(window_corrected, present)),
        "never": fixed(used=0),
        "always": fixed(used=used),
        "if it is the present one": fixed(used=If(number == present, used, 0)),
    },
)
lemma(
    FIXED,
    "after a clock was set back, the window is the next one at most, and what was used counts in it",
    **of_fixed,
    given=[*window_given, fits_fixed, same_period, number > present],
    uses=edges,
    fixed=[*same_month, used > 0, number > present + 1],
    claim=lambda it: And(it["number"] == present + 1, it["used"] == used + it["charged"] * cost),
    broken={
        "as far ahead as it is": fixed(number=greatest(number, present)),
        "the present one": fixed(number=present),
        "forgotten": fixed(used=0),
    },
)
lemma(
    FIXED,
    "no number reaches 2^63",
    **of_fixed,
    given=[*window_given, fits_fixed, *window_domain],
    uses=[scaled(cost, fixed_charged, fitting)],
    steps=[fixed_charged * cost <= greatest(fixed_room, 0)],
    fixed=[*same_month, count == 2**30],
    claim=lambda it: And(it["used"] < BIGINT, it["charged"] * cost < BIGINT, it["charged"] < INTEGER),
    broken={"all that come are charged": (fixed(count), *same_month[:2], count == 2**30, from_period == period)},
)
fixed_end, fixed_expiry, early_end, early_expiry = ints("fixed_end fixed_expiry early_end early_expiry")
lemma(
    FIXED,
    "a row does not expire while its window lasts",
    inputs=fixed_inputs,
    given=[
        period > 0,
        later >= 0,
        later <= LAST,
        fixed_end == (fixed_number + 1) * period,
        instant(fixed_end, fixed_expiry),
    ],
    domain=[
        *window_given,
        *window_domain,
        fits_fixed,
        fixed_end < EXACT,
        early_end == fixed_number * period,
        div(early_expiry, fixed_end, 1_000),
    ],
    right=expiring(fixed_expiry),
    fixed=[*same_month, later == early_expiry * 1_000],
    claim=lambda it: Implies(it["expires"] <= later / 1_000, (fixed_number + 1) * period <= later),
    broken={"rounded down": expiring(early_expiry)},
)

# Sliding windows: `SlidingWindow::roll`, `decide` and `inherit`. The elapsed part of a window is zero if it is ahead.
rolled_number = greatest(window_corrected, from_present)
rolled_previous = If(
    window_corrected >= from_present, previous, If(window_corrected + 1 == from_present, used, 0)
)
rolled_used = If(window_corrected >= from_present, used, 0)
from_left = from_period - least(greatest(now - rolled_number * from_period, 0), from_period)
weight_before, weight_before_down, weight, weight_down = ints(
    "weight_before weight_before_down weight weight_down"
)
sliding_number = If(same_period, rolled_number, present)
sliding_previous = If(same_period, rolled_previous, 0)
sliding_used = If(same_period, rolled_used, rolled_used + weight_before)
left = period - greatest(now - sliding_number * period, 0)
weighs = If(sliding_previous == 0, 0, weight)
sliding_room = limit - sliding_used - weighs
sliding_charged = charged_of(sliding_room, fitting)
weights = [
    div_ceil(weight_before, rolled_previous * from_left, from_period),
    div_ceil(weight, sliding_previous * left, period),
]
fits_sliding = Implies(sliding_room >= 0, div(fitting, sliding_room, cost))
sliding_given = [*window_given, *weights, fits_sliding]
is_within = [sliding_number >= present, And(0 <= left, left <= period)]


def sliding(charged=sliding_charged, number=sliding_number, previous=sliding_previous, used=sliding_used):
    return results(charged=charged, number=number, previous=previous, used=used + charged * cost)


sliding_inputs = fixed_inputs | {"previous": previous}
of_sliding = dict(inputs=sliding_inputs, domain=window_domain, right=sliding())
in_the_middle = [now == 445 * (MONTH + 1) + MONTH // 3]
half = ints("half")[0]
lemma(
    SLIDING,
    "as many requests are charged as have room beside the weighted count, one after the other",
    **of_sliding,
    given=sliding_given,
    # `weighted(used + cost × n) ≤ limit_units`: the comparison of `SlidingWindow::decide`.
    uses=[
        scaled(cost, count, fitting),
        scaled(period, sliding_used + weighs + sliding_charged * cost, limit),
        scaled(period, limit + 1, sliding_used + weighs + sliding_charged * cost + cost),
        scaled(period, present, sliding_number),
    ],
    steps=[
        *is_within,
        is_the_loop(sliding(), sliding_room, cost),
        Implies(sliding_previous == 0, sliding_previous * left == 0),
        sliding_previous * left <= weighs * period,
        sliding_previous * left > weighs * period - period,
    ],
    fixed=[*same_month, *in_the_middle, number == 445, previous > 2**40],
    claim=lambda it: And(
        0 <= it["charged"],
        it["charged"] <= count,
        Implies(
            it["charged"] > 0,
            sliding_previous * left + (sliding_used + it["charged"] * cost) * period <= limit * period,
        ),
        Implies(
            it["charged"] < count,
            sliding_previous * left + (sliding_used + it["charged"] * cost + cost) * period > limit * period,
        ),
    ),
    broken={
        "what the window before weighs is rounded down": (
            sliding(charged_of(limit - sliding_used - weight_down, half)),
            *same_month,
            *in_the_middle,
            number == 445,
            previous > 2**40,
            div(weight_down, sliding_previous * left, period),
            Implies(limit - sliding_used - weight_down >= 0, div(half, limit - sliding_used - weight_down, cost)),
        ),
        "the window before does not count": (
            sliding(charged_of(limit - sliding_used, half)),
            *same_month,
            *in_the_middle,
            number == 445,
            previous > 2**40,
            div(half, limit - sliding_used, cost),
        ),
        "the window before counts as a whole": (
            sliding(charged_of(limit - sliding_used - sliding_previous, half)),
            *same_month,
            *in_the_middle,
            number == 445,
            previous > 2**40,
            Implies(
                limit - sliding_used - sliding_previous >= 0, div(half, limit - sliding_used - sliding_previous, cost)
            ),
        ),
        "one more": sliding(charged_of(sliding_room, fitting + 1)),
        "one less": sliding(charged_of(sliding_room, fitting - 1)),
    },
)
lemma(
    SLIDING,
    "windows roll as in `SlidingWindow::roll`",
    **of_sliding,
    given=[*sliding_given, same_period, number <= present + 1],
    fixed=[*same_month, *in_the_middle, previous > 2**40, used > 2**41],
    claim=lambda it: And(
        it["number"] == If(number >= present, number, present),
        it["previous"] == If(number >= present, previous, If(number + 1 == present, used, 0)),
        it["used"] == If(number >= present, used, 0) + it["charged"] * cost,
    ),
    broken={
        "the window before is forgotten": sliding(previous=If(window_corrected >= from_present, previous, 0)),
        "two windows later, it is still the one before": sliding(
            previous=If(window_corrected >= from_present, previous, used)
        ),
        "what was used counts in the next window, too": sliding(used=used),
        "a window that is ahead is forgotten": (
            sliding(number=present),
            *same_month,
            *in_the_middle,
            number == 446,
            previous == 0,
        ),
    },
)
plain_previous = If(number >= present, previous, If(number + 1 == present, used, 0))
one_fits_beside = If(plain_used + weighs <= limit - cost, 1, 0)


def plainly_slid(number=plain_number, previous=plain_previous, used=plain_used, charged=one_fits_beside):
    return sliding(charged, number, previous, used)


lemma(
    SLIDING,
    "a plain charge is that of the whole statement",
    **(of_sliding | {"right": plainly_slid()}),
    given=[*sliding_given, same_period, count == 1],
    uses=[scaled(cost, fitting, 0), scaled(cost, 1, fitting)],
    fixed=[*one_of_same_month, *in_the_middle, previous > 2**40, used > 2**41],
    claim=lambda it: And(
        it["charged"] == sliding_charged,
        it["number"] == sliding_number,
        it["previous"] == sliding_previous,
        it["used"] == sliding()["used"],
    ),
    broken={
        "as far ahead as the row": (
            plainly_slid(number=greatest(number, present)),
            *one_of_same_month,
            *in_the_middle,
            number > 446,
            previous == 0,
        ),
        "the window before is forgotten": plainly_slid(previous=If(number >= present, previous, 0)),
        "two windows later, it is still the one before": plainly_slid(previous=If(number >= present, previous, used)),
        "what was used counts in the next window, too": plainly_slid(used=If(number + 1 >= present, used, 0)),
        "the window before does not weigh": plainly_slid(charged=one_fits),
    },
)
lemma(
    SLIDING,
    "under another period, what it weighs counts in the present window, as in `SlidingWindow::inherit`",
    **of_sliding,
    given=[*sliding_given, Not(same_period), number <= from_present + 1],
    fixed=[*other_month, *in_the_middle, previous > 2**40, used > 2**41],
    steps=[window_corrected == number],
    claim=lambda it: And(
        it["number"] == present,
        it["previous"] == 0,
        it["used"] == rolled_used + weight_before + it["charged"] * cost,
        rolled_previous * from_left <= weight_before * from_period,
        rolled_previous * from_left > weight_before * from_period - from_period,
    ),
    broken={
        "the window before is forgotten": sliding(used=rolled_used),
        "it counts as a whole": sliding(used=rolled_used + rolled_previous),
        "rounded down": (
            sliding(used=rolled_used + weight_before_down),
            *other_month,
            *in_the_middle,
            previous > 2**40,
            div(weight_before_down, rolled_previous * from_left, from_period),
        ),
        "it stays the window before": sliding(previous=rolled_previous),
        "the number is that of the row": sliding(number=rolled_number),
    },
)
lemma(
    SLIDING,
    "after a clock was set back, the window is the next one at most, and what was used counts in it",
    **of_sliding,
    given=[*sliding_given, same_period, number > present],
    fixed=[*same_month, *in_the_middle, used > 0, number > present + 1],
    claim=lambda it: And(
        it["number"] == present + 1, it["previous"] == previous, it["used"] == used + it["charged"] * cost
    ),
    broken={
        "as far ahead as it is": sliding(number=greatest(number, present)),
        "the present one": sliding(number=present),
        "the window before is forgotten": (
            sliding(previous=0),
            *same_month,
            *in_the_middle,
            used > 0,
            number > present + 1,
            previous > 0,
        ),
        "forgotten": sliding(used=0),
    },
)
lemma(
    SLIDING,
    "no number reaches 2^63",
    **of_sliding,
    given=[*sliding_given, *window_domain],
    uses=[
        scaled(period, present, sliding_number),
        scaled(cost, sliding_charged, fitting),
        scaled(rolled_previous, from_left, from_period),
        scaled(sliding_previous, left, period),
        scaled(from_period, rolled_previous + 1, weight_before),
        scaled(period, sliding_previous + 1, weight),
    ],
    steps=[
        *is_within,
        And(0 <= from_left, from_left <= from_period),
        rolled_previous >= 0,
        sliding_previous >= 0,
        weight_before <= rolled_previous,
        weight <= sliding_previous,
        Implies(weight_before < 0, False),
        sliding_charged * cost <= greatest(sliding_room, 0),
    ],
    fixed=[*same_month, *in_the_middle, count == 2**30],
    claim=lambda it: And(
        it["used"] < BIGINT, it["charged"] * cost < BIGINT, weighs < BIGINT, it["charged"] < INTEGER
    ),
    broken={
        "all that come are charged": (
            sliding(count),
            *same_month[:2],
            *in_the_middle,
            period == MONTH + 1,
            count == 2**30,
            from_period == period,
        )
    },
)
sliding_end, sliding_expiry, soon_expiry = ints("sliding_end sliding_expiry soon_expiry")
lasts = If(sliding()["used"] > 0, 2, 1)
lemma(
    SLIDING,
    "a row does not expire while anything in it weighs",
    inputs=sliding_inputs,
    given=[
        period > 0,
        later >= 0,
        later <= LAST,
        sliding_end == (sliding_number + lasts) * period,
        instant(sliding_end, sliding_expiry),
    ],
    domain=[
        *sliding_given,
        *window_domain,
        sliding_end < EXACT,
        div(soon_expiry, (sliding_number + 1) * period + 999, 1_000),
    ],
    right=expiring(sliding_expiry),
    fixed=[*same_month, *in_the_middle, later == soon_expiry * 1_000],
    # From then on, the state has rolled to an empty one.
    claim=lambda it: Implies(
        it["expires"] <= later / 1_000,
        And(
            (sliding_number + 1) * period <= later,
            Implies(sliding()["used"] > 0, (sliding_number + 2) * period <= later),
        ),
    ),
    broken={"at the end of the window": expiring(soon_expiry)},
)

# Calendar windows: `CalendarWindow::decide` and `inherit`. The present one ends at `end`, and the row's at `number`.
end, calendar_expiry = ints("end calendar_expiry")
calendar_used = If(now < number, used, 0)
calendar_room = limit - calendar_used
calendar_charged = charged_of(calendar_room, fitting)


def calendar(charged=calendar_charged, number=end, used=calendar_used):
    return results(charged=charged, number=number, used=used + charged * cost)


calendar_given = [
    limit > 0,
    cost > 0,
    count >= 1,
    used >= 0,
    now < end,
    Implies(calendar_room >= 0, div(fitting, calendar_room, cost)),
]
of_calendar = dict(
    inputs={"number": number, "used": used, "now": now, "limit": limit, "cost": cost, "count": count},
    given=calendar_given,
    # Days in UTC.
    domain=[
        *quotas,
        between(2**40, now, 2**62),
        cost <= limit,
        between(0, used, UNITS),
        between(0, number, 2**62),
        end == (now / DAY + 1) * DAY,
    ],
    right=calendar(),
    fixed=[limit == UNITS - 11, cost == UNITS // 4 - 1, count == 3, now > 2**60, number > 2**59, used > 0],
)
lemma(
    CALENDAR,
    "as many requests are charged as are admitted one after the other",
    **of_calendar,
    uses=[scaled(cost, count, fitting)],
    claim=lambda it: is_the_loop(it, calendar_room, cost),
    broken={
        "one more": calendar(charged_of(calendar_room, fitting + 1)),
        "one less": calendar(charged_of(calendar_room, fitting - 1)),
        "all or none": calendar(If(And(calendar_room >= 0, fitting >= count), count, 0)),
    },
)
lemma(
    CALENDAR,
    "what was used in a window that has not ended counts in the present one, wherever that one ends",
    **of_calendar,
    claim=lambda it: And(
        it["number"] == end, it["used"] == If(number > now, used, 0) + it["charged"] * cost
    ),
    broken={
        "only in the window with the same end": calendar(used=If(number == end, used, 0)),
        "to the end of its own window": calendar(number=greatest(number, end)),
        "always": calendar(used=used),
        "one nanosecond longer": calendar(used=If(now <= number, used, 0)),
    },
)
lemma(
    CALENDAR,
    "a row does not expire while its window lasts, and no number reaches 2^63",
    inputs=of_calendar["inputs"],
    given=[*calendar_given, later >= 0, later <= LAST, instant(end, calendar_expiry), *of_calendar["domain"]],
    uses=[scaled(cost, calendar_charged, fitting)],
    steps=[calendar_charged * cost <= greatest(calendar_room, 0)],
    right=expiring(calendar_expiry),
    fixed=of_calendar["fixed"],
    claim=lambda it: And(
        Implies(it["expires"] <= later / 1_000, end <= later),
        calendar_used + calendar_charged * cost < BIGINT,
    ),
    broken={"as the row did": (expiring(number / 1_000), *of_calendar["fixed"], number > 0, number < end - 1_000_000)},
)
