"""The scripts on Redis. Lua's numbers are doubles, and whole numbers below 2^53 are exact. So each lemma has two parts:
no intermediate value reaches 2^53, and the result is the Rust algorithm's.

Times are in microseconds. The rest that a bucket's rate leaves is in `parts` of a microsecond: see `Grid`.
"""

from z3 import And, If, Implies, Not, Or, unsat

from lemma import (
    CENTURY,
    UNITS,
    between,
    check,
    div,
    div_ceil,
    greatest,
    instance,
    ints,
    least,
    lemma,
    product,
    results,
    scaled,
)

BUCKET = "crates/redis/src/script/bucket.rs"
WINDOW = "crates/redis/src/script/window.rs"
LUA = "crates/redis/src/script/lua"

EXACT = 2**53
# A server's clock shows less until the year 2112, and at least the time at which the tests' servers begin.
LAST, START = 2**52, 2**51
MOST_FILL, MOST_PERIOD, MOST_PARTS = 2**51, 2**50, 2**52

limit, period, burst, cost, now, units = ints("limit period burst cost now units")

# What fits.
micro, grain, parts, micros, rest, fill = ints("micro grain parts micros rest fill")
quota = {"limit": limit, "period": period, "burst": burst}
api = [between(1, limit, burst, UNITS), between(1, period, CENTURY + 1)]


def fits(bound, parts_fit=parts <= MOST_PARTS):
    return results(fits=And(parts_fit, burst * period < bound * micro))


# A token has this many grains, which have no divisor in common with a microsecond's parts. So the parts are those of
# the fraction in lowest terms (Bézout).
grains, some, others = ints("grains some others")
lowest_terms = [micro == parts * grain, period == grains * grain, parts * some - grains * others == 1]
of_three = [limit == 3, period == 10**9, parts == 3, grain == 1000, burst > 10]
# The limit has no divisor in common with a second and a nanosecond, so nothing is reduced.
of_most = [limit == 10**15 - 2, period == 10**9 + 1, grain == 1, burst == 1]
lemma(
    f"{BUCKET}: Grid::check_fit",
    "no sum of a bucket that fits reaches 2^53: the time, what is owed, a price and a carry, and two rests",
    inputs=quota | {"parts": parts},
    given=[*api, micro == 1000 * limit, between(0, now, LAST), div(fill, burst * period, micro), parts > 0],
    domain=[*lowest_terms, grain > 0],
    uses=[scaled(micro, MOST_FILL, fill), scaled(micro, fill, MOST_FILL - 1)],
    right=fits(MOST_FILL),
    claim=lambda it: Implies(it["fits"], And(now + fill + fill + 1 < EXACT, (parts - 1) + (parts - 1) < EXACT)),
    fixed=of_three,
    broken={
        "up to 2^52": fits(2**52),
        "up to 2^53": fits(2**53),
        "of nanoseconds": results(fits=burst * period < MOST_FILL * 1000 * micro),
        "any number of parts": (fits(MOST_FILL, True), *of_most),
        "up to 2^53 parts": (
            fits(MOST_FILL, parts <= 2**53),
            limit == 2**43,
            period == 10**9 + 1,
            grain == 1,
            burst == 1,
        ),
    },
)
over, window = ints("over window")


def fits_window(bound, over=over):
    return results(fits=And(over == 0, micros < bound))


window_quota = {"limit": limit, "period": period}
lemma(
    f"{WINDOW}: check_fit",
    "no instant of a window that fits reaches 2^53, nor of the two after it; and no period is rounded",
    inputs=window_quota,
    given=[
        *api[1:],
        between(1, limit, UNITS),
        period == micros * 1000 + over,
        between(0, over, 1000),
        micros >= 0,
        div(window, now, micros),
        between(0, now, LAST),
    ],
    domain=[micros > 0],
    right=fits_window(MOST_PERIOD),
    fixed=[limit == 3, micros > 0],
    uses=[product(window, window, micros, micros)],
    claim=lambda it: Implies(it["fits"], And((window + 3) * micros + 999 < EXACT, micros * 1000 == period)),
    broken={"up to 2^52": fits_window(2**52), "what is rounded off is not looked at": fits_window(MOST_PERIOD, 0)},
)

whole, part, finer = ints("whole part finer")
lemma(
    f"{BUCKET}: Grid::span",
    "microseconds and parts are the units exactly, as long as these are a multiple of the grain",
    inputs=window_quota | {"units": units},
    given=[
        grain > 0,
        parts > 0,
        micro == parts * grain,
        units == whole * grain,
        units >= 0,
        div(micros, whole, parts),
        part == whole - micros * parts,
    ],
    domain=[limit == 3, period == 10**9, grain == 1000, parts == 3, units < 2**80, micros < EXACT],
    right=results(micros=micros, rest=part),
    claim=lambda it: And(it["micros"] * micro + it["rest"] * grain == units, between(0, it["rest"], parts)),
    broken={
        "the rest is in units": results(micros=micros, rest=part * grain),
        "the rest is rounded off": results(micros=micros, rest=0),
        "rounded up": results(micros=micros + 1, rest=part),
    },
)

# The bucket. A state is a time and its rest. The quotas whose prices have rests are three per second, and nearly the
# most that are possible per day, with a limit that has no divisor in common with a day.
due, price, capacity, price_rest, capacity_rest = ints("due price capacity price_rest capacity_rest")
full = now + capacity
micro_fields = [between(0, rest, price_rest, capacity_rest, parts), parts > 0]
bucket_inputs = quota | {"due": due, "rest": rest, "now": now, "cost": cost}
exact = lambda due, rest: due * parts + rest


def of(units, nanos, finest, token):
    """A quota whose microsecond has this many parts, and whose tokens cost this many."""
    return [
        limit == units,
        period == nanos,
        parts == finest,
        exact(price, price_rest) == cost * token,
        exact(capacity, capacity_rest) == burst * token,
        between(START, now, LAST),
        between(1, cost, burst + 1),
        between(1, burst, UNITS),
        burst * token < 2**50 * finest,
        due >= START,
        due < now + 2**50,
    ]


of_three = of(3, 10**9, 3, 10**6)
of_most = of(10**15 - 11, 86_400 * 10**9, 10**15 - 11, 86_400 * 10**6)
bucket_given = [
    *micro_fields,
    0 <= now,
    now < LAST,
    0 <= due,
    due < EXACT,
    0 <= price,
    exact(price, price_rest) > 0,
    exact(price, price_rest) <= exact(capacity, capacity_rest),
    capacity < MOST_FILL,
    parts <= MOST_PARTS,
]


def is_later(due, rest, other, other_rest):
    return Or(due > other, And(due == other, rest > other_rest))


def read(due=due, rest=rest, clamped_rest=None, paid_rest=0):
    """How a stored state counts: never below nothing, and never above a full bucket."""
    is_paid, is_future = due < now, is_later(due, rest, full, capacity_rest)
    clamped_rest = capacity_rest if clamped_rest is None else clamped_rest
    return If(is_paid, now, If(is_future, full, due)), If(is_paid, paid_rest, If(is_future, clamped_rest, rest))


def take(state=read(), carries=None, is_full=is_later, carry=1):
    due, rest = state
    next, next_rest = due + price, rest + price_rest
    carries = next_rest >= parts if carries is None else carries(next_rest)
    next, next_rest = If(carries, next + carry, next), If(carries, next_rest - parts, next_rest)
    admits = Not(is_full(next, next_rest, full, capacity_rest))
    return results(admitted=admits, due=If(admits, next, 0), rest=If(admits, next_rest, 0))


# In parts of a microsecond, and the result of `Gcra::decide`: a state from the future owes a full bucket.
in_units = least(greatest(exact(due, rest), now * parts), exact(full, capacity_rest))
after = in_units + exact(price, price_rest)
lemma(
    f"{LUA}/bucket_take.lua",
    "the script admits and keeps what `Gcra::decide` does, in numbers below 2^53",
    inputs=bucket_inputs,
    given=bucket_given,
    domain=of_most,
    right=take(),
    uses=[scaled(parts, price, capacity), scaled(parts, capacity + 1, price)]
    + [
        scaled(parts, low, high)
        for one in (due, now, full)
        for other in (now, full, due, due + price, now + price, full + price)
        for low, high in ((one, other), (one + 1, other), (one, other + 1))
    ],
    claim=lambda it: And(
        it["admitted"] == (after <= exact(full, capacity_rest)),
        Implies(it["admitted"], And(exact(it["due"], it["rest"]) == after, between(0, it["rest"], parts))),
        full + price + 1 < EXACT,
        rest + price_rest < EXACT,
    ),
    broken={
        "rests are not carried": take(carries=lambda _: False),
        "`>` for `>=`, where a rest is carried": take(carries=lambda rest: rest > parts),
        "the rest of the capacity is not compared": take(is_full=lambda due, _, full, __: due > full),
        "`>=` for `>`, where it is compared": take(
            is_full=lambda due, rest, full, full_rest: Or(due > full, And(due == full, rest >= full_rest))
        ),
        "nothing is carried for a whole rest": take(carry=0),
    },
)
# If a price is a whole number of microseconds, as for most quotas, there are no parts and no loop.
whole_price = [
    limit == 1,
    period % 1000 == 0,
    parts == 1,
    rest == 0,
    price_rest == 0,
    capacity_rest == 0,
    price * 1000 == cost * period,
    capacity * 1000 == burst * period,
    between(START, now, LAST),
    between(1, cost, burst + 1),
    between(1, period, CENTURY + 1),
    between(1, burst, 2**31),
    due >= START,
    due < now + 2**50,
]
counted_due = read()[0]


def take_whole(due=counted_due, admits=None, after=None):
    admits = due + price <= full if admits is None else admits
    after = due + price if after is None else after
    return results(admitted=admits, due=If(admits, after, 0), rest=0)


lemma(
    f"{LUA}/bucket_take.lua",
    "without rests, the script admits and keeps what `Gcra::decide` does, in numbers below 2^53",
    inputs=bucket_inputs,
    given=[*bucket_given, parts == 1, rest == 0, price_rest == 0, capacity_rest == 0],
    domain=whole_price,
    right=take_whole(),
    fixed=[period == 10**9, burst == 20],
    claim=lambda it: And(
        it["admitted"] == (greatest(least(due, full), now) + price <= full),
        Implies(it["admitted"], And(it["due"] == greatest(least(due, full), now) + price, it["due"] <= full)),
        full + price < EXACT,
    ),
    broken={
        "`<` for `<=`": take_whole(admits=counted_due + price < full),
        "the price is not compared": take_whole(admits=counted_due < full),
        "what is paid is charged on top of": take_whole(due=least(due, full)),
        "the debt is forgotten": take_whole(after=now + price),
    },
)
lemma(
    f"{LUA}/bucket_read.lua",
    "a state from the future counts as a full bucket, and one that is paid as none",
    inputs=bucket_inputs,
    given=bucket_given,
    domain=of_three,
    right=take(),
    uses=[
        scaled(parts, low, high)
        for low, high in (
            (due + 1, now),
            (now, due),
            (full + 1, due),
            (due + 1, full),
            (due, full),
            (full, due),
            (now, full),
            (full, now),
        )
    ],
    claim=lambda it: Implies(it["admitted"], exact(it["due"], it["rest"]) == after),
    broken={
        "a paid state is charged on top of": take((If(due > full, full, due), rest)),
        "the rest of what is paid is kept": take(read(paid_rest=rest)),
    },
)

# Windows. `left` is the rest of the window if the clock is in it, and a period if the clock was set back.
used, present, stored = ints("used present stored")
micro_window = {"limit": limit, "period": period}
window_given = [
    0 <= now,
    now < LAST,
    between(1, micros, MOST_PERIOD),
    period == micros * 1000,
    between(1, limit, UNITS),
    between(1, cost, limit + 1),
    div(present, now, micros),
    present >= 0,
    0 <= stored,
]
window_domain = [between(START, now, LAST), period <= CENTURY, stored < 2**50, (stored + 2) * micros < EXACT]


def fixed(stored=least(stored, present + 1), counts=None, admits=None):
    counts = stored >= present if counts is None else counts
    window, used_there = If(counts, stored, present), If(counts, used, 0)
    admits = used_there + cost <= limit if admits is None else admits(used_there)
    return results(admitted=admits, window=If(admits, window, 0), used=If(admits, used_there + cost, 0))


from_future = least(stored, present + 1)
lemma(
    f"{LUA}/fixed_window_take.lua",
    "the script admits and keeps what `FixedWindow::decide` does; a window from the future is the next",
    inputs=micro_window | {"window": stored, "used": used, "now": now, "cost": cost},
    given=[*window_given, between(0, used, UNITS)],
    domain=window_domain,
    right=fixed(),
    fixed=[micros == 10**6, limit > 2**49, stored > present - 5, stored < present + 5],
    claim=lambda it: And(
        it["admitted"] == (If(from_future < present, 0, used) + cost <= limit),
        Implies(
            it["admitted"],
            And(
                it["window"] == If(from_future < present, present, from_future),
                it["used"] == If(from_future < present, 0, used) + cost,
            ),
        ),
    ),
    broken={
        "a window from the future stays": fixed(stored),
        "`>` for `>=`: the present count is forgotten": fixed(counts=stored > present),
        "a count is kept after its window": fixed(counts=stored >= present - 1),
        "`>=` for `>`": fixed(admits=lambda used: used + cost < limit),
    },
)

previous, current, elapsed = ints("previous current elapsed")
left = micros - elapsed
weight, weight_down = ints("weight weight_down")
sliding_inputs = micro_window | {"window": window, "previous": previous, "current": current, "now": now, "cost": cost}
sliding_given = [
    between(1, micros, MOST_PERIOD),
    period == micros * 1000,
    between(0, elapsed, micros),
    between(0, previous, UNITS),
    between(0, current, UNITS),
    between(1, limit, UNITS),
    between(1, cost, limit + 1),
]
sliding_domain = [
    between(START, now, LAST),
    now == window * micros + elapsed,
    period <= CENTURY,
    window > 0,
    previous <= limit,
    current <= limit,
]


def sliding(weight, less=0):
    admits = current + cost + weight <= limit
    return results(admitted=admits, current=If(admits, current + cost, 0))


# The comparison in Rust, in units of 1/period of a request.
weighs = previous * left + (current + cost) * micros <= limit * micros
weighing = lambda weight: [
    scaled(micros, weight + current + cost, limit),
    scaled(micros, limit + 1, weight + current + cost),
]
lemma(
    f"{LUA}/sliding_window_take.lua",
    "the weight is exact where the product is below 2^52, and no value reaches 2^53",
    inputs=sliding_inputs,
    given=[
        *sliding_given,
        previous * left < 2**52,
        div_ceil(weight, previous * left, micros),
        div(weight_down, previous * left, micros),
    ],
    uses=[*weighing(weight), scaled(micros, previous + 1, weight), product(previous, previous, left, micros)],
    domain=sliding_domain,
    right=sliding(weight),
    fixed=[micros == 10**6 + 1, limit < 2**20, now < START + 2**40],
    claim=lambda it: And(it["admitted"] == weighs, previous * left < EXACT, current + cost + weight < EXACT),
    broken={"rounded down": sliding(weight_down), "always one more": sliding(weight_down + 1)},
)

# If the product is too large for a double, the script estimates the quotient in doubles, and computes exactly how much
# of the product the estimate leaves. For that, all four numbers are split in two, at 25 bits.
HALF = 2**25
estimate, to_go = ints("estimate to_go")
numbers = [previous, to_go, estimate, micros]
high = ints("previous_high to_go_high estimate_high micros_high")
low = ints("previous_low to_go_low estimate_low micros_low")
over_high = high[0] * high[1] - high[2] * high[3]
over_middle = high[0] * low[1] + low[0] * high[1] - high[2] * low[3] - low[2] * high[3]
over_low = low[0] * low[1] - low[2] * low[3]
over, rounded_product, up, up_low, down = ints("over rounded_product up up_low down")


def cut(one, other):
    """The product of two numbers, from the products of their halves."""
    of_halves = (high[one] * high[other] * HALF + (high[one] * low[other] + low[one] * high[other])) * HALF
    return instance(
        Implies(
            And(*(numbers[n] == high[n] * HALF + low[n] for n in (one, other))),
            numbers[one] * numbers[other] == of_halves + low[one] * low[other],
        )
    )


for general in (cut(0, 1), cut(2, 3)):
    assert check([Not(general)])[0] == unsat, "a lemma of halves"


def is_rounded(double, number):
    """A double next to a number."""
    return And(EXACT * (double - number) <= number, EXACT * (number - double) <= number)


def doubles(*of):
    """The quotient of these numbers, as computed in doubles."""
    return [previous == of[0], to_go == of[1], micros == of[2], estimate == int(float(of[0]) * of[1] / of[2])]


wide = [current > 2**40, now < START + 2**51]
between_two = [*doubles(779_152_014_841_378, 384_350_204_931_696, 585_810_621_992_099), *wide]
too_small = [*doubles(571_613_279_346_609, 324_267_178_970_705, 692_381_949_527_296), *wide]
exact_double = [*doubles(2**49, 2**40 + 2**20, 2**41), *wide]
half_products = [(a, b) for one, other in ((0, 1), (2, 3)) for a in (high[one], low[one]) for b in (high[other], low[other])]
lemma(
    f"{LUA}/sliding_window_take.lua",
    "the weight is exact from an estimate, and no value reaches 2^53",
    inputs=sliding_inputs | {"estimate": estimate},
    given=[
        between(0, *high, *low, HALF),
        *(number == a * HALF + b for number, a, b in zip(numbers, high, low)),
        between(1, micros, MOST_PERIOD),
        period == micros * 1000,
        between(1, to_go, micros + 1),
        between(0, previous, current, UNITS),
        between(1, limit, UNITS),
        between(1, cost, limit + 1),
        # The product and the quotient are rounded to doubles. The estimate is the whole number below.
        is_rounded(rounded_product, previous * to_go),
        EXACT * (estimate * micros) <= rounded_product * (EXACT + 1),
        EXACT * (estimate * micros + micros) > rounded_product * (EXACT - 1),
        over == (over_high * HALF + over_middle) * HALF + over_low,
        div_ceil(up, over, micros),
        div(down, over, micros),
        div_ceil(up_low, over - over_low, micros),
    ],
    uses=[
        cut(0, 1),
        cut(2, 3),
        product(previous, UNITS - 1, to_go, micros),
        *(product(a, HALF - 1, b, HALF - 1) for a, b in half_products),
        scaled(micros, estimate + up + current + cost, limit),
        scaled(micros, limit + 1, estimate + up + current + cost),
        scaled(micros, up, 0 - 1),
        scaled(micros, 3, up),
        scaled(micros, previous + 2, estimate),
    ],
    steps=[
        over == previous * to_go - estimate * micros,
        previous * to_go <= (UNITS - 1) * micros,
        2 * over < 3 * micros,
        2 * over > 0 - micros,
        And(over_low < 2**50, over_low > -(2**50), over_middle < 2**52, over_middle > -(2**52)),
        And(0 <= up, up <= 2),
        (estimate + up) * micros >= previous * to_go,
        (estimate + up) * micros < previous * to_go + micros,
    ],
    domain=[
        between(START, now, LAST),
        now == window * micros + micros - to_go,
        period <= CENTURY,
        window > 0,
        previous <= limit,
        current <= limit,
        previous * to_go >= 2**52,
    ],
    right=sliding(estimate + up),
    fixed=between_two,
    claim=lambda it: And(
        it["admitted"] == (previous * to_go + (current + cost) * micros <= limit * micros),
        # The sum on the way, and the multiple of the period above it.
        between(-EXACT, over_high * HALF, over_high * HALF + over_middle, over, over + micros, EXACT),
        between(0, estimate, 2**50),
        current + cost + estimate + up < EXACT,
    ),
    broken={
        "the estimate is taken": sliding(estimate),
        "rounded down": sliding(estimate + down),
        "always one more": (sliding(estimate + down + 1), *exact_double),
        "no more than one more": (sliding(estimate + If(over > 0, 1, 0)), *too_small),
        "the lower halves are left out": sliding(estimate + up_low),
    },
)
