//! Overrides in a snapshot. Unlike all other tables in it, they have the keys themselves.

use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::{KeyOverride, Overrides};
use crate::values::snapshot::{Gap, Input, Moment, SavedTable, TableSink, Unfit, WallClock, put_number};
use crate::values::time::{Timestamp, nanos_of};
use crate::values::{OverrideReason, PartitionKey};

/// Decoded overrides that are not in use yet.
pub(in crate::engine::policy) struct SavedOverrides {
    moment: Moment,
    overrides: Vec<(PartitionKey, KeyOverride)>,
}

impl SavedOverrides {
    pub(in crate::engine::policy) fn read(saved: &SavedTable) -> Result<Self, Unfit> {
        Self::decoded(saved).ok_or(Unfit::Damaged("the bans and allowances by hand"))
    }

    fn decoded(saved: &SavedTable) -> Option<Self> {
        let mut head = Input::new(&saved.head);
        let moment = Moment { clock: Timestamp::from_nanos(head.u64()?), wall: head.u64()? };
        let mut overrides = Vec::new();
        for part in &saved.parts {
            let mut part = Input::new(part);
            while !part.is_empty() {
                let is_ban = match part.byte()? {
                    b'b' => true,
                    b'a' => false,
                    _ => return None,
                };
                let since = Timestamp::from_nanos(moment.clock.as_nanos().saturating_sub(part.u64()?));
                let until = Timestamp::from_nanos(moment.clock.as_nanos().saturating_add(part.u64()?));
                let reason = OverrideReason::new(part.text()?).ok()?;
                let key = PartitionKey::from_canonical(part.bytes()?);
                overrides.push((key, KeyOverride { is_ban, since, until, reason }));
            }
        }
        head.is_empty().then_some(Self { moment, overrides })
    }
}

impl Overrides {
    /// Writes the overrides in force.
    pub(in crate::engine::policy) fn save(&self, sink: &mut dyn TableSink) -> io::Result<()> {
        let then = self.clock.now();
        let all: Vec<_> = {
            let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
            by_key.iter().filter(|(_, by_hand)| by_hand.until > then).map(|(key, it)| (key.clone(), *it)).collect()
        };
        if all.is_empty() {
            return Ok(());
        }
        let mut head = Vec::new();
        put_number(&mut head, then.as_nanos());
        put_number(&mut head, sink.wall());
        sink.begin(&head)?;
        // A thousand overrides take at most 460 KB, and mostly some 30.
        for some in all.chunks(1_000) {
            let mut bytes = Vec::new();
            for (key, KeyOverride { is_ban, since, until, reason }) in some {
                bytes.push(if *is_ban { b'b' } else { b'a' });
                put_number(&mut bytes, then.as_nanos().saturating_sub(since.as_nanos()));
                put_number(&mut bytes, until.as_nanos() - then.as_nanos());
                for text in [reason.as_str().as_bytes(), key.as_bytes()] {
                    put_number(&mut bytes, text.len() as u64);
                    bytes.extend(text);
                }
            }
            sink.part(&bytes, some.len() as u64)?;
        }
        Ok(())
    }

    /// Adds a snapshot's overrides that have not ended, except for keys with one. Returns their number.
    pub(in crate::engine::policy) fn restore(&self, saved: SavedOverrides, wall: &WallClock) -> u64 {
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        // Read the wall clock first, so that the time between the two readings is not forgiven.
        let wall = wall();
        let gap = Gap::new(saved.moment, Moment { clock: self.clock.now(), wall });
        let mut restored = 0;
        for (key, by_hand) in saved.overrides {
            if let Some(until) = gap.deadline(by_hand.until) {
                let age = gap.elapsed.saturating_add(nanos_of(saved.moment.clock.saturating_since(by_hand.since)));
                let since = Timestamp::from_nanos(gap.now.as_nanos().saturating_sub(age));
                by_key.entry(key).or_insert(KeyOverride { since, until, ..by_hand });
                self.latest.fetch_max(until.as_nanos(), Ordering::Relaxed);
                restored += 1;
            }
        }
        restored
    }
}
