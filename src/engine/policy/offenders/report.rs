//! A process's part as a text, for the other processes.
//!
//! The first line has the version, the policy, whether it is a shadow, the number of all rejections, and the bound on
//! keys that are not listed. Each further line has a key: its tag, its count and its error, its first and its last
//! rejection and the end of its ban in wall clock milliseconds, and, in the rest of the line, its shown text.

use std::collections::HashMap;
use std::fmt::Write;
use std::str::{FromStr, SplitN};

use super::{OffendersPart, ShownKey};
use crate::util::space_saving::{Counted, Summary};
use crate::values::time::Timestamp;

/// A report with another version is ignored.
const VERSION: &str = "1";

const NANOS_PER_MILLI: u64 = 1_000_000;

impl OffendersPart {
    pub(super) fn to_report(&self, policy: &str, is_shadow: bool) -> String {
        let Summary { entries, total, absent } = &self.summary;
        let mut report = format!("{VERSION} {policy} {} {total} {absent}", u8::from(is_shadow));
        for Counted { key: tag, count, error, first, last } in entries {
            let Some(ShownKey { text, banned_until }) = self.keys.get(tag) else { continue };
            let [first, last] = [first, last].map(|instant| instant.as_nanos() / NANOS_PER_MILLI);
            // Rounded up, so that a ban does not end early.
            let banned = banned_until.as_nanos().div_ceil(NANOS_PER_MILLI);
            let _ = write!(report, "\n{tag:x} {count} {error} {first} {last} {banned} {text}");
        }
        report
    }

    /// Reads a report. `None` if it is from another policy or another version.
    pub(super) fn from_report(report: &str, policy: &str, is_shadow: bool) -> Option<Self> {
        let mut lines = report.split('\n');
        let mut head = lines.next()?.splitn(5, ' ');
        let is_ours = head.next() == Some(VERSION)
            && head.next() == Some(policy)
            && head.next() == Some(if is_shadow { "1" } else { "0" });
        if !is_ours {
            return None;
        }
        let total = number(&mut head)?;
        let absent = number(&mut head)?;
        let mut keys = HashMap::new();
        let mut entries = Vec::new();
        for line in lines {
            let mut words = line.splitn(7, ' ');
            let tag = u128::from_str_radix(words.next()?, 16).ok()?;
            let [count, error, first, last, banned] = [(); 5].map(|()| number(&mut words));
            let [first, last, banned_until] = [first?, last?, banned?]
                .map(|millis: u64| Timestamp::from_nanos(millis.saturating_mul(NANOS_PER_MILLI)));
            let text = words.next()?.to_owned();
            entries.push(Counted { key: tag, count: count?, error: error?, first, last });
            keys.insert(tag, ShownKey { text, banned_until });
        }
        let is_sound = keys.len() == entries.len() && entries.iter().all(|entry| entry.error <= entry.count);
        is_sound.then_some(Self { summary: Summary { entries, total, absent }, keys })
    }
}

fn number<T: FromStr>(words: &mut SplitN<'_, char>) -> Option<T> {
    words.next()?.parse().ok()
}
