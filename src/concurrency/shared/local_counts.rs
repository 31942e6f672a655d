//! [`LocalCounts`]: the units that one process has in flight, and its knowledge of the server's counts.
//!
//! Plain data and transitions. The caller makes the calls to the server, and reports how each ended.
//!
//! # Why counts agree in the end
//!
//! Calls that take or release units add to a field or subtract from it, so their order does not matter, even if they
//! travel on different connections. Two cases remain: a call that may or may not have run, and a server that has lost
//! its data. The next *renewal* repairs both. It moves all the process's units to a new field:
//!
//! 1. From the moment it begins, calls use the new field. Units that are not in the new field yet are not released on
//!    the server.
//! 2. When no call on an earlier field is under way, or after a quarter of a lease, it sends the units that are in
//!    flight and are not in the new field yet. The server adds them there, and deletes the earlier fields.
//! 3. When it is over, the units of requests that have ended meanwhile are released on the server.
//!
//! So the new field has exactly the units in flight, regardless of the earlier fields. A call on an earlier field may
//! run even later, after its caller has given up. The units that it takes end with the next renewal, or with their
//! lease: until then, the server counts too many units, never too few.

mod entry;

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::store::remote::tag::KeyTag;
use crate::util::lock::Lock;
use crate::values::time::Timestamp;

use self::entry::LocalEntry;

pub(super) use self::entry::{CallEnd, PATIENCE_DIVISOR, Release, Renewal};

/// The units that a process has in flight, for all keys. A key is remembered while it has units in flight, a call under
/// way, or a count to repair.
pub(super) struct LocalCounts {
    /// By key tags, so that two threads rarely want the same one.
    shards: Box<[Lock<HashMap<KeyTag, LocalEntry>>]>,
    /// The last field's number. Each is used once, so that no call that was lost can change a later one.
    numbers: AtomicU64,
}

/// More than most machines have threads, so that two threads rarely want the same shard.
const SHARDS: usize = 64;

impl LocalCounts {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Lock::default()).collect(), numbers: AtomicU64::new(0) }
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

    /// Ends a call that took no units.
    pub(super) fn took_none(&self, tag: KeyTag, number: u64, end: CallEnd) {
        self.change(tag, |entry| entry.took_none(number, end));
    }

    /// Takes units without a call to the server, if at most `limit` are in flight in this process afterwards. Returns
    /// how many were in flight before.
    pub(super) fn take_here(&self, tag: KeyTag, units: u64, limit: u64, now: Timestamp) -> Result<u64, u64> {
        let mut shard = self.shard(tag);
        let before = shard.get(&tag).map_or(0, |entry| entry.units);
        let Some(after) = before.checked_add(units).filter(|after| *after <= limit) else { return Err(before) };
        if units > 0 {
            shard.entry(tag).or_insert_with(|| LocalEntry::new(self.next_number(), now)).units = after;
        }
        Ok(before)
    }

    /// Releases units of a request that is over. Returns the release to send to the server at once, if there is one.
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
        for mut shard in self.shards.iter().map(Lock::lock) {
            shard.retain(|_, entry| {
                entry.forget_ended_lease(now, lease);
                !entry.is_over()
            });
            due.extend(shard.iter().filter(|(_, entry)| entry.is_due(now, lease)).map(|(tag, _)| *tag));
        }
        due
    }

    /// Begins or continues a renewal, if it is due. Returns the renewal to send, once the calls on earlier fields have
    /// ended, or have taken a quarter of a lease.
    pub(super) fn renew(&self, tag: KeyTag, now: Timestamp, lease: Duration) -> Option<Renewal> {
        self.change(tag, |entry| entry.renew(|| self.next_number(), now, lease)).flatten()
    }

    /// Ends a renewal. Returns the release to send to the server for units that were released here meanwhile.
    pub(super) fn renewed(&self, tag: KeyTag, renewal: Renewal, end: CallEnd) -> Option<Release> {
        self.change(tag, |entry| entry.renewed(renewal, end)).flatten()
    }

    /// A key's units that are in flight in this process.
    pub(super) fn units(&self, tag: KeyTag) -> u64 {
        self.shard(tag).get(&tag).map_or(0, |entry| entry.units)
    }

    /// All keys' units that are in flight in this process.
    pub(super) fn total(&self) -> u64 {
        self.shards
            .iter()
            .fold(0, |sum, shard| shard.lock().values().fold(sum, |sum: u64, entry| sum.saturating_add(entry.units)))
    }

    /// Whether no key is remembered, so that there is nothing to renew, now or later.
    pub(super) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().is_empty())
    }

    /// Changes an entry, and removes it if it is empty afterwards. Returns `None` if the key has no entry, because a
    /// request's units are released a second time.
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
        let hash = usize::try_from(tag.short() % SHARDS as u64).expect("below the number of shards");
        self.shards[hash].lock()
    }

    fn next_number(&self) -> u64 {
        // Relaxed: the number only has to be unique.
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }
}

#[cfg(all(test, not(sluice_loom)))]
#[allow(clippy::cast_possible_truncation, reason = "small numbers, short tests")]
mod tests;
