//! Which limits apply to a request.

use super::super::{Descriptor, Select, Selected, joined};
use super::expression::{Condition, Reference};

/// When a limit applies, and to which budget. Sorted and without duplicates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Scope {
    pub(super) conditions: Vec<Condition>,
    pub(super) variables: Vec<Reference>,
}

/// Selects every limit whose conditions hold and whose variables the request has.
#[derive(Debug)]
pub(super) struct Scopes(pub(super) Vec<Scope>);

impl Select for Scopes {
    fn select(&self, descriptors: &[Descriptor]) -> Vec<Selected> {
        if descriptors.is_empty() {
            return Vec::new();
        }
        let scopes = self.0.iter().enumerate();
        let mut selected: Vec<Selected> = scopes.filter_map(|(rule, scope)| scope.select(rule, descriptors)).collect();
        selected.sort_by_key(|selected| selected.descriptor);
        selected
    }
}

impl Scope {
    /// Selects the limit for the last descriptor that it reads, or for the first if it reads no entry.
    fn select(&self, rule: usize, descriptors: &[Descriptor]) -> Option<Selected> {
        let mut last = 0;
        for condition in &self.conditions {
            last = last.max(condition.holds(descriptors)?);
        }
        let mut values = Vec::with_capacity(self.variables.len());
        for variable in &self.variables {
            let (index, value) = variable.find(descriptors)?;
            last = last.max(index);
            values.push(value);
        }
        Some(Selected { descriptor: last, rule, key: joined(&values) })
    }
}
