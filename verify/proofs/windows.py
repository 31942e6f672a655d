"""Windows: fixed and sliding ones, and their form in 36 bits of a word."""

from z3 import And, BitVec, BitVecVal, If, Implies, LShR, Not, Or, UGE, UGT, ULE, ULT, ZeroExt

from lemma import CENTURY, UNITS, between, div, div_ceil, ints, lemma, product, results, saturating_sub, scaled

FIXED = "src/algorithm/fixed_window.rs: FixedWindow::decide"
SLIDING = "src/algorithm/sliding_window.rs: SlidingWindow::decide"
WINDOWS = "src/store/memory/table/windows/mod.rs"
RULE = "src/store/memory/table/windows/rule.rs"

limit, period, window, now, cost = ints("limit period window now cost")
api = [between(1, limit, UNITS), between(1, period, CENTURY + 1), between(1, cost, limit + 1), between(0, now, 2**63)]

# Fixed windows.
used, present = ints("used present")
counts_on = window >= present
own = If(counts_on, window, present)
of_own = If(counts_on, used, 0)


def fixed(window=own, used=of_own, admits=None, wait=None):
    admits = used + cost <= limit if admits is None else admits
    wait = (window + 1) * period - now if wait is None else wait
    return results(
        admitted=admits, window=If(admits, window, 0), used=If(admits, used + cost, 0), wait=If(admits, 0, wait)
    )


fixed_parts = dict(
    inputs={"limit": limit, "period": period, "window": window, "used": used, "now": now, "cost": cost},
    given=[
        period > 0,
        limit > 0,
        between(1, cost, limit + 1),
        used >= 0,
        window >= 0,
        now >= 0,
        div(present, now, period),
        present >= 0,
    ],
    domain=[*api, used < UNITS, (window + 2) * period < 2**64, used > 0],
    right=fixed(),
)
newer = If(window > present, window, present)
lemma(
    FIXED,
    "what fits in the limit beside what counts is admitted, and nothing else; what was used in a later window counts",
    **fixed_parts,
    claim=lambda it: And(
        it["admitted"] == (If(window < present, 0, used) <= limit - cost),
        Implies(it["admitted"], And(it["used"] <= limit, it["window"] >= window)),
    ),
    broken={
        "the count of the present window is forgotten": fixed(newer, If(window > present, used, 0)),
        "a count is kept after its window": fixed(used=used),
        "a later window is forgotten": fixed(present, If(window == present, used, 0)),
        "`<` for `<=`": fixed(admits=of_own + cost < limit),
        "the cost is not compared": fixed(admits=of_own <= limit),
    },
)
lemma(
    FIXED,
    "the wait is exact: the next window begins after it, and no nanosecond earlier",
    **fixed_parts,
    claim=lambda it: Implies(
        Not(it["admitted"]), And(now + it["wait"] >= (own + 1) * period, now + it["wait"] - 1 < (own + 1) * period)
    ),
    broken={
        "a period": fixed(wait=period),
        "until the clock's own window ends": fixed(wait=(present + 1) * period - now),
        "a nanosecond more": fixed(wait=(own + 1) * period - now + 1),
    },
)

# Sliding windows. `elapsed` of the window has passed, and the state is rolled to it.
previous, current, elapsed = ints("previous current elapsed")
left = period - elapsed
after = current + cost


def weighs(previous, elapsed, current):
    """The estimate is at most the limit."""
    return previous * (period - elapsed) + current * period <= limit * period


def sliding(admits=weighs(previous, elapsed, after)):
    return results(admitted=admits, current=If(admits, after, 0))


sliding_inputs = {
    "limit": limit,
    "period": period,
    "window": window,
    "previous": previous,
    "current": current,
    "now": now,
    "cost": cost,
}
sliding_given = [
    period > 0,
    limit > 0,
    between(1, cost, limit + 1),
    between(0, previous, limit + 1),
    between(0, current, limit + 1),
    between(0, elapsed, period),
]
sliding_domain = [*api, window > 0, now == window * period + elapsed]
others, windows, length = ints("others windows length")
lemma(
    SLIDING,
    "in every interval, at most limit + rate × length is admitted",
    inputs=sliding_inputs | {"others": others, "windows": windows, "length": length},
    # `others` were admitted in this many whole windows before the previous one.
    given=[*sliding_given, windows >= 0, 0 <= others, others <= limit * windows, length >= windows * period + elapsed],
    uses=[
        scaled(period, others, limit * windows),
        scaled(elapsed, previous, limit),
        scaled(limit, windows * period + elapsed, length),
    ],
    domain=sliding_domain,
    right=sliding(),
    fixed=[period < 100, limit < 100, window == 5, windows == 1, others == limit],
    claim=lambda it: Implies(
        it["admitted"], (others + previous + it["current"]) * period <= limit * period + limit * length
    ),
    broken={
        "as fixed windows are": sliding(after <= limit),
        "the previous count weighs as much as has passed": sliding(
            previous * elapsed + after * period <= limit * period
        ),
        "what the previous count weighs is rounded down": sliding(
            previous * left + after * period < limit * period + period
        ),
        "the cost is not compared": sliding(weighs(previous, elapsed, current)),
    },
)
lemma(
    SLIDING,
    "what fits is admitted: the whole limit, where nothing counts",
    inputs=sliding_inputs,
    given=[*sliding_given],
    domain=sliding_domain,
    right=sliding(),
    fixed=[period < 100, limit < 100, window == 5],
    claim=lambda it: And(
        Implies(And(previous == 0, after <= limit), it["admitted"]), Implies(previous + after <= limit, it["admitted"])
    ),
    uses=[product(previous, previous, elapsed, period), product(period, period, limit - previous - after, limit)],
    broken={
        "`<` for `<=`": sliding(previous * left + after * period < limit * period),
        "the previous count weighs twice": sliding(2 * previous * left + after * period <= limit * period),
    },
)

# The wait: in this window, or until this one is the previous one and has decayed.
kept, kept_later, kept_up, kept_later_up, room = ints("kept kept_later kept_up kept_later_up room")
is_now = after <= limit


def waits(kept, kept_later, is_now=is_now):
    return results(wait=If(is_now, left - kept, left + period - kept_later))


def fits_at(wait):
    there, next = elapsed + wait, elapsed + wait - period
    return If(there < period, weighs(previous, there, after), If(next < period, weighs(current, next, cost), True))


wait_given = [
    *sliding_given,
    Not(weighs(previous, elapsed, after)),
    previous >= 0,
    current >= 0,
    Implies(
        is_now,
        And(
            previous > 0,
            div(kept, (limit - after) * period, previous),
            div_ceil(kept_up, (limit - after) * period, previous),
        ),
    ),
    Or(is_now, current > 0),
    Implies(
        current > 0,
        And(
            div(kept_later, (limit - cost) * period, current), div_ceil(kept_later_up, (limit - cost) * period, current)
        ),
    ),
]
lemma(
    SLIDING,
    "the wait is exact: admitted after it, and rejected a nanosecond earlier",
    inputs=sliding_inputs,
    given=wait_given,
    domain=sliding_domain,
    right=waits(kept, kept_later),
    fixed=[period < 100, limit < 100, window == 5],
    uses=[
        product(kept, kept, previous, previous),
        product(kept_later, kept_later, current, current),
        scaled(period, current - limit + cost, 0),
        scaled(period, 1, current - limit + cost),
        scaled(current, period, kept_later),
        scaled(previous, period, kept),
        scaled(previous, kept, 0 - 1),
        scaled(current, kept_later, 0 - 1),
    ],
    claim=lambda it: And(fits_at(it["wait"]), Not(fits_at(it["wait"] - 1))),
    broken={
        "rounded down": waits(kept_up, kept_later_up),
        "always the next window": (waits(kept, kept_later, False), current > 0, limit < 100, period < 100, window == 5),
        "a nanosecond more": waits(kept - 1, kept_later - 1),
    },
)

# The table's form. `scale` is 2^shift, and the reciprocal is 2^64 times `scale` over the period, rounded down. For a
# period that is a power of two, it is the greatest 64-bit number.
scale, reciprocal, nanos, estimate = ints("scale reciprocal nanos estimate")
TOP = 2**64
one = TOP * scale
error = one - reciprocal * period
reciprocal_given = [
    scale > 0,
    scale <= period,
    period < 2 * scale,
    1 <= error,
    error <= period,
    between(1, reciprocal, TOP),
]
reciprocal_domain = [
    Or(*(And(period == number, scale == 1 << (number.bit_length() - 1)) for number in (3, 7, 8, 1000, 60 * 10**9)))
]
estimate_error = nanos * reciprocal - estimate * one
rest = nanos - estimate * period


def quotient(window):
    return results(window=window)


lemma(
    f"{WINDOWS}: Windows::window_of",
    "the number of a window is the exact quotient",
    inputs={"period": period, "now": nanos},
    given=[*reciprocal_given, between(0, nanos, TOP), between(0, estimate_error, one)],
    uses=[
        product(nanos, TOP - 1, error, period),
        product(estimate_error, one - 1, period, period),
        scaled(one, 2 * period, rest),
        scaled(one, rest, 0 - 1),
    ],
    steps=[
        one * rest == nanos * error + estimate_error * period,
        one >= TOP,
        scaled(period, TOP, one),
        one * rest < 2 * one * period,
        0 <= rest,
        rest < 2 * period,
    ],
    domain=reciprocal_domain,
    right=quotient(If(rest < period, estimate, estimate + 1)),
    claim=lambda it: And(it["window"] * period <= nanos, nanos < it["window"] * period + period),
    broken={
        "the estimate is not corrected": quotient(estimate),
        "corrected too late": quotient(If(rest <= period, estimate, estimate + 1)),
        "always corrected": quotient(estimate + 1),
    },
)

count, share, high = ints("count share estimate_of_share")
share_error = left * reciprocal - share * scale
high_error = count * share - high * TOP
over = count * left - high * period
area = scale * period


def carried(weight):
    return results(carried=weight)


lemma(
    f"{WINDOWS}: Windows::carried",
    "what the previous count weighs is the exact share, rounded up",
    inputs={"period": period, "count": count, "window": window, "now": now},
    given=[
        *reciprocal_given,
        between(1, count, 2**32),
        between(0, elapsed, period),
        between(0, share_error, scale),
        between(0, high_error, TOP),
        share >= 0,
        high >= 0,
    ],
    uses=[
        product(left, period, error, period),
        product(count, 2**32 - 1, left * error, period * period),
        scaled(period, period, 2 * scale),
        scaled(2**32 - 1, period * period, 2 * area),
        product(high_error, TOP - 1, area, area),
        product(share_error, scale, period, period),
        product(count, 2**32 - 1, share_error * period, area),
        scaled(one, 2 * period, over),
        scaled(one, over, 0 - 1),
        product(scale, scale, period, period),
    ],
    steps=[
        one * over == count * (left * error) + high_error * area + count * (share_error * period),
        left * error <= period * period,
        share_error * period <= area,
        area > 0,
        one * over >= 0,
        one * over <= (2**32 - 1) * 2 * area + (TOP - 1) * area + (2**32 - 1) * area,
        one * over < 2 * TOP * area,
        0 <= over,
        over < 2 * period,
    ],
    domain=[*reciprocal_domain, window == 5, now == window * period + elapsed],
    right=carried(high + If(over > 0, 1, 0) + If(over > period, 1, 0)),
    claim=lambda it: And(it["carried"] * period >= count * left, (it["carried"] - 1) * period < count * left),
    broken={
        "rounded down": carried(high + If(over >= period, 1, 0)),
        # Such inputs are too rare to be found, so we compute them, with the inverse of the count modulo the period.
        "the estimate is not corrected": (
            carried(high + If(over > 0, 1, 0)),
            period == 60 * 10**9,
            count == 3_242_996_797,
            left == 34_937_658_133,
        ),
        "`>=` for `>`": carried(high + If(over > 0, 1, 0) + If(over >= period, 1, 0)),
    },
)

weight, weight_down = ints("weight weight_down")


def judge(weight=weight, admits=None):
    return results(admitted=weight + after <= limit if admits is None else admits)


lemma(
    f"{RULE}: WindowRule::judge",
    "with the share rounded up, a word is judged exactly as the sliding window judges its state",
    inputs=sliding_inputs,
    given=[*sliding_given, div_ceil(weight, previous * left, period), div(weight_down, previous * left, period)],
    uses=[scaled(period, weight + after, limit), scaled(period, limit + 1, weight + after)],
    domain=[*sliding_domain, limit < 2**16, period >= 5 * 10**9],
    fixed=[limit < 100, period == 6 * 10**9, window == 5],
    right=judge(),
    claim=lambda it: it["admitted"] == weighs(previous, elapsed, after),
    broken={
        "rounded down": judge(weight_down),
        "`<` for `<=`": judge(admits=weight + after < limit),
        "the previous count weighs all of itself": judge(previous),
    },
)

# `over` of `count` must decay, and `room` may stay.
decays, decays_down, whole = ints("decays decays_down whole")
decay_given = [
    period > 0,
    between(1, count, 2**32),
    between(0, room, count),
    between(0, elapsed, period),
    count * left > room * period,
    div_ceil(decays, (count - room) * period - elapsed * count, count),
    div(decays_down, (count - room) * period - elapsed * count, count),
    div_ceil(whole, (count - room) * period, count),
]
enough = lambda wait: count * (left - wait) <= room * period
lemma(
    f"{WINDOWS}: Windows::decay",
    "the wait until a count weighs little enough is exact",
    inputs={"period": period, "count": count, "room": room, "window": window, "now": now},
    given=decay_given,
    domain=[between(1, period, CENTURY + 1), window == 5, now == window * period + elapsed],
    fixed=[period < 100, count < 100],
    right=results(wait=decays),
    claim=lambda it: And(enough(it["wait"]), Not(enough(it["wait"] - 1))),
    broken={
        "rounded down": results(wait=decays_down),
        "from the beginning of the window": results(wait=whole),
        "a nanosecond more": results(wait=decays + 1),
    },
)

# The word.
bits, kept_counts = BitVec("count_bits", 64), BitVec("counts", 64)
number, first, second = BitVec("window", 64), BitVec("previous", 64), BitVec("current", 64)
ONE, ALL = BitVecVal(1, 64), BitVecVal(2**64 - 1, 64)


def stamped(previous_at=bits, window_at=bits * kept_counts):
    return (number << window_at) | (first << previous_at) | second


def unpacked(stamp, mask=ALL >> 0, of=bits):
    field = lambda at: LShR(stamp, at) & LShR(ALL, 64 - of)
    # A fixed window keeps one count: above it is the window.
    return {
        "window": LShR(stamp, bits * kept_counts),
        "previous": If(kept_counts == 2, field(bits), 0),
        "current": field(0),
    }


lemma(
    f"{RULE}: WindowRule::stamp",
    "a stamp holds the window and its counts: none reaches into another",
    inputs={"counts": kept_counts, "count_bits": bits, "window": number, "previous": first, "current": second},
    given=[
        Or(And(kept_counts == 1, first == 0, ULE(bits, 32)), And(kept_counts == 2, ULE(bits, 16))),
        UGE(bits, 1),
        ULT(first, ONE << bits),
        ULT(second, ONE << bits),
        number == LShR(number << (bits * kept_counts), bits * kept_counts),
    ],
    # There are fewer than 2^32 epochs.
    domain=[ULT(number, 2**20)],
    right=unpacked(stamped()),
    claim=lambda it: And(it["window"] == number, it["previous"] == first, it["current"] == second),
    broken={
        "the previous count begins a bit too low": unpacked(stamped(previous_at=bits - 1)),
        "the window begins a bit too low": unpacked(stamped(window_at=bits * kept_counts - 1)),
        "a count is read with a bit too many": unpacked(stamped(), of=bits + 1),
        "a count is read with a bit too few": unpacked(stamped(), of=bits - 1),
    },
)

earliest, all_counts = BitVec("earliest", 64), BitVec("all_count_bits", 64)
index_bits = 36 - all_counts
epoch = ONE << (index_bits - 4)


def ahead(farthest=6, of=index_bits, is_far=UGT):
    mask = LShR(ALL, 64 - index_bits)
    distance = ((number & mask) - earliest) & LShR(ALL, 64 - of)
    is_none = is_far(distance, farthest * epoch)
    return {"counts": Not(is_none), "ahead": If(is_none, 0, distance)}


lemma(
    f"{WINDOWS}: Windows::ahead",
    "an index up to six epochs ahead, or less than ten behind, is read as what it is",
    inputs={"window": number, "count_bits": all_counts, "earliest": earliest},
    given=[
        ULE(all_counts, 32),
        ULT(number, 2**63),
        ULT(earliest, 2**63),
        If(UGE(number, earliest), ULE(number - earliest, 6 * epoch), ULT(earliest - number, 10 * epoch)),
    ],
    domain=[UGE(all_counts, 1)],
    right=ahead(),
    claim=lambda it: And(
        it["counts"] == UGE(number, earliest), it["ahead"] == If(UGE(number, earliest), number - earliest, 0)
    ),
    broken={
        "up to five are ahead": ahead(5),
        "up to seven are ahead": ahead(7),
        "`>=` for `>`": ahead(is_far=UGE),
        "a bit of the index too few": ahead(of=index_bits - 1),
    },
)
