//! Checks the sketch against exact counts. The bound is checked as stated, in its general form after each step.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::util::cases::cases;
use crate::util::effort::rounds;
use crate::util::keyed_hash::Secret;

const fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

/// A sketch beside the truth.
struct Watched {
    sketch: SpaceSaving<u64>,
    exact: HashMap<u64, u64>,
    secret: Secret,
    noted: u64,
}

impl Watched {
    fn new() -> Self {
        let secret = Secret::from_bytes([7; 16]);
        Self { sketch: SpaceSaving::new(), exact: HashMap::new(), secret, noted: 0 }
    }

    fn of(stream: impl IntoIterator<Item = u64>) -> Self {
        let mut watched = Self::new();
        stream.into_iter().for_each(|key| watched.note(key));
        watched
    }

    fn note(&mut self, key: u64) {
        self.noted += 1;
        self.sketch.note(self.secret.hash(&key.to_le_bytes()), &key, at(self.noted));
        *self.exact.entry(key).or_default() += 1;
    }

    fn check(&self) {
        self.sketch.check_order();
        let summary = self.sketch.summary();
        // Counts sum up to the total, which the proof for merged summaries needs.
        assert_eq!(summary.entries.iter().map(|entry| entry.count).sum::<u64>(), summary.total);
        check(&summary, &self.exact);
    }
}

/// The three promises of [`Summary`].
fn check(summary: &Summary<u64>, exact: &HashMap<u64, u64>) {
    let total = exact.values().sum::<u64>();
    assert_eq!(summary.total, total);
    assert!(summary.absent <= total / CAPACITY as u64, "{} of {total}", summary.absent);
    let mut listed = HashMap::new();
    for entry in &summary.entries {
        let truth = exact.get(&entry.key).copied().unwrap_or(0);
        assert!(entry.count >= truth, "{entry:?} for {truth}");
        assert!(entry.count - entry.error <= truth, "{entry:?} for {truth}");
        assert!(entry.error <= summary.absent, "{entry:?} for {}", summary.absent);
        assert!(entry.first <= entry.last);
        assert!(listed.insert(entry.key, ()).is_none(), "{} twice", entry.key);
    }
    assert!(summary.entries.is_sorted_by_key(|entry| std::cmp::Reverse(entry.count)));
    for (key, count) in exact.iter().filter(|(key, _)| !listed.contains_key(key)) {
        assert!(*count <= summary.absent, "{key} has {count}, and is missing");
    }
}

impl SpaceSaving<u64> {
    /// Panics unless the arrays agree with each other.
    fn check_order(&self) {
        let mut position = 0;
        let mut above = u64::MAX;
        let mut groups = 0;
        while position < self.counters.len() {
            let number = self.counters[usize::from(self.order[position])].group;
            let group = self.groups[usize::from(number)];
            assert!(group.len > 0 && usize::from(group.start) == position && group.count < above);
            for at in position..position + usize::from(group.len) {
                let counter = &self.counters[usize::from(self.order[at])];
                assert_eq!((counter.group, usize::from(counter.position)), (number, at));
            }
            above = group.count;
            position += usize::from(group.len);
            groups += 1;
        }
        assert_eq!(groups + self.free_groups.len(), self.groups.len());
        assert!(self.groups.len() <= CAPACITY, "no memory is allocated after the start");
        let mut indexed: Vec<_> = self.index.iter().copied().filter(|number| *number != FREE).collect();
        indexed.sort_unstable();
        assert!(indexed.into_iter().map(usize::from).eq(0..self.counters.len()));
        for (number, counter) in self.counters.iter().enumerate() {
            assert_eq!(self.find(counter.hash), Some(byte(number)));
        }
    }
}

/// Draws keys by a Zipf distribution with exponent 1 over `keys` keys, from uniform numbers: the share of key *r* is in
/// proportion to 1/*r*.
fn zipf(keys: u64, uniform: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let weights: Vec<u64> = (1..=keys)
        .map(|rank| 1_000_000_000 / rank)
        .scan(0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    let all = weights[weights.len() - 1];
    let pick = |number: u64| weights.partition_point(|sum| *sum <= number % all) as u64;
    uniform.into_iter().map(pick).collect()
}

fn random(seed: u64, len: usize) -> impl Iterator<Item = u64> {
    let secret = Secret::from_bytes(u128::from(seed).to_le_bytes());
    (0..len as u64).map(move |number| secret.hash(&number.to_le_bytes()))
}

#[test]
fn few_keys_are_counted_exactly() {
    let watched = Watched::of((0..CAPACITY as u64).flat_map(|key| std::iter::repeat_n(key, 1 + key as usize % 7)));
    watched.check();
    let summary = watched.sketch.summary();
    assert_eq!(summary.absent, 1, "the least count of a full sketch");
    assert!(summary.entries.iter().all(|entry| entry.error == 0));
}

#[test]
fn entries_have_their_first_and_last_instant() {
    let summary = Watched::of([1, 2, 1, 1, 2]).sketch.summary();
    let times: Vec<_> = summary.entries.iter().map(|entry| (entry.key, entry.first, entry.last)).collect();
    assert_eq!(times, [(1, at(1), at(4)), (2, at(2), at(5))]);
}

#[test]
fn an_overtaken_count_becomes_the_error() {
    let mut watched = Watched::of(0..CAPACITY as u64);
    watched.note(1_000);
    watched.note(1_000);
    let first = watched.sketch.summary().entries.remove(0);
    assert_eq!((first.key, first.count, first.error, first.first), (1_000, 3, 1, at(CAPACITY as u64 + 1)));
    watched.check();
}

/// The worst streams, in which every note takes over a counter.
#[test]
fn adversarial_streams_stay_within_the_bound() {
    let len = rounds(3_000, 100_000) as u64;
    let capacity = CAPACITY as u64;
    let heavy_at_the_end = (0..len).chain(std::iter::repeat_n(u64::MAX, len as usize / 20));
    let heavy_at_the_start = std::iter::repeat_n(u64::MAX, len as usize / 20).chain(0..len);
    let streams: [(&str, Vec<u64>); 6] = [
        ("all distinct", (0..len).collect()),
        ("one key more than there are counters, in turn", (0..len).map(|number| number % (capacity + 1)).collect()),
        (
            "twice as many, there and back",
            (0..len).map(|number| (number % (4 * capacity)).abs_diff(2 * capacity)).collect(),
        ),
        ("one key that comes last", heavy_at_the_end.collect()),
        ("one key that comes first", heavy_at_the_start.collect()),
        // All counters but one are high, so the last one changes hands with each note.
        (
            "127 frequent keys",
            (0..len).map(|number| if number < len / 2 { number % (capacity - 1) } else { number }).collect(),
        ),
    ];
    for (name, stream) in streams {
        let mut watched = Watched::new();
        for (number, key) in stream.into_iter().enumerate() {
            watched.note(key);
            if number % 97 == 0 {
                watched.check();
            }
        }
        watched.check();
        let summary = watched.sketch.summary();
        if name.contains("that comes") {
            assert_eq!(summary.entries[0].key, u64::MAX, "{name}");
        }
    }
}

#[test]
fn a_cleared_sketch_is_like_new() {
    let mut watched = Watched::of(zipf(1_000, random(1, 5_000)));
    watched.sketch.clear();
    watched.exact.clear();
    watched.check();
    zipf(1_000, random(2, 5_000)).into_iter().for_each(|key| watched.note(key));
    watched.check();
}

/// Hashes whose low bits are all alike make a search long, but not wrong.
#[test]
fn keys_whose_places_collide_stay_apart() {
    let mut watched = Watched::new();
    for key in random(3, 2_000).map(|number| number % 200) {
        watched.noted += 1;
        watched.sketch.note((key << 32) | (key % 3), &key, at(watched.noted));
        *watched.exact.entry(key).or_default() += 1;
    }
    watched.check();
}

#[test]
fn unknown_notes_widen_the_bound() {
    let mut summary = Watched::of([1, 1, 1, 2]).sketch.summary();
    summary.add_unknown(2);
    let counts: Vec<_> = summary.entries.iter().map(|entry| (entry.key, entry.count, entry.error)).collect();
    assert_eq!((counts, summary.total, summary.absent), (vec![(1, 5, 2), (2, 3, 2)], 6, 2));
}

proptest! {
    #![proptest_config(cases(if cfg!(miri) { 1 } else { rounds(40, 1_000) }))]

    #[test]
    fn any_stream_stays_within_the_bound(
        seed in any::<u64>(),
        len in 0_usize..4_000,
        keys in 1_u64..2_000,
        is_skewed in any::<bool>(),
    ) {
        let uniform = random(seed, len);
        let stream = if is_skewed { zipf(keys, uniform) } else { uniform.map(|number| number % keys).collect() };
        Watched::of(stream).check();
    }

    /// Merges sketches from several threads, hours and processes, some of which are cut before they are merged again.
    #[test]
    fn merged_summaries_stay_within_the_bound(
        seed in any::<u64>(),
        lens in prop::collection::vec(0_usize..2_000, 1..7),
        keys in 1_u64..2_000,
        cuts in any::<u8>(),
    ) {
        let mut merged = Summary::empty();
        let mut exact = HashMap::new();
        for (number, len) in lens.into_iter().enumerate() {
            let part = Watched::of(zipf(keys, random(seed.wrapping_add(number as u64), len)));
            part.exact.iter().for_each(|(key, count)| *exact.entry(*key).or_default() += count);
            merged = merged.merge(part.sketch.summary());
            if cuts & (1 << number) != 0 {
                merged.cut(CAPACITY);
            }
            check(&merged, &exact);
        }
    }
}
