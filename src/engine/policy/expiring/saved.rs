//! An `ExpiringTable`'s values in a snapshot.

use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering;

use super::{Ends, ExpiringTable};
use crate::util::keyed_hash::Secret;
use crate::values::snapshot::{Gap, Input, Moment, SavedTable, TableSink, Unfit, WallClock, put_number};
use crate::values::time::Timestamp;

/// A value that can be in a snapshot.
pub(in crate::engine::policy) trait SavedValue: Ends {
    /// Appends the value, with times counted from `then`.
    fn write(&self, then: Timestamp, bytes: &mut Vec<u8>);

    fn read(then: Timestamp, bytes: &mut Input<'_>) -> Option<Self>;

    /// Returns the value after a gap, unless it has ended.
    fn moved(self, gap: Gap) -> Option<Self>;
}

impl SavedValue for Timestamp {
    fn write(&self, then: Timestamp, bytes: &mut Vec<u8>) {
        put_number(bytes, self.as_nanos().saturating_sub(then.as_nanos()));
    }

    fn read(then: Timestamp, bytes: &mut Input<'_>) -> Option<Self> {
        Some(Self::from_nanos(then.as_nanos().saturating_add(bytes.u64()?)))
    }

    fn moved(self, gap: Gap) -> Option<Self> {
        gap.deadline(self)
    }
}

/// A part is written once it has this many bytes.
const PART: usize = 1 << 15;

/// Decoded values that are not in use yet.
pub(in crate::engine::policy) struct SavedEntries<V> {
    secret: Secret,
    moment: Moment,
    values: Vec<(NonZeroU64, V)>,
}

impl<V: SavedValue> SavedEntries<V> {
    pub(in crate::engine::policy) fn read(saved: &SavedTable) -> Result<Self, Unfit> {
        Self::decoded(saved).ok_or(Unfit::Damaged("a table of bans, debts or retries"))
    }

    fn decoded(saved: &SavedTable) -> Option<Self> {
        let mut head = Input::new(&saved.head);
        let secret = Secret::from_bytes(head.array()?);
        let moment = Moment { clock: Timestamp::from_nanos(head.u64()?), wall: head.u64()? };
        let mut values = Vec::new();
        for part in &saved.parts {
            let mut part = Input::new(part);
            while !part.is_empty() {
                let tag = NonZeroU64::new(u64::from_le_bytes(part.array()?))?;
                values.push((tag, V::read(moment.clock, &mut part)?));
            }
        }
        head.is_empty().then_some(Self { secret, moment, values })
    }
}

impl<V: SavedValue> ExpiringTable<V> {
    /// Writes the values that have not ended. A set is locked while its 64 slots are copied.
    pub(in crate::engine::policy) fn save(&self, sink: &mut dyn TableSink) -> io::Result<()> {
        let Some(entries) = self.entries.get() else { return Ok(()) };
        let then = self.now();
        let mut head = entries.secret.to_bytes().to_vec();
        put_number(&mut head, then.as_nanos());
        put_number(&mut head, sink.wall());
        sink.begin(&head)?;
        let mut bytes = Vec::new();
        let mut keys = 0;
        for set in entries.map.each_set() {
            for (tag, value) in set.into_iter().flatten().filter(|(_, value)| value.ends() > then) {
                bytes.extend(tag.get().to_le_bytes());
                value.write(then, &mut bytes);
                keys += 1;
            }
            if bytes.len() > PART {
                sink.part(&bytes, keys)?;
                bytes.clear();
                keys = 0;
            }
        }
        if keys > 0 { sink.part(&bytes, keys) } else { Ok(()) }
    }

    /// Begins with a snapshot's values. Returns their number.
    pub(in crate::engine::policy) fn restore(&self, saved: SavedEntries<V>, wall: &WallClock) -> Result<u64, Unfit> {
        let was_used = || Unfit::skipped("it was in use before");
        if self.entries.get().is_some() {
            return Err(was_used());
        }
        // Read the wall clock first, so that the time between the two readings is not forgiven.
        let wall = wall();
        let now = self.now();
        let gap = Gap::new(saved.moment, Moment { clock: now, wall });
        let entries = self.make(saved.secret);
        let mut keys = 0;
        for (tag, value) in saved.values {
            if let Some(value) = value.moved(gap) {
                entries.map.update(tag, now, &V::ends, |slot| *slot = Some(value));
                self.latest.fetch_max(value.ends().as_nanos(), Ordering::Relaxed);
                keys += 1;
            }
        }
        self.entries.set(entries).map(|()| keys).map_err(|_| was_used())
    }
}
