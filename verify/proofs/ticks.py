"""The memory table's buckets: time in ticks, in 36 bits of a word. A token takes a power of two."""

from z3 import And, BitVec, BitVecVal, If, Implies, LShR, Not, Or, UGE, UGT, ULE, ULT

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
    scaled,
)

CLOCK = "src/store/memory/table/ticks/clock.rs"
BUCKET = "src/store/memory/table/ticks/mod.rs"

# A clock with `ticks` per `period` nanoseconds, in lowest terms. The counterexamples have a limit of one, because `1 <<
# shift` and an odd period are in lowest terms.
nanos, ticks, period, reciprocal, estimate, shift, half = ints("now ticks period reciprocal estimate shift half")
RECIPROCAL, MAX_NANOS = 2**62, 2**61
clock = {"limit": ints("limit")[0], "shift": shift, "period": period}
clock_domain = [clock["limit"] == 1, Or(*(And(shift == k, ticks == 2**k) for k in (1, 5, 20))), period == 2 * half + 1]

reciprocal_error = ticks * RECIPROCAL - reciprocal * period
estimate_error = nanos * reciprocal - estimate * RECIPROCAL
rest = nanos * ticks - estimate * period


def tick(count, rest):
    return results(count=count, rest=rest)


lemma(
    f"{CLOCK}: TickClock::tick",
    "the count is the exact quotient, and the rest what it leaves",
    inputs=clock | {"now": nanos},
    given=[
        between(0, nanos, MAX_NANOS + 1),
        ticks > 0,
        between(1, period, CENTURY + 1),
        ticks < 4 * period,
        between(0, reciprocal_error, period),
        between(0, estimate_error, RECIPROCAL),
    ],
    uses=[product(nanos, MAX_NANOS, reciprocal_error, period), product(estimate_error, RECIPROCAL - 1, period, period)],
    steps=[RECIPROCAL * rest == nanos * reciprocal_error + estimate_error * period, 0 <= rest, rest < 2 * period],
    domain=clock_domain,
    fixed=[nanos < 2**40, period < 2**30],
    right=tick(If(rest < period, estimate, estimate + 1), If(rest < period, rest, rest - period)),
    claim=lambda it: And(it["count"] * period + it["rest"] == nanos * ticks, 0 <= it["rest"], it["rest"] < period),
    broken={
        "the estimate is not corrected": tick(estimate, rest),
        "corrected too late": tick(If(rest <= period, estimate, estimate + 1), If(rest <= period, rest, rest - period)),
        "the rest is not corrected": tick(If(rest < period, estimate, estimate + 1), rest),
    },
)

count, rest, span, up, down, whole = ints("count rest ticks_later wait wait_down wait_whole")
reading = nanos * ticks == count * period + rest
passed = lambda nanos: nanos * ticks >= (count + span) * period
lemma(
    f"{CLOCK}: TickClock::span",
    "a wait is the least after which so many ticks more have passed",
    inputs=clock | {"now": nanos, "ticks_later": span},
    given=[
        ticks > 0,
        period > 0,
        count >= 0,
        span > 0,
        between(0, rest, period),
        reading,
        nanos >= 0,
        div_ceil(up, span * period - rest, ticks),
        div(down, span * period - rest, ticks),
        div_ceil(whole, span * period, ticks),
    ],
    domain=[*clock_domain, ticks < 4 * period, nanos < MAX_NANOS, count < 2**62],
    fixed=[nanos < 2**30, period < 2**20, span < 100],
    right=results(wait=up),
    claim=lambda it: And(passed(nanos + it["wait"]), Not(passed(nanos + it["wait"] - 1))),
    broken={
        "rounded down": results(wait=down),
        "what has passed of the present tick is waited for again": results(wait=whole),
        "a nanosecond more": results(wait=up + 1),
    },
)

# The bucket on the grid of ticks, compared with the exact one, whose units are 1/period of a tick.
tat, price, capacity, token, cost, burst = ints("tat price capacity token cost burst")
debt = saturating_sub(tat, count)
now = count * period + rest
exact_debt = saturating_sub(tat * period, now)
exact_admits = exact_debt + price * period <= capacity * period
exact_after = now + exact_debt + price * period
bucket = clock | {"burst": burst, "tat": tat, "now": nanos, "cost": cost}
bucket_given = [tat >= 0, count >= 0, period > 0, between(0, rest, period), price > 0, price <= capacity]
bucket_domain = [
    *clock_domain,
    ticks < 4 * period,
    nanos * ticks == now,
    nanos < MAX_NANOS,
    price == cost * ticks,
    capacity == burst * ticks,
    between(1, cost, burst + 1),
    burst < 2**32,
    capacity <= 2**34,
    debt <= capacity,
    count - tat < 2**33,
]


def judge(owes=debt, admits=None, after=None):
    admits = owes + price <= capacity if admits is None else admits
    after = count + owes + price if after is None else after
    return results(admitted=admits, tat=If(admits, after, 0))


late = saturating_sub(tat, count + 1)
lemma(
    f"{BUCKET}: TickBucket::judge",
    "a state in ticks is judged as the exact bucket judges it, at every nanosecond",
    inputs=bucket,
    given=bucket_given,
    domain=bucket_domain,
    right=judge(),
    claim=lambda it: it["admitted"] == exact_admits,
    broken={
        "clock readings are rounded up": judge(owes=late),
        "`<` for `<=`": judge(admits=debt + price < capacity),
        "a debt beside the price is not compared": judge(admits=debt <= capacity),
    },
)
lemma(
    f"{BUCKET}: TickBucket::judge",
    "a charge counts as up to a tick earlier than it was, and never as later",
    inputs=bucket,
    given=bucket_given,
    domain=bucket_domain,
    right=judge(),
    claim=lambda it: Implies(
        it["admitted"], And(it["tat"] * period <= exact_after, exact_after < it["tat"] * period + period)
    ),
    broken={
        "counted from the next tick": judge(after=count + 1 + greatest(tat - count - 1, 0) + price),
        "time that passed while nothing was owed is credited": judge(owes=tat - count),
        "the debt is forgotten": judge(after=count + price),
    },
)
low, low_rest, admitted, length = ints("low low_rest admitted_before length")


def is_bounded(admitted, tat):
    return admitted <= greatest(tat, low) - low


lemma(
    f"{BUCKET}: TickBucket::judge",
    "in every interval, at most burst + rate × length and less than a tick more is admitted",
    inputs=bucket | {"low": low, "low_rest": low_rest, "admitted_before": admitted, "length": length},
    given=[
        *bucket_given,
        0 <= low,
        low <= count,
        between(0, low_rest, period),
        admitted >= 0,
        is_bounded(admitted, tat),
        length == now - (low * period + low_rest),
        length >= 0,
    ],
    domain=bucket_domain,
    right=judge(),
    claim=lambda it: Implies(
        it["admitted"],
        And((admitted + price) * period < capacity * period + length + period, is_bounded(admitted + price, it["tat"])),
    ),
    broken={
        "a debt beside the price is not compared": judge(admits=debt <= capacity),
        "the debt is forgotten": judge(after=count + price),
    },
)

# Debts in other units.
tokens, part, rounded, floor = ints("tokens part rounded floor")
MOST = 2**34
owed_units = tokens * price + part
own = {"shift": shift, "debt": ints("debt")[0], "price": price}
own_given = [
    token > 0,
    price > 0,
    tokens >= 0,
    between(0, part, price),
    div_ceil(rounded, part * token, price),
    div(floor, part * token, price),
]
powers = Or(*(And(shift == k, token == 2**k) for k in (0, 3, 20)))


def ticks_of(rounded, tokens=least(tokens, MOST)):
    return results(ticks=least(tokens * token + rounded, MOST))


lemma(
    f"{BUCKET}: TickBucket::ticks_of",
    "a debt is rounded up by less than a tick, and cut at what a word holds",
    inputs=own,
    given=own_given,
    domain=[powers, own["debt"] == owed_units, price < 2**62, own["debt"] < 2**110],
    uses=[
        product(part, price, token, token),
        product(tokens, tokens, token, token),
        product(MOST, MOST, token - 1, token),
    ],
    steps=[rounded >= 0, Implies(tokens >= MOST, tokens * token >= MOST)],
    right=ticks_of(rounded),
    fixed=[price < 100, tokens < 100],
    claim=lambda it: If(
        tokens * token + rounded >= MOST,
        it["ticks"] == MOST,
        And(it["ticks"] * price >= owed_units * token, (it["ticks"] - 1) * price < owed_units * token),
    ),
    broken={
        "rounded down": ticks_of(floor),
        "the rest is forgotten": ticks_of(0),
        "a tick more": ticks_of(rounded + 1),
    },
)

# A change of quota: a token's ticks become `gain` times as many, or are divided by `loss`. `rest` has passed in the old
# tick in which the change comes, and with it `whole` new ticks.
gain, loss, old_debt, new_shift, rounded_up, passed_ticks, whole_ticks, ticks_down = ints(
    "gain loss debt new_shift up passed whole_ticks down"
)
shifts = Or(
    *(
        And(
            shift == old,
            new_shift == new,
            ticks == 2**old,
            gain == 2 ** max(new - old, 0),
            loss == 2 ** max(old - new, 0),
        )
        for old, new in ((3, 6), (6, 3), (5, 6))
    )
)


def converted(debt=rounded_up - whole_ticks):
    return results(debt=debt)


lemma(
    "src/store/memory/table/ticks/conversion.rs: Conversion::debt",
    "as many tokens are owed in other ticks: what has passed of the old tick is paid, and less than a new tick is added",
    inputs=clock | {"new_shift": new_shift, "now": nanos, "debt": old_debt},
    given=[
        period > 0,
        between(0, rest, period),
        gain > 0,
        loss > 0,
        Or(gain == 1, loss == 1),
        old_debt > 0,
        reading,
        div_ceil(rounded_up, old_debt * gain, loss),
        div(ticks_down, old_debt * gain, loss),
        div(passed_ticks, rest * gain, loss),
        div(whole_ticks, passed_ticks, period),
    ],
    domain=[
        clock["limit"] == 1,
        shifts,
        period == 2 * half + 1,
        between(1, period, CENTURY),
        4 * period > 64,
        nanos < MAX_NANOS,
        old_debt < 2**20,
    ],
    fixed=[between(100, period, 1000), nanos < 10_000, old_debt < 100],
    uses=[
        scaled(loss, passed_ticks, 0 - 1),
        scaled(period, whole_ticks, 0 - 1),
        scaled(period, 1, whole_ticks),
        scaled(loss, period, passed_ticks),
        scaled(period, old_debt + 1, loss * rounded_up),
        scaled(period, loss * (rounded_up - 1) + 1, old_debt),
        scaled(period, old_debt, loss * rounded_up),
    ],
    right=converted(),
    claim=lambda it: And(
        it["debt"] * period * loss >= (old_debt * period - rest) * gain,
        (it["debt"] - 1) * period * loss < (old_debt * period - rest) * gain,
    ),
    broken={
        "rounded down": converted(ticks_down - whole_ticks),
        "what has passed of the old tick is owed again": converted(rounded_up),
        "a tick that has not passed is paid": converted(rounded_up - whole_ticks - 1),
    },
)

# The word. Its 36 bits hold a time modulo sixteen epochs of 2^32 ticks.
stamp, at = BitVec("stamp", 64), BitVec("at", 64)


def wide(number):
    return BitVecVal(number, 64)


MASK, EPOCH = wide(2**36 - 1), 2**32


def owed(stamp, at, farthest=7 * EPOCH, mask=MASK, is_far=UGT):
    distance = ((stamp & MASK) - at) & mask
    return If(is_far(distance, wide(farthest)), wide(0), distance)


lemma(
    f"{BUCKET}: TickBucket::owed",
    "a time up to seven epochs ahead, or less than nine behind, reads as what it is",
    inputs={"stamp": stamp, "at": at},
    given=[
        ULT(stamp, wide(2**63)),
        ULT(at, wide(2**63)),
        If(UGE(stamp, at), ULE(stamp - at, wide(7 * EPOCH)), ULT(at - stamp, wide(9 * EPOCH))),
    ],
    # An unknown word is empty.
    domain=[UGT(stamp, wide(0)), UGT(at, wide(0))],
    right={"owed": owed(stamp, at)},
    claim=lambda it: it["owed"] == If(UGE(stamp, at), stamp - at, wide(0)),
    broken={
        "up to six are ahead": {"owed": owed(stamp, at, 6 * EPOCH)},
        "up to eight are ahead": {"owed": owed(stamp, at, 8 * EPOCH)},
        "`>=` for `>`": {"owed": owed(stamp, at, is_far=UGE)},
        "35 bits are compared": {"owed": owed(stamp, at, mask=wide(2**35 - 1))},
    },
)

# Sweeps. A page that was swept up to one epoch is touched in a later one.
charged, read = BitVec("charged_at", 64), BitVec("read_at", 64)
before, latest = LShR(charged, 32), LShR(read, 32)
paid_at = charged + wide(4 * EPOCH)


def swept(all_paid=5):
    is_cleared = Or(UGE(latest - before, wide(all_paid)), owed(paid_at, latest << 32) == 0)
    return {"owed": If(And(latest != before, is_cleared), wide(0), owed(paid_at, read))}


lemma(
    "src/store/memory/table/sweep.rs: SetAssociativeTable::sweep",
    "however long a page is not touched, the longest debt is owed as long as it lasts, and never again",
    inputs={"charged_at": charged, "read_at": read},
    given=[ULE(charged, read), ULT(read, wide(2**63))],
    domain=[ULT(read, wide(2**40)), UGT(charged, wide(2**33))],
    right=swept(),
    claim=lambda it: it["owed"] == If(UGT(paid_at, read), paid_at - read, wide(0)),
    broken={
        "four epochs later, all is taken for paid": swept(4),
        "only fourteen epochs later, all is taken for paid": swept(14),
        "nothing is ever all paid": swept(2**40),
    },
)
