//! The key `descriptor:…` for policies in TOML.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tower_sluice::key::{KeyCharge, KeyError, KeyExtractor, Mark};
use tower_sluice::{PartitionKey, RequestHead};

use super::asked::{Asked, Match};
use crate::rules::{Descriptor, joined};

/// The beginning of each part of such a key.
pub(crate) const DESCRIPTOR: &str = "descriptor:";

/// Reads the keys that a [`ConfigReader`](tower_sluice_config::ConfigReader) accepts beyond the format: `key =
/// ["descriptor:plan=gold", "descriptor:user"]` is a budget for each user on the plan.
pub(crate) fn read_key(_policy: &str, names: &[String]) -> Option<Result<Box<dyn KeyExtractor>, String>> {
    Pattern::read(names).map(|pattern| pattern.map(|pattern| Box::new(pattern) as _))
}

/// A policy's descriptors: those with exactly these entries, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pattern(Vec<EntryPattern>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EntryPattern {
    key: String,
    /// `None` matches any value, and each value has its own budget.
    value: Option<String>,
}

impl EntryPattern {
    fn read(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value.to_owned())));
        if key.is_empty() {
            return Err(format!(
                "`{DESCRIPTOR}{text}` has no key; write `descriptor:user`, or `descriptor:plan=gold` for one value"
            ));
        }
        Ok(Self { key: key.to_owned(), value })
    }
}

impl Pattern {
    /// Reads the parts of a key. Returns `None` if no part is a descriptor's.
    ///
    /// # Errors
    ///
    /// If only some parts are a descriptor's, or if one has no key.
    fn read(names: &[String]) -> Option<Result<Self, String>> {
        let is_descriptor = |name: &String| name.starts_with(DESCRIPTOR);
        if !names.iter().any(is_descriptor) {
            return None;
        }
        if let Some(other) = names.iter().find(|name| !is_descriptor(name)) {
            return Some(Err(format!(
                "the key `{other}` is none of a descriptor; write all of its entries, such as \
                 [\"descriptor:plan=gold\", \"descriptor:user\"]"
            )));
        }
        let entries = names.iter().map(|name| EntryPattern::read(&name[DESCRIPTOR.len()..])).collect::<Result<_, _>>();
        Some(entries.map(Self))
    }

    /// Returns the key for a descriptor, if it matches.
    fn key_of(&self, descriptor: &Descriptor) -> Option<PartitionKey> {
        if descriptor.entries.len() != self.0.len() {
            return None;
        }
        let mut values = Vec::new();
        for (pattern, (key, value)) in self.0.iter().zip(&descriptor.entries) {
            if pattern.key != *key {
                return None;
            }
            match &pattern.value {
                None => values.push(value.as_str()),
                Some(wanted) if wanted == value => {}
                Some(_) => return None,
            }
        }
        Some(joined(&values))
    }

    /// The descriptors that match, each with its key.
    fn matching<'a>(&'a self, asked: &'a Asked) -> impl Iterator<Item = (usize, PartitionKey)> + 'a {
        let keys = asked.descriptors.iter().map(|descriptor| self.key_of(descriptor));
        keys.enumerate().filter_map(|(descriptor, key)| Some((descriptor, key?)))
    }
}

/// The patterns of the policies that are in force together. There may be thousands, so a descriptor's policies are
/// found by hashing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patterns {
    /// For each length and place, whether the pattern's entry has a value.
    shapes: BTreeSet<Vec<bool>>,
    policies: HashMap<Pattern, Vec<Arc<str>>>,
}

impl Patterns {
    /// Collects the policies' patterns, each with its name and the parts of its key.
    pub(crate) fn new<'a>(policies: impl IntoIterator<Item = (&'a str, Vec<String>)>) -> Self {
        let mut all = Self::default();
        for (name, parts) in policies {
            if let Some(Ok(pattern)) = Pattern::read(&parts) {
                all.shapes.insert(pattern.0.iter().map(|entry| entry.value.is_some()).collect());
                all.policies.entry(pattern).or_default().push(name.into());
            }
        }
        all
    }

    /// Returns these patterns together with the others.
    pub(crate) fn and(&self, others: &Self) -> Self {
        let mut both = self.clone();
        both.shapes.extend(others.shapes.iter().cloned());
        for (pattern, policies) in &others.policies {
            let known = both.policies.entry(pattern.clone()).or_default();
            policies
                .iter()
                .filter(|policy| !self.has(pattern, policy))
                .for_each(|policy| known.push(Arc::clone(policy)));
        }
        both
    }

    fn has(&self, pattern: &Pattern, policy: &Arc<str>) -> bool {
        self.policies.get(pattern).is_some_and(|policies| policies.contains(policy))
    }

    /// Returns the policies that each descriptor is charged to.
    pub(crate) fn matching(&self, asked: &Asked) -> Vec<Match> {
        let mut matches = Vec::new();
        for (descriptor, Descriptor { entries, .. }) in asked.descriptors.iter().enumerate() {
            let is_charged = asked.is_charged(descriptor);
            for shape in self.shapes.iter().filter(|shape| is_charged && shape.len() == entries.len()) {
                let shaped = entries.iter().zip(shape);
                let pattern = shaped.clone().map(|((key, value), has_value)| EntryPattern {
                    key: key.clone(),
                    value: has_value.then(|| value.clone()),
                });
                let Some(policies) = self.policies.get(&Pattern(pattern.collect())) else { continue };
                let open = shaped.filter(|(_, has_value)| !**has_value);
                let key = joined(&open.map(|((_, value), _)| value.as_str()).collect::<Vec<_>>());
                let policies = policies.iter().map(Arc::clone);
                matches.extend(policies.map(|policy| Match { policy, key: key.clone(), descriptor }));
            }
        }
        matches
    }
}

/// Returns the marks for an entry at this place: for its key alone, and with its value.
pub(super) fn marks_of(place: usize, key: &str, value: &str) -> [Mark; 2] {
    [Mark::of(&(place, key)), Mark::of(&(place, key, value))]
}

/// Returns the descriptors of a request, which are an extension.
fn asked<'a>(head: &'a RequestHead<'_>) -> Result<&'a Arc<Asked>, KeyError> {
    head.extensions().get::<Arc<Asked>>().ok_or_else(missing)
}

/// The error for a request without a descriptor that matches.
pub(super) fn missing() -> KeyError {
    KeyError::Missing { what: Cow::Borrowed("a descriptor of Envoy's rate limit service") }
}

impl KeyExtractor for Pattern {
    fn marks(&self) -> Vec<Mark> {
        let entries = self.0.iter().enumerate().map(|(place, EntryPattern { key, value })| {
            let [any, this] = marks_of(place, key, value.as_deref().unwrap_or_default());
            if value.is_some() { this } else { any }
        });
        entries.collect()
    }

    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        let first = self.matching(asked(head)?).next();
        first.map(|(_, key)| key).ok_or_else(missing)
    }

    fn has_several(&self) -> bool {
        true
    }

    fn extract_all(&self, head: &RequestHead<'_>) -> Result<Vec<KeyCharge>, KeyError> {
        let asked = asked(head)?;
        Ok(asked.charges(self.matching(asked).map(|(descriptor, key)| (descriptor, key, None))))
    }

    fn is_shared(&self) -> bool {
        self.0.iter().all(|entry| entry.value.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors::Kind;

    fn matching(patterns: &Patterns) -> Vec<(String, usize, String)> {
        let descriptor = |entries: &[(&str, &str)]| Descriptor {
            entries: entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            has_own_limit: false,
        };
        let asked = [descriptor(&[("plan", "gold"), ("user", "ada")]), descriptor(&[("user", "ada")])];
        let asked = Asked::new(Kind::Question, asked.into(), vec![1, 1], Vec::new());
        let matches = patterns.matching(&asked).into_iter();
        let mut found: Vec<_> = matches
            .map(|it| (it.policy.to_string(), it.descriptor, String::from_utf8_lossy(it.key.as_bytes()).into_owned()))
            .collect();
        found.sort();
        found
    }

    fn patterns(policies: &[(&str, &[&str])]) -> Patterns {
        Patterns::new(policies.iter().map(|(name, parts)| (*name, parts.iter().map(|it| (*it).to_owned()).collect())))
    }

    /// While a file changes, policies from both versions may decide.
    #[test]
    fn patterns_of_both_versions_match() {
        let before = patterns(&[("a", &["descriptor:plan=gold", "descriptor:user"]), ("b", &["descriptor:user"])]);
        let after =
            patterns(&[("b", &["descriptor:user"]), ("c", &["descriptor:user=ada"]), ("d", &["descriptor:plan"])]);
        let ada = |policy: &str, descriptor| (policy.to_owned(), descriptor, "ada".to_owned());
        let shared = ("c".to_owned(), 1, String::new());
        assert_eq!(matching(&before), [ada("a", 0), ada("b", 1)]);
        assert_eq!(matching(&after), [ada("b", 1), shared.clone()]);
        assert_eq!(matching(&before.and(&after)), [ada("a", 0), ada("b", 1), shared]);
    }
}
