//! Offenders: the keys that a policy rejects most, as an operator sees them.
//!
//! A look merges this process's [part](OffendersPart), from the policy's record, with the parts that other processes
//! have put on the server, as [reports](OffendersPart::to_report). Parts are merged by key tags, and not by the texts
//! that are shown, so that keys with one prefix stay apart, with a bound on each.

mod list;
mod report;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use sha2::{Digest, Sha256};

pub use self::list::{Offender, Offenders};
use crate::engine::domain::Domain;
use crate::engine::key::SHARED;
use crate::engine::policy::definition::Policy;
use crate::engine::policy::offender_record::{Hour, Scheduled};
use crate::util::space_saving::{CAPACITY, Summary};
use crate::values::time::Timestamp;
use crate::values::{PartitionKey, Report, SharesReports};

/// The offenders of one process, or of several.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OffendersPart {
    summary: Summary<u128>,
    keys: HashMap<u128, ShownKey>,
}

/// The known facts about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ShownKey {
    text: String,
    /// On the wall clock; zero if it is not banned.
    banned_until: Timestamp,
}

impl<D: Domain> Policy<D> {
    /// Tracks a rejected key. Returns a publication to make, if the limiter's server passes reports on and none is
    /// scheduled.
    pub(crate) fn note_offender(&self, key: &PartitionKey) -> Option<Scheduled> {
        let offenders = self.lineage.offenders.as_ref()?;
        offenders.record.note(key);
        self.description.shares_reports()?;
        offenders.record.schedule()
    }

    /// This process's offenders in the present hour and the one before, and the time. `None` if they are not tracked.
    pub(crate) fn own_offenders(&self) -> Option<(OffendersPart, Timestamp)> {
        let offenders = self.lineage.offenders.as_ref()?;
        let now = offenders.record.now();
        Some((self.part(offenders.record.in_both_hours(now), now), now))
    }

    /// This process's reports for other ones.
    pub(crate) fn offender_reports(&self) -> Vec<Report> {
        let Some(offenders) = &self.lineage.offenders else { return Vec::new() };
        let record = &offenders.record;
        let now = record.now();
        let parts = record.hours_to_publish(now).map(|hour| {
            let mut summary = record.in_hour(hour, now);
            summary.cut(CAPACITY);
            (hour, self.part(summary, now))
        });
        let report = |(Hour(hour), part): (Hour, OffendersPart)| Report {
            hour,
            process: record.id(),
            text: part.to_report(&self.name, self.shadow),
        };
        parts.filter(|(_, part)| part.summary.total > 0).map(report).collect()
    }

    /// This process's offenders, merged with other processes' reports for the two hours at `now`. Reports that are not
    /// for this policy do not count.
    pub(crate) fn all_offenders(
        &self,
        own: OffendersPart,
        reports: &[Report],
        now: Timestamp,
    ) -> (OffendersPart, usize) {
        let own_id = self.lineage.offenders.as_ref().map(|offenders| offenders.record.id());
        let hour = Hour::of(now);
        // Another process's clock may be ahead.
        let hours = hour.before().0..=hour.0 + 1;
        let others = reports.iter().filter(|report| hours.contains(&report.hour) && Some(report.process) != own_id);
        let mut processes = Vec::new();
        let mut all = own;
        for report in others {
            if let Some(part) = OffendersPart::from_report(&report.text, &self.name, self.shadow) {
                all = all.merge(part);
                processes.push(report.process);
            }
        }
        processes.sort_unstable();
        processes.dedup();
        (all, 1 + processes.len())
    }

    /// Selects one key from these offenders.
    pub(crate) fn only_offender(&self, all: OffendersPart, key: &PartitionKey) -> OffendersPart {
        let tag = tag(self.description.shares_reports(), key);
        let OffendersPart { mut summary, keys } = all;
        summary.entries.retain(|entry| entry.key == tag);
        OffendersPart { summary, keys }
    }

    fn part(&self, summary: Summary<PartitionKey>, now: Timestamp) -> OffendersPart {
        let server = self.description.shares_reports();
        let mut keys = HashMap::with_capacity(summary.entries.len());
        let summary = summary.map_keys(|key| {
            let tag = tag(server, &key);
            keys.insert(tag, self.shown(&key, now));
            tag
        });
        OffendersPart { summary, keys }
    }

    fn shown(&self, key: &PartitionKey, now: Timestamp) -> ShownKey {
        let banned_until = self.ban_left(key).map_or(Timestamp::ZERO, |left| now.saturating_add(left));
        let whole = self.selector.text_of(key);
        let text = match &self.lineage.offenders {
            // The shared key is not personal data, so it is shown as it is.
            Some(offenders) if whole != SHARED => offenders.show.show(&whole),
            _ => whole,
        };
        ShownKey { text, banned_until }
    }

    /// Whether a shown text stands for the key with this tag. It may be a part of the key, or a hash, made here or in
    /// the process that has reported it, and it may be another key's text.
    pub(crate) fn is_whole(&self, shown: &str, of: u128) -> bool {
        let key = self.selector.key_of_text(shown);
        key.is_ok_and(|key| tag(self.description.shares_reports(), &key) == of)
    }

    /// How long this process knows a key to be banned, by hand or by its penalty.
    fn ban_left(&self, key: &PartitionKey) -> Option<Duration> {
        self.exception_here(key).filter(|exception| exception.is_ban).map(|ban| ban.left)
    }
}

/// The number that identifies a key in all parts. If parts come from a server, the server makes it.
fn tag(server: Option<&dyn SharesReports>, key: &PartitionKey) -> u128 {
    match server {
        Some(server) => server.tag(key),
        None => {
            let hash = Sha256::digest(key.as_bytes());
            u128::from_le_bytes(hash[..16].try_into().expect("half of 32 bytes"))
        }
    }
}

impl OffendersPart {
    fn merge(mut self, other: Self) -> Self {
        for (tag, key) in other.keys {
            match self.keys.entry(tag) {
                Entry::Vacant(entry) => drop(entry.insert(key)),
                // The process that was merged first may not know of the ban.
                Entry::Occupied(mut entry) => {
                    let known = entry.get_mut();
                    known.banned_until = known.banned_until.max(key.banned_until);
                }
            }
        }
        Self { summary: self.summary.merge(other.summary), keys: self.keys }
    }
}
