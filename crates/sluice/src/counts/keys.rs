//! The keys of a policy, in bounded memory.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hasher};
use std::hint::black_box;

use tower_sluice::PartitionKey;

use super::demand::{Demand, Measure};

/// The number of keys that are counted exactly: the most that fit into a hash table with 2^17 places. With more keys, a
/// sample stands for all.
const MOST_KEYS: usize = 7 << 14;
/// The keys with the most rejections that are kept.
const MOST_OFFENDERS: usize = 1 << 12;

/// All keys, or a sample.
///
/// A key is in the sample if its hash begins with `halvings` zero bits, so each key is in it with the same probability,
/// however many requests it sends. When the table is full, we halve the sample. That only drops keys, so a key in the
/// sample was counted from its first request on.
///
/// Notes wait until there are several, so that the processor fetches several keys' records at once. With many clients,
/// the records are in no cache.
pub(crate) struct Keys {
    measure: Measure,
    /// The units per request.
    cost: u64,
    records: HashMap<u64, KeyRecord, BuildHasherDefault<IsHash>>,
    halvings: u32,
    /// In the order in which they came.
    notes: Vec<(u64, Note)>,
}

/// An event to count for a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Note {
    /// It asked at this time, in nanoseconds.
    Asked(u64),
    Rejected,
}

/// The notes that wait, at most.
const MOST_NOTES: usize = 64;

/// A key in the sample.
#[derive(Default)]
pub(crate) struct KeyRecord {
    pub(crate) requests: u64,
    pub(crate) rejected: u64,
    pub(crate) demand: Demand,
}

pub(crate) fn hash(key: &PartitionKey) -> u64 {
    // Seeded by constants, so that a report is the same each time.
    let mut hasher = DefaultHasher::new();
    hasher.write(key.as_bytes());
    hasher.finish()
}

impl Keys {
    /// Creates an empty set of keys, whose requests will cost `cost` units each.
    pub(crate) fn new(measure: Measure, cost: u64) -> Self {
        Self { measure, cost, records: HashMap::default(), halvings: 0, notes: Vec::new() }
    }

    /// Notes an event for the key with this hash. It counts once the notes are [settled](Self::settle).
    pub(crate) fn note(&mut self, hash: u64, note: Note) {
        if is_sampled(hash, self.halvings) {
            self.notes.push((hash, note));
            if self.notes.len() >= MOST_NOTES {
                self.settle();
            }
        }
    }

    /// Counts the requests in `notes`.
    pub(crate) fn settle(&mut self) {
        let mut notes = std::mem::take(&mut self.notes);
        // None of these look-ups waits for another.
        black_box(
            notes.iter().filter_map(|(hash, _)| self.records.get(hash)).fold(0, |sum, record| sum ^ record.requests),
        );
        let (measure, cost) = (self.measure, self.cost);
        for (hash, note) in notes.drain(..) {
            let Some(record) = self.record(hash) else { continue };
            match note {
                Note::Asked(now) => {
                    record.requests += 1;
                    record.demand.note(measure, now, cost);
                }
                Note::Rejected => record.rejected += 1,
            }
        }
        self.notes = notes;
    }

    /// Returns a key's record, if the key is in the sample.
    fn record(&mut self, hash: u64) -> Option<&mut KeyRecord> {
        if !is_sampled(hash, self.halvings) {
            return None;
        }
        if self.records.len() >= MOST_KEYS && !self.records.contains_key(&hash) {
            self.halvings += 1;
            let halvings = self.halvings;
            self.records.retain(|hash, _| is_sampled(*hash, halvings));
            return self.record(hash);
        }
        Some(self.records.entry(hash).or_default())
    }

    /// Returns a key's record, if the key is in the sample. Only [settled](Self::settle) notes are in it, as in the
    /// counts below.
    pub(crate) fn get(&self, hash: u64) -> Option<&KeyRecord> {
        self.records.get(&hash)
    }

    /// Whether all keys are counted.
    pub(crate) const fn is_exact(&self) -> bool {
        self.halvings == 0
    }

    /// The number of keys for which `is_counted`; an estimate, unless it [is exact](Self::is_exact).
    pub(crate) fn count(&self, is_counted: impl Fn(&KeyRecord) -> bool) -> u64 {
        let count = self.records.values().filter(|record| is_counted(record)).count() as u64;
        count << self.halvings.min(63)
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = &KeyRecord> {
        self.records.values()
    }
}

const fn is_sampled(hash: u64, halvings: u32) -> bool {
    hash.leading_zeros() >= halvings
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
pub(crate) struct IsHash(u64);

impl Hasher for IsHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed")
    }

    fn write_u64(&mut self, hash: u64) {
        // The sample has the hashes that begin with zeros, and the map looks at the first bits.
        self.0 = hash.swap_bytes();
    }
}

/// The keys with the most rejections (Misra and Gries, in batches): a key with more than [`missed`](Self::missed)
/// rejections is in it.
#[derive(Default)]
pub(crate) struct Offenders {
    counts: HashMap<u64, Offender, BuildHasherDefault<IsHash>>,
    missed: u64,
}

/// A key with rejections.
#[derive(Clone, Debug)]
pub(crate) struct Offender {
    pub(crate) hash: u64,
    pub(crate) text: String,
    /// Its rejections, but for up to [`missed`](Offenders::missed).
    pub(crate) rejected: u64,
}

impl Offenders {
    pub(crate) fn note(&mut self, hash: u64, text: impl FnOnce() -> String) {
        let offender = self.counts.entry(hash).or_insert_with(|| Offender { hash, text: text(), rejected: 0 });
        offender.rejected += 1;
        if self.counts.len() > 2 * MOST_OFFENDERS {
            self.shrink();
        }
    }

    /// Subtracts the count of the first key that is dropped from every key that is kept, so each loses it once.
    fn shrink(&mut self) {
        let mut counts: Vec<_> = self.counts.values().map(|offender| offender.rejected).collect();
        let (_, least, _) = counts.select_nth_unstable_by(MOST_OFFENDERS, |one, other| other.cmp(one));
        let least = *least;
        self.missed += least;
        self.counts.retain(|_, offender| {
            offender.rejected = offender.rejected.saturating_sub(least);
            offender.rejected > 0
        });
    }

    pub(crate) const fn missed(&self) -> u64 {
        self.missed
    }

    /// The keys with the most rejections. Ties: the first by its text.
    pub(crate) fn top(&self, most: usize) -> Vec<&Offender> {
        let mut all: Vec<_> = self.counts.values().collect();
        all.sort_by(|one, other| other.rejected.cmp(&one.rejected).then_with(|| one.text.cmp(&other.text)));
        all.truncate(most);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_stands_for_all_keys() {
        let mut keys = Keys::new(Measure::None, 1);
        let distinct = 10 * MOST_KEYS as u64;
        for number in 0..distinct {
            keys.note(hash(&number.into()), Note::Asked(number));
            if number % 4 == 3 {
                keys.note(hash(&number.into()), Note::Rejected);
            }
        }
        keys.settle();
        assert!(!keys.is_exact() && keys.records.len() <= MOST_KEYS);
        // Some 70,000 keys are in the sample, so its error is below 2 %.
        let about = |estimate: u64, exact: u64| estimate.abs_diff(exact) * 50 < exact;
        assert!(about(keys.count(|_| true), distinct));
        assert!(about(keys.count(|record| record.rejected > 0), distinct / 4));
    }

    #[test]
    fn frequent_keys_are_found_among_many() {
        let mut offenders = Offenders::default();
        for number in 0..200_000_u64 {
            offenders.note(hash(&number.into()), || number.to_string());
            if number % 10 == 0 {
                offenders.note(1, || "frequent".to_owned());
            }
        }
        let [top] = offenders.top(1)[..] else { panic!("one key") };
        assert_eq!(top.text, "frequent");
        assert!(top.rejected <= 20_000 && top.rejected + offenders.missed() >= 20_000);
        assert!(offenders.counts.len() <= 2 * MOST_OFFENDERS);
    }
}
