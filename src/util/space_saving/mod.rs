//! The Space-Saving sketch (A. Metwally, D. Agrawal, A. El Abbadi, "Efficient Computation of Frequent and Top-k
//! Elements in Data Streams", ICDT 2005): the keys that were noted most often, in fixed-size memory.
//!
//! It has [`CAPACITY`] counters. A key without a counter takes over the least counter, whose count is then its possible
//! error. So in a stream with *N* notes, a count is never too low, and too high by at most its error, which is at most
//! *N* / `CAPACITY`. A key that was noted more often than that has a counter.
//!
//! The counters are sorted by their counts, in groups with equal counts, as in the paper's Stream-Summary, but in
//! arrays: a counter that is incremented changes places with the first one in its group, so a note takes constant time
//! for any stream.

mod summary;
#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests;

pub(crate) use self::summary::{Counted, Summary};
use crate::values::time::Timestamp;

/// The number of counters. The bound is then 0.8 % of a stream.
pub(crate) const CAPACITY: usize = 128;

/// The number of places in the hash index: twice the number of counters, so that a search ends after one or two.
const PLACES: usize = 2 * CAPACITY;

/// A free place in the index.
const FREE: u8 = u8::MAX;

const _: () = assert!(CAPACITY <= FREE as usize, "a counter's number is a byte, and is not `FREE`");

/// The sketch. The caller hashes keys, with a secret, and keys with one hash count as one. Hashes have 64 bits, so a
/// key has the same hash as one of the counters once in 10^17 times. Clients that knew their keys' hashes could make
/// them collide.
pub(crate) struct SpaceSaving<K> {
    counters: Vec<Counter<K>>,
    /// The counters' numbers, the highest count first.
    order: [u8; CAPACITY],
    /// The groups with equal counts, unsorted. Each is a run in `order`.
    groups: Vec<Group>,
    /// The numbers of groups without counters.
    free_groups: Vec<u8>,
    /// The counters by their hashes, with open addressing and linear probing.
    index: [u8; PLACES],
    total: u64,
}

struct Counter<K> {
    key: K,
    hash: u64,
    /// The part of the count that may belong to other keys.
    error: u64,
    first: Timestamp,
    last: Timestamp,
    group: u8,
    /// The position in `order`.
    position: u8,
}

#[derive(Clone, Copy)]
struct Group {
    count: u64,
    /// Its first counter's position in `order`.
    start: u8,
    len: u8,
}

impl<K: Clone> SpaceSaving<K> {
    /// Makes an empty sketch, with all its memory.
    pub(crate) fn new() -> Self {
        Self {
            counters: Vec::with_capacity(CAPACITY),
            order: [0; CAPACITY],
            groups: Vec::with_capacity(CAPACITY),
            free_groups: Vec::with_capacity(CAPACITY),
            index: [FREE; PLACES],
            total: 0,
        }
    }

    /// Counts a key. It is cloned only if it has no counter yet.
    #[inline(always)]
    pub(crate) fn note(&mut self, hash: u64, key: &K, now: Timestamp) {
        self.total = self.total.saturating_add(1);
        let number = match self.find(hash) {
            Some(number) => number,
            None => return self.begin(hash, key, now),
        };
        self.counters[usize::from(number)].last = now;
        self.increment(number);
    }

    /// Forgets everything, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.counters.clear();
        self.groups.clear();
        self.free_groups.clear();
        self.index = [FREE; PLACES];
        self.total = 0;
    }

    /// Returns the counts so far.
    pub(crate) fn summary(&self) -> Summary<K> {
        let is_full = self.counters.len() == CAPACITY;
        let counted = |number: &u8| {
            let counter = &self.counters[usize::from(*number)];
            let count = self.groups[usize::from(counter.group)].count;
            Counted { key: counter.key.clone(), count, error: counter.error, first: counter.first, last: counter.last }
        };
        let entries: Vec<_> = self.order[..self.counters.len()].iter().map(counted).collect();
        let absent = entries.last().filter(|_| is_full).map_or(0, |least| least.count);
        Summary { entries, total: self.total, absent }
    }

    /// Counts a key without a counter: gives it a new counter, or takes over the counter with the least count.
    #[inline(never)]
    fn begin(&mut self, hash: u64, key: &K, now: Timestamp) {
        let len = self.counters.len();
        if len < CAPACITY {
            let number = byte(len);
            let group = match self.order[..len].last().map(|last| self.counters[usize::from(*last)].group) {
                Some(least) if self.groups[usize::from(least)].count == 1 => {
                    self.groups[usize::from(least)].len += 1;
                    least
                }
                _ => self.new_group(Group { count: 1, start: number, len: 1 }),
            };
            self.order[len] = number;
            self.counters.push(Counter {
                key: key.clone(),
                hash,
                error: 0,
                first: now,
                last: now,
                group,
                position: number,
            });
            return self.add_to_index(hash, number);
        }
        let number = self.order[CAPACITY - 1];
        self.remove_from_index(number);
        let counter = &mut self.counters[usize::from(number)];
        counter.error = self.groups[usize::from(counter.group)].count;
        counter.key.clone_from(key);
        counter.hash = hash;
        counter.first = now;
        counter.last = now;
        self.add_to_index(hash, number);
        self.increment(number);
    }

    /// Increments a count, and moves its counter from its group to the next one.
    #[inline(always)]
    fn increment(&mut self, number: u8) {
        let at = usize::from(number);
        let from = self.counters[at].group;
        let Group { count, start, len } = self.groups[usize::from(from)];
        let Some(next) = count.checked_add(1) else { return };
        // The group with the next count, if there is one, is just before.
        let before =
            start.checked_sub(1).map(|before| self.counters[usize::from(self.order[usize::from(before)])].group);
        let before = before.filter(|group| self.groups[usize::from(*group)].count == next);
        if len == 1 {
            match before {
                None => self.groups[usize::from(from)].count = next,
                Some(to) => {
                    self.groups[usize::from(to)].len += 1;
                    self.counters[at].group = to;
                    self.free_groups.push(from);
                }
            }
            return;
        }
        // The group's first counter may be the last one in the group before.
        let position = self.counters[at].position;
        let first = self.order[usize::from(start)];
        self.order.swap(usize::from(start), usize::from(position));
        self.counters[usize::from(first)].position = position;
        self.counters[at].position = start;
        self.groups[usize::from(from)] = Group { count, start: start + 1, len: len - 1 };
        self.counters[at].group = match before {
            Some(to) => {
                self.groups[usize::from(to)].len += 1;
                to
            }
            None => self.new_group(Group { count: next, start, len: 1 }),
        };
    }

    fn new_group(&mut self, group: Group) -> u8 {
        if let Some(number) = self.free_groups.pop() {
            self.groups[usize::from(number)] = group;
            return number;
        }
        // There are never more groups than counters.
        self.groups.push(group);
        byte(self.groups.len() - 1)
    }

    #[inline(always)]
    fn find(&self, hash: u64) -> Option<u8> {
        let mut place = home(hash);
        loop {
            let number = self.index[place];
            // Half of the places are free.
            if number == FREE {
                return None;
            }
            if self.counters[usize::from(number)].hash == hash {
                return Some(number);
            }
            place = (place + 1) % PLACES;
        }
    }

    fn add_to_index(&mut self, hash: u64, number: u8) {
        let mut place = home(hash);
        while self.index[place] != FREE {
            place = (place + 1) % PLACES;
        }
        self.index[place] = number;
    }

    /// Frees a counter's place, and fills it by a later one that it was in the way of (D. E. Knuth, "The Art of
    /// Computer Programming", volume 3, section 6.4, algorithm R).
    fn remove_from_index(&mut self, number: u8) {
        let mut hole = home(self.counters[usize::from(number)].hash);
        while self.index[hole] != number {
            hole = (hole + 1) % PLACES;
        }
        let mut place = hole;
        loop {
            place = (place + 1) % PLACES;
            let other = self.index[place];
            if other == FREE {
                self.index[hole] = FREE;
                return;
            }
            let distance = |from: usize| (place + PLACES - from) % PLACES;
            if distance(home(self.counters[usize::from(other)].hash)) >= distance(hole) {
                self.index[hole] = other;
                hole = place;
            }
        }
    }
}

/// The place in the index at which the search for a hash begins.
#[allow(clippy::cast_possible_truncation, reason = "the low bits are wanted")]
const fn home(hash: u64) -> usize {
    hash as usize % PLACES
}

#[allow(clippy::cast_possible_truncation, reason = "below `CAPACITY`")]
const fn byte(number: usize) -> u8 {
    number as u8
}
