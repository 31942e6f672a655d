//! Counterexamples from the proofs: inputs for which a function's broken variant returns something else than the
//! function. Tests beside each function feed them to it.

use serde_json::{Map, Value};

/// `verify/proofs/README.md` describes it, and `scripts/ci/prove --update` writes it.
const FILE: &str = include_str!("../../verify/proofs/counterexamples.json");

/// One counterexample, for a function that a lemma is about.
pub(crate) struct Counterexample {
    entry: Map<String, Value>,
}

impl Counterexample {
    /// Returns an input.
    pub(crate) fn number<T: TryFrom<u128>>(&self, input: &str) -> T {
        let Some(number) = self.part("inputs").get(input).and_then(number) else { panic!("no {input} in {self:?}") };
        T::try_from(number).unwrap_or_else(|_| panic!("{input} is out of range in {self:?}"))
    }

    /// Returns an input that not all lemmas on the function have.
    pub(crate) fn number_or<T: TryFrom<u128>>(&self, input: &str, default: T) -> T {
        if self.part("inputs").contains_key(input) { self.number(input) } else { default }
    }

    /// Compares a function's results with its formula's.
    fn check(&self, results: &[(&str, u128)]) {
        for (name, right) in self.part("right") {
            let Some((_, result)) = results.iter().find(|(result, _)| result == name) else {
                panic!("the test computes no {name}: {self:?}")
            };
            assert_eq!(Some(*result), number(right), "{name} in {self:?}");
        }
    }

    fn part(&self, name: &str) -> &Map<String, Value> {
        self.entry[name].as_object().expect("an object")
    }
}

impl std::fmt::Debug for Counterexample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&serde_json::to_string_pretty(&self.entry).expect("it was parsed"))
    }
}

/// Feeds each counterexample for a function to `results`, which returns the function's results for the inputs: by name,
/// all results that the lemmas mention. A boolean is zero or one.
pub(crate) fn each<const N: usize>(function: &str, results: impl Fn(&Counterexample) -> [(&'static str, u128); N]) {
    let entries: Vec<Map<String, Value>> = serde_json::from_str(FILE).expect("an array of objects");
    let mut count = 0;
    for entry in entries.into_iter().filter(|entry| entry["function"] == function) {
        let entry = Counterexample { entry };
        entry.check(&results(&entry));
        count += 1;
    }
    assert!(count > 0, "no lemma speaks of {function}");
}

/// Reads a number: those beyond 64 bits are texts.
fn number(value: &Value) -> Option<u128> {
    match value {
        Value::Bool(value) => Some((*value).into()),
        Value::Number(number) => number.as_u64().map(u128::from),
        Value::String(digits) => digits.parse().ok(),
        _ => None,
    }
}
