//! [`LocalCounts`]: what one process has in flight, and what it knows of the server's counts of it.
//!
//! Plain data and transitions: whoever makes the calls reports how they ended.
//!
//! # Why counts agree in the end
//!
//! Calls that take or release units add to a field or subtract from it, so their order does not matter, on whatever
//! connections they travel. What is left are calls of which nobody knows whether they ran, and a server that has lost
//! its data. Both are repaired by the next *renewal*, which moves all units of the process to a new field:
//!
//! 1. From the moment it begins, calls use the new field. Of units that are not in it yet, none is released.
//! 2. When no call on an earlier field is under way, it sends the units that are in flight and are not in the new field
//!    yet. The server adds them there, and deletes the earlier fields.
//! 3. When it is over, what has ended meanwhile is released on the server.
//!
//! So the new field has the units in flight and nothing else, whatever happened to the fields before. A call on an
//! earlier field that runs later still, after its caller has given up, leaves units that end with the next renewal, or
//! with their lease: more than there are, never fewer.

mod entry;

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::store::remote::KeyTag;
use crate::util::lock::Shards;
use crate::values::time::Timestamp;

use self::entry::LocalEntry;
pub(super) use self::entry::{CallEnd, PATIENCE_DIVISOR, Release, Renewal};

/// What a process has in flight, of all keys. It remembers a key for as long as it has units in flight or a call under
/// way.
pub(super) struct LocalCounts {
    shards: Shards<HashMap<KeyTag, LocalEntry>>,
    /// The number of the last field. Each is used once, so that no call that was lost can change a later one.
    numbers: AtomicU64,
}

/// More than a machine has threads, so that two threads rarely want the same one.
const SHARDS: usize = 64;

impl LocalCounts {
    pub(super) fn new() -> Self {
        Self { shards: Shards::new(SHARDS, HashMap::new), numbers: AtomicU64::new(0) }
    }

    /// Begins a call that takes units, and returns the number of its field.
    pub(super) fn begin(&self, tag: KeyTag, now: Timestamp) -> u64 {
        let mut shard = self.shard(tag);
        let entry = shard.entry(tag).or_insert_with(|| LocalEntry::new(self.next_number(), now));
        entry.begin(now)
    }

    /// Ends a call that took these units.
    pub(super) fn took(&self, tag: KeyTag, number: u64, units: u64) {
        self.change(tag, |entry| entry.took(number, units));
    }

    /// Ends a call that took none.
    pub(super) fn took_none(&self, tag: KeyTag, number: u64, end: CallEnd) {
        self.change(tag, |entry| entry.took_none(number, end));
    }

    /// Takes units without the server, if no more than `limit` are then in flight in this process. Returns how many were
    /// before.
    pub(super) fn take_here(&self, tag: KeyTag, units: u64, limit: u64, now: Timestamp) -> Result<u64, u64> {
        let mut shard = self.shard(tag);
        let before = shard.get(&tag).map_or(0, |entry| entry.units);
        let Some(after) = before.checked_add(units).filter(|after| *after <= limit) else { return Err(before) };
        if units > 0 {
            shard.entry(tag).or_insert_with(|| LocalEntry::new(self.next_number(), now)).units = after;
        }
        Ok(before)
    }

    /// Releases units of a request that is over. Returns what is to be released on the server, now.
    pub(super) fn release(&self, tag: KeyTag, units: u64) -> Option<Release> {
        self.change(tag, |entry| entry.release(units)).flatten()
    }

    /// Ends a call that released units.
    pub(super) fn released(&self, tag: KeyTag, number: u64, end: CallEnd) {
        self.change(tag, |entry| entry.released(number, end));
    }

    /// The keys whose renewal is due.
    pub(super) fn due(&self, now: Timestamp, lease: Duration) -> Vec<KeyTag> {
        let mut due = Vec::new();
        for mut shard in self.shards.iter() {
            shard.retain(|_, entry| {
                entry.forget_ended_lease(now, lease);
                !entry.is_over()
            });
            due.extend(shard.iter().filter(|(_, entry)| entry.is_due(now, lease)).map(|(tag, _)| *tag));
        }
        due
    }

    /// Begins or continues a renewal, if it is due. Returns what to send, once no call on an earlier field is under way.
    pub(super) fn renew(&self, tag: KeyTag, now: Timestamp, lease: Duration) -> Option<Renewal> {
        let next = || self.next_number();
        self.change(tag, |entry| entry.renew(next, now, lease)).flatten()
    }

    /// Ends a renewal. Returns what is to be released on the server, since it was released here meanwhile.
    pub(super) fn renewed(&self, tag: KeyTag, renewal: Renewal, end: CallEnd) -> Option<Release> {
        self.change(tag, |entry| entry.renewed(renewal, end)).flatten()
    }

    /// The units of a key that are in flight in this process.
    pub(super) fn units(&self, tag: KeyTag) -> u64 {
        self.shard(tag).get(&tag).map_or(0, |entry| entry.units)
    }

    /// The units of all keys that are in flight in this process.
    pub(super) fn total(&self) -> u64 {
        let add = |sum: u64, entry: &LocalEntry| sum.saturating_add(entry.units);
        self.shards.iter().fold(0, |sum, shard| shard.values().fold(sum, add))
    }

    /// Whether there is nothing to renew, and nothing that might be.
    pub(super) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.is_empty())
    }

    /// Changes an entry, and removes it if nothing is left of it. `None` if there is none: then the units of a request
    /// are released a second time.
    fn change<T>(&self, tag: KeyTag, change: impl FnOnce(&mut LocalEntry) -> T) -> Option<T> {
        let mut shard = self.shard(tag);
        let Slot::Occupied(mut slot) = shard.entry(tag) else { return None };
        let changed = change(slot.get_mut());
        if slot.get().is_over() {
            slot.remove();
        }
        Some(changed)
    }

    fn shard(&self, tag: KeyTag) -> MutexGuard<'_, HashMap<KeyTag, LocalEntry>> {
        self.shards.lock(tag.short())
    }

    fn next_number(&self) -> u64 {
        // Relaxed: only that it is used once matters.
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "small numbers, short tests")]
mod tests;
