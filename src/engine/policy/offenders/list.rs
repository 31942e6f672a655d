//! [`Offenders`]: the answer that an operator gets.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::OffendersPart;
use crate::engine::policy::offender_record::Hour;
use crate::values::LimiterError;
use crate::values::time::Timestamp;

/// The keys that a policy has rejected most, in the present hour and the one before; see
/// [`LimitsHandle::offenders`](crate::LimitsHandle::offenders).
#[derive(Clone, Debug)]
pub struct Offenders {
    list: Vec<Offender>,
    total: u64,
    max_error: u64,
    processes: usize,
    since: SystemTime,
    is_shadow: bool,
    missing: Option<LimiterError>,
}

/// A key that a policy has rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offender {
    key: String,
    count: u64,
    error: u64,
    first: SystemTime,
    last: SystemTime,
    banned_for: Option<Duration>,
    is_whole: bool,
}

impl Offenders {
    /// Lists the `most` highest counts from these `processes`, at `now`. `is_whole` says whether a shown text is the
    /// key with a tag.
    pub(crate) fn new(
        part: OffendersPart,
        most: usize,
        now: Timestamp,
        processes: usize,
        is_shadow: bool,
        missing: Option<LimiterError>,
        is_whole: impl Fn(&str, u128) -> bool,
    ) -> Self {
        let OffendersPart { summary, mut keys } = part;
        let list = summary.entries.into_iter().take(most).filter_map(|entry| {
            let key = keys.remove(&entry.key)?;
            let left = key.banned_until.saturating_since(now);
            Some(Offender {
                is_whole: is_whole(&key.text, entry.key),
                key: key.text,
                count: entry.count,
                error: entry.error,
                first: system_time(entry.first),
                last: system_time(entry.last),
                banned_for: (!left.is_zero()).then_some(left),
            })
        });
        Self {
            list: list.collect(),
            total: summary.total,
            max_error: summary.absent,
            processes,
            since: system_time(Hour::of(now).before().start()),
            is_shadow,
            missing,
        }
    }

    /// The keys, the highest [count](Offender::count) first.
    #[must_use]
    pub fn list(&self) -> &[Offender] {
        &self.list
    }

    /// The exact number of rejections in this time, including keys that are not listed.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The most rejections that a key may have had without being known, and the most by which a count is too high. At
    /// most 1/128 of the [total](Self::total), plus the rejections that found all eight sketches in use by other
    /// threads, which are rare.
    #[must_use]
    pub const fn max_error(&self) -> u64 {
        self.max_error
    }

    /// The number of processes whose rejections are counted: this one, and all that have reported to the same server in
    /// this time, even if they have ended since. Two layers in a process count twice.
    #[must_use]
    pub const fn processes(&self) -> usize {
        self.processes
    }

    /// Since when rejections are counted: the start of the previous hour, in UTC. A process that was started later has
    /// counted since then.
    #[must_use]
    pub const fn since(&self) -> SystemTime {
        self.since
    }

    /// Whether the policy is a [shadow](crate::Policy::shadow), so that these are rejections that it would have made.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Why the other processes' counts are missing, if the server did not answer. This process's own are here.
    #[must_use]
    pub const fn missing(&self) -> Option<&LimiterError> {
        self.missing.as_ref()
    }
}

impl Offender {
    /// The key, as the policy's [`ShowKey`](crate::policy::ShowKey) shows it. Different keys may be shown alike, unless
    /// they are [whole](Self::is_whole).
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Whether [`key`](Self::key) is the whole key, as an [operator types it](crate::policy::KeyOf), so that it can be
    /// banned by this text. We check this by reading the text, because another process may show keys in another form.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// An upper bound on its rejections, too high by at most [`error`](Self::error).
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The part of the count that may belong to other keys.
    #[must_use]
    pub const fn error(&self) -> u64 {
        self.error
    }

    /// A lower bound on its rejections: the number that is certain.
    #[must_use]
    pub const fn at_least(&self) -> u64 {
        self.count.saturating_sub(self.error)
    }

    /// Its first rejection that is counted. There may have been earlier ones, up to [`error`](Self::error) in this
    /// time, and any number before.
    #[must_use]
    pub const fn first(&self) -> SystemTime {
        self.first
    }

    /// Its last rejection, by the clock of the process that made it.
    #[must_use]
    pub const fn last(&self) -> SystemTime {
        self.last
    }

    /// The rest of its ban, by hand or due to a [penalty](crate::Policy::penalty), if it is banned. A ban by another
    /// process is known here after a second, or once this process has rejected a request for it.
    #[must_use]
    pub const fn banned_for(&self) -> Option<Duration> {
        self.banned_for
    }
}

fn system_time(instant: Timestamp) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_nanos(instant.as_nanos())).unwrap_or(UNIX_EPOCH)
}
