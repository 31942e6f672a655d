//! [`Summary`]: the counts from one sketch, or from several.

use std::collections::HashMap;
use std::hash::Hash;

use crate::util::order::sort_by_key;
use crate::values::time::Timestamp;

/// The counts from one or several sketches, the highest first.
///
/// For a stream with `total` notes, and *k* counters:
///
/// - a listed key's true count is at least `count - error`, and at most `count`;
/// - an unlisted key's true count is at most `absent`;
/// - each error is at most `absent`, and `absent` is at most `total` / *k*.
///
/// All three also hold after [merging](Self::merge) and [cutting](Self::cut), in any order, as P. K. Agarwal and others
/// have shown ("Mergeable Summaries", PODS 2012, section 3): the sum of all `count - absent` is at most `total` - *k* ×
/// `absent` in each sketch, since its counts sum up to its total, and both operations keep that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary<K> {
    pub(crate) entries: Vec<Counted<K>>,
    pub(crate) total: u64,
    pub(crate) absent: u64,
}

/// A key and its count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counted<K> {
    pub(crate) key: K,
    pub(crate) count: u64,
    /// The part of the count that may belong to other keys.
    pub(crate) error: u64,
    /// The first and the last counted instant. The key may have been noted before the first one, if it lost its counter
    /// meanwhile.
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
}

impl<K> Summary<K> {
    /// The counts without any note.
    pub(crate) const fn empty() -> Self {
        Self { entries: Vec::new(), total: 0, absent: 0 }
    }

    /// Replaces each key by another one. Different keys must stay different.
    pub(crate) fn map_keys<L>(self, mut other: impl FnMut(K) -> L) -> Summary<L> {
        let entries = self.entries.into_iter().map(|Counted { key, count, error, first, last }| Counted {
            key: other(key),
            count,
            error,
            first,
            last,
        });
        Summary { entries: entries.collect(), total: self.total, absent: self.absent }
    }

    /// Keeps only the highest counts, at most `most`, which is at least *k*.
    pub(crate) fn cut(&mut self, most: usize) {
        if let Some(dropped) = self.entries.get(most) {
            self.absent = self.absent.max(dropped.count);
            self.entries.truncate(most);
        }
    }

    /// Adds notes for unknown keys, each of which may belong to any key.
    pub(crate) fn add_unknown(&mut self, notes: u64) {
        self.total = self.total.saturating_add(notes);
        self.absent = self.absent.saturating_add(notes);
        for entry in &mut self.entries {
            entry.count = entry.count.saturating_add(notes);
            entry.error = entry.error.saturating_add(notes);
        }
    }
}

impl<K: Clone + Eq + Hash> Summary<K> {
    /// Adds up the counts from two streams. A key that one of them does not list may have been in it up to `absent`
    /// times, which is added to its count and to its error.
    pub(crate) fn merge(self, other: Self) -> Self {
        let absent = self.absent.saturating_add(other.absent);
        let total = self.total.saturating_add(other.total);
        let mut others: HashMap<K, Counted<K>> =
            other.entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        let mut entries = self.entries;
        for entry in &mut entries {
            match others.remove(&entry.key) {
                Some(same) => {
                    entry.add(same.count, same.error);
                    entry.first = entry.first.min(same.first);
                    entry.last = entry.last.max(same.last);
                }
                None => entry.add(other.absent, other.absent),
            }
        }
        entries.extend(others.into_values().map(|mut entry| {
            entry.add(self.absent, self.absent);
            entry
        }));
        // For equal counts, the surer and the older one goes first.
        let entries = sort_by_key(entries, |entry| [!entry.count, entry.error, entry.first.as_nanos()]);
        Self { entries, total, absent }
    }
}

impl<K> Counted<K> {
    fn add(&mut self, count: u64, error: u64) {
        self.count = self.count.saturating_add(count);
        self.error = self.error.saturating_add(error);
    }
}
