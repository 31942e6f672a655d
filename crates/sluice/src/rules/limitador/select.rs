//! Selects the limits that apply to a request.

use std::borrow::Cow;
use std::collections::HashMap;

use smallvec::SmallVec;

use super::super::{Descriptor, Select, Selected, joined};
use super::expression::{Comparison, Reference};
use super::program::{Program, Request};

/// A condition. Plain comparisons are sorted to the front, since they decide sooner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Condition {
    Comparison(Comparison),
    Program(Program),
}

/// A variable, whose values have separate budgets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Variable {
    Entry(Reference),
    Program(Program),
}

impl Condition {
    /// Returns the index of the descriptor for which the condition holds, if it does.
    fn holds(&self, request: &Request<'_>) -> Option<usize> {
        match self {
            Self::Comparison(comparison) => comparison.holds(request.descriptors),
            Self::Program(program) => program.holds(request),
        }
    }
}

impl Variable {
    /// Returns the index of the descriptor that has the value, and the value.
    fn find<'a>(&self, request: &Request<'a>) -> Option<(usize, Cow<'a, str>)> {
        match self {
            Self::Entry(entry) => {
                let (index, value) = entry.find(request.descriptors)?;
                Some((index, Cow::Borrowed(value)))
            }
            Self::Program(program) => {
                let (index, value) = program.value(request)?;
                Some((index, Cow::Owned(value)))
            }
        }
    }
}

/// When a limit applies, and to which budget. Sorted and without duplicates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Scope {
    pub(super) conditions: Vec<Condition>,
    pub(super) variables: Vec<Variable>,
}

/// Selects every limit whose conditions hold and whose variables the request has. A namespace may have thousands, so
/// each limit is found by an entry that its requests must have.
#[derive(Debug)]
pub(super) struct Scopes {
    all: Vec<Scope>,
    by_key: HashMap<String, Keyed>,
    /// The limits for requests that may have any entries.
    others: Vec<usize>,
}

/// The limits whose requests have an entry with one key.
#[derive(Debug, Default)]
struct Keyed {
    /// By the value that they need.
    by_value: HashMap<String, Vec<usize>>,
    with_any_value: Vec<usize>,
}

/// An entry that a request must have: its key, and its value if only one will do.
type Needed<'a> = (&'a str, Option<&'a str>);

impl Scopes {
    pub(super) fn new(all: Vec<Scope>) -> Self {
        let mut counts: HashMap<Needed<'_>, usize> = HashMap::new();
        for needed in all.iter().flat_map(Scope::needed) {
            *counts.entry(needed).or_default() += 1;
        }
        let (mut by_key, mut others): (HashMap<String, Keyed>, _) = Default::default();
        for (rule, scope) in all.iter().enumerate() {
            let of_rule: &mut Vec<usize> = match scope.needed().min_by_key(|needed| counts[needed]) {
                None => &mut others,
                Some((key, value)) => {
                    let keyed = by_key.entry(key.to_owned()).or_default();
                    match value {
                        None => &mut keyed.with_any_value,
                        Some(value) => keyed.by_value.entry(value.to_owned()).or_default(),
                    }
                }
            };
            of_rule.push(rule);
        }
        Self { all, by_key, others }
    }

    /// Returns the limits whose rarest entry a request has, in order.
    fn candidates(&self, descriptors: &[Descriptor]) -> Vec<usize> {
        let mut candidates = self.others.clone();
        for (key, value) in descriptors.iter().flat_map(|descriptor| &descriptor.entries) {
            if let Some(keyed) = self.by_key.get(key) {
                candidates.extend(&keyed.with_any_value);
                candidates.extend(keyed.by_value.get(value).into_iter().flatten());
            }
        }
        candidates.sort_unstable();
        candidates.dedup();
        candidates
    }
}

impl Select for Scopes {
    fn select(&self, descriptors: &[Descriptor]) -> Vec<Selected> {
        if descriptors.is_empty() {
            return Vec::new();
        }
        let request = Request::new(descriptors);
        let candidates = self.candidates(descriptors).into_iter();
        let mut selected: Vec<_> = candidates.filter_map(|rule| self.all[rule].select(rule, &request)).collect();
        selected.sort_by_key(|selected| selected.descriptor);
        selected
    }
}

impl Scope {
    /// The entries without which the limit never applies.
    fn needed(&self) -> impl Iterator<Item = Needed<'_>> {
        let of_conditions = self.conditions.iter().filter_map(|condition| match condition {
            Condition::Comparison(Comparison { reference, is_equal, value }) => {
                Some((reference.key.as_str(), is_equal.then_some(value.as_str())))
            }
            Condition::Program(_) => None,
        });
        let of_variables = self.variables.iter().filter_map(|variable| match variable {
            Variable::Entry(entry) => Some((entry.key.as_str(), None)),
            Variable::Program(_) => None,
        });
        of_conditions.chain(of_variables)
    }

    /// Selects the limit for the last descriptor that it reads, or for the first if it reads no entry.
    fn select(&self, rule: usize, request: &Request<'_>) -> Option<Selected> {
        let mut last = 0;
        for condition in &self.conditions {
            last = last.max(condition.holds(request)?);
        }
        let mut values: SmallVec<[Cow<'_, str>; 4]> = SmallVec::new();
        for variable in &self.variables {
            let (index, value) = variable.find(request)?;
            last = last.max(index);
            values.push(value);
        }
        let values: SmallVec<[&str; 4]> = values.iter().map(|value| &**value).collect();
        Some(Selected { descriptor: last, rule, key: joined(&values) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cases::cases;

    fn comparison(text: &str) -> Condition {
        Condition::Comparison(Comparison::parse(text).unwrap())
    }

    fn descriptor(entries: &[(&str, &str)]) -> Descriptor {
        let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Descriptor { entries: entries.collect(), has_own_limit: false }
    }

    #[test]
    fn a_request_is_compared_with_few_limits() {
        let of_tenant = |tenant| {
            let conditions =
                vec![comparison("descriptors[0].method == 'GET'"), comparison(&format!("tenant == 't{tenant}'"))];
            Scope { conditions, variables: Vec::new() }
        };
        let scopes = Scopes::new((0..10_000).map(of_tenant).collect());
        assert_eq!(scopes.candidates(&[descriptor(&[("method", "GET"), ("tenant", "t7")])]), [7]);
        assert_eq!(scopes.candidates(&[descriptor(&[("method", "GET"), ("user", "t7")])]), [0_usize; 0]);
    }

    fn scopes() -> impl Strategy<Value = Vec<Scope>> {
        let reference = prop::sample::select(vec!["a", "b", "descriptors[0].a", "descriptors[1].b"]);
        let condition = (reference.clone(), any::<bool>(), "[xy]").prop_map(|(reference, is_equal, value)| {
            comparison(&format!("{reference} {} '{value}'", if is_equal { "==" } else { "!=" }))
        });
        let variable = reference.prop_map(|reference| Variable::Entry(Reference::parse(reference).unwrap()));
        let scope = (prop::collection::vec(condition, 0..3), prop::collection::vec(variable, 0..2));
        let scope = scope.prop_map(|(conditions, variables)| Scope { conditions, variables });
        prop::collection::vec(scope, 0..12)
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn limits_are_found_as_by_comparing_all(
            scopes in scopes(),
            requests in prop::collection::vec(prop::collection::vec(prop::collection::vec(("[abc]", "[xy]"), 0..4), 0..3), 8),
        ) {
            let scopes = Scopes::new(scopes);
            for request in requests {
                let descriptors: Vec<_> =
                    request.into_iter().map(|entries| Descriptor { entries, has_own_limit: false }).collect();
                let of_all = Request::new(&descriptors);
                let all = scopes.all.iter().enumerate();
                let mut expected: Vec<_> = all.filter_map(|(rule, scope)| scope.select(rule, &of_all)).collect();
                expected.sort_by_key(|selected| selected.descriptor);
                let expected = if descriptors.is_empty() { Vec::new() } else { expected };
                prop_assert_eq!(scopes.select(&descriptors), expected);
            }
        }
    }
}
