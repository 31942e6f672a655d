//! The key `descriptor:…` of a policy in TOML.

use std::sync::Arc;

use tower_sluice::key::{KeyCharge, KeyError, KeyExtractor, Mark};
use tower_sluice::{PartitionKey, RequestHead};

use super::asked::Asked;
use super::domain::{asked, missing};
use crate::rules::{Descriptor, joined};

/// The beginning of each part of such a key.
pub(crate) const DESCRIPTOR: &str = "descriptor:";

/// Reads the keys that a configuration of a [`ConfigReader`](tower_sluice_config::ConfigReader) may have beyond those
/// of the format: `key = ["descriptor:plan=gold", "descriptor:user"]` is a budget for each user of the plan.
pub(crate) fn read(policy: &str, names: &[String]) -> Option<Result<Box<dyn KeyExtractor>, String>> {
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
    Some(entries.map(|entries| Box::new(DescriptorKey { policy: policy.into(), entries }) as _))
}

/// Extracts keys from the descriptors with exactly these entries, in this order.
struct DescriptorKey {
    policy: Arc<str>,
    entries: Vec<EntryPattern>,
}

struct EntryPattern {
    key: String,
    /// `None` for any value, each of which has a budget of its own.
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

impl DescriptorKey {
    /// The key of a descriptor that matches.
    fn key_of(&self, descriptor: &Descriptor) -> Option<PartitionKey> {
        if descriptor.entries.len() != self.entries.len() {
            return None;
        }
        let mut values = Vec::new();
        for (pattern, (key, value)) in self.entries.iter().zip(&descriptor.entries) {
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

    fn matching<'a>(&'a self, asked: &'a Asked) -> impl Iterator<Item = (usize, PartitionKey)> + 'a {
        let keys = asked.descriptors.iter().map(|descriptor| self.key_of(descriptor));
        keys.enumerate().filter_map(|(descriptor, key)| Some((descriptor, key?)))
    }
}

/// The marks of an entry at this place: of its key alone, and with its value.
pub(super) fn marks_of(place: usize, key: &str, value: &str) -> [Mark; 2] {
    [Mark::of(&(place, key)), Mark::of(&(place, key, value))]
}

impl KeyExtractor for DescriptorKey {
    fn marks(&self) -> Vec<Mark> {
        let entries = self.entries.iter().enumerate().map(|(place, EntryPattern { key, value })| {
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
        let matching = self.matching(asked).map(|(descriptor, key)| (descriptor, key, None));
        Ok(asked.charge(&self.policy, matching))
    }

    fn is_shared(&self) -> bool {
        self.entries.iter().all(|entry| entry.value.is_some())
    }
}
