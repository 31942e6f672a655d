//! Which limits apply to a request.

use std::borrow::Cow;

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

/// A variable, whose values have budgets of their own.
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

/// Selects every limit whose conditions hold and whose variables the request has.
#[derive(Debug)]
pub(super) struct Scopes(pub(super) Vec<Scope>);

impl Select for Scopes {
    fn select(&self, descriptors: &[Descriptor]) -> Vec<Selected> {
        if descriptors.is_empty() {
            return Vec::new();
        }
        let request = Request::new(descriptors);
        let scopes = self.0.iter().enumerate();
        let mut selected: Vec<Selected> = scopes.filter_map(|(rule, scope)| scope.select(rule, &request)).collect();
        selected.sort_by_key(|selected| selected.descriptor);
        selected
    }
}

impl Scope {
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
