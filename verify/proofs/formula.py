"""Waits when several limits decide on a request: until all have room, or until any has.

A part has room from one instant on. That instant is known, or unknown until a unit is released, or there is no such
instant. A part's measure is a pair of numbers: 0 and the wait, 1 and 0, or 2 and 0. Such pairs are compared like texts.
Two parts suffice, because the greatest of several parts is the greater one of the first and the greatest of the rest.
"""

from z3 import And, If, Implies, Not, Or

from lemma import between, ints, lemma, results

FILE = "src/values/formula.rs"

KNOWN, UNKNOWN, NEVER = range(3)

kind, wait, released, other_kind, other_wait, other_released, at = ints(
    "kind wait released other_kind other_wait other_released at"
)
one, other = (kind, wait), (other_kind, other_wait)
inputs = {
    "kind": kind,
    "wait": wait,
    "released": released,
    "other_kind": other_kind,
    "other_wait": other_wait,
    "other_released": other_released,
    "at": at,
}
given = [
    between(KNOWN, kind, other_kind, NEVER + 1),
    between(0, wait, released, other_wait, other_released, at, 2**64),
    Implies(kind != KNOWN, wait == 0),
    Implies(other_kind != KNOWN, other_wait == 0),
]


def has_room(part, released):
    """Whether a part has room at `at`."""
    kind, wait = part
    return And(kind != NEVER, at >= If(kind == KNOWN, wait, released))


def is_less(one, other):
    return Or(one[0] < other[0], And(one[0] == other[0], one[1] < other[1]))


def chosen(takes_other):
    return [If(takes_other, mine, its) for its, mine in zip(one, other, strict=True)]


def all_of(takes_other):
    kind, wait = chosen(takes_other)
    return results(all_kind=kind, all_wait=wait)


def any_of(takes_other):
    kind, wait = chosen(takes_other)
    return results(any_kind=kind, any_wait=wait)


both = And(has_room(one, released), has_room(other, other_released))
either = Or(has_room(one, released), has_room(other, other_released))
is_known = And(kind == KNOWN, other_kind == KNOWN)
is_open = Or(kind == UNKNOWN, other_kind == UNKNOWN)
# An unknown part goes behind one that never has room.
is_less_by_release = Or(
    And(kind == NEVER, other_kind == UNKNOWN), And(is_less(one, other), Not(And(kind == UNKNOWN, other_kind == NEVER)))
)

lemma(
    f"{FILE}: Formula::combine",
    "all have room exactly from the wait on; never, if one never has; it is unknown only if one is",
    inputs=inputs,
    given=given,
    right=all_of(is_less(one, other)),
    claim=lambda it: And(
        Implies(it["all_kind"] == KNOWN, both == (at >= it["all_wait"])),
        Implies(it["all_kind"] == NEVER, Not(both)),
        Implies(it["all_kind"] == UNKNOWN, And(is_open, kind != NEVER, other_kind != NEVER)),
    ),
    broken={
        "the least": all_of(is_less(other, one)),
        "the first": all_of(False),
        "what is released may be never": all_of(is_less_by_release),
        "waits alone are compared": all_of(wait < other_wait),
    },
)
lemma(
    f"{FILE}: Formula::combine",
    "one of any has room from the wait on, and not before if all are known; never, if each never has; it is unknown "
    "only if one is, and none is known",
    inputs=inputs,
    given=given,
    right=any_of(is_less(other, one)),
    claim=lambda it: And(
        Implies(it["any_kind"] == KNOWN, Implies(at >= it["any_wait"], either)),
        Implies(is_known, either == (at >= it["any_wait"])),
        Implies(it["any_kind"] == NEVER, And(Not(either), kind == NEVER, other_kind == NEVER)),
        Implies(it["any_kind"] == UNKNOWN, And(is_open, kind != KNOWN, other_kind != KNOWN)),
    ),
    broken={
        "the greatest": any_of(is_less(one, other)),
        "the first": any_of(False),
        "never goes before what is released": any_of(
            Or(And(kind == UNKNOWN, other_kind == NEVER), And(is_less(other, one), other_kind != UNKNOWN))
        ),
        "waits alone are compared": any_of(other_wait < wait),
    },
)
