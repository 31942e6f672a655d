"""Units that processes take from a shared budget in advance. The server has charged them all, and never beyond its
limit. So it remains to prove that no lease spends, returns or refunds more than it was granted.

`others` is the number of units that all other leases hold or have spent, in any number of processes. Together with the
units that this lease was granted, they are at most the units charged.
"""

from z3 import And, If, Implies, Not

from lemma import UNITS, between, div, ints, least, lemma, product, results, scaled

FILE = "src/store/remote/leases.rs"

granted, left, spent, others, charged, limit, cost = ints("granted left spent others charged limit cost")
since, lifetime, reset, of_window, now = ints("since lifetime reset of_window now")
lease = {
    "granted": granted,
    "left": left,
    "cost": cost,
    "since": since,
    "lifetime": lifetime,
    "reset": reset,
    "of_window": of_window,
    "now": now,
}
end = since + If(of_window == 1, least(lifetime, reset), lifetime)
given = [
    between(0, left, granted + 1),
    0 <= spent,
    spent + left <= granted,
    0 <= others,
    others + granted * cost <= charged,
    charged <= limit,
    cost > 0,
    lifetime > 0,
    reset >= 0,
    between(0, of_window, 2),
    0 <= since,
]
domain = [
    granted <= 1024,
    cost < UNITS,
    limit < UNITS,
    between(since, now, 2**62),
    lifetime < 2**60,
    reset < 2**60,
    since < 2**60,
]
is_over = now >= end


def within_limit(spent, left):
    """In all processes, the units that are spent and those that may still be."""
    return And(left >= 0, spent >= 0, others + (spent + left) * cost <= limit)


in_units = [scaled(cost, spent + left, granted)]


def spend(stops=is_over, takes=1, has=left > 0):
    pays = And(has, Not(stops))
    return results(paid=pays, left=If(pays, left - takes, left))


lemma(
    f"{FILE}: Leases::spend_from",
    "what is spent and held, of all processes, is never more than the limit",
    inputs=lease,
    given=given,
    domain=domain,
    right=spend(),
    uses=in_units,
    claim=lambda it: within_limit(spent + If(it["paid"], 1, 0), it["left"]),
    fixed=[granted < 10, lifetime == 10**9, reset == 10**9, since == 5, cost < 10],
    broken={"nothing is taken for it": spend(takes=0), "an empty lease pays": spend(has=True)},
)
lemma(
    f"{FILE}: Leases::spend_from",
    "nothing is spent later than a lifetime after it was charged, nor in another window",
    inputs=lease,
    given=given,
    domain=domain,
    right=spend(),
    fixed=[granted < 10, lifetime == 10**9, since == 5, cost < 10, left > 0, reset < 2 * 10**9],
    # It was charged when the call was made at `since`, or later.
    claim=lambda it: Implies(it["paid"], And(now < since + lifetime, Implies(of_window == 1, now < since + reset))),
    broken={
        "at its end as well": spend(now > end),
        "whatever its window": spend(now >= since + lifetime),
        "as long as its window": spend(now >= since + If(of_window == 1, reset, lifetime)),
        "for ever": spend(False),
    },
)


def give_back(stops=is_over, most=granted):
    return results(left=If(And(left < most, Not(stops)), left + 1, left))


lemma(
    f"{FILE}: Leases::return_to_lease",
    "a request that is returned, even twice, leaves no more than the lease was granted",
    inputs=lease,
    given=given,
    domain=domain,
    right=give_back(),
    uses=in_units,
    fixed=[granted < 10, lifetime == 10**9, reset == 10**9, since == 5, cost < 10],
    claim=lambda it: And(it["left"] <= granted, Implies(spent > 0, within_limit(spent - 1, it["left"]))),
    broken={"without a bound": give_back(most=granted + 10**6), "one too many": give_back(most=granted + 1)},
)
lemma(
    f"{FILE}: Leases::return_to_lease",
    "a lease that has ended takes nothing back",
    inputs=lease,
    given=given,
    domain=domain,
    right=give_back(),
    fixed=[granted < 10, lifetime == 10**9, reset == 10**9, since == 5, cost < 10],
    claim=lambda it: Implies(it["left"] > left, now < end),
    broken={"it does": give_back(stops=False), "at its end": give_back(stops=now > end)},
)


remaining, size, most, half, whole, rounded = ints("remaining size most half whole rounded")


def next_action(refunds=left, keeps=0, affordable=half, stops=is_over):
    wanted = If(size == 0, 1, 2 * size)
    more = least(least(wanted, most), affordable)
    return results(refunded=If(stops, refunds, 0), left=If(stops, keeps, left), more=If(stops, 0, more))


action = lease | {"remaining": remaining, "size": size, "most": most}
action_given = [
    *given,
    between(0, remaining, UNITS),
    between(0, size, 1025),
    between(1, most, 1025),
    2 * half * cost <= remaining,
    remaining < 2 * (half + 1) * cost,
    whole * cost <= remaining,
    remaining < (whole + 1) * cost,
    half >= 0,
    whole >= 0,
    rounded == half + 1,
]
lemma(
    f"{FILE}: Leases::next_action",
    "what is refunded is not held any more",
    inputs=action,
    given=action_given,
    domain=domain,
    right=next_action(),
    uses=in_units,
    fixed=[granted < 10, lifetime == 10**9, reset == 10**9, since == 5, cost < 10, remaining < 100, size < 10],
    # The refund lowers the charge, and with it the units that this lease was granted.
    claim=lambda it: And(it["refunded"] >= 0, spent + it["left"] + it["refunded"] <= granted),
    broken={
        "it is still held": next_action(keeps=left),
        "all that was granted is refunded": next_action(refunds=granted),
    },
)
lemma(
    f"{FILE}: Leases::next_action",
    "no more is taken in advance than half of what is left, and nothing beside a refund",
    inputs=action,
    given=action_given,
    domain=domain,
    right=next_action(),
    uses=[scaled(cost, If(is_over, 0, least(least(If(size == 0, 1, 2 * size), most), half)), half)],
    fixed=[granted < 10, lifetime == 10**9, reset == 10**9, since == 5, cost < 10, remaining < 100, size < 10],
    claim=lambda it: And(
        2 * it["more"] * cost <= remaining, Implies(it["refunded"] > 0, it["more"] == 0), it["more"] <= most
    ),
    broken={"all of it": next_action(affordable=whole), "rounded up": next_action(affordable=rounded)},
)
