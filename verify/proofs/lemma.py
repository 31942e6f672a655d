"""What a lemma is, and how it is proved.

A lemma speaks of one function of the sources. `right` has the results of that function as formulas over its inputs. The
claim about these is negated and given to Z3: that there is no counterexample is the proof. Each of `broken` is the
function with one mistake. It must have a counterexample, or the claim would say nothing.

`given` is what the proof needs of the inputs, and `domain` what else the Rust API promises of them: a proof without it
is the stronger one, but a counterexample must be within it, since it is fed to the Rust code.
"""

import sys

from z3 import And, BoolRef, If, Implies, Int, IntVal, Not, Solver, is_true, sat, unsat

LEMMAS = []

# A count of the solver's own steps, and not a time: what is proved on one machine is proved on another, busy one.
MOST_STEPS = 40_000_000

CENTURY = 100 * 366 * 86_400 * 10**9

# Limits, bursts and counts are below this: `Quota::MAX_UNITS` and one.
UNITS = 10**15


class Lemma:
    def __init__(
        self, subject, of, says, inputs, claim, right, broken, given=(), domain=(), uses=(), steps=(), fixed=()
    ):
        self.of, self.says, self.inputs, self.claim = of, says, inputs, claim
        self.right, self.broken = right, dict(broken)
        # `uses` are instances of `product` and `scaled`, which are proved once. `steps` are proved first, each from
        # those before, and then used: a nonlinear proof is found by hand.
        self.given, self.domain, self.steps = list(given), list(domain), list(steps)
        self.uses = list(uses)
        assert all(
            any(use is fact for fact in PROVED) for use in self.uses
        ), "`uses` has products and inequalities alone"
        # Values for some of the inputs, which make the search for counterexamples easy: of all, and of one variant.
        self.fixed, self.hints = list(fixed), {}
        for variant, formulas in broken.items():
            if isinstance(formulas, tuple):
                self.broken[variant], self.hints[variant] = formulas[0], list(formulas[1:])
        self.subject = subject
        LEMMAS.append(self)

    def name(self):
        return f"{self.of}: {self.says}"

    def problem(self):
        """Why the lemma is not proved; None if it is."""
        known = [*self.given, *self.uses]
        for number, step in enumerate([*self.steps, self.claim(self.right)], 1):
            result, model = check([*known, Not(step)])
            if result != unsat:
                what = "the claim" if number > len(self.steps) else f"step {number}"
                return f"{what} is not proved: {result} {model}"
            known.append(step)
        # Of what cannot be, anything could be proved. But each counterexample is something that can be.
        return None if self.broken else "no broken variant"

    def counterexample(self, variant):
        """Inputs for which the claim fails for a broken variant, with the results of both; None if none are found."""
        broken, hints = self.broken[variant], self.hints.get(variant, self.fixed)
        result, model = check([*self.given, *self.domain, *hints, Not(self.claim(broken)), differ(self.right, broken)])
        if result != sat:
            return None

        def values(terms):
            return {name: value(model.eval(term, model_completion=True)) for name, term in terms.items()}

        return {"inputs": values(self.inputs), "right": values(self.right), "broken": values(broken)}

    def still_holds(self, variant, found):
        """Whether a counterexample that was found once is one, and its results are those of the formulas."""
        broken = self.broken[variant]
        inputs = [self.inputs[name] == value for name, value in found["inputs"].items()]
        if set(found["inputs"]) != set(self.inputs) or set(found["right"]) != set(self.right):
            return False
        if found["right"] == found["broken"] or set(found["broken"]) != set(broken):
            return False
        # The values that make the search easy also say what the parts of a variant are that no other has.
        known = [*self.given, *self.domain, *self.hints.get(variant, []), *inputs]
        # Of these inputs, the results are these and no others.
        for terms, results in ((self.right, found["right"]), (broken, found["broken"])):
            if check([*known, Not(And(*(terms[name] == value for name, value in results.items())))])[0] != unsat:
                return False
        return check([*known, Not(self.claim(broken))])[0] == sat


def lemma(of, says, **parts):
    """States a lemma of the file that calls this, its subject."""
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
    """What makes `quotient` the dividend over the divisor, rounded down: without a division, which Z3 is slow at."""
    return And(quotient * divisor <= dividend, dividend < quotient * divisor + divisor)


def div_ceil(quotient, dividend, divisor):
    """What makes `quotient` the dividend over the divisor, rounded up."""
    return And(quotient * divisor >= dividend, dividend > quotient * divisor - divisor)


PROVED = []


def instance(general):
    """Marks a fact about products as one of the general ones, which are proved below: lemmas may use no others."""
    PROVED.append(general)
    return general


def product(a, most, b, greatest):
    """What is between zero and two bounds has a product between zero and that of the bounds. A solver does not find by
    itself which products a proof needs; so lemmas name them."""
    return instance(Implies(And(0 <= a, a <= most, 0 <= b, b <= greatest), And(0 <= a * b, a * b <= most * greatest)))


def scaled(factor, low, high):
    """An inequality keeps if both sides are multiplied."""
    return instance(Implies(And(factor >= 0, low <= high), factor * low <= factor * high))


for general in (product(*ints("a most b greatest")), scaled(*ints("factor low high"))):
    assert check([Not(general)])[0] == unsat, "a lemma of products"


def between(low, *terms):
    """The last of the terms is a bound that the others stay below."""
    *terms, high = terms
    return And(*(And(low <= term, term < high) for term in terms))


def results(**terms):
    """The results of a function, by name."""
    return {
        name: IntVal(term) if isinstance(term, int) and not isinstance(term, bool) else term
        for name, term in terms.items()
    }
