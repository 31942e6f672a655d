"""Refunds: with the last charge first, they restore the debt. In another order, they give back a bounded excess."""

from z3 import And, BoolVal, If, Implies, Not, Or

from gcra import MOST_TAT, burst, charge_of_api, limit, nanos, now, period, price, tat
from lemma import UNITS, between, greatest, ints, least, lemma, results, saturating_sub, scaled
from lua import (
    EXACT,
    LAST,
    LUA,
    MOST_FILL,
    START,
    bucket_inputs,
    capacity,
    cost,
    due,
    exact,
    full,
    is_later,
    micro_fields,
    now as micros_now,
)
from lua import of_three, parts, price as micros_price, price_rest, read, rest, capacity_rest
from ticks import BUCKET as TICKS

# The bucket, in its units. `before` was the TAT when the charge was made, at `made`. The refund changes `tat`.
charged, before, made, gave = ints("charged before made gave")
inputs = {"limit": limit, "period": period, "burst": burst, "tat": tat, "now": nanos, "cost": cost, "charged": charged}
after = made + saturating_sub(before, made) + price
given = [0 <= made, made <= now, 0 <= before, price > 0, tat >= 0, charged == after]
domain = [*charge_of_api, tat < MOST_TAT, charged < MOST_TAT, before < MOST_TAT, tat > now]
unpaid = saturating_sub(charged, now)


def refund(amount=least(unpaid, price)):
    return results(tat=saturating_sub(tat, amount))


GCRA = "src/algorithm/gcra.rs: Gcra::refund"
lemma(
    GCRA,
    "the last charge first, what is owed is what would be without the charge",
    # The refunds of all later charges have left a state that owes as much as this charge had left.
    inputs=inputs,
    given=[*given, greatest(tat, now) == greatest(charged, now)],
    domain=domain,
    right=refund(),
    claim=lambda it: saturating_sub(it["tat"], now) == saturating_sub(before, now),
    broken={"all that is owed is refunded": refund(unpaid), "half of it": refund(least(unpaid, price) / 2)},
)
lemma(
    GCRA,
    "after an earlier charge was refunded, no more than that is refunded too much",
    inputs=inputs | {"gave": gave},
    given=[*given, gave >= 0, tat >= charged - gave],
    domain=domain,
    right=refund(),
    # The rest of this charge, because the other refund has moved its payment forward.
    claim=lambda it: And(
        it["tat"] >= 0, tat - it["tat"] <= least(saturating_sub(charged - gave, now), price) + gave, it["tat"] <= tat
    ),
    broken={
        "what is paid is refunded as well": refund(price),
        "the clock is not looked at": refund(least(charged, price)),
    },
)

# Refunds in ticks, with the debt in place of the time at which it is paid.
debt, paid_at, count, token, shift, half = ints("debt paid_at now token shift half")
tick_price = cost * token
ticks = {"shift": shift, "debt": debt, "cost": cost, "paid_at": paid_at, "now": count}
own_debt = saturating_sub(paid_at, count)


def in_ticks(amount=least(own_debt, price)):
    return results(debt=debt - least(amount, debt))


tick_given = [
    0 <= made,
    made <= count,
    0 <= before,
    price > 0,
    paid_at == made + saturating_sub(before, made) + price,
    debt >= 0,
]
tick_domain = [
    Or(*(And(shift == k, price == cost * 2**k) for k in (0, 7))),
    between(1, cost, 2**20),
    paid_at < 2**60,
    debt > 0,
    debt < 2**34,
]
lemma(
    f"{TICKS}: TickBucket::refunded",
    "the last charge first, what is owed in ticks is what would be without the charge",
    inputs=ticks,
    given=[*tick_given, debt == own_debt],
    domain=tick_domain,
    right=in_ticks(),
    claim=lambda it: it["debt"] == saturating_sub(before, count),
    broken={"all that is owed is refunded": in_ticks(own_debt), "half of it": in_ticks(least(own_debt, price) / 2)},
)
lemma(
    f"{TICKS}: TickBucket::refunded",
    "after an earlier charge was refunded, no more ticks than that are refunded too much",
    inputs=ticks | {"gave": gave},
    given=[*tick_given, gave >= 0, debt >= own_debt - gave],
    domain=tick_domain,
    right=in_ticks(),
    claim=lambda it: And(
        0 <= it["debt"], it["debt"] <= debt, debt - it["debt"] <= least(saturating_sub(own_debt, gave), price) + gave
    ),
    broken={
        "what is paid is refunded as well": in_ticks(price),
        "the clock is not looked at": in_ticks(least(paid_at, price)),
    },
)

# Windows.
window, used, charged_in, counted = ints("window used charged_in counted")


def fixed(is_own=window == charged_in, left=saturating_sub(used, cost)):
    return results(used=If(is_own, left, used))


lemma(
    "src/algorithm/fixed_window.rs: FixedWindowState::refunded",
    "a charge of this window is given back, as far as it counts, and no other",
    inputs={"window": window, "used": used, "cost": cost, "charged_in": charged_in},
    given=[
        between(0, used, counted, cost, UNITS),
        Implies(window == charged_in, used == counted + cost),
        window >= 0,
        charged_in >= 0,
    ],
    domain=[window < 2**63, charged_in < 2**63, cost > 0],
    right=fixed(),
    claim=lambda it: it["used"] == If(window == charged_in, counted, used),
    broken={
        "in any window": fixed(True),
        "in windows before": fixed(charged_in <= window),
        "all of the window": fixed(left=0),
    },
)
previous, current = ints("previous current")


def sliding(is_own=window == charged_in, is_previous=charged_in + 1 == window, of=(0, 0)):
    was_own, was_previous = is_own, And(Not(is_own), is_previous)
    return results(
        previous=If(was_previous, saturating_sub(previous, cost), previous),
        current=If(was_own, saturating_sub(current, cost), current),
    )


lemma(
    "src/algorithm/sliding_window.rs: SlidingWindowState::refunded",
    "a charge of one of both windows is given back, and no other",
    inputs={"window": window, "previous": previous, "current": current, "cost": cost, "charged_in": charged_in},
    given=[
        between(0, previous, current, counted, cost, UNITS),
        window >= 0,
        charged_in >= 0,
        Implies(window == charged_in, current == counted + cost),
        Implies(window == charged_in + 1, previous == counted + cost),
    ],
    domain=[window < 2**63, charged_in < 2**63, cost > 0],
    right=sliding(),
    claim=lambda it: And(
        it["current"] == If(window == charged_in, counted, current),
        it["previous"] == If(window == charged_in + 1, counted, previous),
    ),
    broken={
        "the previous window is forgotten": sliding(is_previous=BoolVal(False)),
        "in all windows before": sliding(is_previous=charged_in < window),
        "always in the present one": sliding(is_own=BoolVal(True)),
    },
)

# The script. It reads a state between now and a full bucket.
receipt, receipt_rest = ints("receipt receipt_rest")
read_due, read_rest, owed, owed_rest = ints("read_due read_rest owed owed_rest")
script_due, script_rest = read()
asked, asked_rest = receipt - micros_now, receipt_rest
is_capped = is_later(asked, asked_rest, micros_price, price_rest)


def script(borrows=lambda rest: rest < 0, borrowed=1, amount=(owed, owed_rest), counts_rest=True):
    is_owed = Or(asked > 0, And(asked == 0, asked_rest > 0)) if counts_rest else asked > 0
    due, rest = read_due - amount[0], read_rest - amount[1]
    borrow = borrows(rest)
    due, rest = If(borrow, due - borrowed, due), If(borrow, rest + parts, rest)
    is_kept = And(is_owed, Or(due > micros_now, And(due == micros_now, rest > 0)))
    return results(refunded=is_owed, due=If(is_kept, due, 0), rest=If(is_kept, rest, 0))


# The result of `Gcra::refund`, in parts.
from_now = exact(micros_now, 0)
owes = saturating_sub(exact(receipt, receipt_rest), from_now)
counts = least(greatest(exact(due, rest), from_now), exact(full, capacity_rest))
refunded = least(owes, exact(micros_price, price_rest))
left = counts - refunded
ends = read_due - owed


def compared(one, other):
    """How a comparison of microseconds compares their parts."""
    return [scaled(parts, *pair) for pair in ((one, other), (other, one), (one + 1, other), (other + 1, one))]


lemma(
    f"{LUA}/bucket_refund.lua",
    "the script leaves what `Gcra::refund` does, and deletes what owes nothing",
    inputs=bucket_inputs | {"receipt": receipt, "receipt_rest": receipt_rest},
    given=[
        *micro_fields,
        between(0, receipt_rest, parts),
        0 <= micros_now,
        micros_now < LAST,
        0 <= due,
        due < EXACT,
        0 <= micros_price,
        exact(micros_price, price_rest) > 0,
        exact(micros_price, price_rest) <= exact(capacity, capacity_rest),
        capacity < MOST_FILL,
        0 <= capacity,
        0 <= receipt,
        receipt < EXACT,
        read_due == script_due,
        read_rest == script_rest,
        owed == If(is_capped, micros_price, asked),
        owed_rest == If(is_capped, price_rest, asked_rest),
    ],
    uses=[
        *compared(due, micros_now),
        *compared(due, full),
        *compared(micros_now, full),
        *compared(asked, 0),
        *compared(asked, micros_price),
        *compared(ends, micros_now),
        *compared(ends - 1, micros_now),
    ],
    steps=[
        And(exact(read_due, read_rest) == counts, between(0, read_rest, parts), read_due >= micros_now),
        (owes > 0) == Or(asked > 0, And(asked == 0, asked_rest > 0)),
        Implies(owes > 0, And(exact(owed, owed_rest) == refunded, between(0, owed_rest, parts), owed >= 0)),
        Implies(owes > 0, exact(ends, read_rest - owed_rest) == left),
    ],
    # A key that has expired by the server's own clock no longer exists.
    domain=[*of_three, between(START, receipt, START + 2**51), due > micros_now + 1_000],
    right=script(),
    claim=lambda it: And(
        it["refunded"] == (owes > 0),
        Implies(
            it["refunded"],
            If(
                left > from_now,
                And(exact(it["due"], it["rest"]) == left, between(0, it["rest"], parts)),
                And(it["due"] == 0, it["rest"] == 0),
            ),
        ),
    ),
    broken={
        "no microsecond is borrowed for a rest": script(borrowed=0),
        "`<=` for `<`, where one is": script(borrows=lambda rest: rest <= 0),
        "more than the price": script(amount=(asked, asked_rest)),
        "a rest alone is not refunded": script(counts_rest=False),
    },
)
