"""The scripts on Redis. Lua's numbers are doubles: whole below 2^53, they are exact. So each lemma has two parts: that
no intermediate value reaches 2^53, and that the result is that of the algorithm in Rust.

Times are in microseconds, and what a bucket's rate leaves of one in `parts` of it: see `Grid`.
"""

from z3 import And, If, Implies, Not, Or

from lemma import CENTURY, between, div, div_ceil, greatest, ints, least, lemma, product, results, scaled

BUCKET = "src/store/redis/script/bucket.rs"
WINDOW = "src/store/redis/script/window.rs"
LUA = "src/store/redis/script/lua"

EXACT = 2**53
# A server's clock shows less until the year 2112, and no less than what the tests' servers begin at.
LAST, START = 2**52, 2**51
MOST_FILL, MOST_PERIOD = 2**51, 2**50

limit, period, burst, cost, now, units = ints("limit period burst cost now units")

# What fits.
micro, grain, parts, micros, rest, fill = ints("micro grain parts micros rest fill")
quota = {"limit": limit, "period": period, "burst": burst}
api = [between(1, limit, burst, 2**32), between(1, period, CENTURY + 1)]


def fits(bound):
    return results(fits=burst * period < bound * micro)


beyond = ints("beyond")[0]
lemma(
    f"{BUCKET}: Grid::check_fit",
    "no sum of a bucket that fits reaches 2^53: the time, what is owed, a price and a carry",
    inputs=quota,
    given=[*api, micro == 1000 * limit, between(0, now, LAST), div(fill, burst * period, micro)],
    domain=[],
    uses=[scaled(micro, MOST_FILL, fill), scaled(micro, fill, MOST_FILL - 1)],
    right=fits(MOST_FILL),
    claim=lambda it: Implies(it["fits"], now + fill + fill + 1 < EXACT),
    fixed=[limit == 3, burst > 10],
    broken={
        "up to 2^52": fits(2**52),
        "up to 2^53": fits(2**53),
        "of nanoseconds": results(fits=burst * period < MOST_FILL * 1000 * micro),
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
        between(1, limit, 2**32),
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

# The bucket. A state is a time and its rest; a quota of three per second has prices with rests.
due, price, capacity, price_rest, capacity_rest = ints("due price capacity price_rest capacity_rest")
full = now + capacity
micro_fields = [between(0, rest, price_rest, capacity_rest, parts), parts > 0]
bucket_inputs = quota | {"due": due, "rest": rest, "now": now, "cost": cost}
exact = lambda due, rest: due * parts + rest
of_three = [
    limit == 3,
    period == 10**9,
    parts == 3,
    exact(price, price_rest) == cost * 10**6,
    exact(capacity, capacity_rest) == burst * 10**6,
    between(START, now, LAST),
    between(1, cost, burst + 1),
    between(1, burst, 2**32),
    burst < 2**31,
    due >= START,
    due < now + 2**50,
]
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
    parts < 2**42,
]


def is_later(due, rest, other, other_rest):
    return Or(due > other, And(due == other, rest > other_rest))


def read(due=due, rest=rest, clamped_rest=None, paid_rest=0):
    """What a stored state counts as: no less than nothing, and no more than a full bucket."""
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


# In parts of a microsecond, and what `Gcra::decide` makes of them: a state from the future owes a full bucket.
in_units = least(greatest(exact(due, rest), now * parts), exact(full, capacity_rest))
after = in_units + exact(price, price_rest)
lemma(
    f"{LUA}/bucket_take.lua",
    "the script admits and keeps what `Gcra::decide` does, in numbers below 2^53",
    inputs=bucket_inputs,
    given=bucket_given,
    domain=of_three,
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
# Where a price is a whole number of microseconds, as it is for most quotas, there are no parts and no loop.
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

# Windows. `left` is what is left of the window when the clock is in it, and a period if it was set back.
used, present, stored = ints("used present stored")
micro_window = {"limit": limit, "period": period}
window_given = [
    0 <= now,
    now < LAST,
    between(1, micros, MOST_PERIOD),
    period == micros * 1000,
    between(1, limit, 2**32),
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
    given=[*window_given, between(0, used, 2**32)],
    domain=window_domain,
    right=fixed(),
    fixed=[micros == 10**6, limit < 100, stored > present - 5, stored < present + 5],
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
weight, weight_down, weight_low = ints("weight weight_down weight_low")
sliding_inputs = micro_window | {"window": window, "previous": previous, "current": current, "now": now, "cost": cost}
sliding_given = [
    between(1, micros, MOST_PERIOD),
    period == micros * 1000,
    between(0, elapsed, micros),
    between(0, previous, 2**32),
    between(0, current, 2**32),
    between(1, limit, 2**32),
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


# What Rust compares, in units of 1/period of a request.
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
    uses=weighing(weight),
    domain=sliding_domain,
    right=sliding(weight),
    fixed=[micros == 10**6 + 1, limit < 2**20, now < START + 2**40],
    claim=lambda it: And(it["admitted"] == weighs, previous * left < EXACT, current + cost + previous < EXACT),
    broken={"rounded down": sliding(weight_down), "always one more": sliding(weight_down + 1)},
)

# The long division: one step takes one more bit of `previous`. What was taken, `high`, is its bits so far.
high, bit, remainder, so_far, times = ints("high bit remainder so_far times")


def step(doubled=2, bit_weight=1, weight_doubled=2, rounded=1):
    """The last step of the loop, after the others were right: `times` is what it adds to the weight."""
    over = remainder * doubled + If(bit == 1, left * bit_weight, 0)
    return over, lambda times: so_far * weight_doubled + times + If(over > times * micros, rounded, 0)


right_over, right_weight = step()
times_of = {"once": ints("times_once")[0], "late": ints("times_late")[0]}
once_over, once_weight = step(doubled=1)
late_over, late_weight = step(bit_weight=2)
lemma(
    f"{LUA}/sliding_window_take.lua",
    "the weight is exact by long division, and no value reaches 2^53",
    inputs=sliding_inputs,
    given=[
        *sliding_given,
        between(0, bit, 2),
        high >= 0,
        previous == 2 * high + bit,
        between(0, remainder, micros),
        so_far * micros + remainder == high * left,
        so_far >= 0,
        div(times, right_over, micros),
        div(times_of["once"], once_over, micros),
        div(times_of["late"], late_over, micros),
        div_ceil(weight_low, least(previous, 2**31 - 1) * left, micros),
    ],
    uses=[*weighing(right_weight(times)), product(high, high, left, micros), scaled(micros, high + 1, so_far)],
    steps=[
        (2 * so_far + times) * micros + (right_over - times * micros) == previous * left,
        right_over < 2**52,
        left * 2 < EXACT,
        so_far <= high,
        between(0, right_over - times * micros, micros),
    ],
    domain=[*sliding_domain, previous * left >= 2**52],
    fixed=[micros == 2**49 + 12_345, now == START + 2**48, limit == 2**32 - 1, previous > 2**31],
    right=sliding(right_weight(times)),
    claim=lambda it: it["admitted"] == weighs,
    broken={
        "what is left is not doubled": sliding(once_weight(times_of["once"])),
        "the bit is added before doubling": sliding(late_weight(times_of["late"])),
        "the weight is not doubled": sliding(step(weight_doubled=1)[1](times)),
        "rounded down": sliding(step(rounded=0)[1](times)),
        "the last bit is left out": sliding(so_far + If(remainder > 0, 1, 0)),
        "the first bit is left out": sliding(weight_low),
    },
)
