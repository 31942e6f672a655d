"""Lemmas, and how they are proved.

A lemma is about one function in the sources. `right` has the function's results as formulas over its inputs. The claim
about them is negated and given to Z3. If there is no counterexample, the claim is proved. Each entry in `broken` is the
function with one mistake. It must have a counterexample, because the claim would say nothing otherwise.

`given` has the facts about the inputs that the proof needs, and `domain` the other promises that the Rust API makes. A
proof without `domain` is stronger, but a counterexample must be within it, because we feed it to the Rust code.
"""

import sys

from z3 import And, BoolRef, If, Implies, Int, IntVal, Not, Solver, is_true, sat, unsat

LEMMAS = []

# The solver's own steps, and not time, so that a proof that succeeds on one machine succeeds on another, busy one.
MOST_STEPS = 40_000_000

CENTURY = 100 * 366 * 86_400 * 10**9

# Limits, bursts and counts are below this, which is `Quota::MAX_UNITS` + 1.
UNITS = 10**15


class Lemma:
    def __init__(
        self, subject, of, says, inputs, claim, right, broken, given=(), domain=(), uses=(), steps=(), fixed=()
    ):
        self.of, self.says, self.inputs, self.claim = of, says, inputs, claim
        self.right, self.broken = right, dict(broken)
        # `uses` has instances of `product` and `scaled`, which are proved once. `steps` are proved first, each from
        # those before, and then used, because we find nonlinear proofs by hand.
        self.given, self.domain, self.steps = list(given), list(domain), list(steps)
        self.uses = list(uses)
        assert all(
            any(use is fact for fact in PROVED) for use in self.uses
        ), "`uses` has products and inequalities alone"
        # Values for some inputs, which make the search for counterexamples easy: for all variants, and for one variant.
        self.fixed, self.hints = list(fixed), {}
        for variant, formulas in broken.items():
            if isinstance(formulas, tuple):
                self.broken[variant], self.hints[variant] = formulas[0], list(formulas[1:])
        self.subject = subject
        LEMMAS.append(self)

    def name(self):
        return f"{self.of}: {self.says}"

    def problem(self):
        """Returns why the lemma is not proved, or None if it is."""
        known = [*self.given, *self.uses]
        for number, step in enumerate([*self.steps, self.claim(self.right)], 1):
            result, model = check([*known, Not(step)])
            if result != unsat:
                what = "the claim" if number > len(self.steps) else f"step {number}"
                return f"{what} is not proved: {result} {model}"
            known.append(step)
        # From a contradiction, anything could be proved. But each counterexample shows that the premises can hold.
        return None if self.broken else "no broken variant"

    def counterexample(self, variant):
        """Returns inputs for which the claim fails for a broken variant, with both results, or None if none are
        found."""
        broken, hints = self.broken[variant], self.hints.get(variant, self.fixed)
        result, model = check([*self.given, *self.domain, *hints, Not(self.claim(broken)), differ(self.right, broken)])
        if result != sat:
            return None

        def values(terms):
            return {name: value(model.eval(term, model_completion=True)) for name, term in terms.items()}

        return {"inputs": values(self.inputs), "right": values(self.right), "broken": values(broken)}

    def still_holds(self, variant, found):
        """Whether an earlier counterexample still is one, and its results agree with the formulas."""
        broken = self.broken[variant]
        inputs = [self.inputs[name] == value for name, value in found["inputs"].items()]
        if set(found["inputs"]) != set(self.inputs) or set(found["right"]) != set(self.right):
            return False
        if found["right"] == found["broken"] or set(found["broken"]) != set(broken):
            return False
        # The values that make the search easy also define the parts that only this variant has.
        known = [*self.given, *self.domain, *self.hints.get(variant, []), *inputs]
        # For these inputs, the results are these and no others.
        for terms, results in ((self.right, found["right"]), (broken, found["broken"])):
            if check([*known, Not(And(*(terms[name] == value for name, value in results.items())))])[0] != unsat:
                return False
        return check([*known, Not(self.claim(broken))])[0] == sat


def lemma(of, says, **parts):
    """States a lemma. Its subject is the file that calls this."""
    return Lemma(sys._getframe(1).f_globals["__name__"], of, says, **parts)


def check(constraints):
    solver = Solver()
    solver.set("rlimit", MOST_STEPS)
    solver.add(*constraints)
    result = solver.check()
    return result, solver.model() if result == sat else None


def differ(one, other):
    return Not(And(*(one[name] == other[name] for name in one)))


def value(term):
    if isinstance(term, BoolRef):
        return is_true(term)
    return term.as_long()


def ints(names):
    return [Int(name) for name in names.split()]


def greatest(a, b):
    return If(a > b, a, b)


def least(a, b):
    return If(a < b, a, b)


def saturating_sub(a, b):
    return greatest(a - b, 0)


def div(quotient, dividend, divisor):
    """Makes `quotient` the dividend over the divisor, rounded down, without a division, because Z3 is slow at those."""
    return And(quotient * divisor <= dividend, dividend < quotient * divisor + divisor)


def div_ceil(quotient, dividend, divisor):
    """Makes `quotient` the dividend over the divisor, rounded up."""
    return And(quotient * divisor >= dividend, dividend > quotient * divisor - divisor)


PROVED = []


def instance(general):
    """Marks a fact about products as a general one, which is proved below. Lemmas may use no others."""
    PROVED.append(general)
    return general


def product(a, most, b, greatest):
    """If two numbers are between zero and their bounds, their product is between zero and the bounds' product. A solver
    does not find by itself which products a proof needs, so lemmas name them."""
    return instance(Implies(And(0 <= a, a <= most, 0 <= b, b <= greatest), And(0 <= a * b, a * b <= most * greatest)))


def scaled(factor, low, high):
    """An inequality holds if both sides are multiplied by a factor that is not negative."""
    return instance(Implies(And(factor >= 0, low <= high), factor * low <= factor * high))


for general in (product(*ints("a most b greatest")), scaled(*ints("factor low high"))):
    assert check([Not(general)])[0] == unsat, "a lemma of products"


def between(low, *terms):
    """The last term is a bound that the others stay below."""
    *terms, high = terms
    return And(*(And(low <= term, term < high) for term in terms))


def results(**terms):
    """A function's results, by name."""
    return {
        name: IntVal(term) if isinstance(term, int) and not isinstance(term, bool) else term
        for name, term in terms.items()
    }
